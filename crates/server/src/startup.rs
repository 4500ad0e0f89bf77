//! Answers requests while the store is being opened: the server is up, but not ready.

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
use taskyard_wire::Code;
use taskyard_wire::http::ErrorAnswer;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use crate::clock_guard::{clock_is_unusable, serve_guarded};
use crate::connections::{pause_after, prepare, refuse_for_clock};
use crate::request_reader::discard;
use crate::slow_reader::StallTimeoutStream;
use crate::tls_listener::{TlsListener, accept};

/// Maximum number of connections that are answered at once; others wait until the server is ready.
const CONNECTIONS_MAX: usize = 256;
/// How long a connection may take for its single request and the response.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// How long requests that arrived before the server was ready may take to be answered.
const FINISH_MAX: Duration = Duration::from_secs(2);

/// Answers all requests with 503 until it is stopped.
pub(crate) struct StartupResponder {
    stop: oneshot::Sender<()>,
    running: JoinHandle<TcpListener>,
}

impl StartupResponder {
    /// Starts answering the clients of this listener.
    pub fn begin(listener: TcpListener, tls: Option<Arc<TlsListener>>) -> Self {
        let (stop, stopped) = oneshot::channel();
        StartupResponder { stop, running: tokio::spawn(run(listener, tls, stopped)) }
    }

    /// Stops, and returns the listener. Requests in progress are still answered.
    pub async fn end(self) -> Option<TcpListener> {
        // If it has already ended, the next line shows it.
        let _ = self.stop.send(());
        self.running.await.ok()
    }
}

async fn run(
    listener: TcpListener,
    tls: Option<Arc<TlsListener>>,
    stopped: oneshot::Receiver<()>,
) -> TcpListener {
    let mut open = JoinSet::new();
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut stopped = pin!(stopped);
    loop {
        let next = async {
            let permit = permits.clone().acquire_owned().await;
            (permit, listener.accept().await)
        };
        tokio::select! {
            biased;
            _ = stopped.as_mut() => break,
            Some(_) = open.join_next() => {}
            (permit, accepted) = next => match accepted {
                Ok((stream, _)) => {
                    let tls = tls.clone();
                    open.spawn(async move {
                        let _ = timeout(ANSWER_MAX, answer(stream, tls.as_deref())).await;
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

/// Answers the single request of a connection.
async fn answer(stream: TcpStream, tls: Option<&TlsListener>) {
    prepare(&stream);
    let Some(stream) = accept(tls, stream).await else { return };
    if clock_is_unusable() {
        return refuse_for_clock(stream).await;
    }
    let service = service_fn(|request: hyper::Request<Incoming>| async move {
        let refusal = refusal(request.uri().path());
        // A connection that is closed with unread bytes is reset, and the response lost.
        discard(Body::new(request.into_body())).await;
        Ok::<_, Infallible>(refusal)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .keep_alive(false)
        .serve_connection(TokioIo::new(StallTimeoutStream::new(stream, ANSWER_MAX)), service);
    if let Some(Err(error)) = serve_guarded(pin!(connection)).await {
        tracing::debug!(%error, "connection ended early");
    }
}

fn refusal(path: &str) -> Response<Body> {
    let message = "the server is starting and opening its store; try again in 1 s";
    let answer = ErrorAnswer::new(Code::StoreUnavailable, message);
    let mut answer = serde_json::to_value(&answer).unwrap_or_default();
    if path == "/healthz" {
        answer["status"] = "starting".into();
        answer["version"] = env!("CARGO_PKG_VERSION").into();
    }
    let mut response = Response::new(Body::from(answer.to_string()));
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}
