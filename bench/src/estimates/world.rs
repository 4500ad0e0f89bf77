//! A simulated queue: the core with consumers, arrivals and a clock of its own.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use fastrand::Rng;
use taskyard_core::estimate::{Calibration, GateNow, QueueNow, QueueSample, ServiceModel};
use taskyard_core::{
    Body, Command, Finish, FinishItem, Holder, Machine, NewTask, Reply, SemaphoreChange,
    SemaphoreCommand, SemaphoreKey, Span, Take, TaskId, Timestamp, TubeName, TubeOptions,
};

use super::figures::EstimateFigures;

/// What a workload decides.
pub trait Workload {
    /// The tubes.
    fn tubes(&self) -> Vec<TubeOptions>;

    /// The semaphore of the first tube: how many tasks it lets run.
    fn semaphore(&self) -> Option<u32> {
        None
    }

    /// The number of consumers at a moment, in seconds.
    fn consumers(&self, seconds: f64) -> usize;

    /// The next arrival: after how many seconds, and which tasks.
    fn arrive(&mut self, seconds: f64, random: &mut Rng) -> (f64, Vec<Arrival>);

    /// How long a task runs, in seconds, and what happens then.
    fn run(&mut self, tube: usize, random: &mut Rng) -> (f64, Finish);
}

/// A task that a workload puts.
pub struct Arrival {
    pub tube: usize,
    pub task: NewTask,
}

impl Arrival {
    pub fn new(tube: usize) -> Self {
        Arrival { tube, task: NewTask::new(Body::new(&[])) }
    }
}

/// A tube and what is learned of it.
struct LabTube {
    name: TubeName,
    model: ServiceModel,
    calibration: Calibration,
    sample: QueueSample,
    is_used: bool,
    runs: Vec<f64>,
}

#[derive(Clone, Debug)]
enum Event {
    Arrive,
    Finish { tube: usize, id: TaskId, run: f64, finish: Finish },
    SecondEnds,
    Tick,
}

/// The simulated queue.
pub struct World<W> {
    workload: W,
    machine: Machine,
    now: i64,
    events: BinaryHeap<Reverse<(i64, u64, usize)>>,
    details: HashMap<usize, Event>,
    sequence: u64,
    random: Rng,
    tubes: Vec<LabTube>,
    busy: usize,
    next_arrivals: Vec<Arrival>,
    next_tick: Option<i64>,
    semaphore: Option<SemaphoreKey>,
    /// When each task was estimated, and how long it was expected to wait.
    waits: HashMap<(usize, TaskId), (i64, taskyard_core::Estimate)>,
    pub figures: EstimateFigures,
}

const BEGIN: i64 = 1_000_000_000_000;

impl<W: Workload> World<W> {
    pub fn new(workload: W, seed: u64) -> Self {
        let mut machine = Machine::default();
        let mut tubes = Vec::new();
        let semaphore = workload.semaphore().map(|active| {
            let key = SemaphoreKey::new("lab").expect("a good key");
            let change =
                SemaphoreChange { active: Some(i64::from(active)), ..SemaphoreChange::default() };
            let configure = SemaphoreCommand::Configure {
                key: key.clone(),
                change: Box::new(change),
                only_new: false,
            };
            machine
                .apply(Timestamp::from_micros(BEGIN), Command::Semaphore(configure))
                .expect("a semaphore");
            key
        });
        for (number, mut options) in workload.tubes().into_iter().enumerate() {
            let name = TubeName::new(&format!("tube{number}")).expect("a good name");
            if number == 0 {
                options.semaphore.clone_from(&semaphore);
            }
            let create = Command::CreateTube { tube: name.clone(), options, if_not_exists: false };
            machine.apply(Timestamp::from_micros(BEGIN), create).expect("a new tube");
            tubes.push(LabTube {
                name,
                model: ServiceModel::default(),
                calibration: Calibration::default(),
                sample: QueueSample::default(),
                is_used: false,
                runs: Vec::new(),
            });
        }
        let mut world = World {
            workload,
            machine,
            now: BEGIN,
            events: BinaryHeap::new(),
            details: HashMap::new(),
            sequence: 0,
            random: Rng::with_seed(seed),
            tubes,
            busy: 0,
            next_arrivals: Vec::new(),
            next_tick: None,
            semaphore,
            waits: HashMap::new(),
            figures: EstimateFigures::default(),
        };
        world.after(1.0, Event::SecondEnds);
        world.schedule_arrival();
        world
    }

    /// Runs until so many estimates were compared.
    pub fn run(&mut self, estimates: usize) {
        while self.figures.len() < estimates {
            let Some(Reverse((at, _, place))) = self.events.pop() else { return };
            let Some(event) = self.details.remove(&place) else { continue };
            self.now = at;
            match event {
                Event::Arrive => self.arrive(),
                Event::Finish { tube, id, run, finish } => self.finish(tube, id, run, finish),
                Event::SecondEnds => self.end_second(),
                Event::Tick => self.tick(),
            }
            self.deliver();
            self.plan_tick();
        }
    }

    fn apply(&mut self, command: Command) -> Reply {
        let reply = self.machine.apply(Timestamp::from_micros(self.now), command);
        self.machine.take_effects();
        reply.expect("the laboratory sends good commands")
    }

    fn after(&mut self, seconds: f64, event: Event) {
        self.sequence += 1;
        let at = self.now + (seconds * 1e6).max(0.0) as i64;
        self.details.insert(self.sequence as usize, event);
        self.events.push(Reverse((at, self.sequence, self.sequence as usize)));
    }

    fn seconds(&self) -> f64 {
        (self.now - BEGIN) as f64 / 1e6
    }

    fn schedule_arrival(&mut self) {
        let seconds = self.seconds();
        let (wait, arrivals) = self.workload.arrive(seconds, &mut self.random);
        self.next_arrivals = arrivals;
        self.after(wait, Event::Arrive);
    }

    fn arrive(&mut self) {
        for Arrival { tube, task } in std::mem::take(&mut self.next_arrivals) {
            let name = self.tubes[tube].name.clone();
            let pri = task.pri;
            let put = Command::Put { tube: name, tasks: vec![task], wait: Span::ZERO };
            let Reply::Put(placed) = self.apply(put) else { continue };
            self.tubes[tube].model.add_arrivals(pri, 1);
            self.tubes[tube].is_used = true;
            self.estimate(tube, placed[0].id);
        }
        self.schedule_arrival();
    }

    fn estimate(&mut self, tube: usize, id: TaskId) {
        let name = self.tubes[tube].name.clone();
        let Reply::Tubes(infos) = self.apply(Command::Tubes { tube: Some(name.clone()) }) else {
            return;
        };
        let show = Command::Positions { tube: name, ids: vec![id] };
        let Reply::Positions(positions) = self.apply(show) else { return };
        let Some(position) = positions.first() else { return };
        let idle = self.workload.consumers(self.seconds()).saturating_sub(self.busy);
        let gate = self.gate();
        let own = &mut self.tubes[tube];
        let queue = QueueNow { idle: idle as u64, gate, ..QueueNow::of(&infos[0]) };
        let now = Timestamp::from_micros(self.now);
        let Ok(raw) = own.model.forecast(now, position, &queue) else { return };
        let shown = own.calibration.give(id, now, raw);
        self.waits.insert((tube, id), (self.now, shown));
    }

    fn gate(&mut self) -> Option<GateNow> {
        let key = self.semaphore.clone()?;
        let list = Command::Semaphore(SemaphoreCommand::List { key: Some(key) });
        let Reply::Semaphore(taskyard_core::SemaphoreReply::Semaphores(infos)) = self.apply(list)
        else {
            return None;
        };
        let info = infos.first()?;
        Some(GateNow {
            active: u64::from(info.options.active),
            held: info.acquired + info.revoking,
        })
    }

    /// Gives tasks to idle consumers.
    fn deliver(&mut self) {
        let consumers = self.workload.consumers(self.seconds());
        let first = self.random.usize(..self.tubes.len());
        let mut empty = 0;
        let mut at = first;
        while self.busy < consumers && empty < self.tubes.len() {
            if self.take(at) {
                empty = 0;
            } else {
                empty += 1;
            }
            at = (at + 1) % self.tubes.len();
        }
    }

    fn take(&mut self, tube: usize) -> bool {
        let name = self.tubes[tube].name.clone();
        let take = Take {
            tube: name,
            count: 1,
            session: None,
            lease: None,
            worker: None,
            wait: Span::ZERO,
        };
        let Reply::Taken(tasks) = self.apply(Command::Take(take)) else { return false };
        let Some(task) = tasks.first() else { return false };
        let own = &mut self.tubes[tube];
        own.sample.takes += 1;
        own.is_used = true;
        let held = own.calibration.start(task.id, Timestamp::from_micros(self.now));
        if let (Some(held), Some((at, shown))) = (held, self.waits.remove(&(tube, task.id))) {
            self.figures.add(held, &shown, (self.now - at) as f64 / 1e6);
        }
        self.busy += 1;
        let (run, finish) = self.workload.run(tube, &mut self.random);
        self.after(run, Event::Finish { tube, id: task.id, run, finish });
        true
    }

    fn finish(&mut self, tube: usize, id: TaskId, run: f64, finish: Finish) {
        let own = &mut self.tubes[tube];
        own.runs.push(run);
        own.is_used = true;
        own.sample.returns += u64::from(!matches!(finish, Finish::Ack));
        let items = vec![FinishItem { id, holder: Holder::Any, finish }];
        let tube = own.name.clone();
        self.apply(Command::Finish { tube, items, show: false });
        self.busy -= 1;
    }

    fn end_second(&mut self) {
        for tube in 0..self.tubes.len() {
            let name = self.tubes[tube].name.clone();
            let Reply::Tubes(infos) = self.apply(Command::Tubes { tube: Some(name) }) else {
                continue;
            };
            let counts = infos[0].stats.tasks;
            let own = &mut self.tubes[tube];
            own.runs.drain(..).for_each(|run| own.model.add_runs(run, 1));
            if std::mem::take(&mut own.is_used) {
                let (ready, taken) = (counts.ready, counts.taken);
                own.model.add_sample(QueueSample { seconds: 1.0, ready, taken, ..own.sample });
            }
            own.sample = QueueSample::default();
        }
        self.after(1.0, Event::SecondEnds);
    }

    fn tick(&mut self) {
        self.next_tick = None;
        let seed = self.random.u32(..);
        self.apply(Command::Tick { limit: 10_000, seed });
    }

    fn plan_tick(&mut self) {
        let Some(wakeup) = self.machine.next_wakeup() else { return };
        let at = wakeup.as_micros().max(self.now + 1);
        if self.next_tick.is_none_or(|planned| at < planned) {
            self.next_tick = Some(at);
            self.after((at - self.now) as f64 / 1e6, Event::Tick);
        }
    }
}
