//! Tubes, and the commands that create, change, show and remove them.

use crate::command::{Reply, TubeInfo};
use crate::error::{Error, Result};
use crate::journal::Entry;
use crate::limits::TUBES_MAX;
use crate::rate::{Bucket, RateLimit};
use crate::retry::RetryPolicy;
use crate::slots::Slot;
use crate::stats::{Calls, TubeStats};
use crate::tasks::Tasks;
use crate::time::{Span, Timestamp};
use crate::tube::{TubeChange, TubeName, TubeOptions, check_queue_num};

use super::Machine;

/// A tube and its tasks.
#[derive(Debug)]
pub(crate) struct Tube {
    pub name: TubeName,
    pub options: TubeOptions,
    pub tasks: Tasks,
    pub next_id: u64,
    /// The bucket of its rate limit; `None` is full.
    pub bucket: Option<Bucket>,
    /// Counters since the store was opened: the calls, and `done` of the counts.
    pub since_open: TubeStats,
    /// When it needs its next tick, as in the machine's list of wake-ups.
    pub wakeup: Option<Timestamp>,
    pub signals: Signals,
    /// The last batch that recorded this tube in the journal.
    pub noted: u32,
}

/// Whether the tube is already in the machine's lists of effects.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    pub ready: bool,
    pub room: bool,
}

impl Tube {
    pub fn new(number: u32, name: TubeName, options: TubeOptions) -> Self {
        let tasks = Tasks::new(number, &options);
        Tube {
            name,
            options,
            tasks,
            next_id: 0,
            bucket: None,
            since_open: TubeStats::default(),
            wakeup: None,
            signals: Signals::default(),
            noted: 0,
        }
    }

    pub fn calls(&mut self) -> &mut Calls {
        &mut self.since_open.calls
    }

    /// The number of tasks that could be delivered now.
    pub fn takeable(&self, now: Timestamp) -> u64 {
        if self.options.paused {
            return 0;
        }
        let takeable = self.tasks.takeable() as u64;
        match &self.options.rate {
            None => takeable,
            Some(rate) => takeable.min(rate.tokens(rate.refilled(self.bucket, now))),
        }
    }

    /// When the rate limit allows the next delivery, if it allows none now.
    pub fn rate_limited(&self, now: Timestamp) -> Option<Timestamp> {
        let rate = self.options.rate.as_ref()?;
        rate.next_token(rate.refilled(self.bucket, now))
    }

    /// When the next change of a task is due, or a waiting task can be delivered.
    pub fn next_change(&self, now: Timestamp) -> Option<Timestamp> {
        let timer = self.tasks.next_timer().map(|timer| timer.0);
        if self.options.rate.is_none() || self.options.paused || self.tasks.takeable() == 0 {
            return timer;
        }
        timer.into_iter().chain(self.rate_limited(now)).min()
    }

    /// The delay of the retry policy for a task whose current attempt ends.
    pub fn retry_delay(&self, policy: &RetryPolicy, slot: &Slot, seed: u32) -> Span {
        if !self.options.kind.has_times() {
            return Span::ZERO;
        }
        policy.delay_after(slot.attempts().saturating_add(1), seed, slot.id)
    }

    /// The free capacity.
    pub fn room(&self) -> u64 {
        let capacity = self.options.capacity.unwrap_or(u64::MAX);
        capacity.saturating_sub(self.tasks.len() as u64)
    }

    pub fn info(&self, now: Timestamp, number: u32) -> TubeInfo {
        let mut stats = self.since_open;
        let done = stats.tasks.done;
        stats.tasks = self.tasks.counts();
        stats.tasks.done = done;
        stats.tasks.kept = self.tasks.done().len() as u64;
        TubeInfo {
            name: self.name.clone(),
            number,
            options: self.options.clone(),
            stats,
            takeable: self.takeable(now),
            next_wakeup: self.next_change(now),
            oldest_ready: self.tasks.oldest_ready(),
        }
    }
}

impl Machine {
    pub(super) fn create_tube(
        &mut self,
        name: TubeName,
        options: TubeOptions,
        if_not_exists: bool,
    ) -> Result<Reply> {
        options.check()?;
        if self.tubes.number(&name).is_some() {
            return if if_not_exists {
                Ok(Reply::Created(false))
            } else {
                Err(Error::TubeExists(name))
            };
        }
        if self.tubes.len() >= TUBES_MAX {
            return Err(Error::TooManyTubes(self.tubes.len()));
        }
        self.check_queue_num(None, options.queue_num)?;
        if let Some(key) = &options.semaphore
            && self.semaphores.number_of(key).is_none()
        {
            return Err(Error::SemaphoreNotFound(key.clone()));
        }
        let number = self.tubes.free_number();
        self.journal.push(|| Entry::Created { tube: number });
        self.tubes.insert(number, Tube::new(number, name, options));
        Ok(Reply::Created(true))
    }

    pub(super) fn remove_tube(&mut self, number: u32) -> Option<Tube> {
        let mut tube = self.tubes.remove(number)?;
        if let Some(wakeup) = tube.wakeup.take() {
            self.wakeups.remove(&(wakeup, number));
        }
        tube.signals = Signals::default();
        self.ready.retain(|ready| *ready != number);
        self.room.retain(|room| *room != number);
        Some(tube)
    }

    pub(super) fn alter_tube(
        &mut self,
        now: Timestamp,
        name: &TubeName,
        change: &TubeChange,
    ) -> Result<Reply> {
        change.check()?;
        let number = self.number(name)?;
        let before = self.tube(number).options.clone();
        let mut options = before.clone();
        apply_change(&mut options, change);
        let unlimited = before.capacity.is_some() && options.capacity.is_none();
        self.replace_rate(now, number, options.rate.as_deref());
        self.journal.push(|| Entry::Options { tube: number, before });
        self.tube(number).options = options;
        self.update_signals(number);
        if unlimited {
            self.signal_room(number);
        }
        let info = self.tubes[number].info(now, number);
        Ok(Reply::Tubes(vec![info]))
    }

    /// Adapts the bucket of a tube to a new rate limit.
    fn replace_rate(&mut self, now: Timestamp, number: u32, rate: Option<&RateLimit>) {
        let tube = &self.tubes[number];
        let old = tube.options.rate.as_deref();
        if old == rate {
            return;
        }
        let bucket = match (old, rate) {
            (Some(old), Some(new)) => Some(new.replacing(old, old.refilled(tube.bucket, now))),
            _ => None,
        };
        self.set_bucket(number, bucket);
    }

    pub(super) fn name_tube(
        &mut self,
        tube: &TubeName,
        name: TubeName,
        queue_num: Option<u32>,
    ) -> Result<Reply> {
        check_queue_num(queue_num)?;
        let number = self.number(tube)?;
        if name != *tube && self.tubes.number(&name).is_some() {
            return Err(Error::TubeExists(name));
        }
        let before = self.tube(number).options.queue_num;
        if let (Some(before), Some(wanted)) = (before, queue_num)
            && before != wanted
        {
            // Such numbers are permanent.
            return Err(Error::QueueNumTaken { tube: tube.clone(), num: before });
        }
        self.check_queue_num(Some(number), queue_num)?;
        self.journal
            .push(|| Entry::Named { tube: number, before: Box::new((tube.clone(), before)) });
        self.tubes.rename(number, name);
        let now = self.now.unwrap_or(Timestamp::EPOCH);
        let tube = self.tube(number);
        tube.options.queue_num = queue_num.or(before);
        Ok(Reply::Tubes(vec![tube.info(now, number)]))
    }

    /// Refuses a queue number that another tube has.
    pub(super) fn check_queue_num(&self, own: Option<u32>, queue_num: Option<u32>) -> Result<()> {
        let Some(wanted) = queue_num else { return Ok(()) };
        let mut others = self.tubes.iter().filter(|(number, _)| Some(*number) != own);
        match others.find(|(_, tube)| tube.options.queue_num == Some(wanted)) {
            Some((_, other)) => Err(Error::QueueNumTaken { tube: other.name.clone(), num: wanted }),
            None => Ok(()),
        }
    }

    pub(super) fn drop_tube(&mut self, now: Timestamp, name: &TubeName) -> Result<Reply> {
        let number = self.number(name)?;
        if self.tube(number).tasks.counts().taken > 0 {
            return Err(Error::TubeHasTaken(name.clone()));
        }
        let stood = self.gated_ids(number);
        if let Some(tube) = self.remove_tube(number) {
            tube.tasks.share(number, &mut self.shared, false);
            self.journal.push(|| Entry::Dropped { tube: number, before: Box::new(tube) });
        }
        if let Some((gate, tasks)) = stood {
            self.regate_in(now, gate, tasks);
        }
        Ok(Reply::Nothing)
    }

    pub(super) fn show_tubes(&self, name: Option<&TubeName>) -> Result<Reply> {
        let now = self.now.unwrap_or(Timestamp::EPOCH);
        let tubes = match name {
            Some(name) => {
                let number = self.number(name)?;
                vec![self.tubes[number].info(now, number)]
            }
            None => {
                let mut tubes: Vec<_> =
                    self.tubes.iter().map(|(number, tube)| tube.info(now, number)).collect();
                tubes.sort_unstable_by(|a, b| a.name.cmp(&b.name));
                tubes
            }
        };
        Ok(Reply::Tubes(tubes))
    }

    pub(super) fn truncate(&mut self, now: Timestamp, name: &TubeName) -> Result<Reply> {
        let number = self.number(name)?;
        let stood = self.gated_ids(number);
        let tube = self.tube(number);
        let empty = Tasks::new(number, &tube.options);
        let before = std::mem::replace(&mut tube.tasks, empty);
        before.share(number, &mut self.shared, false);
        self.journal.push(|| Entry::Truncated { tube: number, before: Box::new(before) });
        if let Some((gate, tasks)) = stood {
            self.regate_in(now, gate, tasks);
        }
        self.update_signals(number);
        Ok(Reply::Nothing)
    }
}

fn apply_change(options: &mut TubeOptions, change: &TubeChange) {
    options.paused = change.paused.unwrap_or(options.paused);
    options.capacity = change.capacity.unwrap_or(options.capacity);
    options.ttl = change.ttl.unwrap_or(options.ttl);
    options.ttr = change.ttr.unwrap_or(options.ttr);
    options.delay = change.delay.unwrap_or(options.delay);
    options.pri = change.pri.unwrap_or(options.pri);
    options.attempts_max = change.attempts_max.unwrap_or(options.attempts_max);
    if let Some(retry) = &change.retry {
        options.retry.clone_from(retry);
    }
    if let Some(rate) = &change.rate {
        options.rate.clone_from(rate);
    }
    options.keep_done = change.keep_done.unwrap_or(options.keep_done);
    options.keep_done_max = change.keep_done_max.unwrap_or(options.keep_done_max);
}
