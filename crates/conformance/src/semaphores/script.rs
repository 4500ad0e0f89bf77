//! Generates the random semaphore commands of a run, mostly valid ones.

use fastrand::Rng;
use taskyard_core::{
    EnqueueItem, EventId, Grant, GrantFinish, GrantItem, MemberGroup, SemaphoreChange,
    SemaphoreCommand, SemaphoreKey, SemaphoreReply, Span, TaskId,
};

use super::commands::key;

/// The semaphores of a run.
const KEYS: [&str; 3] = ["a", "b", "c"];
/// The tasks of each.
pub(super) const TASKS: u64 = 16;
/// How many of the latest events are remembered, to be acknowledged once or twice.
const REMEMBERED: usize = 20;

/// The source of commands.
pub(super) struct SemaphoreScript {
    rng: Rng,
    events: Vec<EventId>,
    latest_grant: u64,
}

impl SemaphoreScript {
    pub fn new(seed: u64) -> Self {
        SemaphoreScript { rng: Rng::with_seed(seed), events: Vec::new(), latest_grant: 0 }
    }

    /// The keys of the run.
    pub fn keys() -> impl Iterator<Item = SemaphoreKey> {
        KEYS.into_iter().map(key)
    }

    /// Sometimes a span in which no command runs.
    pub fn pause(&mut self) -> Option<Span> {
        (self.rng.u8(0..7) == 0).then(|| Span::from_secs(self.rng.u64(0..45)))
    }

    pub fn restarts(&mut self) -> bool {
        self.rng.u16(0..300) == 0
    }

    /// Whether the run now waits for all events.
    pub fn is_quiet(&mut self) -> bool {
        self.rng.u8(0..60) == 0
    }

    /// The next batch.
    pub fn batch(&mut self) -> Vec<SemaphoreCommand> {
        let count = if self.rng.u8(0..4) == 0 { self.rng.usize(2..6) } else { 1 };
        (0..count).map(|_| self.command()).collect()
    }

    /// Remembers the machine's reply.
    pub fn learn(&mut self, reply: &SemaphoreReply) {
        match reply {
            SemaphoreReply::Events(events) => {
                self.events.extend(events.iter().map(|event| event.id));
                let surplus = self.events.len().saturating_sub(REMEMBERED);
                self.events.drain(..surplus);
            }
            SemaphoreReply::MemberInfos(members) => {
                let grants = members.iter().filter_map(|member| member.grant);
                self.latest_grant = grants.map(|grant| grant.0).fold(self.latest_grant, u64::max);
            }
            _ => {}
        }
    }

    fn command(&mut self) -> SemaphoreCommand {
        let key = match self.rng.usize(0..40) {
            0 => key("nowhere"),
            number => key(KEYS[number % KEYS.len()]),
        };
        match self.rng.u8(0..41) {
            0..14 => {
                let count = if self.rng.bool() { 1 } else { self.rng.usize(0..6) };
                let entries = (0..count).map(|_| self.enqueue_item()).collect();
                SemaphoreCommand::Enqueue { key, entries }
            }
            14..25 => {
                let count = if self.rng.bool() { 1 } else { self.rng.usize(0..5) };
                let items = (0..count).map(|_| self.item()).collect();
                SemaphoreCommand::Finish { key, items }
            }
            25..31 => {
                let key = self.rng.bool().then_some(key);
                let few = self.rng.usize(0..6);
                // All events of all semaphores: the order among semaphores is undefined.
                let count = if key.is_some() { few } else { 1000 };
                SemaphoreCommand::Events { key, count, wait: Span::ZERO }
            }
            31..36 => {
                let count = self.rng.usize(0..4).min(self.events.len());
                let pick = |_| self.events[self.rng.usize(0..self.events.len())];
                SemaphoreCommand::Acknowledge { events: (0..count).map(pick).collect() }
            }
            36 | 37 => {
                let only_new = self.rng.u8(0..4) == 0;
                SemaphoreCommand::Configure { key, change: Box::new(self.change()), only_new }
            }
            38 => SemaphoreCommand::List { key: self.rng.bool().then_some(key) },
            39 => {
                let part = MemberGroup::ALL[self.rng.usize(0..2)];
                SemaphoreCommand::Members { key, part, after: None, count: TASKS as usize + 1 }
            }
            _ => SemaphoreCommand::Peek { key, tasks: (0..TASKS).map(TaskId).collect() },
        }
    }

    fn enqueue_item(&mut self) -> EnqueueItem {
        let priority = match self.rng.u8(0..60) {
            0 => f64::NAN,
            1 => f64::from(self.rng.u8(0..12)) / 3.0,
            2 => [-1e300, 1e308, f64::MAX][self.rng.usize(0..3)],
            _ => f64::from(self.rng.u8(0..10)),
        };
        EnqueueItem { task: TaskId(self.rng.u64(0..TASKS)), priority }
    }

    fn item(&mut self) -> GrantItem {
        let task = TaskId(self.rng.u64(0..TASKS));
        let old = self.latest_grant.saturating_sub(8);
        let named = self.rng.u8(0..3) == 0;
        let grant = named.then(|| Grant(self.rng.u64(old..=self.latest_grant + 1)));
        let finish = match self.rng.u8(0..7) {
            0..3 => GrantFinish::Release,
            3 | 4 => GrantFinish::Yield,
            5 => GrantFinish::Decline,
            _ => GrantFinish::Extend(Span::from_secs(self.rng.u64(0..60))),
        };
        GrantItem { task, grant, finish }
    }

    /// The first and later options of the semaphores of a run; sometimes invalid.
    pub fn change(&mut self) -> SemaphoreChange {
        let rng = &mut self.rng;
        let active = if rng.u8(0..20) == 0 { -1 } else { rng.i64(0..7) };
        let span = |rng: &mut Rng| Span::from_secs(rng.u64(0..3) * 10);
        let some = |rng: &mut Rng| (rng.u8(0..3) == 0).then(|| Span::from_secs(rng.u64(5..60)));
        SemaphoreChange {
            active: rng.bool().then_some(active),
            try_release: rng.bool().then(|| rng.i64(0..6)),
            margin: rng.bool().then(|| match rng.u8(0..12) {
                0 => 1e308,
                _ => f64::from(rng.u8(0..5)) / 2.0,
            }),
            min_hold: rng.bool().then(|| span(rng)),
            cool_down: rng.bool().then(|| span(rng)),
            max_revoking: rng.bool().then(|| rng.bool().then(|| rng.i64(0..4))),
            revoke_grace: rng.bool().then(|| Span::from_secs(rng.u64(1..40))),
            force: rng.bool().then(|| rng.bool()),
            lease: rng.bool().then(|| some(rng)),
            ack_timeout: rng.bool().then(|| some(rng)),
            shed: rng.bool().then(|| rng.bool()),
            drop_expired: rng.bool().then(|| rng.u8(0..4) == 0),
        }
    }
}
