//! A proxy in front of a server that passes connections on, answers in place of the server or closes them.

use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

/// What a proxy does with connections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ProxyState {
    Passes,
    Answers502,
    Closes,
}

/// A proxy in front of a server.
pub struct HttpProxy {
    pub url: String,
    pub state: watch::Sender<ProxyState>,
    /// A permit for each connection that did not reach the server.
    pub refused: Arc<Semaphore>,
}

impl HttpProxy {
    pub async fn start(server: &str, state: ProxyState) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = server.trim_start_matches("http://").to_owned();
        let (state, refused) = (watch::Sender::new(state), Arc::new(Semaphore::new(0)));
        let (states, counted) = (state.subscribe(), refused.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(pass(stream, server.clone(), states.clone(), counted.clone()));
            }
        });
        HttpProxy { url, state, refused }
    }
}

/// Passes a connection on until the state of the proxy changes, or answers in place of the server.
async fn pass(
    mut stream: TcpStream,
    server: String,
    mut states: watch::Receiver<ProxyState>,
    refused: Arc<Semaphore>,
) {
    let state = *states.borrow_and_update();
    if state == ProxyState::Passes {
        let mut upstream = TcpStream::connect(server).await.unwrap();
        tokio::select! {
            _ = copy_bidirectional(&mut stream, &mut upstream) => {}
            _ = states.changed() => {}
        }
        return;
    }
    if state == ProxyState::Answers502 {
        let mut head = Vec::new();
        while !head.windows(4).any(|end| end == b"\r\n\r\n") {
            if stream.read_buf(&mut head).await.unwrap() == 0 {
                return;
            }
        }
        let page = "<html>bad gateway</html>";
        let size = page.len();
        let answer = format!(
            "HTTP/1.1 502 Bad Gateway\r\ncontent-length: {size}\r\nconnection: close\r\n\r\n{page}"
        );
        stream.write_all(answer.as_bytes()).await.unwrap();
    }
    refused.add_permits(1);
}
