//! A loop without a thread: it runs while it is polled, on the virtual time of its runtime.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use taskyard_core::{
    Body, Command, Error, Execute, Kind, NewTask, Reply, Span, Take, Timestamp, TubeName,
    TubeOptions,
};
use taskyard_engine::{Clock, Engine, EngineTask, Settings};
use taskyard_store::MemoryStore;
use tokio::task::LocalSet;
use tokio::time::Instant;

/// Shows the paused time of the runtime.
struct RuntimeClock(Instant);

impl Clock for RuntimeClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.elapsed().as_micros() as i64)
    }

    fn sleep_max(&self, until: Timestamp) -> Option<Duration> {
        Some(Duration::from(until.since(self.now())))
    }

    fn watch(&self, _waker: Waker) {}
}

fn start() -> (Engine, EngineTask) {
    let clock = Arc::new(RuntimeClock(Instant::now()));
    Engine::start_stepped(Box::new(MemoryStore::default()), clock, Settings::default())
}

fn mail() -> TubeName {
    TubeName::new("mail").unwrap()
}

fn create() -> Command {
    let options = TubeOptions::new(Kind::FifoTtl);
    Command::CreateTube { tube: mail(), options, if_not_exists: false }
}

fn take(wait: u64) -> Command {
    let wait = Span::from_secs(wait);
    let tube = mail();
    Command::Take(Take { tube, count: 1, session: None, lease: None, worker: None, wait })
}

#[tokio::test(start_paused = true)]
async fn virtual_time_passes_for_delays_and_waiting_takes() {
    let local = LocalSet::new();
    let (engine, task) = start();
    let begun = Instant::now();
    local.spawn_local(task);
    let calls = async {
        engine.execute(vec![create()]).await.remove(0).unwrap();
        let delay = Some(Span::from_secs(3_600));
        let task = NewTask { delay, ..NewTask::new(Body::new(b"x")) };
        let put = Command::Put { tube: mail(), tasks: vec![task], wait: Span::ZERO };
        engine.execute(vec![put]).await.remove(0).unwrap();
        // Many calls, one after the other: a caller never spins for its reply.
        for _ in 0..100 {
            engine.execute(vec![take(0)]).await.remove(0).unwrap();
        }
        let taken = engine.execute(vec![take(7_200)]).await.remove(0).unwrap();
        assert!(matches!(taken, Reply::Taken(tasks) if tasks.len() == 1));
        assert_eq!(begun.elapsed().as_secs(), 3_600);
        engine.stop().await.unwrap();
    };
    local.run_until(calls).await;
}

#[tokio::test(start_paused = true)]
async fn a_dropped_task_is_a_crash() {
    let (engine, mut task) = start();
    let created = engine.execute(vec![create()]);
    tokio::select! {
        biased;
        _ = &mut task => panic!("the loop ends only when it is stopped"),
        created = created => assert_eq!(created, [Ok(Reply::Created(true))]),
    }
    let waiting = engine.execute(vec![take(60)]);
    let crash = async {
        tokio::select! {
            biased;
            _ = &mut task => panic!("the loop ends only when it is stopped"),
            // tidy: sleep because the time is virtual: it passes when the loop has nothing to do.
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
        }
        drop(task);
    };
    let (replies, ()) = tokio::join!(biased; waiting, crash);
    assert!(matches!(replies[0], Err(Error::OutcomeUnknown(_))), "{replies:?}");
    let after = engine.execute(vec![take(0)]).await;
    assert!(matches!(after[0], Err(Error::Store(_))), "{after:?}");
}
