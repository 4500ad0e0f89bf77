//! What happens when something goes wrong: a test for each row of the matrix in the documents.

use std::time::Duration;

use taskyard::State;
use taskyard::worker::kit::Kit;
use taskyard::worker::{Metrics, Poison, Settings, Worker};
use taskyard_core::{Error, TaskId};

use super::post::{Act, Post, metric, notify, put, put_poison};
use super::rough::{Rough, Way};
use crate::rig::block_on;

const VISIBILITY: Duration = Duration::from_secs(60);

/// Lets a handler do `act` with one e-mail; what is counted then, and the kit to look further.
async fn after(act: Act) -> (Kit, Post, String) {
    let (kit, post) = (Kit::new(), Post::new(act));
    let worker = post.worker(&kit).build().unwrap();
    let running = kit.start(&worker).await;
    put(kit.queue(), "ann").await;
    post.begun().await;
    // The next batch begins when the first is over.
    post.now(Act::Done);
    kit.until("emails", |tube| tube.stats.tasks.taken <= 1).await;
    let text = loop {
        let text = worker.metrics().text();
        if metric(&text, "queue_job_processor_cycle_duration_seconds_count{queue_num=\"1\"}") > 0.0
        {
            break text;
        }
        tokio::task::yield_now().await;
    };
    // The worker itself goes on.
    put(kit.queue(), "ben").await;
    kit.until("emails", |tube| tube.stats.calls.ack >= 1).await;
    running.crash().await;
    (kit, post, text)
}

/// Checks that a task whose handler did not settle it returns by its time, with one attempt more.
async fn returns_by_its_time(kit: &Kit) {
    let task = || async { kit.client().peek("emails", TaskId(0)).await.unwrap().unwrap() };
    assert_eq!(task().await.task.state, State::Taken, "no retry at once: it would be a storm");
    kit.advance(VISIBILITY - Duration::from_secs(1));
    assert_eq!(task().await.task.state, State::Taken);
    kit.advance(Duration::from_secs(1));
    kit.until("emails", |tube| tube.stats.tasks.ready == 1).await;
    assert_eq!(task().await.attempts(), 1);
}

#[test]
fn a_handler_that_fails() {
    block_on(async {
        let (kit, _, text) = after(Act::Fail).await;
        assert_eq!(metric(&text, "queue_handler_errors_total{queue_num=\"1\"}"), 1.0);
        assert_eq!(metric(&text, "queue_tasks_in_progress{queue_num=\"1\"}"), 0.0);
        returns_by_its_time(&kit).await;
    });
}

/// Upstream the whole process died of it.
#[test]
fn a_handler_that_panics() {
    block_on(async {
        let (kit, post, text) = after(Act::Panic).await;
        assert_eq!(metric(&text, "queue_handler_panics_total{queue_num=\"1\"}"), 1.0);
        assert_eq!(metric(&text, "queue_tasks_in_progress{queue_num=\"1\"}"), 0.0);
        assert_eq!(post.receivers(), ["ann", "ben"], "the processor goes on");
        returns_by_its_time(&kit).await;
    });
}

#[test]
fn a_handler_that_forgets_tasks() {
    block_on(async {
        let (kit, _, text) = after(Act::Forget).await;
        assert_eq!(metric(&text, "queue_tasks_unsettled_total{queue_num=\"1\"}"), 1.0);
        returns_by_its_time(&kit).await;
    });
}

#[test]
fn a_handler_that_counts_more_than_it_was_given() {
    block_on(async {
        let (_, _, text) = after(Act::Boast).await;
        assert_eq!(metric(&text, "queue_tasks_processed_total{queue_num=\"1\"}"), 1.0);
    });
}

/// Upstream one payload that could not be read failed its whole batch, for ever.
#[test]
fn poison_does_not_stop_its_neighbours() {
    block_on(async {
        let (kit, post) = (Kit::new(), Post::new(Act::Done));
        let worker = post.worker(&kit).build().unwrap();
        worker.init().await.unwrap();
        put(kit.queue(), "ann").await;
        put_poison(&kit).await;
        put(kit.queue(), "ben").await;
        let running = kit.start(&worker).await;
        kit.drained("emails").await;
        assert_eq!(post.receivers(), ["ann", "ben"]);
        let poison = || async { kit.client().peek("emails", TaskId(1)).await.unwrap().unwrap() };
        assert_eq!(poison().await.task.state, State::Delayed);
        for (attempts, seconds) in [(2, 1), (3, 2), (4, 4)] {
            kit.advance(Duration::from_secs(seconds));
            kit.until("emails", |tube| tube.stats.calls.release >= attempts).await;
            assert_eq!(u64::from(poison().await.attempts()), attempts, "later and later");
        }
        let text = worker.metrics().text();
        assert_eq!(metric(&text, "queue_tasks_poison_total{queue_num=\"1\"}"), 4.0);
        running.stop().await;
    });
}

#[test]
fn poison_can_be_dropped() {
    block_on(async {
        let (kit, post) = (Kit::new(), Post::new(Act::Done));
        let settings = Settings { poison: Poison::Drop, ..Settings::default() };
        let worker = post.worker(&kit).settings(settings).build().unwrap();
        let running = kit.start(&worker).await;
        put_poison(&kit).await;
        kit.until("emails", |tube| tube.stats.calls.ack == 1).await;
        assert_eq!(kit.tube("emails").await.stats.tasks.total(), 0);
        assert!(post.mails().is_empty());
        running.stop().await;
    });
}

#[test]
fn a_cycle_that_takes_too_long_is_counted() {
    block_on(async {
        let (kit, post) = (Kit::new(), Post::new(Act::Wait));
        let worker = post.worker(&kit).build().unwrap();
        let running = kit.start(&worker).await;
        for seconds in [10, 11] {
            put(kit.queue(), "ann").await;
            post.begun().await;
            kit.advance(Duration::from_secs(seconds));
            post.gate.add_permits(1);
            kit.drained("emails").await;
        }
        running.stop().await;
        let text = worker.metrics().text();
        assert_eq!(metric(&text, "queue_slow_cycles_total{queue_num=\"1\"}"), 1.0);
        let sum = metric(&text, "queue_job_processor_cycle_duration_seconds_sum{queue_num=\"1\"}");
        assert!((21.0..22.0).contains(&sum), "{sum}");
    });
}

/// Three processors, one queue that cannot be asked: it is asked again after 0.1 s, 0.2 s, 0.4 s, by one of them, and
/// the other queue does not notice.
#[test]
fn a_queue_that_cannot_be_asked_is_left_alone_and_the_others_go_on() {
    block_on(async {
        let (kit, post) = (Kit::new(), Post::new(Act::Done));
        let rough = Rough::new(kit.queue().clone());
        let settings = Settings { max_processors: 3, ..Settings::default() };
        let worker = Worker::builder("test", rough.clone(), post.handlers()).timer(kit.timer());
        let worker = worker.settings(settings).build().unwrap();
        worker.init().await.unwrap();
        put(kit.queue(), "ann").await;
        rough.next_of("emails", "take", usize::MAX, Way::Refuse(Error::Store("broken".into())));
        let running = kit.start(&worker).await;
        let failures =
            || metric(&worker.metrics().text(), "queue_store_errors_total{queue_num=\"1\"}");
        while failures() == 0.0 {
            tokio::task::yield_now().await;
        }
        // Everybody who asked at the same time has its answer when the other queue was served.
        notify(kit.queue(), "x").await;
        kit.until("notifications", |tube| tube.stats.calls.ack == 1).await;
        let first = rough.hits();
        assert!(first <= 3, "{first}");
        // A fifth longer by chance.
        for (retry, millis) in [(1, 120), (2, 240), (3, 480)] {
            notify(kit.queue(), "x").await;
            kit.until("notifications", |tube| tube.stats.calls.ack == retry + 1).await;
            assert_eq!(rough.hits(), first + retry as usize - 1, "not before its time");
            kit.advance(Duration::from_millis(millis));
            rough.until_hit(first + retry as usize).await;
        }
        assert!(post.mails().is_empty());
        rough.heal();
        kit.advance(Duration::from_secs(1));
        kit.drained("emails").await;
        assert_eq!(post.receivers(), ["ann"]);
        running.stop().await;
    });
}

/// A handler that takes longer than the visibility timeout keeps its tasks.
#[test]
fn heartbeats_keep_a_long_batch() {
    block_on(async {
        let (kit, post) = (Kit::new(), Post::new(Act::Wait));
        let worker = post.worker(&kit).build().unwrap();
        let running = kit.start(&worker).await;
        put(kit.queue(), "ann").await;
        post.begun().await;
        for beat in 1..=9 {
            kit.advance(VISIBILITY / 3);
            kit.until("emails", |tube| tube.stats.calls.touch >= beat).await;
        }
        post.gate.add_permits(1);
        kit.drained("emails").await;
        let tube = kit.tube("emails").await;
        assert_eq!((tube.stats.calls.ack, tube.stats.calls.ttr), (1, 0));
        running.stop().await;
    });
}

/// The first of two deliveries of a task ends after the second has begun. Both were known by the task's number,
/// and the first handler acked the delivery of the second.
#[test]
fn a_stale_delivery_is_fenced() {
    block_on(async {
        let (kit, post) = (Kit::new(), Post::new(Act::Wait));
        let metrics = Metrics::default();
        let settings = Settings { max_processors: 2, ..Settings::default() };
        let worker = post.worker(&kit).settings(settings).metrics(metrics.clone()).build().unwrap();
        let running = kit.start(&worker).await;
        put(kit.queue(), "ann").await;
        post.begun().await;
        kit.deliver_again("emails").await;
        post.begun().await;
        let attempts: Vec<_> = post.mails().iter().map(|mail| mail.attempts).collect();
        assert_eq!(attempts, [0, 1]);
        assert!(post.mails()[1].prev_start_time.is_some());
        post.gate.add_permits(2);
        kit.drained("emails").await;
        running.stop().await;
        assert_eq!(kit.tube("emails").await.stats.calls.ack, 1);
        assert_eq!(metric(&metrics.text(), "queue_tasks_fenced_total{queue_num=\"1\"}"), 1.0);
    });
}
