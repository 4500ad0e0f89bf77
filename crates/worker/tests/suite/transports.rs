//! Cases that upstream does not test, over each transport and store: order and fairness, handlers that fail and panic,
//! poison, stale acks, clocks that jump, graceful stop and shutdown.

use std::sync::Arc;
use std::time::Duration;

use taskyard::{Client, Execute, Http, Kind, NewTask, TubeInfo, TubeOptions, new_task};
use taskyard_core::{Body, Span};
use taskyard_engine::{Engine, Settings as EngineSettings};
use taskyard_store::OpenOptions;
use taskyard_stores::open;
use taskyard_worker::testing::{ManualTimer, RunningWorker};
use taskyard_worker::{PutOptions, Settings, TypedTask, Worker, worker_name};
use tokio::task::yield_now;

use crate::queues::EmailsTask;
use crate::recording_handler::{Act, RecordingHandler, mail, metric, notify, put};
use taskyard_testkit::server::{self, TestServer, block_on};

const EMAILS: &str = "{queue_num=\"1\"}";

fn seconds_of(seconds: u64) -> Span {
    Span::from_secs(seconds)
}

/// A queue behind some transport, and its clock.
struct Transport<E> {
    queue: E,
    timer: Arc<ManualTimer>,
}

impl<E: Execute + Clone + 'static> Transport<E> {
    fn worker(&self, recorder: &RecordingHandler, processors: usize, batch_size: usize) -> Worker {
        let settings = Settings { max_processors: processors, batch_size, ..Settings::default() };
        let worker = Worker::builder("worker", self.queue.clone(), recorder.handlers());
        worker.settings(settings).timer(self.timer.clone()).build().unwrap()
    }

    async fn start(&self, worker: &Worker) -> RunningWorker {
        RunningWorker::start(worker, self.timer.clone()).await
    }

    async fn wait_until(&self, tube: &str, condition: impl Fn(&TubeInfo) -> bool) {
        let client = Client::new(self.queue.clone());
        while !condition(&client.tube(tube).await.unwrap()) {
            yield_now().await;
        }
    }

    async fn wait_empty(&self, tube: &str) {
        self.wait_until(tube, |tube| tube.stats.tasks.total() == 0).await;
    }

    async fn run_all(&self) {
        self.order_and_fairness().await;
        self.many_tasks_are_put_at_once().await;
        self.each_task_has_its_options().await;
        for act in [Act::Panic, Act::Fail, Act::LeaveUnsettled] {
            self.an_unsettled_batch_returns(act).await;
        }
        self.poison_does_not_stop_the_rest_of_its_batch().await;
        self.poison_is_buried_with_its_error().await;
        self.a_stale_ack_is_refused().await;
        self.a_graceful_stop_waits().await;
        self.a_shutdown_cancels().await;
    }

    /// A worker holds a task and finishes it; then its process has finished so many.
    async fn is_listed(&self, http: &Http, done: u64) {
        let recorder = RecordingHandler::new(Act::Wait);
        let worker = self.worker(&recorder, 1, 1);
        let running = self.start(&worker).await;
        put(&self.queue, "ann").await;
        recorder.started().await;
        let workers = http.workers(false).await.unwrap().workers;
        let [listed] = &workers[..] else { panic!("{workers:?}") };
        assert_eq!(
            (listed.name.as_str(), listed.process),
            (&*worker_name(), Some(std::process::id()))
        );
        assert!(listed.tubes.contains(&"emails".to_owned()), "{listed:?}");
        assert_eq!((listed.running_count, listed.running[0].tube.as_str()), (1, "emails"));
        assert_eq!(listed.address.as_deref(), Some("127.0.0.1"));
        assert_eq!(listed.version.as_deref(), Some(env!("CARGO_PKG_VERSION")));
        recorder.gate.add_permits(1);
        self.wait_empty("emails").await;
        running.stop().await;
        let workers = http.workers(false).await.unwrap().workers;
        assert_eq!((workers[0].running_count, workers[0].done), (0, done));
    }

    async fn order_and_fairness(&self) {
        let recorder = RecordingHandler::new(Act::Done);
        let worker = self.worker(&recorder, 1, 2);
        worker.init().await.unwrap();
        for n in 0..20 {
            put(&self.queue, &n.to_string()).await;
            notify(&self.queue, "x").await;
        }
        let running = self.start(&worker).await;
        self.wait_empty("emails").await;
        self.wait_empty("notifications").await;
        running.stop().await;
        let wanted: Vec<_> = (0..20).map(|n| n.to_string()).collect();
        assert_eq!(recorder.receivers(), wanted, "in order of arrival");
        let (mut emails, mut others) = (0_i32, 0_i32);
        for queue in recorder.queue_nums_served() {
            *(if queue == 1 { &mut emails } else { &mut others }) += 1;
            assert!((emails - others).abs() <= 1, "{:?}", recorder.queue_nums_served());
        }
        assert_eq!((emails, others), (10, 10));
    }

    async fn many_tasks_are_put_at_once(&self) {
        let recorder = RecordingHandler::new(Act::Done);
        let worker = self.worker(&recorder, 1, 10);
        worker.init().await.unwrap();
        let mails: Vec<_> = (0..30).map(|n| mail(&n.to_string())).collect();
        let ids = EmailsTask::put_many(&self.queue, &mails, PutOptions::default()).await.unwrap();
        assert!(ids.is_sorted_by_key(|id| id.0) && ids.len() == 30, "{ids:?}");
        let running = self.start(&worker).await;
        self.wait_empty("emails").await;
        running.stop().await;
        let wanted: Vec<_> = mails.into_iter().map(|mail| mail.to).collect();
        assert_eq!(recorder.receivers(), wanted);
    }

    async fn each_task_has_its_options(&self) {
        let client = Client::new(self.queue.clone());
        // A take that a worker gave up ends at the server a moment after the worker, or over iproto, which cannot cancel it, when its
        // time has passed.
        while let Err(error) = client.drop_tube("emails").await {
            let has_consumers = matches!(
                error,
                taskyard::Error::Refused(taskyard_core::Error::TubeHasConsumers(_))
            );
            assert!(has_consumers, "{error}");
            self.timer.advance(Duration::from_secs(1));
        }
        let options = TubeOptions { queue_num: Some(1), ..TubeOptions::new(Kind::UtubeTtl) };
        client.create("emails", options).await.unwrap();
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let of_ann = PutOptions {
            ttl: seconds(30),
            ttr: seconds(7),
            pri: Some(9),
            subqueue: Some("ann".into()),
            attempts_max: Some(3),
            ..PutOptions::keyed("welcome:ann").unwrap()
        };
        let mails = [
            (mail("ann"), of_ann.clone()),
            (mail("ann again"), of_ann),
            (mail("ben"), PutOptions::after(Duration::from_secs(60))),
        ];
        let placed = EmailsTask::put_each(&self.queue, &mails).await.unwrap();
        let existing: Vec<_> = placed.iter().map(|placed| placed.existing).collect();
        assert_eq!((placed[0].id, existing), (placed[1].id, vec![false, true, false]));
        let task = client.peek("emails", placed[0].id).await.unwrap().unwrap().task;
        assert_eq!((task.expires.since(task.created), task.ttr), (seconds_of(30), seconds_of(7)));
        assert_eq!((task.pri, task.subqueue.as_deref()), (9, Some("ann")));
        assert_eq!(task.attempts_max, Some(3));
        assert_eq!(task.key.as_ref().map(|key| key.as_str()), Some("welcome:ann"));
        assert_eq!(client.tube("emails").await.unwrap().stats.tasks.delayed, 1);
        client.truncate("emails").await.unwrap();
        client.drop_tube("emails").await.unwrap();
    }

    async fn an_unsettled_batch_returns(&self, act: Act) {
        let recorder = RecordingHandler::new(act);
        let worker = self.worker(&recorder, 1, 10);
        worker.init().await.unwrap();
        let age = format!("queue_oldest_ready_age_seconds{EMAILS}");
        assert_eq!(metric(&worker.metrics_text().await, &age), 0.0, "{act:?}");
        let ready = worker.store().now();
        put(&self.queue, "ann").await;
        self.timer.advance(Duration::from_secs(3));
        assert_eq!(metric(&worker.metrics_text().await, &age), 3.0, "{act:?}");
        let running = self.start(&worker).await;
        recorder.started().await;
        recorder.set_act(Act::Done);
        while worker.report()[0].errors + u64::from(act == Act::LeaveUnsettled) == 0 {
            yield_now().await;
        }
        // The clock jumps: each taken task returns once.
        self.timer.advance(Duration::from_secs(24 * 3600));
        self.wait_empty("emails").await;
        running.stop().await;
        let attempts: Vec<_> = recorder.mails().iter().map(|mail| mail.attempts).collect();
        assert_eq!(attempts, [0, 1], "{act:?}");
        let previous: Vec<_> = recorder.mails().iter().map(|mail| mail.prev_start_time).collect();
        assert_eq!(
            previous,
            [None, Some(ready)],
            "{act:?}: when it became ready, not when it was taken"
        );
        let text = worker.metrics().text();
        let name = match act {
            Act::Panic => "queue_handler_panics_total",
            Act::Fail => "queue_handler_errors_total",
            _ => "queue_tasks_unsettled_total",
        };
        assert_eq!(metric(&text, &format!("{name}{EMAILS}")), 1.0, "{act:?}");
    }

    async fn poison_does_not_stop_the_rest_of_its_batch(&self) {
        let recorder = RecordingHandler::new(Act::Done);
        let worker = self.worker(&recorder, 1, 10);
        let client = Client::new(self.queue.clone());
        put(&self.queue, "before").await;
        client.put("emails", &("a", 7)).await.unwrap();
        put(&self.queue, "after").await;
        let running = self.start(&worker).await;
        self.wait_until("emails", |tube| tube.stats.tasks.total() == 1).await;
        self.wait_until("emails", |tube| tube.stats.tasks.delayed == 1).await;
        running.stop().await;
        assert_eq!(recorder.receivers(), ["before", "after"]);
        let text = worker.metrics().text();
        assert_eq!(metric(&text, &format!("queue_tasks_poison_total{EMAILS}")), 1.0);
        client.truncate("emails").await.unwrap();
    }

    async fn poison_is_buried_with_its_error(&self) {
        let worker = self.worker(&RecordingHandler::new(Act::Done), 1, 10);
        let client = Client::new(self.queue.clone());
        let new = NewTask { attempts_max: Some(2), ..new_task(&("a", 7)).unwrap() };
        let id = client.put_task("emails", new).await.unwrap();
        let running = self.start(&worker).await;
        self.wait_until("emails", |tube| tube.stats.tasks.delayed == 1).await;
        self.timer.advance(Duration::from_secs(24 * 3600));
        self.wait_until("emails", |tube| tube.stats.tasks.buried == 1).await;
        running.stop().await;
        let task = client.peek("emails", id).await.unwrap().unwrap().task;
        let failures = task.failures.expect("its errors are kept");
        assert_eq!((task.attempts, failures.iter().count()), (2, 2));
        let error = failures.last().unwrap().error;
        assert!(error.contains("cannot decode the payload"), "{error}");
        client.truncate("emails").await.unwrap();
    }

    async fn a_stale_ack_is_refused(&self) {
        let recorder = RecordingHandler::new(Act::Wait);
        let worker = self.worker(&recorder, 2, 1);
        let running = self.start(&worker).await;
        put(&self.queue, "ann").await;
        recorder.started().await;
        Client::new(self.queue.clone()).release_all("emails").await.unwrap();
        recorder.started().await;
        recorder.gate.add_permits(1);
        // The first delivery ends first and has lost its task to the second.
        while metric(&worker.metrics().text(), &format!("queue_tasks_fenced_total{EMAILS}")) == 0.0
        {
            yield_now().await;
        }
        self.wait_until("emails", |tube| tube.stats.tasks.taken == 1).await;
        recorder.gate.add_permits(1);
        self.wait_empty("emails").await;
        running.stop().await;
        assert_eq!(recorder.mails().len(), 2);
    }

    async fn a_graceful_stop_waits(&self) {
        let recorder = RecordingHandler::new(Act::WaitUntilCancelled);
        let worker = self.worker(&recorder, 1, 1);
        let running = self.start(&worker).await;
        put(&self.queue, "ann").await;
        put(&self.queue, "ben").await;
        recorder.started().await;
        let stopped = worker.graceful_stop();
        recorder.gate.add_permits(1);
        running.stop().await;
        stopped.await;
        assert_eq!(recorder.receivers(), ["ann"], "it was not cancelled, and no more was taken");
        self.wait_until("emails", |tube| tube.stats.tasks.ready == 1).await;
        Client::new(self.queue.clone()).truncate("emails").await.unwrap();
    }

    async fn a_shutdown_cancels(&self) {
        let recorder = RecordingHandler::new(Act::WaitUntilCancelled);
        let worker = self.worker(&recorder, 1, 1);
        let running = self.start(&worker).await;
        put(&self.queue, "ann").await;
        recorder.started().await;
        let stopping = worker.clone();
        let stopping = tokio::spawn(async move { stopping.shutdown(Duration::from_secs(5)).await });
        running.stop().await;
        stopping.await.unwrap().expect("the handler ends when it is cancelled");
        self.wait_until("emails", |tube| tube.stats.tasks.total() == 1).await;
        Client::new(self.queue.clone()).truncate("emails").await.unwrap();
    }
}

#[test]
fn over_http() {
    block_on(async {
        let test_server = TestServer::in_memory().await;
        let timer = Arc::new(ManualTimer::new(test_server.clock.clone()));
        Transport { queue: test_server.http.clone(), timer }.run_all().await;
        test_server.stop().await;
    });
}

/// Typed workers appear in the list of workers under the name of their process, over both protocols.
#[test]
fn workers_are_listed_by_name() {
    block_on(async {
        let test_server = TestServer::in_memory().await;
        let timer = Arc::new(ManualTimer::new(test_server.clock.clone()));
        Transport { queue: test_server.http.clone(), timer: timer.clone() }
            .is_listed(&test_server.http, 1)
            .await;
        Transport { queue: test_server.connect(), timer }.is_listed(&test_server.http, 2).await;
        test_server.stop().await;
    });
}

#[test]
fn over_iproto() {
    block_on(async {
        let test_server = TestServer::in_memory().await;
        let timer = Arc::new(ManualTimer::new(test_server.clock.clone()));
        Transport { queue: test_server.connect(), timer }.run_all().await;
        test_server.stop().await;
    });
}

#[test]
fn on_memory_and_sqlite_in_this_process() {
    let folder = tempfile::tempdir().unwrap();
    for url in ["memory:".into(), format!("sqlite:{}", folder.path().display())] {
        block_on(async {
            let clock = server::clock();
            let store = open(&url, &OpenOptions::default()).unwrap();
            let engine = Engine::start(store, clock.clone(), EngineSettings::default());
            let timer = Arc::new(ManualTimer::new(clock));
            Transport { queue: engine.clone(), timer }.run_all().await;
            engine.stop().await.unwrap();
        });
    }
}

/// Many tasks through SQLite: each is handled once and none is left. The benchmark uses a million.
#[test]
fn fifty_thousand_tasks() {
    let folder = tempfile::tempdir().unwrap();
    block_on(async {
        let clock = server::clock();
        let url = format!("sqlite:{}", folder.path().display());
        let store = open(&url, &OpenOptions::default()).unwrap();
        let engine = Engine::start(store, clock.clone(), EngineSettings::default());
        let transport =
            Transport { queue: engine.clone(), timer: Arc::new(ManualTimer::new(clock)) };
        let recorder = RecordingHandler::new(Act::Done);
        let worker = transport.worker(&recorder, 4, 100);
        let running = transport.start(&worker).await;
        let client = Client::new(engine.clone());
        let task = NewTask::new(Body::new(&mail("x").encode()));
        for _ in 0..50 {
            let tasks = vec![task.clone(); 1000];
            client.put_tasks("emails", tasks, Duration::ZERO).await.unwrap();
        }
        transport.wait_empty("emails").await;
        running.stop().await;
        let mut ids: Vec<_> = recorder.mails().iter().map(|mail| mail.task_id).collect();
        assert_eq!(ids.len(), 50_000, "each task once");
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 50_000, "all tasks");
        engine.stop().await.unwrap();
    });
}
