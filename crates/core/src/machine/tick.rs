//! Processes what is due.

use crate::slots::SlotState;
use crate::state::{self, Event, State};
use crate::task::TaskId;
use crate::time::{Span, Timestamp};

use super::Machine;
use super::finish::ReleaseMode;

impl Machine {
    /// Processes what is due at `now`, but moves no more than about `limit` tasks, so that other
    /// commands do not wait long. Returns how many moved; zero means that nothing is due.
    pub(super) fn tick(&mut self, now: Timestamp, limit: usize, seed: u32) -> usize {
        let mut moved = 0;
        while moved < limit {
            let session = self.session_ends.first().copied().filter(|end| end.0 <= now);
            if let Some((_, id)) = session {
                moved += 1 + self.end_session(now, id);
                continue;
            }
            let Some((_, number)) = self.wakeups.first().copied().filter(|w| w.0 <= now) else {
                break;
            };
            moved += self.tick_tube(now, number, limit - moved, seed);
        }
        let left = limit.saturating_sub(moved);
        moved += self.with_semaphores(|semaphores| semaphores.tick(now, left));
        self.apply_grants();
        moved
    }

    fn tick_tube(&mut self, now: Timestamp, number: u32, limit: usize, seed: u32) -> usize {
        let (mut moved, mut failed) = (Vec::new(), 0);
        while moved.len() < limit {
            let tube = &self.tubes[number];
            let Some((at, id)) = tube.tasks.next_timer() else { break };
            if at > now {
                break;
            }
            let Some(slot) = tube.tasks.get(id) else { break };
            match slot.details() {
                SlotState::Delayed(due) | SlotState::Scheduled(due) => {
                    debug_assert_eq!(
                        state::next(Some(State::Delayed), Event::Due),
                        Some(State::Ready)
                    );
                    self.note(number, id);
                    let tube = self.tubes.get_mut(number).expect("the tube is there");
                    tube.tasks.update(id, &mut self.shared, |slot| {
                        slot.set_state(SlotState::Ready(due));
                    });
                    tube.calls().delay += 1;
                }
                SlotState::Taken(_) => {
                    let policy = tube.options.retry.as_deref().filter(|retry| retry.retry_lost);
                    let delay =
                        policy.map_or(Span::ZERO, |policy| tube.retry_delay(policy, slot, seed));
                    let how = ReleaseMode { delay, ..ReleaseMode::LEASE_OVER };
                    self.give_back(now, number, id, how);
                    failed += 1;
                }
                SlotState::Ready(_) | SlotState::Gated(_) | SlotState::Buried { .. } => {
                    debug_assert_eq!(
                        state::next(Some(slot.state()), Event::Expire),
                        Some(State::Done)
                    );
                    self.expire(now, number, id);
                }
            }
            moved.push(id);
        }
        self.note_failed(number, failed);
        self.regate(now, number, &moved);
        let mut removed = self.trim_done(now, number, limit - moved.len());
        removed += self.trim_keys(now, number, limit - moved.len() - removed);
        self.update_signals(number);
        moved.len() + removed
    }

    /// Removes a task whose time to live is over.
    pub(super) fn expire(&mut self, now: Timestamp, number: u32, id: TaskId) {
        self.remove(now, number, id, false);
        let calls = self.tube(number).calls();
        calls.delete += 1;
        calls.ttl += 1;
    }

    /// Removes done tasks that are over age or too many, oldest first. Returns how many.
    fn trim_done(&mut self, now: Timestamp, number: u32, limit: usize) -> usize {
        let tube = &self.tubes[number];
        let excess = tube.options.done_excess(tube.tasks.done().len() as u64);
        let mut removed = 0;
        while removed < limit {
            let tube = &self.tubes[number];
            let Some((ended, id)) = tube.tasks.done().oldest() else { break };
            if removed as u64 >= excess && tube.options.keeps(ended, now) {
                break;
            }
            self.remove_done(number, id);
            removed += 1;
        }
        removed
    }
}
