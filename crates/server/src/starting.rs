//! Answers while the store is being opened: the server is there, and not ready yet.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use axum::http::{Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::json;
use taskyard_wire::Code;
use taskyard_wire::http::ErrorAnswer;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use crate::body::discard;
use crate::connections::{pause_after, prepare};
use crate::slow_reader::Guarded;

/// Most connections that are answered at once meanwhile; others wait until the server is ready.
const CONNECTIONS_MAX: usize = 256;
/// How long a connection may take for its one request and the answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// How long requests that arrived before the server was ready have to be answered.
const FINISH_MAX: Duration = Duration::from_secs(2);

/// Answers that the server is starting, until it is told to stop.
pub(crate) struct Starting {
    stop: oneshot::Sender<()>,
    running: JoinHandle<TcpListener>,
}

impl Starting {
    /// Begins to answer the clients of this listener.
    pub fn begin(listener: TcpListener) -> Self {
        let (stop, stopped) = oneshot::channel();
        Starting { stop, running: tokio::spawn(run(listener, stopped)) }
    }

    /// Ends it and gives the listener back. Requests under way are still answered.
    pub async fn end(self) -> Option<TcpListener> {
        // Whether it has ended already shows in the next line.
        let _ = self.stop.send(());
        self.running.await.ok()
    }
}

async fn run(listener: TcpListener, stopped: oneshot::Receiver<()>) -> TcpListener {
    let mut open = JoinSet::new();
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut stopped = pin!(stopped);
    loop {
        let next = async {
            let permit = room.clone().acquire_owned().await;
            (permit, listener.accept().await)
        };
        tokio::select! {
            biased;
            _ = stopped.as_mut() => break,
            Some(_) = open.join_next() => {}
            (permit, accepted) = next => match accepted {
                Ok((stream, _)) => {
                    open.spawn(async move {
                        let _ = timeout(ANSWER_MAX, answer(stream)).await;
                        drop(permit);
                    });
                }
                Err(error) => pause_after(&error).await,
            },
        }
    }
    tokio::spawn(async move {
        let finishing = async { while open.join_next().await.is_some() {} };
        let _ = timeout(FINISH_MAX, finishing).await;
    });
    listener
}

/// Answers the one request of a connection.
async fn answer(stream: TcpStream) {
    prepare(&stream);
    let service = service_fn(|request: hyper::Request<Incoming>| async move {
        let refusal = refusal(request.uri().path());
        // A connection that is closed with unread bytes is reset, and the answer lost.
        discard(Body::new(request.into_body())).await;
        Ok::<_, Infallible>(refusal)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .keep_alive(false)
        .serve_connection(TokioIo::new(Guarded::new(stream, ANSWER_MAX)), service);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection ended early");
    }
}

fn refusal(path: &str) -> Response<Body> {
    let text = if path == "/healthz" {
        json!({ "status": "starting", "version": env!("CARGO_PKG_VERSION") }).to_string()
    } else {
        let message = "the server is starting: the store is being opened; try again in a second";
        let answer = ErrorAnswer::new(Code::StoreAway, message);
        serde_json::to_string(&answer).unwrap_or_default()
    };
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}
