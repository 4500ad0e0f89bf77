//! Unique keys of tasks over HTTP.

use std::sync::Arc;

use reqwest::Method;
use serde_json::{Value, json};
use taskyard_core::{Body, Command, Error, Timestamp};
use taskyard_engine::{Engine, Settings, SystemClock};
use taskyard_store::{BodyKey, Capabilities, Executed, MemoryStore, Pending, Store, StoreTime};

use crate::fixture::Fixture;

const PUT: &str = "/v1/tubes/mail/put";
const TASKS: &str = "/v1/tubes/mail/tasks";

async fn put(fixture: &Fixture, task: Value) -> Value {
    fixture.done(PUT, task).await["tasks"][0].clone()
}

async fn show(fixture: &Fixture, id: u64) -> Value {
    fixture.get(&format!("{TASKS}/{id}")).await.body
}

#[tokio::test]
async fn a_held_key_adds_nothing() {
    let fixture = Fixture::new().await;
    let first = put(&fixture, json!({ "data": 1, "key": "a", "delay": 60 })).await;
    assert_eq!(first, json!({ "id": 0, "state": "delayed" }), "a new task is not existing");
    let again = put(&fixture, json!({ "data": 2, "key": "a", "on_conflict": "keep" })).await;
    assert_eq!(again, json!({ "id": 0, "state": "delayed", "existing": true }));
    let shown = show(&fixture, 0).await;
    assert_eq!((&shown["data"], &shown["key"]), (&json!(1), &json!("a")));
    let stats = fixture.get("/v1/tubes/mail").await.body;
    assert_eq!(
        (&stats["calls"]["put"], &stats["tasks"]["total"]),
        (&json!(1), &json!(1)),
        "{stats}"
    );
}

#[tokio::test]
async fn replace_changes_a_task_that_is_not_taken() {
    let fixture = Fixture::new().await;
    put(&fixture, json!({ "data": 1, "key": "a", "delay": 60 })).await;
    let replace = json!({ "data": { "n": 2 }, "key": "a", "pri": 7, "on_conflict": "replace" });
    let replaced = put(&fixture, replace.clone()).await;
    assert_eq!(replaced, json!({ "id": 0, "state": "ready", "existing": true }));
    let shown = show(&fixture, 0).await;
    assert_eq!((&shown["data"], &shown["pri"]), (&json!({ "n": 2 }), &json!(7)));
    fixture.done("/v1/tubes/mail/take", json!({})).await;
    let kept = put(&fixture, replace).await;
    assert_eq!(kept, json!({ "id": 0, "state": "taken", "existing": true }));
}

/// A delayed task that a replace makes ready is delivered to a consumer that waits.
#[tokio::test]
async fn a_replace_wakes_a_waiting_consumer() {
    let fixture = Fixture::new().await;
    put(&fixture, json!({ "data": 1, "key": "a", "delay": 60 })).await;
    let take = fixture.request(Method::POST, "/v1/tubes/mail/take").json(&json!({ "wait": 60 }));
    let take = tokio::spawn(take.send());
    fixture.consumers("mail", 1).await;
    // A put that adds nothing leaves the consumer waiting.
    put(&fixture, json!({ "data": 2, "key": "a" })).await;
    fixture.consumers("mail", 1).await;
    put(&fixture, json!({ "data": 3, "key": "a", "on_conflict": "replace" })).await;
    let taken: Value = take.await.unwrap().unwrap().json().await.unwrap();
    assert_eq!((&taken["tasks"][0]["id"], &taken["tasks"][0]["data"]), (&json!(0), &json!(3)));
}

#[tokio::test]
async fn a_key_stays_held_after_the_end() {
    let fixture = Fixture::new().await;
    put(&fixture, json!({ "data": 1, "key": "long", "unique_for": 600 })).await;
    put(&fixture, json!({ "data": 2, "key": "short" })).await;
    fixture.done("/v1/tubes/mail/delete", json!({ "ids": [0, 1] })).await;
    let held = put(&fixture, json!({ "data": 3, "key": "long", "on_conflict": "replace" })).await;
    assert_eq!(held, json!({ "id": 0, "state": "done", "existing": true }));
    assert_eq!(put(&fixture, json!({ "data": 4, "key": "short" })).await["id"], 2);
    let longest = json!({ "data": 5, "key": "longest", "unique_for": 604_800 });
    assert_eq!(put(&fixture, longest).await["id"], 3);
}

#[tokio::test]
async fn the_tasks_of_a_batch_are_handled_in_order() {
    let fixture = Fixture::new().await;
    let tasks = json!({ "tasks": [
        { "data": 1, "key": "a" },
        { "data": 2, "key": "a" },
        { "data": 3, "key": "b" },
        { "data": 4, "key": "a", "on_conflict": "replace" },
        { "data": 5 },
    ]});
    let placed = fixture.done(PUT, tasks).await;
    let of = |id: u64| json!({ "id": id, "state": "ready" });
    let held = json!({ "id": 0, "state": "ready", "existing": true });
    assert_eq!(placed["tasks"], json!([of(0), held, of(1), held, of(2)]));
    assert_eq!(show(&fixture, 0).await["data"], 4);
}

#[tokio::test]
async fn tasks_are_found_and_changed_by_key() {
    let fixture = Fixture::new().await;
    for n in 0..3 {
        put(&fixture, json!({ "data": n, "key": format!("k & {n}") })).await;
    }
    put(&fixture, json!({ "data": 3 })).await;
    let page = fixture.get(&format!("{TASKS}?key=k+%26+1")).await.body;
    assert_eq!(page["tasks"].as_array().unwrap().len(), 1, "{page}");
    let found = &page["tasks"][0];
    assert_eq!((&found["id"], &found["key"]), (&json!(1), &json!("k & 1")));
    let none = fixture.get(&format!("{TASKS}?key=other")).await.body;
    assert_eq!(none["tasks"], json!([]));
    let both = fixture.get(&format!("{TASKS}?key=k+%26+1&match=2")).await.body;
    assert_eq!(both["tasks"], json!([]), "a task meets all conditions");
    let chosen = json!({ "filter": { "key": "k & 1" } });
    let buried = fixture.done(&format!("{TASKS}/bury"), chosen.clone()).await;
    assert_eq!((&buried["matched"], &buried["changed"]), (&json!(1), &json!(1)));
    assert_eq!(show(&fixture, 1).await["state"], "buried");
    fixture.done(&format!("{TASKS}/delete"), chosen).await;
    let left = fixture.get(TASKS).await.body;
    let left: Vec<_> = left["tasks"].as_array().unwrap().iter().map(|task| &task["id"]).collect();
    assert_eq!(json!(left), json!([0, 2, 3]));
}

/// A wrong put names the field and leaves no tube behind.
#[tokio::test]
async fn wrong_keys_are_refused_with_the_field() {
    let fixture = Fixture::new().await;
    for (task, field) in [
        (json!({ "key": "" }), "'key'"),
        (json!({ "key": "x".repeat(129) }), "'key'"),
        (json!({ "key": "ж".repeat(65) }), "'key'"),
        (json!({ "key": "a\nb" }), "'key'"),
        (json!({ "key": "a", "unique_for": 604_801 }), "unique_for"),
        (json!({ "key": "a", "unique_for": -1 }), "'unique_for'"),
        (json!({ "key": "a", "on_conflict": "merge" }), "'on_conflict' is 'merge'; use keep"),
        (json!({ "unique_for": 60 }), "'unique_for' needs a 'key'"),
        (json!({ "on_conflict": "replace" }), "'on_conflict' needs a 'key'"),
    ] {
        let mut task = task;
        task["data"] = json!(1);
        for body in [task.clone(), json!({ "tasks": [{ "data": 0 }, task] })] {
            let refused = fixture.post(PUT, body.clone()).await;
            let message = refused.refused(400, "invalid");
            assert!(message.contains(field), "{body}: {message}");
        }
    }
    fixture.get("/v1/tubes/mail").await.refused(404, "tube_not_found");
    put(&fixture, json!({ "data": 1, "key": "x".repeat(128) })).await;
    for query in ["key=", "key=a&order=queue", &format!("key={}", "x".repeat(129))] {
        let answer = fixture.get(&format!("{TASKS}?{query}")).await;
        let message = answer.refused(400, "invalid");
        assert!(message.contains("key"), "{query}: {message}");
    }
    let empty = json!({ "filter": { "key": "" } });
    let answer = fixture.post(&format!("{TASKS}/delete"), empty).await;
    assert!(answer.refused(400, "invalid").contains("'key'"));
}

/// Frees a key before its time with every delete, as a tube does that remembers too many.
struct FreeingStore(MemoryStore);

impl Store for FreeingStore {
    fn execute(&self, now: Timestamp, commands: Vec<Command>) -> Pending<'_, Executed> {
        let is_delete = |command: &&Command| matches!(command, Command::Delete { .. });
        let freed = commands.iter().filter(is_delete).count() as u64;
        Box::pin(async move {
            let mut executed = self.0.execute(now, commands).await;
            executed.effects.keys_freed_early += freed;
            executed
        })
    }

    fn load(&self, keys: Vec<BodyKey>) -> Pending<'_, Vec<Result<Option<Body>, Error>>> {
        self.0.load(keys)
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn time(&self) -> Option<StoreTime> {
        self.0.time()
    }

    fn close(&self) -> Pending<'_, Result<(), Error>> {
        self.0.close()
    }
}

/// A tube that had more keys of ended tasks than it may remember freed some before their time, and nothing showed that.
#[tokio::test]
async fn keys_that_are_freed_early_are_counted() {
    let store = FreeingStore(MemoryStore::default());
    let clock = Arc::new(SystemClock::new());
    let engine = Engine::start(Box::new(store), clock, Settings::default());
    let fixture = Fixture::over(engine, |_| {}).await;
    assert_eq!(fixture.metric("taskyard_keys_freed_early_total").await, 0);
    for freed in 1..3 {
        let placed = put(&fixture, json!({ "data": 1, "key": "a" })).await;
        fixture.done("/v1/tubes/mail/delete", json!({ "ids": [placed["id"]] })).await;
        assert_eq!(fixture.metric("taskyard_keys_freed_early_total").await, freed);
    }
}
