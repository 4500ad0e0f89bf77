//! Workers that report to the manager of their store and follow its plan, over each transport.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use taskyard::{Client, Execute, TubeStats};
use taskyard_core::service::{Health, Service};
use taskyard_core::{Command, Error, NewTask, Reply, Span, TubeName};
use taskyard_engine::Engine;
use taskyard_wire::http::{
    LEADER_TUBE, ManagerAnswer, QueueLoad, REPORTS_TUBE, WorkerReport, encode_message,
};
use taskyard_worker::testing::{ManualTimer, RunningWorker};
use taskyard_worker::{ManagerService, Plan, Settings, Worker};
use tokio::sync::Notify;
use tokio::task::yield_now;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::faulty_queue::{Fault, FaultyQueue};
use crate::recording_handler::{Act, RecordingHandler, notify, put};
use taskyard_testkit::server::{TestServer, block_on};

const PERIOD: Duration = Duration::from_secs(5);

/// A server, its clock, and the number of workers that report to it.
struct ManagedServer {
    test_server: TestServer,
    timer: Arc<ManualTimer>,
    workers: u64,
}

impl ManagedServer {
    async fn new() -> Self {
        let test_server = TestServer::in_memory().await;
        let timer = Arc::new(ManualTimer::new(test_server.clock.clone()));
        ManagedServer { test_server, timer, workers: 0 }
    }

    fn manager(&self, queue: impl Execute + 'static, name: &str) -> ManagerService {
        ManagerService::start_by(queue, name, self.timer.clone())
    }

    async fn start(
        &mut self,
        name: &str,
        queue: impl Execute + 'static,
        recorder: &RecordingHandler,
        processors: usize,
    ) -> (Worker, RunningWorker) {
        let settings =
            Settings { max_processors: processors, batch_size: 1, ..Settings::default() };
        let worker = Worker::builder(name, queue, recorder.handlers()).settings(settings).managed();
        let worker = worker.timer(self.timer.clone()).build().unwrap();
        let before = self.stats(REPORTS_TUBE).await.calls.put;
        let running = RunningWorker::start(&worker, self.timer.clone()).await;
        while self.stats(REPORTS_TUBE).await.calls.put == before {
            yield_now().await;
        }
        self.workers += 1;
        (worker, running)
    }

    async fn stats(&self, tube: &str) -> TubeStats {
        Client::new(self.test_server.engine.clone()).stats(tube).await.unwrap_or_default()
    }

    /// Advances the clock by five seconds and waits until every worker has reported.
    async fn reporting_period(&self) {
        let before = self.stats(REPORTS_TUBE).await.calls.put;
        self.timer.advance(PERIOD);
        let reported = before + self.workers;
        self.wait_until(REPORTS_TUBE, |stats| stats.calls.put >= reported).await;
    }

    /// Waits for a reporting period and an evaluation of the active manager.
    async fn evaluation_period(&self) {
        let before = self.stats(LEADER_TUBE).await.calls.touch;
        self.reporting_period().await;
        self.wait_until(LEADER_TUBE, |stats| stats.calls.touch > before).await;
    }

    /// Waits for a condition. A manager that lost the leader task because this machine is slow tries again a second later,
    /// so the clock advances from time to time.
    async fn wait_until(&self, tube: &str, condition: impl Fn(&TubeStats) -> bool) {
        for round in 1.. {
            if condition(&self.stats(tube).await) {
                return;
            }
            yield_now().await;
            if round % 300 == 0 {
                self.timer.advance(Duration::from_secs(1));
            }
        }
    }

    /// Waits until a manager holds the leader task.
    async fn wait_for_manager(&self) {
        while self.stats(LEADER_TUBE).await.calls.touch == 0 {
            self.timer.advance(Duration::from_millis(100));
            self.shown().await;
        }
    }

    async fn shown(&self) -> ManagerAnswer {
        self.test_server.http.get("/v1/manager").await.unwrap()
    }
}

async fn wait_for_newer_plan(server: &ManagedServer, worker: &Worker, newer_than: u64) {
    while worker.plan_version() <= newer_than {
        server.evaluation_period().await;
    }
}

/// The text that the dashboard shows for a manager.
fn status(manager: &ManagerService) -> String {
    let parts = manager.status();
    assert_eq!((parts.len(), parts[0].part.as_str()), (1, "this server"));
    parts[0].status.clone()
}

// The status showed the version of the plan, which is a timestamp, and a standby did not say what it waited for.
#[test]
fn the_status_of_a_manager_is_understandable() {
    block_on(async {
        let mut server = ManagedServer::new().await;
        let first = server.manager(server.test_server.engine.clone(), "first");
        assert_eq!(status(&first), "starting: no evaluation yet");
        while status(&first).starts_with("starting") {
            yield_now().await;
        }
        assert_eq!(status(&first), "standby: no worker has reported");
        let recorder = RecordingHandler::new(Act::Done);
        let (worker, running) =
            server.start("worker", server.test_server.engine.clone(), &recorder, 2).await;
        wait_for_newer_plan(&server, &worker, 0).await;
        let made = |text: &str| {
            let age = text.strip_prefix("active: plan for 1 worker and 2 queues, made ");
            let age = age.and_then(|age| age.strip_suffix(" s ago"));
            age.unwrap_or_else(|| panic!("{text}")).parse::<u64>().unwrap()
        };
        while !status(&first).starts_with("active: plan") {
            yield_now().await;
        }
        let before = made(&status(&first));
        server.timer.advance(Duration::from_secs(2));
        assert_eq!(made(&status(&first)), before + 2);
        let second = server.manager(server.test_server.engine.clone(), "second");
        while status(&second).starts_with("starting") {
            yield_now().await;
        }
        assert_eq!(status(&second), "standby: another server is the active manager");
        running.stop().await;
    });
}

#[test]
fn workers_on_all_transports_follow_one_plan() {
    block_on(async {
        let mut server = ManagedServer::new().await;
        assert_eq!(server.shown().await, ManagerAnswer::default());
        let manager = server.manager(server.test_server.engine.clone(), "first");
        let recorder = RecordingHandler::new(Act::Wait);
        let (http, a) = server.start("http", server.test_server.http.clone(), &recorder, 2).await;
        let (iproto, b) = server.start("iproto", server.test_server.connect(), &recorder, 2).await;
        let (engine, c) =
            server.start("engine", server.test_server.engine.clone(), &recorder, 1).await;
        for _ in 0..20 {
            put(&server.test_server.engine, "x").await;
        }
        server.wait_for_manager().await;
        for worker in [&http, &iproto, &engine] {
            wait_for_newer_plan(&server, worker, 0).await;
        }
        let shown = server.shown().await;
        assert!(shown.led && manager.leads());
        assert_eq!(shown.leader.as_deref(), Some("first"));
        let names: Vec<_> = shown.workers.iter().map(|worker| worker.name.as_str()).collect();
        assert_eq!(names, ["engine", "http", "iproto"]);
        let planned = |num: u32| -> u32 {
            let shares = shown.workers.iter().filter_map(|worker| worker.planned.as_ref());
            shares.filter_map(|shares| shares.get(&num)).sum()
        };
        assert_eq!((planned(1), planned(2)), (5, 0), "all processors work on the queue with tasks");
        recorder.gate.add_permits(100);
        while server.stats("emails").await.tasks.total() > 0 {
            yield_now().await;
        }
        // A queue without planned processors is served by idle ones.
        notify(&server.test_server.engine, "x").await;
        while server.stats("notifications").await.tasks.total() > 0 {
            yield_now().await;
        }
        let metrics = manager.metrics();
        let value =
            |name: &str| metrics.iter().find(|found| found.name == name).unwrap().values[0].1;
        assert_eq!(value("taskyard_manager_leader"), 1.0);
        assert_eq!(value("taskyard_manager_workers"), 3.0);
        assert!(value("taskyard_manager_plans_total") >= 1.0);
        for running in [a, b, c] {
            running.stop().await;
        }
        manager.stop().await;
        server.test_server.stop().await;
    });
}

/// A queue that does not answer while its server is frozen.
#[derive(Clone)]
struct FreezableQueue {
    engine: Engine,
    frozen: Arc<AtomicBool>,
    thawed: Arc<Notify>,
}

impl FreezableQueue {
    fn new(engine: Engine) -> Self {
        FreezableQueue { engine, frozen: Arc::default(), thawed: Arc::default() }
    }

    fn thaw(&self) {
        self.frozen.store(false, Ordering::SeqCst);
        self.thawed.notify_waiters();
    }
}

impl Execute for FreezableQueue {
    async fn execute(&self, commands: Vec<Command>) -> Vec<Result<Reply, Error>> {
        loop {
            let thawed = self.thawed.notified();
            if !self.frozen.load(Ordering::SeqCst) {
                return self.engine.execute(commands).await;
            }
            thawed.await;
        }
    }
}

/// Two servers share a store. The active manager freezes: its workers keep its plan, the standby takes over when the lease
/// of the leader task ends, and the first manager, running again, becomes the standby.
#[test]
fn a_standby_replaces_a_frozen_manager() {
    block_on(async {
        let mut server = ManagedServer::new().await;
        let first = FreezableQueue::new(server.test_server.engine.clone());
        let (one, recorder) =
            (server.manager(first.clone(), "one"), RecordingHandler::new(Act::Done));
        let (worker, running) =
            server.start("w", server.test_server.http.clone(), &recorder, 2).await;
        put(&server.test_server.engine, "x").await;
        server.wait_for_manager().await;
        let other = server.manager(server.test_server.engine.clone(), "other");
        wait_for_newer_plan(&server, &worker, 0).await;
        assert!(one.leads() && !other.leads());

        first.frozen.store(true, Ordering::SeqCst);
        let version = worker.plan_version();
        for _ in 0..2 {
            server.reporting_period().await;
            put(&server.test_server.engine, "x").await;
            while server.stats("emails").await.tasks.total() > 0 {
                yield_now().await;
            }
        }
        assert_eq!(worker.plan_version(), version, "the worker keeps its plan");

        while !other.leads() {
            server.reporting_period().await;
        }
        wait_for_newer_plan(&server, &worker, version).await;
        assert_eq!(server.shown().await.leader.as_deref(), Some("other"));
        let version = worker.plan_version();
        first.thaw();
        while one.leads() {
            server.reporting_period().await;
        }
        server.evaluation_period().await;
        assert!(other.leads());
        assert_eq!(server.shown().await.leader.as_deref(), Some("other"));
        assert!(worker.plan_version() >= version);
        running.stop().await;
        server.test_server.stop().await;
    });
}

#[test]
fn a_manager_that_stops_resigns_at_once() {
    block_on(async {
        let mut server = ManagedServer::new().await;
        let (one, recorder) = (
            server.manager(server.test_server.engine.clone(), "one"),
            RecordingHandler::new(Act::Done),
        );
        let (worker, running) = server.start("w", server.test_server.connect(), &recorder, 1).await;
        server.wait_for_manager().await;
        wait_for_newer_plan(&server, &worker, 0).await;
        let other = server.manager(server.test_server.engine.clone(), "other");
        one.stop().await;
        while !other.leads() {
            server.timer.advance(Duration::from_millis(100));
            server.shown().await;
        }
        let version = worker.plan_version();
        wait_for_newer_plan(&server, &worker, version).await;
        running.stop().await;
        other.stop().await;
        server.test_server.stop().await;
    });
}

#[test]
fn stopped_and_crashed_workers_are_no_longer_planned_for() {
    block_on(async {
        let mut server = ManagedServer::new().await;
        let (manager, recorder) = (
            server.manager(server.test_server.engine.clone(), "m"),
            RecordingHandler::new(Act::Done),
        );
        let (remaining, a) =
            server.start("remaining", server.test_server.http.clone(), &recorder, 1).await;
        let (_, b) = server.start("stopping", server.test_server.http.clone(), &recorder, 1).await;
        let (_, c) = server.start("crashing", server.test_server.http.clone(), &recorder, 1).await;
        server.wait_for_manager().await;
        while server.shown().await.workers.len() < 3 {
            server.evaluation_period().await;
        }
        server.workers = 2;
        b.stop().await;
        while server.shown().await.workers.len() > 2 {
            server.evaluation_period().await;
        }
        server.workers = 1;
        c.crash().await;
        while server.shown().await.workers.len() > 1 {
            server.evaluation_period().await;
        }
        assert_eq!(server.shown().await.workers[0].worker, remaining.id());
        a.stop().await;
        manager.stop().await;
        server.test_server.stop().await;
    });
}

/// Without a manager the reports are not read: they must not accumulate, and the worker serves its queues round robin.
#[test]
fn without_a_manager_queues_are_served_round_robin() {
    block_on(async {
        let mut server = ManagedServer::new().await;
        let recorder = RecordingHandler::new(Act::Done);
        let (worker, running) =
            server.start("alone", server.test_server.http.clone(), &recorder, 1).await;
        for _ in 0..20 {
            server.reporting_period().await;
        }
        assert!(server.stats(REPORTS_TUBE).await.tasks.total() <= 4);
        recorder.set_act(Act::Wait);
        for _ in 0..5 {
            put(&server.test_server.engine, "x").await;
            notify(&server.test_server.engine, "x").await;
        }
        recorder.gate.add_permits(100);
        while recorder.queue_nums_served().len() < 10 {
            yield_now().await;
        }
        let served = recorder.queue_nums_served();
        let emails = served.iter().filter(|num| **num == 1).count();
        assert_eq!((emails, served.len()), (5, 10), "{served:?}");
        assert_eq!(worker.plan_version(), 0);
        running.stop().await;
        server.test_server.stop().await;
    });
}

/// The tubes of the manager accept any task.
#[test]
fn tasks_that_are_not_reports_are_removed() {
    block_on(async {
        let mut server = ManagedServer::new().await;
        let (manager, recorder) = (
            server.manager(server.test_server.engine.clone(), "m"),
            RecordingHandler::new(Act::Done),
        );
        let (worker, running) =
            server.start("w", server.test_server.http.clone(), &recorder, 1).await;
        let client = Client::new(server.test_server.engine.clone());
        client.put(REPORTS_TUBE, "hello").await.unwrap();
        server.wait_for_manager().await;
        client.put("taskyard.manager.plans", &[1, 2, 3]).await.unwrap();
        wait_for_newer_plan(&server, &worker, 0).await;
        assert_eq!(server.shown().await.workers.len(), 1);
        assert_eq!(server.stats(REPORTS_TUBE).await.tasks.buried, 0);
        // The next plan removes the task that is not a plan.
        let (_, more) = server.start("more", server.test_server.http.clone(), &recorder, 1).await;
        let version = worker.plan_version();
        wait_for_newer_plan(&server, &worker, version).await;
        assert_eq!(server.stats("taskyard.manager.plans").await.tasks.total(), 1);
        more.stop().await;
        running.stop().await;
        manager.stop().await;
        server.test_server.stop().await;
    });
}

/// One idle processor, two queues: the plan assigned the processor to the first, and a task of the second waited for the
/// next evaluation and report. The clock does not move in this test.
#[test]
fn an_idle_processor_serves_a_queue_that_the_plan_gives_none() {
    block_on(async {
        let mut server = ManagedServer::new().await;
        let (manager, recorder) = (
            server.manager(server.test_server.engine.clone(), "m"),
            RecordingHandler::new(Act::Done),
        );
        let (worker, running) =
            server.start("w", server.test_server.http.clone(), &recorder, 1).await;
        server.wait_for_manager().await;
        wait_for_newer_plan(&server, &worker, 0).await;
        for _ in 0..3 {
            notify(&server.test_server.engine, "x").await;
            put(&server.test_server.engine, "x").await;
            for queue in ["notifications", "emails"] {
                while server.stats(queue).await.tasks.total() > 0 {
                    yield_now().await;
                }
            }
        }
        assert_eq!(recorder.queue_nums_served().len(), 6);
        running.stop().await;
        manager.stop().await;
        server.test_server.stop().await;
    });
}

/// A forged report.
fn report(worker: &str, version: u64, tube: &str) -> WorkerReport {
    let load = QueueLoad {
        queue_num: 1,
        tube: tube.into(),
        seconds_per_task: None,
        target_latency: 1.0,
        errors: 0,
        busy: 0,
    };
    let (worker, name) = (worker.into(), "forged".into());
    WorkerReport { worker, name, max_processors: 1, version, queues: vec![load] }
}

async fn put_report(server: &ManagedServer, report: &WorkerReport) {
    let task = NewTask::new(encode_message(report).unwrap());
    let tube = TubeName::new(REPORTS_TUBE).unwrap();
    let put = Command::Put { tube, tasks: vec![task], wait: Span::ZERO };
    server.test_server.engine.execute(vec![put]).await.pop().unwrap().unwrap();
}

/// A forged report named the largest number as the version that it follows: the next plan had that version, no worker
/// accepted another plan, and the manager panicked at the overflow. Another report had an invalid tube name, and planning
/// stopped as long as it existed.
#[test]
fn a_forged_report_does_not_stop_the_planning() {
    block_on(async {
        let mut server = ManagedServer::new().await;
        let (manager, recorder) = (
            server.manager(server.test_server.engine.clone(), "m"),
            RecordingHandler::new(Act::Done),
        );
        let (worker, running) =
            server.start("w", server.test_server.http.clone(), &recorder, 1).await;
        for version in [u64::MAX - 1, u64::MAX] {
            put_report(&server, &report(&version.to_string(), version, "emails")).await;
        }
        put_report(&server, &report("c", 0, "a/b")).await;
        server.wait_for_manager().await;
        wait_for_newer_plan(&server, &worker, 0).await;
        let day = Duration::from_secs(24 * 3600).as_micros() as u64;
        let now = worker.store().now().as_micros() as u64;
        assert!(worker.plan_version() <= now + day, "{}", worker.plan_version());
        let version = worker.plan_version();
        let (_, more) = server.start("more", server.test_server.http.clone(), &recorder, 1).await;
        put_report(&server, &report("d", u64::MAX, "a/b")).await;
        wait_for_newer_plan(&server, &worker, version).await;
        assert!(manager.leads() && manager.health() == Health::Healthy);
        for running in [running, more] {
            running.stop().await;
        }
        manager.stop().await;
        server.test_server.stop().await;
    });
}

/// A server whose clock is ahead published a plan and stopped before the workers reported its version: the next manager
/// published smaller versions, which all workers ignored.
#[test]
fn workers_follow_a_manager_whose_clock_is_behind() {
    block_on(async {
        let mut server = ManagedServer::new().await;
        let recorder = RecordingHandler::new(Act::Done);
        let (worker, running) =
            server.start("w", server.test_server.http.clone(), &recorder, 1).await;
        let manager = server.manager(server.test_server.engine.clone(), "behind");
        server.wait_for_manager().await;
        let ahead = worker.store().now().as_micros() as u64 + 3_600_000_000;
        let share = BTreeMap::from([(1, 1), (2, 0)]);
        worker.apply(Plan { version: ahead, share }).unwrap();
        wait_for_newer_plan(&server, &worker, ahead).await;
        running.stop().await;
        manager.stop().await;
        server.test_server.stop().await;
    });
}

/// Counts the log lines of the reporter.
#[derive(Clone, Default)]
struct LogCounter(Arc<AtomicUsize>);

impl Subscriber for LogCounter {
    fn enabled(&self, about: &Metadata<'_>) -> bool {
        about.is_event() && about.target() == "taskyard_worker::reporter"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// A worker without access to the tubes of the manager works without a plan and logs this once.
#[test]
fn a_worker_that_may_not_report_logs_this_once() {
    let log = LogCounter::default();
    let _subscribed = tracing::subscriber::set_default(log.clone());
    block_on(async {
        let server = ManagedServer::new().await;
        let (manager, recorder) = (
            server.manager(server.test_server.engine.clone(), "m"),
            RecordingHandler::new(Act::Done),
        );
        let faulty = FaultyQueue::new(server.test_server.engine.clone());
        let denied = Fault::Refuse(Error::Store("access is denied".into()));
        faulty.fail_next_of(REPORTS_TUBE, "create", usize::MAX, denied.clone());
        faulty.fail_next_of(REPORTS_TUBE, "put", usize::MAX, denied);
        let worker = Worker::builder("w", faulty.clone(), recorder.handlers()).managed();
        let worker = worker.timer(server.timer.clone()).build().unwrap();
        let running = RunningWorker::start(&worker, server.timer.clone()).await;
        for round in 1..=3 {
            faulty.wait_for_commands("put", round).await;
            put(&server.test_server.engine, "x").await;
            notify(&server.test_server.engine, "x").await;
            while recorder.queue_nums_served().len() < 2 * round {
                yield_now().await;
            }
            server.timer.advance(PERIOD);
        }
        assert_eq!(worker.plan_version(), 0);
        assert_eq!(log.0.load(Ordering::SeqCst), 1);
        running.stop().await;
        manager.stop().await;
        server.test_server.stop().await;
    });
}
