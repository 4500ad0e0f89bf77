//! Spans from the put of a task to its ack, and the trace that travels with it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use taskyard::worker::kit::{HandTimer, Kit, Running};
use taskyard::worker::{
    Dispatcher, Handler, HandlerStats, Metrics, PutOptions, RawTask, Settings, Trace, TypedTask,
    Worker,
};
use taskyard::{Client, Execute};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::post::{Act, Post, mail, metric, put};
use crate::rig::{Rig, block_on};

/// A span as somebody saw it.
#[derive(Clone, Debug, Default)]
struct Seen {
    name: &'static str,
    fields: BTreeMap<&'static str, String>,
    /// How many hold it; none when it is closed.
    holders: usize,
    /// The span that it is in.
    parent: Option<&'static str>,
}

impl Visit for Seen {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.fields.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name(), value.into());
    }
}

/// Listens to the spans of workers and of this file. What runs is one thread, so it knows where it is.
#[derive(Clone, Default)]
struct Listener(Arc<Mutex<Vec<Seen>>>, Arc<Mutex<Vec<Id>>>);

impl Listener {
    fn of(&self, id: &Id, change: impl FnOnce(&mut Seen)) {
        change(&mut self.0.lock().unwrap()[id.into_u64() as usize - 1]);
    }

    fn named(&self, name: &str) -> Vec<Seen> {
        self.0.lock().unwrap().iter().filter(|seen| seen.name == name).cloned().collect()
    }
}

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let target = metadata.target();
        let ours = target.starts_with("taskyard::worker") || target == module_path!();
        ours && metadata.is_span()
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut seen = Seen { name: attributes.metadata().name(), holders: 1, ..Seen::default() };
        attributes.record(&mut seen);
        let mut spans = self.0.lock().unwrap();
        let around = self.1.lock().unwrap().last().cloned();
        seen.parent = around.map(|id| spans[id.into_u64() as usize - 1].name);
        spans.push(seen);
        Id::from_u64(spans.len() as u64)
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        self.of(id, |seen| values.record(seen));
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
        self.of(id, |seen| seen.holders += 1);
        id.clone()
    }

    fn try_close(&self, id: Id) -> bool {
        self.of(&id, |seen| seen.holders -= 1);
        false
    }
}

#[test]
fn spans_lead_from_the_put_to_the_ack() {
    let listener = Listener::default();
    let _listening = tracing::subscriber::set_default(listener.clone());
    block_on(async {
        let (kit, post) = (Kit::new(), Post::new(Act::RetryIn(Duration::from_secs(5))));
        let worker = post.worker(&kit).build().unwrap();
        let running = kit.start(&worker).await;
        put(kit.queue(), "ann").await;
        kit.until("emails", |tube| tube.stats.tasks.delayed == 1).await;
        post.now(Act::Done);
        kit.advance(Duration::from_secs(5));
        kit.until("emails", |tube| tube.stats.tasks.total() == 0).await;
        post.now(Act::Forget);
        put(kit.queue(), "ben").await;
        while listener.named("task").len() < 3 {
            tokio::task::yield_now().await;
        }
        running.stop().await;
    });
    let puts = listener.named("put");
    assert_eq!((puts.len(), puts[0].fields["queue"].as_str()), (2, "emails"));
    let traces: Vec<_> = puts.iter().map(|put| put.fields["trace"].clone()).collect();
    assert_ne!(traces[0], traces[1]);
    let tasks = listener.named("task");
    let told: Vec<_> = tasks
        .iter()
        .map(|task| ["trace", "attempts", "outcome"].map(|field| task.fields[field].as_str()))
        .collect();
    let wanted = [
        [traces[0].as_str(), "0", "release"],
        [&traces[0], "1", "ack"],
        [&traces[1], "0", "unsettled"],
    ];
    assert_eq!(told, wanted);
    assert!(tasks.iter().all(|task| task.holders == 0), "all are closed: {tasks:?}");
    assert!(listener.named("batch").iter().all(|batch| batch.fields["queue"] == "emails"));
}

/// A handler runs as a task of its own: what it traced and what it put was in no span.
#[test]
fn what_a_handler_traces_is_in_its_batch() {
    let listener = Listener::default();
    let _listening = tracing::subscriber::set_default(listener.clone());
    block_on(async {
        let kit = Kit::new();
        let handler = Handler::raw(|_, store, tasks: Vec<RawTask>| async move {
            drop(tracing::info_span!("sending"));
            tokio::task::yield_now().await;
            put(&store, "ann").await;
            let ids: Vec<u64> = tasks.iter().map(|task| task.delivery.task_id).collect();
            store.done(&ids).await?;
            Ok(HandlerStats::default())
        });
        let emails = Handler::raw(|_, _, _| async { Ok(HandlerStats::default()) });
        let handlers = Dispatcher::new([]).and(1, "emails", emails).and(7, "mail", handler);
        let worker = kit.worker(handlers).build().unwrap();
        let running = kit.start(&worker).await;
        kit.client().put("mail", "x").await.unwrap();
        kit.until("mail", |tube| tube.stats.calls.ack == 1).await;
        running.stop().await;
    });
    for name in ["sending", "put"] {
        let seen = listener.named(name);
        assert_eq!((seen.len(), seen[0].parent), (1, Some("batch")), "{name}");
    }
}

/// A second delivery to the same worker took the place of the first one's span, which never said how it ended.
#[test]
fn the_span_of_a_delivery_that_was_lost_says_so() {
    let listener = Listener::default();
    let _listening = tracing::subscriber::set_default(listener.clone());
    block_on(async {
        let (kit, post) = (Kit::new(), Post::new(Act::Wait));
        let settings = Settings { max_processors: 2, ..Settings::default() };
        let worker = post.worker(&kit).settings(settings).build().unwrap();
        let running = kit.start(&worker).await;
        put(kit.queue(), "ann").await;
        post.begun().await;
        kit.deliver_again("emails").await;
        post.begun().await;
        post.gate.add_permits(2);
        kit.drained("emails").await;
        running.stop().await;
    });
    let tasks = listener.named("task");
    let outcomes: Vec<_> = tasks.iter().map(|task| task.fields["outcome"].as_str()).collect();
    assert_eq!(outcomes, ["lost", "ack"]);
}

/// Nobody listens: a task carries a trace only if it was given one, and that arrives on every way.
async fn arrives<E: Execute + Clone + 'static>(queue: E, timer: Arc<HandTimer>) {
    let traces: Arc<Mutex<Vec<Option<Trace>>>> = Arc::default();
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
    let queues = Dispatcher::new([]).and(1, "emails", handler);
    let worker = Worker::builder("traced", queue.clone(), queues).timer(timer.clone());
    let running = Running::start(&worker.build().unwrap(), timer).await;
    let trace = Trace::begin();
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
fn a_trace_arrives_on_every_way() {
    block_on(async {
        let rig = Rig::in_memory().await;
        let timer = || Arc::new(HandTimer::new(rig.clock.clone()));
        arrives(rig.http.clone(), timer()).await;
        arrives(rig.connect(), timer()).await;
        arrives(rig.engine.clone(), timer()).await;
        rig.stop().await;
    });
}

#[test]
fn several_workers_count_in_one_registry_and_show_what_the_store_has() {
    block_on(async {
        let (kit, post, metrics) = (Kit::new(), Post::new(Act::Wait), Metrics::default());
        let settings = Settings { max_processors: 2, batch_size: 1, ..Settings::default() };
        let worker = || {
            let worker = post.worker(&kit).settings(settings.clone()).metrics(metrics.clone());
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
            post.begun().await;
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
        kit.until("emails", |tube| tube.stats.calls.ttr == 4).await;
        let text = workers[1].metrics_text().await;
        assert_eq!(metric(&text, "queue_tasks_expired_total{queue_num=\"1\"}"), 4.0);
        assert_eq!(metric(&text, "queue_running_workers "), 0.0);
        assert_eq!(metric(&text, "queue_tasks_in_progress{queue_num=\"1\"}"), 0.0);
        let bare = text.lines().filter(|line| !line.starts_with('#'));
        assert!(bare.into_iter().all(|line| line.starts_with("queue_")), "{text}");
    });
}

/// The age was that of the first task of the latest batch: while all processors were busy it stood still, so that nobody
/// was told of a queue that grew older, and a task that came back hid those who had waited for longer.
#[test]
fn the_age_of_the_oldest_grows_while_all_are_busy() {
    block_on(async {
        let (kit, post) = (Kit::new(), Post::new(Act::Wait));
        let worker = post.worker(&kit).settings(Settings { batch_size: 1, ..Settings::default() });
        let worker = worker.build().unwrap();
        worker.init().await.unwrap();
        let age = async || {
            let text = worker.metrics_text().await;
            metric(&text, "queue_oldest_ready_age_seconds{queue_num=\"1\"}")
        };
        assert_eq!(age().await, 0.0, "nothing is there");
        let running = kit.start(&worker).await;
        put(kit.queue(), "busy").await;
        post.begun().await;
        assert_eq!(age().await, 0.0, "nothing waits");
        kit.advance(Duration::from_secs(2));
        put(kit.queue(), "waits").await;
        for seconds in [1.0, 2.0, 3.0] {
            kit.advance(Duration::from_secs(1));
            assert_eq!(age().await, seconds, "the only processor is busy");
        }
        post.now(Act::RetryIn(Duration::ZERO));
        post.gate.add_permits(1);
        post.begun().await;
        post.now(Act::Done);
        kit.drained("emails").await;
        assert_eq!(age().await, 0.0, "all are done");
        running.stop().await;
    });
}

/// The dashboard asks for what workers count, and for all of it.
#[test]
fn the_dashboard_and_the_metrics_have_the_same_names() {
    let (kit, post) = (Kit::new(), Post::new(Act::Done));
    let text = post.worker(&kit).build().unwrap().metrics().text();
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let counted: BTreeSet<_> = types.filter_map(|line| line.split(' ').next()).collect();
    let dashboard = include_str!("../../../../../docs/workers.grafana.json");
    let words = dashboard.split(|c: char| !c.is_ascii_lowercase() && c != '_');
    let words = words.map(|word| word.strip_suffix("_bucket").unwrap_or(word));
    let asked: BTreeSet<_> =
        words.filter(|word| word.starts_with("queue_") && *word != "queue_num").collect();
    assert_eq!(asked, counted);
}
