//! A Redis that loses all or the latest data: running tasks continue, waiting ones wait on, and no limit is exceeded.

use rustix::process::Signal;
use serde_json::Value;
use taskyard_testkit::random::runs;

use super::failures::{ProcessPool, end};
use super::process::Process;

/// Options of tasks that occupy all backends.
const LONG: &str = r#"{"duration": 50}"#;

/// How Redis loses data.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Loss {
    Emptied,
    EmptiedTwice,
    /// It is killed and has nothing on disk.
    Restarted,
    /// It is killed and restarts with older data.
    Behind,
}

async fn lose(pool: &ProcessPool, loss: Loss) {
    let redis = pool.fixture.redis();
    match loss {
        Loss::Emptied => drop(redis.talk(&["FLUSHALL"])),
        Loss::EmptiedTwice => {
            redis.talk(&["FLUSHALL"]);
            pool.fixture.until(|status| status["paused"] == true).await;
            redis.talk(&["FLUSHALL"]);
        }
        Loss::Restarted | Loss::Behind => {
            redis.kill();
            redis.start();
        }
    }
}

/// Two tasks run and three wait, then all data is lost. Tasks were started after a delay that was meant to be long
/// enough for all backends to report their runs; runs reported after the scheduler's last scan were not known to it,
/// and a waiting task was started in the slot of a running one.
async fn all_state_is_reported(pool: &ProcessPool, loss: Loss) {
    let far = pool.far();
    let mut running = Vec::new();
    for _ in 0..2 {
        // Longer than the state needs to be reported on a busy machine.
        let script = "echo up; sleep 15; echo made > result.txt";
        let mut client = far.start(LONG, script).await;
        client.until_output("up").await;
        running.push(client);
        if loss == Loss::Behind {
            assert_eq!(pool.fixture.redis().talk(&["SAVE"]), "OK");
        }
    }
    let mut waiting = Vec::new();
    for _ in 0..3 {
        let mut client = far.start(LONG, "echo x > result.txt").await;
        client.until("queue").await;
        waiting.push(client);
    }
    lose(pool, loss).await;
    let all = |status: &Value| status["tracked"] == 5 && status["paused"] == false;
    let status = pool.fixture.until(all).await;
    let counts = (&status["running"], &status["queued"]);
    assert_eq!(counts, (&2.into(), &3.into()), "{loss:?} {status:#}");
    for client in running.iter_mut().chain(&mut waiting) {
        assert_eq!(client.until("result").await.bytes.len() % 3, 2);
        assert_eq!(end(client).await, "");
    }
    pool.fixture.until_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_state_is_reported_to_a_redis_that_lost_its_data() {
    let Some(pool) = ProcessPool::new().await else { return };
    for loss in [Loss::Emptied, Loss::EmptiedTwice] {
        all_state_is_reported(&pool, loss).await;
        let log = pool.audit.check("");
        assert_eq!(log.attempts.len() % 5, 0, "no task ran twice: {log:?}");
    }
    all_state_is_reported(&pool, Loss::Restarted).await;
}

/// Old data: allocations of tasks that have ended, and none of those that started since. It was believed, and numbers
/// of tasks and leads were issued twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_state_is_reported_to_a_redis_with_old_data() {
    let Some(pool) = ProcessPool::new().await else { return };
    let counter = || pool.fixture.redis().talk(&["GET", "task.counter"]).parse::<u64>().unwrap();
    all_state_is_reported(&pool, Loss::Behind).await;
    let before = counter();
    // The data on disk is older than the tasks that ended above.
    pool.fixture.redis().kill();
    pool.fixture.redis().start();
    pool.fixture.until(|status| status["backends"] == 2 && status["paused"] == false).await;
    assert!(counter() >= before, "a number comes twice");
    pool.fixture.until_empty().await;
}

/// A backend that is silent longer than its lease during a data loss has lost its slot when it reports, and its
/// client receives an error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_that_reports_too_late_has_lost_its_slot() {
    let Some(pool) = ProcessPool::new().await else { return };
    let far = pool.far();
    let mut late = far.start(LONG, "echo up; exec sleep 1000").await;
    late.until_output("up").await;
    let busy = pool.busy().await;
    let mut other = far.start(LONG, "echo up; sleep 4; echo made > result.txt").await;
    other.until_output("up").await;
    let mut waiting = far.start(LONG, "echo x > result.txt").await;
    waiting.until("queue").await;
    pool.backends[busy].signal(Signal::STOP);
    pool.fixture.redis().talk(&["FLUSHALL"]);
    let settled = |status: &Value| {
        status["paused"] == false && status["backends"] == 1 && status["running"] == 1
    };
    pool.fixture.until(settled).await;
    pool.backends[busy].signal(Signal::CONT);
    let why = end(&mut late).await;
    let expected = ["the task was withdrawn", "the program or its backend was killed"];
    assert!(expected.contains(&why.as_str()), "{why}");
    for client in [&mut other, &mut waiting] {
        client.until("result").await;
        assert_eq!(end(client).await, "");
    }
    pool.until_empty().await;
}

/// The first output arrived when Redis had lost the task and its backend had not reported it yet: the run was
/// considered not the task's current one, and the program was stopped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_during_a_data_loss_is_shown_once_the_run_is_known() {
    let Some(pool) = ProcessPool::new().await else { return };
    for _ in 0..runs() {
        let before = pool.audit.log("").attempts.len();
        let script = "sleep 0.1; echo out; echo made > result.txt";
        let mut client = pool.far().start(LONG, script).await;
        client.until("output").await;
        pool.fixture.redis().talk(&["FLUSHALL"]);
        let received = client.rest().await;
        let outputs = received.iter().filter(|one| one.bytes == b"out\n").count();
        assert_eq!((outputs, received.last().unwrap().error()), (1, ""), "{received:?}");
        assert_eq!(pool.until_empty().await.attempts.len(), before + 1, "it ran once");
    }
}

/// Backends fail together with Redis: no part knew that their tasks had ever run, so that tasks waited forever
/// whether their clients had seen output or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backends_that_fail_with_redis_requeue_or_end_their_tasks() {
    let Some(mut pool) = ProcessPool::new().await else { return };
    let far = pool.far();
    let mut unseen = far.start(LONG, "sleep 1; echo made > result.txt").await;
    unseen.until("output").await;
    let mut seen = far.start(LONG, "echo up; exec sleep 1000").await;
    seen.until_output("up").await;
    pool.fixture.redis().talk(&["FLUSHALL"]);
    pool.backends.drain(..).for_each(Process::kill);
    let _backend = pool.fixture.process("backend");
    assert_eq!(end(&mut seen).await, "the program or its backend was killed");
    unseen.until("result").await;
    assert_eq!(end(&mut unseen).await, "");
    pool.until_empty().await;
}
