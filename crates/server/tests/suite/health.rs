//! `/healthz` with a store that does not work, and a wall clock that is set while the server runs.

use std::future::ready;
use std::sync::Arc;

use serde_json::{Value, json};
use taskyard_core::{Body, Command, Error, Span, Timestamp};
use taskyard_engine::{Engine, ManualClock, Settings};
use taskyard_store::{
    BodyKey, Capabilities, Executed, MemoryStore, OpenOptions, Pending, Store, StoreHealth,
    StoreTime,
};
use taskyard_store_sqlite::{Fault, SqliteStore};

use crate::fixture::Fixture;

/// A store that the test can also reach.
struct SharedStore(Arc<SqliteStore>);

impl Store for SharedStore {
    fn execute(&self, now: Timestamp, commands: Vec<Command>) -> Pending<'_, Executed> {
        self.0.execute(now, commands)
    }

    fn load(&self, keys: Vec<BodyKey>) -> Pending<'_, Vec<Result<Option<Body>, Error>>> {
        self.0.load(keys)
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn health(&self, now: Timestamp) -> Pending<'_, Result<StoreHealth, Error>> {
        self.0.health(now)
    }

    fn time(&self) -> Option<StoreTime> {
        self.0.time()
    }

    fn set_wall_ahead(&self, now: Timestamp, micros: i64) -> Pending<'_, Result<(), Error>> {
        self.0.set_wall_ahead(now, micros)
    }

    fn close(&self) -> Pending<'_, Result<(), Error>> {
        self.0.close()
    }
}

/// An unreachable database.
struct UnreachableStore;

impl Store for UnreachableStore {
    fn execute(&self, _: Timestamp, commands: Vec<Command>) -> Pending<'_, Executed> {
        let away =
            |_: &Command| Err(Error::StoreUnavailable("the database cannot be reached".into()));
        let replies = commands.iter().map(away).collect();
        let effects = Default::default();
        Box::pin(ready(Executed { replies, effects, unloaded: Vec::new() }))
    }

    fn load(&self, keys: Vec<BodyKey>) -> Pending<'_, Vec<Result<Option<Body>, Error>>> {
        Box::pin(ready(vec![Ok(None); keys.len()]))
    }

    fn capabilities(&self) -> Capabilities {
        MemoryStore::default().capabilities()
    }

    fn close(&self) -> Pending<'_, Result<(), Error>> {
        Box::pin(ready(Ok(())))
    }
}

async fn server(store: Box<dyn Store>) -> (Fixture, Arc<ManualClock>) {
    let start = Timestamp::from_micros(1_700_000_000_000_000);
    let clock = Arc::new(ManualClock::new(start));
    let engine = Engine::start(store, clock.clone(), Settings::default());
    (Fixture::over(engine, |_| {}).await, clock)
}

fn sqlite(folder: &std::path::Path) -> Arc<SqliteStore> {
    Arc::new(SqliteStore::open(folder, &OpenOptions::default()).unwrap())
}

/// `/healthz` stayed 200 while the disk was full or read-only, and after a failed sync.
#[tokio::test]
async fn a_server_that_cannot_write_is_unhealthy_until_it_can_again() {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite(folder.path());
    let (fixture, clock) = server(Box::new(SharedStore(store.clone()))).await;
    assert_eq!(fixture.get("/healthz").await.body["status"], "ok");
    store.set_fault(Some(Fault::Step { after: 0 }));
    clock.advance(Span::from_secs(1));
    let response = fixture.get("/healthz").await;
    assert!(
        response.refused(503, "store_failed").contains("a test requested"),
        "{}",
        response.body
    );
    let metrics = fixture.text("/metrics").await;
    assert!(metrics.contains("taskyard_store_healthy 0\n"), "{metrics}");
    store.set_fault(None);
    clock.advance(Span::from_secs(1));
    assert_eq!(fixture.get("/healthz").await.status, 200);
    let metrics = fixture.text("/metrics").await;
    assert!(metrics.contains("taskyard_store_healthy 1\n"), "{metrics}");
    assert!(metrics.contains("taskyard_store_log_bytes "), "{metrics}");
}

/// The lock file was removed while the server ran.
#[tokio::test]
async fn a_server_whose_lock_was_removed_is_unhealthy() {
    let folder = tempfile::tempdir().unwrap();
    let (fixture, _) = server(Box::new(SharedStore(sqlite(folder.path())))).await;
    std::fs::remove_file(folder.path().join("taskyard.lock")).unwrap();
    let response = fixture.get("/healthz").await;
    assert!(response.refused(503, "store_failed").contains("taskyard.lock"), "{}", response.body);
    let put = fixture.post("/v1/tubes/mail/put", json!({"data": 1})).await;
    put.refused(503, "store_failed");
}

#[tokio::test]
async fn an_unreachable_database_is_reported() {
    let (fixture, _) = server(Box::new(UnreachableStore)).await;
    fixture.get("/healthz").await.refused(503, "store_away");
}

/// A step of the wall clock ended every lease; only `at` follows it.
#[tokio::test]
async fn a_wall_clock_that_is_set_ends_no_lease() {
    let folder = tempfile::tempdir().unwrap();
    let (fixture, clock) = server(Box::new(SharedStore(sqlite(folder.path())))).await;
    let hour = Span::from_secs(3600);
    let at = 1_700_003_600.0;
    fixture.done("/v1/tubes/mail/put", json!({"data": 1})).await;
    fixture.done("/v1/tubes/mail/put", json!({"data": 2, "at": at})).await;
    for (forward, now) in [(true, at), (false, at - 3600.0), (false, at - 7200.0)] {
        let taken = fixture.done("/v1/tubes/mail/take", json!({"lease": 60})).await;
        let task = taken["tasks"][0].clone();
        assert_eq!(task["data"], 1, "{taken}");
        clock.set_wall(hour, forward);
        let shown = peek(&fixture, 0).await;
        assert_eq!((&shown["state"], &shown["lease_until"]), (&json!("taken"), &json!(now + 60.0)));
        let release = json!({"id": task["id"], "lease": task["lease"]});
        assert_eq!(fixture.done("/v1/tubes/mail/release", release).await["done"], 1);
        if forward {
            // It became ready with the step; it is queued behind the other.
            assert_eq!(peek(&fixture, 1).await["state"], "ready");
        }
    }
}

async fn peek(fixture: &Fixture, id: u64) -> Value {
    fixture.get(&format!("/v1/tubes/mail/tasks/{id}")).await.body
}
