//! The audit over iproto: calls, expressions and native commands of operators and administrators.

use std::fs;

use serde_json::{Value, json};
use taskyard_core::access::{NamePattern, Role};
use taskyard_core::{
    Body, Command, Finish, FinishItem, Holder, NewTask, Reply, ScheduleCommand, ScheduleName,
    SessionId, Span, TaskId, Timestamp, TubeName,
};
use taskyard_iproto::{Operation, auth};
use taskyard_server::{AuditFile, Grant, Grants, Token, User, Users};

use crate::fixture::TestServer;
use crate::native::{execute, set_schedule};
use crate::roles::log_in;

const TOKEN: &str = "secret-0123456789";

/// The entries of a server, the oldest first.
async fn entries(server: &TestServer) -> Vec<Value> {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let request = client.get(format!("http://{}/v1/audit?limit=1000", server.http));
    let answer = request.bearer_auth(TOKEN).send().await.unwrap();
    let answer: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
    let mut entries = answer["entries"].as_array().unwrap().clone();
    entries.reverse();
    entries
}

fn tube(name: &str) -> TubeName {
    TubeName::new(name).unwrap()
}

#[tokio::test]
async fn a_call_of_an_operator_has_one_entry() {
    let server = TestServer::new().await;
    let mut client = server.with_tube("mail", "fifottl").await;
    let first = entries(&server).await;
    assert_eq!((first.len(), &first[0]["action"]), (1, &json!("create_tube")));
    client.done("queue.tube.mail:put_many", json!([[[1], [2], [3], [4]]])).await;
    client.done("queue.tube.mail:bury", json!([0])).await;
    client.done("queue.tube.mail:bury", json!([1])).await;
    client.done("queue.tube.mail:take", json!([0])).await;
    for (function, args, action, tasks) in [
        ("queue.tube.mail:kick", json!([5]), "kick", Some(2)),
        ("queue.tube.mail:delete", json!([3]), "delete", Some(1)),
        ("queue.tube.mail:release_all", json!([]), "release_all", Some(1)),
        ("queue.tube.mail:truncate", json!([]), "truncate", Some(3)),
        ("queue.semaphore.create", json!(["gpu", { "active": 1 }]), "set_semaphore", None),
        ("queue.semaphore.drop", json!(["gpu"]), "drop_semaphore", None),
        ("queue.cfg", json!([{ "ttr": 5 }]), "configure_sessions", None),
        ("queue.tube.mail:drop", json!([]), "drop_tube", Some(0)),
    ] {
        let before = entries(&server).await.len();
        client.done(function, args).await;
        let found = entries(&server).await;
        assert_eq!(found.len(), before + 1, "{function}");
        let entry = &found[before];
        assert_eq!((&entry["action"], &entry["outcome"]), (&json!(action), &json!("done")));
        assert_eq!(entry["tasks"].as_u64(), tasks, "{entry}");
        assert_eq!((&entry["user"], &entry["protocol"]), (&json!("guest"), &json!("iproto")));
        assert_eq!(entry["address"], "127.0.0.1");
    }
}

#[tokio::test]
async fn the_work_of_producers_and_consumers_has_no_entry() {
    let server = TestServer::new().await;
    let mut client = server.with_tube("mail", "fifottl").await;
    let before = entries(&server).await.len();
    client.done("queue.tube.mail:put_many", json!([[[1], [2], [3], [4], [5]]])).await;
    client.done("queue.tube.mail:take_many", json!([5, 0])).await;
    client.done("queue.tube.mail:touch", json!([0, 9])).await;
    client.done("queue.tube.mail:ack", json!([0])).await;
    client.done("queue.tube.mail:release", json!([1])).await;
    // The method of Tarantool's queue names no delivery: consumers call it, too.
    client.done("queue.tube.mail:bury", json!([2])).await;
    client.done("queue.tube.mail:fail", json!([3, "no route"])).await;
    client.done("queue.tube.mail:peek", json!([1])).await;
    client.done("queue.create_tube", json!(["mail", "fifottl", { "if_not_exists": true }])).await;
    assert_eq!(entries(&server).await.len(), before);
}

// Commands of one request that join a session are sent on another path.
#[tokio::test]
async fn each_audited_command_of_a_native_batch_has_an_entry() {
    let server = TestServer::new().await;
    let mut client = server.with_tube("mail", "fifottl").await;
    client.done("queue.tube.mail:put_many", json!([[[1], [2]]])).await;
    let bury = FinishItem { id: TaskId(0), holder: Holder::Any, finish: Finish::Bury };
    let commands = [
        Command::JoinSession { session: SessionId([7; 16]), create: true },
        Command::Finish { tube: tube("mail"), items: vec![bury], show: false },
        Command::Tubes { tube: None },
        Command::Delete { tube: tube("mail"), ids: vec![TaskId(0), TaskId(1)], show: false },
        Command::DropTube { tube: tube("none") },
    ];
    let before = entries(&server).await.len();
    execute(&mut client, &commands).await;
    let found = entries(&server).await.split_off(before);
    let shown: Vec<_> = found
        .iter()
        .map(|entry| (entry["action"].as_str(), entry["tasks"].as_u64(), entry["outcome"].as_str()))
        .collect();
    let expected = [
        (Some("bury"), Some(1), Some("done")),
        (Some("delete"), Some(2), Some("done")),
        (Some("drop_tube"), None, Some("failed")),
    ];
    assert_eq!(shown, expected);
}

// Over iproto the number of tasks was missing. Those that commands of the same batch put are counted.
#[tokio::test]
async fn the_tasks_of_a_truncated_and_of_a_dropped_tube_are_counted() {
    let server = TestServer::new().await;
    let mut client = server.with_tube("mail", "fifottl").await;
    client.done("queue.tube.mail:put", json!([1])).await;
    let tasks = || vec![NewTask::new(Body::new(b"\x01")), NewTask::new(Body::new(b"\x02"))];
    let put = || Command::Put { tube: tube("mail"), tasks: tasks(), wait: Span::ZERO };
    let commands = [
        put(),
        Command::Truncate { tube: tube("mail") },
        put(),
        Command::ReleaseAll { tube: tube("mail") },
        Command::DropTube { tube: tube("mail") },
        Command::Truncate { tube: tube("mail") },
    ];
    let before = entries(&server).await.len();
    let replies = execute(&mut client, &commands).await;
    assert_eq!(replies.len(), commands.len());
    assert!(matches!(&replies[2], Ok(Reply::Put(placed)) if placed.len() == 2), "{replies:?}");
    let found = entries(&server).await.split_off(before);
    let shown: Vec<_> = found
        .iter()
        .map(|entry| (entry["action"].as_str(), entry["tasks"].as_u64(), entry["outcome"].as_str()))
        .collect();
    let expected = [
        (Some("truncate"), Some(3), Some("done")),
        (Some("release_all"), Some(0), Some("done")),
        (Some("drop_tube"), Some(2), Some("done")),
        (Some("truncate"), None, Some("failed")),
    ];
    assert_eq!(shown, expected);
}

// An operator takes no tasks, so what the operator buries is not the user's own delivery.
#[tokio::test]
async fn a_bury_of_an_operator_has_an_entry() {
    let user = |name: &str, roles: &[Role]| {
        let names = vec![NamePattern::new("*").unwrap()];
        User::new(name, "password-of-all", Grants::List(vec![Grant::roles(roles, names)]))
    };
    let server = TestServer::with_all(|config| {
        let both = user("both", &[Role::Operate, Role::Consume]);
        config.users = Users::new(vec![
            user("olga", &[Role::Operate]),
            user("carl", &[Role::Consume]),
            both,
            user("rita", &[Role::Read]),
        ]);
        config.token = Token::new(TOKEN).ok();
    })
    .await;
    let mut admin = log_in(&server, "admin", TOKEN).await;
    admin.done("queue.create_tube", json!(["mail", "fifottl"])).await;
    admin.done("queue.tube.mail:put", json!([1])).await;
    for (name, outcome) in
        [("olga", Some("done")), ("carl", None), ("both", None), ("rita", Some("refused"))]
    {
        let mut client = log_in(&server, name, "password-of-all").await;
        let before = entries(&server).await.len();
        assert_eq!(client.call("queue.tube.mail:bury", json!([0])).await.is_ok(), name != "rita");
        let entry = entries(&server).await.split_off(before).pop();
        assert_eq!(entry.as_ref().map(|entry| entry["outcome"].as_str().unwrap()), outcome);
        if let Some(entry) = entry {
            assert_eq!((entry["action"].as_str(), &entry["user"]), (Some("bury"), &json!(name)));
        }
    }
}

// The tasks that an administrator puts by firing a schedule.
#[tokio::test]
async fn a_fired_schedule_has_an_entry() {
    let server = TestServer::new().await;
    let mut client = server.with_tube("mail", "fifottl").await;
    execute(&mut client, &[set_schedule("nightly", "mail")]).await;
    let name = ScheduleName::new("nightly").unwrap();
    let expected = Timestamp::from_micros(1);
    let fire = ScheduleCommand::Fire { name, expected, next: None, puts: Vec::new(), skipped: 0 };
    execute(&mut client, &[Command::Schedule(Box::new(fire))]).await;
    let entry = entries(&server).await.pop().unwrap();
    assert_eq!((&entry["action"], &entry["target"]), (&json!("run_schedule"), &json!("nightly")));
    assert_eq!((&entry["tasks"], &entry["outcome"]), (&json!(0), &json!("done")));
}

#[tokio::test]
async fn an_expression_that_changes_something_has_an_entry() {
    let server = TestServer::new().await;
    let mut client = server.connect().await;
    client.eval("tube = queue.create_tube('mail', 'fifottl')", json!([])).await.unwrap();
    client.eval("return tube:put('a')", json!([])).await.unwrap();
    client.eval("return tube:truncate()", json!([])).await.unwrap();
    let entries = entries(&server).await;
    let actions: Vec<_> = entries.iter().map(|entry| entry["action"].as_str().unwrap()).collect();
    assert_eq!(actions, ["create_tube", "truncate"]);
}

#[tokio::test]
async fn a_refused_call_has_an_entry_and_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    let names = vec![NamePattern::new("mail*").unwrap()];
    let grants = Grants::List(vec![Grant::roles(&[Role::Produce], names)]);
    let server = TestServer::with_all(|config| {
        config.users = Users::new(vec![User::new("ann", "password-of-ann", grants)]);
        config.token = Token::new(TOKEN).ok();
        config.audit = AuditFile::open(&path).ok();
    })
    .await;
    let mut client = server.connect().await;
    let scramble = Some(auth::scramble("password-of-ann", &client.greeting.salt));
    client.execute(&Operation::Auth { user: "ann", scramble }).await.unwrap();
    for (function, args, action) in [
        ("queue.tube.mail:kick", json!([5]), "kick"),
        ("queue.tube.orders:truncate", json!([]), "truncate"),
        ("queue.create_tube", json!(["mail", "fifottl"]), "create_tube"),
        ("queue.cfg", json!([{}]), "configure_sessions"),
    ] {
        assert!(client.call(function, args).await.is_err());
        let entry = entries(&server).await.pop().unwrap();
        assert_eq!((&entry["action"], &entry["outcome"]), (&json!(action), &json!("refused")));
        assert_eq!((&entry["user"], &entry["protocol"]), (&json!("ann"), &json!("iproto")));
    }
    assert!(client.call("queue.tube.mail:take", json!([0])).await.is_err());
    assert_eq!(entries(&server).await.len(), 4, "a take is not audited");
    // An action that is done has its line before its answer.
    let mut admin = server.connect().await;
    let scramble = Some(auth::scramble(TOKEN, &admin.greeting.salt));
    admin.execute(&Operation::Auth { user: "admin", scramble }).await.unwrap();
    admin.done("queue.create_tube", json!(["orders", "fifottl"])).await;
    let text = fs::read_to_string(&path).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((lines.len(), &lines[4]["user"]), (5, &json!("admin")));
}

// A client read the schedule and put what it was shown: the entry of the run was missing.
#[tokio::test]
async fn a_run_of_a_schedule_has_an_entry() {
    let grants = || {
        let names = vec![NamePattern::new("mail").unwrap()];
        Grants::List(vec![Grant::roles(&[Role::Produce], names)])
    };
    let server = TestServer::with_all(|config| {
        config.users = Users::new(vec![User::new("ann", "password-of-ann", grants())]);
        config.token = Token::new(TOKEN).ok();
    })
    .await;
    let mut admin = server.connect().await;
    let scramble = Some(auth::scramble(TOKEN, &admin.greeting.salt));
    admin.execute(&Operation::Auth { user: "admin", scramble }).await.unwrap();
    for tube in ["mail", "orders"] {
        admin.done("queue.create_tube", json!([tube, "fifottl"])).await;
    }
    assert!(execute(&mut admin, &[set_schedule("mail", "mail")]).await[0].is_ok());
    let mut client = server.connect().await;
    let scramble = Some(auth::scramble("password-of-ann", &client.greeting.salt));
    client.execute(&Operation::Auth { user: "ann", scramble }).await.unwrap();
    for (name, outcome, tasks) in [
        ("mail", "done", Some(1)),
        // The pattern of the user does not match the name.
        ("orders", "refused", None),
    ] {
        let run = client.call("taskyard.run_schedule", json!([name])).await;
        assert_eq!(run.is_ok(), outcome == "done", "{run:?}");
        let entry = entries(&server).await.pop().unwrap();
        assert_eq!(
            (&entry["action"], &entry["outcome"]),
            (&json!("run_schedule"), &json!(outcome))
        );
        assert_eq!((&entry["user"], &entry["target"]), (&json!("ann"), &json!(name)));
        assert_eq!(entry["tasks"].as_u64(), tasks);
    }
    // A schedule that is visible, with a tube into which the user may not put.
    execute(&mut admin, &[set_schedule("mail", "orders")]).await;
    client.refused("taskyard.run_schedule", json!(["mail"]), 42, "the role 'produce' for").await;
    assert_eq!(entries(&server).await.pop().unwrap()["outcome"], "refused");
    admin.done("taskyard.run_schedule", json!(["none"])).await;
    let entry = entries(&server).await.pop().unwrap();
    assert_eq!((&entry["outcome"], &entry["user"]), (&json!("failed"), &json!("admin")));
    let task = admin.done("queue.tube.mail:take", json!([0])).await;
    assert_eq!(task[0][2], "x");
}
