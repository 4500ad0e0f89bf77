//! Traces that an engine records on a manual clock, and their replays.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use taskyard_core::{
    Body, Command, Execute, Finish, FinishItem, Holder, Kind, NewTask, Reply, Span, Take, Task,
    TaskId, Timestamp, TubeChange, TubeName, TubeOptions,
};
use taskyard_engine::{Engine, ManualClock, Settings};
use taskyard_store::MemoryStore;
use taskyard_trace::{
    ConsumerRule, EndReason, ReadLimits, Scenario, Trace, TraceFile, read, read_file, replay,
};

use crate::fixture::Fixture;

const SECOND: i64 = 1_000_000;
/// It is in no trace.
const SECRET: &str = "ann-of-green-gables";

/// An engine in memory that is recorded.
struct Recorded {
    engine: Engine,
    clock: Arc<ManualClock>,
    file: TraceFile,
}

impl Recorded {
    fn start(path: &Path) -> Self {
        let (file, recorder) = TraceFile::create(path, u64::MAX).unwrap();
        let clock = Arc::new(ManualClock::new(Timestamp::from_micros(1_000 * SECOND)));
        let store = Box::new(MemoryStore::default());
        let settings = Settings::default();
        let engine = Engine::start_recorded(store, clock.clone(), settings, Some(recorder));
        Recorded { engine, clock, file }
    }

    async fn run(&self, command: Command) -> Reply {
        self.engine.execute(vec![command]).await.remove(0).unwrap()
    }

    async fn create(&self, tube: &TubeName, options: TubeOptions) {
        self.run(Command::CreateTube { tube: tube.clone(), options, if_not_exists: false }).await;
    }

    async fn put(&self, tube: &TubeName, task: NewTask) {
        let put = Command::Put { tube: tube.clone(), tasks: vec![task], wait: Span::ZERO };
        self.run(put).await;
    }

    async fn take(&self, tube: &TubeName) -> Option<Task> {
        let take = Take {
            tube: tube.clone(),
            count: 1,
            session: None,
            lease: Some(Span::from_secs(600)),
            worker: Some(SECRET.into()),
            wait: Span::ZERO,
        };
        match self.run(Command::Take(take)).await {
            Reply::Taken(mut tasks) => tasks.pop(),
            other => panic!("{other:?}"),
        }
    }

    async fn finish(&self, tube: &TubeName, id: TaskId, finish: Finish) {
        let items = vec![FinishItem { id, holder: Holder::Any, finish }];
        self.run(Command::Finish { tube: tube.clone(), items, show: false }).await;
    }

    async fn stop(self, path: &Path) -> Trace {
        self.engine.stop().await.unwrap();
        drop(self.engine);
        self.file.join();
        read_file(path, ReadLimits::default(), |_| ()).unwrap()
    }
}

fn tube(name: &str) -> TubeName {
    TubeName::new(name).unwrap()
}

fn task() -> NewTask {
    NewTask::new(Body::new(SECRET.as_bytes()))
}

/// Runs a generated schedule with so many consumers, each of which takes the next task at once.
async fn run_schedule(recorded: &Recorded, mail: &TubeName, seed: u64, consumers: usize) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut puts: VecDeque<i64> = VecDeque::new();
    let mut at = 0;
    for _ in 0..400 {
        at += random.i64(0..SECOND / 5);
        puts.push_back(at);
    }
    let (mut now, mut running): (i64, Vec<(i64, TaskId)>) = (0, Vec::new());
    loop {
        let next_end = running.iter().map(|task| task.0).min();
        let Some(next) = puts.front().copied().into_iter().chain(next_end).min() else { return };
        recorded.clock.advance(Span::from_micros(next - now));
        now = next;
        running.sort_unstable();
        while running.first().is_some_and(|task| task.0 == now) {
            recorded.finish(mail, running.remove(0).1, Finish::Ack).await;
        }
        while puts.front() == Some(&now) {
            puts.pop_front();
            let pri = Some(random.u64(0..3));
            recorded.put(mail, NewTask { pri, ..task() }).await;
        }
        while running.len() < consumers
            && let Some(taken) = recorded.take(mail).await
        {
            running.push((now + random.i64(1..SECOND), taken.id));
        }
    }
}

#[tokio::test]
async fn a_recorded_schedule_is_reproduced() {
    for (seed, consumers) in [(1, 1), (2, 4), (3, 7)] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace");
        let recorded = Recorded::start(&path);
        let mail = tube("mail");
        recorded.create(&mail, TubeOptions::new(Kind::FifoTtl)).await;
        run_schedule(&recorded, &mail, seed, consumers).await;
        let trace = recorded.stop(&path).await;
        assert_eq!((trace.len(), trace.end_reason), (400, Some(EndReason::Stopped)));
        assert_eq!(trace.tubes[0].consumers.most(), consumers as u32);
        let figures = trace.recorded_figures()[0];
        let mut found = replay(&trace, &Scenario::default(), |_| ()).unwrap();
        assert_eq!(found.tubes[0].figures(), figures, "seed {seed}");
        let more = ConsumerRule { tube: None, count: consumers as u32 + 2 };
        let scenario = Scenario { consumers: vec![more], ..Scenario::default() };
        let mut found = replay(&trace, &scenario, |_| ()).unwrap();
        assert!(found.tubes[0].figures().p90 <= figures.p90, "seed {seed}");
    }
}

#[tokio::test]
async fn a_trace_has_the_rules_of_the_tubes_but_nothing_secret() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let recorded = Recorded::start(&path);
    let jobs = tube("jobs");
    let options = TubeOptions { ttr: Some(Span::from_secs(5)), ..TubeOptions::new(Kind::UtubeTtl) };
    recorded.create(&jobs, options.clone()).await;
    for _ in 0..2 {
        let subqueue = Some(SECRET.into());
        recorded.put(&jobs, NewTask { subqueue, ttl: Some(Span::from_secs(60)), ..task() }).await;
    }
    let internal = tube("taskyard.internal");
    recorded.create(&internal, TubeOptions::new(Kind::Fifo)).await;
    recorded.put(&internal, task()).await;
    let first = recorded.take(&jobs).await.unwrap();
    assert!(recorded.take(&jobs).await.is_none(), "its sub-queue is busy");
    recorded.clock.advance(Span::from_secs(3));
    recorded.finish(&jobs, first.id, Finish::fail(SECRET, Some(Span::from_secs(1)))).await;
    let change = TubeChange { paused: Some(true), ..TubeChange::default() };
    recorded.run(Command::AlterTube { tube: jobs.clone(), change }).await;
    recorded.run(Command::Delete { tube: jobs.clone(), ids: vec![TaskId(1)], show: false }).await;
    let trace = recorded.stop(&path).await;
    assert_eq!((trace.len(), trace.tubes.len(), trace.dropped), (2, 1, 0));
    assert_eq!(trace.tubes[0].options.as_deref(), Some(&options));
    assert_eq!(trace.tubes[0].bytes, 2 * SECRET.len() as u64);
    assert_eq!(trace.recorded_waits(), [[0]]);
    let bytes = std::fs::read(&path).unwrap();
    let has = |text: &str| bytes.windows(text.len()).any(|part| part == text.as_bytes());
    assert!(has("jobs") && !has(SECRET) && !has("internal"));
    assert_eq!(read(&bytes[..], ReadLimits::default(), |_| ()).unwrap().len(), 2);
}

// Options were read once, and a trace of a store that failed then had none.
#[tokio::test]
async fn options_that_could_not_be_read_are_read_later() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let (file, recorder) = TraceFile::create(&path, u64::MAX).unwrap();
    let fixture = Fixture::recorded(recorder).await;
    let reads = || {
        let batches = fixture.control.batches.lock().unwrap();
        let is_read = |command: &&Command| matches!(command, Command::Tubes { tube: Some(_) });
        batches.iter().flatten().filter(is_read).count()
    };
    // The put succeeds, and the store fails when the options are read.
    fixture.control.failing_next.store(true, Ordering::SeqCst);
    fixture.put("mail", b"a").await;
    for _ in 0..3 {
        fixture.idle().await;
        assert_eq!(reads(), 1, "it does not try again at once");
    }
    fixture.control.failing_next.store(false, Ordering::SeqCst);
    fixture.control.failing.store(false, Ordering::SeqCst);
    fixture.clock.advance(Span::from_secs(1));
    fixture.idle().await;
    assert_eq!(reads(), 2);
    fixture.engine.stop().await.unwrap();
    drop(fixture);
    file.join();
    let trace = read_file(&path, ReadLimits::default(), |_| ()).unwrap();
    assert_eq!(trace.tubes[0].options.as_deref(), Some(&TubeOptions::new(Kind::FifoTtl)));
}
