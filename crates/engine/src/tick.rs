//! Schedules ticks: the commands that let the store process what is due.

use taskyard_core::{Command, Reply, Result, Span, Timestamp};

/// Maximum number of tasks moved by one tick; other commands run between two ticks.
const TICK_LIMIT: usize = 1_000;
/// How long to wait after a failed tick.
const BACK_OFF: Span = Span::from_secs(1);

/// The time of the next tick.
#[derive(Debug)]
pub(crate) struct Ticks {
    wanted: Option<Timestamp>,
    not_before: Timestamp,
}

impl Ticks {
    /// Schedules a tick at once: only the store knows what became due while no server ran.
    pub fn new(now: Timestamp) -> Self {
        Ticks { wanted: Some(now), not_before: now }
    }

    /// Schedules a tick soon: other servers may have given the store something to do.
    pub fn request(&mut self, now: Timestamp) {
        self.wanted = Some(self.wanted.map_or(now, |wanted| wanted.min(now)));
    }

    /// The time of the next tick.
    pub fn next(&self) -> Option<Timestamp> {
        self.wanted.map(|wanted| wanted.max(self.not_before))
    }

    /// The tick command, if it is due.
    pub fn due(&self, now: Timestamp) -> Option<Command> {
        let due = self.next().is_some_and(|next| next <= now);
        due.then_some(Command::Tick { limit: TICK_LIMIT, seed: fastrand::u32(..) })
    }

    /// Sets the next wake-up, as the latest batch reported it.
    pub fn set_next_wakeup(&mut self, next_wakeup: Option<Timestamp>) {
        self.wanted = next_wakeup;
    }

    /// Applies the reply of a tick, after [`Ticks::set_next_wakeup`]; `alone` when nothing else was
    /// in its batch.
    pub fn record_tick(&mut self, now: Timestamp, reply: &Result<Reply>, alone: bool) {
        match reply {
            Ok(Reply::Ticked(moved)) if *moved >= TICK_LIMIT => self.wanted = Some(now),
            // A store that asks for a tick but has nothing to move would keep the loop spinning.
            // Commands after the tick in its batch may have given it something to do.
            Ok(Reply::Ticked(0)) if alone && self.wanted.is_some_and(|wanted| wanted <= now) => {
                self.not_before = now + BACK_OFF;
            }
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot process due tasks; trying again in 1 s");
                self.not_before = now + BACK_OFF;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::EPOCH + Span::from_secs(seconds)
    }

    #[test]
    fn the_first_tick_is_due_at_once_and_the_store_sets_the_next() {
        let mut ticks = Ticks::new(at(5));
        assert!(ticks.due(at(5)).is_some());
        ticks.set_next_wakeup(Some(at(9)));
        ticks.record_tick(at(5), &Ok(Reply::Ticked(3)), true);
        assert_eq!(ticks.next(), Some(at(9)));
        assert!(ticks.due(at(8)).is_none());
        ticks.set_next_wakeup(None);
        assert_eq!(ticks.next(), None);
    }

    #[test]
    fn a_full_tick_is_repeated() {
        let mut ticks = Ticks::new(at(5));
        ticks.set_next_wakeup(None);
        ticks.record_tick(at(5), &Ok(Reply::Ticked(TICK_LIMIT)), true);
        assert!(ticks.due(at(5)).is_some());
    }

    #[test]
    fn a_tick_that_finds_nothing_delays_only_a_store_that_asks_again() {
        let mut ticks = Ticks::new(at(5));
        ticks.set_next_wakeup(Some(at(5) + Span::from_micros(1)));
        ticks.record_tick(at(5), &Ok(Reply::Ticked(0)), true);
        assert!(ticks.due(at(5) + Span::from_micros(1)).is_some());
        ticks.set_next_wakeup(Some(at(5)));
        ticks.record_tick(at(5), &Ok(Reply::Ticked(0)), true);
        assert_eq!(ticks.next(), Some(at(6)));
    }

    #[test]
    fn a_failed_tick_waits() {
        let mut ticks = Ticks::new(at(5));
        ticks.record_tick(at(5), &Err(taskyard_core::Error::Store("disk full".into())), true);
        assert!(ticks.due(at(5)).is_none());
        assert!(ticks.due(at(6)).is_some());
    }

    // A task that was released in the batch of a tick, and was due already, stayed for another
    // second.
    #[test]
    fn commands_after_a_tick_in_its_batch_are_ticked_at_once() {
        let mut ticks = Ticks::new(at(5));
        ticks.set_next_wakeup(Some(at(3)));
        ticks.record_tick(at(5), &Ok(Reply::Ticked(0)), false);
        assert!(ticks.due(at(5)).is_some());
        ticks.record_tick(at(5), &Ok(Reply::Ticked(0)), true);
        assert!(ticks.due(at(5)).is_none());
    }
}
