//! Chooses how long each task runs in one simulated future.

use super::StartModel;
use crate::classes::{TaskKind, Ticket};
use crate::time::Span;

/// The golden ratio: multiples of it are spread evenly between whole numbers, also those of few tickets.
const GOLDEN: f64 = 0.618_033_988_749_894_8;
/// The most futures that are simulated beside the longest one.
const FUTURES_MAX: usize = 2;
/// So many tasks are simulated in all futures together, if there are fewer in one.
const SIMULATED_MAX: usize = 1_024;

/// One simulated future.
#[derive(Clone, Copy, Debug)]
pub(in crate::classes) enum RunLengths<'a> {
    /// Every task uses all its time.
    Longest,
    /// Tasks run as long as others did recently; futures with other numbers differ.
    Learned(&'a StartModel, f64),
}

/// A task, as its run time depends on it.
#[derive(Clone, Copy, Debug)]
pub(in crate::classes) struct SimulatedRun {
    pub ticket: Ticket,
    pub kind: TaskKind,
    pub class: u8,
    /// The most time it has, with the time to end it.
    pub limit: Span,
    /// How long it runs already.
    pub age: Span,
}

impl RunLengths<'_> {
    /// The futures of a pool with so many tasks: more of them for fewer tasks, whose starts are less certain.
    pub fn learned(model: &StartModel, tasks: usize) -> impl Iterator<Item = RunLengths<'_>> {
        let count = match model.has_history() {
            true => (SIMULATED_MAX / tasks.max(1)).clamp(1, FUTURES_MAX),
            false => 0,
        };
        RunLengths::learned_again(model, count)
    }

    /// So many futures, the same as before.
    pub fn learned_again(model: &StartModel, count: usize) -> impl Iterator<Item = RunLengths<'_>> {
        (0..count).map(move |at| RunLengths::Learned(model, (at as f64 + 0.5) / count as f64))
    }

    /// How long a task runs in this future, from its start on.
    pub fn time(self, run: SimulatedRun) -> Span {
        let RunLengths::Learned(model, number) = self else { return run.limit };
        // The same task has the same part in every update, so that estimates do not jump.
        let part = (run.ticket.0 as f64 * GOLDEN + number).fract();
        let time = model.run_time(run.kind, run.class, run.age, part);
        time.map_or(run.limit, |time| time.min(run.limit))
    }
}
