//! The audit over HTTP: one entry for each action of an operator or administrator, and none for the
//! work of producers and consumers.

use std::fs;
use std::path::Path;

use reqwest::Method;
use serde_json::{Value, json};
use taskyard_core::access::{NamePattern, Role};
use taskyard_core::limits::{
    AUDIT_ENTRIES_MAX, AUDIT_LINE_BYTES_MAX, AUDIT_REFUSED_PER_MINUTE_MAX,
};
use taskyard_server::{AuditFile, Grant, Grants, Token, User, Users};

use crate::fixture::{Answer, Fixture, post_bytes};

const TOKEN: &str = "the-token-of-the-server";

/// The entries that a server shows, the oldest first.
async fn entries(fixture: &Fixture) -> Vec<Value> {
    let request = fixture.request(Method::GET, "/v1/audit?limit=1000").bearer_auth(TOKEN);
    let answer = Answer::of(request.send().await.unwrap()).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let mut entries = answer.body["entries"].as_array().unwrap().clone();
    entries.reverse();
    entries
}

/// Sends a request, and returns the only entry that it has added.
async fn entry_of(fixture: &Fixture, method: Method, path: &str, body: Value) -> Value {
    let before = entries(fixture).await.len();
    fixture.send(method, path, body).await;
    let mut entries = entries(fixture).await;
    assert_eq!(entries.len(), before + 1, "{path}: {:?}", entries.last());
    entries.pop().unwrap()
}

/// Puts this many tasks, takes them, and returns the deliveries.
async fn taken(fixture: &Fixture, tube: &str, count: u64) -> Vec<Value> {
    let tasks: Vec<_> = (0..count).map(|number| json!({ "data": number })).collect();
    fixture.done(&format!("/v1/tubes/{tube}/put"), json!({ "tasks": tasks })).await;
    let taken = fixture.done(&format!("/v1/tubes/{tube}/take"), json!({ "count": count })).await;
    taken["tasks"].as_array().unwrap().clone()
}

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn an_action_on_tasks_has_one_entry_with_their_number() {
    let fixture = Fixture::new().await;
    taken(&fixture, "mail", 6).await;
    let (post, tube) = (Method::POST, "/v1/tubes/mail");
    for (path, body, action, tasks, ids) in [
        ("tasks/release", json!({ "ids": [0, 99] }), "release", Some(1), Some(2)),
        ("tasks/bury", json!({ "ids": [1, 2] }), "bury", Some(2), Some(2)),
        ("bury", json!({ "id": 3 }), "bury", Some(1), Some(1)),
        ("kick", json!({ "count": 2 }), "kick", Some(2), None),
        ("tasks/kick", json!({ "ids": [1, 2, 3] }), "kick", Some(1), Some(3)),
        ("ack", json!({ "id": 4 }), "ack", Some(1), Some(1)),
        ("touch", json!({ "id": 5, "seconds": 9 }), "touch", Some(1), Some(1)),
        ("release-all", json!({}), "release_all", Some(1), None),
        ("delete", json!({ "ids": [5, 99] }), "delete", Some(1), Some(2)),
        ("tasks/delete", json!({ "ids": [99] }), "delete", Some(0), Some(1)),
        ("truncate", json!({}), "truncate", Some(4), None),
    ] {
        let entry = entry_of(&fixture, post.clone(), &format!("{tube}/{path}"), body).await;
        assert_eq!(entry["action"], action, "{entry}");
        assert_eq!((entry["tasks"].as_u64(), entry["ids"].as_u64()), (tasks, ids), "{entry}");
        assert_eq!(entry["outcome"], "done", "{entry}");
        assert_eq!((&entry["user"], &entry["address"]), (&json!("guest"), &json!("127.0.0.1")));
        assert_eq!((&entry["target_kind"], &entry["target"]), (&json!("tube"), &json!("mail")));
        assert_eq!(entry["protocol"], "http");
    }
}

#[tokio::test]
async fn an_action_on_a_tube_semaphore_or_schedule_has_one_entry() {
    let fixture = Fixture::new().await;
    let (put, post, patch) = (Method::PUT, Method::POST, Method::PATCH);
    let schedule = || json!({ "tube": "a", "every": 3600, "task": { "data": "secret" } });
    for (method, path, body, action, kind) in [
        (put.clone(), "/v1/tubes/a", json!({}), "create_tube", "tube"),
        (patch.clone(), "/v1/tubes/a", json!({ "paused": true }), "pause_tube", "tube"),
        (patch.clone(), "/v1/tubes/a", json!({ "paused": false }), "resume_tube", "tube"),
        (patch, "/v1/tubes/a", json!({ "pri": 3 }), "alter_tube", "tube"),
        (put.clone(), "/v1/semaphores/a", json!({ "active": 2 }), "set_semaphore", "semaphore"),
        (Method::DELETE, "/v1/semaphores/a", json!({}), "drop_semaphore", "semaphore"),
        (put.clone(), "/v1/schedules/a", schedule(), "set_schedule", "schedule"),
        (post.clone(), "/v1/schedules/a/pause", json!({}), "pause_schedule", "schedule"),
        (post.clone(), "/v1/schedules/a/resume", json!({}), "resume_schedule", "schedule"),
        (post.clone(), "/v1/schedules/a/run", json!({}), "run_schedule", "schedule"),
        (Method::DELETE, "/v1/schedules/a", json!({}), "remove_schedule", "schedule"),
        (post, "/v1/tubes/a/name", json!({ "name": "a" }), "name_tube", "tube"),
        (Method::DELETE, "/v1/tubes/a", json!({}), "drop_tube", "tube"),
    ] {
        let entry = entry_of(&fixture, method, path, body).await;
        assert_eq!((&entry["action"], &entry["outcome"]), (&json!(action), &json!("done")));
        assert_eq!((&entry["target_kind"], &entry["target"]), (&json!(kind), &json!("a")));
        assert!(!entry.to_string().contains("secret"), "{entry}");
    }
    let entries = entries(&fixture).await;
    let find = |action: &str| entries.iter().find(|one| one["action"] == action).unwrap();
    assert_eq!(find("alter_tube")["detail"], "pri 3");
    assert_eq!(find("set_semaphore")["detail"], "active 2");
    assert_eq!(find("run_schedule")["tasks"], 1);
    // The tube existed: nothing has changed.
    fixture.done("/v1/tubes/b/put", json!({ "data": 1 })).await;
    let before = self::entries(&fixture).await.len();
    fixture.send(put, "/v1/tubes/b", json!({ "if_not_exists": true })).await;
    assert_eq!(self::entries(&fixture).await.len(), before);
    let last = self::entries(&fixture).await.pop().unwrap();
    assert_eq!((&last["action"], &last["target"]), (&json!("create_tube"), &json!("b")));
}

#[tokio::test]
async fn the_work_of_producers_and_consumers_has_no_entry() {
    let fixture = Fixture::new().await;
    fixture.send(Method::PUT, "/v1/tubes/mail", json!({})).await;
    fixture.send(Method::PUT, "/v1/semaphores/mail", json!({ "active": 1 })).await;
    let before = entries(&fixture).await.len();
    let held = taken(&fixture, "mail", 6).await;
    let own = |number: usize| {
        let (id, lease) = (&held[number]["id"], &held[number]["lease"]);
        json!({ "id": id, "lease": lease })
    };
    let with = |number: usize, name: &str, value: Value| {
        let mut body = own(number);
        body[name] = value;
        body
    };
    for (path, body) in [
        ("tubes/mail/touch", with(0, "seconds", json!(60))),
        ("tubes/mail/ack", own(0)),
        ("tubes/mail/release", own(1)),
        ("tubes/mail/bury", own(2)),
        ("tubes/mail/fail", with(3, "error", json!("no route"))),
        ("tubes/mail/finish", json!({ "tasks": [with(4, "verb", json!("ack"))] })),
        ("tubes/mail/peek", json!({ "ids": [1] })),
        ("tubes/mail/tasks/delete", json!({ "filter": {}, "dry_run": true })),
        ("semaphores/mail/enqueue", json!({ "tasks": [{ "task": 7, "priority": 1 }] })),
        ("semaphores/mail/finish", json!({ "items": [{ "task": 7 }] })),
    ] {
        fixture.done(&format!("/v1/{path}"), body).await;
    }
    for path in ["/v1/stats", "/v1/tubes/mail/tasks", "/v1/workers", "/metrics"] {
        fixture.text(path).await;
    }
    assert_eq!(entries(&fixture).await.len(), before);
}

// A filter is applied in many commands, and a client repeats its request until no task follows.
#[tokio::test]
async fn an_action_by_a_filter_has_one_entry_for_each_request_with_the_total() {
    let fixture = Fixture::new().await;
    let word = |number: u32| if number.is_multiple_of(2) { "even" } else { "odd" };
    let tasks: Vec<_> = (0..2_500).map(|number| json!({ "data": word(number) })).collect();
    fixture.done("/v1/tubes/mail/put", json!({ "tasks": tasks })).await;
    let before = entries(&fixture).await.len();
    let path = "/v1/tubes/mail/tasks/bury";
    let (mut after, mut requests) = (Value::Null, 0);
    loop {
        let mut body = json!({ "filter": { "match": "even" } });
        if let Value::String(after) = &after {
            body["after"] = json!(after);
        }
        after = fixture.done(path, body).await["next"].clone();
        requests += 1;
        if after.is_null() {
            break;
        }
    }
    let found = entries(&fixture).await.split_off(before);
    assert!(found.len() <= requests && found.len() > 1, "{} {requests}", found.len());
    let total: u64 = found.iter().map(|entry| entry["tasks"].as_u64().unwrap()).sum();
    assert_eq!(total, 1_250);
    assert_eq!(found[0]["filter"], r#"{"match":"even"}"#);
    // A request that only searches on has no entry; the first one always has.
    let entry = entry_of(&fixture, Method::POST, path, json!({ "filter": { "match": "none" } }));
    assert_eq!(entry.await["tasks"], 0);
    let before = entries(&fixture).await.len();
    fixture.done(path, json!({ "filter": { "match": "none" }, "after": "100" })).await;
    assert_eq!(entries(&fixture).await.len(), before);
}

#[tokio::test]
async fn a_failed_action_has_an_entry_with_the_error() {
    let fixture = Fixture::new().await;
    let entry = entry_of(&fixture, Method::DELETE, "/v1/tubes/none", json!({})).await;
    assert_eq!((&entry["action"], &entry["outcome"]), (&json!("drop_tube"), &json!("failed")));
    assert!(entry["error"].as_str().unwrap().contains("'none'"), "{entry}");
    let filter = json!({ "filter": { "match": "x" } });
    let entry = entry_of(&fixture, Method::POST, "/v1/tubes/none/tasks/delete", filter).await;
    assert_eq!(entry["outcome"], "failed", "{entry}");
    let entry = entry_of(&fixture, Method::POST, "/v1/schedules/none/run", json!({})).await;
    assert_eq!((&entry["action"], &entry["outcome"]), (&json!("run_schedule"), &json!("failed")));
}

/// A server with a user of this role for tubes `mail*`.
async fn with_user(role: Role, file: Option<AuditFile>) -> Fixture {
    let names = vec![NamePattern::new("mail*").unwrap()];
    let grants = Grants::List(vec![Grant::roles(&[role], names)]);
    Fixture::with(|config| {
        config.users = Users::new(vec![User::with_token("ann", "token-of-ann-0123", grants)]);
        config.token = Token::new(TOKEN).ok();
        config.audit = file;
    })
    .await
}

async fn send_as_ann(fixture: &Fixture, method: Method, path: &str, body: &Value) -> Answer {
    let request = fixture.request(method, path).bearer_auth("token-of-ann-0123").json(body);
    Answer::of(request.send().await.unwrap()).await
}

#[tokio::test]
async fn a_refused_attempt_has_an_entry() {
    let fixture = with_user(Role::Operate, None).await;
    let post = Method::POST;
    for (method, path, body, action, name) in [
        // Refused by the endpoint, and by the command.
        (Method::DELETE, "/v1/tubes/mail", json!({}), "drop_tube", "mail"),
        (post.clone(), "/v1/tubes/orders/truncate", json!({}), "truncate", "orders"),
        (post.clone(), "/v1/tubes/orders/tasks/kick", json!({ "ids": [1] }), "kick", "orders"),
        (Method::PATCH, "/v1/tubes/mail", json!({ "pri": 1 }), "alter_tube", "mail"),
        (post.clone(), "/v1/schedules/orders/run", json!({}), "run_schedule", "orders"),
    ] {
        let before = entries(&fixture).await.len();
        send_as_ann(&fixture, method, path, &body).await.refused(403, "forbidden");
        let entry = entries(&fixture).await.pop().unwrap();
        assert_eq!(entries(&fixture).await.len(), before + 1);
        assert_eq!((&entry["outcome"], &entry["action"]), (&json!("refused"), &json!(action)));
        assert_eq!((&entry["user"], &entry["target"]), (&json!("ann"), &json!(name)));
        assert!(entry["error"].as_str().unwrap().contains("the role '"), "{entry}");
    }
    let before = entries(&fixture).await.len();
    let put = json!({ "data": 1 });
    send_as_ann(&fixture, post, "/v1/tubes/mail/put", &put).await.refused(403, "forbidden");
    assert_eq!(entries(&fixture).await.len(), before, "a put is not audited");
    // Only an administrator of all names sees the entries.
    let request = fixture.request(Method::GET, "/v1/audit").bearer_auth("token-of-ann-0123");
    Answer::of(request.send().await.unwrap()).await.refused(403, "forbidden");
    let request = fixture.request(Method::GET, "/v1/audit");
    Answer::of(request.send().await.unwrap()).await.refused(401, "unauthorized");
}

#[tokio::test]
async fn many_refused_attempts_are_counted_instead() {
    let fixture = with_user(Role::Produce, None).await;
    for _ in 0..AUDIT_REFUSED_PER_MINUTE_MAX + 3 {
        send_as_ann(&fixture, Method::POST, "/v1/tubes/mail/kick", &json!({})).await;
    }
    assert_eq!(entries(&fixture).await.len() as u64, AUDIT_REFUSED_PER_MINUTE_MAX);
}

#[tokio::test]
async fn every_entry_is_a_line_of_the_file_and_hostile_texts_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    let fixture = Fixture::with(|config| config.audit = AuditFile::open(&path).ok()).await;
    fixture.done("/v1/tubes/mail/put", json!({ "data": "secret of the payload" })).await;
    let hostile = "\u{1}\n\"\u{202e}<script>".repeat(10_000);
    let filter = json!({ "match": hostile, "error": hostile, "worker": "w" });
    let body = json!({ "filter": filter });
    let entry = entry_of(&fixture, Method::POST, "/v1/tubes/mail/tasks/delete", body).await;
    assert_eq!(entry["outcome"], "done", "{entry}");
    entry_of(&fixture, Method::POST, "/v1/tubes/mail/truncate", json!({})).await;
    assert_eq!(lines(&path), entries(&fixture).await);
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.lines().all(|line| line.len() < AUDIT_LINE_BYTES_MAX));
    assert!(text.chars().all(|char| char == '\n' || (char >= ' ' && char != '\u{202e}')));
    assert!(!text.contains("secret"), "{text}");
    assert_eq!(fixture.metric("taskyard_audit_entries_total").await, 3);
    assert_eq!(fixture.metric("taskyard_audit_errors_total").await, 0);
}

// The operator must be able to make room on a full disk.
#[tokio::test]
async fn an_action_is_done_although_its_entry_cannot_be_written() {
    let file = AuditFile::open(Path::new("/dev/full")).unwrap();
    let fixture = Fixture::with(|config| config.audit = Some(file)).await;
    fixture.done("/v1/tubes/mail/put", json!({ "data": 1 })).await;
    fixture.done("/v1/tubes/mail/truncate", json!({})).await;
    assert_eq!(fixture.metric("taskyard_audit_errors_total").await, 2);
    assert_eq!(fixture.get("/v1/audit").await.body["errors"], 2);
    assert_eq!(entries(&fixture).await.len(), 2, "the page and the log have them");
}

#[tokio::test]
async fn the_latest_entries_are_kept_and_listed_from_the_newest_on() {
    let fixture = Fixture::new().await;
    fixture.done("/v1/tubes/mail/put", json!({ "data": 1 })).await;
    for _ in 0..AUDIT_ENTRIES_MAX + 5 {
        fixture.done("/v1/tubes/mail/name", json!({ "name": "mail" })).await;
    }
    let all = entries(&fixture).await;
    assert_eq!(all.len(), AUDIT_ENTRIES_MAX);
    assert!(all.iter().all(|entry| entry["action"] == "name_tube"), "the first one is gone");
    let times: Vec<_> = all.iter().map(|entry| entry["time"].as_str().unwrap()).collect();
    assert!(times.is_sorted());
    let two = fixture.get("/v1/audit?limit=2").await.body;
    assert_eq!(two["entries"].as_array().unwrap().len(), 2);
    assert_eq!(two["entries"][0], all[AUDIT_ENTRIES_MAX - 1]);
    for limit in ["0", "1001", "x"] {
        fixture.get(&format!("/v1/audit?limit={limit}")).await.refused(400, "invalid");
    }
}

// A client could avoid its entry by closing the connection before the answer.
#[tokio::test]
async fn a_client_that_does_not_wait_for_the_answer_has_an_entry() {
    let fixture = Fixture::new().await;
    fixture.done("/v1/tubes/mail/put", json!({ "data": 1 })).await;
    for _ in 0..20 {
        let before = entries(&fixture).await.len();
        drop(fixture.raw(&post_bytes("/v1/tubes/mail/truncate", "{}")).await);
        // Whether the server had read the request when the connection was closed is not certain;
        // it answers the next one after it.
        while entries(&fixture).await.len() == before {
            tokio::task::yield_now().await;
        }
        let entry = entries(&fixture).await.pop().unwrap();
        assert_eq!(entry["action"], "truncate");
        assert!(entry["outcome"] == "done" || entry["outcome"] == "unknown", "{entry}");
    }
}
