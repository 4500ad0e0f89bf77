//! Sets, shows, fires and removes schedules.

use crate::command::{NewTask, Reply};
use crate::error::{Error, Result};
use crate::journal::Entry;
use crate::key::KeyRequest;
use crate::limits::SCHEDULES_MAX;
use crate::stored_schedule::{
    ScheduleCommand, ScheduleName, ScheduleReply, StoredSchedule, check_fire, checked_list_limit,
};
use crate::time::Timestamp;

use super::Machine;

impl Machine {
    pub(super) fn run_schedule(
        &mut self,
        now: Timestamp,
        command: ScheduleCommand,
    ) -> Result<Reply> {
        let shown = |schedules| Ok(ScheduleReply::Schedules(schedules));
        let reply = match command {
            ScheduleCommand::Set { schedule, only_new, keep_paused } => {
                self.set_schedule(schedule, only_new, keep_paused)
            }
            ScheduleCommand::Get { name } => shown(vec![self.schedule(&name)?.clone()]),
            ScheduleCommand::List { after, limit } => {
                let all = self.schedules.after(after.as_ref());
                shown(all.take(checked_list_limit(limit)?).cloned().collect())
            }
            ScheduleCommand::Due { skip, limit } => {
                let wall = now.moved(self.wall_ahead);
                let due = self.schedules.due(wall).skip(skip).take(checked_list_limit(limit)?);
                let (schedules, next) = (due.cloned().collect(), self.schedules.next_after(wall));
                Ok(ScheduleReply::Due { now: wall, schedules, next })
            }
            ScheduleCommand::Remove { name } => {
                self.schedule(&name)?;
                self.replace_schedule(&name, None);
                Ok(ScheduleReply::Removed)
            }
            ScheduleCommand::Pause { name, paused } => {
                let changed = StoredSchedule { paused, ..self.schedule(&name)?.clone() };
                self.replace_schedule(&name, Some(changed.clone()));
                shown(vec![changed])
            }
            ScheduleCommand::Fire { name, expected, next, puts, skipped } => {
                self.fire(now, &name, expected, next, (puts, skipped))
            }
        };
        Ok(Reply::Schedule(reply?))
    }

    fn schedule(&self, name: &ScheduleName) -> Result<&StoredSchedule> {
        self.schedules.get(name).ok_or_else(|| Error::ScheduleNotFound(name.clone()))
    }

    fn set_schedule(
        &mut self,
        mut schedule: StoredSchedule,
        only_new: bool,
        keep_paused: bool,
    ) -> Result<ScheduleReply> {
        let name = schedule.name.clone();
        let before = self.schedules.get(&name);
        if only_new && before.is_some() {
            return Err(Error::ScheduleExists(name));
        }
        schedule.check()?;
        self.number(&schedule.tube)?;
        if before.is_none() && self.schedules.len() >= SCHEDULES_MAX {
            return Err(Error::TooManySchedules(SCHEDULES_MAX));
        }
        let (last, fired, skipped) =
            before.map_or((None, 0, 0), |before| (before.last, before.fired, before.skipped));
        if keep_paused {
            schedule.paused = before.is_some_and(|before| before.paused);
        }
        let is_new = before.is_none();
        self.replace_schedule(&name, Some(StoredSchedule { last, fired, skipped, ..schedule }));
        Ok(ScheduleReply::Set(is_new))
    }

    /// Adds the tasks of a schedule and sets its next time, if `expected` is still the next one.
    fn fire(
        &mut self,
        now: Timestamp,
        name: &ScheduleName,
        expected: Timestamp,
        next: Option<Timestamp>,
        (mut puts, skipped): (Vec<NewTask>, u64),
    ) -> Result<ScheduleReply> {
        let before = self.schedule(name)?;
        check_fire(&puts)?;
        if before.due() != Some(expected) {
            return Ok(ScheduleReply::Fired(None));
        }
        let mut after = before.clone();
        after.next = next;
        after.skipped = after.skipped.saturating_add(skipped);
        if let Some(key) = after.overlap_key()? {
            let request = KeyRequest::new(key);
            puts.iter_mut().for_each(|task| task.key = Some(Box::new(request.clone())));
        }
        let mut placed = Vec::new();
        if !puts.is_empty()
            && let Reply::Put(added) = self.put(now, &after.tube, puts)?
        {
            placed = added;
        }
        let existing = placed.iter().filter(|task| task.existing).count();
        if placed.len() > existing {
            after.last = Some(now.moved(self.wall_ahead));
        }
        after.fired += (placed.len() - existing) as u64;
        after.skipped = after.skipped.saturating_add(existing as u64);
        self.replace_schedule(name, Some(after));
        Ok(ScheduleReply::Fired(Some(placed)))
    }

    pub(super) fn replace_schedule(
        &mut self,
        name: &ScheduleName,
        schedule: Option<StoredSchedule>,
    ) {
        let before = self.schedules.replace(name, schedule.map(Box::new));
        self.journal.push(|| Entry::Schedule { name: name.clone(), before });
    }

    /// When the first schedule is due, in the machine's time; the engine fires it then.
    pub fn next_schedule(&self) -> Option<Timestamp> {
        self.schedules.next().map(|next| next.moved(self.wall_ahead.saturating_neg()))
    }

    /// Restores a stored schedule; false if it cannot have been stored.
    pub fn restore_schedule(&mut self, schedule: StoredSchedule) -> bool {
        let fits = schedule.check().is_ok();
        let name = schedule.name.clone();
        fits && self.schedules.replace(&name, Some(Box::new(schedule))).is_none()
    }

    /// All schedules, by name.
    pub fn export_schedules(&self) -> Vec<StoredSchedule> {
        self.schedules.after(None).cloned().collect()
    }

    /// Refuses schedules of another store that exist here, or are too many.
    pub(super) fn check_schedules(&self, schedules: &[StoredSchedule]) -> Result<()> {
        if self.schedules.len() + schedules.len() > SCHEDULES_MAX {
            return Err(Error::TooManySchedules(SCHEDULES_MAX));
        }
        schedules.iter().try_for_each(|schedule| match self.schedules.get(&schedule.name) {
            Some(_) => Err(Error::ScheduleExists(schedule.name.clone())),
            None => schedule.check(),
        })
    }
}
