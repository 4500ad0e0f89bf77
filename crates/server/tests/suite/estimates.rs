//! Estimates in answers: when the tasks of a put, a peek or a page will start, and when a tube will be empty.

use std::sync::Arc;

use reqwest::Method;
use serde_json::{Value, json};
use taskyard_core::{Body, Command, Error, Span, Timestamp};
use taskyard_engine::{Engine, ManualClock, Settings};
use taskyard_store::{BodyKey, Capabilities, Executed, MemoryStore, Pending, Store};

use crate::fixture::Fixture;

const PUT: &str = "/v1/tubes/mail/put";
const TASKS: &str = "/v1/tubes/mail/tasks";

/// A server whose clock the test moves.
struct TimedServer {
    fixture: Fixture,
    clock: Arc<ManualClock>,
}

impl TimedServer {
    async fn new() -> Self {
        let clock = Arc::new(ManualClock::new(Timestamp::from_micros(1_700_000_000_000_000)));
        let store = Box::new(MemoryStore::default());
        let engine = Engine::start(store, clock.clone(), Settings::default());
        TimedServer { fixture: Fixture::over(engine, |_| {}).await, clock }
    }

    async fn put(&self, count: u64) {
        let tasks: Vec<_> = (0..count).map(|n| json!({ "data": n })).collect();
        self.fixture.done(PUT, json!({ "tasks": tasks })).await;
    }

    async fn take(&self) -> Value {
        let taken = self.fixture.done("/v1/tubes/mail/take", json!({ "lease": 1e6 })).await;
        taken["tasks"][0].clone()
    }

    /// One consumer works for so many tasks, one second each.
    async fn work(&self, tasks: usize) {
        for _ in 0..tasks {
            let task = self.take().await;
            self.clock.advance(Span::from_secs(1));
            let ack = json!({ "id": task["id"], "lease": task["lease"] });
            self.fixture.done("/v1/tubes/mail/ack", ack).await;
        }
    }

    /// Each tube that is shown with estimates: alone, in the list and in the statistics.
    async fn tubes(&self) -> [Value; 3] {
        let get = async |path: &str| self.fixture.get(path).await.body;
        [
            get("/v1/tubes/mail?estimate=true").await,
            get("/v1/tubes?estimate=true").await["tubes"][0].clone(),
            get("/v1/stats?estimate=true").await["tubes"][0].clone(),
        ]
    }
}

fn estimate_fields(task: &Value) -> Vec<&str> {
    let names = ["ahead", "approximate", "estimate", "no_estimate", "position"];
    names.into_iter().filter(|name| task.get(name).is_some()).collect()
}

#[tokio::test]
async fn a_put_and_a_peek_have_estimates_if_they_ask_for_them() {
    let fixture = Fixture::new().await;
    let plain = fixture.done(PUT, json!({ "data": 1 })).await;
    assert_eq!(plain["tasks"][0], json!({ "id": 0, "state": "ready" }));
    let tasks = json!([{ "data": 2 }, { "data": 3, "pri": 0, "delay": 50 }]);
    let put = fixture.done(PUT, json!({ "tasks": tasks, "estimate": true })).await;
    let [ready, delayed] = [&put["tasks"][0], &put["tasks"][1]];
    assert_eq!((&ready["id"], &ready["ahead"]), (&json!(1), &json!(1)), "{put}");
    assert_eq!(ready["no_estimate"]["name"], "no_consumer");
    assert_eq!(ready["no_estimate"]["text"], "no consumer takes tasks of this tube");
    assert_eq!((&delayed["state"], &delayed["ahead"]), (&json!("delayed"), &json!(2)), "{put}");
    let without = fixture.done(PUT, json!({ "data": 4, "estimate": false })).await;
    assert_eq!(estimate_fields(&without["tasks"][0]), [] as [&str; 0]);

    fixture.done("/v1/tubes/mail/bury", json!({ "id": 0 })).await;
    let peek = "/v1/tubes/mail/peek";
    let shown = fixture.done(peek, json!({ "ids": [0, 1, 3], "estimate": true })).await;
    assert_eq!(estimate_fields(&shown["tasks"][0]), [] as [&str; 0], "a buried task does not wait");
    assert_eq!(estimate_fields(&shown["tasks"][2]), ["ahead", "no_estimate"]);
    assert_eq!((&shown["tasks"][1]["ahead"], &shown["tasks"][2]["ahead"]), (&json!(0), &json!(1)));
    let plain = fixture.done(peek, json!({ "ids": [1] })).await;
    assert_eq!(estimate_fields(&plain["tasks"][0]), [] as [&str; 0]);
}

/// An estimate follows from what tasks did before; it is compared when its task starts.
#[tokio::test]
async fn estimates_are_shown_everywhere_and_counted_at_the_start() {
    let server = TimedServer::new().await;
    server.put(60).await;
    server.work(30).await;
    let running = server.take().await;
    let fixture = &server.fixture;
    // A place alone is no estimate that could be compared.
    let one = fixture.get(&format!("{TASKS}/31")).await.body;
    assert_eq!((&one["position"], estimate_fields(&one)), (&json!(1), vec!["position"]), "{one}");

    let put = fixture.done(PUT, json!({ "data": "new", "estimate": true })).await;
    let estimate = &put["tasks"][0]["estimate"];
    assert_eq!(
        (&estimate["ahead"], &estimate["basis"]),
        (&json!(30), &json!("run_times")),
        "{put}"
    );
    let p50 = estimate["p50"].as_f64().unwrap();
    assert!((20.0..40.0).contains(&p50) && estimate["p90"].as_f64().unwrap() >= p50, "{put}");
    let one = fixture.get(&format!("{TASKS}/60?estimate=true")).await.body;
    assert_eq!((&one["position"], &one["ahead"]), (&json!(30), &json!(29)), "{one}");
    let page = fixture.get(&format!("{TASKS}?after=58&estimate=true")).await.body;
    let peek = fixture.done("/v1/tubes/mail/peek", json!({ "ids": [60], "estimate": true })).await;
    for shown in [&one, &page["tasks"][1], &peek["tasks"][0]] {
        assert_eq!(&shown["estimate"], estimate, "{shown}");
    }
    for tube in server.tubes().await {
        let drain = tube["drain"]["p50"].as_f64().unwrap();
        assert!((20.0..45.0).contains(&drain), "{tube}");
        assert_eq!((tube.get("no_drain"), tube.get("estimates")), (None, None), "{tube}");
    }
    let plain = fixture.get("/v1/tubes/mail").await.body;
    assert_eq!(plain.get("drain").or(plain.get("no_drain")), None);
    assert!(!fixture.text("/metrics").await.contains("taskyard_estimate_total{"));

    let ack = json!({ "id": running["id"], "lease": running["lease"] });
    fixture.done("/v1/tubes/mail/ack", ack).await;
    server.work(30).await;
    for tube in server.tubes().await {
        let counts = &tube["estimates"];
        // Those of the put and of the two tasks of the page; the first estimate of a task counts.
        assert_eq!(counts["checked"], 2, "{tube}");
        assert!(counts["within_p50"].as_u64() <= counts["within_p90"].as_u64(), "{tube}");
    }
    let text = fixture.text("/metrics").await;
    let counts = ["p50", "p90", "late"].map(|within| {
        let row = format!("taskyard_estimate_total{{tube=\"mail\",within=\"{within}\"}} ");
        let value = text.lines().find_map(|line| line.strip_prefix(&row));
        value.unwrap_or_else(|| panic!("no {row}")).parse::<u64>().unwrap()
    });
    assert_eq!(counts.iter().sum::<u64>(), 2, "{text}");
    assert!(text.contains("taskyard_estimate_dropped_total{tube=\"mail\"} 0\n"), "{text}");
}

#[tokio::test]
async fn a_tube_that_cannot_be_estimated_has_the_reason() {
    let server = TimedServer::new().await;
    server.put(1).await;
    for tube in server.tubes().await {
        assert_eq!((tube.get("drain"), &tube["no_drain"]["name"]), (None, &json!("no_consumer")));
    }
    let pause = json!({ "paused": true });
    server.fixture.send(Method::PATCH, "/v1/tubes/mail", pause).await;
    for tube in server.tubes().await {
        assert_eq!(tube["no_drain"]["name"], "tube_paused");
    }
}

/// A page may have more tasks than one command may ask for.
#[tokio::test]
async fn every_waiting_task_of_a_page_has_its_position() {
    let server = TimedServer::new().await;
    server.put(250).await;
    server.take().await;
    let page = server.fixture.get(&format!("{TASKS}?limit=250&estimate=true")).await.body;
    let tasks = page["tasks"].as_array().unwrap();
    assert_eq!((tasks.len(), estimate_fields(&tasks[0])), (250, vec![]), "a taken task");
    for (ahead, task) in tasks[1..].iter().enumerate() {
        assert_eq!(task["ahead"], ahead as u64, "{task}");
    }
    let plain = server.fixture.get(&format!("{TASKS}?limit=2")).await.body;
    assert_eq!(estimate_fields(&plain["tasks"][1]), [] as [&str; 0]);
}

#[tokio::test]
async fn more_estimates_than_allowed_are_refused_before_the_put() {
    let fixture = Fixture::new().await;
    let put = |count: u64| {
        let tasks: Vec<_> = (0..count).map(|n| json!({ "data": n })).collect();
        json!({ "tasks": tasks, "estimate": true })
    };
    let refused = fixture.post(PUT, put(101)).await;
    assert!(refused.refused(413, "too_large").contains("the limit is 100"), "{}", refused.body);
    fixture.get("/v1/tubes/mail").await.refused(404, "tube_not_found");
    assert_eq!(fixture.done(PUT, put(100)).await["tasks"][99]["ahead"], 99);
    let ids: Vec<u64> = (0..101).collect();
    let peek = |ids: &[u64]| json!({ "ids": ids, "estimate": true });
    fixture.post("/v1/tubes/mail/peek", peek(&ids)).await.refused(413, "too_large");
    let shown = fixture.done("/v1/tubes/mail/peek", peek(&ids[..100])).await;
    assert_eq!(shown["tasks"][99]["ahead"], 99);
    // It belongs to the request, not to a task.
    let of_task = json!({ "tasks": [{ "data": 1, "estimate": true }] });
    fixture.post(PUT, of_task).await.refused(400, "invalid");
}

/// A store that cannot tell positions.
struct NoPositions(MemoryStore);

impl Store for NoPositions {
    fn execute(&self, now: Timestamp, commands: Vec<Command>) -> Pending<'_, Executed> {
        let asked: Vec<bool> =
            commands.iter().map(|one| matches!(one, Command::Positions { .. })).collect();
        Box::pin(async move {
            let mut executed = self.0.execute(now, commands).await;
            for (reply, asks) in executed.replies.iter_mut().zip(asked) {
                if asks {
                    *reply = Err(Error::Store("the test fails positions".into()));
                }
            }
            executed
        })
    }

    fn load(&self, keys: Vec<BodyKey>) -> Pending<'_, Vec<Result<Option<Body>, Error>>> {
        self.0.load(keys)
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn close(&self) -> Pending<'_, Result<(), Error>> {
        self.0.close()
    }
}

/// A producer whose put is reported as failed would put the tasks again.
#[tokio::test]
async fn a_put_succeeds_if_its_positions_cannot_be_read() {
    let clock = Arc::new(ManualClock::new(Timestamp::from_micros(1_700_000_000_000_000)));
    let store = Box::new(NoPositions(MemoryStore::default()));
    let engine = Engine::start(store, clock, Settings::default());
    let fixture = Fixture::over(engine, |_| {}).await;
    let put = fixture.done(PUT, json!({ "data": 1, "estimate": true })).await;
    assert_eq!(put["tasks"], json!([{ "id": 0, "state": "ready" }]));
    let peek = json!({ "ids": [0], "estimate": true });
    fixture.post("/v1/tubes/mail/peek", peek).await.refused(503, "store_failed");
}
