//! Who may do what.

use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::json;
use taskyard_engine::{Engine, Settings, SystemClock};
use taskyard_server::{
    BindError, Config, Grant, Grants, IprotoConfig, Server, Token, User, Users, Verb,
};
use taskyard_store::MemoryStore;
use taskyard_wire::iproto::{Operation, auth};

use crate::rig::{Answer, Rig, Talk};

async fn introduce(talk: &mut Talk, user: &str, password: &str) -> Answer {
    let scramble = Some(auth::scramble(password, &talk.greeting.salt));
    talk.ask(&Operation::Auth { user, scramble }).await
}

/// Commands of our own client, by number.
const TUBES: u8 = 3;
const PEEK: u8 = 9;

/// A server with a boss, and somebody who may do a few things.
async fn guarded() -> Rig {
    let grants = vec![
        Grant::new("mail*", &[Verb::Put, Verb::Take, Verb::Ack]),
        Grant::new("own", &[Verb::Create, Verb::Drop, Verb::Eval]),
    ];
    let boss = User::new("boss", "secret", Grants::All);
    let lim = User::new("lim", "x", Grants::List(grants));
    Rig::with(|config| config.users = Users::new(vec![boss, lim])).await
}

#[tokio::test]
async fn a_guest_may_only_say_who_it_is() {
    let rig = guarded().await;
    let mut talk = rig.connect().await;
    talk.ping().await;
    let (_, id) = talk.request(&Operation::Id { version: 4, features: vec![] });
    talk.send(&id).await;
    talk.next_bytes().await.unwrap();
    let denied = "Execute access to function 'queue.state' is denied for user 'guest'";
    talk.refused("queue.state", json!([]), 42, denied).await;
    talk.refused("queue.tube.mail:put", json!([1]), 42, "denied for user 'guest'").await;
    let denied = talk.eval("return queue.state()", json!([])).await.unwrap_err();
    assert_eq!(denied.code, 42);
    let select = |space| Operation::Select {
        space,
        index: 0,
        limit: 9,
        offset: 0,
        iterator: 2,
        key: &[0x90],
    };
    // Clients read the schema as soon as they are connected, and gave up when it was refused. What a guest may not read
    // is not in it.
    let spaces = talk.ask(&select(281)).await.unwrap();
    assert_eq!(spaces.as_array().unwrap().len(), 3, "{spaces}");
    assert!(!spaces.to_string().contains("_queue"), "{spaces}");
    assert_eq!(talk.ask(&select(512)).await.unwrap_err().code, 42);
    talk.refused("box.info", json!([]), 42, "'box.info' is denied for user 'guest'").await;
}

#[tokio::test]
async fn a_password_must_be_right() {
    let rig = guarded().await;
    let mut talk = rig.connect().await;
    // The answers told which users there are.
    let none = Operation::Auth { user: "boss", scramble: None };
    let refused = [
        introduce(&mut talk, "boss", "wrong").await,
        introduce(&mut talk, "who", "secret").await,
        talk.ask(&none).await,
    ];
    for fault in refused.map(Result::unwrap_err) {
        let text = "User not found or supplied credentials are invalid";
        assert_eq!((fault.code, &*fault.text), (47, text));
    }
    talk.refused("queue.state", json!([]), 42, "guest").await;
    introduce(&mut talk, "boss", "secret").await.unwrap();
    talk.done("queue.state", json!([])).await;
    // A scramble is good for its own connection only.
    let scramble = Some(auth::scramble("secret", &talk.greeting.salt));
    let mut other = rig.connect().await;
    let stolen = Operation::Auth { user: "boss", scramble };
    assert_eq!(other.ask(&stolen).await.unwrap_err().code, 47);
}

// Passwords could be guessed as fast as the network allowed.
#[tokio::test]
async fn guessing_is_slowed_down() {
    let rig = guarded().await;
    let mut talk = rig.connect().await;
    let mut guesses = 0;
    loop {
        guesses += 1;
        assert!(guesses < 10_000, "no limit");
        let fault = introduce(&mut talk, "boss", "wrong").await.unwrap_err();
        assert_eq!(fault.code, 47);
        if fault.text.contains("too many failed logins") {
            break;
        }
    }
    assert!(guesses > 10, "a few mistakes are forgiven");
    // A guess that would be right is not looked at either, on whichever connection.
    let mut other = rig.connect().await;
    let fault = introduce(&mut other, "boss", "secret").await.unwrap_err();
    assert!(fault.text.contains("too many failed logins"), "{fault:?}");
}

// A client that has logged in keeps its address from being locked by another one there.
#[tokio::test]
async fn a_guesser_does_not_lock_out_who_logged_in() {
    let rig = guarded().await;
    introduce(&mut rig.connect().await, "lim", "x").await.unwrap();
    let mut guesser = rig.connect().await;
    for _ in 0..100 {
        introduce(&mut guesser, "boss", "wrong").await.unwrap_err();
    }
    introduce(&mut rig.connect().await, "lim", "x").await.unwrap();
}

#[tokio::test]
async fn grants_say_which_verbs_on_which_tubes() {
    let rig = guarded().await;
    let mut boss = rig.connect().await;
    introduce(&mut boss, "boss", "secret").await.unwrap();
    for tube in ["mail", "mail2", "post"] {
        boss.done("queue.create_tube", json!([tube, "fifo"])).await;
    }
    let mut lim = rig.connect().await;
    introduce(&mut lim, "lim", "x").await.unwrap();
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
        ("queue.statistics", json!([])),
        ("queue.statistics", json!(["post"])),
        ("queue.tube", json!([])),
        ("queue.cfg", json!([{ "ttr": 5 }])),
        ("queue.create_tube", json!(["another", "fifo"])),
        // Wrong arguments tell nothing about a tube that may not be seen.
        ("queue.tube.post:put", json!([])),
        ("queue.tube.mail:kick", json!(["x"])),
        ("taskyard.execute", json!([[[TUBES, "post"]]])),
        ("taskyard.execute", json!([[[TUBES, "mail"], [TUBES]]])),
        ("taskyard.execute", json!([[[PEEK, "mail", [0]]]])),
    ] {
        let text = format!("Execute access to function '{name}' is denied for user 'lim'");
        lim.refused(name, args, 42, &text).await;
    }
    lim.done("taskyard.execute", json!([[[TUBES, "mail"]]])).await;
    lim.done("queue.create_tube", json!(["own", "fifo"])).await;
    lim.done("queue.tube.own:drop", json!([])).await;
}

#[tokio::test]
async fn a_guest_may_have_grants_of_its_own() {
    let open = Grants::List(vec![Grant::new("open", &[Verb::Put, Verb::Create])]);
    let users = Users::new(vec![User::guest(open)]);
    let rig = Rig::with(|config| config.users = users).await;
    let mut talk = rig.connect().await;
    talk.done("queue.create_tube", json!(["open", "fifo"])).await;
    talk.done("queue.tube.open:put", json!([1])).await;
    talk.refused("queue.tube.open:take", json!([0]), 42, "'guest'").await;
    let fault = talk.eval("return queue.state()", json!([])).await.unwrap_err();
    assert_eq!(&*fault.text, "Execute access to universe '' is denied for user 'guest'");
    let unknown = Operation::Auth { user: "guest", scramble: None };
    talk.ask(&unknown).await.unwrap();
}

#[tokio::test]
async fn a_stranger_may_not_send_much() {
    let rig = guarded().await;
    let mut talk = rig.connect().await;
    talk.send(&[0xce, 0, 1, 0, 0]).await;
    assert_eq!(talk.next().await.unwrap().1.unwrap_err().code, 20);
    assert!(talk.next().await.is_none(), "the connection is closed");
    let mut boss = rig.connect().await;
    introduce(&mut boss, "boss", "secret").await.unwrap();
    boss.done("queue.create_tube", json!(["mail", "fifo"])).await;
    boss.done("queue.tube.mail:put", json!(["x".repeat(100_000)])).await;
}

#[tokio::test]
async fn an_address_that_others_reach_needs_users_or_a_token() {
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
    let guarded = bind(|config| {
        let users = Users::new(vec![User::new("boss", "secret", Grants::All)]);
        config.iproto.as_mut().unwrap().users = users;
    });
    assert!(guarded.await.is_ok());
}

/// A token kept strangers out of HTTP alone: over iproto everybody on the machine was let in.
#[tokio::test]
async fn the_token_is_a_password_where_there_are_no_users() {
    let rig = Rig::with_all(|config| config.token = Token::new("secret-0123456789").ok()).await;
    let mut talk = rig.connect().await;
    talk.refused("queue.state", json!([]), 42, "denied for user 'guest'").await;
    assert_eq!(introduce(&mut talk, "admin", "wrong").await.unwrap_err().code, 47);
    introduce(&mut talk, "admin", "secret-0123456789").await.unwrap();
    talk.done("queue.create_tube", json!(["mail", "fifo"])).await;
}

#[tokio::test]
async fn a_busy_port_is_told_apart() {
    let rig = Rig::new().await;
    let mut config = Config::new(SocketAddr::from(([127, 0, 0, 1], 0)));
    config.iproto = Some(IprotoConfig::new(rig.address));
    let refused = Server::bind(config, rig.engine.clone()).await.map(|server| server.address());
    assert!(matches!(refused, Err(BindError::IprotoBusy(address)) if address == rig.address));
}
