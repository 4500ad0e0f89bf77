//! A server for each test.

use std::net::SocketAddr;
use std::sync::Arc;

use reqwest::{Client, RequestBuilder, Url};
use serde_json::{Value, json};
use taskyard_core::Result;
use taskyard_core::service::Service;
use taskyard_engine::{Engine, Settings, SystemClock};
use taskyard_server::{Config, Server, Token};
use taskyard_store::MemoryStore;
use taskyard_testkit::recorded_output::{keep_log, register_secret};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A running server on the memory store, and a client of it while the dashboard is open.
pub struct DashboardServer {
    url: String,
    token: Option<&'static str>,
    client: Client,
    stop: oneshot::Sender<()>,
    running: JoinHandle<Result<()>>,
}

impl DashboardServer {
    /// Starts a server with this token.
    pub async fn new(token: Option<&'static str>) -> Self {
        Self::with(token, Vec::new()).await
    }

    /// The same, with hosted services.
    pub async fn with(token: Option<&'static str>, services: Vec<Arc<dyn Service>>) -> Self {
        Self::configured(token, |config| config.services = services).await
    }

    /// The same, with other settings.
    pub async fn configured(token: Option<&'static str>, change: impl FnOnce(&mut Config)) -> Self {
        keep_log();
        token.into_iter().for_each(register_secret);
        let mut config = Config::new(SocketAddr::from(([127, 0, 0, 1], 0)));
        config.token = token.map(|text| Token::new(text).unwrap());
        change(&mut config);
        let store = Box::new(MemoryStore::default());
        let engine = Engine::start(store, Arc::new(SystemClock::new()), Settings::default());
        let server = Server::bind(config, engine).await.unwrap();
        let url = server.url();
        let (stop, stopped) = oneshot::channel();
        let running = tokio::spawn(server.run(async move { drop(stopped.await) }));
        let client = Client::builder().no_proxy().build().unwrap();
        DashboardServer { url, token, client, stop, running }
    }

    /// The URL of the server.
    pub fn url(&self) -> String {
        self.url.clone()
    }

    pub async fn get(&self, path: &str) -> Value {
        self.answer(self.client.get(format!("{}{path}", self.url))).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Value {
        self.send(Url::parse(&format!("{}{path}", self.url)).unwrap(), body).await
    }

    pub async fn put(&self, path: &str, body: Value) -> Value {
        self.answer(self.client.put(format!("{}{path}", self.url)).json(&body)).await
    }

    /// Puts tasks with these payloads and buries each with an error.
    pub async fn bury(&self, tube: &str, tasks: &[(Value, &str)]) {
        for (data, error) in tasks {
            self.post(&format!("/v1/tubes/{tube}/put"), json!({ "data": data })).await;
            let taken = self
                .post(&format!("/v1/tubes/{tube}/take"), json!({ "worker": "web1:4711:mailer" }))
                .await;
            let task = &taken["tasks"][0];
            let buried = json!({ "id": task["id"], "lease": task["lease"], "error": error });
            self.post(&format!("/v1/tubes/{tube}/bury"), buried).await;
        }
    }

    /// The same for a URL built by the test.
    pub async fn send(&self, url: Url, body: Value) -> Value {
        self.answer(self.client.post(url).json(&body)).await
    }

    async fn answer(&self, request: RequestBuilder) -> Value {
        let request = match self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        };
        let answer = request.send().await.unwrap();
        assert!(answer.status().is_success(), "{}: {}", answer.url(), answer.status());
        answer.json().await.unwrap()
    }

    /// Stops the server.
    pub async fn stop(self) {
        self.stop.send(()).unwrap();
        self.running.await.unwrap().unwrap();
    }
}
