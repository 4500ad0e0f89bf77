//! Random but meaningful commands: they name tubes, tasks and leases that probably exist, and their
//! times are so short that deadlines are hit exactly.

use std::ops::Range;
use std::sync::Arc;

use fastrand::Rng;
use taskyard_core::*;

/// The seeds of `runs` runs. `TASKYARD_RUNS` multiplies them, `TASKYARD_SEED` is the first.
pub fn seeds(runs: u64) -> Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("TASKYARD_SEED").unwrap_or(0);
    first..first + runs * number("TASKYARD_RUNS").unwrap_or(1)
}

/// One command at its moment.
#[derive(Clone, Debug)]
pub struct Step {
    pub now: Timestamp,
    pub command: Command,
}

impl Step {
    /// The same without a rate limit.
    pub fn without_rates(&self) -> Self {
        let mut step = self.clone();
        match &mut step.command {
            Command::CreateTube { options, .. } => options.rate = None,
            Command::AlterTube { change, .. } => change.rate = None,
            _ => {}
        }
        step
    }
}

/// Generates steps, and learns from the replies what to name in the next ones.
pub struct Steps {
    pub rng: Rng,
    now: i64,
    /// Recent deliveries: tube, task, lease.
    deliveries: Vec<(TubeName, TaskId, Lease)>,
    /// The highest id seen.
    id_max: u64,
}

/// The names of tubes.
pub const TUBES: [&str; 4] = ["a", "b", "c", "d"];
/// The number of sessions.
const SESSIONS: u8 = 3;
/// Deliveries to remember: few, so that most of them are still in progress.
const REMEMBERED: usize = 12;

impl Steps {
    pub fn new(seed: u64) -> Self {
        Steps { rng: Rng::with_seed(seed), now: 1_000, deliveries: Vec::new(), id_max: 0 }
    }

    /// The next step when something is due at `deadline`.
    pub fn next(&mut self, deadline: Option<Timestamp>) -> Step {
        let deadline = deadline.map_or(self.now, |deadline| deadline.as_micros().max(self.now));
        self.now = match self.rng.u8(..20) {
            0..8 => self.now,
            8..15 => self.now + self.rng.i64(1..=3),
            15..17 => deadline,
            17 => deadline - 1,
            18 => self.now - 2,
            _ => self.now + self.rng.i64(10..60),
        };
        Step { now: Timestamp::from_micros(self.now), command: self.command() }
    }

    /// Remembers what a reply shows.
    pub fn learn(&mut self, command: &Command, answer: &Result<Reply>) {
        match (command, answer) {
            (Command::Put { .. }, Ok(Reply::Put(placed))) => {
                let ids = placed.iter().map(|placed| placed.id.0);
                self.id_max = ids.chain([self.id_max]).max().unwrap_or(0);
            }
            (Command::Take(take), Ok(Reply::Taken(tasks))) => {
                for task in tasks {
                    let lease = task.lease.expect("a taken task has a lease");
                    self.deliveries.push((take.tube.clone(), task.id, lease));
                }
                let surplus = self.deliveries.len().saturating_sub(REMEMBERED);
                self.deliveries.drain(..surplus);
            }
            _ => {}
        }
    }

    fn list(&mut self, tube: TubeName) -> Command {
        let id = TaskId(self.rng.u64(..self.id_max + 2));
        let some = self.rng.bool();
        let order = if self.rng.bool() {
            let states = StateSet::from_bits(self.rng.u8(..32)).unwrap();
            ListOrder::Id { states, after: some.then_some(id) }
        } else {
            ListOrder::Queue { after: some.then_some((self.rng.u64(..4), id)) }
        };
        let key = self.some(Self::key).map(|request| request.held.key);
        Command::List(List { tube, order, limit: self.rng.usize(..6), key })
    }

    fn search(&mut self, tube: TubeName) -> Command {
        let states = StateSet::from_bits(self.rng.u8(..32)).unwrap();
        let (count, run) = (self.rng.usize(..12), self.rng.usize(..3));
        let run = std::iter::repeat_with(|| self.rng.u8(..3)).take(run).collect();
        Command::Search(Search { tube, first: self.id(), count, states, run })
    }

    fn command(&mut self) -> Command {
        let tube = self.tube();
        match self.rng.u8(..100) {
            0..24 => {
                let tasks = (0..self.count()).map(|_| self.new_task()).collect();
                Command::Put { tube, tasks, wait: Span::ZERO }
            }
            24..46 => self.take(tube),
            46..66 => self.finish(),
            66..69 => Command::Kick { tube, count: self.rng.u64(..4) },
            69 => {
                let (ids, reset_attempts) = (self.ids(), self.rng.bool());
                Command::KickTasks { tube, ids, reset_attempts }
            }
            70..73 => Command::Delete { tube, ids: self.ids(), show: true },
            73..75 => Command::Peek { tube, ids: self.ids() },
            75 if self.rng.u8(..3) == 0 => self.search(tube),
            75 if self.rng.bool() => Command::Positions { tube, ids: self.ids() },
            75 => Command::Deliveries { tube, count: self.rng.usize(..4) },
            76 if self.rng.bool() => self.list(tube),
            76 => Command::Truncate { tube },
            77 if self.rng.u8(..4) > 0 => self.schedule(tube),
            77 => Command::ReleaseAll { tube },
            78..82 => {
                Command::JoinSession { session: self.session(), create: self.rng.u8(..4) > 0 }
            }
            82..87 => Command::LeaveSession { session: self.session() },
            87..89 => Command::ConfigureSessions { ttr: self.span() },
            89..91 => Command::Tick { limit: self.rng.usize(..5), seed: 0 },
            91..95 => Command::CreateTube {
                tube,
                options: self.options(),
                if_not_exists: self.rng.bool(),
            },
            95..98 => Command::AlterTube { tube, change: self.change() },
            98 => Command::DropTube { tube },
            _ => Command::Tubes { tube: self.rng.bool().then_some(tube) },
        }
    }

    /// A tube's name; the first ones more often.
    fn tube(&mut self) -> TubeName {
        let place = self.rng.usize(..TUBES.len()).min(self.rng.usize(..TUBES.len()));
        TubeName::new(TUBES[place]).expect("a good name")
    }

    fn session(&mut self) -> SessionId {
        SessionId([self.rng.u8(..SESSIONS); 16])
    }

    /// Mostly one, sometimes a few, seldom none.
    fn count(&mut self) -> usize {
        [1, 1, 1, 1, 2, 3, 5, 0][self.rng.usize(..8)]
    }

    fn span(&mut self) -> Span {
        let micros = [0, 1, 2, 3, 5, 8, 20, i64::MAX][self.rng.usize(..8)];
        Span::from_micros(micros)
    }

    fn some<T>(&mut self, value: fn(&mut Self) -> T) -> Option<T> {
        self.rng.bool().then(|| value(self))
    }

    /// Ids near the newest, a few of which were never issued.
    fn ids(&mut self) -> Vec<TaskId> {
        (0..self.count()).map(|_| self.id()).collect()
    }

    fn id(&mut self) -> TaskId {
        TaskId((self.id_max + 2).saturating_sub(self.rng.u64(..14)))
    }

    fn new_task(&mut self) -> NewTask {
        let size = self.rng.usize(..4);
        let at =
            (self.rng.u8(..8) == 0).then(|| Timestamp::from_micros(self.now + self.rng.i64(-3..8)));
        NewTask {
            body: Body::new(&vec![0xc0; size]),
            pri: self.some(|steps| steps.rng.u64(..3)),
            ttl: self.some(Self::span),
            ttr: self.some(Self::span),
            // Both are refused.
            delay: self.some(Self::span).filter(|_| at.is_none() && self.rng.bool()),
            at,
            subqueue: self.some(|steps| Arc::from(["x", "y", "nil"][steps.rng.usize(..3)])),
            semaphore_priority: None,
            key: self.some(Self::key).filter(|_| self.rng.bool()),
            attempts_max: (self.rng.u8(..6) == 0).then(|| self.rng.u32(..20).min(3)),
        }
    }

    /// One of few keys, so that they are often held.
    fn key(&mut self) -> Box<KeyRequest> {
        let key = Key::new(["k", "l", "m"][self.rng.usize(..3)]).expect("a good key");
        let unique_for = self.span().min(Span::from_secs(1));
        let on_conflict = if self.rng.bool() { OnConflict::Keep } else { OnConflict::Replace };
        Box::new(KeyRequest { held: HeldKey { key, unique_for }, on_conflict })
    }

    fn take(&mut self, tube: TubeName) -> Command {
        Command::Take(Take {
            tube,
            count: self.count(),
            session: self.some(Self::session),
            lease: self.some(Self::span),
            worker: self.some(|steps| Arc::from(["w:1:a", "w:2:b"][steps.rng.usize(..2)])),
            wait: Span::ZERO,
        })
    }

    /// Items of one tube, most of them about remembered deliveries.
    fn finish(&mut self) -> Command {
        let mut tube = self.tube();
        if !self.deliveries.is_empty() && self.rng.u8(..5) > 0 {
            tube = self.deliveries[self.rng.usize(..self.deliveries.len())].0.clone();
        }
        let here = self.deliveries.iter().filter(|delivery| delivery.0 == tube);
        let here: Vec<_> = here.map(|delivery| (delivery.1, delivery.2)).collect();
        let items = (0..self.count()).map(|_| {
            let (id, lease) = match here.is_empty() || self.rng.u8(..6) == 0 {
                true => (self.id(), Lease(self.rng.u64(..20))),
                false => here[self.rng.usize(..here.len())],
            };
            FinishItem { id, holder: self.holder(lease), finish: self.end() }
        });
        let items = items.collect();
        Command::Finish { tube, items, show: true }
    }

    fn holder(&mut self, lease: Lease) -> Holder {
        match self.rng.u8(..5) {
            0 => Holder::Any,
            1 => Holder::Session(self.session()),
            _ => Holder::Lease(lease),
        }
    }

    fn end(&mut self) -> Finish {
        match self.rng.u8(..10) {
            0..3 if self.rng.u8(..4) == 0 => Finish::ack_with(b"\xa2ok"),
            0..3 => Finish::Ack,
            3..6 => Finish::Release { delay: Span::ZERO, counted: self.rng.u8(..4) > 0 },
            6 => Finish::Release { delay: self.span(), counted: self.rng.bool() },
            7 if self.rng.bool() => Finish::Bury,
            7 => self.fail(),
            8 if self.rng.bool() => self.fail(),
            _ => Finish::Touch(self.span()),
        }
    }

    fn fail(&mut self) -> Finish {
        let error = ["no route", "é", ""][self.rng.usize(..3)];
        let delay = self.some(Self::span).filter(|_| self.rng.bool()).or(Some(Span::ZERO));
        if self.rng.u8(..3) == 0 {
            let (seed, default_delay) = (self.rng.u32(..), delay.unwrap_or_default());
            let then = AfterFailure::Policy { seed, default_delay };
            return Finish::Fail(Box::new(Fail { error: error.into(), then }));
        }
        Finish::fail(error, delay.filter(|_| self.rng.u8(..4) > 0))
    }

    fn retry(&mut self) -> Box<RetryPolicy> {
        let delay = Span::from_micros(self.rng.i64(0..9));
        Box::new(RetryPolicy {
            delay,
            // Rarely refused.
            factor_permille: self.rng.u32(980..4_000),
            delay_max: delay + Span::from_micros(self.rng.i64(0..40)),
            jitter_permille: self.rng.u32(..=1_000),
            retry_lost: self.rng.bool(),
        })
    }

    /// A token every 2 to 40 microseconds.
    fn rate(&mut self) -> Box<RateLimit> {
        let per = Span::from_micros(self.rng.i64(990..3_000).max(1_000));
        Box::new(RateLimit { count: self.rng.u32(75..500), per, burst: self.rng.u32(..20).min(4) })
    }

    /// A command for one of three schedules; times are near.
    fn schedule(&mut self, tube: TubeName) -> Command {
        let name = self.schedule_name();
        Command::Schedule(Box::new(match self.rng.u8(..12) {
            0..3 => ScheduleCommand::Set {
                schedule: StoredSchedule {
                    name,
                    tube,
                    template: self.new_task(),
                    timing: "every 3 us".into(),
                    catch_up: CatchUp::Last,
                    overlap: if self.rng.bool() { Overlap::Allow } else { Overlap::Skip },
                    until: self.some(Self::moment),
                    paused: self.rng.u8(..5) == 0,
                    next: self.some(Self::moment),
                    last: self.some(Self::moment),
                    fired: self.rng.u64(..3),
                    skipped: self.rng.u64(..3),
                },
                only_new: self.rng.u8(..4) == 0,
                keep_paused: self.rng.bool(),
            },
            3 => ScheduleCommand::Get { name },
            4 => {
                let after = self.some(Self::schedule_name);
                ScheduleCommand::List { after, limit: self.rng.usize(..4) }
            }
            5..7 => ScheduleCommand::Due { skip: self.rng.usize(..3), limit: self.rng.usize(..4) },
            7 => ScheduleCommand::Remove { name },
            8 => ScheduleCommand::Pause { name, paused: self.rng.bool() },
            _ => {
                let puts = (0..self.count()).map(|_| self.new_task()).collect();
                let (expected, next) = (self.moment(), self.some(Self::moment));
                ScheduleCommand::Fire { name, expected, next, puts, skipped: self.rng.u64(..3) }
            }
        }))
    }

    fn schedule_name(&mut self) -> ScheduleName {
        ScheduleName::new(["b", "a", "é"][self.rng.usize(..3)]).expect("a good name")
    }

    /// One of few moments, so that the next time of a schedule is often met.
    fn moment(&mut self) -> Timestamp {
        Timestamp::from_micros(self.now / 50 * 50 + self.rng.i64(0..4) * 25)
    }

    fn options(&mut self) -> TubeOptions {
        let change = self.change();
        let kind = Kind::ALL[self.rng.usize(..Kind::ALL.len())];
        TubeOptions {
            temporary: self.rng.u8(..5) == 0,
            capacity: change.capacity.flatten(),
            ttl: change.ttl.flatten(),
            ttr: change.ttr.flatten(),
            delay: change.delay.flatten().filter(|_| self.rng.bool()),
            pri: self.rng.u64(..3),
            attempts_max: change.attempts_max.flatten(),
            retry: change.retry.flatten(),
            rate: change.rate.flatten(),
            keep_done: change.keep_done.flatten(),
            keep_done_max: change.keep_done_max.unwrap_or(10_000),
            ttl_kills_taken: self.rng.u8(..3) == 0,
            paused: self.rng.u8(..10) == 0,
            ..TubeOptions::new(kind)
        }
    }

    fn change(&mut self) -> TubeChange {
        TubeChange {
            paused: Some(self.rng.u8(..5) == 0),
            capacity: self.some(|steps| steps.some(|steps| steps.rng.u64(..40))),
            ttl: self.some(|steps| steps.some(Self::span)),
            ttr: self.some(|steps| steps.some(Self::span)),
            delay: self.some(|steps| steps.some(Self::span)),
            pri: self.some(|steps| steps.rng.u64(..3)),
            attempts_max: self.some(|steps| steps.some(|steps| steps.rng.u32(..4))),
            retry: self.some(|steps| steps.some(Self::retry)),
            rate: self.some(|steps| steps.some(Self::rate).filter(|_| steps.rng.bool())),
            keep_done: self.some(|steps| steps.some(Self::span)),
            keep_done_max: self.some(|steps| steps.rng.u64(..20)),
        }
    }
}

/// A run of `length` steps that begins with a tube of each name.
pub fn script(seed: u64, length: usize) -> Vec<Step> {
    let mut steps = Steps::new(seed);
    let mut machine = Machine::default();
    let mut script = Vec::with_capacity(length);
    for name in TUBES {
        let tube = TubeName::new(name).expect("a good name");
        let create = Command::CreateTube { tube, options: steps.options(), if_not_exists: false };
        script.push(Step { now: Timestamp::EPOCH, command: create });
    }
    for place in 0..length {
        if place >= script.len() {
            script.push(steps.next(machine.next_wakeup()));
        }
        let Step { now, command } = script[place].clone();
        // With all due changes done, the next deadline is in the future and can be hit.
        let _ = machine.apply(now, Command::Tick { limit: usize::MAX, seed: 0 });
        let answer = machine.apply(now, command);
        steps.learn(&script[place].command, &answer);
    }
    script
}
