//! Keeping a batch while its handler works, losing it, and settling it by a rough way.

use std::time::Duration;

use taskyard::Execute;
use taskyard::worker::kit::{Kit, KitQueue};
use taskyard::worker::{
    Context, Dispatcher, Handler, HandlerStats, RawTask, Settings, Settled, Store, Tally, Worker,
};
use taskyard_core::{Command, Error, Finish, FinishItem, Holder, Span, TaskId, TubeName};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::yield_now;

use super::post::metric;
use super::rough::{Rough, Way};
use crate::rig::block_on;

const VISIBILITY: Duration = Duration::from_secs(60);

/// A batch that was begun.
struct Begun {
    ctx: Context,
    store: Store,
    ids: Vec<u64>,
    /// Lets its handler end.
    end: tokio::sync::oneshot::Sender<()>,
}

/// A handler that tells of each batch and then waits until it is cancelled or may end. It settles nothing.
fn telling() -> (Handler, UnboundedReceiver<Begun>) {
    let (send, receive) = unbounded_channel();
    let handler = Handler::raw(move |ctx: Context, store: Store, tasks: Vec<RawTask>| {
        let ids = tasks.iter().map(|task| task.delivery.task_id).collect();
        let (end, ended) = tokio::sync::oneshot::channel();
        let told = send.send(Begun { ctx: ctx.clone(), store, ids, end });
        async move {
            told.map_err(|_| "nobody listens")?;
            tokio::select! {
                Ok(()) = ended => {}
                () = ctx.cancelled() => {}
            }
            Ok(HandlerStats::default())
        }
    });
    (handler, receive)
}

/// A handler that is done with everything.
fn quick() -> Handler {
    Handler::raw(|_, store: Store, tasks: Vec<RawTask>| async move {
        let mut tally = Tally::new(&store);
        tasks.iter().for_each(|task| tally.done(task.delivery.task_id));
        tally.settle().await
    })
}

fn on(kit: &Kit, queue: &Rough<KitQueue>, handlers: Dispatcher, settings: Settings) -> Worker {
    let worker = Worker::builder("test", queue.clone(), handlers).timer(kit.timer());
    worker.settings(settings).build().unwrap()
}

fn mail(handler: Handler) -> Dispatcher {
    Dispatcher::new([]).and(1, "mail", handler)
}

fn away() -> Error {
    Error::StoreAway("away on purpose".into())
}

fn counted(worker: &Worker, name: &str) -> f64 {
    metric(&worker.metrics().text(), &format!("{name}{{queue_num=\"1\"}}"))
}

/// A server that began anew had given the task to somebody else; the handler worked on to the end, and
/// its deadline moved on as if nothing had happened.
#[test]
fn a_batch_that_is_lost_is_cancelled() {
    block_on(async {
        let (kit, (handler, mut begun)) = (Kit::new(), telling());
        let worker = kit.worker(mail(handler)).build().unwrap();
        let running = kit.start(&worker).await;
        kit.client().put("mail", "x").await.unwrap();
        let Begun { ctx, ids, end, .. } = begun.recv().await.unwrap();
        let deadline = ctx.lease_deadline();
        assert!(!ctx.is_cancelled() && !ctx.is_lost(ids[0]));
        kit.deliver_again("mail").await;
        kit.advance(VISIBILITY / 3);
        ctx.cancelled().await;
        assert!(ctx.is_cancelled() && ctx.is_lost(ids[0]));
        assert_eq!(ctx.lease_deadline(), deadline, "it says the truth");
        let again = begun.recv().await.unwrap();
        assert!(!again.ctx.is_cancelled() && !again.ctx.is_lost(ids[0]));
        assert_eq!(again.ids, ids);
        assert_eq!(counted(&worker, "queue_tasks_fenced_total"), 1.0);
        drop(end);
        running.crash().await;
    });
}

/// The same when it is a processor of the same worker that got the task.
#[test]
fn a_batch_that_went_to_a_neighbour_is_cancelled() {
    block_on(async {
        let (kit, (handler, mut begun)) = (Kit::new(), telling());
        let settings = Settings { max_processors: 2, ..Settings::default() };
        let worker = kit.worker(mail(handler)).settings(settings).build().unwrap();
        let running = kit.start(&worker).await;
        kit.client().put("mail", "x").await.unwrap();
        let first = begun.recv().await.unwrap();
        kit.deliver_again("mail").await;
        let second = begun.recv().await.unwrap();
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
fn what_is_lost_of_a_batch_is_told_and_the_rest_is_kept() {
    block_on(async {
        let (kit, (handler, mut begun)) = (Kit::new(), telling());
        let worker = kit.worker(mail(handler)).build().unwrap();
        worker.init().await.unwrap();
        kit.client().put_many("mail", &["a", "b"]).await.unwrap();
        let running = kit.start(&worker).await;
        let Begun { ctx, ids, store, end } = begun.recv().await.unwrap();
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
        assert_eq!(store.done(&ids).await.unwrap(), Settled { done: 1, lost: 1 });
        end.send(()).unwrap();
        running.stop().await;
    });
}

/// A connection that nobody answers on any more held the heartbeat for a minute, and the lease was over.
#[test]
fn a_heartbeat_that_is_not_answered_is_sent_again_in_time() {
    block_on(async {
        let (kit, (handler, mut begun)) = (Kit::new(), telling());
        let rough = Rough::new(kit.queue().clone());
        let worker = on(&kit, &rough, mail(handler), Settings::default());
        let running = kit.start(&worker).await;
        kit.client().put("mail", "x").await.unwrap();
        let Begun { ctx, .. } = begun.recv().await.unwrap();
        rough.next("finish", 1, Way::Swallow);
        kit.advance(VISIBILITY / 3);
        rough.until_hit(1).await;
        kit.advance(VISIBILITY / 3);
        while counted(&worker, "queue_store_errors_total") == 0.0 {
            yield_now().await;
        }
        kit.advance(Duration::from_secs(1));
        kit.until("mail", |tube| tube.stats.calls.touch == 1).await;
        kit.advance(Duration::from_secs(21));
        let tube = kit.tube("mail").await;
        assert_eq!((tube.stats.tasks.taken, tube.stats.calls.ttr), (1, 0));
        assert!(!ctx.is_cancelled());
        running.crash().await;
    });
}

/// Refused at 20 and at 40 seconds, the next try was at 60, when the lease is over.
#[test]
fn a_heartbeat_that_fails_is_soon_sent_again() {
    block_on(async {
        let (kit, (handler, mut begun)) = (Kit::new(), telling());
        let worker = kit.worker(mail(handler)).build().unwrap();
        let running = kit.start(&worker).await;
        kit.client().put("mail", "x").await.unwrap();
        let begun = begun.recv().await.unwrap();
        kit.fail_next("finish");
        kit.advance(VISIBILITY / 3);
        while counted(&worker, "queue_store_errors_total") == 0.0 {
            yield_now().await;
        }
        kit.advance(Duration::from_secs(1));
        kit.until("mail", |tube| tube.stats.calls.touch == 1).await;
        drop(begun);
        running.crash().await;
    });
}

/// The end of a handler was not seen while its heartbeat hung.
#[test]
fn a_handler_ends_while_its_heartbeat_hangs() {
    block_on(async {
        let (kit, (handler, mut begun)) = (Kit::new(), telling());
        let rough = Rough::new(kit.queue().clone());
        let worker = on(&kit, &rough, mail(handler), Settings::default());
        let running = kit.start(&worker).await;
        kit.client().put("mail", "x").await.unwrap();
        let batch = begun.recv().await.unwrap();
        rough.next("finish", usize::MAX, Way::Swallow);
        kit.advance(VISIBILITY / 3);
        rough.until_hit(1).await;
        batch.end.send(()).unwrap();
        while counted(&worker, "queue_tasks_unsettled_total") == 0.0 {
            yield_now().await;
        }
        running.crash().await;
    });
}

/// A processor that waited for a queue which never answers made `shutdown` wait as long.
#[test]
fn a_shutdown_does_not_wait_for_a_queue_that_hangs() {
    block_on(async {
        let kit = Kit::new();
        let rough = Rough::new(kit.queue().clone());
        let worker = on(&kit, &rough, mail(quick()), Settings::default());
        worker.init().await.unwrap();
        rough.next("take", usize::MAX, Way::Swallow);
        rough.next("finish", usize::MAX, Way::Swallow);
        let running = kit.start(&worker).await;
        rough.until_hit(1).await;
        let stopping = worker.clone();
        let stopping = tokio::spawn(async move { stopping.shutdown(Duration::from_secs(5)).await });
        running.stop().await;
        let still = stopping.await.unwrap().unwrap_err();
        assert_eq!(still.0, ["processor 0 on queue 'mail'"]);
    });
}

/// A waiting take asked for ten seconds, then the setting was raised to a minute: the batch it brought
/// was to be prolonged after twenty.
#[test]
fn a_raised_timeout_holds_for_what_is_taken_afterwards() {
    block_on(async {
        let (kit, (handler, mut begun)) = (Kit::new(), telling());
        let of = |seconds| Settings {
            visibility_timeout: Duration::from_secs(seconds),
            ..Settings::default()
        };
        let rough = Rough::new(kit.queue().clone());
        let worker = on(&kit, &rough, mail(handler), of(9));
        let running = kit.start(&worker).await;
        // The first looks, the second waits.
        rough.until_asked("take", 2).await;
        worker.reconfigure(of(60)).unwrap();
        kit.client().put("mail", "x").await.unwrap();
        let Begun { ctx, .. } = begun.recv().await.unwrap();
        let now = worker.store().now();
        assert_eq!(ctx.lease_deadline(), now + Span::from_secs(9));
        kit.advance(Duration::from_secs(3));
        kit.until("mail", |tube| tube.stats.calls.touch == 1).await;
        running.crash().await;
    });
}

/// A database that was away for a second when the work was done: the ack was refused, and the work was done again
/// a minute later.
#[test]
fn what_is_done_is_acked_when_the_queue_is_back() {
    block_on(async {
        let kit = Kit::new();
        let rough = Rough::new(kit.queue().clone());
        let worker = on(&kit, &rough, mail(quick()), Settings::default());
        let running = kit.start(&worker).await;
        rough.next("finish", 3, Way::Refuse(away()));
        kit.client().put("mail", "x").await.unwrap();
        for (hits, millis) in [(1, 100), (2, 200), (3, 400)] {
            rough.until_hit(hits).await;
            assert_eq!(kit.tube("mail").await.stats.tasks.taken, 1);
            yield_now().await;
            kit.advance(Duration::from_millis(millis));
        }
        kit.drained("mail").await;
        running.stop().await;
        let calls = kit.tube("mail").await.stats.calls;
        assert_eq!((calls.ack, calls.ttr), (1, 0));
        assert_eq!(counted(&worker, "queue_handler_errors_total"), 0.0);
        assert_eq!(counted(&worker, "queue_tasks_processed_total"), 1.0);
    });
}

/// An ack whose answer was lost is asked again; that the task is gone then is no loss.
#[test]
fn an_ack_whose_answer_was_lost_is_no_loss() {
    block_on(async {
        let kit = Kit::new();
        let rough = Rough::new(kit.queue().clone());
        let worker = on(&kit, &rough, mail(quick()), Settings::default());
        let running = kit.start(&worker).await;
        rough.next("finish", 1, Way::Misreport(Error::OutcomeUnknown("lost on purpose".into())));
        kit.client().put("mail", "x").await.unwrap();
        rough.until_hit(1).await;
        while counted(&worker, "queue_tasks_processed_total") == 0.0 {
            kit.advance(Duration::from_millis(50));
            yield_now().await;
        }
        running.stop().await;
        assert_eq!(counted(&worker, "queue_tasks_fenced_total"), 0.0);
    });
}

#[test]
fn who_cannot_settle_gives_up_when_the_batch_is_over() {
    block_on(async {
        let kit = Kit::new();
        let rough = Rough::new(kit.queue().clone());
        let worker = on(&kit, &rough, mail(quick()), Settings::default());
        let running = kit.start(&worker).await;
        rough.next("finish", usize::MAX, Way::Refuse(away()));
        kit.client().put("mail", "x").await.unwrap();
        while counted(&worker, "queue_handler_errors_total") == 0.0 {
            kit.advance(Duration::from_millis(100));
            yield_now().await;
        }
        assert!(rough.hits() > 5);
        rough.heal();
        kit.advance(VISIBILITY);
        kit.drained("mail").await;
        running.stop().await;
        assert_eq!(kit.tube("mail").await.stats.calls.ack, 1);
    });
}

/// One of two queues refused; the other had done what was asked, but its tasks counted as held ever after.
#[test]
fn what_one_queue_refuses_does_not_hide_what_the_other_did() {
    block_on(async {
        let (kit, (a, mut of_a), (b, mut of_b)) = (Kit::new(), telling(), telling());
        let rough = Rough::new(kit.queue().clone());
        let handlers = Dispatcher::new([]).and(1, "a", a).and(2, "b", b);
        let settings = Settings { max_processors: 2, ..Settings::default() };
        let worker = on(&kit, &rough, handlers, settings);
        let running = kit.start(&worker).await;
        kit.client().put("a", "x").await.unwrap();
        kit.client().put("b", "x").await.unwrap();
        let (a, b) = (of_a.recv().await.unwrap(), of_b.recv().await.unwrap());
        rough.next_of("a", "finish", 1, Way::Refuse(Error::Store("on purpose".into())));
        let both = [a.ids[0], b.ids[0]];
        worker.store().done(&both).await.unwrap_err();
        assert_eq!(kit.tube("b").await.stats.calls.ack, 1);
        let again = worker.store().done(&both).await.unwrap();
        assert_eq!(again, Settled { done: 1, lost: 1 }, "the second was settled before");
        running.crash().await;
    });
}
