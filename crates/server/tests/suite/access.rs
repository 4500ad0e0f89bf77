//! Access control: the token, and requests that a browser might be tricked into sending.

use std::net::SocketAddr;

use reqwest::Method;
use reqwest::header::{AUTHORIZATION, HOST, ORIGIN};
use taskyard_server::{BindError, Server, Token};
use taskyard_testkit::recorded_output::register_secret;

use crate::fixture::{Answer, Fixture, config, engine, read_all};

const TOKEN: &str = "0123456789abcdef";

async fn guarded() -> Fixture {
    register_secret(TOKEN);
    Fixture::with(|config| config.token = Some(Token::new(TOKEN).unwrap())).await
}

#[tokio::test]
async fn without_the_token_every_request_is_refused() {
    let fixture = guarded().await;
    for path in ["/v1/stats", "/v1/series", "/v1/tubes", "/v1/tubes/mail", "/metrics", "/nothing"] {
        let answer = fixture.get(path).await;
        answer.refused(401, "unauthorized");
        assert_eq!(answer.headers["www-authenticate"], "Bearer realm=\"taskyard\"");
    }
    let wrong =
        fixture.request(Method::GET, "/v1/stats").header(AUTHORIZATION, "Bearer 0123456789abcdeF");
    Answer::of(wrong.send().await.unwrap()).await.refused(401, "unauthorized");
    let right =
        fixture.request(Method::GET, "/v1/stats").header(AUTHORIZATION, "Bearer 0123456789abcdef");
    assert_eq!(right.send().await.unwrap().status(), 200);
}

#[tokio::test]
async fn health_document_and_dashboard_need_no_token() {
    let fixture = guarded().await;
    for path in [
        "/healthz",
        "/openapi.json",
        "/",
        "/assets/app.js",
        "/assets/style.css",
        "/tubes/mail?state=buried",
        "/tubes/a%20b/tasks/3",
        "/semaphores/gpu",
        "/workers",
        "/sql",
        "/pool-status",
    ] {
        assert_eq!(fixture.get(path).await.status, 200, "{path}");
    }
    for path in ["/tubes", "/tubes/mail/tasks", "/v1/tubes/mail", "/assets/other.js", "/metrics"] {
        fixture.get(path).await.refused(401, "unauthorized");
    }
}

#[tokio::test]
async fn foreign_host_names_are_refused_without_a_token() {
    let ask = async |fixture: &Fixture, host: &str| {
        let request = fixture.request(Method::GET, "/healthz").header(HOST, host);
        Answer::of(request.send().await.unwrap()).await
    };
    let fixture = Fixture::with(|config| config.host_names.push("queue.example".into())).await;
    for host in ["localhost", "127.0.0.1:7070", "[::1]:80", "queue.example"] {
        assert_eq!(ask(&fixture, host).await.status, 200, "{host}");
    }
    for host in ["evil.example", "localhost.evil.example", "10.1.2.3"] {
        ask(&fixture, host).await.refused(403, "forbidden");
    }
    assert_eq!(ask(&guarded().await, "queue.example").await.status, 200);
    let bare = "GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n";
    assert!(read_all(&mut fixture.raw(bare).await).await.starts_with("HTTP/1.1 400"));
    let twice = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\
                 Connection: close\r\n\r\n";
    assert!(read_all(&mut fixture.raw(twice).await).await.starts_with("HTTP/1.1 400"));
}

#[tokio::test]
async fn pages_of_other_sites_are_refused() {
    for fixture in [Fixture::new().await, guarded().await] {
        let ask = async |origin: String| {
            let request = fixture.request(Method::GET, "/healthz").header(ORIGIN, origin);
            Answer::of(request.send().await.unwrap()).await
        };
        assert_eq!(ask(format!("http://{}", fixture.address)).await.status, 200);
        for origin in ["http://evil.example", "null", "http://127.0.0.1:1"] {
            let answer = ask(origin.into()).await;
            answer.refused(403, "forbidden");
            assert_eq!(answer.headers.get("access-control-allow-origin"), None);
        }
    }
}

#[tokio::test]
async fn an_insecure_server_on_all_addresses_must_be_requested() {
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
async fn the_error_of_a_busy_port_names_it() {
    let fixture = Fixture::new().await;
    let mut config = config();
    config.http = fixture.address;
    let refused = Server::bind(config, engine()).await.err().unwrap();
    assert!(matches!(refused, BindError::Busy(_)));
    assert!(refused.to_string().contains(&fixture.address.to_string()), "{refused}");
}

// A token could be guessed as fast as the network allowed, and every wrong one got the same
// response forever.
#[tokio::test]
async fn guessing_is_slowed_down_and_known_clients_are_not() {
    let fixture = guarded().await;
    let known = connected(&fixture, TOKEN).await;
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
    // Even the correct token is not checked from an address that never logged in.
    show(&stranger, TOKEN).await.refused(503, "overloaded");
    assert_eq!(
        stranger.get("/healthz").await.status,
        200,
        "endpoints without a token still respond"
    );
    // Where a client has logged in, guesses by others at its address do not lock it out.
    for guess in 0..30 {
        show(&fixture, &format!("guess-{guess:016}")).await.refused(401, "unauthorized");
    }
    assert_eq!(show(&fixture, TOKEN).await.status, 200);
    drop(known);
    let metrics = fixture.request(Method::GET, "/metrics").bearer_auth(TOKEN);
    let metrics = metrics.send().await.unwrap().text().await.unwrap();
    assert!(metrics.contains("taskyard_login_failures_total 30\n"), "{metrics}");
}

async fn show(fixture: &Fixture, token: &str) -> Answer {
    let request = fixture.request(Method::GET, "/v1/stats").bearer_auth(token);
    Answer::of(request.send().await.unwrap()).await
}

/// A connection on which the correct token was sent.
async fn connected(fixture: &Fixture, token: &str) -> tokio::net::TcpStream {
    let request = format!(
        "GET /v1/tubes HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
    );
    let mut stream = fixture.raw(&request).await;
    let mut first = [0; 12];
    tokio::io::AsyncReadExt::read_exact(&mut stream, &mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    stream
}
