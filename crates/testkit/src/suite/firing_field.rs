//! Two servers that fire one schedule of a shared database. The connection of one of them to the database can be stopped at each step.
//!
//! Clocks are moved by hand: times come due when a case lets them, first for the server that is going to be interrupted.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use taskyard_conformance::block_on;
use taskyard_core::{
    Body, CatchUp, Command, Error, Execute, Finish, FinishItem, Holder, Kind, NewTask, Overlap,
    Reply, ScheduleCommand, ScheduleName, ScheduleReply, Span, StoredSchedule, Take, Task,
    Timestamp, TubeName, TubeOptions,
};
use taskyard_engine::{Engine, ManualClock, Settings};
use taskyard_store::Store;
use taskyard_store::remote::{Backend, Clock, RemoteStore};

use crate::calls::{NOW, ask, ask_until_there, make_tube};
use crate::step_proxy::{StepProxy, StopPoint};
use crate::storm::StormDatabase;
use crate::{OwnServer, SharedDatabase};

/// The time between two times of the schedule: longer than a server needs to continue, by its clock.
const PERIOD: Span = Span::from_secs(3600);
/// The rule with that period, whose times are hours after [`NOW`].
const RULE: &str = "every 3600 start 1700000000";
const SECOND: Span = Span::from_secs(1);
/// How many times come due at once, as after a stop of all servers.
pub const DUE: u64 = 3;
/// How long a step or a firing may take.
const LIMIT: Duration = Duration::from_secs(60);

/// A server in the test process.
#[derive(Clone)]
struct FiringServer {
    engine: Engine,
    clock: Arc<ManualClock>,
}

/// A consumer that waits for a task.
pub struct Consumer(Receiver<Result<Reply, Error>>);

/// Which of the two servers.
#[derive(Clone, Copy, Debug)]
pub enum Which {
    /// The one whose connection can be stopped.
    Faulty,
    /// The other one.
    Steady,
}

/// What has changed since the latest look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Tasks in the tube.
    pub tasks: u64,
    /// Tasks that the schedule has counted as added.
    pub fired: u64,
    /// Times that it has counted as skipped.
    pub skipped: u64,
}

/// The database, its two servers and the schedule.
pub struct FiringField<D: SharedDatabase> {
    /// The database.
    pub database: D::Server,
    /// The path of the server that can be interrupted.
    pub proxy: StepProxy,
    faulty: FiringServer,
    steady: FiringServer,
    /// A connection of the test, which fires nothing.
    observer: RemoteStore<D::Backend>,
    tube: TubeName,
    name: ScheduleName,
    /// How many times have come.
    times: u64,
    /// The schedule at the latest look.
    seen: StoredSchedule,
}

impl FiringServer {
    fn start<B: Backend>(url: &str, now: Timestamp) -> Self {
        let store = RemoteStore::<B>::open(url, Clock::Caller).expect("the store opens");
        let clock = Arc::new(ManualClock::new(now));
        let settings = Settings { series_tubes_max: 0, workers_max: 0, ..Settings::default() };
        FiringServer { engine: Engine::start(Box::new(store), clock.clone(), settings), clock }
    }

    /// Moves its clock to this moment, unless it is later already.
    fn set_clock(&self, now: Timestamp) {
        self.clock.advance(now.since(self.engine.now()));
    }

    /// Returns when the engine has done what is due by its clock.
    fn idle(&self) {
        // The first answer may be of a turn that began before.
        for _ in 0..2 {
            block_on(self.engine.waiting());
        }
    }
}

impl Consumer {
    /// What it gets.
    pub fn delivered(self) -> Vec<Task> {
        match self.0.recv_timeout(LIMIT).expect("its take is answered") {
            Ok(Reply::Taken(tasks)) => tasks,
            other => panic!("a take answers with tasks, not {other:?}"),
        }
    }
}

/// The moment of a time of the schedule.
fn moment(time: u64) -> Timestamp {
    NOW.moved(PERIOD.as_micros() * i64::try_from(time).expect("few times come"))
}

fn command(command: ScheduleCommand) -> Command {
    Command::Schedule(Box::new(command))
}

fn shown(reply: Reply) -> StoredSchedule {
    match reply {
        Reply::Schedule(ScheduleReply::Schedules(mut found)) => found.remove(0),
        other => panic!("a schedule was expected, not {other:?}"),
    }
}

/// Puts the task of the schedule outside its times, as a server does. Answers whether it is a new one.
pub fn run_now(engine: &Engine, name: ScheduleName) -> Result<bool, Error> {
    let one = |command| block_on(engine.execute(vec![command]));
    let [found] = <[_; 1]>::try_from(one(command(ScheduleCommand::Get { name }))).expect("one");
    let put = shown(found?).run_now()?;
    match <[_; 1]>::try_from(one(put)).expect("each command has one answer") {
        [Ok(Reply::Put(placed))] if placed.len() == 1 => Ok(!placed[0].existing),
        [Err(error)] => Err(error),
        [other] => panic!("a put answers with its task, not {other:?}"),
    }
}

impl<D: SharedDatabase<Server: StormDatabase>> FiringField<D> {
    /// Both servers and the schedule, in this database.
    pub fn new(database: D::Server) -> Self {
        let proxy = StepProxy::new(database.target(), D::PROTOCOL);
        let observer = RemoteStore::open(&database.url(), Clock::Caller).expect("the store opens");
        let tube = make_tube(&observer, TubeOptions::new(Kind::FifoTtl));
        let name = ScheduleName::new("job").expect("a good name");
        let schedule = StoredSchedule {
            name: name.clone(),
            tube: tube.clone(),
            template: NewTask::new(Body::new(&[0xc0])),
            timing: RULE.into(),
            catch_up: CatchUp::All,
            overlap: Overlap::Allow,
            until: None,
            paused: false,
            next: Some(moment(1)),
            last: None,
            fired: 0,
            skipped: 0,
        };
        let seen = schedule.clone();
        let set = ScheduleCommand::Set { schedule, only_new: true, keep_paused: false };
        ask(&observer, command(set)).expect("it is set");
        let steady = FiringServer::start::<D::Backend>(&database.url(), NOW);
        let by = database.url_by(proxy.address());
        let faulty = FiringServer::start::<D::Backend>(&by, NOW);
        FiringField { database, proxy, faulty, steady, observer, tube, name, times: 0, seen }
    }

    /// Changes what happens with times that were missed, and with those that come while an earlier task exists.
    pub fn set_rules(&mut self, catch_up: CatchUp, overlap: Overlap) {
        let schedule = StoredSchedule { catch_up, overlap, ..self.schedule() };
        let set = ScheduleCommand::Set { schedule, only_new: false, keep_paused: false };
        ask(&self.observer, command(set)).expect("it is set");
        self.seen = self.schedule();
    }

    fn server(&self, which: Which) -> &FiringServer {
        match which {
            Which::Faulty => &self.faulty,
            Which::Steady => &self.steady,
        }
    }

    /// Another handle of a server.
    pub fn engine(&self, which: Which) -> Engine {
        self.server(which).engine.clone()
    }

    /// The name of the schedule.
    pub fn name(&self) -> ScheduleName {
        self.name.clone()
    }

    /// The rule that decides about tasks of earlier times.
    pub fn overlap(&self) -> Overlap {
        self.seen.overlap
    }

    /// Lets one time come, which the server that is going to be interrupted fires. So it is connected, and has prepared what a
    /// firing needs.
    pub fn warm_up(&mut self) {
        self.times += 1;
        self.continue_with(Which::Faulty);
    }

    /// Lets times come for one server and stops its connection at this point. False if the firing ended before.
    pub fn stop_firing(&mut self, point: StopPoint) -> bool {
        self.times += DUE;
        let (faulty, observer) = (self.faulty.clone(), self.steady.engine.clone());
        let (name, now, next) = (self.name.clone(), moment(self.times), moment(self.times + 1));
        self.stop_during(point, move || {
            faulty.set_clock(now);
            let is_next = || {
                let get = command(ScheduleCommand::Get { name: name.clone() });
                let reply = block_on(observer.execute(vec![get])).remove(0);
                reply.is_ok_and(|reply| shown(reply).next >= Some(next))
            };
            while !is_next() {
                faulty.idle();
            }
            faulty.idle();
        })
    }

    /// Stops the connection of one server at this point while something runs. False if that ended before.
    pub fn stop_during(&self, point: StopPoint, work: impl FnOnce() + Send + 'static) -> bool {
        let (sender, events) = channel();
        let reached: Sender<bool> = sender.clone();
        self.proxy.stop_at(point, move || {
            // The case may have ended.
            let _ = reached.send(true);
        });
        thread::spawn(move || {
            work();
            let _ = sender.send(false);
        });
        let is_stopped = events.recv_timeout(LIMIT).expect("the firing goes on or stops");
        self.proxy.forget_stop();
        is_stopped
    }

    /// Lets more times come, without waiting for a server to fire them.
    pub fn let_times_come(&mut self) {
        self.times += DUE;
    }

    /// Lets a server go on until the times that have come have fired, and then the other one, which must find nothing to do.
    pub fn continue_with(&self, which: Which) {
        let (server, begun) = (self.server(which), Instant::now());
        server.set_clock(moment(self.times));
        server.idle();
        while self.schedule().next != Some(moment(self.times + 1)) {
            assert!(begun.elapsed() < LIMIT, "{which:?} does not fire: {:?}", self.schedule());
            // It tries again in a second.
            server.clock.advance(SECOND);
            server.idle();
        }
    }

    /// Lets both servers look for times that are due.
    pub fn let_both_look(&self) {
        let latest = self.faulty.engine.now().max(self.steady.engine.now()) + SECOND;
        for server in [&self.faulty, &self.steady] {
            server.set_clock(latest);
            server.idle();
        }
    }

    /// Replaces the server that was interrupted, as if its process had been killed.
    pub fn kill_faulty(&mut self) {
        self.proxy.kill_client();
        self.proxy = StepProxy::new(self.database.target(), D::PROTOCOL);
    }

    /// Starts a new one after its predecessor was killed.
    pub fn start_faulty(&mut self) {
        let by = self.database.url_by(self.proxy.address());
        self.faulty = FiringServer::start::<D::Backend>(&by, self.steady.engine.now());
    }

    fn schedule(&self) -> StoredSchedule {
        let get = command(ScheduleCommand::Get { name: self.name.clone() });
        shown(ask_until_there(&self.observer, &get))
    }

    /// What has changed since the latest look. Tasks are taken and acked, except one that a consumer holds.
    pub fn look(&mut self, held: &[Task]) -> Outcome {
        let now = self.schedule();
        assert_eq!(now.next, Some(moment(self.times + 1)));
        let mut tasks = self.take_all();
        tasks.extend(held.iter().cloned());
        let outcome = Outcome {
            tasks: tasks.len() as u64,
            fired: now.fired - self.seen.fired,
            skipped: now.skipped - self.seen.skipped,
        };
        self.ack(&tasks);
        self.seen = now;
        outcome
    }

    fn run(&self, command: Command) -> Reply {
        let now = moment(self.times);
        block_on(self.observer.execute(now, vec![command])).replies.remove(0).expect("it is done")
    }

    fn take_all(&self) -> Vec<Task> {
        match self.run(take(&self.tube, 1000, Span::ZERO)) {
            Reply::Taken(tasks) => tasks,
            other => panic!("a take answers with tasks, not {other:?}"),
        }
    }

    fn ack(&self, tasks: &[Task]) {
        let items = tasks.iter().map(|task| FinishItem {
            id: task.id,
            holder: Holder::Lease(task.lease.expect("it is taken")),
            finish: Finish::Ack,
        });
        let (tube, items) = (self.tube.clone(), items.collect());
        self.run(Command::Finish { tube, items, show: false });
    }

    /// A consumer that waits for one task at the server that is not interrupted.
    pub fn consume(&self) -> Consumer {
        let (engine, tube) = (self.steady.engine.clone(), self.tube.clone());
        // Longer than all times that come meanwhile.
        let take = take(&tube, 1, Span::from_secs(24 * 3600));
        let (sender, delivered) = channel();
        thread::spawn(move || {
            let reply = block_on(engine.execute(vec![take])).remove(0);
            // The case may have ended.
            let _ = sender.send(reply);
        });
        Consumer(delivered)
    }

    /// Panics unless what is stored is consistent.
    pub fn audit(&self) {
        self.database.audit(&self.tube);
        self.database.audit_sessions();
    }
}

fn take(tube: &TubeName, count: usize, wait: Span) -> Command {
    let lease = Some(Span::FOREVER);
    Command::Take(Take { tube: tube.clone(), count, session: None, lease, worker: None, wait })
}
