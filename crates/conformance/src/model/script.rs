//! Generates the random commands of a run, mostly valid ones, so that most have an effect.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use fastrand::Rng;
use taskyard_core::{
    Body, Command, EnqueueItem, Finish, FinishItem, GrantFinish, GrantItem, HeldKey, Holder, Key,
    KeyRequest, Kind, Lease, List, ListOrder, NewTask, OnConflict, Outcome, Priority, Reply,
    ScheduleName, Search, SemaphoreChange, SemaphoreCommand, SemaphoreKey, SessionId, Span, State,
    StateSet, Take, TaskId, Timestamp, TubeChange, TubeName, TubeOptions,
};

use taskyard_store::Capabilities;

use super::pace::KnownSchedule;
use crate::commands::{NO_LEASE, name, put, secs};

/// The semaphore of the tube of this name.
fn semaphore_key(text: &str) -> SemaphoreKey {
    SemaphoreKey::new(text).expect("names of tubes are good keys")
}

/// Tubes of a run: one of each kind, and more of the kinds with most rules.
const TUBES: [(&str, Kind); 7] = [
    ("fifo", Kind::Fifo),
    ("fifottl", Kind::FifoTtl),
    ("limfifottl", Kind::LimFifoTtl),
    ("utube", Kind::Utube),
    ("utubettl", Kind::UtubeTtl),
    ("other fifottl", Kind::FifoTtl),
    ("other utubettl", Kind::UtubeTtl),
];

/// Tubes of a run with semaphores, each with one of its own.
const GATED: [(&str, Kind); 5] = [
    ("fifo", Kind::Fifo),
    ("fifottl", Kind::FifoTtl),
    ("limfifottl", Kind::LimFifoTtl),
    ("utube", Kind::Utube),
    ("utubettl", Kind::UtubeTtl),
];

/// How many sessions there may be.
const SESSIONS: u8 = 4;

/// How many of the latest deliveries of a tube are remembered, to be finished in time or too late.
const REMEMBERED: usize = 12;

/// One step of a run.
pub(super) enum Step {
    /// Run these, as one batch.
    Execute(Vec<Command>),
    /// Let this much time pass.
    Advance(Span),
    /// Stop and start again.
    Restart,
}

/// The source of steps.
pub(super) struct TubeScript {
    pub(super) rng: Rng,
    /// Gives the numbers of the features in `pace.rs`.
    pub(super) pace_rng: Rng,
    pub(super) capabilities: Capabilities,
    /// Whether the machine's ticks have the random numbers of the queue's.
    pub(super) shares_tick_seed: bool,
    /// Whether tubes have semaphores.
    gated: bool,
    pub(super) tubes: HashMap<TubeName, KnownTube>,
    pub(super) schedules: HashMap<ScheduleName, KnownSchedule>,
}

/// The part of a tube that the script knows.
#[derive(Default)]
pub(super) struct KnownTube {
    pub(super) next_id: u64,
    deliveries: Vec<Delivery>,
}

/// The part of a delivery that the script knows.
#[derive(Clone, Copy)]
struct Delivery {
    id: TaskId,
    lease: Lease,
    session: Option<SessionId>,
}

/// Names of workers.
const WORKERS: [&str; 2] = ["host:17:mailer", "w"];

impl TubeScript {
    pub(super) fn new(seed: u64, capabilities: Capabilities, shares_tick_seed: bool) -> Self {
        TubeScript {
            rng: Rng::with_seed(seed),
            pace_rng: Rng::with_seed(!seed),
            capabilities,
            shares_tick_seed,
            gated: false,
            tubes: HashMap::new(),
            schedules: HashMap::new(),
        }
    }

    /// A run whose tubes have semaphores.
    pub(super) fn gated(seed: u64, capabilities: Capabilities, shares_tick_seed: bool) -> Self {
        TubeScript { gated: true, ..TubeScript::new(seed, capabilities, shares_tick_seed) }
    }

    /// The semaphores to begin with.
    pub(super) fn first_semaphores(&mut self) -> Vec<Command> {
        let keys = GATED.map(|(text, _)| semaphore_key(text));
        keys.map(|key| self.configure(key)).to_vec()
    }

    /// The tubes to begin with.
    pub(super) fn first_tubes(&mut self) -> Vec<(TubeName, TubeOptions)> {
        let tubes = if self.gated { &GATED[..] } else { &TUBES[..] };
        tubes.iter().map(|(text, kind)| (name(text), self.options_of(text, *kind))).collect()
    }

    /// The next step.
    pub(super) fn step(&mut self, now: Timestamp) -> Step {
        match self.rng.u32(0..1000) {
            0..3 if self.capabilities.durable => Step::Restart,
            3..150 => Step::Advance(self.pause()),
            _ => {
                let count = if self.one_in(4) { self.rng.usize(2..=6) } else { 1 };
                Step::Execute((0..count).map(|_| self.command(now)).collect())
            }
        }
    }

    /// Remembers the machine's reply, for later commands.
    pub(super) fn learn(&mut self, command: &Command, reply: &Reply) {
        match (command, reply) {
            (Command::Put { tube, .. }, Reply::Put(placed)) => {
                let known = self.tubes.entry(tube.clone()).or_default();
                let added = placed.iter().rfind(|placed| !placed.existing);
                known.next_id = added.map_or(known.next_id, |placed| placed.id.0 + 1);
            }
            (Command::Take(take), Reply::Taken(tasks)) => {
                let known = self.tubes.entry(take.tube.clone()).or_default();
                let session = take.session;
                known.deliveries.extend(tasks.iter().filter_map(|task| {
                    Some(Delivery { id: task.id, lease: task.lease?, session })
                }));
                let surplus = known.deliveries.len().saturating_sub(REMEMBERED);
                known.deliveries.drain(..surplus);
            }
            (Command::Finish { tube, .. }, Reply::Finished(outcomes)) => {
                let known = self.tubes.entry(tube.clone()).or_default();
                for outcome in outcomes {
                    // Some are kept, to be finished again when it is too late.
                    if let Outcome::Done(Some(task)) = outcome
                        && task.state != State::Taken
                        && self.rng.u8(0..3) > 0
                    {
                        known.deliveries.retain(|delivery| delivery.id != task.id);
                    }
                }
            }
            (Command::Schedule(command), Reply::Schedule(reply)) => {
                self.learn_schedule(command, reply);
            }
            (Command::NameTube { tube, name, .. }, Reply::Tubes(_)) => {
                let known = self.tubes.remove(tube).unwrap_or_default();
                self.tubes.insert(name.clone(), known);
            }
            (Command::DropTube { tube }, Reply::Nothing) => {
                // The leases stay: in a new tube of that name they must be invalid.
                self.tubes.entry(tube.clone()).or_default().next_id = 0;
            }
            _ => {}
        }
    }

    fn command(&mut self, now: Timestamp) -> Command {
        if let Some(command) = self.schedule(now) {
            return command;
        }
        let tube = self.tube();
        if self.gated && self.one_in(6) {
            return self.semaphore(&tube);
        }
        match self.rng.u32(0..1000) {
            0..210 => self.put(tube, now),
            210..420 => self.take(tube),
            420..740 => self.finish(tube),
            740..770 => Command::Kick { tube, count: self.rng.u64(0..4) },
            770..780 => {
                let (ids, reset_attempts) = (self.ids(&tube), self.rng.bool());
                Command::KickTasks { tube, ids, reset_attempts }
            }
            780..810 => Command::Delete { ids: self.ids(&tube), tube, show: self.rng.bool() },
            810..840 => Command::Peek { ids: self.ids(&tube), tube },
            840..860 => Command::Positions { ids: self.ids(&tube), tube },
            860..865 => Command::Deliveries { tube, count: self.rng.usize(0..5) },
            865..868 => self.list(tube),
            868..870 => self.search(tube),
            870..890 => Command::Tubes { tube: self.rng.bool().then_some(tube) },
            890..915 => Command::AlterTube { tube, change: self.change() },
            915..920 => Command::Truncate { tube },
            920..930 => Command::ReleaseAll { tube },
            930..935 => Command::DropTube { tube },
            935..950 => self.create(tube),
            950..955 => Command::NameTube {
                tube,
                name: self.tube(),
                queue_num: self.sometimes(|script| script.rng.u32(1..4)),
            },
            955..975 => Command::JoinSession { session: self.session(), create: self.likely() },
            975..995 => Command::LeaveSession { session: self.session() },
            _ => Command::ConfigureSessions { ttr: secs(self.rng.u64(0..3) * 5) },
        }
    }

    fn put(&mut self, tube: TubeName, now: Timestamp) -> Command {
        let count = if self.one_in(5) { self.rng.usize(0..=4) } else { 1 };
        put(&tube, (0..count).map(|_| self.task(now)).collect())
    }

    pub(super) fn task(&mut self, now: Timestamp) -> NewTask {
        let mut task = NewTask::new(self.body());
        task.pri = self.sometimes(|script| match script.rng.u8(0..20) {
            0 => u64::MAX,
            pri => u64::from(pri % 4),
        });
        task.ttl = self.sometimes(|script| script.span(0..=40));
        task.ttr = self.sometimes(|script| script.span(1..=20));
        if self.one_in(4) {
            task.delay = Some(self.span(0..=15));
        }
        if self.one_in(10) {
            let moved = self.rng.i64(-5_000_000..20_000_000);
            // Both are refused.
            (task.delay, task.at) = (None, Some(Timestamp::from_micros(now.as_micros() + moved)));
        }
        // Where no tube has a semaphore, such a put is refused.
        if self.one_in(if self.gated { 3 } else { 100 }) {
            let priority = f64::from(self.rng.i8(-8..8)) / 2.0;
            task.semaphore_priority = Some(Priority::new(priority).expect("a number"));
        }
        task.subqueue = self.sometimes(|script| {
            let key = ["a", "b", "c", "nil", ""][script.rng.usize(0..5)];
            key.into()
        });
        if self.capabilities.keys && self.one_in(2) {
            task.key = Some(Box::new(self.key_request()));
        }
        self.paced_task(task)
    }

    /// One of a few keys, so that most are held.
    fn key_request(&mut self) -> KeyRequest {
        let held = HeldKey { key: self.key(), unique_for: secs(self.rng.u64(0..4) * 6) };
        let on_conflict = if self.rng.bool() { OnConflict::Replace } else { OnConflict::Keep };
        KeyRequest { held, on_conflict }
    }

    fn key(&mut self) -> Key {
        let text = ["a", "b", "c", "key", "\u{e9}"][self.rng.usize(0..5)];
        Key::new(text).expect("a good key")
    }

    /// MessagePack bytes of a random length, sometimes with a meta map.
    fn body(&mut self) -> Body {
        let length = if self.one_in(30) { self.rng.u16(0..5000) } else { self.rng.u16(0..40) };
        let [high, low] = length.to_be_bytes();
        let mut payload = vec![0xc5, high, low];
        payload.extend((0..length).map(|_| self.rng.u8(..)));
        if self.one_in(5) {
            return Body::with_meta(&payload, &[0x81, 0xa1, b'k', 0xcc, self.rng.u8(..)]);
        }
        Body::new(&payload)
    }

    fn take(&mut self, tube: TubeName) -> Command {
        let count = if self.one_in(4) { self.rng.usize(0..=5) } else { 1 };
        let session = self.sometimes(TubeScript::session);
        let lease = if self.one_in(3) { Some(self.span(1..=25)) } else { None };
        let worker = if self.one_in(3) { Some(WORKERS[self.rng.usize(0..2)].into()) } else { None };
        Command::Take(Take { tube, count, session, lease, worker, wait: Span::ZERO })
    }

    fn finish(&mut self, tube: TubeName) -> Command {
        let count = if self.one_in(4) { self.rng.usize(0..=4) } else { 1 };
        let items = (0..count).map(|_| self.finish_item(&tube)).collect();
        Command::Finish { tube, items, show: self.rng.u8(0..4) > 0 }
    }

    fn finish_item(&mut self, tube: &TubeName) -> FinishItem {
        let stranger = Delivery { id: self.id(tube), lease: NO_LEASE, session: None };
        let held = self.delivery(tube).filter(|_| !self.one_in(12)).unwrap_or(stranger);
        let holder = match (self.rng.u8(0..10), held.session) {
            (0..5, Some(session)) => Holder::Session(session),
            (0..7, _) => Holder::Lease(held.lease),
            (7, _) => Holder::Session(self.session()),
            _ => Holder::Any,
        };
        let finish = match self.rng.u8(0..10) {
            0 => Finish::ack_with(b"\xa2ok"),
            1..3 => Finish::Ack,
            3..5 => {
                let delay = if self.rng.bool() { Span::ZERO } else { self.span(0..=10) };
                Finish::Release { delay, counted: self.likely() }
            }
            5..7 => {
                let delay = if self.rng.bool() { Span::ZERO } else { self.span(0..=10) };
                let error = ["no route to host", "é", ""][self.rng.usize(0..3)];
                Finish::fail(error, Some(delay).filter(|_| self.likely()))
            }
            7 => Finish::Bury,
            _ => Finish::Touch(self.span(0..=10)),
        };
        FinishItem { id: held.id, holder, finish: self.paced_finish(finish) }
    }

    /// A delivery of the tube: half the time the latest, which is likely under way.
    fn delivery(&mut self, tube: &TubeName) -> Option<Delivery> {
        let deliveries = &self.tubes.get(tube)?.deliveries;
        let latest = deliveries.last().filter(|_| self.rng.bool());
        latest.or_else(|| self.rng.choice(deliveries)).copied()
    }

    fn create(&mut self, tube: TubeName) -> Command {
        let kind = Kind::ALL[self.rng.usize(0..5)];
        let if_not_exists = self.rng.bool();
        let options = self.options_of(tube.as_str(), kind);
        Command::CreateTube { tube, options, if_not_exists }
    }

    /// A command of another client for the semaphore of a tube.
    fn semaphore(&mut self, tube: &TubeName) -> Command {
        let (key, task) = (semaphore_key(tube.as_str()), TaskId(self.rng.u64(0..3)));
        Command::Semaphore(match self.rng.u8(0..10) {
            0..3 => {
                let priority = -f64::from(self.rng.u8(0..8)) / 2.0;
                SemaphoreCommand::Enqueue { key, entries: vec![EnqueueItem { task, priority }] }
            }
            3..5 => {
                let finish =
                    if self.rng.bool() { GrantFinish::Release } else { GrantFinish::Yield };
                SemaphoreCommand::Finish {
                    key,
                    items: vec![GrantItem { task, grant: None, finish }],
                }
            }
            5..7 => SemaphoreCommand::Events { key: Some(key), count: 3, wait: Span::ZERO },
            7 => SemaphoreCommand::List { key: Some(key) },
            _ => return self.configure(key),
        })
    }

    fn configure(&mut self, key: SemaphoreKey) -> Command {
        let change = Box::new(SemaphoreChange {
            active: Some(self.rng.i64(0..5)),
            try_release: self.sometimes(|_| 0),
            margin: self.rarely(|script| f64::from(script.rng.u8(0..3))),
            cool_down: self.rarely(|script| secs(script.rng.u64(0..2) * 5)),
            max_revoking: self.rarely(|script| script.rarely(|script| script.rng.i64(0..3))),
            revoke_grace: self.rarely(|script| secs(script.rng.u64(1..10))),
            force: self.rarely(|script| script.rng.bool()),
            lease: self.rarely(|script| script.sometimes(|script| secs(script.rng.u64(5..20)))),
            shed: self.rarely(|script| script.rng.bool()),
            drop_expired: self.rarely(|script| script.rng.bool()),
            ..SemaphoreChange::default()
        });
        Command::Semaphore(SemaphoreCommand::Configure { key, change, only_new: false })
    }

    fn options_of(&mut self, tube: &str, kind: Kind) -> TubeOptions {
        let options = self.options(kind);
        if !self.gated {
            return options;
        }
        TubeOptions { semaphore: Some(semaphore_key(tube)), ..options }
    }

    fn options(&mut self, kind: Kind) -> TubeOptions {
        let options = TubeOptions {
            kind,
            temporary: self.one_in(6),
            capacity: self.rng.bool().then(|| self.rng.u64(0..12)),
            ttl: self.rarely(|script| script.span(5..=60)),
            ttr: self.rarely(|script| script.span(1..=30)),
            delay: self.rarely(|script| script.span(0..=5)),
            pri: u64::from(self.one_in(4)) * 2,
            attempts_max: self.rarely(|script| script.rng.u32(1..4)),
            retry: None,
            rate: None,
            keep_done: self.sometimes(|script| script.span(1..=40)),
            keep_done_max: self.rng.u64(1..8),
            ttl_kills_taken: self.one_in(4),
            paused: self.one_in(20),
            semaphore: None,
            queue_num: self.rarely(|script| script.rng.u32(0..4)).filter(|num| *num > 0),
        };
        self.paced_options(options)
    }

    fn change(&mut self) -> TubeChange {
        let change = TubeChange {
            // Mostly resumed, or soon every tube would be paused.
            paused: self.sometimes(|script| script.one_in(5)),
            capacity: self.rarely(|script| script.rarely(|script| script.rng.u64(0..12))),
            ttl: self.rarely(|script| script.sometimes(|script| script.span(5..=60))),
            ttr: self.rarely(|script| script.sometimes(|script| script.span(1..=30))),
            delay: self.rarely(|script| script.rarely(|script| script.span(0..=5))),
            pri: self.rarely(|script| script.rng.u64(0..3)),
            attempts_max: self.rarely(|script| script.sometimes(|script| script.rng.u32(1..4))),
            retry: None,
            rate: None,
            keep_done: self.rarely(|script| script.sometimes(|script| script.span(1..=40))),
            keep_done_max: self.rarely(|script| script.rng.u64(1..8)),
        };
        self.paced_change(change)
    }

    /// One of the tubes, rarely one that was not there in the beginning.
    pub(super) fn tube(&mut self) -> TubeName {
        if self.one_in(100) {
            return name("nowhere");
        }
        let tubes = if self.gated { &GATED[..] } else { &TUBES[..] };
        name(tubes[self.rng.usize(0..tubes.len())].0)
    }

    fn session(&mut self) -> SessionId {
        SessionId([self.rng.u8(1..=SESSIONS); 16])
    }

    /// A search among a few tasks.
    fn search(&mut self, tube: TubeName) -> Command {
        let states = StateSet::from_bits(self.rng.u8(1..32)).unwrap_or(StateSet::ALL);
        let first = TaskId(self.id(&tube).0.saturating_sub(self.rng.u64(0..30)));
        let run = [self.rng.u8(0xa0..0xa4), self.rng.u8(b'a'..b'e')];
        let run = run[self.rng.usize(0..2)..].into();
        Command::Search(Search { tube, first, count: self.rng.usize(1..40), states, run })
    }

    /// A page of a list that may begin anywhere.
    fn list(&mut self, tube: TubeName) -> Command {
        let id = self.id(&tube);
        let order = if self.rng.bool() {
            let states = StateSet::from_bits(self.rng.u8(1..32)).unwrap_or(StateSet::ALL);
            ListOrder::Id { states, after: self.sometimes(|_| id) }
        } else {
            ListOrder::Queue { after: self.sometimes(|script| (script.rng.u64(0..4), id)) }
        };
        let limit = self.rng.usize(1..6);
        let key = if self.capabilities.keys && self.rng.bool() { Some(self.key()) } else { None };
        Command::List(List { tube, order, limit, key })
    }

    fn ids(&mut self, tube: &TubeName) -> Vec<TaskId> {
        let count = if self.one_in(4) { self.rng.usize(0..=6) } else { 1 };
        (0..count).map(|_| self.id(tube)).collect()
    }

    /// The id of a task that may exist, or of one that does not exist yet.
    fn id(&mut self, tube: &TubeName) -> TaskId {
        let next = self.tubes.get(tube).map_or(0, |known| known.next_id);
        let oldest = if self.rng.bool() { next.saturating_sub(10) } else { 0 };
        TaskId(self.rng.u64(oldest..=next + 1))
    }

    /// Mostly whole seconds, so that deadlines meet; sometimes not, sometimes for ever.
    fn span(&mut self, seconds: RangeInclusive<u64>) -> Span {
        match self.rng.u8(0..30) {
            0 => Span::FOREVER,
            1 => Span::from_micros(self.rng.i64(0..20_000_000)),
            _ => secs(self.rng.u64(seconds)),
        }
    }

    /// How long no command runs.
    fn pause(&mut self) -> Span {
        match self.rng.u8(0..20) {
            0 => secs(self.rng.u64(20..100)),
            1 => Span::from_micros(self.rng.i64(0..3_000_000)),
            _ => secs(self.rng.u64(0..4)),
        }
    }

    pub(super) fn one_in(&mut self, count: u32) -> bool {
        self.rng.u32(0..count) == 0
    }

    pub(super) fn likely(&mut self) -> bool {
        !self.one_in(4)
    }

    pub(super) fn sometimes<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.rng.bool().then(|| make(self))
    }

    pub(super) fn rarely<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.one_in(4).then(|| make(self))
    }
}
