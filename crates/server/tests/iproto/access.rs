//! Authentication and grants.

use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::json;
use taskyard_engine::{Engine, Settings, SystemClock};
use taskyard_iproto::{Operation, auth};
use taskyard_server::{
    BindError, Config, Grant, Grants, IprotoConfig, Server, Token, User, Users, Verb,
};
use taskyard_store::MemoryStore;
use taskyard_testkit::recorded_output::register_secret;

use crate::fixture::{IprotoAnswer, RawClient, TestServer};

// Long enough to be recognized in a log.
const BOSS_PASSWORD: &str = "secret-of-the-boss";
const LIM_PASSWORD: &str = "secret-of-the-limited";

async fn authenticate(client: &mut RawClient, user: &str, password: &str) -> IprotoAnswer {
    register_secret(password);
    let scramble = Some(auth::scramble(password, &client.greeting.salt));
    client.execute(&Operation::Auth { user, scramble }).await
}

/// The numbers of native commands.
const TUBES: u8 = 3;
const PEEK: u8 = 9;

/// A server with an administrator and a user with a few grants.
async fn server_with_users() -> TestServer {
    let grants = vec![
        Grant::new("mail*", &[Verb::Put, Verb::Take, Verb::Ack]),
        Grant::new("own", &[Verb::Create, Verb::Drop, Verb::Eval]),
    ];
    let boss = User::new("boss", BOSS_PASSWORD, Grants::All);
    let lim = User::new("lim", LIM_PASSWORD, Grants::List(grants));
    TestServer::with(|config| config.users = Users::new(vec![boss, lim])).await
}

#[tokio::test]
async fn a_guest_without_grants_may_only_authenticate() {
    let server = server_with_users().await;
    let mut client = server.connect().await;
    client.ping().await;
    let (_, id) = client.request(&Operation::Id { version: 4, features: vec![] });
    client.send(&id).await;
    client.next_bytes().await.unwrap();
    let denied = "Execute access to function 'queue.state' is denied for user 'guest'";
    client.refused("queue.state", json!([]), 42, denied).await;
    client.refused("queue.tube.mail:put", json!([1]), 42, "denied for user 'guest'").await;
    let denied = client.eval("return queue.state()", json!([])).await.unwrap_err();
    assert_eq!(denied.code, 42);
    let select = |space| Operation::Select {
        space,
        index: 0,
        limit: 9,
        offset: 0,
        iterator: 2,
        key: &[0x90],
    };
    // Clients read the schema as soon as they are connected, and gave up when it was refused. It
    // lists only what a guest may read.
    let spaces = client.execute(&select(281)).await.unwrap();
    assert_eq!(spaces.as_array().unwrap().len(), 3, "{spaces}");
    assert!(!spaces.to_string().contains("_queue"), "{spaces}");
    assert_eq!(client.execute(&select(512)).await.unwrap_err().code, 42);
    client.refused("box.info", json!([]), 42, "'box.info' is denied for user 'guest'").await;
}

#[tokio::test]
async fn a_password_must_be_right() {
    let server = server_with_users().await;
    let mut client = server.connect().await;
    // The answers showed which users exist.
    let none = Operation::Auth { user: "boss", scramble: None };
    let refused = [
        authenticate(&mut client, "boss", "wrong").await,
        authenticate(&mut client, "who", "secret").await,
        client.execute(&none).await,
    ];
    for fault in refused.map(Result::unwrap_err) {
        let text = "User not found or supplied credentials are invalid";
        assert_eq!((fault.code, &*fault.text), (47, text));
    }
    client.refused("queue.state", json!([]), 42, "guest").await;
    authenticate(&mut client, "boss", BOSS_PASSWORD).await.unwrap();
    client.done("queue.state", json!([])).await;
    // A scramble is valid only for its own connection.
    let scramble = Some(auth::scramble(BOSS_PASSWORD, &client.greeting.salt));
    let mut other = server.connect().await;
    let stolen = Operation::Auth { user: "boss", scramble };
    assert_eq!(other.execute(&stolen).await.unwrap_err().code, 47);
}

// Passwords could be guessed as fast as the network allowed.
#[tokio::test]
async fn guessing_is_slowed_down() {
    let server = server_with_users().await;
    let mut client = server.connect().await;
    let mut guesses = 0;
    loop {
        guesses += 1;
        assert!(guesses < 10_000, "no limit");
        let fault = authenticate(&mut client, "boss", "wrong").await.unwrap_err();
        assert_eq!(fault.code, 47);
        if fault.text.contains("too many failed logins") {
            break;
        }
    }
    assert!(guesses > 10, "a few mistakes are forgiven");
    // A correct password is not checked either, on any connection.
    let mut other = server.connect().await;
    let fault = authenticate(&mut other, "boss", BOSS_PASSWORD).await.unwrap_err();
    assert!(fault.text.contains("too many failed logins"), "{fault:?}");
}

// A client that has logged in keeps its address from being locked by another client there.
#[tokio::test]
async fn failed_logins_do_not_lock_out_a_logged_in_client() {
    let server = server_with_users().await;
    authenticate(&mut server.connect().await, "lim", LIM_PASSWORD).await.unwrap();
    let mut guesser = server.connect().await;
    for _ in 0..100 {
        authenticate(&mut guesser, "boss", "wrong").await.unwrap_err();
    }
    authenticate(&mut server.connect().await, "lim", LIM_PASSWORD).await.unwrap();
}

// One successful login exempted its address for every user: a user with few rights could try any
// number of passwords of an administrator.
#[tokio::test]
async fn a_logged_in_user_cannot_guess_the_password_of_another() {
    let server = server_with_users().await;
    let mut lim = server.connect().await;
    let mut guesses = 0;
    loop {
        guesses += 1;
        assert!(guesses < 10_000, "no limit");
        authenticate(&mut lim, "lim", LIM_PASSWORD).await.unwrap();
        let fault = authenticate(&mut lim, "boss", "wrong").await.unwrap_err();
        if fault.text.contains("too many failed logins") {
            break;
        }
    }
    assert!(guesses > 10, "a few mistakes are forgiven");
    authenticate(&mut server.connect().await, "lim", LIM_PASSWORD).await.unwrap();
}

#[tokio::test]
async fn grants_allow_verbs_on_tubes() {
    let server = server_with_users().await;
    let mut boss = server.connect().await;
    authenticate(&mut boss, "boss", BOSS_PASSWORD).await.unwrap();
    for tube in ["mail", "mail2", "post"] {
        boss.done("queue.create_tube", json!([tube, "fifo"])).await;
    }
    let mut lim = server.connect().await;
    authenticate(&mut lim, "lim", LIM_PASSWORD).await.unwrap();
    lim.done("queue.tube.mail:put", json!([1])).await;
    lim.done("queue.tube.mail2:put_many", json!([[[1], [2]]])).await;
    lim.done("queue.tube.mail:take", json!([0])).await;
    lim.done("queue.tube.mail:ack", json!([0])).await;
    lim.done("queue.statistics", json!(["mail"])).await;
    lim.done("queue.state", json!([])).await;
    assert_eq!(lim.done("queue.tube", json!(["mail"])).await, json!([true]));
    for (name, args) in [
        ("queue.tube.post:put", json!([1])),
        ("queue.tube.mail:delete", json!([0])),
        ("queue.tube.mail:drop", json!([])),
        ("queue.tube.mail:truncate", json!([])),
        ("queue.tube.mail:release_all", json!([])),
        ("queue.statistics", json!(["post"])),
        ("queue.cfg", json!([{ "ttr": 5 }])),
        ("queue.create_tube", json!(["another", "fifo"])),
        // Wrong arguments reveal nothing about a tube that may not be seen.
        ("queue.tube.post:put", json!([])),
        ("queue.tube.mail:kick", json!(["x"])),
        ("taskyard.execute", json!([[[TUBES, "post"]]])),
        ("taskyard.execute", json!([[[PEEK, "mail", [0]]]])),
    ] {
        let text = format!("Execute access to function '{name}' is denied for user 'lim'");
        lim.refused(name, args, 42, &text).await;
    }
    lim.done("taskyard.execute", json!([[[TUBES, "mail"]]])).await;
    // Lists show what the user may see.
    assert_eq!(lim.done("queue.tube", json!([])).await, json!([["mail", "mail2"]]));
    for (name, args) in [("queue.statistics", json!([])), ("taskyard.execute", json!([[[TUBES]]]))]
    {
        let shown = lim.done(name, args).await.to_string();
        assert!(shown.contains("mail2") && !shown.contains("post"), "{name}: {shown}");
    }
    lim.done("queue.create_tube", json!(["own", "fifo"])).await;
    lim.done("queue.tube.own:drop", json!([])).await;
}

#[tokio::test]
async fn a_guest_may_have_grants_of_its_own() {
    let open = Grants::List(vec![Grant::new("open", &[Verb::Put, Verb::Create])]);
    let users = Users::new(vec![User::guest(open)]);
    let server = TestServer::with(|config| config.users = users).await;
    let mut client = server.connect().await;
    client.done("queue.create_tube", json!(["open", "fifo"])).await;
    client.done("queue.tube.open:put", json!([1])).await;
    client.refused("queue.tube.open:take", json!([0]), 42, "'guest'").await;
    let fault = client.eval("return queue.state()", json!([])).await.unwrap_err();
    let denied = "Execute access to universe '' is denied for user 'guest'";
    assert!(fault.text.starts_with(denied), "{}", fault.text);
    let unknown = Operation::Auth { user: "guest", scramble: None };
    client.execute(&unknown).await.unwrap();
}

#[tokio::test]
async fn an_unauthenticated_client_may_only_send_small_frames() {
    let server = server_with_users().await;
    let mut client = server.connect().await;
    client.send(&[0xce, 0, 1, 0, 0]).await;
    assert_eq!(client.next().await.unwrap().1.unwrap_err().code, 20);
    assert!(client.next().await.is_none(), "the connection is closed");
    let mut boss = server.connect().await;
    authenticate(&mut boss, "boss", BOSS_PASSWORD).await.unwrap();
    boss.done("queue.create_tube", json!(["mail", "fifo"])).await;
    boss.done("queue.tube.mail:put", json!(["x".repeat(100_000)])).await;
}

#[tokio::test]
async fn a_public_address_needs_users_or_a_token() {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let everywhere = SocketAddr::from(([0, 0, 0, 0], 0));
    let bind = async |change: fn(&mut Config)| {
        let mut config = Config::new(any);
        config.iproto = Some(IprotoConfig::new(everywhere));
        change(&mut config);
        let clock = Arc::new(SystemClock::new());
        let store = Box::new(MemoryStore::default());
        let engine = Engine::start(store, clock, Settings::default());
        Server::bind(config, engine).await.map(|server| server.iproto_address())
    };
    let refused = bind(|_| {}).await;
    assert!(matches!(refused, Err(BindError::IprotoExposed(address)) if address == everywhere));
    assert!(bind(|config| config.insecure = true).await.is_ok());
    assert!(bind(|config| config.token = Token::new("secret-0123456789").ok()).await.is_ok());
    let server_with_users = bind(|config| {
        let users = Users::new(vec![User::new("boss", BOSS_PASSWORD, Grants::All)]);
        config.iproto.as_mut().unwrap().users = users;
    });
    assert!(server_with_users.await.is_ok());
}

/// A token protected HTTP only: over iproto every local client was accepted.
#[tokio::test]
async fn the_token_is_the_password_without_users() {
    let server =
        TestServer::with_all(|config| config.token = Token::new("secret-0123456789").ok()).await;
    let mut client = server.connect().await;
    client.refused("queue.state", json!([]), 42, "denied for user 'guest'").await;
    assert_eq!(authenticate(&mut client, "admin", "wrong").await.unwrap_err().code, 47);
    authenticate(&mut client, "admin", "secret-0123456789").await.unwrap();
    client.done("queue.create_tube", json!(["mail", "fifo"])).await;
}

#[tokio::test]
async fn a_port_in_use_is_reported() {
    let server = TestServer::new().await;
    let mut config = Config::new(SocketAddr::from(([127, 0, 0, 1], 0)));
    config.iproto = Some(IprotoConfig::new(server.address));
    let refused = Server::bind(config, server.engine.clone()).await.map(|server| server.address());
    assert!(matches!(refused, Err(BindError::IprotoBusy(address)) if address == server.address));
}
