//! Tracing spans from the put of a task to its ack, the trace context of tasks, and the metrics of workers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use taskyard::{Client, Execute};
use taskyard_worker::testing::{ManualTimer, RunningWorker, TestKit};
use taskyard_worker::{
    Dispatcher, Handler, HandlerStats, Metrics, PutOptions, RawTask, Settings, TraceContext,
    TypedTask, Worker,
};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{DefaultGuard, Interest};
use tracing::{Dispatch, Event, Metadata, Subscriber};

use crate::queues::EmailsTask;
use crate::recording_handler::{Act, RecordingHandler, client, mail, metric, put};
use taskyard_testkit::server::{TestServer, block_on};

/// A recorded span.
#[derive(Clone, Debug, Default)]
struct RecordedSpan {
    name: &'static str,
    fields: BTreeMap<&'static str, String>,
    /// The number of references; 0 when it is closed.
    holders: usize,
    /// The name of its parent.
    parent: Option<&'static str>,
}

impl Visit for RecordedSpan {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.fields.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name(), value.into());
    }
}

/// Records the spans of workers and of this file. All code runs on one thread, so one stack of entered spans is enough.
#[derive(Clone, Default)]
struct SpanRecorder(Arc<Mutex<Vec<RecordedSpan>>>, Arc<Mutex<Vec<Id>>>);

impl SpanRecorder {
    fn of(&self, id: &Id, change: impl FnOnce(&mut RecordedSpan)) {
        change(&mut self.0.lock().unwrap()[id.into_u64() as usize - 1]);
    }

    fn named(&self, name: &str) -> Vec<RecordedSpan> {
        self.0.lock().unwrap().iter().filter(|span| span.name == name).cloned().collect()
    }
}

impl Subscriber for SpanRecorder {
    /// Asks for each span anew: tests without a subscriber run at the same time, on other threads.
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let target = metadata.target();
        let ours = target.starts_with("taskyard_worker") || target == module_path!();
        ours && metadata.is_span()
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut span = RecordedSpan {
            name: attributes.metadata().name(),
            holders: 1,
            ..RecordedSpan::default()
        };
        attributes.record(&mut span);
        let mut spans = self.0.lock().unwrap();
        let around = self.1.lock().unwrap().last().cloned();
        span.parent = around.map(|id| spans[id.into_u64() as usize - 1].name);
        spans.push(span);
        Id::from_u64(spans.len() as u64)
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        self.of(id, |span| values.record(span));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, id: &Id) {
        self.1.lock().unwrap().push(id.clone());
    }

    fn exit(&self, _: &Id) {
        self.1.lock().unwrap().pop();
    }

    fn clone_span(&self, id: &Id) -> Id {
        self.of(id, |span| span.holders += 1);
        id.clone()
    }

    fn try_close(&self, id: Id) -> bool {
        self.of(&id, |span| span.holders -= 1);
        false
    }
}

/// Records the spans of this thread while the guard is held.
fn recorded_spans() -> (SpanRecorder, DefaultGuard) {
    // While a process has one subscriber, a thread without it that reaches a span first turns that span off for all threads.
    static OTHER: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(SpanRecorder::default()));
    LazyLock::force(&OTHER);
    let spans = SpanRecorder::default();
    let subscribed = tracing::subscriber::set_default(spans.clone());
    (spans, subscribed)
}

#[test]
fn spans_are_recorded_from_the_put_to_the_ack() {
    let (spans, _subscribed) = recorded_spans();
    block_on(async {
        let (kit, recorder) =
            (TestKit::new(), RecordingHandler::new(Act::RetryIn(Duration::from_secs(5))));
        let worker = recorder.worker(&kit).build().unwrap();
        let running = kit.start(&worker).await;
        put(kit.queue(), "ann").await;
        kit.wait_until("emails", |tube| tube.stats.tasks.delayed == 1).await;
        recorder.set_act(Act::Done);
        kit.advance(Duration::from_secs(5));
        kit.wait_until("emails", |tube| tube.stats.tasks.total() == 0).await;
        recorder.set_act(Act::LeaveUnsettled);
        put(kit.queue(), "ben").await;
        while spans.named("task").len() < 3 {
            tokio::task::yield_now().await;
        }
        running.stop().await;
    });
    let puts = spans.named("put");
    assert_eq!((puts.len(), puts[0].fields["queue"].as_str()), (2, "emails"));
    let traces: Vec<_> = puts.iter().map(|put| put.fields["trace"].clone()).collect();
    assert_ne!(traces[0], traces[1]);
    let tasks = spans.named("task");
    let recorded: Vec<_> = tasks
        .iter()
        .map(|task| ["trace", "attempts", "outcome"].map(|field| task.fields[field].as_str()))
        .collect();
    let wanted = [
        [traces[0].as_str(), "0", "release"],
        [&traces[0], "1", "ack"],
        [&traces[1], "0", "unsettled"],
    ];
    assert_eq!(recorded, wanted);
    assert!(tasks.iter().all(|task| task.holders == 0), "all spans are closed: {tasks:?}");
    assert!(spans.named("batch").iter().all(|batch| batch.fields["queue"] == "emails"));
}

#[test]
fn tasks_that_are_put_together_share_a_trace() {
    let (spans, _subscribed) = recorded_spans();
    block_on(async {
        let (kit, recorder) = (TestKit::new(), RecordingHandler::new(Act::Done));
        let worker = recorder.worker(&kit).build().unwrap();
        worker.init().await.unwrap();
        let two = [mail("ann"), mail("ben")];
        EmailsTask::put_many(kit.queue(), &two, PutOptions::default()).await.unwrap();
        let own = PutOptions { trace: Some(TraceContext::new_root()), ..PutOptions::default() };
        let mixed = [(mail("cy"), PutOptions::default()), (mail("dee"), own)];
        EmailsTask::put_each(kit.queue(), &mixed).await.unwrap();
        let running = kit.start(&worker).await;
        kit.wait_drained("emails").await;
        running.stop().await;
    });
    let puts = spans.named("put");
    assert_eq!((puts.len(), puts[0].fields["tasks"].as_str()), (2, "2"));
    assert!(!puts[1].fields.contains_key("trace"), "its tasks have different traces");
    let tasks = spans.named("task");
    let traces: Vec<_> = tasks.iter().map(|task| task.fields["trace"].as_str()).collect();
    assert_eq!(traces[..2], [puts[0].fields["trace"].as_str(); 2]);
    assert_eq!(traces.iter().collect::<BTreeSet<_>>().len(), 3, "{traces:?}");
}

/// A handler runs as a spawned task: its spans and puts had no parent.
#[test]
fn the_spans_of_a_handler_are_children_of_its_batch() {
    let (spans, _subscribed) = recorded_spans();
    block_on(async {
        let kit = TestKit::new();
        let handler = Handler::raw(|_, store, tasks: Vec<RawTask>| async move {
            drop(tracing::info_span!("sending"));
            tokio::task::yield_now().await;
            put(&store, "ann").await;
            let ids: Vec<u64> = tasks.iter().map(|task| task.delivery.task_id).collect();
            store.done(&ids).await?;
            Ok(HandlerStats::default())
        });
        let emails = Handler::raw(|_, _, _| async { Ok(HandlerStats::default()) });
        let handlers =
            Dispatcher::new([]).with_queue(1, "emails", emails).with_queue(7, "mail", handler);
        let worker = kit.worker(handlers).build().unwrap();
        let running = kit.start(&worker).await;
        client(&kit).put("mail", "x").await.unwrap();
        kit.wait_until("mail", |tube| tube.stats.calls.ack == 1).await;
        running.stop().await;
    });
    for name in ["sending", "put"] {
        let span = spans.named(name);
        assert_eq!((span.len(), span[0].parent), (1, Some("batch")), "{name}");
    }
}

/// A second delivery to the same worker replaced the span of the first, which had no outcome.
#[test]
fn the_span_of_a_lost_delivery_has_an_outcome() {
    let (spans, _subscribed) = recorded_spans();
    block_on(async {
        let (kit, recorder) = (TestKit::new(), RecordingHandler::new(Act::Wait));
        let settings = Settings { max_processors: 2, ..Settings::default() };
        let worker = recorder.worker(&kit).settings(settings).build().unwrap();
        let running = kit.start(&worker).await;
        put(kit.queue(), "ann").await;
        recorder.started().await;
        kit.redeliver("emails").await;
        recorder.started().await;
        recorder.gate.add_permits(2);
        kit.wait_drained("emails").await;
        running.stop().await;
    });
    let tasks = spans.named("task");
    let outcomes: Vec<_> = tasks.iter().map(|task| task.fields["outcome"].as_str()).collect();
    assert_eq!(outcomes, ["lost", "ack"]);
}

/// Without a subscriber a task carries a trace context only if the put had one.
async fn trace_reaches_the_handler<E: Execute + Clone + 'static>(
    queue: E,
    timer: Arc<ManualTimer>,
) {
    let traces: Arc<Mutex<Vec<Option<TraceContext>>>> = Arc::default();
    let handler = {
        let traces = traces.clone();
        Handler::raw(move |ctx, store, tasks: Vec<RawTask>| {
            let ids: Vec<u64> = tasks.iter().map(|task| task.delivery.task_id).collect();
            traces.lock().unwrap().extend(ids.iter().map(|id| ctx.trace(*id)));
            async move {
                store.done(&ids).await?;
                Ok(HandlerStats::default())
            }
        })
    };
    let queues = Dispatcher::new([]).with_queue(1, "emails", handler);
    let worker = Worker::builder("traced", queue.clone(), queues).timer(timer.clone());
    let running = RunningWorker::start(&worker.build().unwrap(), timer).await;
    let trace = TraceContext::new_root();
    let traced = PutOptions { trace: Some(trace), ..PutOptions::default() };
    mail("ann").put(&queue, traced).await.unwrap();
    let client = Client::new(queue.clone());
    while client.stats("emails").await.unwrap().tasks.total() > 0 {
        tokio::task::yield_now().await;
    }
    mail("ben").put(&queue, PutOptions::default()).await.unwrap();
    while client.stats("emails").await.unwrap().tasks.total() > 0 {
        tokio::task::yield_now().await;
    }
    running.stop().await;
    assert_eq!(*traces.lock().unwrap(), [Some(trace), None]);
}

#[test]
fn a_trace_context_reaches_the_handler_over_each_transport() {
    block_on(async {
        let test_server = TestServer::in_memory().await;
        let timer = || Arc::new(ManualTimer::new(test_server.clock.clone()));
        trace_reaches_the_handler(test_server.http.clone(), timer()).await;
        trace_reaches_the_handler(test_server.connect(), timer()).await;
        trace_reaches_the_handler(test_server.engine.clone(), timer()).await;
        test_server.stop().await;
    });
}

#[test]
fn several_workers_share_one_set_of_metrics() {
    block_on(async {
        let (kit, recorder, metrics) =
            (TestKit::new(), RecordingHandler::new(Act::Wait), Metrics::default());
        let settings = Settings { max_processors: 2, batch_size: 1, ..Settings::default() };
        let worker = || {
            let worker = recorder.worker(&kit).settings(settings.clone()).metrics(metrics.clone());
            worker.build().unwrap()
        };
        let workers = [worker(), worker()];
        workers[0].init().await.unwrap();
        for _ in 0..7 {
            put(kit.queue(), "x").await;
        }
        mail("later").put(kit.queue(), PutOptions::after(Duration::from_secs(90))).await.unwrap();
        kit.advance(Duration::from_secs(3));
        let mut running = Vec::new();
        for worker in &workers {
            running.push(kit.start(worker).await);
        }
        for _ in 0..4 {
            recorder.started().await;
        }
        let text = workers[0].metrics_text().await;
        for (name, wanted) in [
            ("queue_running_workers ", 2.0),
            ("queue_running_job_processors ", 4.0),
            ("queue_tasks_in_progress{queue_num=\"1\"}", 4.0),
            ("queue_tasks_ready{queue_num=\"1\"}", 3.0),
            ("queue_tasks_delayed{queue_num=\"1\"}", 1.0),
            ("queue_oldest_ready_age_seconds{queue_num=\"1\"}", 3.0),
            ("queue_oldest_ready_age_seconds{queue_num=\"2\"}", 0.0),
            ("queue_tasks_expired_total{queue_num=\"1\"}", 0.0),
        ] {
            assert_eq!(metric(&text, name), wanted, "{name}");
        }
        for running in running.drain(..) {
            running.crash().await;
        }
        kit.advance(Duration::from_secs(61));
        kit.wait_until("emails", |tube| tube.stats.calls.ttr == 4).await;
        let text = workers[1].metrics_text().await;
        assert_eq!(metric(&text, "queue_tasks_expired_total{queue_num=\"1\"}"), 4.0);
        assert_eq!(metric(&text, "queue_running_workers "), 0.0);
        assert_eq!(metric(&text, "queue_tasks_in_progress{queue_num=\"1\"}"), 0.0);
        let bare = text.lines().filter(|line| !line.starts_with('#'));
        assert!(bare.into_iter().all(|line| line.starts_with("queue_")), "{text}");
    });
}

/// The age was that of the first task of the latest batch: while all processors were busy it did not grow, and a returned
/// task hid tasks that had waited longer.
#[test]
fn the_age_of_the_oldest_task_grows_while_all_processors_are_busy() {
    block_on(async {
        let (kit, recorder) = (TestKit::new(), RecordingHandler::new(Act::Wait));
        let worker =
            recorder.worker(&kit).settings(Settings { batch_size: 1, ..Settings::default() });
        let worker = worker.build().unwrap();
        worker.init().await.unwrap();
        let age = async || {
            let text = worker.metrics_text().await;
            metric(&text, "queue_oldest_ready_age_seconds{queue_num=\"1\"}")
        };
        assert_eq!(age().await, 0.0, "the queue is empty");
        let running = kit.start(&worker).await;
        put(kit.queue(), "busy").await;
        recorder.started().await;
        assert_eq!(age().await, 0.0, "no task is ready");
        kit.advance(Duration::from_secs(2));
        put(kit.queue(), "waits").await;
        for seconds in [1.0, 2.0, 3.0] {
            kit.advance(Duration::from_secs(1));
            assert_eq!(age().await, seconds, "the only processor is busy");
        }
        recorder.set_act(Act::RetryIn(Duration::ZERO));
        recorder.gate.add_permits(1);
        recorder.started().await;
        recorder.set_act(Act::Done);
        kit.wait_drained("emails").await;
        assert_eq!(age().await, 0.0, "all are done");
        running.stop().await;
    });
}

/// The dashboard shows all metrics of workers and no others.
#[test]
fn the_dashboard_and_the_metrics_have_the_same_names() {
    let (kit, recorder) = (TestKit::new(), RecordingHandler::new(Act::Done));
    let text = recorder.worker(&kit).build().unwrap().metrics().text();
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let counted: BTreeSet<_> = types.filter_map(|line| line.split(' ').next()).collect();
    let dashboard = include_str!("../../../../docs/workers.grafana.json");
    let words = dashboard.split(|c: char| !c.is_ascii_lowercase() && c != '_');
    let words = words.map(|word| word.strip_suffix("_bucket").unwrap_or(word));
    let asked: BTreeSet<_> =
        words.filter(|word| word.starts_with("queue_") && *word != "queue_num").collect();
    assert_eq!(asked, counted);
}
