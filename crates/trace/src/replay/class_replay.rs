//! Replays a trace in a pool with duration classes: the tasks of all tubes share the backends, in the order of their arrival,
//! and each has the class of its recorded run time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use taskyard_core::classes::{Classes, Decision, Rules, RunRequest, Ticket};
use taskyard_core::{RetryPolicy, Span, TaskId, Timestamp};

use super::scenario::Scenario;
use super::{REPORT_EVERY, Replayed, ReplayedTube};
use crate::event::Ending;
use crate::figures::WaitFigures;
use crate::tasks::{ChangeKind, Trace};

/// The seed of the random choices of a pool, none of which concerns tasks with a given time.
const SEED: u64 = 17;

/// What happens next to a task. Ends come before arrivals at the same moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Step {
    at: i64,
    /// The ticket of a task that ends; `None` arrives.
    arrives: bool,
    number: u64,
}

/// A task in the pool.
struct PooledTask {
    row: u32,
    nth: u32,
    arrived: i64,
}

struct ClassReplay<'a> {
    trace: &'a Trace,
    classes: Classes,
    steps: BinaryHeap<Reverse<Step>>,
    /// The tasks by their tickets.
    tasks: Vec<PooledTask>,
    /// Tasks that arrive again: row and number of the delivery.
    again: Vec<(u32, u32)>,
    /// Which tasks were deleted before they could start, and when.
    deleted: Vec<(u32, i64)>,
    class_waits: Vec<Vec<u64>>,
    found: Replayed,
}

/// Replays a trace with these classes, which were checked.
pub fn run(
    trace: &Trace,
    scenario: &Scenario,
    rules: &Rules,
    progress: &mut dyn FnMut(u64),
) -> Replayed {
    let rules = scenario.limited_classes().unwrap_or_else(|_| rules.clone());
    let recorded = trace.tubes.iter().map(|tube| tube.consumers.most()).sum();
    let backends: u32 = scenario.shared_consumers().unwrap_or(recorded).max(1);
    let names: Vec<String> = rules.classes().iter().map(|class| class.name.clone()).collect();
    let new_tube = || ReplayedTube { consumers: Some(backends), ..ReplayedTube::default() };
    let tubes = trace.tubes.iter().map(|_| new_tube()).collect();
    let mut replay = ClassReplay {
        trace,
        classes: Classes::new(rules, SEED),
        steps: BinaryHeap::new(),
        tasks: Vec::new(),
        again: Vec::new(),
        deleted: deleted(trace),
        class_waits: vec![Vec::new(); names.len()],
        found: Replayed { tubes, ..Replayed::default() },
    };
    replay.classes.set_backends(Timestamp::EPOCH, backends);
    replay.run(progress);
    let ClassReplay { mut found, class_waits, .. } = replay;
    let figures = class_waits.into_iter().map(|mut waits| WaitFigures::of(&mut waits));
    found.classes = names.into_iter().zip(figures).collect();
    found
}

/// The tasks that were deleted before they ran, by row.
fn deleted(trace: &Trace) -> Vec<(u32, i64)> {
    let deletes = trace.changes.iter().filter_map(|change| match change.kind {
        ChangeKind::Delete { row } => Some((row, change.at)),
        _ => None,
    });
    let mut deleted: Vec<_> = deletes.collect();
    deleted.sort_unstable();
    deleted
}

impl ClassReplay<'_> {
    fn run(&mut self, progress: &mut dyn FnMut(u64)) {
        let mut next = 0;
        loop {
            let put = self.trace.rows.get(next).map(|row| row.put);
            let step = self.steps.peek().map(|step| step.0);
            match (put, step) {
                (None, None) => return,
                (Some(put), step) if step.is_none_or(|step| put < step.at) => {
                    self.put(next as u32, put);
                    next += 1;
                    if next.is_multiple_of(REPORT_EVERY) {
                        progress(next as u64);
                    }
                }
                (_, Some(step)) => {
                    self.steps.pop();
                    self.step(step);
                }
                (Some(_), None) => {}
            }
        }
    }

    fn put(&mut self, row: u32, now: i64) {
        let details = self.trace.rows[row as usize].details(self.trace);
        match details.and_then(|details| details.delay).filter(|delay| !delay.is_zero()) {
            None => self.arrive(now, row, 0),
            Some(delay) => self.arrive_later(now.saturating_add(delay.as_micros()), row, 0),
        }
    }

    fn arrive_later(&mut self, at: i64, row: u32, nth: u32) {
        let number = self.again.len() as u64;
        self.again.push((row, nth));
        self.steps.push(Reverse(Step { at, arrives: true, number }));
    }

    fn step(&mut self, step: Step) {
        if step.arrives {
            let (row, nth) = self.again[step.number as usize];
            self.arrive(step.at, row, nth);
        } else {
            self.end(step.at, step.number);
        }
    }

    fn arrive(&mut self, now: i64, row: u32, nth: u32) {
        if let Ok(place) = self.deleted.binary_search_by_key(&row, |deleted| deleted.0)
            && self.deleted[place].1 <= now
        {
            return;
        }
        let ticket = Ticket(self.tasks.len() as u64);
        self.tasks.push(PooledTask { row, nth, arrived: now });
        let run = self.trace.replayed_delivery(row, nth as usize).run;
        let wish = RunRequest::Timed(Span::from_micros(run));
        let decisions = self.classes.arrive(Timestamp::from_micros(now), ticket, wish);
        self.apply(now, decisions);
    }

    fn end(&mut self, now: i64, ticket: u64) {
        let PooledTask { row, nth, .. } = self.tasks[ticket as usize];
        self.found.end = self.found.end.max(now.unsigned_abs());
        let tube = self.trace.rows[row as usize].tube as usize;
        self.found.tubes[tube].end(now);
        let again = match self.trace.replayed_delivery(row, nth as usize).ending {
            Ending::Acked | Ending::Buried | Ending::FailedBuried => None,
            Ending::Released { delay, .. } | Ending::FailedRetry(delay) => Some(delay),
            Ending::FailedPolicy(default_delay) => {
                let options = self.trace.tubes[tube].options.as_deref();
                let policy = options.and_then(|options| options.retry.as_deref());
                let by_policy = |policy: &RetryPolicy| {
                    policy.delay_after(nth + 1, SEED as u32, TaskId(u64::from(row)))
                };
                Some(policy.map_or(default_delay, by_policy))
            }
        };
        if let Some(delay) = again {
            self.arrive_later(now.saturating_add(delay.as_micros()), row, nth + 1);
        }
        let decisions = self.classes.remove(Timestamp::from_micros(now), Ticket(ticket));
        self.apply(now, decisions);
    }

    fn apply(&mut self, now: i64, decisions: Vec<Decision>) {
        for decision in decisions {
            match decision {
                Decision::Start { ticket, class, limit } => self.start(now, ticket, class, limit),
                Decision::Deny { .. } => self.found.denied += 1,
                // Only for tasks without a given time.
                Decision::Lower { .. } | Decision::Halt { .. } => {}
            }
        }
    }

    fn start(&mut self, now: i64, ticket: Ticket, class: Option<u8>, limit: Span) {
        let PooledTask { row, nth, arrived } = self.tasks[ticket.0 as usize];
        let recorded = self.trace.replayed_delivery(row, nth as usize);
        let wait = now - arrived;
        let tube = self.trace.rows[row as usize].tube as usize;
        self.found.tubes[tube].start(now, wait, &recorded);
        if recorded.wait >= 0
            && let Some(waits) =
                class.and_then(|class| self.class_waits.get_mut(usize::from(class)))
        {
            waits.push(wait.unsigned_abs());
        }
        self.found.cut += u64::from(recorded.run > limit.as_micros());
        let at = now.saturating_add(recorded.run.min(limit.as_micros()));
        self.steps.push(Reverse(Step { at, arrives: false, number: ticket.0 }));
    }
}
