//! Many threads at once: no task is lost, none is held twice.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use taskyard_core::{
    Body, Command, Execute, Finish, Kind, NewTask, Outcome, Reply, Span, Task, TubeOptions,
};
use taskyard_engine::{Engine, Settings, SystemClock};
use taskyard_store::MemoryStore;
use tokio::runtime::Builder;
use tokio::task::JoinSet;

use crate::fixture::{finish, take, taken, tube};

const PRODUCERS: usize = 8;
const CONSUMERS: usize = 8;
const TASKS_EACH: usize = 500;
const TOTAL: usize = PRODUCERS * TASKS_EACH;

#[test]
fn no_task_is_lost_or_done_twice() {
    let runtime = Builder::new_multi_thread().worker_threads(16).build().unwrap();
    let seed = std::env::var("TASKYARD_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("TASKYARD_SEED={seed}");
    let done = runtime.block_on(storm(seed));
    assert_eq!(done.len(), TOTAL, "every task is done");
    assert!(done.values().all(|times| *times == 1), "and no task twice");
}

async fn storm(seed: u64) -> HashMap<u64, usize> {
    let store = Box::<MemoryStore>::default();
    let engine = Engine::start(store, Arc::new(SystemClock::new()), Settings::default());
    let options = TubeOptions::new(Kind::FifoTtl);
    let create = Command::CreateTube { tube: tube("mail"), options, if_not_exists: false };
    engine.execute(vec![create]).await[0].clone().unwrap();
    let finished = Arc::new(AtomicUsize::new(0));
    let mut producers = JoinSet::new();
    for n in 0..PRODUCERS {
        producers.spawn(produce(engine.clone(), seed.wrapping_add(n as u64)));
    }
    let mut consumers = JoinSet::new();
    for n in 0..CONSUMERS {
        let random = fastrand::Rng::with_seed(seed ^ (n as u64 + 1) << 32);
        consumers.spawn(consume(engine.clone(), random, finished.clone()));
    }
    producers.join_all().await;
    let mut done = HashMap::new();
    for id in consumers.join_all().await.into_iter().flatten() {
        *done.entry(id).or_insert(0) += 1;
    }
    engine.stop().await.unwrap();
    done
}

async fn produce(engine: Engine, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut left = TASKS_EACH;
    while left > 0 {
        let count = random.usize(1..=left.min(7));
        left -= count;
        let tasks = vec![NewTask::new(Body::new(&[0xc0])); count];
        let put = Command::Put { tube: tube("mail"), tasks, wait: Span::ZERO };
        engine.execute(vec![put]).await[0].clone().unwrap();
        tokio::task::yield_now().await;
    }
}

/// Takes, sometimes leaves before the reply, sometimes releases, and returns what it finished.
async fn consume(
    engine: Engine,
    mut random: fastrand::Rng,
    finished: Arc<AtomicUsize>,
) -> Vec<u64> {
    let mut mine = Vec::new();
    while finished.load(Ordering::SeqCst) < TOTAL {
        let wait = Span::from_micros(if random.bool() { 0 } else { 20_000 });
        let asked = engine.execute(vec![take("mail", random.usize(1..=4), wait)]);
        let patience = if random.u8(..) < 64 { random.usize(..3) } else { usize::MAX };
        let Some(mut replies) = within(asked, patience).await else { continue };
        let tasks = taken(replies.remove(0));
        assert!(
            tasks.iter().all(|task| task.attempts == 0),
            "an undelivered task does not count as an attempt"
        );
        let done = end_of(&engine, &tasks, &mut random).await;
        finished.fetch_add(done.len(), Ordering::SeqCst);
        mine.extend(done);
    }
    mine
}

/// The reply, unless it takes longer than the caller waits; then it is dropped.
async fn within<T>(asked: impl Future<Output = T>, patience: usize) -> Option<T> {
    if patience == usize::MAX {
        return Some(asked.await);
    }
    let mut asked = Box::pin(asked);
    for _ in 0..patience {
        tokio::select! {
            biased;
            answer = &mut asked => return Some(answer),
            () = tokio::task::yield_now() => {}
        }
    }
    None
}

async fn end_of(engine: &Engine, tasks: &[Task], random: &mut fastrand::Rng) -> Vec<u64> {
    if tasks.is_empty() {
        return Vec::new();
    }
    let ack = random.u8(..) < 200;
    let how = if ack { Finish::Ack } else { Finish::Release { delay: Span::ZERO, counted: false } };
    let reply = engine.execute(vec![finish("mail", tasks, how)]).await.remove(0).unwrap();
    let Reply::Finished(outcomes) = reply else { panic!("not an answer to a finish: {reply:?}") };
    for outcome in &outcomes {
        assert!(matches!(outcome, Outcome::Done(_)), "our lease is good");
    }
    if ack { tasks.iter().map(|task| task.id.0).collect() } else { Vec::new() }
}
