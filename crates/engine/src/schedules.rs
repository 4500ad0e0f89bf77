//! Fires schedules: reads those that are due, computes what they add, and sends it to the store.
//!
//! Any number of engines may share a store. Each tries, and the store accepts the first: a time that
//! another engine fired is not an error. What cannot be added (the tube is missing or full) is
//! skipped, and the error is remembered here. A schedule whose rule cannot be read is left alone:
//! another server may be able to.
//!
//! The clock of the store decides what is due. A round reads all due schedules in pages, one page
//! in a turn; those that are left alone stay due and are passed over.

use std::collections::HashMap;

use taskyard_core::limits::{BATCH_BYTES_MAX, SCHEDULES_MAX};
use taskyard_core::schedule::{Firing, Timing};
use taskyard_core::{
    Command, Error, NewTask, Placed, Reply, Result, ScheduleCommand, ScheduleName, ScheduleReply,
    Span, StoredSchedule, Timestamp, TubeName,
};
use taskyard_timezone::NamedZones;
use taskyard_trace::PutFacts;

use crate::event_loop::{EventLoop, Origin};
use crate::held_schedules::HeldSchedules;

/// How long to wait after a failure of the store, or after a schedule did not fire although it is
/// due.
const BACK_OFF: Span = Span::from_secs(1);
/// How long a schedule is left alone whose rule cannot be read.
const UNREADABLE_BACK_OFF: Span = Span::from_secs(60);
/// Most schedules that fire in one turn of the loop. On some stores each is a transaction of its
/// own, and other commands wait for all of them.
const TURN_FIRES_MAX: usize = 100;
/// Most tasks that schedules add in one turn of the loop, so that other commands do not wait long.
const TURN_PUTS_MAX: usize = 10_000;

/// How often schedules fired on this engine, since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScheduleCounts {
    /// Tasks that were added.
    pub fired: u64,
    /// Times that were skipped.
    pub skipped: u64,
    /// Times that were skipped because their tasks were refused.
    pub failed: u64,
    /// The sum of how late its latest task was each time.
    pub late: Span,
}

/// What the engine knows of schedules beside the store.
#[derive(Clone, Debug, Default)]
pub struct ScheduleNotes {
    /// Why the tasks of a schedule were refused the last time.
    pub errors: HashMap<ScheduleName, String>,
    /// How often schedules fired.
    pub counts: ScheduleCounts,
}

/// The state of firing.
pub(crate) struct Scheduler {
    /// Whether this engine fires schedules at all.
    pub(crate) is_enabled: bool,
    /// Whether other engines may change schedules.
    is_shared: bool,
    wanted: Option<Timestamp>,
    not_before: Timestamp,
    /// How far the clock of the store is ahead of the wall clock here, in microseconds.
    store_ahead: i64,
    held: HeldSchedules,
    /// How many due schedules this round has passed over.
    passed_over: usize,
    /// Schedules that did not fire in the latest batch, and the time that was expected.
    not_fired: Vec<(ScheduleName, Timestamp)>,
    /// Commands for the next batch.
    queued: Vec<Fire>,
    /// Commands of the batch that runs.
    sent: Vec<Fire>,
    notes: ScheduleNotes,
}

/// One step of a schedule.
struct Fire {
    name: ScheduleName,
    tube: TubeName,
    expected: Timestamp,
    firing: Firing,
    template: NewTask,
    /// Whether its tasks were refused before.
    failed: bool,
}

impl Scheduler {
    /// Asks at once: only the store knows what became due while no server ran.
    pub fn new(is_enabled: bool, is_shared: bool, now: Timestamp) -> Self {
        Scheduler {
            is_enabled,
            is_shared,
            wanted: is_enabled.then_some(now),
            not_before: now,
            store_ahead: 0,
            held: HeldSchedules::default(),
            passed_over: 0,
            not_fired: Vec::new(),
            queued: Vec::new(),
            sent: Vec::new(),
            notes: ScheduleNotes::default(),
        }
    }

    /// Asks the store soon: other servers may have changed schedules, or the clock was set.
    pub fn request(&mut self, now: Timestamp) {
        if self.is_enabled {
            self.wanted = Some(self.wanted.map_or(now, |wanted| wanted.min(now)));
        }
    }

    /// When the store is to be asked.
    pub fn next(&self) -> Option<Timestamp> {
        self.wanted.map(|wanted| wanted.max(self.not_before))
    }

    /// Adopts the moment that the latest batch reported. A shared store may know none although there
    /// is one.
    pub fn set_next(&mut self, next: Option<Timestamp>, now: Timestamp) {
        if !self.is_enabled || (next.is_none() && self.is_shared) {
            return;
        }
        if self.held.is_empty() {
            self.wanted = next;
        } else if let Some(next) = next.filter(|next| *next > now) {
            // One that is due may be left alone, and hides when the others are.
            self.request(next);
        }
    }

    /// The command that reads due schedules, if one may be.
    pub fn due(&mut self, now: Timestamp) -> Option<Command> {
        self.next().filter(|next| *next <= now)?;
        self.wanted = None;
        Some(command(ScheduleCommand::Due { skip: self.passed_over, limit: TURN_FIRES_MAX }))
    }

    /// Whether nothing waits for the next batch.
    pub fn is_idle(&self) -> bool {
        self.queued.is_empty()
    }

    /// Whether schedules fire in the next batch, or have fired in the latest one.
    pub fn has_fires(&self) -> bool {
        !self.queued.is_empty() || !self.sent.is_empty()
    }

    /// Forgets the error of a schedule that is set anew or removed, or that fired.
    fn forget(&mut self, name: &ScheduleName) {
        self.notes.errors.remove(name);
    }

    /// Notes that a caller changes a schedule: it is not left alone any more, and a round that is
    /// under way begins anew.
    fn change(&mut self, name: &ScheduleName) {
        self.held.remove(name);
        self.passed_over = 0;
    }

    /// The counts, and the errors of these schedules.
    pub fn notes_of(&self, names: &[ScheduleName]) -> ScheduleNotes {
        let known = names.iter().filter_map(|name| self.notes.errors.get_key_value(name));
        let errors = known.map(|(name, error)| (name.clone(), error.clone())).collect();
        ScheduleNotes { errors, counts: self.notes.counts }
    }

    fn note_error(&mut self, name: &ScheduleName, error: String) {
        // A schedule that another server removed is not forgotten otherwise.
        if self.notes.errors.len() >= SCHEDULES_MAX {
            self.notes.errors.clear();
        }
        self.notes.errors.insert(name.clone(), error);
    }

    /// Plans what a page of due schedules does. `wall` is the time of the store, `next` when the
    /// first other schedule is due.
    fn plan_page(
        &mut self,
        due: Vec<StoredSchedule>,
        now: Timestamp,
        wall: Timestamp,
        next: Option<Timestamp>,
    ) {
        let (is_empty, is_full) = (due.is_empty(), due.len() >= TURN_FIRES_MAX);
        let is_planned = self.plan(due, now, wall);
        self.not_fired.clear();
        if !is_planned || is_full {
            // There are probably more.
            return self.request(now);
        }
        if is_empty && self.next().is_some_and(|next| next <= now) {
            // What the store reported is not exact; asking again at once would keep the loop
            // spinning.
            let soon = now + BACK_OFF;
            self.not_before = next.map_or(soon, |next| next.min(soon));
        }
        self.passed_over = 0;
        let held_until = self.held.expire(now);
        self.wanted = [self.wanted, next, held_until].into_iter().flatten().min();
    }

    /// Plans what due schedules do, as much as fits in a turn; false if something is left.
    fn plan(&mut self, due: Vec<StoredSchedule>, now: Timestamp, wall: Timestamp) -> bool {
        let (mut puts, mut bytes) = (0, 0);
        for schedule in due {
            let Some(expected) = schedule.due() else { continue };
            let Some(firing) = self.firing(&schedule, expected, now, wall) else {
                self.passed_over += 1;
                continue;
            };
            puts += firing.puts;
            bytes += firing.puts * schedule.template.body.bytes() as usize;
            if !self.queued.is_empty() && (puts > TURN_PUTS_MAX || bytes > BATCH_BYTES_MAX) {
                return false;
            }
            let StoredSchedule { name, tube, template, .. } = schedule;
            self.queued.push(Fire { name, tube, expected, firing, template, failed: false });
        }
        true
    }

    /// What a schedule does; `None` if it is left alone.
    fn firing(
        &mut self,
        schedule: &StoredSchedule,
        expected: Timestamp,
        now: Timestamp,
        wall: Timestamp,
    ) -> Option<Firing> {
        let name = &schedule.name;
        if self.held.has(name, expected, now) {
            return None;
        }
        if self.not_fired.iter().any(|(lost, time)| (lost, *time) == (name, expected)) {
            // It would keep the loop spinning.
            self.held.hold(name.clone(), expected, now + BACK_OFF);
            return None;
        }
        match read_timing(&schedule.timing) {
            Ok(timing) => Some(timing.fire(schedule, expected, wall)),
            Err(error) => {
                let error = error.to_string();
                if self.notes.errors.get(name) != Some(&error) {
                    tracing::warn!(schedule = %name, %error, "cannot read the rule of a schedule; leaving it to other servers");
                    self.note_error(name, error);
                }
                self.held.hold(name.clone(), expected, now + UNREADABLE_BACK_OFF);
                None
            }
        }
    }

    /// Applies the reply of a command that fired a schedule. Returns its next time if it fired.
    fn record(&mut self, index: usize, reply: Result<Reply>, now: Timestamp) -> Option<Timestamp> {
        let fire = self.sent.get_mut(index)?;
        let name = fire.name.clone();
        match reply {
            Ok(Reply::Schedule(ScheduleReply::Fired(Some(placed)))) => {
                let next = fire.firing.next;
                self.notes.counts.add(fire, &placed);
                if !placed.is_empty() {
                    self.forget(&name);
                }
                return next;
            }
            // Another server was first, or it was paused or changed.
            Ok(_) => self.not_fired.push((name, fire.expected)),
            Err(Error::ScheduleNotFound(_)) => self.forget(&name),
            Err(error) if error.is_temporary() || matches!(error, Error::Store(_)) => {
                tracing::warn!(schedule = %name, %error, "cannot fire a schedule; trying again in 1 s");
                self.retry(now);
            }
            Err(error) if fire.firing.puts == 0 => {
                tracing::warn!(schedule = %name, %error, "cannot skip the times of a schedule; trying again in 1 s");
                self.retry(now);
            }
            Err(error) => {
                tracing::warn!(schedule = %name, %error, "cannot add the tasks of a schedule; its times are skipped");
                let Firing { next, skipped, puts, .. } = fire.firing;
                let skipped = skipped + puts as u64;
                let firing = Firing { puts: 0, skipped, next, late: Span::ZERO };
                let (expected, template) = (fire.expected, fire.template.clone());
                let tube = fire.tube.clone();
                self.note_error(&name, error.to_string());
                self.queued.push(Fire { name, tube, expected, firing, template, failed: true });
            }
        }
        None
    }

    /// The tube to which a command that fired a schedule added tasks, and how many.
    fn added(&self, index: usize, reply: &Result<Reply>) -> Option<(&TubeName, usize)> {
        let Ok(Reply::Schedule(ScheduleReply::Fired(Some(placed)))) = reply else { return None };
        let added = placed.iter().filter(|task| !task.existing).count();
        self.sent.get(index).filter(|_| added > 0).map(|fire| (&fire.tube, added))
    }

    fn retry(&mut self, now: Timestamp) {
        self.not_before = now + BACK_OFF;
        self.passed_over = 0;
        self.request(now);
    }
}

impl ScheduleCounts {
    fn add(&mut self, fire: &Fire, placed: &[Placed]) {
        let existing = placed.iter().filter(|task| task.existing).count();
        self.fired += (placed.len() - existing) as u64;
        self.skipped += fire.firing.skipped + existing as u64;
        self.failed += if fire.failed { fire.firing.skipped } else { 0 };
        if placed.len() > existing {
            self.late = self.late + fire.firing.late;
        }
    }
}

impl EventLoop {
    /// Plans what the schedules do that the store showed as due.
    pub fn plan_schedules(&mut self, reply: Result<Reply>) {
        let now = self.now;
        match reply {
            Ok(Reply::Schedule(ScheduleReply::Due { now: wall, schedules, next })) => {
                let here = self.timeline.to_wall(now).as_micros();
                self.scheduler.store_ahead = wall.as_micros().saturating_sub(here);
                let next = next.map(|next| self.of_schedule(next));
                self.scheduler.plan_page(schedules, now, wall, next);
            }
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot read due schedules; trying again in 1 s");
                self.scheduler.retry(now);
            }
        }
    }

    /// Adds the planned steps of schedules to the batch under construction.
    pub fn push_schedules(&mut self) {
        self.scheduler.sent = std::mem::take(&mut self.scheduler.queued);
        for (index, fire) in self.scheduler.sent.iter().enumerate() {
            let Firing { next, skipped, puts, .. } = fire.firing;
            let (name, puts) = (fire.name.clone(), vec![fire.template.clone(); puts]);
            let fire = ScheduleCommand::Fire { name, expected: fire.expected, next, puts, skipped };
            self.batch.push(Origin::Fire(index), command(fire));
        }
    }

    /// Applies the reply of a command that fired a schedule.
    pub fn record_fire(&mut self, index: usize, reply: Result<Reply>) {
        self.trace_fire(index, &reply);
        if let Some((tube, count)) = self.scheduler.added(index, &reply)
            && let Some(series) = &mut self.series
        {
            series.count_scheduled(self.timeline.moment(self.now), tube, count);
        }
        if let Some(next) = self.scheduler.record(index, reply, self.now) {
            self.scheduler.request(self.of_schedule(next));
        }
    }

    /// Records the tasks that a schedule added.
    fn trace_fire(&mut self, index: usize, reply: &Result<Reply>) {
        let Some(recorder) = &mut self.recorder else { return };
        let Some(fire) = self.scheduler.sent.get(index) else { return };
        if let Ok(Reply::Schedule(ScheduleReply::Fired(Some(placed)))) = reply {
            let wall = self.timeline.to_wall(self.now);
            let facts = PutFacts::of(&fire.template, wall, |subqueue| recorder.hash(subqueue));
            let mut sink = recorder.sink(self.now);
            for added in placed.iter().filter(|placed| !placed.existing) {
                sink.put(&fire.tube, added.id.0, facts);
            }
        }
    }

    /// The wall time of the store, by which schedules are due.
    fn schedule_time(&self) -> Timestamp {
        self.timeline.to_wall(self.now).moved(self.scheduler.store_ahead)
    }

    /// Converts a time of a schedule to the engine's time.
    fn of_schedule(&self, time: Timestamp) -> Timestamp {
        let away = time.as_micros().saturating_sub(self.schedule_time().as_micros());
        self.now.moved(away)
    }

    /// Checks a command of a caller for schedules. A schedule that is set gets its next time: the
    /// first after now.
    pub fn prepare_schedule(&mut self, command: &mut ScheduleCommand) -> Result<()> {
        if !self.scheduler.is_enabled {
            return Ok(());
        }
        match command {
            ScheduleCommand::Set { schedule, .. } => {
                let timing = read_timing(&schedule.timing)?;
                schedule.next = timing.first(schedule.until, self.schedule_time());
                self.scheduler.forget(&schedule.name);
                self.scheduler.change(&schedule.name);
                if let Some(next) = schedule.next {
                    self.scheduler.request(self.of_schedule(next));
                }
            }
            ScheduleCommand::Remove { name } => {
                self.scheduler.forget(name);
                self.scheduler.change(name);
            }
            ScheduleCommand::Pause { name, paused } => {
                self.scheduler.change(name);
                if !*paused {
                    self.scheduler.request(self.now);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// Reads and checks the rule of a stored schedule.
pub fn read_timing(text: &str) -> Result<Timing> {
    Timing::read(text, &NamedZones).map_err(|error| Error::Invalid(error.to_string()))
}

fn command(command: ScheduleCommand) -> Command {
    Command::Schedule(Box::new(command))
}
