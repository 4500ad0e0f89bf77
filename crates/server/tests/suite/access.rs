//! Who may ask: the token, and what browsers might be tricked into sending.

use std::net::SocketAddr;

use reqwest::Method;
use reqwest::header::{AUTHORIZATION, HOST, ORIGIN};
use taskyard_server::{BindError, Server, Token};

use crate::rig::{Answer, Rig, config, engine, read_all};

async fn guarded() -> Rig {
    Rig::with(|config| config.token = Some(Token::new("secret").unwrap())).await
}

#[tokio::test]
async fn without_the_token_nothing_is_told() {
    let rig = guarded().await;
    for path in ["/v1/stats", "/v1/tubes", "/v1/tubes/mail", "/metrics", "/nothing"] {
        let answer = rig.get(path).await;
        answer.refused(401, "unauthorized");
        assert_eq!(answer.headers["www-authenticate"], "Bearer realm=\"taskyard\"");
    }
    let wrong = rig.request(Method::GET, "/v1/stats").header(AUTHORIZATION, "Bearer secreT");
    Answer::of(wrong.send().await.unwrap()).await.refused(401, "unauthorized");
    let right = rig.request(Method::GET, "/v1/stats").header(AUTHORIZATION, "Bearer secret");
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
    config.token = Some(Token::new("secret").unwrap());
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
