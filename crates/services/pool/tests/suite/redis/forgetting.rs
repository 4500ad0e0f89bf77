//! A Redis that forgets everything, or the last things: who ran runs on, who waited waits on, and no limit is exceeded.

use rustix::process::Signal;
use serde_json::Value;

use super::failing::{Cast, end};
use super::play::Process;

/// Tasks that take the places of all backends.
const LONG: &str = r#"{"duration": 50}"#;

/// How Redis forgets.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Loss {
    Emptied,
    EmptiedTwice,
    /// It is killed and has nothing on disk.
    Restarted,
    /// It is killed, and knows what it knew some time ago.
    Behind,
}

async fn lose(cast: &Cast, loss: Loss) {
    let redis = cast.yard.redis();
    match loss {
        Loss::Emptied => drop(redis.talk(&["FLUSHALL"])),
        Loss::EmptiedTwice => {
            redis.talk(&["FLUSHALL"]);
            cast.yard.until(|status| status["paused"] == true).await;
            redis.talk(&["FLUSHALL"]);
        }
        Loss::Restarted | Loss::Behind => {
            redis.kill();
            redis.start();
        }
    }
}

/// Two that run and three that wait, and then all is forgotten. Places were given away when a moment had passed that was meant
/// to be long enough for all backends to say what they run; those that had said so after the scheduler's last look at
/// everybody were not known to it, and one who waited was started in the place of one who ran.
async fn all_is_told_again(cast: &Cast, loss: Loss) {
    let far = cast.far();
    let mut running = Vec::new();
    for _ in 0..2 {
        let script = "echo up; sleep 6; echo made > result.txt";
        let mut client = far.start(LONG, script).await;
        client.until_output("up").await;
        running.push(client);
        if loss == Loss::Behind {
            assert_eq!(cast.yard.redis().talk(&["SAVE"]), "OK");
        }
    }
    let mut waiting = Vec::new();
    for _ in 0..3 {
        let mut client = far.start(LONG, "echo x > result.txt").await;
        client.until("queue").await;
        waiting.push(client);
    }
    lose(cast, loss).await;
    let all = |status: &Value| status["remembered"] == 5 && status["paused"] == false;
    let status = cast.yard.until(all).await;
    let counts = (&status["running"], &status["queued"]);
    assert_eq!(counts, (&2.into(), &3.into()), "{loss:?} {status:#}");
    for client in running.iter_mut().chain(&mut waiting) {
        assert_eq!(client.until("result").await.bytes.len() % 3, 2);
        assert_eq!(end(client).await, "");
    }
    cast.yard.until_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_forgot_everything_is_told_again() {
    let Some(cast) = Cast::new().await else { return };
    for loss in [Loss::Emptied, Loss::EmptiedTwice] {
        all_is_told_again(&cast, loss).await;
        let account = cast.audit.check("");
        assert_eq!(account.attempts.len() % 5, 0, "nobody ran twice: {account:?}");
    }
    all_is_told_again(&cast, Loss::Restarted).await;
}

/// Half a memory: allocations of tasks that have ended, and none of those that began since. It was believed before, and task and lead
/// numbers came twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_comes_back_with_an_old_memory_is_told_again() {
    let Some(cast) = Cast::new().await else { return };
    let counter = || cast.yard.redis().talk(&["GET", "task.counter"]).parse::<u64>().unwrap();
    all_is_told_again(&cast, Loss::Behind).await;
    let before = counter();
    // What is on disk is from before those who ended above.
    cast.yard.redis().kill();
    cast.yard.redis().start();
    cast.yard.until(|status| status["backends"] == 2 && status["paused"] == false).await;
    assert!(counter() >= before, "a number comes twice");
    cast.yard.until_empty().await;
}

/// A backend that is silent longer than its lease while Redis forgets: its place is not its own any more when it comes, and
/// its client is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_that_comes_back_too_late_has_no_place() {
    let Some(cast) = Cast::new().await else { return };
    let far = cast.far();
    let mut late = far.start(LONG, "echo up; exec sleep 1000").await;
    late.until_output("up").await;
    let busy = cast.busy().await;
    let mut other = far.start(LONG, "echo up; sleep 4; echo made > result.txt").await;
    other.until_output("up").await;
    let mut waiting = far.start(LONG, "echo x > result.txt").await;
    waiting.until("queue").await;
    cast.backends[busy].signal(Signal::STOP);
    cast.yard.redis().talk(&["FLUSHALL"]);
    let settled = |status: &Value| {
        status["paused"] == false && status["backends"] == 1 && status["running"] == 1
    };
    cast.yard.until(settled).await;
    cast.backends[busy].signal(Signal::CONT);
    let why = end(&mut late).await;
    let told = ["nobody waits for it any more", "the program or its backend was killed"];
    assert!(told.contains(&why.as_str()), "{why}");
    for client in [&mut other, &mut waiting] {
        client.until("result").await;
        assert_eq!(end(client).await, "");
    }
    cast.until_empty().await;
}

/// The first output comes when Redis has forgotten the task and its backend has not said yet that it runs it: it was taken for that of
/// a run that is not the task's own any more, and the program was stopped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_that_comes_while_redis_knows_nothing_is_shown_once_it_does() {
    let Some(cast) = Cast::new().await else { return };
    for _ in 0..3 {
        let before = cast.audit.account("").attempts.len();
        let script = "sleep 0.1; echo out; echo made > result.txt";
        let mut client = cast.far().start(LONG, script).await;
        client.until("output").await;
        cast.yard.redis().talk(&["FLUSHALL"]);
        let heard = client.rest().await;
        let outputs = heard.iter().filter(|one| one.bytes == b"out\n").count();
        assert_eq!((outputs, heard.last().unwrap().error()), (1, ""), "{heard:?}");
        assert_eq!(cast.until_empty().await.attempts.len(), before + 1, "it ran once");
    }
}

/// Backends that die with Redis: nobody knew that their tasks had ever run, so that one whose client had seen nothing waited
/// for ever, as did one whose client had.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backends_that_die_with_redis_return_their_tasks_or_tell_the_client() {
    let Some(mut cast) = Cast::new().await else { return };
    let far = cast.far();
    let mut unseen = far.start(LONG, "sleep 1; echo made > result.txt").await;
    unseen.until("output").await;
    let mut seen = far.start(LONG, "echo up; exec sleep 1000").await;
    seen.until_output("up").await;
    cast.yard.redis().talk(&["FLUSHALL"]);
    cast.backends.drain(..).for_each(Process::kill);
    let _backend = cast.yard.process("backend");
    assert_eq!(end(&mut seen).await, "the program or its backend was killed");
    unseen.until("result").await;
    assert_eq!(end(&mut unseen).await, "");
    cast.until_empty().await;
}
