//! Serves metrics to Prometheus over HTTP.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::timer::BoxFuture;
use crate::worker::Worker;

/// The maximum number of concurrent connections; further ones wait.
const CONNECTIONS_MAX: usize = 16;
/// The maximum size of a request head.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// How long a request and its response may take.
const REQUEST_TIME: Duration = Duration::from_secs(10);
/// How long to wait after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long the metrics of a worker wait for the numbers of its queues.
const QUEUES_TIME: Duration = Duration::from_secs(5);

/// Returns the text that is served.
pub type MetricsText = dyn Fn() -> BoxFuture<'static, String> + Send + Sync;

impl Worker {
    /// Serves the metrics of the worker and of its queues at `/metrics` until the worker ends. Requests need no token: listen on
    /// an address that only Prometheus can reach. If the queues do not answer, their last known numbers are shown.
    pub async fn serve_metrics(self, listener: TcpListener) -> io::Result<()> {
        let worker = self.clone();
        let text = move || -> BoxFuture<'static, String> {
            let worker = worker.clone();
            Box::pin(async move {
                let asked = tokio::time::timeout(QUEUES_TIME, worker.metrics_text()).await;
                asked.unwrap_or_else(|_| worker.metrics().text())
            })
        };
        tokio::select! {
            served = serve_metrics(listener, Arc::new(text)) => served,
            () = self.ended() => Ok(()),
        }
    }
}

/// Serves this text at `/metrics` until the future is dropped.
pub async fn serve_metrics(listener: TcpListener, text: Arc<MetricsText>) -> io::Result<()> {
    let bound = listener.local_addr()?.ip();
    let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // The semaphore is never closed.
        let Ok(permit) = connections.clone().acquire_owned().await else { return Ok(()) };
        match listener.accept().await {
            Ok((stream, _)) => {
                let text = text.clone();
                tokio::spawn(async move {
                    let _permit = permit;
                    // A slow client loses its response and nothing else.
                    let _ = tokio::time::timeout(REQUEST_TIME, answer(stream, bound, &*text)).await;
                });
            }
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

async fn answer(mut stream: TcpStream, bound: IpAddr, text: &MetricsText) -> io::Result<()> {
    let head = read_head(&mut stream).await?;
    let (status, body) = match check_request(&head, bound) {
        Ok(()) => ("200 OK", text().await),
        Err(status) => (status, format!("{status}\n")),
    };
    let length = body.len();
    let mut response = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    if !head.starts_with("HEAD ") {
        response.push_str(&body);
    }
    stream.write_all(response.as_bytes()).await?;
    stream.shutdown().await
}

/// Reads the head of a request, up to the maximum size.
async fn read_head(stream: &mut TcpStream) -> io::Result<String> {
    let (mut head, mut bytes) = (Vec::new(), [0; 1024]);
    while head.len() < HEAD_BYTES_MAX && !head.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut bytes).await? {
            0 => break,
            read => head.extend_from_slice(&bytes[..read]),
        }
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

/// Checks a request; the error is the status of the response.
fn check_request(head: &str, bound: IpAddr) -> Result<(), &'static str> {
    let (head, _) = head.split_once("\r\n\r\n").ok_or("400 Bad Request")?;
    let mut lines = head.split("\r\n");
    let mut first = lines.next().unwrap_or_default().split(' ');
    let (Some(method), Some(path), Some(version)) = (first.next(), first.next(), first.next())
    else {
        return Err("400 Bad Request");
    };
    if !version.starts_with("HTTP/1.") {
        return Err("400 Bad Request");
    }
    if path.split('?').next() != Some("/metrics") {
        return Err("404 Not Found");
    }
    if !["GET", "HEAD"].contains(&method) {
        return Err("405 Method Not Allowed");
    }
    // A web page must not read the metrics through a host name that resolves to this machine (DNS rebinding).
    let host = lines.filter_map(|line| line.split_once(':'));
    let host = host.into_iter().find(|(name, _)| name.eq_ignore_ascii_case("host"));
    let host = host.map_or("", |(_, host)| host.trim());
    let named = host.parse::<SocketAddr>().is_ok()
        || host.parse::<IpAddr>().is_ok()
        || host.split(':').next().is_some_and(|name| name.eq_ignore_ascii_case("localhost"));
    if bound.is_loopback() && !named { Err("403 Forbidden") } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn only_requests_for_metrics_from_this_machine_are_answered() {
        let here = IpAddr::from(Ipv4Addr::LOCALHOST);
        let head = |first: &str, host: &str| format!("{first}\r\nHost: {host}\r\n\r\n");
        for (first, host, wanted) in [
            ("GET /metrics HTTP/1.1", "127.0.0.1:9100", Ok(())),
            ("HEAD /metrics?x=1 HTTP/1.0", "localhost", Ok(())),
            ("GET /metrics HTTP/1.1", "[::1]:9100", Ok(())),
            ("GET /metrics HTTP/1.1", "evil.example:9100", Err("403 Forbidden")),
            ("GET / HTTP/1.1", "localhost", Err("404 Not Found")),
            ("POST /metrics HTTP/1.1", "localhost", Err("405 Method Not Allowed")),
            ("GET /metrics", "localhost", Err("400 Bad Request")),
            ("", "localhost", Err("400 Bad Request")),
        ] {
            assert_eq!(check_request(&head(first, host), here), wanted, "{first} {host}");
        }
        assert_eq!(check_request("GET /metrics HTTP/1.1\r\n", here), Err("400 Bad Request"));
        let everywhere = IpAddr::from(Ipv4Addr::UNSPECIFIED);
        assert_eq!(check_request(&head("GET /metrics HTTP/1.1", "box7"), everywhere), Ok(()));
    }
}
