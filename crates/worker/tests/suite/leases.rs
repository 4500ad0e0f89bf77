//! Leases: extended while a handler runs, lost tasks, settlement over a faulty connection.

use std::time::Duration;

use taskyard::Execute;
use taskyard_core::{Command, Error, Finish, FinishItem, Holder, Span, TaskId, TubeName};
use taskyard_worker::testing::{TestKit, TestQueue};
use taskyard_worker::{
    BatchOutcome, Context, Dispatcher, Handler, HandlerStats, RawTask, Settings, SettledCount,
    Store, Worker,
};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::yield_now;

use crate::faulty_queue::{Fault, FaultyQueue};
use crate::recording_handler::{client, metric};
use taskyard_testkit::server::block_on;

const VISIBILITY: Duration = Duration::from_secs(60);

/// A batch that has started.
struct StartedBatch {
    ctx: Context,
    store: Store,
    ids: Vec<u64>,
    /// Lets its handler end.
    end: tokio::sync::oneshot::Sender<()>,
}

/// A handler that sends each batch to the test and waits until it is cancelled or may end. It settles nothing.
fn reporting_handler() -> (Handler, UnboundedReceiver<StartedBatch>) {
    let (send, receive) = unbounded_channel();
    let handler = Handler::raw(move |ctx: Context, store: Store, tasks: Vec<RawTask>| {
        let ids = tasks.iter().map(|task| task.delivery.task_id).collect();
        let (end, ended) = tokio::sync::oneshot::channel();
        let sent = send.send(StartedBatch { ctx: ctx.clone(), store, ids, end });
        async move {
            sent.map_err(|_| "the test has ended")?;
            tokio::select! {
                Ok(()) = ended => {}
                () = ctx.cancelled() => {}
            }
            Ok(HandlerStats::default())
        }
    });
    (handler, receive)
}

/// A handler that acks every task.
fn acking_handler() -> Handler {
    Handler::raw(|_, store: Store, tasks: Vec<RawTask>| async move {
        let mut outcome = BatchOutcome::new(&store);
        tasks.iter().for_each(|task| outcome.done(task.delivery.task_id));
        outcome.commit().await
    })
}

fn worker_on(
    kit: &TestKit,
    queue: &FaultyQueue<TestQueue>,
    handlers: Dispatcher,
    settings: Settings,
) -> Worker {
    let worker = Worker::builder("test", queue.clone(), handlers).timer(kit.timer());
    worker.settings(settings).build().unwrap()
}

fn mail(handler: Handler) -> Dispatcher {
    Dispatcher::new([]).with_queue(1, "mail", handler)
}

fn unavailable() -> Error {
    Error::StoreUnavailable("unavailable on purpose".into())
}

fn counted(worker: &Worker, name: &str) -> f64 {
    metric(&worker.metrics().text(), &format!("{name}{{queue_num=\"1\"}}"))
}

/// After a restart of the server another consumer got the task; the handler ran to its end, and its deadline moved
/// forward as if it still held the task.
#[test]
fn the_handler_of_a_lost_batch_is_cancelled() {
    block_on(async {
        let (kit, (handler, mut started)) = (TestKit::new(), reporting_handler());
        let worker = kit.worker(mail(handler)).build().unwrap();
        let running = kit.start(&worker).await;
        client(&kit).put("mail", "x").await.unwrap();
        let StartedBatch { ctx, ids, end, .. } = started.recv().await.unwrap();
        let deadline = ctx.lease_deadline();
        assert!(!ctx.is_cancelled() && !ctx.is_lost(ids[0]));
        kit.redeliver("mail").await;
        kit.advance(VISIBILITY / 3);
        ctx.cancelled().await;
        assert!(ctx.is_cancelled() && ctx.is_lost(ids[0]));
        assert_eq!(ctx.lease_deadline(), deadline, "the deadline is not moved");
        let again = started.recv().await.unwrap();
        assert!(!again.ctx.is_cancelled() && !again.ctx.is_lost(ids[0]));
        assert_eq!(again.ids, ids);
        assert_eq!(counted(&worker, "queue_tasks_fenced_total"), 1.0);
        drop(end);
        running.crash().await;
    });
}

/// Another processor of the same worker gets the task.
#[test]
fn a_batch_that_another_processor_got_is_cancelled() {
    block_on(async {
        let (kit, (handler, mut started)) = (TestKit::new(), reporting_handler());
        let settings = Settings { max_processors: 2, ..Settings::default() };
        let worker = kit.worker(mail(handler)).settings(settings).build().unwrap();
        let running = kit.start(&worker).await;
        client(&kit).put("mail", "x").await.unwrap();
        let first = started.recv().await.unwrap();
        kit.redeliver("mail").await;
        let second = started.recv().await.unwrap();
        let deadline = second.ctx.lease_deadline();
        kit.advance(VISIBILITY / 3);
        first.ctx.cancelled().await;
        while second.ctx.lease_deadline() == deadline {
            yield_now().await;
        }
        assert!(!second.ctx.is_cancelled() && !second.ctx.is_lost(second.ids[0]));
        running.crash().await;
    });
}

#[test]
fn a_lost_task_is_reported_and_the_rest_of_the_batch_is_kept() {
    block_on(async {
        let (kit, (handler, mut started)) = (TestKit::new(), reporting_handler());
        let worker = kit.worker(mail(handler)).build().unwrap();
        worker.init().await.unwrap();
        client(&kit).put_many("mail", &["a", "b"]).await.unwrap();
        let running = kit.start(&worker).await;
        let StartedBatch { ctx, ids, store, end } = started.recv().await.unwrap();
        let deadline = ctx.lease_deadline();
        let finish = Finish::Release { delay: Span::from_secs(999), counted: true };
        let items = vec![FinishItem { id: TaskId(0), holder: Holder::Any, finish }];
        let tube = TubeName::new("mail").unwrap();
        let taken_away = Command::Finish { tube, items, show: false };
        kit.queue().execute(vec![taken_away]).await.pop().unwrap().unwrap();
        kit.advance(VISIBILITY / 3);
        ctx.lost(ids[0]).await;
        while ctx.lease_deadline() == deadline {
            yield_now().await;
        }
        assert!(ctx.is_lost(ids[0]) && !ctx.is_lost(ids[1]) && !ctx.is_cancelled());
        assert_eq!(store.done(&ids).await.unwrap(), SettledCount { done: 1, lost: 1 });
        end.send(()).unwrap();
        running.stop().await;
    });
}

/// An unanswered request blocked the extension for a minute, and the lease ended.
#[test]
fn an_unanswered_extension_is_repeated_in_time() {
    block_on(async {
        let (kit, (handler, mut started)) = (TestKit::new(), reporting_handler());
        let faulty = FaultyQueue::new(kit.queue().clone());
        let worker = worker_on(&kit, &faulty, mail(handler), Settings::default());
        let running = kit.start(&worker).await;
        client(&kit).put("mail", "x").await.unwrap();
        let StartedBatch { ctx, .. } = started.recv().await.unwrap();
        faulty.fail_next("finish", 1, Fault::NoReply);
        kit.advance(VISIBILITY / 3);
        faulty.wait_for_faults(1).await;
        kit.advance(VISIBILITY / 3);
        while counted(&worker, "queue_store_errors_total") == 0.0 {
            yield_now().await;
        }
        kit.advance(Duration::from_secs(1));
        kit.wait_until("mail", |tube| tube.stats.calls.touch == 1).await;
        kit.advance(Duration::from_secs(21));
        let tube = kit.tube("mail").await;
        assert_eq!((tube.stats.tasks.taken, tube.stats.calls.ttr), (1, 0));
        assert!(!ctx.is_cancelled());
        running.crash().await;
    });
}

/// After refusals at 20 and 40 seconds, the next attempt was at 60, when the lease ends.
#[test]
fn a_failed_extension_is_repeated_soon() {
    block_on(async {
        let (kit, (handler, mut started)) = (TestKit::new(), reporting_handler());
        let worker = kit.worker(mail(handler)).build().unwrap();
        let running = kit.start(&worker).await;
        client(&kit).put("mail", "x").await.unwrap();
        let started = started.recv().await.unwrap();
        kit.fail_next("finish");
        kit.advance(VISIBILITY / 3);
        while counted(&worker, "queue_store_errors_total") == 0.0 {
            yield_now().await;
        }
        kit.advance(Duration::from_secs(1));
        kit.wait_until("mail", |tube| tube.stats.calls.touch == 1).await;
        drop(started);
        running.crash().await;
    });
}

/// The extensions of a lease failed until it ended. One more was sent then, and while it got no reply the handler ran on for a
/// third of the lease, beside that of the next delivery. Found by the simulator, `workers` 1049.
#[test]
fn a_handler_is_cancelled_when_its_lease_ends() {
    block_on(async {
        let (kit, (handler, mut started)) = (TestKit::new(), reporting_handler());
        let faulty = FaultyQueue::new(kit.queue().clone());
        let settings =
            Settings { visibility_timeout: Duration::from_secs(3), ..Settings::default() };
        let worker = worker_on(&kit, &faulty, mail(handler), settings);
        let running = kit.start(&worker).await;
        client(&kit).put("mail", "x").await.unwrap();
        let StartedBatch { ctx, .. } = started.recv().await.unwrap();
        faulty.fail_next("finish", 2, Fault::Refuse(unavailable()));
        faulty.fail_next("finish", usize::MAX, Fault::NoReply);
        for errors in [1.0, 2.0] {
            kit.advance(Duration::from_secs(1));
            while counted(&worker, "queue_store_errors_total") < errors {
                yield_now().await;
            }
        }
        assert!(!ctx.is_cancelled());
        kit.advance(Duration::from_secs(1));
        for _ in 0..100 {
            yield_now().await;
        }
        assert!(ctx.is_cancelled());
        running.crash().await;
    });
}

/// The lease of tasks that a waiting take brought was counted from the arrival of the reply: a worker whose reply was slow
/// believed its lease for longer than it lasted.
#[test]
fn the_lease_is_counted_from_when_the_take_was_sent() {
    block_on(async {
        let (kit, (handler, mut started)) = (TestKit::new(), reporting_handler());
        let faulty = FaultyQueue::new(kit.queue().clone());
        let worker = worker_on(&kit, &faulty, mail(handler), Settings::default());
        let running = kit.start(&worker).await;
        let sent = worker.store().now();
        // The first take does not wait, the second does.
        faulty.wait_for_commands("take", 2).await;
        kit.advance(Duration::from_millis(700));
        client(&kit).put("mail", "x").await.unwrap();
        let StartedBatch { ctx, .. } = started.recv().await.unwrap();
        assert_eq!(ctx.lease_deadline(), sent + Span::from(VISIBILITY));
        running.crash().await;
    });
}

/// The end of a handler was not noticed while an extension hung.
#[test]
fn a_handler_ends_while_an_extension_hangs() {
    block_on(async {
        let (kit, (handler, mut started)) = (TestKit::new(), reporting_handler());
        let faulty = FaultyQueue::new(kit.queue().clone());
        let worker = worker_on(&kit, &faulty, mail(handler), Settings::default());
        let running = kit.start(&worker).await;
        client(&kit).put("mail", "x").await.unwrap();
        let batch = started.recv().await.unwrap();
        faulty.fail_next("finish", usize::MAX, Fault::NoReply);
        kit.advance(VISIBILITY / 3);
        faulty.wait_for_faults(1).await;
        batch.end.send(()).unwrap();
        while counted(&worker, "queue_tasks_unsettled_total") == 0.0 {
            yield_now().await;
        }
        running.crash().await;
    });
}

/// A processor that waited for a queue which never answers made `shutdown` wait forever.
#[test]
fn a_shutdown_does_not_wait_for_a_queue_that_hangs() {
    block_on(async {
        let kit = TestKit::new();
        let faulty = FaultyQueue::new(kit.queue().clone());
        let worker = worker_on(&kit, &faulty, mail(acking_handler()), Settings::default());
        worker.init().await.unwrap();
        faulty.fail_next("take", usize::MAX, Fault::NoReply);
        faulty.fail_next("finish", usize::MAX, Fault::NoReply);
        let running = kit.start(&worker).await;
        faulty.wait_for_faults(1).await;
        let stopping = worker.clone();
        let stopping = tokio::spawn(async move { stopping.shutdown(Duration::from_secs(5)).await });
        running.stop().await;
        let still = stopping.await.unwrap().unwrap_err();
        assert_eq!(still.0, ["processor 0 on queue 'mail'"]);
    });
}

/// A waiting take asked for a lease of ten seconds, then the setting was raised to a minute: the lease of its batch was
/// to be extended after twenty seconds.
#[test]
fn a_changed_visibility_timeout_applies_to_later_takes() {
    block_on(async {
        let (kit, (handler, mut started)) = (TestKit::new(), reporting_handler());
        let of = |seconds| Settings {
            visibility_timeout: Duration::from_secs(seconds),
            ..Settings::default()
        };
        let faulty = FaultyQueue::new(kit.queue().clone());
        let worker = worker_on(&kit, &faulty, mail(handler), of(9));
        let running = kit.start(&worker).await;
        // The first take does not wait, the second does.
        faulty.wait_for_commands("take", 2).await;
        worker.reconfigure(of(60)).unwrap();
        client(&kit).put("mail", "x").await.unwrap();
        let StartedBatch { ctx, .. } = started.recv().await.unwrap();
        let now = worker.store().now();
        assert_eq!(ctx.lease_deadline(), now + Span::from_secs(9));
        kit.advance(Duration::from_secs(3));
        kit.wait_until("mail", |tube| tube.stats.calls.touch == 1).await;
        running.crash().await;
    });
}

/// The database was unavailable for a second when the work was done: the ack was refused, and the work was repeated a
/// minute later.
#[test]
fn an_ack_is_repeated_until_the_queue_is_available() {
    block_on(async {
        let kit = TestKit::new();
        let faulty = FaultyQueue::new(kit.queue().clone());
        let worker = worker_on(&kit, &faulty, mail(acking_handler()), Settings::default());
        let running = kit.start(&worker).await;
        faulty.fail_next("finish", 3, Fault::Refuse(unavailable()));
        client(&kit).put("mail", "x").await.unwrap();
        for (hits, millis) in [(1, 100), (2, 200), (3, 400)] {
            faulty.wait_for_faults(hits).await;
            assert_eq!(kit.tube("mail").await.stats.tasks.taken, 1);
            yield_now().await;
            kit.advance(Duration::from_millis(millis));
        }
        kit.wait_drained("mail").await;
        running.stop().await;
        let calls = kit.tube("mail").await.stats.calls;
        assert_eq!((calls.ack, calls.ttr), (1, 0));
        assert_eq!(counted(&worker, "queue_handler_errors_total"), 0.0);
        assert_eq!(counted(&worker, "queue_tasks_processed_total"), 1.0);
    });
}

/// An ack whose reply was lost is repeated; a missing task then counts as acked.
#[test]
fn an_ack_whose_reply_was_lost_counts_as_done() {
    block_on(async {
        let kit = TestKit::new();
        let faulty = FaultyQueue::new(kit.queue().clone());
        let worker = worker_on(&kit, &faulty, mail(acking_handler()), Settings::default());
        let running = kit.start(&worker).await;
        faulty.fail_next(
            "finish",
            1,
            Fault::LoseReply(Error::OutcomeUnknown("lost on purpose".into())),
        );
        client(&kit).put("mail", "x").await.unwrap();
        faulty.wait_for_faults(1).await;
        while counted(&worker, "queue_tasks_processed_total") == 0.0 {
            kit.advance(Duration::from_millis(50));
            yield_now().await;
        }
        running.stop().await;
        assert_eq!(counted(&worker, "queue_tasks_fenced_total"), 0.0);
    });
}

#[test]
fn a_settlement_is_repeated_until_the_lease_ends() {
    block_on(async {
        let kit = TestKit::new();
        let faulty = FaultyQueue::new(kit.queue().clone());
        let worker = worker_on(&kit, &faulty, mail(acking_handler()), Settings::default());
        let running = kit.start(&worker).await;
        faulty.fail_next("finish", usize::MAX, Fault::Refuse(unavailable()));
        client(&kit).put("mail", "x").await.unwrap();
        while counted(&worker, "queue_handler_errors_total") == 0.0 {
            kit.advance(Duration::from_millis(100));
            yield_now().await;
        }
        assert!(faulty.faults() > 5);
        faulty.clear_faults();
        kit.advance(VISIBILITY);
        kit.wait_drained("mail").await;
        running.stop().await;
        assert_eq!(kit.tube("mail").await.stats.calls.ack, 1);
    });
}

/// One of two queues refused; the other had settled its tasks, but they stayed registered as held.
#[test]
fn the_refusal_of_one_queue_does_not_affect_another() {
    block_on(async {
        let (kit, (a, mut of_a), (b, mut of_b)) =
            (TestKit::new(), reporting_handler(), reporting_handler());
        let faulty = FaultyQueue::new(kit.queue().clone());
        let handlers = Dispatcher::new([]).with_queue(1, "a", a).with_queue(2, "b", b);
        let settings = Settings { max_processors: 2, ..Settings::default() };
        let worker = worker_on(&kit, &faulty, handlers, settings);
        let running = kit.start(&worker).await;
        client(&kit).put("a", "x").await.unwrap();
        client(&kit).put("b", "x").await.unwrap();
        let (a, b) = (of_a.recv().await.unwrap(), of_b.recv().await.unwrap());
        faulty.fail_next_of("a", "finish", 1, Fault::Refuse(Error::Store("on purpose".into())));
        let both = [a.ids[0], b.ids[0]];
        worker.store().done(&both).await.unwrap_err();
        assert_eq!(kit.tube("b").await.stats.calls.ack, 1);
        let again = worker.store().done(&both).await.unwrap();
        assert_eq!(again, SettledCount { done: 1, lost: 1 }, "the second was settled before");
        running.crash().await;
    });
}
