//! Converts between the machine's time and wall time.
//!
//! The `now` of commands is even, so that durations keep their length. When the wall clock is set,
//! the machine learns how far it is ahead: replies show wall time, and tasks whose puts named a
//! start time follow it.

use crate::command::{Outcome, Reply, TubeInfo};
use crate::reason::Reason;
use crate::semaphore::{MemberInfo, SemaphoreInfo, SemaphoreReply};
use crate::slots::{Slot, SlotState};
use crate::task::{Task, TaskId};
use crate::time::Timestamp;

use super::Machine;

impl Machine {
    /// How far the wall clock is ahead of the machine's time, in microseconds.
    pub fn wall_ahead(&self) -> i64 {
        self.wall_ahead
    }

    /// The put time of the latest restored task: the machine's time cannot have gone back before
    /// it.
    pub fn latest_restored(&self) -> Option<Timestamp> {
        self.latest_restored
    }

    /// The put time of the earliest restored task.
    pub fn earliest_restored(&self) -> Option<Timestamp> {
        self.earliest_restored
    }

    /// Sets how far the wall clock is ahead, before anything is restored.
    pub fn restore_wall_ahead(&mut self, micros: i64) {
        self.wall_ahead = micros;
    }

    /// Sets how far the wall clock is ahead from now on. Called between two batches: this cannot be
    /// undone.
    pub fn set_wall_ahead(&mut self, micros: i64) {
        let by = self.wall_ahead.saturating_sub(micros);
        self.wall_ahead = micros;
        let numbers: Vec<u32> = self.tube_numbers().collect();
        for number in numbers {
            let Some(tube) = self.tubes.get_mut(number) else { continue };
            let scheduled = |slot: &&Slot| matches!(slot.details(), SlotState::Scheduled(_));
            let slots = tube.tasks.all().filter(scheduled);
            let ids: Vec<TaskId> = slots.map(|slot| slot.id).collect();
            for id in ids {
                tube.tasks.update(id, &mut self.shared, |slot| {
                    slot.set_state(SlotState::Scheduled(slot.since().moved(by)));
                    slot.set_expires(slot.expires().moved(by));
                });
            }
            self.update_signals(number);
        }
    }

    /// Converts the times in a reply to wall time.
    pub(super) fn show_wall_time(&self, reply: &mut Reply) {
        let by = self.wall_ahead;
        match reply {
            Reply::Taken(_) | Reply::Tasks(_) | Reply::Found(_) => {
                reply.shown_mut().iter_mut().for_each(|task| show_task(task, by));
            }
            Reply::Finished(outcomes) => {
                for outcome in outcomes {
                    if let Outcome::Done(Some(task)) = outcome {
                        show_task(task, by);
                    }
                }
            }
            Reply::Tubes(tubes) => {
                for TubeInfo { next_wakeup, oldest_ready, .. } in tubes {
                    show_all([next_wakeup, oldest_ready], by);
                }
            }
            Reply::Positions(positions) => {
                positions.iter_mut().for_each(|position| show_all([&mut position.due], by));
            }
            Reply::Semaphore(reply) => show_semaphores(reply, by),
            Reply::Nothing
            | Reply::Created(_)
            | Reply::Put(_)
            | Reply::Kicked(_)
            | Reply::Listed(_)
            | Reply::Session(_)
            | Reply::Schedule(_)
            | Reply::Ticked(_) => {}
        }
    }
}

fn show_task(task: &mut Task, by: i64) {
    show(&mut task.created, by);
    show(&mut task.expires, by);
    let Task { due, start, previous_start, lease_until, reason, failures, finished, .. } = task;
    show_all([due, start, previous_start, lease_until], by);
    if let Some(failures) = failures {
        *failures = failures.moved(by);
    }
    if let Some(finished) = finished {
        *finished = finished.moved(by);
    }
    if let Reason::NotDue(moment) | Reason::RateLimited(moment) = reason {
        show(moment, by);
    }
}

fn show_semaphores(reply: &mut SemaphoreReply, by: i64) {
    match reply {
        SemaphoreReply::Semaphores(infos) => {
            for SemaphoreInfo { next_event, .. } in infos {
                show_all([next_event], by);
            }
        }
        SemaphoreReply::MemberInfos(all) => all.iter_mut().for_each(|one| show_member(one, by)),
        SemaphoreReply::Members(page) => {
            page.members.iter_mut().for_each(|member| show_member(&mut member.info, by));
        }
        SemaphoreReply::Dropped
        | SemaphoreReply::Finished(_)
        | SemaphoreReply::Events(_)
        | SemaphoreReply::Acknowledged(_) => {}
    }
}

fn show_member(member: &mut MemberInfo, by: i64) {
    let MemberInfo { enqueued, not_before, granted, lease_until, .. } = member;
    show(enqueued, by);
    show_all([not_before, granted, lease_until], by);
}

fn show_all<const N: usize>(moments: [&mut Option<Timestamp>; N], by: i64) {
    moments.into_iter().flatten().for_each(|moment| show(moment, by));
}

/// A wall clock before 1970 is wrong, and no interface can show such a time.
fn show(moment: &mut Timestamp, by: i64) {
    *moment = moment.moved(by).max(Timestamp::EPOCH);
}
