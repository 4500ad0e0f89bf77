//! The schedules of the model, in a list by name.

use taskyard_core::limits::{SCHEDULE_PUTS_MAX, SCHEDULES_LISTED_MAX};
use taskyard_core::*;

use super::Model;

impl Model {
    pub(super) fn schedule(&mut self, command: ScheduleCommand) -> Result<ScheduleReply> {
        let now = self.now;
        match command {
            ScheduleCommand::Set { schedule, only_new, keep_paused } => {
                self.set_schedule(schedule, only_new, keep_paused)
            }
            ScheduleCommand::Get { name } => {
                Ok(ScheduleReply::Schedules(vec![self.find(&name)?.clone()]))
            }
            ScheduleCommand::List { after, limit } => {
                let is_later =
                    |one: &&StoredSchedule| after.as_ref().is_none_or(|after| one.name > *after);
                let all = self.schedules.iter().filter(is_later).collect();
                Ok(ScheduleReply::Schedules(page(all, limit)?))
            }
            ScheduleCommand::Due { skip, limit } => {
                let mut all: Vec<_> = self.schedules.iter().filter(|one| !one.paused).collect();
                all.sort_by_key(|one| (one.next, one.name.clone()));
                let is_due = |one: &&&StoredSchedule| one.next.is_some_and(|next| next <= now);
                let due = all.iter().filter(is_due).skip(skip).copied().collect();
                let next = all.iter().filter_map(|one| one.next).find(|next| *next > now);
                Ok(ScheduleReply::Due { now, schedules: page(due, limit)?, next })
            }
            ScheduleCommand::Remove { name } => {
                self.find(&name)?;
                self.schedules.retain(|one| one.name != name);
                Ok(ScheduleReply::Removed)
            }
            ScheduleCommand::Pause { name, paused } => {
                let schedule = self.find(&name)?;
                schedule.paused = paused;
                Ok(ScheduleReply::Schedules(vec![schedule.clone()]))
            }
            ScheduleCommand::Fire { name, expected, next, mut puts, skipped } => {
                assert!(puts.len() <= SCHEDULE_PUTS_MAX, "the script puts less");
                let schedule = self.find(&name)?.clone();
                if schedule.paused || schedule.next != Some(expected) {
                    return Ok(ScheduleReply::Fired(None));
                }
                if schedule.overlap == Overlap::Skip {
                    // While a task of the schedule exists, no other is added.
                    let key = KeyRequest::new(Key::new(&format!("schedule:{name}"))?);
                    puts.iter_mut().for_each(|task| task.key = Some(Box::new(key.clone())));
                }
                let placed = match puts.len() {
                    0 => Vec::new(),
                    _ => match self.put(&schedule.tube, puts)? {
                        Reply::Put(placed) => placed,
                        other => panic!("{other:?}"),
                    },
                };
                let schedule = self.find(&name)?;
                let existing = placed.iter().filter(|placed| placed.existing).count() as u64;
                schedule.next = next;
                schedule.fired += placed.len() as u64 - existing;
                schedule.skipped += skipped + existing;
                if placed.iter().any(|placed| !placed.existing) {
                    schedule.last = Some(now);
                }
                Ok(ScheduleReply::Fired(Some(placed)))
            }
        }
    }

    fn set_schedule(
        &mut self,
        mut new: StoredSchedule,
        only_new: bool,
        keep_paused: bool,
    ) -> Result<ScheduleReply> {
        let before = self.find(&new.name).ok().cloned();
        if only_new && before.is_some() {
            return Err(Error::ScheduleExists(new.name));
        }
        let two_keys = new.overlap == Overlap::Skip && new.template.key.is_some();
        if new.template.attempts_max == Some(0) || two_keys {
            return Err(Error::Invalid("zero".into()));
        }
        self.tube(&new.tube)?;
        self.schedules.retain(|one| one.name != new.name);
        let (last, fired, skipped) =
            before.as_ref().map_or((None, 0, 0), |old| (old.last, old.fired, old.skipped));
        if keep_paused {
            new.paused = before.as_ref().is_some_and(|before| before.paused);
        }
        self.schedules.push(StoredSchedule { last, fired, skipped, ..new });
        self.schedules.sort_by_key(|one| one.name.clone());
        Ok(ScheduleReply::Set(before.is_none()))
    }

    fn find(&mut self, name: &ScheduleName) -> Result<&mut StoredSchedule> {
        let found = self.schedules.iter_mut().find(|one| one.name == *name);
        found.ok_or_else(|| Error::ScheduleNotFound(name.clone()))
    }
}

fn page(schedules: Vec<&StoredSchedule>, limit: usize) -> Result<Vec<StoredSchedule>> {
    if limit == 0 || limit > SCHEDULES_LISTED_MAX {
        return Err(Error::Invalid("limit".into()));
    }
    Ok(schedules.into_iter().take(limit).cloned().collect())
}
