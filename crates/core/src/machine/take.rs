//! Delivers tasks.

use crate::command::{Reply, Take};
use crate::error::{Error, Result};
use crate::journal::Entry;
use crate::lease::Lease;
use crate::limits::{BATCH_BYTES_MAX, BATCH_TASKS_MAX};
use crate::rate::Bucket;
use crate::slots::{Delivery, SlotState};
use crate::state::{self, Event, State};
use crate::task::{Task, TaskId};
use crate::time::Timestamp;

use super::Machine;

impl Machine {
    pub(super) fn take(&mut self, now: Timestamp, take: &Take) -> Result<Reply> {
        let number = self.number(&take.tube)?;
        if take.count > BATCH_TASKS_MAX {
            return Err(Error::TooLarge {
                what: "the number of tasks in one take",
                size: take.count,
                limit: BATCH_TASKS_MAX,
                advice: "take them in several batches",
            });
        }
        if let Some(session) = take.session {
            self.check_session(now, session)?;
        }
        let count = self.allowed(now, number, take.count);
        let ready = usize::try_from(self.tubes[number].tasks.counts().ready).unwrap_or(count);
        let (mut tasks, mut bytes) = (Vec::with_capacity(count.min(ready)), 0);
        while tasks.len() < count {
            let tube = self.tube(number);
            if tube.options.paused {
                break;
            }
            let Some((id, size)) = tube.tasks.first_takeable(now) else { break };
            bytes += size as usize;
            if bytes > BATCH_BYTES_MAX && !tasks.is_empty() {
                break;
            }
            tasks.push(self.deliver(now, number, id, take));
        }
        if !tasks.is_empty() {
            self.spend(now, number, tasks.len() as u64);
            self.update_signals(number);
        }
        Ok(Reply::Taken(tasks))
    }

    /// How many of so many deliveries the rate limit of the tube allows now.
    #[inline]
    fn allowed(&mut self, now: Timestamp, number: u32, count: usize) -> usize {
        let tube = &self.tubes[number];
        let Some(rate) = &tube.options.rate else { return count };
        let bucket = rate.refilled(tube.bucket, now);
        let allowed = count.min(usize::try_from(rate.tokens(bucket)).unwrap_or(usize::MAX));
        if tube.bucket.is_some_and(|stored| stored.at > now) {
            self.set_bucket(number, Some(bucket));
            self.update_signals(number);
        }
        allowed
    }

    /// Takes the tokens of so many deliveries from the bucket of the tube.
    #[inline]
    fn spend(&mut self, now: Timestamp, number: u32, deliveries: u64) {
        let tube = &self.tubes[number];
        let Some(rate) = &tube.options.rate else { return };
        let bucket = rate.spent(rate.refilled(tube.bucket, now), deliveries);
        self.set_bucket(number, Some(bucket));
    }

    /// Sets the bucket of a tube.
    pub(super) fn set_bucket(&mut self, number: u32, bucket: Option<Bucket>) {
        let before = std::mem::replace(&mut self.tube(number).bucket, bucket);
        self.journal.push(|| Entry::Bucket { tube: number, before });
    }

    fn deliver(&mut self, now: Timestamp, number: u32, id: TaskId, take: &Take) -> Task {
        debug_assert_eq!(state::next(Some(State::Ready), Event::Take), Some(State::Taken));
        self.note(number, id);
        let lease = Lease(self.next_lease);
        self.next_lease += 1;
        let tube = self.tubes.get_mut(number).expect("take looked the tube up");
        let ttl_kills_taken = tube.options.ttl_kills_taken;
        tube.tasks.update(id, &mut self.shared, |slot| {
            let mut until = now + take.lease.unwrap_or(slot.options().ttr);
            if ttl_kills_taken {
                until = until.min(slot.expires());
            }
            slot.set_state(SlotState::Taken(Box::new(Delivery {
                lease,
                session: take.session,
                since: slot.since(),
                start: now,
                until,
                explicit: take.lease.is_some(),
                worker: take.worker.clone(),
            })));
        });
        tube.calls().take += 1;
        tube.view_with_due(now, id).expect("the task was just taken")
    }
}
