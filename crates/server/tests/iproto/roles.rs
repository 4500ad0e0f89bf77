//! Users and roles over iproto: each cell of the table of functions and roles.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use taskyard_core::access::{NamePattern, Role};
use taskyard_core::{Body, Command, Execute, NewTask, Reply, SessionId, Span, Take, TubeName};
use taskyard_iproto::{Fault, Operation, auth, encode_execute, function_names, parse_reply};
use taskyard_server::{Grant, Grants, Token, User, Users};
use taskyard_testkit::recorded_output::register_secret;

use crate::fixture::{RawClient, TestServer};
use crate::native::{execute, set_schedule};

/// A call: the function, its arguments, and the roles that allow it, each by its first letter.
type FunctionCase = (&'static str, Value, &'static str);

/// The numbers of native commands.
const TUBES: u8 = 3;
const PEEK: u8 = 9;

/// Long enough to be recognized in a log.
pub const PASSWORD: &str = "secret-of-every-user";

fn user(role: Role, pattern: &str) -> User {
    let names = vec![NamePattern::new(pattern).unwrap()];
    let grants = Grants::List(vec![Grant::roles(&[role], names)]);
    User::new(&format!("{} {pattern}", role.name()), PASSWORD, grants)
}

pub async fn server(patterns: &[&str]) -> TestServer {
    let users = patterns.iter().flat_map(|pattern| Role::ALL.map(|role| user(role, pattern)));
    let users = Users::new(users.collect());
    TestServer::with_all(|config| {
        config.users = users;
        config.token = Token::new("secret-0123456789").ok();
    })
    .await
}

pub async fn log_in(server: &TestServer, name: &str, password: &str) -> RawClient {
    let mut client = server.connect().await;
    register_secret(password);
    let scramble = Some(auth::scramble(password, &client.greeting.salt));
    client.execute(&Operation::Auth { user: name, scramble }).await.unwrap();
    client
}

/// The users of whom one has this role.
fn clerk(role: Role) -> Users {
    let names = vec![NamePattern::new("*").unwrap()];
    let grants = Grants::List(vec![Grant::roles(&[role], names)]);
    Users::new(vec![User::new("clerk", PASSWORD, grants)])
}

/// The fault of a call. Its data may be bytes that are not text.
async fn fault_of(client: &mut RawClient, function: &str, args: &Value) -> Option<Fault> {
    client.post(function, args.clone()).await;
    let frame = client.next_bytes().await.expect("the server has closed");
    parse_reply(&frame).unwrap().fault()
}

fn cases() -> Vec<FunctionCase> {
    vec![
        ("queue.statistics", json!(["TUBE"]), "rpcoa"),
        ("queue.statistics", json!([]), "rpcoa"),
        ("queue.stats", json!(["TUBE"]), "rpcoa"),
        ("queue.identify", json!([]), "rpcoa"),
        ("queue.worker", json!([]), "rpcoa"),
        ("queue.state", json!([]), "rpcoa"),
        ("queue.tube", json!(["TUBE"]), "rpcoa"),
        ("queue.tube", json!([]), "rpcoa"),
        ("box.info", json!([]), "rpcoa"),
        ("queue.cfg", json!([{ "ttr": 5 }]), "a"),
        ("queue.cfg", json!([{}]), "a"),
        ("queue.tube.TUBE:put", json!([1]), "pa"),
        ("queue.tube.TUBE:put", json!([]), "pa"),
        ("queue.tube.TUBE:put_many", json!([[[1], [2]]]), "pa"),
        ("queue.tube.TUBE:take", json!([0]), "ca"),
        ("queue.tube.TUBE:take_many", json!([1, 0]), "ca"),
        ("queue.tube.TUBE:ack", json!([0]), "ca"),
        ("queue.tube.TUBE:ack_many", json!([[0]]), "ca"),
        ("queue.tube.TUBE:release", json!([0]), "ca"),
        ("queue.tube.TUBE:fail", json!([0, "error"]), "ca"),
        ("queue.tube.TUBE:touch", json!([0, 1]), "ca"),
        ("queue.tube.TUBE:bury", json!([0]), "coa"),
        ("queue.tube.TUBE:kick", json!([1]), "oa"),
        ("queue.tube.TUBE:peek", json!([0]), "oa"),
        ("queue.tube.TUBE:list", json!([]), "oa"),
        ("queue.tube.TUBE:delete", json!([0]), "oa"),
        ("queue.tube.TUBE:truncate", json!([]), "oa"),
        ("queue.tube.TUBE:release_all", json!([]), "oa"),
        ("queue.semaphore.create", json!(["TUBE", { "active": 1 }]), "a"),
        ("queue.semaphore.set", json!(["TUBE", { "active": 1 }]), "a"),
        ("queue.semaphore.enqueue", json!(["TUBE", 7, 1]), "ca"),
        ("queue.semaphore.enqueue_many", json!(["TUBE", [[7, 1]]]), "ca"),
        ("queue.semaphore.release", json!(["TUBE", 9]), "ca"),
        ("queue.semaphore.yield", json!(["TUBE", 9]), "ca"),
        ("queue.semaphore.decline", json!(["TUBE", 9]), "ca"),
        ("queue.semaphore.extend", json!(["TUBE", 9, 5]), "ca"),
        ("queue.semaphore.release_many", json!(["TUBE", [[9]]]), "ca"),
        ("queue.semaphore.look", json!(["TUBE", [7]]), "rpcoa"),
        ("queue.semaphore.holders", json!(["TUBE"]), "rpcoa"),
        ("queue.semaphore.waiting", json!(["TUBE"]), "rpcoa"),
        ("queue.semaphore.list", json!([]), "rpcoa"),
        ("queue.semaphore.show", json!(["TUBE"]), "rpcoa"),
        ("queue.semaphore.events", json!(["TUBE", 1, 0]), "ca"),
        ("queue.semaphore.ack", json!([[99]]), "ca"),
        ("queue.semaphore.drop", json!(["TUBE", { "force": true }]), "a"),
        ("taskyard.execute", json!([[[TUBES, "TUBE"]]]), "rpcoa"),
        ("taskyard.execute", json!([[[TUBES]]]), "rpcoa"),
        ("taskyard.execute", json!([[[PEEK, "TUBE", [0]]]]), "oa"),
        ("taskyard.execute", json!([[[TUBES, "TUBE"], [PEEK, "TUBE", [0]]]]), "oa"),
        ("taskyard.run_schedule", json!(["TUBE"]), "pa"),
        ("queue.create_tube", json!(["TUBE", "fifottl", { "if_not_exists": true }]), "a"),
        ("queue.schema.create_tube", json!(["TUBE", "fifottl", { "if_not_exists": true }]), "a"),
        ("queue.tube.TUBE:drop", json!([]), "a"),
    ]
}

#[test]
fn every_function_has_a_case() {
    let tested: BTreeSet<String> = cases().into_iter().map(|case| case.0.to_owned()).collect();
    let functions: BTreeSet<String> = function_names("queue").into_iter().collect();
    assert_eq!(functions, tested);
}

// Each cell of the table: a user with one role for all names calls each function, and a user of
// another pattern does so as well.
#[tokio::test]
async fn a_role_allows_its_functions_and_no_others() {
    let server = server(&["*", "other.*"]).await;
    let mut admin = log_in(&server, "admin", "secret-0123456789").await;
    for role in Role::ALL {
        let options = json!(["TUBE", "fifottl", { "if_not_exists": true }]);
        admin.done("queue.create_tube", options).await;
        admin.done("queue.tube.TUBE:put", json!([1])).await;
        admin.done("queue.semaphore.set", json!(["TUBE", { "active": 1 }])).await;
        assert!(execute(&mut admin, &[set_schedule("TUBE", "TUBE")]).await[0].is_ok());
        let mut user = log_in(&server, &format!("{} *", role.name()), PASSWORD).await;
        let mut other = log_in(&server, &format!("{} other.*", role.name()), PASSWORD).await;
        for (function, args, roles) in cases() {
            let is_named = function.contains("TUBE") || args.to_string().contains("TUBE");
            let fault = fault_of(&mut other, function, &args).await;
            if is_named {
                let fault = fault.unwrap_or_else(|| panic!("{role:?} {function}"));
                assert_eq!(fault.code, 42, "{role:?} {function}");
                assert!(fault.text.contains("the role '"), "{}", fault.text);
                assert!(fault.text.contains("'TUBE'"), "{}", fault.text);
            }
            let fault = fault_of(&mut user, function, &args).await;
            let is_denied = fault.as_ref().is_some_and(|fault| fault.code == 42);
            let is_allowed = roles.contains(&role.name()[..1]);
            assert_eq!(is_denied, !is_allowed, "{role:?} {function} {args}: {fault:?}");
            if let Some(fault) = fault {
                assert!(!fault.text.contains("not defined"), "{function}: {}", fault.text);
            }
        }
        let drop = user.eval("return queue.tube.TUBE:drop()", json!([])).await;
        assert_eq!(drop.is_err_and(|fault| fault.code == 42), role != Role::Admin);
    }
}

#[tokio::test]
async fn lists_show_what_the_user_may_see() {
    let server = server(&["mail.*"]).await;
    let mut admin = log_in(&server, "admin", "secret-0123456789").await;
    for name in ["mail.a", "orders"] {
        admin.done("queue.create_tube", json!([name, "fifottl"])).await;
        admin.done("queue.semaphore.create", json!([name, { "active": 1 }])).await;
    }
    for role in Role::ALL {
        let mut user = log_in(&server, &format!("{} mail.*", role.name()), PASSWORD).await;
        for (function, args) in [
            ("queue.statistics", json!([])),
            ("queue.tube", json!([])),
            ("queue.semaphore.list", json!([])),
            ("taskyard.execute", json!([[[TUBES]]])),
        ] {
            let shown = user.done(function, args).await.to_string();
            assert!(shown.contains("mail.a"), "{function}: {shown}");
            assert!(!shown.contains("orders"), "{function}: {shown}");
        }
    }
}

// A user that knew the session of another could leave it, and all its tasks returned.
#[tokio::test]
async fn only_joined_sessions_can_be_left() {
    let server = server(&["*"]).await;
    let session = SessionId([7; 16]);
    let join = Command::JoinSession { session, create: true };
    let leave = Command::LeaveSession { session };
    let mut owner = log_in(&server, "consume *", PASSWORD).await;
    assert_eq!(execute(&mut owner, &[join]).await, [Ok(Reply::Session(session))]);
    let mut other = log_in(&server, "read *", PASSWORD).await;
    let mut bytes = Vec::new();
    encode_execute(&mut bytes, 7, std::slice::from_ref(&leave));
    other.send(&bytes).await;
    let frame = other.next_bytes().await.expect("the server answers");
    let fault = parse_reply(&frame).unwrap().fault().expect("it is refused");
    assert!(fault.text.contains("this connection has joined"), "{fault:?}");
    assert_eq!(execute(&mut owner, &[leave]).await, [Ok(Reply::Nothing)]);
}

// Grants were copied at the login, so that a user that was removed kept them for as long as it stayed
// connected.
#[tokio::test]
async fn a_connected_user_loses_rights_that_are_taken_away() {
    let clerk = |pattern: &str| {
        let names = vec![NamePattern::new(pattern).unwrap()];
        let grants = Grants::List(vec![Grant::roles(&[Role::Produce], names)]);
        Users::new(vec![User::new("clerk", PASSWORD, grants)])
    };
    let server = TestServer::with_all(|config| config.users = clerk("*")).await;
    let mut client = log_in(&server, "clerk", PASSWORD).await;
    let missing = client.call("queue.tube.mail:put", json!([1])).await.unwrap_err();
    assert_ne!(missing.code, 42, "allowed, but the tube does not exist");
    server.users.replace(clerk("orders"));
    client.refused("queue.tube.mail:put", json!([1]), 42, "denied for user 'clerk'").await;
    server.users.replace(clerk("*"));
    let missing = client.call("queue.tube.mail:put", json!([1])).await.unwrap_err();
    assert_ne!(missing.code, 42);
    server.users.replace(Users::new(vec![User::guest(Grants::List(Vec::new()))]));
    client.refused("queue.state", json!([]), 42, "denied for user 'clerk'").await;
}

/// Waits for tasks with a call and with a native command.
async fn wait_twice(server: &TestServer, client: &mut RawClient) {
    client.post("queue.tube.mail:take", json!([])).await;
    let take = Take {
        tube: TubeName::new("mail").unwrap(),
        count: 1,
        session: None,
        lease: None,
        worker: None,
        wait: Span::FOREVER,
    };
    let mut bytes = Vec::new();
    encode_execute(&mut bytes, 7, &[Command::Take(take)]);
    client.send(&bytes).await;
    server.consumers("mail", 2).await;
}

// A take that waited already delivered the next task to a user that was removed.
#[tokio::test]
async fn the_waiting_takes_of_a_user_without_the_right_end() {
    let no_one = || Users::new(vec![User::guest(Grants::List(Vec::new()))]);
    for users in [no_one(), clerk(Role::Produce)] {
        let server = TestServer::with_all(|config| config.users = clerk(Role::Admin)).await;
        let mut client = log_in(&server, "clerk", PASSWORD).await;
        client.done("queue.create_tube", json!(["mail", "fifottl"])).await;
        wait_twice(&server, &mut client).await;
        // A user who keeps the right goes on waiting.
        server.users.replace(clerk(Role::Consume));
        let tasks = vec![NewTask::new(Body::new(&[1])); 2];
        let put = Command::Put { tube: TubeName::new("mail").unwrap(), tasks, wait: Span::ZERO };
        server.engine.execute(vec![put]).await.remove(0).unwrap();
        for _ in 0..2 {
            let frame = client.next_bytes().await.expect("the server answers");
            let fault = parse_reply(&frame).unwrap().fault();
            assert!(fault.is_none(), "{fault:?}");
        }
        wait_twice(&server, &mut client).await;
        server.users.replace(users);
        for function in ["queue.tube.mail:take", "taskyard.execute"] {
            let frame = client.next_bytes().await.expect("the server answers");
            let fault = parse_reply(&frame).unwrap().fault().expect("it is refused");
            assert_eq!(fault.code, 42, "{fault:?}");
            let text = format!("to function '{function}' is denied for user 'clerk'");
            assert!(fault.text.contains(&text), "{fault:?}");
            assert!(fault.text.contains("the role 'consume' for tube 'mail'"), "{fault:?}");
        }
        server.consumers("mail", 0).await;
        client.refused("queue.tube.mail:take", json!([0]), 42, "denied for user 'clerk'").await;
    }
}
