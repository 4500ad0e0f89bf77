//! Feeds the series from the commands and replies that pass through the event loop.

use std::collections::BTreeMap;

use taskyard_core::estimate::{Calibrated, QueueNow};
use taskyard_core::{
    Command, Error, Estimate, Forecast, Outcome, Position, Reply, Result, Span, Task, Timestamp,
    TubeName,
};

use super::notes::{LatestTube, Note, NotedFinish, NotedTube, Notes};
use super::registry::{SeriesRegistry, TubeNumber};
use super::sampling::Sampling;
use super::{Series, SeriesRequest, TubeFigures, TubeLatency};

/// The series, and what is needed to feed them. Moments are of the engine's time, except those
/// called `wall`.
#[derive(Debug)]
pub(crate) struct Collector {
    registry: SeriesRegistry,
    latest: LatestTube,
    sampling: Sampling,
    /// Whether other servers use the store.
    is_shared: bool,
}

/// A moment in the engine's time and in wall time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub now: Timestamp,
    pub wall: Timestamp,
}

impl Collector {
    /// Series for at most `tubes_max` tubes of a store, which may be shared by several servers.
    pub fn new(tubes_max: usize, is_shared: bool, moment: Moment) -> Self {
        Collector {
            registry: SeriesRegistry::new(tubes_max, moment.wall),
            latest: LatestTube::default(),
            sampling: Sampling::new(is_shared, moment.now),
            is_shared,
        }
    }

    /// Notes the commands of a batch before the store gets them.
    pub fn note(&mut self, commands: &[Command], notes: &mut Notes) {
        notes.note(commands, &self.registry, &mut self.latest);
    }

    /// Counts what the commands of a batch did; `failed` are deliveries that failed without a command
    /// for them. Depths at the beginning of a batch are those at the end of the last second.
    pub fn observe(
        &mut self,
        moment: Moment,
        notes: &mut Notes,
        replies: &[Result<Reply>],
        failed: &[(TubeName, u64)],
    ) {
        let mut is_current = !failed.is_empty();
        if is_current {
            self.registry.advance(moment.wall);
        }
        // Before the commands: one of them may have dropped the tube.
        for (tube, count) in failed {
            if let Some(number) = self.changed_by_name(tube) {
                self.registry.count_failures(number, *count);
            }
        }
        for (note, reply) in notes.commands.drain(..).zip(replies) {
            if !is_current && !matches!(note, Note::Show { .. }) {
                self.registry.advance(moment.wall);
                is_current = true;
            }
            match reply {
                Ok(reply) => self.observe_reply(moment.now, note, reply, &notes.finishes),
                // Another server may have dropped it.
                Err(Error::TubeNotFound(tube)) => self.remove(tube),
                Err(_) => {}
            }
        }
        if !is_current {
            self.registry.advance(moment.wall);
        }
        self.schedule(moment);
    }

    /// Counts tasks that a schedule added to a tube.
    pub fn count_scheduled(&mut self, moment: Moment, tube: &TubeName, count: usize) {
        self.registry.advance(moment.wall);
        if let Some(number) = self.changed_by_name(tube) {
            self.registry.count_puts(number, count, &[]);
        }
    }

    /// Other servers may have changed these tubes.
    pub fn note_remote_changes<'a>(&mut self, tubes: impl Iterator<Item = &'a TubeName>) {
        for tube in tubes {
            if let Some(number) = self.registry.find(tube) {
                self.sampling.note_changed(number);
            }
        }
    }

    /// The wall clock was set from one moment to another.
    pub fn follow_wall_clock(&mut self, from: Timestamp, to: Timestamp) {
        self.registry.advance(from);
        self.registry.follow_wall_clock(to);
    }

    /// When the depths are to be read.
    pub fn next_sample(&self) -> Option<Timestamp> {
        self.sampling.next()
    }

    /// The commands that read the depths, if that is due.
    pub fn sample(&mut self, now: Timestamp) -> Vec<Command> {
        self.sampling.commands(now, &self.registry)
    }

    /// A part of a series, for a caller that `observes` or not: for one that does, tasks are counted
    /// for a while. `None` for a tube that has none.
    pub fn series(
        &mut self,
        moment: Moment,
        request: &SeriesRequest,
        observes: bool,
    ) -> Option<Series> {
        if observes {
            self.sampling.note_observed(moment.now);
        }
        self.registry.advance(moment.wall);
        self.schedule(moment);
        self.registry.series(request)
    }

    /// When tasks at these positions of a tube will start.
    pub fn forecast(
        &mut self,
        moment: Moment,
        tube: &TubeName,
        positions: &[Position],
        queue: &QueueNow,
    ) -> Vec<Forecast> {
        self.sampling.note_observed(moment.now);
        self.schedule(moment);
        let queue = &QueueNow { is_shared: self.is_shared, ..*queue };
        match self.registry.service(tube) {
            Some(service) => service.forecast(moment, positions, queue),
            None => vec![Err(queue.unknown(moment.wall)); positions.len()],
        }
    }

    /// When all ready tasks of a tube will have started.
    pub fn forecast_drain(
        &mut self,
        moment: Moment,
        tube: &TubeName,
        queue: &QueueNow,
    ) -> Forecast {
        let queue = &QueueNow { is_shared: self.is_shared, ..*queue };
        let service = self.registry.service(tube).ok_or(queue.unknown(moment.wall))?;
        let last = Position::behind(queue.ready.saturating_sub(1));
        let drain = service.forecast_drain(moment, &last, queue)?;
        let ahead = queue.ready + queue.taken;
        Ok(match queue.ready {
            0 => Estimate { ahead, p50: Span::ZERO, p90: Span::ZERO, ..drain },
            _ => Estimate { ahead, ..drain },
        })
    }

    /// How many estimates of each tube held.
    pub fn calibrated(&self) -> BTreeMap<TubeName, Calibrated> {
        self.registry.calibrated()
    }

    /// The durations of each tube that has series.
    pub fn latencies(&self) -> Vec<TubeLatency> {
        self.registry.latencies()
    }

    /// What the series of each tube say about it now.
    pub fn figures(&mut self, wall: Timestamp) -> BTreeMap<TubeName, TubeFigures> {
        self.registry.advance(wall);
        self.registry.figures()
    }

    fn schedule(&mut self, Moment { now, wall }: Moment) {
        let second_ends = now.moved(1_000_000 - wall.as_micros().rem_euclid(1_000_000));
        self.sampling.schedule(now, second_ends);
    }

    fn observe_reply(
        &mut self,
        now: Timestamp,
        note: Note,
        reply: &Reply,
        finishes: &[NotedFinish],
    ) {
        match (note, reply) {
            (Note::Put(tube, priorities), Reply::Put(placed)) if !placed.is_empty() => {
                let Some(number) = self.changed(tube) else { return };
                let added = placed.iter().filter(|placed| !placed.existing).count();
                self.registry.count_puts(number, added, &priorities);
            }
            (Note::Take(tube), Reply::Taken(tasks)) if !tasks.is_empty() => {
                let Some(number) = self.changed(tube) else { return };
                let deliveries = tasks.iter().map(|task| (task.id, lease(task), wait(task)));
                self.registry.begin_deliveries(number, now, deliveries);
            }
            (Note::Finish(tube, items), Reply::Finished(outcomes)) => {
                let Some(number) = self.changed(tube) else { return };
                let items = finishes.get(items).unwrap_or_default();
                let done = items.iter().zip(outcomes).filter_map(|(item, outcome)| {
                    let done = matches!(outcome, Outcome::Done(_));
                    item.ending.filter(|_| done).map(|ending| (item.id, ending))
                });
                self.registry.end_deliveries(number, now, done);
            }
            (Note::Changes(tube), _) => _ = self.changed(tube),
            (Note::Delete(tube, ids), Reply::Finished(outcomes)) => {
                let Some(number) = self.changed(tube) else { return };
                let deleted = ids
                    .into_iter()
                    .zip(outcomes)
                    .filter_map(|(id, outcome)| matches!(outcome, Outcome::Done(_)).then_some(id));
                self.registry.forget_tasks(number, deleted);
            }
            (Note::Truncate(tube), _) => {
                let Some(number) = self.changed(tube) else { return };
                self.registry.forget_all_tasks(number);
            }
            (Note::ChangesAny, _) => self.sampling.note_any_changed(),
            (Note::Tick, Reply::Ticked(moved)) if *moved > 0 => self.sampling.note_any_changed(),
            (Note::Drop(tube), _) => self.remove(&tube),
            (Note::Rename(tube), Reply::Tubes(infos)) => {
                self.latest.forget();
                if let Some(info) = infos.first() {
                    self.registry.rename(&tube, &info.name);
                }
            }
            (Note::Show { all }, Reply::Tubes(infos)) => {
                self.latest.forget();
                self.registry.set_depths(now, infos, all);
            }
            (_, _) => {}
        }
    }

    /// A tube that no longer exists.
    fn remove(&mut self, tube: &TubeName) {
        self.latest.forget();
        self.registry.remove(tube);
    }

    /// A tube whose tasks have changed.
    fn changed(&mut self, tube: NotedTube) -> Option<TubeNumber> {
        let number = match tube {
            NotedTube::Known(number) => number,
            NotedTube::New(tube) => return self.changed_by_name(&tube),
        };
        self.sampling.note_changed(number);
        Some(number)
    }

    fn changed_by_name(&mut self, tube: &TubeName) -> Option<TubeNumber> {
        let number = self.registry.number(tube)?;
        self.sampling.note_changed(number);
        Some(number)
    }
}

/// How long a delivery may last.
fn lease(task: &Task) -> Span {
    match (task.start, task.lease_until) {
        (Some(start), Some(until)) => until.since(start),
        _ => Span::FOREVER,
    }
}

/// How long a task had been ready when it was taken. Both moments are of the same clock.
fn wait(task: &Task) -> Option<Span> {
    Some(task.start?.since(task.due?))
}
