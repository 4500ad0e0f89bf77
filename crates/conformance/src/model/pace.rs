//! Generates the random parts of a run that need retry policies, rate limits and schedules.
//!
//! They come from a generator of their own, so that a seed gives the same other commands on stores with and without these
//! features.

use taskyard_core::{
    AfterFailure, CatchUp, Command, Finish, NewTask, Overlap, RateLimit, RetryPolicy,
    ScheduleCommand, ScheduleName, ScheduleReply, Span, StoredSchedule, Timestamp, TubeChange,
    TubeName, TubeOptions,
};

use super::script::TubeScript;
use crate::commands::secs;

/// Names of schedules.
const SCHEDULES: [&str; 4] = ["daily", "Daily", "täglich", "weekly report"];

/// The part of a schedule that the script knows.
pub(super) struct KnownSchedule {
    pub(super) tube: TubeName,
    next: Option<Timestamp>,
}

impl TubeScript {
    /// Runs a function with the generator of these features.
    fn paced<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> T {
        std::mem::swap(&mut self.rng, &mut self.pace_rng);
        let made = make(self);
        std::mem::swap(&mut self.rng, &mut self.pace_rng);
        made
    }

    /// Options with a retry policy and a rate limit, if the store has them.
    pub(super) fn paced_options(&mut self, options: TubeOptions) -> TubeOptions {
        self.paced(|script| TubeOptions {
            retry: script.sometimes(Self::retry).filter(|_| script.capabilities.retries),
            rate: script.rarely(Self::rate).filter(|_| script.capabilities.rates),
            ..options
        })
    }

    pub(super) fn paced_change(&mut self, change: TubeChange) -> TubeChange {
        self.paced(|script| {
            let retry = script.rarely(|script| script.sometimes(Self::retry));
            let rate = script.rarely(|script| script.rarely(Self::rate));
            TubeChange {
                retry: retry.filter(|_| script.capabilities.retries),
                rate: rate.filter(|_| script.capabilities.rates),
                ..change
            }
        })
    }

    /// The task, sometimes with its own number of attempts.
    pub(super) fn paced_task(&mut self, task: NewTask) -> NewTask {
        self.paced(|script| {
            let own = script.one_in(6).then(|| script.rng.u32(0..30).min(4));
            NewTask { attempts_max: own.filter(|_| script.capabilities.retries), ..task }
        })
    }

    /// A failure that sometimes ends as the policy says.
    pub(super) fn paced_finish(&mut self, finish: Finish) -> Finish {
        self.paced(|script| match finish {
            Finish::Fail(mut fail) if script.capabilities.retries && script.rng.bool() => {
                let default_delay = fail.then.delay().unwrap_or_default();
                fail.then = AfterFailure::Policy { seed: script.rng.u32(..), default_delay };
                Finish::Fail(fail)
            }
            other => other,
        })
    }

    fn retry(&mut self) -> Box<RetryPolicy> {
        let (retry_lost, jitter_permille) = (self.rng.bool(), self.rng.u32(0..=1_000));
        let delay = [Span::ZERO, secs(1), secs(3), Span::from_micros(1_234_567)];
        let delay = delay[self.rng.usize(0..4)];
        Box::new(RetryPolicy {
            delay,
            // Rarely refused.
            factor_permille: if self.one_in(30) { 999 } else { self.rng.u32(1_000..4_000) },
            delay_max: delay + secs(self.rng.u64(0..30)),
            // A server draws the random numbers of its ticks.
            jitter_permille: if retry_lost && !self.shares_tick_seed { 0 } else { jitter_permille },
            retry_lost,
        })
    }

    fn rate(&mut self) -> Box<RateLimit> {
        let per =
            if self.rng.bool() { secs(self.rng.u64(1..5)) } else { Span::from_micros(700_001) };
        // A burst of 0 is refused.
        let burst = self.rng.u32(0..30).min(6);
        Box::new(RateLimit { count: self.rng.u32(1..5), per, burst })
    }

    /// Sometimes a command for schedules, if the store has them.
    pub(super) fn schedule(&mut self, now: Timestamp) -> Option<Command> {
        let chosen = self.paced(|script| script.capabilities.schedules && script.one_in(10));
        chosen.then(|| self.paced(|script| script.schedule_command(now)))
    }

    fn schedule_command(&mut self, now: Timestamp) -> Command {
        let name = self.schedule_name();
        Command::Schedule(Box::new(match self.rng.u8(0..20) {
            0..4 => {
                let (only_new, keep_paused) = (self.one_in(4), self.rng.bool());
                let schedule = self.new_schedule(name, now);
                ScheduleCommand::Set { schedule, only_new, keep_paused }
            }
            4 => ScheduleCommand::Get { name },
            5 => {
                let after = self.sometimes(Self::schedule_name);
                ScheduleCommand::List { after, limit: self.rng.usize(0..6) }
            }
            6..9 => {
                ScheduleCommand::Due { skip: self.rng.usize(0..3), limit: self.rng.usize(0..6) }
            }
            9 => ScheduleCommand::Remove { name },
            10..12 => ScheduleCommand::Pause { name, paused: self.one_in(4) },
            _ => self.fire(name, now),
        }))
    }

    fn schedule_name(&mut self) -> ScheduleName {
        let text = SCHEDULES[self.rng.usize(0..SCHEDULES.len())];
        ScheduleName::new(text).expect("a good name")
    }

    fn new_schedule(&mut self, name: ScheduleName, now: Timestamp) -> StoredSchedule {
        StoredSchedule {
            name,
            tube: self.tube(),
            template: self.task(now),
            timing: (if self.one_in(30) { "" } else { "every 5 s" }).into(),
            catch_up: [CatchUp::None, CatchUp::Last, CatchUp::All][self.rng.usize(0..3)],
            overlap: if self.rng.bool() { Overlap::Allow } else { Overlap::Skip },
            until: self.sometimes(|script| script.moment(now)),
            paused: self.one_in(6),
            next: self.likely().then(|| self.moment(now)),
            // These are ignored.
            last: self.sometimes(|_| now),
            fired: self.rng.u64(0..3),
            skipped: self.rng.u64(0..3),
        }
    }

    /// Fires, mostly at the time that is next.
    fn fire(&mut self, name: ScheduleName, now: Timestamp) -> ScheduleCommand {
        let known = self.schedules.get(&name).and_then(|known| known.next);
        let expected = known.filter(|_| !self.one_in(6)).unwrap_or_else(|| self.moment(now));
        let next = self.likely().then(|| self.moment(now));
        let puts = (0..self.rng.usize(0..4)).map(|_| self.task(now)).collect();
        ScheduleCommand::Fire { name, expected, next, puts, skipped: self.rng.u64(0..3) }
    }

    fn moment(&mut self, now: Timestamp) -> Timestamp {
        let seconds = self.rng.i64(-5..20);
        now.moved(seconds * 1_000_000 + i64::from(self.one_in(8)))
    }

    /// Remembers the next times, for later commands.
    pub(super) fn learn_schedule(&mut self, command: &ScheduleCommand, reply: &ScheduleReply) {
        match (command, reply) {
            (ScheduleCommand::Set { schedule, .. }, ScheduleReply::Set(_)) => {
                let known = KnownSchedule { tube: schedule.tube.clone(), next: schedule.next };
                self.schedules.insert(schedule.name.clone(), known);
            }
            (ScheduleCommand::Fire { name, next, .. }, ScheduleReply::Fired(Some(placed))) => {
                let Some(known) = self.schedules.get_mut(name) else { return };
                known.next = *next;
                let tube = self.tubes.entry(known.tube.clone()).or_default();
                tube.next_id = placed.last().map_or(tube.next_id, |placed| placed.id.0 + 1);
            }
            _ => {}
        }
    }
}
