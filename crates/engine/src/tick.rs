//! When time alone has something to do.

use taskyard_core::{Command, Reply, Result, Span, Timestamp};

/// Most tasks one tick may move; the commands of others run between two ticks.
const TICK_LIMIT: usize = 1_000;
/// How long to leave a store alone that could not tick.
const BACK_OFF: Span = Span::from_secs(1);

/// Knows when the next tick is wanted.
#[derive(Debug)]
pub(crate) struct Ticks {
    wanted: Option<Timestamp>,
    not_before: Timestamp,
}

impl Ticks {
    /// Wants a tick at once: only the store knows what became due while nobody ran.
    pub fn new(now: Timestamp) -> Self {
        Ticks { wanted: Some(now), not_before: now }
    }

    /// Wants a tick soon: others may have given the store something to do.
    pub fn ask(&mut self, now: Timestamp) {
        self.wanted = Some(self.wanted.map_or(now, |wanted| wanted.min(now)));
    }

    /// When to tick next.
    pub fn next(&self) -> Option<Timestamp> {
        self.wanted.map(|wanted| wanted.max(self.not_before))
    }

    /// The command, if it is time.
    pub fn due(&self, now: Timestamp) -> Option<Command> {
        let due = self.next().is_some_and(|next| next <= now);
        due.then_some(Command::Tick { limit: TICK_LIMIT })
    }

    /// Takes in what the latest batch said about the next wake-up.
    pub fn learn(&mut self, next_wakeup: Option<Timestamp>) {
        self.wanted = next_wakeup;
    }

    /// Takes in what came of a tick, after [`Ticks::learn`]; `alone` when nothing else was in its batch.
    pub fn ticked(&mut self, now: Timestamp, reply: &Result<Reply>, alone: bool) {
        match reply {
            Ok(Reply::Ticked(moved)) if *moved >= TICK_LIMIT => self.wanted = Some(now),
            // A store that wants a tick but has nothing to move would keep the loop spinning. What came after
            // the tick in its batch may have given it something.
            Ok(Reply::Ticked(0)) if alone && self.wanted.is_some_and(|wanted| wanted <= now) => {
                self.not_before = now + BACK_OFF;
            }
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(%error, "the store could not tick; trying again in a second");
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
    fn the_first_tick_is_due_at_once_and_then_the_store_says() {
        let mut ticks = Ticks::new(at(5));
        assert!(ticks.due(at(5)).is_some());
        ticks.learn(Some(at(9)));
        ticks.ticked(at(5), &Ok(Reply::Ticked(3)), true);
        assert_eq!(ticks.next(), Some(at(9)));
        assert!(ticks.due(at(8)).is_none());
        ticks.learn(None);
        assert_eq!(ticks.next(), None);
    }

    #[test]
    fn a_full_tick_is_repeated() {
        let mut ticks = Ticks::new(at(5));
        ticks.learn(None);
        ticks.ticked(at(5), &Ok(Reply::Ticked(TICK_LIMIT)), true);
        assert!(ticks.due(at(5)).is_some());
    }

    #[test]
    fn a_tick_that_finds_nothing_delays_only_a_store_that_insists() {
        let mut ticks = Ticks::new(at(5));
        ticks.learn(Some(at(5) + Span::from_micros(1)));
        ticks.ticked(at(5), &Ok(Reply::Ticked(0)), true);
        assert!(ticks.due(at(5) + Span::from_micros(1)).is_some());
        ticks.learn(Some(at(5)));
        ticks.ticked(at(5), &Ok(Reply::Ticked(0)), true);
        assert_eq!(ticks.next(), Some(at(6)));
    }

    #[test]
    fn a_failed_tick_waits() {
        let mut ticks = Ticks::new(at(5));
        ticks.ticked(at(5), &Err(taskyard_core::Error::Store("disk full".into())), true);
        assert!(ticks.due(at(5)).is_none());
        assert!(ticks.due(at(6)).is_some());
    }

    // A task that was given back in the batch of a tick, and was over already, stayed for another second.
    #[test]
    fn what_came_after_a_tick_in_its_batch_is_ticked_at_once() {
        let mut ticks = Ticks::new(at(5));
        ticks.learn(Some(at(3)));
        ticks.ticked(at(5), &Ok(Reply::Ticked(0)), false);
        assert!(ticks.due(at(5)).is_some());
        ticks.ticked(at(5), &Ok(Reply::Ticked(0)), true);
        assert!(ticks.due(at(5)).is_none());
    }
}
