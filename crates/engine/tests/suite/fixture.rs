//! An engine on a memory store that tests can observe, block, break and move in time.

use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Waker};

use taskyard_core::{
    Body, Command, Error, Execute, Finish, FinishItem, Holder, Kind, NewTask, Reply, Result,
    ScheduleCommand, Span, Take, Task, TaskId, Timestamp, TubeName, TubeOptions,
};
use taskyard_engine::{Engine, ManualClock, Settings};
use taskyard_store::{
    BodyKey, Capabilities, Executed, MemoryStore, Pending, Store, StoreTime, Unloaded,
};
use taskyard_trace::Recorder;

/// An engine, its clock and its store.
pub struct Fixture {
    pub engine: Engine,
    pub clock: Arc<ManualClock>,
    pub control: Arc<Control>,
}

/// Observes and controls the store.
#[derive(Default)]
pub struct Control {
    /// Every batch, in order.
    pub batches: Mutex<Vec<Vec<Command>>>,
    /// Every batch fails.
    pub failing: AtomicBool,
    /// Every batch fails after the one that is running.
    pub failing_next: AtomicBool,
    /// Batches with this verb are executed, and their replies are lost.
    pub loses_replies: Mutex<Option<&'static str>>,
    /// Schedules do not fire, and stay due.
    pub never_fires: AtomicBool,
    /// Schedules that are set get this rule.
    pub other_rule: Mutex<Option<&'static str>>,
    /// Bodies of taken tasks must be loaded.
    pub unloads: AtomicBool,
    /// Every batch reports that "mail" has tasks.
    pub overstates_ready: AtomicBool,
    /// Loading does not end.
    pub load_hangs: AtomicBool,
    /// The error of loading; without it the bodies are loaded.
    pub load_error: Mutex<Option<Error>>,
    /// The payload that cannot be read.
    pub damaged: Mutex<Option<u8>>,
    /// The store panics at its next batch.
    pub panics: AtomicBool,
    pub closed: AtomicBool,
    state: Mutex<BlockState>,
    moved: Condvar,
    bodies: Mutex<Vec<(BodyKey, Option<Body>)>>,
}

#[derive(Default)]
struct BlockState {
    blocked: bool,
    entered: bool,
}

struct WatchedStore {
    memory: MemoryStore,
    control: Arc<Control>,
}

impl Control {
    /// Blocks the next batch until [`Control::unblock`].
    pub fn block(&self) {
        *self.state.lock().unwrap() = BlockState { blocked: true, entered: false };
    }

    /// Returns when a batch is blocked.
    pub fn wait_blocked(&self) {
        let state = self.state.lock().unwrap();
        drop(self.moved.wait_while(state, |state| !state.entered).unwrap());
    }

    pub fn unblock(&self) {
        self.state.lock().unwrap().blocked = false;
        self.moved.notify_all();
    }

    /// Returns when the store is closed.
    pub fn wait_closed(&self) {
        let state = self.state.lock().unwrap();
        let open = |_: &mut BlockState| !self.closed.load(Ordering::SeqCst);
        drop(self.moved.wait_while(state, open).unwrap());
    }

    /// The verbs of every batch so far.
    pub fn verbs(&self) -> Vec<Vec<&'static str>> {
        let batches = self.batches.lock().unwrap();
        batches.iter().map(|batch| batch.iter().map(Command::verb).collect()).collect()
    }

    pub fn forget_batches(&self) {
        self.batches.lock().unwrap().clear();
    }

    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.entered = true;
        self.moved.notify_all();
        drop(self.moved.wait_while(state, |state| state.blocked).unwrap());
    }

    /// Changes what a command does to schedules.
    fn change_schedules(&self, command: &mut Command) {
        let Command::Schedule(command) = command else { return };
        match &mut **command {
            ScheduleCommand::Fire { expected, .. } if self.never_fires.load(Ordering::SeqCst) => {
                *expected = expected.moved(1);
            }
            ScheduleCommand::Set { schedule, .. } => {
                if let Some(rule) = *self.other_rule.lock().unwrap() {
                    schedule.timing = rule.into();
                }
            }
            _ => {}
        }
    }

    fn unload(&self, executed: &mut Executed) {
        for (reply, answer) in executed.replies.iter_mut().enumerate() {
            let Ok(shown @ (Reply::Taken(_) | Reply::Found(_))) = answer else { continue };
            for (item, task) in shown.shown_mut().iter_mut().enumerate() {
                // Any unique key will do.
                let key = task.lease.map_or(task.id.0 + 1_000_000, |lease| lease.0);
                let key = BodyKey { tube: 0, id: TaskId(key) };
                self.bodies.lock().unwrap().push((key, task.body.take()));
                executed.unloaded.push(Unloaded { reply, item, key });
            }
        }
    }
}

impl Store for WatchedStore {
    fn execute(&self, now: Timestamp, mut commands: Vec<Command>) -> Pending<'_, Executed> {
        self.control.batches.lock().unwrap().push(commands.clone());
        self.control.pass();
        assert!(!self.control.panics.load(Ordering::SeqCst), "the store was told to panic");
        let fails = self.control.failing.load(Ordering::SeqCst);
        if self.control.failing_next.load(Ordering::SeqCst) {
            self.control.failing.store(true, Ordering::SeqCst);
        }
        if fails {
            let replies = commands.iter().map(|_| Err(Error::Store("disk full".into()))).collect();
            let effects = Default::default();
            return Box::pin(ready(Executed { replies, effects, unloaded: Vec::new() }));
        }
        commands.iter_mut().for_each(|command| self.control.change_schedules(command));
        let lost_verb = *self.control.loses_replies.lock().unwrap();
        let loses = commands.iter().any(|command| Some(command.verb()) == lost_verb);
        let executed = self.memory.execute(now, commands);
        Box::pin(async move {
            let mut executed = executed.await;
            if loses {
                let lost = Err(Error::OutcomeUnknown("the connection broke".into()));
                executed.replies.fill(lost);
                executed.effects = Default::default();
            }
            if self.control.unloads.load(Ordering::SeqCst) {
                self.control.unload(&mut executed);
            }
            if self.control.overstates_ready.load(Ordering::SeqCst) {
                executed.effects.ready.push((tube("mail"), 5));
            }
            executed
        })
    }

    fn load(&self, keys: Vec<BodyKey>) -> Pending<'_, Vec<Result<Option<Body>, Error>>> {
        if self.control.load_hangs.load(Ordering::SeqCst) {
            return Box::pin(std::future::pending());
        }
        if let Some(error) = self.control.load_error.lock().unwrap().clone() {
            return Box::pin(ready(vec![Err(error); keys.len()]));
        }
        let bodies = self.control.bodies.lock().unwrap();
        let find = |key| bodies.iter().find(|body| body.0 == key).and_then(|body| body.1.clone());
        let damaged = *self.control.damaged.lock().unwrap();
        let load = |key| match find(key) {
            Some(body) if damaged == Some(body.payload()[0]) => Err(damage()),
            body => Ok(body),
        };
        Box::pin(ready(keys.into_iter().map(load).collect()))
    }

    fn capabilities(&self) -> Capabilities {
        self.memory.capabilities()
    }

    fn time(&self) -> Option<StoreTime> {
        self.memory.time()
    }

    fn set_wall_ahead(&self, now: Timestamp, micros: i64) -> Pending<'_, Result<(), Error>> {
        if self.control.failing.load(Ordering::SeqCst) {
            return Box::pin(ready(Err(Error::Store("disk full".into()))));
        }
        self.memory.set_wall_ahead(now, micros)
    }

    fn close(&self) -> Pending<'_, Result<(), Error>> {
        self.control.closed.store(true, Ordering::SeqCst);
        drop(self.control.state.lock().unwrap());
        self.control.moved.notify_all();
        self.memory.close()
    }
}

impl Fixture {
    /// An engine with a `fifottl` tube "mail" and a tube "small" with a capacity of two.
    pub async fn new() -> Self {
        Fixture::start(Settings::default(), None).await
    }

    /// The same with a trace, and without time series, which read options of tubes, too.
    pub async fn recorded(recorder: Recorder) -> Self {
        let settings = Settings { series_tubes_max: 0, ..Settings::default() };
        Fixture::start(settings, Some(recorder)).await
    }

    async fn start(settings: Settings, recorder: Option<Recorder>) -> Self {
        let control = Arc::new(Control::default());
        let store = WatchedStore { memory: MemoryStore::default(), control: control.clone() };
        let clock = Arc::new(ManualClock::new(Timestamp::from_micros(1_000_000_000)));
        let engine = Engine::start_recorded(Box::new(store), clock.clone(), settings, recorder);
        let fixture = Fixture { engine, clock, control };
        let mut small = TubeOptions::new(Kind::LimFifoTtl);
        small.capacity = Some(2);
        for (name, options) in [("mail", TubeOptions::new(Kind::FifoTtl)), ("small", small)] {
            let tube = tube(name);
            let create = Command::CreateTube { tube, options, if_not_exists: false };
            assert_eq!(fixture.run(create).await, Ok(Reply::Created(true)));
        }
        fixture.control.forget_batches();
        fixture
    }

    /// Runs one command and returns its reply.
    pub async fn run(&self, command: Command) -> Result<Reply> {
        let mut replies = self.engine.execute(vec![command]).await;
        assert_eq!(replies.len(), 1);
        replies.remove(0)
    }

    /// Submits commands without waiting for the reply.
    pub fn submit(&self, commands: Vec<Command>) -> PolledReply {
        let engine = self.engine.clone();
        let future = Box::pin(async move { engine.execute(commands).await });
        let mut asked = PolledReply { future, answer: None };
        asked.is_pending();
        asked
    }

    /// Returns when everything submitted so far is answered or waits; the number of waiting
    /// commands.
    pub async fn idle(&self) -> usize {
        self.engine.waiting().await.len()
    }

    /// Puts tasks with these payloads.
    pub async fn put(&self, name: &str, payloads: &[u8]) {
        let reply = self.run(put(name, payloads, Span::ZERO)).await;
        assert!(matches!(reply, Ok(Reply::Put(_))), "{reply:?}");
    }

    /// Takes what is ready.
    pub async fn take(&self, name: &str, count: usize) -> Vec<Task> {
        taken(self.run(take(name, count, Span::ZERO)).await)
    }
}

/// A pending reply.
pub struct PolledReply {
    future: Pin<Box<dyn Future<Output = Vec<Result<Reply>>> + Send>>,
    answer: Option<Vec<Result<Reply>>>,
}

impl PolledReply {
    /// Whether there is no reply yet.
    pub fn is_pending(&mut self) -> bool {
        if self.answer.is_none() {
            let polled = self.future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            if let Poll::Ready(answer) = polled {
                self.answer = Some(answer);
            }
        }
        self.answer.is_none()
    }

    /// All replies.
    pub async fn replies(self) -> Vec<Result<Reply>> {
        match self.answer {
            Some(answer) => answer,
            None => self.future.await,
        }
    }

    /// The only reply.
    pub async fn reply(self) -> Result<Reply> {
        let mut replies = self.replies().await;
        assert_eq!(replies.len(), 1);
        replies.remove(0)
    }

    /// The payloads of the tasks taken.
    pub async fn payloads(self) -> Vec<u8> {
        payloads(&taken(self.reply().await))
    }
}

pub const MINUTE: Span = Span::from_secs(60);

/// The error of loading a damaged payload.
pub fn damage() -> Error {
    Error::Store("the payload is damaged; delete the task".into())
}

pub fn tube(name: &str) -> TubeName {
    TubeName::new(name).unwrap()
}

pub fn put(name: &str, payloads: &[u8], wait: Span) -> Command {
    let tasks = payloads.iter().map(|payload| NewTask::new(Body::new(&[*payload]))).collect();
    Command::Put { tube: tube(name), tasks, wait }
}

pub fn take(name: &str, count: usize, wait: Span) -> Command {
    Command::Take(Take { tube: tube(name), count, session: None, lease: None, worker: None, wait })
}

pub fn finish(name: &str, tasks: &[Task], finish: Finish) -> Command {
    let items = tasks.iter().map(|task| {
        let holder = Holder::Lease(task.lease.unwrap());
        FinishItem { id: task.id, holder, finish: finish.clone() }
    });
    Command::Finish { tube: tube(name), items: items.collect(), show: true }
}

pub fn taken(reply: Result<Reply>) -> Vec<Task> {
    match reply {
        Ok(Reply::Taken(tasks)) => tasks,
        other => panic!("not an answer to a take: {other:?}"),
    }
}

pub fn payloads(tasks: &[Task]) -> Vec<u8> {
    tasks.iter().map(|task| task.body.as_ref().unwrap().payload()[0]).collect()
}
