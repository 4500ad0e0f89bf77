//! A server process under a storm, and its clients.

use std::sync::Arc;

use taskyard::{Http, Iproto};

use super::load::{ServerFate, StormLoad};
use crate::server_process::{Binary, ServerProcess, shown_iproto};

/// A server process and its addresses.
pub struct StormServer {
    /// The process.
    pub process: ServerProcess,
    /// A client of it.
    pub http: Http,
}

impl StormServer {
    /// Starts a server on the database of this URL.
    pub fn start(binary: Binary, url: &str) -> Self {
        StormServer::new(ServerProcess::on_store(binary, url))
    }

    /// A server that runs already.
    pub fn new(process: ServerProcess) -> Self {
        let http = http(&process);
        StormServer { process, http }
    }

    /// Opens a new iproto connection.
    pub fn iproto(&self) -> Iproto {
        let address = shown_iproto(&self.process.screen);
        Iproto::new(address).expect("the server has a valid address")
    }
}

impl StormLoad {
    /// Starts clients of a server: one over HTTP and two sessions over iproto.
    pub async fn begin(self: &Arc<Self>, server: &StormServer, fate: ServerFate) {
        self.spawn(server.http.clone(), None, fate);
        for _ in 0..2 {
            let iproto = server.iproto();
            let session = iproto.identify().await.expect("a session begins");
            self.spawn(iproto, Some(session), fate);
        }
    }
}

/// A client of this server.
pub fn http(process: &ServerProcess) -> Http {
    Http::new(&process.url).expect("a server has a good address")
}
