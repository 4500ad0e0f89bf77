//! The client at a server of an earlier version, which refuses parameters that it does not know.

use taskyard::Http;
use taskyard_wire::http::SeriesQuery;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const SERIES: &str = r#"{"step":1.0,"from":100.0,"puts":[],"takes":[],"acks":[],"fails":[],"ready":[],"taken":[],
    "delayed":[],"buried":[],"wait":{"p50":[],"p90":[],"p99":[]},"run":{"p50":[],"p90":[],"p99":[]}}"#;
const WORKERS: &str = r#"{"time":100.0,"workers":[]}"#;
const TUBES: &str = r#"{"tubes":[]}"#;
const REFUSAL: &str =
    r#"{"error":{"code":"invalid","message":"cannot parse the query: unknown field"}}"#;

/// Starts a server that has no peers, and refuses a step of a minute as something that is wrong in any version.
async fn start() -> Http {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            answer(stream).await;
        }
    });
    Http::new(&url).unwrap()
}

async fn answer(mut stream: TcpStream) {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if stream.read_buf(&mut head).await.unwrap() == 0 {
            return;
        }
    }
    let head = String::from_utf8(head).unwrap();
    let target = head.split(' ').nth(1).unwrap();
    let is_known =
        !["all=", "passive=", "step=1m", "estimate="].iter().any(|text| target.contains(text));
    let (status, body) = match target {
        _ if !is_known => ("400 Bad Request", REFUSAL),
        _ if target.starts_with("/v1/series") => ("200 OK", SERIES),
        _ if target.starts_with("/v1/tubes") => ("200 OK", TUBES),
        _ => ("200 OK", WORKERS),
    };
    let size = body.len();
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: {size}\r\nconnection: close\r\n\r\n");
    stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
}

// A request about all servers failed at a server that does not know it.
#[tokio::test]
async fn a_server_that_cannot_ask_its_peers_shows_what_it_saw_itself() {
    let http = start().await;
    let series = SeriesQuery::default();
    for query in [
        SeriesQuery { all: true, ..series.clone() },
        SeriesQuery { passive: true, ..series.clone() },
        series.clone(),
    ] {
        assert_eq!(http.series(&query).await.unwrap().from, 100.0);
    }
    assert_eq!(http.workers(false).await.unwrap().time, 100.0);
    let step = taskyard_wire::http::SeriesStep::Minute;
    let refused = http.series(&SeriesQuery { all: true, step, ..series }).await.unwrap_err();
    assert!(refused.to_string().contains("cannot parse the query"), "{refused}");
}

#[tokio::test]
async fn a_server_without_estimates_shows_the_tubes_alone() {
    assert_eq!(start().await.tubes_estimated(None).await.unwrap(), []);
}
