//! Workers that report to the manager of their store and follow its plan, on every way to the queue.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use taskyard::worker::kit::{HandTimer, Running};
use taskyard::worker::{ManagerService, Plan, Settings, Worker};
use taskyard::{Client, Execute, TubeStats};
use taskyard_core::service::{Health, Service};
use taskyard_core::{Command, Error, NewTask, Reply, Span, TubeName};
use taskyard_engine::Engine;
use taskyard_wire::http::{
    ManagerAnswer, QueueLoad, REPORTS_TUBE, SEAT_TUBE, WorkerReport, letter_to_body,
};
use tokio::sync::Notify;
use tokio::task::yield_now;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::post::{Act, Post, notify, put};
use super::rough::{Rough, Way};
use crate::rig::{Rig, block_on};

const PERIOD: Duration = Duration::from_secs(5);

/// A server, its time, and the workers that report to it.
struct Yard {
    rig: Rig,
    timer: Arc<HandTimer>,
    workers: u64,
}

impl Yard {
    async fn new() -> Self {
        let rig = Rig::in_memory().await;
        let timer = Arc::new(HandTimer::new(rig.clock.clone()));
        Yard { rig, timer, workers: 0 }
    }

    fn manager(&self, queue: impl Execute + 'static, name: &str) -> ManagerService {
        ManagerService::start_by(queue, name, self.timer.clone())
    }

    async fn start(
        &mut self,
        name: &str,
        queue: impl Execute + 'static,
        post: &Post,
        processors: usize,
    ) -> (Worker, Running) {
        let settings =
            Settings { max_processors: processors, batch_size: 1, ..Settings::default() };
        let worker = Worker::builder(name, queue, post.handlers()).settings(settings).managed();
        let worker = worker.timer(self.timer.clone()).build().unwrap();
        let before = self.stats(REPORTS_TUBE).await.calls.put;
        let running = Running::start(&worker, self.timer.clone()).await;
        while self.stats(REPORTS_TUBE).await.calls.put == before {
            yield_now().await;
        }
        self.workers += 1;
        (worker, running)
    }

    async fn stats(&self, tube: &str) -> TubeStats {
        Client::new(self.rig.engine.clone()).stats(tube).await.unwrap_or_default()
    }

    /// Lets five seconds pass, and waits until every worker has reported.
    async fn period(&self) {
        let before = self.stats(REPORTS_TUBE).await.calls.put;
        self.timer.advance(PERIOD);
        let reported = before + self.workers;
        self.patiently(REPORTS_TUBE, |stats| stats.calls.put >= reported).await;
    }

    /// The same, and the leader has looked.
    async fn led_period(&self) {
        let before = self.stats(SEAT_TUBE).await.calls.touch;
        self.period().await;
        self.patiently(SEAT_TUBE, |stats| stats.calls.touch > before).await;
    }

    /// Waits; who has lost its seat because this machine was slow looks again a second later, so now and then one
    /// has to pass.
    async fn patiently(&self, tube: &str, fulfilled: impl Fn(&TubeStats) -> bool) {
        for round in 1.. {
            if fulfilled(&self.stats(tube).await) {
                return;
            }
            yield_now().await;
            if round % 300 == 0 {
                self.timer.advance(Duration::from_secs(1));
            }
        }
    }

    /// Until a manager has taken the seat.
    async fn led(&self) {
        while self.stats(SEAT_TUBE).await.calls.touch == 0 {
            self.timer.advance(Duration::from_millis(100));
            self.shown().await;
        }
    }

    async fn shown(&self) -> ManagerAnswer {
        self.rig.http.look("/v1/manager").await.unwrap()
    }
}

async fn follows(yard: &Yard, worker: &Worker, newer_than: u64) {
    while worker.plan_version() <= newer_than {
        yard.led_period().await;
    }
}

#[test]
fn workers_on_all_ways_follow_one_plan() {
    block_on(async {
        let mut yard = Yard::new().await;
        assert_eq!(yard.shown().await, ManagerAnswer::default());
        let manager = yard.manager(yard.rig.engine.clone(), "first");
        let post = Post::new(Act::Wait);
        let (http, a) = yard.start("http", yard.rig.http.clone(), &post, 2).await;
        let (iproto, b) = yard.start("iproto", yard.rig.connect(), &post, 2).await;
        let (engine, c) = yard.start("engine", yard.rig.engine.clone(), &post, 1).await;
        for _ in 0..20 {
            put(&yard.rig.engine, "x").await;
        }
        yard.led().await;
        for worker in [&http, &iproto, &engine] {
            follows(&yard, worker, 0).await;
        }
        let shown = yard.shown().await;
        assert!(shown.led && manager.leads());
        assert_eq!(shown.leader.as_deref(), Some("first"));
        let names: Vec<_> = shown.workers.iter().map(|worker| worker.name.as_str()).collect();
        assert_eq!(names, ["engine", "http", "iproto"]);
        let planned = |num: u32| -> u32 {
            let shares = shown.workers.iter().filter_map(|worker| worker.planned.as_ref());
            shares.filter_map(|shares| shares.get(&num)).sum()
        };
        assert_eq!((planned(1), planned(2)), (5, 0), "all are where the tasks are");
        post.gate.add_permits(100);
        while yard.stats("emails").await.tasks.total() > 0 {
            yield_now().await;
        }
        // A queue that nobody was planned for is served by whoever is idle.
        notify(&yard.rig.engine, "x").await;
        while yard.stats("notifications").await.tasks.total() > 0 {
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
        yard.rig.stop().await;
    });
}

/// A queue that does not answer while its server is frozen.
#[derive(Clone)]
struct Freezing {
    engine: Engine,
    frozen: Arc<AtomicBool>,
    thawed: Arc<Notify>,
}

impl Freezing {
    fn new(engine: Engine) -> Self {
        Freezing { engine, frozen: Arc::default(), thawed: Arc::default() }
    }

    fn thaw(&self) {
        self.frozen.store(false, Ordering::SeqCst);
        self.thawed.notify_waiters();
    }
}

impl Execute for Freezing {
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

/// Two servers share a store. The leader freezes: its workers go on by its plan, the other server takes over when
/// the seat is free, and the first one, awake again, sees that it no longer leads.
#[test]
fn a_leader_that_freezes_is_followed_by_another() {
    block_on(async {
        let mut yard = Yard::new().await;
        let first = Freezing::new(yard.rig.engine.clone());
        let (one, post) = (yard.manager(first.clone(), "one"), Post::new(Act::Done));
        let (worker, running) = yard.start("w", yard.rig.http.clone(), &post, 2).await;
        put(&yard.rig.engine, "x").await;
        yard.led().await;
        let other = yard.manager(yard.rig.engine.clone(), "other");
        follows(&yard, &worker, 0).await;
        assert!(one.leads() && !other.leads());

        first.frozen.store(true, Ordering::SeqCst);
        let version = worker.plan_version();
        for _ in 0..2 {
            yard.period().await;
            put(&yard.rig.engine, "x").await;
            while yard.stats("emails").await.tasks.total() > 0 {
                yield_now().await;
            }
        }
        assert_eq!(worker.plan_version(), version, "it goes on as it was");

        while !other.leads() {
            yard.period().await;
        }
        follows(&yard, &worker, version).await;
        assert_eq!(yard.shown().await.leader.as_deref(), Some("other"));
        let version = worker.plan_version();
        first.thaw();
        while one.leads() {
            yard.period().await;
        }
        yard.led_period().await;
        assert!(other.leads());
        assert_eq!(yard.shown().await.leader.as_deref(), Some("other"));
        assert!(worker.plan_version() >= version);
        running.stop().await;
        yard.rig.stop().await;
    });
}

#[test]
fn a_leader_that_stops_leaves_at_once() {
    block_on(async {
        let mut yard = Yard::new().await;
        let (one, post) = (yard.manager(yard.rig.engine.clone(), "one"), Post::new(Act::Done));
        let (worker, running) = yard.start("w", yard.rig.connect(), &post, 1).await;
        yard.led().await;
        follows(&yard, &worker, 0).await;
        let other = yard.manager(yard.rig.engine.clone(), "other");
        one.stop().await;
        while !other.leads() {
            yard.timer.advance(Duration::from_millis(100));
            yard.shown().await;
        }
        let version = worker.plan_version();
        follows(&yard, &worker, version).await;
        running.stop().await;
        other.stop().await;
        yard.rig.stop().await;
    });
}

#[test]
fn who_leaves_and_who_dies_is_planned_for_no_longer() {
    block_on(async {
        let mut yard = Yard::new().await;
        let (manager, post) = (yard.manager(yard.rig.engine.clone(), "m"), Post::new(Act::Done));
        let (stays, a) = yard.start("stays", yard.rig.http.clone(), &post, 1).await;
        let (_, b) = yard.start("leaves", yard.rig.http.clone(), &post, 1).await;
        let (_, c) = yard.start("dies", yard.rig.http.clone(), &post, 1).await;
        yard.led().await;
        while yard.shown().await.workers.len() < 3 {
            yard.led_period().await;
        }
        yard.workers = 2;
        b.stop().await;
        while yard.shown().await.workers.len() > 2 {
            yard.led_period().await;
        }
        yard.workers = 1;
        c.crash().await;
        while yard.shown().await.workers.len() > 1 {
            yard.led_period().await;
        }
        assert_eq!(yard.shown().await.workers[0].worker, stays.id());
        a.stop().await;
        manager.stop().await;
        yard.rig.stop().await;
    });
}

/// Nobody plans, so nobody reads the reports: they must not pile up, and the worker goes round robin.
#[test]
fn without_a_manager_it_goes_round_robin() {
    block_on(async {
        let mut yard = Yard::new().await;
        let post = Post::new(Act::Done);
        let (worker, running) = yard.start("alone", yard.rig.http.clone(), &post, 1).await;
        for _ in 0..20 {
            yard.period().await;
        }
        assert!(yard.stats(REPORTS_TUBE).await.tasks.total() <= 4);
        post.now(Act::Wait);
        for _ in 0..5 {
            put(&yard.rig.engine, "x").await;
            notify(&yard.rig.engine, "x").await;
        }
        post.gate.add_permits(100);
        while post.visits().len() < 10 {
            yield_now().await;
        }
        let visits = post.visits();
        let emails = visits.iter().filter(|num| **num == 1).count();
        assert_eq!((emails, visits.len()), (5, 10), "{visits:?}");
        assert_eq!(worker.plan_version(), 0);
        running.stop().await;
        yard.rig.stop().await;
    });
}

/// Anybody may put anything into the manager's tubes.
#[test]
fn what_is_no_report_is_removed() {
    block_on(async {
        let mut yard = Yard::new().await;
        let (manager, post) = (yard.manager(yard.rig.engine.clone(), "m"), Post::new(Act::Done));
        let (worker, running) = yard.start("w", yard.rig.http.clone(), &post, 1).await;
        let client = Client::new(yard.rig.engine.clone());
        client.put(REPORTS_TUBE, "hello").await.unwrap();
        yard.led().await;
        client.put("taskyard.manager.plans", &[1, 2, 3]).await.unwrap();
        follows(&yard, &worker, 0).await;
        assert_eq!(yard.shown().await.workers.len(), 1);
        assert_eq!(yard.stats(REPORTS_TUBE).await.tasks.buried, 0);
        // Another plan removes what is none.
        let (_, more) = yard.start("more", yard.rig.http.clone(), &post, 1).await;
        let version = worker.plan_version();
        follows(&yard, &worker, version).await;
        assert_eq!(yard.stats("taskyard.manager.plans").await.tasks.total(), 1);
        more.stop().await;
        running.stop().await;
        manager.stop().await;
        yard.rig.stop().await;
    });
}

/// One processor, two queues, nothing to do: the plan gave the processor to the first, and a task of the second lay
/// beside it until the leader and then the worker had looked again. Nothing here lets time pass.
#[test]
fn an_idle_processor_takes_what_the_plan_did_not_expect() {
    block_on(async {
        let mut yard = Yard::new().await;
        let (manager, post) = (yard.manager(yard.rig.engine.clone(), "m"), Post::new(Act::Done));
        let (worker, running) = yard.start("w", yard.rig.http.clone(), &post, 1).await;
        yard.led().await;
        follows(&yard, &worker, 0).await;
        for _ in 0..3 {
            notify(&yard.rig.engine, "x").await;
            put(&yard.rig.engine, "x").await;
            for queue in ["notifications", "emails"] {
                while yard.stats(queue).await.tasks.total() > 0 {
                    yield_now().await;
                }
            }
        }
        assert_eq!(post.visits().len(), 6);
        running.stop().await;
        manager.stop().await;
        yard.rig.stop().await;
    });
}

/// A report as anybody could put one.
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

async fn put_report(yard: &Yard, report: &WorkerReport) {
    let task = NewTask::new(letter_to_body(report).unwrap());
    let tube = TubeName::new(REPORTS_TUBE).unwrap();
    let put = Command::Put { tube, tasks: vec![task], wait: Span::ZERO };
    yard.rig.engine.execute(vec![put]).await.pop().unwrap().unwrap();
}

/// One letter in the tube of reports named the largest number there is as the plan it follows: the next plan had
/// it, nobody ever followed another, and the planner died of the number after it. Another letter named a
/// tube that cannot be, and nobody was planned for as long as it was there.
#[test]
fn a_forged_report_does_not_stop_the_planning() {
    block_on(async {
        let mut yard = Yard::new().await;
        let (manager, post) = (yard.manager(yard.rig.engine.clone(), "m"), Post::new(Act::Done));
        let (worker, running) = yard.start("w", yard.rig.http.clone(), &post, 1).await;
        for version in [u64::MAX - 1, u64::MAX] {
            put_report(&yard, &report(&version.to_string(), version, "emails")).await;
        }
        put_report(&yard, &report("c", 0, "a/b")).await;
        yard.led().await;
        follows(&yard, &worker, 0).await;
        let day = Duration::from_secs(24 * 3600).as_micros() as u64;
        let now = worker.store().now().as_micros() as u64;
        assert!(worker.plan_version() <= now + day, "{}", worker.plan_version());
        let version = worker.plan_version();
        let (_, more) = yard.start("more", yard.rig.http.clone(), &post, 1).await;
        put_report(&yard, &report("d", u64::MAX, "a/b")).await;
        follows(&yard, &worker, version).await;
        assert!(manager.leads() && manager.health() == Health::Well);
        for running in [running, more] {
            running.stop().await;
        }
        manager.stop().await;
        yard.rig.stop().await;
    });
}

/// A server whose clock is ahead published a plan and stopped before the workers said that they follow it: the
/// next one published an older number, was followed by nobody and never noticed.
#[test]
fn a_leader_whose_clock_is_behind_is_followed_all_the_same() {
    block_on(async {
        let mut yard = Yard::new().await;
        let post = Post::new(Act::Done);
        let (worker, running) = yard.start("w", yard.rig.http.clone(), &post, 1).await;
        let manager = yard.manager(yard.rig.engine.clone(), "behind");
        yard.led().await;
        let ahead = worker.store().now().as_micros() as u64 + 3_600_000_000;
        let share = BTreeMap::from([(1, 1), (2, 0)]);
        worker.apply(Plan { version: ahead, share }).unwrap();
        follows(&yard, &worker, ahead).await;
        running.stop().await;
        manager.stop().await;
        yard.rig.stop().await;
    });
}

/// Counts what is said about the manager.
#[derive(Clone, Default)]
struct Ear(Arc<AtomicUsize>);

impl Subscriber for Ear {
    fn enabled(&self, about: &Metadata<'_>) -> bool {
        about.is_event() && about.target().ends_with("worker::reporter")
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

/// A worker that may not use the tubes of the manager works without a plan, and says so once.
#[test]
fn who_may_not_report_goes_round_robin_and_says_so_once() {
    let ear = Ear::default();
    let _listening = tracing::subscriber::set_default(ear.clone());
    block_on(async {
        let yard = Yard::new().await;
        let (manager, post) = (yard.manager(yard.rig.engine.clone(), "m"), Post::new(Act::Done));
        let rough = Rough::new(yard.rig.engine.clone());
        let denied = Way::Refuse(Error::Store("access is denied".into()));
        rough.next_of(REPORTS_TUBE, "create", usize::MAX, denied.clone());
        rough.next_of(REPORTS_TUBE, "put", usize::MAX, denied);
        let worker = Worker::builder("w", rough.clone(), post.handlers()).managed();
        let worker = worker.timer(yard.timer.clone()).build().unwrap();
        let running = Running::start(&worker, yard.timer.clone()).await;
        for turn in 1..=3 {
            rough.until_asked("put", turn).await;
            put(&yard.rig.engine, "x").await;
            notify(&yard.rig.engine, "x").await;
            while post.visits().len() < 2 * turn {
                yield_now().await;
            }
            yard.timer.advance(PERIOD);
        }
        assert_eq!(worker.plan_version(), 0);
        assert_eq!(ear.0.load(Ordering::SeqCst), 1);
        running.stop().await;
        manager.stop().await;
        yard.rig.stop().await;
    });
}
