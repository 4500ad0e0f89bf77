//! Runs a store with a manual clock.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use taskyard_core::{Command, Effects, Error, Execute, Reply, Span, Timestamp, TubeName};

use super::Harness;
use taskyard_store::{Capabilities, Store, fill};

/// The initial time of a new harness: any time but the epoch.
const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

/// How many tasks one tick may move. Small, so that ticks are also tried in several steps.
const TICK_LIMIT: usize = 7;

/// Opens the store, or opens it again.
type Open = Box<dyn Fn() -> Box<dyn Store> + Send + Sync>;

/// A store without an engine, with a manual clock: a tick does everything that is due before each batch.
pub struct StoreHarness {
    store: Box<dyn Store>,
    open: Open,
    now_micros: AtomicI64,
    hold_tick: AtomicBool,
    tick_seed: AtomicU32,
    failures: Mutex<BTreeMap<TubeName, u64>>,
}

impl StoreHarness {
    /// A harness over the store that `open` gives. A restart closes the store and calls `open` again.
    pub fn new(open: impl Fn() -> Box<dyn Store> + Send + Sync + 'static) -> Self {
        StoreHarness {
            store: open(),
            open: Box::new(open),
            now_micros: AtomicI64::new(START.as_micros()),
            hold_tick: AtomicBool::new(false),
            tick_seed: AtomicU32::new(0),
            failures: Mutex::default(),
        }
    }

    fn note(&self, effects: &Effects) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        for (tube, count) in &effects.failed {
            *failures.entry(tube.clone()).or_default() += count;
        }
    }

    /// Ticks until nothing is due.
    async fn tick(&self) {
        let seed = self.tick_seed.load(Ordering::Relaxed);
        loop {
            let tick = vec![Command::Tick { limit: TICK_LIMIT, seed }];
            let executed = self.store.execute(self.now(), tick).await;
            self.note(&executed.effects);
            match executed.replies.as_slice() {
                [Ok(Reply::Ticked(0))] => return,
                [Ok(Reply::Ticked(_))] => {}
                other => panic!("a tick answered {other:?}"),
            }
        }
    }
}

impl Execute for StoreHarness {
    async fn execute(&self, commands: Vec<Command>) -> Vec<Result<Reply, Error>> {
        if !self.hold_tick.swap(false, Ordering::Relaxed) {
            self.tick().await;
        }
        let mut executed = self.store.execute(self.now(), commands).await;
        self.note(&executed.effects);
        if !executed.unloaded.is_empty() {
            let keys = executed.unloaded.iter().map(|unloaded| unloaded.key).collect();
            let bodies = self.store.load(keys).await.into_iter();
            let bodies = bodies.map(|body| body.expect("bodies can be loaded")).collect();
            fill(&mut executed.replies, &executed.unloaded, bodies);
        }
        executed.replies
    }
}

impl Harness for StoreHarness {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.now_micros.load(Ordering::Relaxed))
    }

    fn advance(&self, span: Span) {
        self.now_micros.fetch_add(span.as_micros(), Ordering::Relaxed);
    }

    fn advance_unticked(&self, span: Span) {
        self.advance(span);
        self.hold_tick.store(true, Ordering::Relaxed);
    }

    fn seed_ticks(&self, seed: u32) -> bool {
        self.tick_seed.store(seed, Ordering::Relaxed);
        true
    }

    fn take_failures(&self) -> Option<BTreeMap<TubeName, u64>> {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        Some(std::mem::take(&mut failures))
    }

    async fn restart(self) -> Self {
        self.store.close().await.expect("the store closes");
        let StoreHarness { store, open, now_micros, hold_tick, tick_seed, .. } = self;
        // The old store must be dropped before the new one opens: it holds the lock of its folder.
        drop(store);
        let failures = Mutex::default();
        StoreHarness { store: open(), open, now_micros, hold_tick, tick_seed, failures }
    }
}
