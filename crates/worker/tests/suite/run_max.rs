//! Handlers that run longer than `run_max`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use taskyard::{Execute, TaskId};
use taskyard_core::{Command, Error, Reply};
use taskyard_worker::testing::{ManualTimer, TestKit, TestQueue};
use taskyard_worker::{
    CancelReason, Context, Dispatcher, Handler, HandlerStats, RawTask, Settings, Store, Worker,
};
use tokio::sync::mpsc::unbounded_channel;
use tokio::task::yield_now;

use crate::recording_handler::{Act, RecordingHandler, client, metric, put};
use taskyard_testkit::server::block_on;

/// A third of the visibility timeout: how often the lease of a batch is extended.
const EXTENSION_PERIOD: Duration = Duration::from_secs(20);

/// A handler that hung kept its task forever: the worker extended the lease without limit, and the processor was blocked.
#[test]
fn a_handler_that_hangs_loses_its_tasks_after_ten_timeouts() {
    block_on(async {
        let (kit, recorder) = (TestKit::new(), RecordingHandler::new(Act::Wait));
        let worker = recorder.worker(&kit).build().unwrap();
        let running = kit.start(&worker).await;
        put(kit.queue(), "ann").await;
        recorder.started().await;
        for beat in 1..30 {
            kit.advance(EXTENSION_PERIOD);
            kit.wait_until("emails", |tube| tube.stats.calls.touch == beat).await;
        }
        let counted =
            |name: &str| metric(&worker.metrics().text(), &format!("{name}{{queue_num=\"1\"}}"));
        assert_eq!(counted("queue_handler_timeouts_total"), 0.0);
        kit.advance(EXTENSION_PERIOD);
        while counted("queue_handler_timeouts_total") == 0.0 {
            yield_now().await;
        }
        assert_eq!(kit.tube("emails").await.stats.tasks.taken, 1, "the handler is cancelled first");
        recorder.set_act(Act::Done);
        kit.advance(Duration::from_secs(1));
        kit.wait_until("emails", |tube| tube.stats.tasks.delayed == 1).await;
        let calls = kit.tube("emails").await.stats.calls;
        assert_eq!((calls.touch, calls.release, calls.ttr), (29, 1, 0));
        let task = client(&kit).peek("emails", TaskId(0)).await.unwrap().unwrap();
        assert_eq!(task.attempts(), 1, "a failed attempt");
        put(kit.queue(), "ben").await;
        kit.wait_until("emails", |tube| tube.stats.calls.ack == 1).await;
        kit.advance(Duration::from_secs(1));
        kit.wait_until("emails", |tube| tube.stats.calls.ack == 2).await;
        running.stop().await;
        assert_eq!(recorder.receivers(), ["ann", "ben", "ann"]);
        assert_eq!(counted("queue_tasks_in_progress"), 0.0);
        assert_eq!(
            (counted("queue_tasks_errors_total"), counted("queue_tasks_retried_total")),
            (1.0, 1.0)
        );
    });
}

/// A queue that answers the first take after an hour.
#[derive(Clone)]
struct SlowTake {
    queue: TestQueue,
    timer: Arc<ManualTimer>,
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

/// `run_max` was counted from the moment the take was sent. A take that a slow store answered late left the handler no
/// time: it was cancelled before it started, and its task returned as failed.
#[test]
fn run_max_does_not_include_a_slow_take() {
    block_on(async {
        let (kit, recorder) = (TestKit::new(), RecordingHandler::new(Act::Done));
        let queue =
            SlowTake { queue: kit.queue().clone(), timer: kit.timer(), taken: Arc::default() };
        let worker =
            Worker::builder("test", queue, recorder.handlers()).timer(kit.timer()).build().unwrap();
        worker.init().await.unwrap();
        put(kit.queue(), "ann").await;
        let running = kit.start(&worker).await;
        kit.wait_drained("emails").await;
        running.stop().await;
        let calls = kit.tube("emails").await.stats.calls;
        assert_eq!((calls.take, calls.ack, calls.release), (1, 1, 0));
    });
}

/// A handler that ends when it is cancelled settles what it has done; only the rest returns as failed.
#[test]
fn a_handler_can_read_why_it_is_cancelled() {
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
        let kit = TestKit::new();
        let settings = Settings { run_max: Some(Duration::from_secs(30)), ..Settings::default() };
        let handlers = Dispatcher::new([]).with_queue(1, "mail", handler);
        let worker = kit.worker(handlers).settings(settings).build().unwrap();
        worker.init().await.unwrap();
        client(&kit).put_many("mail", &["a", "b"]).await.unwrap();
        let put = worker.store().now();
        kit.advance(Duration::from_secs(3));
        let running = kit.start(&worker).await;
        let (ctx, delivery) = contexts.recv().await.unwrap();
        assert_eq!((ctx.due(delivery.task_id), delivery.due), (Some(put), Some(put)));
        assert_eq!(ctx.due(77), None);
        assert_eq!(ctx.run_deadline(), worker.store().now() + taskyard::Span::from_secs(30));
        kit.advance(EXTENSION_PERIOD);
        kit.wait_until("mail", |tube| tube.stats.calls.touch == 2).await;
        assert_eq!(ctx.cancel_reason(), None);
        kit.advance(Duration::from_secs(10));
        ctx.cancelled().await;
        assert_eq!(ctx.cancel_reason(), Some(CancelReason::RunMax));
        kit.wait_until("mail", |tube| tube.stats.tasks.delayed == 1).await;
        let tube = kit.tube("mail").await;
        assert_eq!((tube.stats.calls.ack, tube.stats.tasks.total()), (1, 1));
        assert_eq!(client(&kit).peek("mail", TaskId(1)).await.unwrap().unwrap().attempts(), 1);
        running.stop().await;
    });
}
