//! Who may ask: the token, and what browsers might be tricked into sending.

use std::net::SocketAddr;

use reqwest::Method;
use reqwest::header::{AUTHORIZATION, HOST, ORIGIN};
use taskyard_server::{BindError, Server, Token};

use crate::rig::{Answer, Rig, config, engine, read_all};

const TOKEN: &str = "0123456789abcdef";

async fn guarded() -> Rig {
    Rig::with(|config| config.token = Some(Token::new(TOKEN).unwrap())).await
}

#[tokio::test]
async fn without_the_token_nothing_is_told() {
    let rig = guarded().await;
    for path in ["/v1/stats", "/v1/tubes", "/v1/tubes/mail", "/metrics", "/nothing"] {
        let answer = rig.get(path).await;
        answer.refused(401, "unauthorized");
        assert_eq!(answer.headers["www-authenticate"], "Bearer realm=\"taskyard\"");
    }
    let wrong =
        rig.request(Method::GET, "/v1/stats").header(AUTHORIZATION, "Bearer 0123456789abcdeF");
    Answer::of(wrong.send().await.unwrap()).await.refused(401, "unauthorized");
    let right =
        rig.request(Method::GET, "/v1/stats").header(AUTHORIZATION, "Bearer 0123456789abcdef");
    assert_eq!(right.send().await.unwrap().status(), 200);
}

#[tokio::test]
async fn health_document_and_page_are_open() {
    let rig = guarded().await;
    for path in ["/healthz", "/openapi.json", "/", "/app.js", "/style.css"] {
        assert_eq!(rig.get(path).await.status, 200, "{path}");
    }
}

#[tokio::test]
async fn foreign_names_are_refused_unless_a_token_protects() {
    let ask = async |rig: &Rig, host: &str| {
        let request = rig.request(Method::GET, "/healthz").header(HOST, host);
        Answer::of(request.send().await.unwrap()).await
    };
    let rig = Rig::with(|config| config.host_names.push("queue.example".into())).await;
    for host in ["localhost", "127.0.0.1:7070", "[::1]:80", "queue.example"] {
        assert_eq!(ask(&rig, host).await.status, 200, "{host}");
    }
    for host in ["evil.example", "localhost.evil.example", "10.1.2.3"] {
        ask(&rig, host).await.refused(403, "forbidden");
    }
    assert_eq!(ask(&guarded().await, "queue.example").await.status, 200);
    let bare = "GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n";
    assert!(read_all(&mut rig.raw(bare).await).await.starts_with("HTTP/1.1 400"));
    let twice = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\
                 Connection: close\r\n\r\n";
    assert!(read_all(&mut rig.raw(twice).await).await.starts_with("HTTP/1.1 400"));
}

#[tokio::test]
async fn pages_of_other_sites_are_refused() {
    for rig in [Rig::new().await, guarded().await] {
        let ask = async |origin: String| {
            let request = rig.request(Method::GET, "/healthz").header(ORIGIN, origin);
            Answer::of(request.send().await.unwrap()).await
        };
        assert_eq!(ask(format!("http://{}", rig.address)).await.status, 200);
        for origin in ["http://evil.example", "null", "http://127.0.0.1:1"] {
            let answer = ask(origin.into()).await;
            answer.refused(403, "forbidden");
            assert_eq!(answer.headers.get("access-control-allow-origin"), None);
        }
    }
}

#[tokio::test]
async fn an_open_server_on_all_addresses_must_be_wanted() {
    let everywhere = SocketAddr::from(([0, 0, 0, 0], 0));
    let mut config = config();
    config.http = everywhere;
    let refused = Server::bind(config.clone(), engine()).await.err().unwrap();
    assert!(matches!(refused, BindError::Exposed(_)));
    for way_out in ["TASKYARD_TOKEN", "127.0.0.1", "--insecure"] {
        assert!(refused.to_string().contains(way_out), "{refused}");
    }
    config.insecure = true;
    let server = Server::bind(config.clone(), engine()).await.unwrap();
    assert_eq!(server.url(), format!("http://127.0.0.1:{}", server.address().port()));
    config.insecure = false;
    config.token = Some(Token::new(TOKEN).unwrap());
    assert!(Server::bind(config, engine()).await.unwrap().needs_token());
}

#[tokio::test]
async fn a_busy_port_is_named() {
    let rig = Rig::new().await;
    let mut config = config();
    config.http = rig.address;
    let refused = Server::bind(config, engine()).await.err().unwrap();
    assert!(matches!(refused, BindError::Busy(_)));
    assert!(refused.to_string().contains(&rig.address.to_string()), "{refused}");
}

// A token could be guessed as fast as the network allowed, and every wrong one was answered alike for ever.
#[tokio::test]
async fn guessing_is_slowed_down_and_known_clients_go_on() {
    let rig = guarded().await;
    let known = connected(&rig, TOKEN).await;
    let stranger = guarded().await;
    let mut answers = Vec::new();
    for guess in 0..30 {
        answers.push(show(&stranger, &format!("guess-{guess:016}")).await);
    }
    let wrong = answers[0].refused(401, "unauthorized").to_owned();
    assert_eq!(answers[19].refused(401, "unauthorized"), wrong);
    let throttled = answers.last().unwrap();
    assert!(throttled.refused(503, "overloaded").contains("too many logins"));
    assert!(throttled.headers.contains_key("retry-after"));
    // The right one is not even looked at, from an address that never logged in.
    show(&stranger, TOKEN).await.refused(503, "overloaded");
    assert_eq!(stranger.get("/healthz").await.status, 200, "what needs no token is open");
    // Where a client has logged in, guesses by others at its address do not lock it out.
    for guess in 0..30 {
        show(&rig, &format!("guess-{guess:016}")).await.refused(401, "unauthorized");
    }
    assert_eq!(show(&rig, TOKEN).await.status, 200);
    drop(known);
    let metrics = rig.request(Method::GET, "/metrics").bearer_auth(TOKEN);
    let metrics = metrics.send().await.unwrap().text().await.unwrap();
    assert!(metrics.contains("taskyard_login_failures_total 30\n"), "{metrics}");
}

async fn show(rig: &Rig, token: &str) -> Answer {
    let request = rig.request(Method::GET, "/v1/stats").bearer_auth(token);
    Answer::of(request.send().await.unwrap()).await
}

/// A connection on which the token was shown.
async fn connected(rig: &Rig, token: &str) -> tokio::net::TcpStream {
    let request = format!(
        "GET /v1/tubes HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
    );
    let mut stream = rig.raw(&request).await;
    let mut first = [0; 12];
    tokio::io::AsyncReadExt::read_exact(&mut stream, &mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    stream
}
