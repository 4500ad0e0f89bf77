//! Sessions of the page: signing in, the cookie, actions of a session, and how sessions end.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::any;
use reqwest::header::{COOKIE, ORIGIN, SET_COOKIE};
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use taskyard_core::access::{NamePattern, Role};
use taskyard_core::limits::{PAGE_SESSIONS_PER_USER_MAX, SIGN_IN_BYTES_MAX};
use taskyard_core::{Span, Timestamp};
use taskyard_engine::ManualClock;
use taskyard_server::{Config, ExtraRoutes, Grant, Grants, PageSessionConfig, Token, User, Users};
use taskyard_testkit::recorded_output::register_secret;
use tokio::io::AsyncReadExt;

use crate::fixture::{Answer, Fixture, post_bytes, read_all};

const ADMIN_TOKEN: &str = "the-token-of-the-server";
const ANN_TOKEN: &str = "the-token-of-ann";
const IDLE_SECONDS: u64 = 600;

fn ann(role: Role) -> Users {
    let names = vec![NamePattern::new("mail.*").unwrap()];
    let grants = Grants::List(vec![Grant::roles(&[role], names)]);
    Users::new(vec![User::with_token("ann", ANN_TOKEN, grants)])
}

/// A server with a token, the user `ann`, and a clock for its sessions.
async fn server() -> (Fixture, Arc<ManualClock>) {
    server_with(|_| {}).await
}

async fn server_with(change: impl FnOnce(&mut Config)) -> (Fixture, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(Timestamp::from_micros(1_000_000)));
    let (idle_max, of_config) = (Duration::from_secs(IDLE_SECONDS), clock.clone());
    let fixture = Fixture::with(|config| {
        config.users = ann(Role::Operate);
        config.token = Token::new(ADMIN_TOKEN).ok();
        config.page_sessions = PageSessionConfig { idle_max, clock: of_config };
        change(config);
    });
    (fixture.await, clock)
}

/// What a browser has after signing in.
struct Browser<'a> {
    fixture: &'a Fixture,
    cookie: String,
    csrf: String,
    answer: Answer,
}

impl<'a> Browser<'a> {
    async fn sign_in(fixture: &'a Fixture, token: &str) -> Browser<'a> {
        let answer = fixture.post("/v1/session", json!({ "token": token })).await;
        Browser::of(fixture, answer)
    }

    fn of(fixture: &'a Fixture, answer: Answer) -> Browser<'a> {
        assert_eq!(answer.status, 200, "{}", answer.body);
        let cookie = answer.headers[SET_COOKIE].to_str().unwrap().split(';').next().unwrap();
        let csrf = answer.body["session"]["csrf"].as_str().unwrap().to_owned();
        for secret in [ANN_TOKEN, ADMIN_TOKEN, &csrf, cookie.split_once('=').unwrap().1] {
            register_secret(secret);
        }
        Browser { fixture, cookie: cookie.into(), csrf, answer }
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.fixture.request(method, path).header(COOKIE, &self.cookie)
    }

    async fn get(&self, path: &str) -> Answer {
        send(self.request(Method::GET, path)).await
    }

    /// An action as the page sends it.
    fn action(&self, method: Method, path: &str, body: &Value) -> RequestBuilder {
        let origin = format!("http://{}", self.fixture.address);
        let request = self.request(method, path).header(ORIGIN, origin).json(body);
        request.header("X-Taskyard-CSRF", &self.csrf)
    }

    async fn act(&self, method: Method, path: &str, body: Value) -> Answer {
        send(self.action(method, path, &body)).await
    }

    async fn is_signed_in(&self) -> bool {
        match self.get("/v1/session").await {
            Answer { status: 200, .. } => true,
            answer => {
                assert!(answer.refused(401, "unauthorized").contains("sign in again"));
                false
            }
        }
    }
}

async fn send(request: RequestBuilder) -> Answer {
    Answer::of(request.send().await.unwrap()).await
}

fn seconds(clock: &ManualClock, seconds: u64) {
    clock.advance(Span::from_secs(seconds));
}

#[tokio::test]
async fn signing_in_sets_a_cookie_that_scripts_cannot_read() {
    let (fixture, _) = server().await;
    let ann = Browser::sign_in(&fixture, ANN_TOKEN).await;
    let text = ann.answer.headers[SET_COOKIE].to_str().unwrap();
    let (cookie, attributes) = text.split_once("; ").unwrap();
    assert_eq!(attributes, "Path=/; HttpOnly; SameSite=Strict");
    let (name, id) = cookie.split_once('=').unwrap();
    assert_eq!(name, format!("taskyard_session_{}", fixture.address.port()));
    assert_eq!(id.len(), 43, "256 bits in base64");
    assert!(!ann.answer.body.to_string().contains(id), "scripts can read the answer");
    assert!(!text.contains(ANN_TOKEN));
    let again = Browser::sign_in(&fixture, ANN_TOKEN).await;
    assert!(again.cookie != ann.cookie && again.csrf != ann.csrf);

    let shown = ann.get("/v1/session").await;
    assert_eq!(shown.body["user"], "ann");
    assert_eq!(shown.body["has_users"], true);
    assert_eq!(shown.body["session"]["csrf"], *ann.csrf);
    assert_eq!(shown.body["session"]["idle_max"], IDLE_SECONDS as f64);
    assert_eq!(shown.body["session"]["ends_in"], IDLE_SECONDS as f64);
    let rights = &shown.body["rights"][0];
    assert_eq!(rights["names"], json!(["mail.*"]));
    let actions = rights["actions"].as_array().unwrap();
    assert!(actions.contains(&json!("kick")) && !actions.contains(&json!("set_schedule")));
    let admin = Browser::sign_in(&fixture, ADMIN_TOKEN).await;
    assert_eq!(admin.answer.body["user"], "admin");
    assert_eq!(admin.answer.body["rights"][0]["names"], json!(["*"]));
    // The rights are those of the user.
    send(fixture.request(Method::GET, "/v1/tubes")).await.refused(401, "unauthorized");
    assert_eq!(ann.get("/v1/tubes").await.status, 200);
    ann.get("/metrics").await.refused(403, "forbidden");
    assert_eq!(admin.get("/metrics").await.status, 200);
}

#[tokio::test]
async fn the_cookie_is_secure_behind_a_proxy_that_ends_tls() {
    let (fixture, _) = server().await;
    let request = fixture.request(Method::POST, "/v1/session").json(&json!({ "token": ANN_TOKEN }));
    let request = request.header("Host", "queue.example").header(ORIGIN, "https://queue.example");
    let ann = Browser::of(&fixture, send(request).await);
    let text = ann.answer.headers[SET_COOKIE].to_str().unwrap();
    assert!(text.starts_with("__Host-taskyard_session_"), "{text}");
    assert!(text.ends_with("; Path=/; HttpOnly; SameSite=Strict; Secure"), "{text}");
    assert!(ann.is_signed_in().await);
}

#[tokio::test]
async fn a_header_signs_in_too_and_comes_before_the_body() {
    let (fixture, _) = server().await;
    let sign_in = |body: Value| fixture.request(Method::POST, "/v1/session").json(&body);
    let answer = send(sign_in(json!({})).bearer_auth(ANN_TOKEN)).await;
    assert_eq!(Browser::of(&fixture, answer).answer.body["user"], "ann");
    let both = send(sign_in(json!({ "token": ADMIN_TOKEN })).bearer_auth(ANN_TOKEN)).await;
    assert_eq!(Browser::of(&fixture, both).answer.body["user"], "ann");
    let wrong = send(sign_in(json!({ "token": ANN_TOKEN })).bearer_auth("wrong")).await;
    wrong.refused(401, "unauthorized");
    send(sign_in(json!({}))).await.refused(401, "unauthorized");
    let basic = sign_in(json!({})).basic_auth("ann", Some(ANN_TOKEN));
    send(basic).await.refused(401, "unauthorized");
}

#[tokio::test]
async fn signing_in_is_slowed_down_as_other_logins_are() {
    let (fixture, _) = server().await;
    let guess = async |token: String| fixture.post("/v1/session", json!({ "token": token })).await;
    let first = guess("guess-of-a-token".into()).await;
    let message = first.refused(401, "unauthorized").to_owned();
    assert!(first.headers.get(SET_COOKIE).is_none());
    // An empty text and the name of a user get the same answer as a wrong token.
    for token in ["", "ann", "admin", &"x".repeat(1000), "\u{1f511}"] {
        assert_eq!(guess(token.into()).await.refused(401, "unauthorized"), message);
    }
    // It is the answer of other requests with a wrong token, and they share the attempts.
    let other = send(fixture.request(Method::GET, "/v1/tubes").bearer_auth("wrong")).await;
    assert_eq!(other.refused(401, "unauthorized"), message);
    for number in 0..30 {
        guess(format!("guess-{number}")).await;
    }
    let throttled = guess("one-more-guess".into()).await;
    assert!(throttled.refused(503, "overloaded").contains("too many logins"));
    guess(ADMIN_TOKEN.into()).await.refused(503, "overloaded");
    let throttled = send(fixture.request(Method::GET, "/v1/tubes").bearer_auth("wrong")).await;
    throttled.refused(503, "overloaded");
    assert_eq!(guess(ANN_TOKEN.into()).await.status, 200, "a random token cannot be guessed");
}

#[tokio::test]
async fn an_action_needs_the_value_that_only_the_page_knows() {
    let (fixture, _) = server().await;
    let (ann, other) = (
        Browser::sign_in(&fixture, ADMIN_TOKEN).await,
        Browser::sign_in(&fixture, ADMIN_TOKEN).await,
    );
    let body = json!({ "data": 1 });
    let put = || ann.request(Method::POST, "/v1/tubes/mail/put").json(&body);
    let refused = send(put()).await;
    assert!(refused.refused(403, "forbidden").contains("X-Taskyard-CSRF"));
    for wrong in ["", "wrong", &other.csrf, &ann.cookie] {
        send(put().header("X-Taskyard-CSRF", wrong)).await.refused(403, "forbidden");
    }
    for (method, path) in [
        (Method::PUT, "/v1/tubes/mail"),
        (Method::PATCH, "/v1/tubes/mail"),
        (Method::DELETE, "/v1/tubes/mail"),
        (Method::DELETE, "/v1/session"),
        (Method::OPTIONS, "/v1/session"),
    ] {
        let request = ann.request(method.clone(), path).json(&json!({}));
        let answer = send(request).await;
        assert!(answer.refused(403, "forbidden").contains("X-Taskyard-CSRF"), "{method}");
    }
    assert_eq!(ann.act(Method::POST, "/v1/tubes/mail/put", body.clone()).await.status, 200);
    // The value does not help a page of another site.
    for origin in ["http://evil.example", "null", "http://127.0.0.1:1"] {
        let foreign = put().header("X-Taskyard-CSRF", &ann.csrf).header(ORIGIN, origin);
        assert!(send(foreign).await.refused(403, "forbidden").contains("another site"));
    }
    // Looking needs no value.
    assert_eq!(ann.get("/v1/tubes/mail").await.status, 200);
    assert_eq!(send(ann.request(Method::HEAD, "/v1/tubes/mail")).await.status, 200);
    let tasks = &ann.get("/v1/tubes/mail").await.body["tasks"]["total"];
    assert_eq!(*tasks, 1, "refused requests did nothing");
}

#[tokio::test]
async fn a_page_of_another_site_cannot_sign_in() {
    let (fixture, _) = server().await;
    let sign_in = || fixture.request(Method::POST, "/v1/session");
    let foreign = sign_in().json(&json!({ "token": ANN_TOKEN }));
    let foreign = send(foreign.header(ORIGIN, "http://evil.example")).await;
    assert!(foreign.refused(403, "forbidden").contains("another site"));
    let body = json!({ "token": ANN_TOKEN }).to_string();
    // The only kinds of content that a form can send.
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"] {
        let form = sign_in().header("Content-Type", kind).body(body.clone());
        send(form).await.refused(415, "unsupported_media_type");
    }
}

#[tokio::test]
async fn a_token_is_not_affected_and_comes_before_the_cookie() {
    let (fixture, _) = server().await;
    let ann = Browser::sign_in(&fixture, ANN_TOKEN).await;
    let put = |token: &str| {
        let request = ann.request(Method::POST, "/v1/tubes/orders/put").json(&json!({ "data": 1 }));
        request.bearer_auth(token)
    };
    assert_eq!(send(put(ADMIN_TOKEN)).await.status, 200, "the user is the one of the token");
    send(put("wrong")).await.refused(401, "unauthorized");
    let shown = send(ann.request(Method::GET, "/v1/session").bearer_auth(ADMIN_TOKEN)).await;
    assert_eq!(shown.body["user"], "admin");
    assert!(shown.body.get("session").is_none());
    // A token has no session to end, and the cookie beside it keeps its own.
    let out = send(ann.request(Method::DELETE, "/v1/session").bearer_auth(ADMIN_TOKEN)).await;
    assert_eq!((out.status, &out.body), (200, &json!({ "ended": false })));
    assert!(ann.is_signed_in().await);
}

#[tokio::test]
async fn signing_out_ends_the_session() {
    let (fixture, _) = server().await;
    let (ann, other) =
        (Browser::sign_in(&fixture, ANN_TOKEN).await, Browser::sign_in(&fixture, ANN_TOKEN).await);
    let out = ann.act(Method::DELETE, "/v1/session", json!({})).await;
    assert_eq!((out.status, &out.body), (200, &json!({ "ended": true })));
    let name = ann.cookie.split('=').next().unwrap();
    let removed = format!("{name}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0");
    assert_eq!(out.headers[SET_COOKIE], removed.as_str());
    assert!(!ann.is_signed_in().await, "the cookie is worth nothing, even if the browser kept it");
    let late = ann.act(Method::POST, "/v1/tubes/mail.a/kick", json!({})).await;
    late.refused(401, "unauthorized");
    assert!(other.is_signed_in().await);
}

#[tokio::test]
async fn signing_in_again_ends_the_former_session_of_the_browser() {
    let (fixture, _) = server().await;
    let former = Browser::sign_in(&fixture, ANN_TOKEN).await;
    let body = json!({ "token": ADMIN_TOKEN });
    // No value is needed: the page does not know it any more when a session has expired.
    let again = former.request(Method::POST, "/v1/session").json(&body);
    let admin = Browser::of(&fixture, send(again).await);
    assert!(!former.is_signed_in().await && admin.is_signed_in().await);
    let wrong = admin.request(Method::POST, "/v1/session").json(&json!({ "token": "wrong" }));
    send(wrong).await.refused(401, "unauthorized");
    assert!(admin.is_signed_in().await, "a failed attempt ends nothing");
}

#[tokio::test]
async fn refreshing_the_page_does_not_keep_a_session() {
    let (fixture, clock) = server().await;
    let ann = Browser::sign_in(&fixture, ANN_TOKEN).await;
    let near_end = IDLE_SECONDS - 1;
    seconds(&clock, near_end);
    assert_eq!(ann.get("/v1/tubes").await.status, 200);
    assert_eq!(ann.get("/v1/session").await.body["session"]["ends_in"], 1.0);
    // A request after an input of the user does.
    let active = ann.request(Method::GET, "/v1/tubes").header("X-Taskyard-Active", "true");
    assert_eq!(send(active).await.status, 200);
    seconds(&clock, near_end);
    assert!(ann.is_signed_in().await);
    // So does an action, if it is one of the page.
    let foreign = ann.request(Method::POST, "/v1/tubes/mail.a/kick").json(&json!({}));
    send(foreign.header("X-Taskyard-Active", "true")).await.refused(403, "forbidden");
    assert_eq!(ann.get("/v1/session").await.body["session"]["ends_in"], 1.0);
    ann.act(Method::POST, "/v1/tubes/mail.a/kick", json!({})).await;
    seconds(&clock, near_end);
    assert_eq!(ann.get("/v1/session").await.body["session"]["ends_in"], 1.0);
    seconds(&clock, 1);
    assert!(!ann.is_signed_in().await);
    let active = ann.request(Method::GET, "/v1/tubes").header("X-Taskyard-Active", "true");
    send(active).await.refused(401, "unauthorized");
}

#[tokio::test]
async fn a_session_follows_the_list_of_users() {
    let (fixture, _) = server().await;
    let (ann, admin) = (
        Browser::sign_in(&fixture, ANN_TOKEN).await,
        Browser::sign_in(&fixture, ADMIN_TOKEN).await,
    );
    let put = async || ann.act(Method::POST, "/v1/tubes/mail.a/put", json!({ "data": 1 })).await;
    put().await.refused(403, "forbidden");
    fixture.users.replace(ann_may_put());
    assert_eq!(put().await.status, 200);
    fixture.users.replace(Users::default());
    put().await.refused(401, "unauthorized");
    fixture.users.replace(ann_may_put());
    assert!(!ann.is_signed_in().await, "the session does not come back with the user");
    assert!(admin.is_signed_in().await, "the token of the server is in every list");
}

fn ann_may_put() -> Users {
    ann(Role::Produce)
}

#[tokio::test]
async fn without_users_there_is_nothing_to_sign_in_to() {
    let fixture = Fixture::new().await;
    let shown = fixture.get("/v1/session").await;
    assert_eq!((shown.status, &shown.body["user"]), (200, &json!("guest")));
    assert_eq!(shown.body["has_users"], false);
    assert_eq!(shown.body["rights"][0]["names"], json!(["*"]));
    let signed_in = fixture.post("/v1/session", json!({ "token": "any" })).await;
    assert_eq!((signed_in.status, &signed_in.body), (200, &shown.body));
    assert!(signed_in.headers.get(SET_COOKIE).is_none());
    // A cookie of an earlier time changes nothing.
    let cookie = format!("taskyard_session_{}=abc", fixture.address.port());
    let put = fixture.request(Method::POST, "/v1/tubes/mail/put").json(&json!({ "data": 1 }));
    assert_eq!(send(put.header(COOKIE, cookie)).await.status, 200);
}

#[tokio::test]
async fn a_guest_with_rights_can_sign_in_and_is_a_guest_again_afterwards() {
    let read = Grants::List(vec![Grant::roles(&[Role::Read], vec![NamePattern::all()])]);
    let (fixture, clock) = server_with(|config| {
        let operate = Grants::List(vec![Grant::roles(&[Role::Operate], vec![NamePattern::all()])]);
        let ann = User::with_token("ann", ANN_TOKEN, operate);
        config.users = Users::new(vec![ann, User::guest(read)]);
    })
    .await;
    let shown = fixture.get("/v1/session").await;
    assert_eq!((&shown.body["user"], &shown.body["has_users"]), (&json!("guest"), &json!(true)));
    let ann = Browser::sign_in(&fixture, ANN_TOKEN).await;
    assert_eq!(ann.get("/v1/session").await.body["user"], "ann");
    seconds(&clock, IDLE_SECONDS);
    assert_eq!(ann.get("/v1/session").await.body["user"], "guest");
}

#[tokio::test]
async fn a_request_to_sign_in_is_small() {
    let (fixture, _) = server().await;
    let long = json!({ "token": "x".repeat(SIGN_IN_BYTES_MAX) });
    fixture.post("/v1/session", long).await.refused(413, "too_large");
    for wrong in [json!({ "token": 5 }), json!({ "tokens": "x" }), json!(["x"])] {
        fixture.post("/v1/session", wrong).await.refused(400, "invalid");
    }
    let query = fixture.post("/v1/session?token=x", json!({})).await;
    query.refused(400, "invalid");
}

/// The status line of the answer to a request for a WebSocket, and the connection.
async fn socket(fixture: &Fixture, headers: &str) -> (String, tokio::net::TcpStream) {
    let request = format!(
        "GET /v1/semaphore-events/socket?semaphore=mail.a HTTP/1.1\r\nhost: {}\r\n\
         connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
         sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n{headers}\r\n",
        fixture.address
    );
    let mut stream = fixture.raw(&request).await;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    (head.lines().next().unwrap().into(), stream)
}

#[tokio::test]
async fn a_socket_with_the_cookie_names_its_origin_and_ends_with_the_session() {
    let (fixture, clock) = server_with(|config| config.users = ann(Role::Consume)).await;
    let admin = Browser::sign_in(&fixture, ADMIN_TOKEN).await;
    admin.act(Method::PUT, "/v1/semaphores/mail.a", json!({ "active": 1 })).await;
    let ann = Browser::sign_in(&fixture, ANN_TOKEN).await;
    let cookie = format!("cookie: {}\r\n", ann.cookie);
    let own = format!("{cookie}origin: http://{}\r\n", fixture.address);
    for (headers, status) in [
        (cookie.clone(), "HTTP/1.1 403 Forbidden"),
        (format!("{cookie}origin: http://evil.example\r\n"), "HTTP/1.1 403 Forbidden"),
        (format!("authorization: Bearer {ANN_TOKEN}\r\n"), "HTTP/1.1 101 Switching Protocols"),
        (own.clone(), "HTTP/1.1 101 Switching Protocols"),
    ] {
        assert_eq!(socket(&fixture, &headers).await.0, status, "{headers}");
    }
    let (_, mut open) = socket(&fixture, &own).await;
    seconds(&clock, IDLE_SECONDS);
    // An acknowledgement, masked with zeros. The session has ended, so the socket is closed.
    let text = b"{\"events\": [1]}";
    let mut frame = vec![0x81, 0x80 | text.len() as u8, 0, 0, 0, 0];
    frame.extend(text);
    tokio::io::AsyncWriteExt::write_all(&mut open, &frame).await.unwrap();
    // Not to the end: the server waits for half a minute until a client has closed its side.
    let mut sent = Vec::new();
    while !String::from_utf8_lossy(&sent).contains("may not do this") {
        let count = open.read_buf(&mut sent).await.unwrap();
        assert!(count > 0, "{}", String::from_utf8_lossy(&sent));
    }
}

#[tokio::test]
async fn hosted_services_are_used_with_the_session() {
    let router = Router::new().route("/pool/status", any(async || "paused"));
    let (fixture, _) = server_with(|config| {
        config.extra_routes.push(ExtraRoutes { router, is_open: |_| false });
    })
    .await;
    let (ann, admin) = (
        Browser::sign_in(&fixture, ANN_TOKEN).await,
        Browser::sign_in(&fixture, ADMIN_TOKEN).await,
    );
    assert_eq!(admin.get("/pool/status").await.body, "paused");
    ann.get("/pool/status").await.refused(403, "forbidden");
    let action = admin.request(Method::POST, "/pool/status").json(&json!({}));
    assert!(send(action).await.refused(403, "forbidden").contains("X-Taskyard-CSRF"));
    assert_eq!(admin.act(Method::POST, "/pool/status", json!({})).await.status, 200);
    fixture.get("/pool/status").await.refused(401, "unauthorized");
}

#[tokio::test]
async fn a_user_has_a_limited_number_of_sessions() {
    let (fixture, clock) = server().await;
    let admin = Browser::sign_in(&fixture, ADMIN_TOKEN).await;
    let oldest = Browser::sign_in(&fixture, ANN_TOKEN).await;
    seconds(&clock, 1);
    for _ in 1..PAGE_SESSIONS_PER_USER_MAX {
        Browser::sign_in(&fixture, ANN_TOKEN).await;
    }
    assert!(oldest.is_signed_in().await);
    let newest = Browser::sign_in(&fixture, ANN_TOKEN).await;
    assert!(!oldest.is_signed_in().await && newest.is_signed_in().await);
    assert!(admin.is_signed_in().await, "the limit is for each user");
}

// The body of a request is read only once its user is known, but for this one. A connection that
// sends nothing must not hold it open.
#[tokio::test]
async fn a_request_to_sign_in_that_stalls_is_refused() {
    let (fixture, _) =
        server_with(|config| config.request_stall_max = Duration::from_millis(20)).await;
    let whole = post_bytes("/v1/session", "{\"token\": \"x\"}");
    let part = whole.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n").replace("x\"}", "");
    let answer = read_all(&mut fixture.raw(&part).await).await;
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("too slowly"), "{answer}");
}

// The page of a user whose session had ended went on with the rights of the guest and showed the data of the user.
#[tokio::test]
async fn a_session_that_has_ended_is_not_a_guest() {
    let (fixture, clock) = server_with(|config| {
        let names = vec![NamePattern::all()];
        let read = Grants::List(vec![Grant::roles(&[Role::Read], names)]);
        config.users = Users::new(vec![
            User::guest(read),
            User::with_token("ann", ANN_TOKEN, Grants::List(Vec::new())),
        ]);
    })
    .await;
    let ann = Browser::sign_in(&fixture, ANN_TOKEN).await;
    seconds(&clock, IDLE_SECONDS);
    let refused = ann.get("/v1/tubes").await;
    assert!(refused.refused(401, "unauthorized").contains("sign in again"));
    // The next question of the page is who its user is: the guest, without the cookie.
    let shown = ann.get("/v1/session").await;
    assert_eq!((shown.status, &shown.body["user"]), (200, &json!("guest")));
    let removed = shown.headers[SET_COOKIE].to_str().unwrap();
    assert!(removed.ends_with("Max-Age=0"), "{removed}");
    assert_eq!(fixture.get("/v1/tubes").await.status, 200);
}

// A page that another computer of the network sent without TLS could use the session of a page with TLS.
#[tokio::test]
async fn a_session_of_tls_is_not_for_pages_without() {
    let (fixture, _) = server().await;
    let origin = |scheme| format!("{scheme}://127.0.0.1:{}", fixture.address.port());
    let request = fixture.request(Method::POST, "/v1/session").json(&json!({ "token": ANN_TOKEN }));
    let ann = Browser::of(&fixture, send(request.header(ORIGIN, origin("https"))).await);
    let ask = |scheme| ann.request(Method::GET, "/v1/tubes").header(ORIGIN, origin(scheme));
    assert_eq!(send(ask("https")).await.status, 200);
    assert!(send(ask("http")).await.refused(403, "forbidden").contains("without TLS"));
}

// The first token of a request counted as proven if another one was correct, and then all further guesses beside it were free.
#[tokio::test]
async fn guesses_beside_a_correct_token_are_counted() {
    let (fixture, _) = server().await;
    let ask = async |tokens: &[&str]| {
        let protocols = tokens.iter().map(|token| format!("bearer.{token}"));
        let protocols = protocols.collect::<Vec<_>>().join(", ");
        let request = fixture.request(Method::GET, "/v1/tubes");
        send(request.header("Sec-WebSocket-Protocol", protocols)).await.status
    };
    assert_eq!(ask(&["junk-of-sixteen-chars", ANN_TOKEN]).await, 200);
    let mut guesses = 0;
    while ask(&["junk-of-sixteen-chars", &format!("guess-{guesses:016}")]).await != 503 {
        guesses += 1;
        assert!(guesses < 1_000, "no limit");
    }
    assert!(guesses > 10, "a few mistakes are forgiven");
}
