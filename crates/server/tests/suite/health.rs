//! What `/healthz` says of a store that cannot do its work, and a wall clock that is set under a running server.

use std::future::ready;
use std::sync::Arc;

use serde_json::{Value, json};
use taskyard_core::{Body, Command, Error, Span, Timestamp};
use taskyard_engine::{Engine, HandClock, Settings};
use taskyard_store::{
    BodyKey, Capabilities, Executed, MemoryStore, OpenOptions, Pending, Store, StoreHealth,
    StoreTime,
};
use taskyard_store_sqlite::{Fault, SqliteStore};

use crate::rig::Rig;

/// A store that the test keeps a hand on.
struct Lent(Arc<SqliteStore>);

impl Store for Lent {
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

/// A database that cannot be reached.
struct Away;

impl Store for Away {
    fn execute(&self, _: Timestamp, commands: Vec<Command>) -> Pending<'_, Executed> {
        let away = |_: &Command| Err(Error::StoreAway("the database cannot be reached".into()));
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

async fn server(store: Box<dyn Store>) -> (Rig, Arc<HandClock>) {
    let start = Timestamp::from_micros(1_700_000_000_000_000);
    let clock = Arc::new(HandClock::new(start));
    let engine = Engine::start(store, clock.clone(), Settings::default());
    (Rig::over(engine, |_| {}).await, clock)
}

fn sqlite(folder: &std::path::Path) -> Arc<SqliteStore> {
    Arc::new(SqliteStore::open(folder, &OpenOptions::default()).unwrap())
}

/// `/healthz` stayed 200 while the disk was full or read-only, and after a failed sync.
#[tokio::test]
async fn a_server_that_cannot_write_is_not_well_until_it_can_again() {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite(folder.path());
    let (rig, clock) = server(Box::new(Lent(store.clone()))).await;
    assert_eq!(rig.get("/healthz").await.body["status"], "ok");
    store.set_fault(Some(Fault::Step { after: 0 }));
    clock.advance(Span::from_secs(1));
    let told = rig.get("/healthz").await;
    assert!(told.refused(503, "store_failed").contains("a test asked"), "{}", told.body);
    let metrics = rig.text("/metrics").await;
    assert!(metrics.contains("taskyard_store_healthy 0\n"), "{metrics}");
    store.set_fault(None);
    clock.advance(Span::from_secs(1));
    assert_eq!(rig.get("/healthz").await.status, 200);
    let metrics = rig.text("/metrics").await;
    assert!(metrics.contains("taskyard_store_healthy 1\n"), "{metrics}");
    assert!(metrics.contains("taskyard_store_log_bytes "), "{metrics}");
}

/// The lock was removed under a running server.
#[tokio::test]
async fn a_server_whose_lock_was_removed_is_not_well() {
    let folder = tempfile::tempdir().unwrap();
    let (rig, _) = server(Box::new(Lent(sqlite(folder.path())))).await;
    std::fs::remove_file(folder.path().join("taskyard.lock")).unwrap();
    let told = rig.get("/healthz").await;
    assert!(told.refused(503, "store_failed").contains("taskyard.lock"), "{}", told.body);
    let put = rig.post("/v1/tubes/mail/put", json!({"data": 1})).await;
    put.refused(503, "store_failed");
}

#[tokio::test]
async fn a_database_that_cannot_be_reached_is_told() {
    let (rig, _) = server(Box::new(Away)).await;
    rig.get("/healthz").await.refused(503, "store_away");
}

/// A step of the wall clock ended every lease; now only `at` follows it.
#[tokio::test]
async fn a_wall_clock_that_is_set_ends_no_lease() {
    let folder = tempfile::tempdir().unwrap();
    let (rig, clock) = server(Box::new(Lent(sqlite(folder.path())))).await;
    let hour = Span::from_secs(3600);
    let at = 1_700_003_600.0;
    rig.done("/v1/tubes/mail/put", json!({"data": 1})).await;
    rig.done("/v1/tubes/mail/put", json!({"data": 2, "at": at})).await;
    for (forward, now) in [(true, at), (false, at - 3600.0), (false, at - 7200.0)] {
        let taken = rig.done("/v1/tubes/mail/take", json!({"lease": 60})).await;
        let task = taken["tasks"][0].clone();
        assert_eq!(task["data"], 1, "{taken}");
        clock.set_wall(hour, forward);
        let shown = peek(&rig, 0).await;
        assert_eq!((&shown["state"], &shown["lease_until"]), (&json!("taken"), &json!(now + 60.0)));
        let release = json!({"id": task["id"], "lease": task["lease"]});
        assert_eq!(rig.done("/v1/tubes/mail/release", release).await["done"], 1);
        if forward {
            // It came with the step; it goes back behind the other.
            assert_eq!(peek(&rig, 1).await["state"], "ready");
        }
    }
}

async fn peek(rig: &Rig, id: u64) -> Value {
    rig.get(&format!("/v1/tubes/mail/tasks/{id}")).await.body
}
