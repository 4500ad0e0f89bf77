//! Time series over HTTP and in the metrics, on a clock that the test moves.

use std::sync::Arc;

use reqwest::Method;
use serde_json::{Value, json};
use taskyard_core::{Span, Timestamp};
use taskyard_engine::{Engine, ManualClock, Settings};
use taskyard_store::MemoryStore;

use crate::fixture::Fixture;

/// A multiple of 60, so that minutes begin here.
const START: i64 = 1_700_000_040;

struct Timed {
    fixture: Fixture,
    clock: Arc<ManualClock>,
}

impl Timed {
    async fn new(settings: Settings) -> Self {
        let clock = Arc::new(ManualClock::new(Timestamp::from_micros(START * 1_000_000)));
        let store = Box::new(MemoryStore::default());
        let engine = Engine::start(store, clock.clone(), settings);
        Timed { fixture: Fixture::over(engine, |_| {}).await, clock }
    }

    fn pass(&self, seconds: u64) {
        self.clock.advance(Span::from_secs(seconds));
    }

    async fn put(&self, tube: &str, count: usize) {
        let tasks = vec![json!({ "data": 1 }); count];
        self.fixture.done(&format!("/v1/tubes/{tube}/put"), json!({ "tasks": tasks })).await;
    }

    /// Takes tasks, and returns them as `ack` names them.
    async fn take(&self, tube: &str, count: usize) -> Value {
        let path = format!("/v1/tubes/{tube}/take");
        let taken = self.fixture.done(&path, json!({ "count": count })).await;
        let tasks = taken["tasks"].as_array().unwrap().iter();
        tasks.map(|task| json!({ "id": task["id"], "lease": task["lease"] })).collect()
    }

    async fn ack(&self, tube: &str, tasks: Value) {
        self.fixture.done(&format!("/v1/tubes/{tube}/ack"), json!({ "tasks": tasks })).await;
    }

    async fn series(&self, query: &str) -> Value {
        let answer = self.fixture.get(&format!("/v1/series{query}")).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.body
    }
}

fn assert_near(found: &Value, seconds: f64) {
    let found = found.as_f64().unwrap();
    assert!((found - seconds).abs() <= 0.05 * seconds, "{found} instead of {seconds}");
}

#[tokio::test]
async fn a_series_shows_commands_tasks_and_durations_of_each_second() {
    let server = Timed::new(Settings::default()).await;
    server.put("mail", 3).await;
    server.pass(2);
    let taken = server.take("mail", 2).await;
    server.pass(3);
    server.ack("mail", taken).await;
    server.pass(1);
    for query in ["?tube=mail", "?tube=mail&step=1s", ""] {
        let series = server.series(query).await;
        assert_eq!(series.get("tube").is_some(), !query.is_empty());
        assert_eq!((&series["step"], &series["from"]), (&json!(1.0), &json!(START as f64)));
        for (field, values) in [
            ("puts", [3, 0, 0, 0, 0, 0]),
            ("takes", [0, 0, 2, 0, 0, 0]),
            ("acks", [0, 0, 0, 0, 0, 2]),
            ("fails", [0; 6]),
            ("ready", [3, 3, 1, 1, 1, 1]),
            ("taken", [0, 0, 2, 2, 2, 0]),
            ("delayed", [0; 6]),
            ("buried", [0; 6]),
        ] {
            assert_eq!(series[field], json!(values), "{field}");
        }
        for percentile in ["p50", "p90", "p99"] {
            let (wait, run) = (&series["wait"][percentile], &series["run"][percentile]);
            assert_near(&wait[2], 2.0);
            assert_near(&run[5], 3.0);
            assert!(wait[1].is_null() && run[2].is_null());
            assert_eq!((wait.as_array().unwrap().len(), run.as_array().unwrap().len()), (6, 6));
        }
    }
    let part = server.series(&format!("?tube=mail&from={}", START + 4)).await;
    assert_eq!((&part["from"], &part["acks"]), (&json!((START + 4) as f64), &json!([0, 2])));
    assert_eq!(server.series("?from=-2").await["acks"], json!([0, 2]));
    assert_eq!(server.series("?from=1e18").await["acks"], json!([]));
    server.pass(54);
    let minutes = server.series("?tube=mail&step=1m").await;
    assert_eq!((&minutes["step"], &minutes["puts"]), (&json!(60.0), &json!([3])));
    assert_near(&minutes["run"]["p99"][0], 3.0);
}

#[tokio::test]
async fn a_tube_has_its_latest_durations() {
    let server = Timed::new(Settings::default()).await;
    server.put("mail", 1).await;
    server.pass(2);
    let taken = server.take("mail", 1).await;
    server.pass(3);
    server.ack("mail", taken).await;
    server.pass(1);
    for path in ["/v1/tubes/mail", "/v1/tubes"] {
        let answer = server.fixture.get(path).await.body;
        let tube = if path.ends_with("mail") { &answer } else { &answer["tubes"][0] };
        for percentile in ["p50", "p90", "p99"] {
            assert_near(&tube["wait"][percentile], 2.0);
            assert_near(&tube["run"][percentile], 3.0);
        }
    }
    server.pass(60);
    let later = server.fixture.get("/v1/tubes/mail").await.body;
    assert!(later.get("wait").is_none() && later.get("run").is_none(), "{later}");
    let without = Timed::new(Settings { series_tubes_max: 0, ..Settings::default() }).await;
    without.put("mail", 1).await;
    without.take("mail", 1).await;
    without.pass(1);
    let tube = without.fixture.get("/v1/tubes/mail").await.body;
    assert!(tube.get("wait").is_none() && tube.get("failures").is_none(), "{tube}");
}

#[tokio::test]
async fn tasks_are_counted_by_state_also_when_time_alone_moves_them() {
    let server = Timed::new(Settings::default()).await;
    let delayed = json!({ "data": 1, "delay": 3 });
    server.fixture.done("/v1/tubes/mail/put", delayed).await;
    server.put("mail", 1).await;
    let taken = server.take("mail", 1).await;
    server.fixture.done("/v1/tubes/mail/bury", json!({ "tasks": taken })).await;
    for _ in 0..6 {
        server.pass(1);
        // Each second has its turn of the engine.
        server.series("").await;
    }
    let series = server.series("?tube=mail").await;
    assert_eq!(series["delayed"], json!([1, 1, 1, 0, 0, 0]));
    assert_eq!(series["ready"], json!([0, 0, 0, 1, 1, 1]));
    assert_eq!(series["buried"], json!([1, 1, 1, 1, 1, 1]));
}

#[tokio::test]
async fn a_series_has_at_most_its_number_of_points() {
    let server = Timed::new(Settings::default()).await;
    server.put("mail", 1).await;
    server.pass(3 * 24 * 3_600);
    for (query, points) in [("?from=0", 3_600), ("?from=0&step=1m", 2_880), ("?tube=mail", 3_600)] {
        let series = server.series(query).await;
        assert_eq!(series["puts"].as_array().unwrap().len(), points);
        assert_eq!(series["ready"].as_array().unwrap().last(), Some(&json!(1)));
    }
}

#[tokio::test]
async fn wrong_queries_are_refused_with_what_is_allowed() {
    let server = Timed::new(Settings::default()).await;
    for (query, allowed) in [
        ("?step=5s", "`1s` or `1m`"),
        ("?other=1", "`tube`, `from`, `step`"),
        ("?from=yesterday", "from"),
        ("?from=NaN", "seconds since the epoch"),
        ("?tube=", "must not be empty"),
    ] {
        let refused = server.fixture.get(&format!("/v1/series{query}")).await;
        let message = refused.refused(400, "invalid");
        assert!(message.contains(allowed), "{message}");
    }
    server.fixture.get("/v1/series?tube=nowhere").await.refused(404, "tube_not_found");
}

#[tokio::test]
async fn internal_tubes_are_not_in_the_sum_and_dropped_tubes_not_found() {
    let server = Timed::new(Settings::default()).await;
    server.put("mail", 1).await;
    server.put("taskyard.manager.seat", 5).await;
    server.fixture.send(Method::PUT, "/v1/tubes/unused", json!({})).await;
    server.pass(1);
    assert_eq!(server.series("").await["puts"], json!([1]));
    assert_eq!(server.series("").await["ready"], json!([1]));
    assert_eq!(server.series("?tube=taskyard.manager.seat").await["puts"], json!([5]));
    assert_eq!(server.series("?tube=unused").await["puts"], json!([0]));
    server.fixture.done("/v1/tubes/mail/name", json!({ "name": "post" })).await;
    assert_eq!(server.series("?tube=post").await["puts"], json!([1]));
    server.fixture.get("/v1/series?tube=mail").await.refused(404, "tube_not_found");
    server.fixture.send(Method::DELETE, "/v1/tubes/post", json!({})).await;
    server.fixture.get("/v1/series?tube=post").await.refused(404, "tube_not_found");
    server.pass(1);
    assert_eq!(server.series("").await["ready"], json!([1, 0]));
}

#[tokio::test]
async fn the_metrics_have_histograms_of_wait_and_run_times() {
    let server = Timed::new(Settings::default()).await;
    for tube in ["mail", "taskyard.manager.seat"] {
        server.put(tube, 2).await;
        let first = server.take(tube, 1).await;
        server.pass(3);
        let second = server.take(tube, 1).await;
        server.ack(tube, first).await;
        server.ack(tube, second).await;
    }
    let text = server.fixture.text("/metrics").await;
    for line in [
        "# TYPE taskyard_wait_seconds histogram",
        "taskyard_wait_seconds_bucket{tube=\"mail\",le=\"0.001\"} 1",
        "taskyard_wait_seconds_bucket{tube=\"mail\",le=\"2\"} 1",
        "taskyard_wait_seconds_bucket{tube=\"mail\",le=\"5\"} 2",
        "taskyard_wait_seconds_bucket{tube=\"mail\",le=\"100000\"} 2",
        "taskyard_wait_seconds_bucket{tube=\"mail\",le=\"+Inf\"} 2",
        "taskyard_wait_seconds_sum{tube=\"mail\"} 3",
        "taskyard_wait_seconds_count{tube=\"mail\"} 2",
        "# TYPE taskyard_run_seconds histogram",
        "taskyard_run_seconds_bucket{tube=\"mail\",le=\"0.001\"} 1",
        "taskyard_run_seconds_bucket{tube=\"mail\",le=\"5\"} 2",
        "taskyard_run_seconds_count{tube=\"mail\"} 2",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    let internal = "taskyard_run_seconds_count{tube=\"taskyard.manager.seat\"} 2\n";
    assert!(!text.contains(internal));
    assert!(server.fixture.text("/metrics?internal=true").await.contains(internal));
}

/// No counter of `/metrics` had failures: a failed delivery is a release or a bury there.
#[tokio::test]
async fn failures_are_counted() {
    let server = Timed::new(Settings::default()).await;
    server.put("mail", 5).await;
    server.put("sms", 1).await;
    let taken = server.take("mail", 3).await;
    let failed = json!({ "id": taken[0]["id"], "lease": taken[0]["lease"], "error": "no route" });
    server.fixture.done("/v1/tubes/mail/fail", failed).await;
    let released = json!({ "id": taken[1]["id"], "lease": taken[1]["lease"] });
    server.fixture.done("/v1/tubes/mail/release", released).await;
    // The lease of the third one expires.
    server.pass(60);
    let failures = async |tube| server.fixture.get(&format!("/v1/tubes/{tube}")).await.body;
    while failures("mail").await["failures"] == 1 {
        tokio::task::yield_now().await;
    }
    assert_eq!(failures("mail").await["failures"], 2);
    assert_eq!(failures("sms").await["failures"], 0);
    let text = server.fixture.text("/metrics").await;
    for line in
        ["taskyard_failures_total{tube=\"mail\"} 2", "taskyard_failures_total{tube=\"sms\"} 0"]
    {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
}

#[tokio::test]
async fn only_some_tubes_have_series_and_histograms_of_their_own() {
    let settings = Settings { series_tubes_max: 2, ..Settings::default() };
    let server = Timed::new(settings).await;
    for tube in ["a", "b", "c"] {
        server.put(tube, 4).await;
        let taken = server.take(tube, 1).await;
        // An expired lease would be another use of the tube.
        server.ack(tube, taken).await;
    }
    server.pass(1);
    assert_eq!(server.series("").await["puts"], json!([12]));
    assert_eq!(server.series("?tube=b").await["puts"], json!([4]));
    let without = server.series("?tube=c").await;
    assert_eq!((&without["puts"], &without["ready"]), (&json!([0]), &json!([3])));
    let text = server.fixture.text("/metrics").await;
    assert!(text.contains("taskyard_wait_seconds_count{tube=\"b\"} 1\n"));
    assert!(!text.contains("taskyard_wait_seconds_count{tube=\"c\"}"));
    server.pass(60);
    server.put("c", 1).await;
    server.pass(1);
    let puts = server.series("?tube=c").await;
    assert_eq!(puts["puts"].as_array().unwrap().last(), Some(&json!(1)));
}

#[tokio::test]
async fn series_can_be_turned_off() {
    let settings = Settings { series_tubes_max: 0, ..Settings::default() };
    let server = Timed::new(settings).await;
    server.put("mail", 1).await;
    for query in ["", "?tube=mail"] {
        let refused = server.fixture.get(&format!("/v1/series{query}")).await;
        assert!(refused.refused(400, "invalid").contains("--series-tubes"));
    }
    let text = server.fixture.text("/metrics").await;
    assert!(!text.contains("taskyard_wait_seconds_count") && !text.contains("taskyard_failures"));
    let tube = server.fixture.get("/v1/tubes/mail").await.body;
    assert_eq!((&tube["tasks"]["ready"], tube.get("failures")), (&json!(1), None));
}
