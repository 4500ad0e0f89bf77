//! Handlers that run longer than `run_max`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use taskyard::worker::kit::{HandTimer, Kit, KitQueue};
use taskyard::worker::{
    Cancel, Context, Dispatcher, Handler, HandlerStats, RawTask, Settings, Store, Worker,
};
use taskyard::{Execute, TaskId};
use taskyard_core::{Command, Error, Reply};
use tokio::sync::mpsc::unbounded_channel;
use tokio::task::yield_now;

use super::post::{Act, Post, metric, put};
use crate::rig::block_on;

/// A third of the visibility timeout: how often a batch is prolonged.
const BEAT: Duration = Duration::from_secs(20);

/// A handler that hung in a living process kept its task for ever: the worker prolonged the lease without limit, and its
/// processor was lost.
#[test]
fn a_handler_that_hangs_loses_its_tasks_after_ten_timeouts() {
    block_on(async {
        let (kit, post) = (Kit::new(), Post::new(Act::Wait));
        let worker = post.worker(&kit).build().unwrap();
        let running = kit.start(&worker).await;
        put(kit.queue(), "ann").await;
        post.begun().await;
        for beat in 1..30 {
            kit.advance(BEAT);
            kit.until("emails", |tube| tube.stats.calls.touch == beat).await;
        }
        let counted =
            |name: &str| metric(&worker.metrics().text(), &format!("{name}{{queue_num=\"1\"}}"));
        assert_eq!(counted("queue_handler_timeouts_total"), 0.0);
        kit.advance(BEAT);
        while counted("queue_handler_timeouts_total") == 0.0 {
            yield_now().await;
        }
        assert_eq!(kit.tube("emails").await.stats.tasks.taken, 1, "it is asked to end first");
        post.now(Act::Done);
        kit.advance(Duration::from_secs(1));
        kit.until("emails", |tube| tube.stats.tasks.delayed == 1).await;
        let calls = kit.tube("emails").await.stats.calls;
        assert_eq!((calls.touch, calls.release, calls.ttr), (29, 1, 0));
        let task = kit.client().peek("emails", TaskId(0)).await.unwrap().unwrap();
        assert_eq!(task.attempts(), 1, "a failed attempt");
        put(kit.queue(), "ben").await;
        kit.until("emails", |tube| tube.stats.calls.ack == 1).await;
        kit.advance(Duration::from_secs(1));
        kit.until("emails", |tube| tube.stats.calls.ack == 2).await;
        running.stop().await;
        assert_eq!(post.receivers(), ["ann", "ben", "ann"]);
        assert_eq!(counted("queue_tasks_in_progress"), 0.0);
        assert_eq!(
            (counted("queue_tasks_errors_total"), counted("queue_tasks_retried_total")),
            (1.0, 1.0)
        );
    });
}

/// A queue that answers the first take only after an hour.
#[derive(Clone)]
struct SlowTake {
    queue: KitQueue,
    timer: Arc<HandTimer>,
    taken: Arc<AtomicBool>,
}

impl Execute for SlowTake {
    async fn execute(&self, commands: Vec<Command>) -> Vec<Result<Reply, Error>> {
        let take = commands.iter().any(
            |command| matches!(command, Command::Take(take) if take.tube.as_str() == "emails"),
        );
        if take && !self.taken.swap(true, Ordering::SeqCst) {
            self.timer.advance(Duration::from_secs(3600));
        }
        self.queue.execute(commands).await
    }
}

/// `run_max` was counted from the moment the take was asked. A take that was answered late, by a store that was slow, left
/// the handler no time: it was cancelled before it began, and its task returned as failed.
#[test]
fn the_time_of_a_slow_take_is_not_the_handlers() {
    block_on(async {
        let (kit, post) = (Kit::new(), Post::new(Act::Done));
        let queue =
            SlowTake { queue: kit.queue().clone(), timer: kit.timer(), taken: Arc::default() };
        let worker =
            Worker::builder("test", queue, post.handlers()).timer(kit.timer()).build().unwrap();
        worker.init().await.unwrap();
        put(kit.queue(), "ann").await;
        let running = kit.start(&worker).await;
        kit.drained("emails").await;
        running.stop().await;
        let calls = kit.tube("emails").await.stats.calls;
        assert_eq!((calls.take, calls.ack, calls.release), (1, 1, 0));
    });
}

/// A handler that heeds its context settles what it has done; only the rest returns as failed.
#[test]
fn a_handler_is_told_why_it_is_cancelled() {
    block_on(async {
        let (send, mut contexts) = unbounded_channel();
        let handler = Handler::raw(move |ctx: Context, store: Store, tasks: Vec<RawTask>| {
            let _ = send.send((ctx.clone(), tasks[1].delivery));
            async move {
                ctx.cancelled().await;
                store.done(&[tasks[0].delivery.task_id]).await?;
                Ok(HandlerStats { processed: 1, ..HandlerStats::default() })
            }
        });
        let kit = Kit::new();
        let settings = Settings { run_max: Some(Duration::from_secs(30)), ..Settings::default() };
        let handlers = Dispatcher::new([]).and(1, "mail", handler);
        let worker = kit.worker(handlers).settings(settings).build().unwrap();
        worker.init().await.unwrap();
        kit.client().put_many("mail", &["a", "b"]).await.unwrap();
        let put = worker.store().now();
        kit.advance(Duration::from_secs(3));
        let running = kit.start(&worker).await;
        let (ctx, delivery) = contexts.recv().await.unwrap();
        assert_eq!((ctx.due(delivery.task_id), delivery.due), (Some(put), Some(put)));
        assert_eq!(ctx.due(77), None);
        assert_eq!(ctx.run_deadline(), worker.store().now() + taskyard::Span::from_secs(30));
        kit.advance(BEAT);
        kit.until("mail", |tube| tube.stats.calls.touch == 2).await;
        assert_eq!(ctx.cancel(), None);
        kit.advance(Duration::from_secs(10));
        ctx.cancelled().await;
        assert_eq!(ctx.cancel(), Some(Cancel::RunMax));
        kit.until("mail", |tube| tube.stats.tasks.delayed == 1).await;
        let tube = kit.tube("mail").await;
        assert_eq!((tube.stats.calls.ack, tube.stats.tasks.total()), (1, 1));
        assert_eq!(kit.client().peek("mail", TaskId(1)).await.unwrap().unwrap().attempts(), 1);
        running.stop().await;
    });
}
