//! Serves iproto on streams that the caller accepts, without a listener.

use std::io;
use std::sync::Arc;

use taskyard_engine::Engine;
use tokio::sync::watch;

use super::config::IprotoConfig;
use super::connection::serve_stream;
use super::server::IprotoServer;
use crate::auth_throttle::AuthThrottle;
use crate::connections::ServerSignal;
use crate::server_stream::{ByteStream, ServerStream};

/// An iproto server for connections within this process. Its connections end when it is dropped.
pub struct IprotoService {
    server: Arc<IprotoServer>,
    signal: watch::Sender<ServerSignal>,
}

impl IprotoService {
    /// A server for this engine. Address, certificate, the limit of connections and that of failed logins are not used.
    pub fn new(config: IprotoConfig, engine: Engine) -> io::Result<Self> {
        let mut instance = [0; 16];
        config.random.fill(&mut instance)?;
        let throttle = Arc::new(AuthThrottle::new());
        let server = Arc::new(IprotoServer::new(config, engine, instance, throttle));
        Ok(IprotoService { server, signal: watch::Sender::default() })
    }

    /// Serves one connection from its greeting to its end.
    pub fn serve(&self, stream: Box<dyn ByteStream>) -> impl Future<Output = ()> + Send + use<> {
        let (server, signal) = (self.server.clone(), self.signal.subscribe());
        serve_stream(ServerStream::InProcess(stream), None, server, signal)
    }
}
