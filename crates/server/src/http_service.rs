//! Serves HTTP on streams that the caller accepts, without a listener.

use std::sync::Arc;

use axum::body::Bytes;
use taskyard_engine::Engine;
use tokio::sync::watch;

use crate::app::{App, SharedApp};
use crate::config::Config;
use crate::connections::{ServerSignal, serve_stream};
use crate::guard::AllowedHosts;
use crate::http::{HttpRoutes, http_routes};
use crate::server_stream::{ByteStream, ServerStream};

/// A server over HTTP for connections within this process. Its connections end when it is dropped.
pub struct HttpService {
    app: SharedApp,
    routes: HttpRoutes,
    signal: watch::Sender<ServerSignal>,
}

impl HttpService {
    /// A server for this engine, with all endpoints of the API. Of the configuration, certificate, limit of connections and events
    /// of semaphores are not used; it has no OpenAPI document.
    pub fn new(config: Config, engine: Engine) -> Self {
        let hosts = AllowedHosts::new(config.http, config.host_names.clone());
        let app = Arc::new(App::new(config, engine, hosts, Bytes::new(), [0; 16]));
        HttpService { routes: http_routes(app.clone()), app, signal: watch::Sender::default() }
    }

    /// Serves one connection until it ends.
    pub fn serve(&self, stream: Box<dyn ByteStream>) -> impl Future<Output = ()> + Send + use<> {
        let (routes, signal) = (self.routes.clone(), self.signal.subscribe());
        serve_stream(ServerStream::InProcess(stream), None, routes, signal, self.app.clone())
    }
}
