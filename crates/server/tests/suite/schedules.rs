//! Schedules over HTTP.

use std::sync::{Arc, Mutex};

use reqwest::Method;
use serde_json::{Value, json};
use taskyard_core::{Body, Command, Error, ScheduleCommand, Span, Timestamp};
use taskyard_engine::{Engine, ManualClock, Settings};
use taskyard_server::Config;
use taskyard_store::{BodyKey, Capabilities, Executed, MemoryStore, Pending, Store, StoreTime};

use crate::fixture::{Answer, Fixture};

const START: i64 = 1_700_000_000;

/// A server whose clock the test moves, with the tube `jobs`.
struct ScheduleServer {
    fixture: Fixture,
    clock: Arc<ManualClock>,
    asked: Arc<Mutex<Vec<String>>>,
}

/// Notes the commands for schedules.
struct ScheduleStore {
    memory: MemoryStore,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Store for ScheduleStore {
    fn execute(&self, now: Timestamp, commands: Vec<Command>) -> Pending<'_, Executed> {
        for command in &commands {
            let Command::Schedule(command) = command else { continue };
            let asked = match &**command {
                ScheduleCommand::Due { .. } => continue,
                ScheduleCommand::List { limit, .. } => format!("{} {limit}", command.verb()),
                _ => command.verb().to_owned(),
            };
            self.asked.lock().unwrap().push(asked);
        }
        self.memory.execute(now, commands)
    }

    fn load(&self, keys: Vec<BodyKey>) -> Pending<'_, Vec<Result<Option<Body>, Error>>> {
        self.memory.load(keys)
    }

    fn capabilities(&self) -> Capabilities {
        self.memory.capabilities()
    }

    fn time(&self) -> Option<StoreTime> {
        self.memory.time()
    }

    fn close(&self) -> Pending<'_, Result<(), Error>> {
        self.memory.close()
    }
}

impl ScheduleServer {
    async fn new() -> Self {
        Self::with(|_| {}).await
    }

    async fn with(change: impl FnOnce(&mut Config)) -> Self {
        let clock = Arc::new(ManualClock::new(Timestamp::from_micros(START * 1_000_000)));
        let asked = Arc::<Mutex<_>>::default();
        let store = ScheduleStore { memory: MemoryStore::default(), asked: asked.clone() };
        let engine = Engine::start(Box::new(store), clock.clone(), Settings::default());
        let fixture = Fixture::over(engine, change).await;
        fixture.send(Method::PUT, "/v1/tubes/jobs", json!({})).await;
        ScheduleServer { fixture, clock, asked }
    }

    /// The commands for schedules since the last call.
    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }

    async fn set(&self, name: &str, fields: Value) -> Answer {
        let mut body = json!({ "tube": "jobs", "task": { "data": name } });
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        self.fixture.send(Method::PUT, &format!("/v1/schedules/{name}"), body).await
    }

    async fn get(&self, path: &str) -> Value {
        let answer = self.fixture.get(path).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer.body
    }

    /// Moves the clock; returns when the engine has done what is due.
    async fn pass(&self, seconds: u64) {
        self.clock.advance(Span::from_secs(seconds));
        self.fixture.engine.waiting().await;
    }
}

#[tokio::test]
async fn a_schedule_is_set_shown_fired_and_removed() {
    let server = ScheduleServer::new().await;
    let options = json!({ "cron": "30 9 * * 1-5", "zone": "Europe/Berlin", "catch_up": "last" });
    let set = server.set("daily", options).await;
    // 1,700,000,000 is 2023-11-14 22:13:20 UTC; the next day is a Wednesday.
    let next = 1_700_037_000.0;
    let expected = json!({
        "name": "daily", "tube": "jobs", "task": { "data": "daily" }, "cron": "30 9 * * 1-5",
        "zone": "Europe/Berlin", "catch_up": "last", "overlap": "allow", "paused": false,
        "next": next, "fired": 0, "skipped": 0, "created": true,
    });
    assert_eq!((set.status, &set.body), (200, &expected));
    let mut shown = expected;
    shown.as_object_mut().unwrap().remove("created");
    assert_eq!(server.get("/v1/schedules/daily").await, shown);
    let times = server.get("/v1/schedules/daily/next?count=4").await;
    let day = 86_400.0;
    assert_eq!(times["times"], json!([next, next + day, next + 2.0 * day, next + 5.0 * day]));
    server.pass((next as i64 - START) as u64).await;
    let fired = server.get("/v1/schedules/daily").await;
    assert_eq!((&fired["fired"], &fired["last"]), (&json!(1), &json!(next)));
    assert_eq!(fired["next"], json!(next + day));
    let task = server.get("/v1/tubes/jobs/tasks/0").await;
    assert_eq!((&task["data"], &task["state"]), (&json!("daily"), &json!("ready")));
    let remove = || server.fixture.send(Method::DELETE, "/v1/schedules/daily", json!({}));
    assert_eq!(remove().await.status, 200);
    let gone = remove().await;
    assert_eq!((gone.status, &gone.body["error"]["code"]), (404, &json!("schedule_not_found")));
    for path in ["", "/next"] {
        assert_eq!(server.fixture.get(&format!("/v1/schedules/daily{path}")).await.status, 404);
    }
    for action in ["run", "pause", "resume"] {
        let answer = server.fixture.post(&format!("/v1/schedules/daily/{action}"), json!({})).await;
        assert_eq!(answer.status, 404, "{action}");
    }
}

#[tokio::test]
async fn wrong_fields_are_named() {
    let server = ScheduleServer::new().await;
    for (fields, field) in [
        (json!({ "cron": "0 0 30 2 *" }), "'cron'"),
        (json!({ "cron": "61 * * * *" }), "'cron'"),
        (json!({ "cron": "@daily", "zone": "Mars/Olympus" }), "'zone'"),
        (json!({ "every": 0.5 }), "'every'"),
        (json!({ "every": 60, "tube": "missing" }), "'tube'"),
        (json!({ "every": 60, "tube": "a:b/c" }), "'tube'"),
        (json!({ "every": 60, "task": {} }), "'task'"),
        (json!({ "every": 60, "task": { "data": 1, "key": "" } }), "'task'"),
        (json!({ "every": 60, "until": -1 }), "'until'"),
        (json!({ "every": 60, "colour": 1 }), "`colour`"),
        (json!({}), "'cron'"),
    ] {
        let answer = server.set("job", fields.clone()).await;
        let message = answer.body["error"]["message"].as_str().unwrap_or_default();
        assert!(answer.status == 400 && message.contains(field), "{fields}: {}", answer.body);
    }
    let answer = server.set(&"n".repeat(120), json!({ "every": 60, "overlap": "skip" })).await;
    let message = answer.refused(400, "invalid");
    assert!(message.contains("'overlap'") && message.contains("at most 119 bytes"), "{message}");
    assert_eq!(server.get("/v1/schedules").await, json!({ "schedules": [] }));
}

#[tokio::test]
async fn schedules_are_listed_in_pages() {
    let server = ScheduleServer::new().await;
    for name in ["c", "a", "b"] {
        assert_eq!(server.set(name, json!({ "every": 60 })).await.status, 200);
    }
    let names = |page: &Value| {
        let list = page["schedules"].as_array().unwrap().iter();
        list.map(|one| one["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let first = server.get("/v1/schedules?count=2").await;
    assert_eq!((names(&first), &first["next"]), (vec!["a".into(), "b".into()], &json!("b")));
    let rest = server.get("/v1/schedules?count=2&after=b").await;
    assert_eq!((names(&rest), &rest["next"]), (vec!["c".into()], &Value::Null));
    for wrong in ["count=0", "count=1001", "after=", "before=a"] {
        assert_eq!(
            server.fixture.get(&format!("/v1/schedules?{wrong}")).await.status,
            400,
            "{wrong}"
        );
    }
    for wrong in ["count=0", "count=1001"] {
        let path = format!("/v1/schedules/a/next?{wrong}");
        assert_eq!(server.fixture.get(&path).await.status, 400, "{wrong}");
    }
}

// A page of a thousand schedules was read, and encoded, before it was known whether the response budget has a place for it.
#[tokio::test]
async fn a_page_of_schedules_has_a_place_in_the_response_budget() {
    let server = ScheduleServer::with(|config| config.answer_bytes_max = 4 << 20).await;
    let task = json!({ "data": "x".repeat(60 << 10) });
    for number in 100..400 {
        let fields = json!({ "every": 60, "task": task });
        assert_eq!(server.set(&number.to_string(), fields).await.status, 200);
    }
    server.asked();
    let refused = server.fixture.get("/v1/schedules?count=300").await;
    assert!(refused.refused(413, "too_large").contains("fewer entries"), "{}", refused.body);
    assert_eq!(server.asked(), ["schedule_list 100"], "it reads no more than it can show");
    let page = server.get("/v1/schedules?count=40").await;
    assert_eq!(page["next"], "139");
    for number in 100..400 {
        let small = json!({ "every": 60, "task": { "data": 1 } });
        assert_eq!(server.set(&number.to_string(), small).await.status, 200);
    }
    server.asked();
    let page = server.get("/v1/schedules?count=250").await;
    assert_eq!((&page["next"], &page["schedules"][249]["name"]), (&json!("349"), &json!("349")));
    assert_eq!(server.asked(), ["schedule_list 100", "schedule_list 100", "schedule_list 50"]);
    let page = server.get("/v1/schedules?count=1000").await;
    assert_eq!((&page["next"], page["schedules"].as_array().unwrap().len()), (&Value::Null, 300));
}

#[tokio::test]
async fn a_paused_schedule_stays_paused_when_it_is_replaced() {
    let server = ScheduleServer::new().await;
    server.set("job", json!({ "every": 60 })).await;
    let paused = server.fixture.done("/v1/schedules/job/pause", json!({})).await;
    assert_eq!(paused["paused"], true);
    server.asked();
    let replaced = server.set("job", json!({ "every": 30 })).await.body;
    // The server asked before the change whether it was paused: a pause by another server meanwhile was lost, and so was one that could
    // not be read.
    assert_eq!(server.asked(), ["schedule_set", "schedule_get"]);
    assert_eq!((&replaced["paused"], &replaced["created"]), (&json!(true), &Value::Null));
    server.pass(120).await;
    assert_eq!(server.get("/v1/schedules/job").await["fired"], 0);
    let resumed = server.fixture.done("/v1/schedules/job/resume", json!({})).await;
    assert_eq!(resumed["paused"], false);
    server.pass(0).await;
    assert_eq!(server.get("/v1/schedules/job").await["fired"], 2, "those of the last minute");
    let explicit = server.set("job", json!({ "every": 30, "paused": true })).await.body;
    assert_eq!(explicit["paused"], true);
    let again = server.set("job", json!({ "every": 30, "only_new": true })).await;
    assert_eq!((again.status, &again.body["error"]["code"]), (409, &json!("schedule_exists")));
}

#[tokio::test]
async fn a_run_by_hand_leaves_the_times_and_does_not_overlap() {
    let server = ScheduleServer::new().await;
    let before = server.set("job", json!({ "every": 60, "overlap": "skip" })).await.body;
    let run = || server.fixture.done("/v1/schedules/job/run", json!({}));
    assert_eq!(run().await["tasks"], json!([{ "id": 0, "state": "ready" }]));
    assert_eq!(run().await["tasks"], json!([{ "id": 0, "state": "ready", "existing": true }]));
    let after = server.get("/v1/schedules/job").await;
    assert_eq!((&after["next"], &after["fired"]), (&before["next"], &json!(0)));
    server.pass(60).await;
    assert_eq!(server.get("/v1/schedules/job").await["skipped"], 1, "the task by hand exists");
}

#[tokio::test]
async fn the_error_of_a_schedule_is_shown_and_counted() {
    let server = ScheduleServer::new().await;
    server.set("job", json!({ "every": 60 })).await;
    server.fixture.send(Method::DELETE, "/v1/tubes/jobs", json!({})).await;
    server.pass(60).await;
    let failing = server.get("/v1/schedules/job").await;
    assert_eq!((&failing["fired"], &failing["skipped"]), (&json!(0), &json!(1)));
    assert!(failing["error"].as_str().unwrap().starts_with("tube 'jobs' does not exist"));
    let refused = server.fixture.post("/v1/schedules/job/run", json!({})).await;
    assert_eq!(refused.body["error"]["code"], "tube_not_found");
    server.fixture.send(Method::PUT, "/v1/tubes/jobs", json!({})).await;
    server.pass(60).await;
    assert_eq!(server.get("/v1/schedules/job").await["error"], Value::Null);
    assert_eq!(server.fixture.metric("taskyard_schedule_tasks_total").await, 1);
    assert_eq!(server.fixture.metric("taskyard_schedule_skipped_total").await, 1);
    assert_eq!(server.fixture.metric("taskyard_schedule_failures_total").await, 1);
}
