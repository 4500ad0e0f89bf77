//! Checks that the model detects stores with one fault each.

use std::panic::{AssertUnwindSafe, catch_unwind};

use taskyard_conformance::{StoreHarness, block_on, model};
use taskyard_core::{Body, Command, Error, Outcome, Reply, Timestamp};
use taskyard_store::{BodyKey, Capabilities, Executed, MemoryStore, Pending, Store};

/// Falsifies a reply.
type Fault = fn(&mut Reply);

const FAULTS: [(&str, Fault); 6] = [
    ("a kick that counts one too many", |reply| {
        if let Reply::Kicked(count) = reply {
            *count += 1;
        }
    }),
    ("a delivery that ends a microsecond early", |reply| {
        if let Reply::Taken(tasks) = reply {
            for until in tasks.iter_mut().filter_map(|task| task.lease_until.as_mut()) {
                *until = Timestamp::from_micros(until.as_micros() - 1);
            }
        }
    }),
    ("a lease that is issued twice", |reply| {
        if let Reply::Taken(tasks) = reply {
            for lease in tasks.iter_mut().filter_map(|task| task.lease.as_mut()) {
                lease.0 /= 2;
            }
        }
    }),
    ("a body that is not what was put", |reply| {
        if let Reply::Taken(tasks) = reply {
            for task in tasks {
                task.body = Some(Body::new(&[0xc0]));
            }
        }
    }),
    ("a stale finish that is called missing", |reply| {
        if let Reply::Finished(outcomes) = reply {
            for outcome in outcomes.iter_mut().filter(|outcome| **outcome == Outcome::Stale) {
                *outcome = Outcome::Missing;
            }
        }
    }),
    ("a take that is not counted", |reply| {
        if let Reply::Tubes(tubes) = reply {
            for info in tubes {
                info.stats.calls.take = info.stats.calls.take.saturating_sub(1);
            }
        }
    }),
];

#[test]
fn the_model_detects_every_fault() {
    for (what, fault) in FAULTS {
        let queue = StoreHarness::new(move || {
            Box::new(FaultyStore { store: MemoryStore::default(), fault })
        });
        let run = catch_unwind(AssertUnwindSafe(|| block_on(model::replay(queue, 1, 1000))));
        let panic = run.expect_err(what);
        let message = panic.downcast_ref::<String>().expect("a panic has a message");
        assert!(message.contains("TASKYARD_SEED=1"), "{what}: {message}");
    }
}

struct FaultyStore {
    store: MemoryStore,
    fault: Fault,
}

impl Store for FaultyStore {
    fn execute(&self, now: Timestamp, commands: Vec<Command>) -> Pending<'_, Executed> {
        Box::pin(async move {
            let mut executed = self.store.execute(now, commands).await;
            executed.replies.iter_mut().flatten().for_each(self.fault);
            executed
        })
    }

    fn load(&self, keys: Vec<BodyKey>) -> Pending<'_, Vec<Result<Option<Body>, Error>>> {
        self.store.load(keys)
    }

    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    fn close(&self) -> Pending<'_, Result<(), Error>> {
        self.store.close()
    }
}
