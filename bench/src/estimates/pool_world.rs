//! A simulated pool: duration classes with tasks, backends and a clock of its own.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use fastrand::Rng;
use taskyard_core::classes::estimate::StartModel;
use taskyard_core::classes::{
    Classes, Decision, QueueForecast, Rules, RunRequest, TaskKind, Ticket,
};
use taskyard_core::estimate::GivenEstimate;
use taskyard_core::{Span, Timestamp};

use super::figures::EstimateFigures;
use super::pool_workloads::PoolWorkload;

/// How long a program takes to end when its time is over, and what the pool expects, in seconds.
const STOPPING: (f64, f64) = (0.05, 0.1);
/// When the world begins, in microseconds.
const BEGIN: i64 = 1_000_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PoolEvent {
    Arrive,
    /// A run ends, unless its end was moved.
    End(Ticket),
    Leave(Ticket),
    Lower(Ticket),
    SecondEnds,
}

/// A task that waits or runs.
#[derive(Clone, Copy, Debug)]
struct PoolTask {
    ask: RunRequest,
    /// How long it runs if it is not stopped, in seconds.
    run: f64,
    waits_for: u8,
    given: Option<GivenEstimate>,
    running: Option<PoolRun>,
}

#[derive(Clone, Copy, Debug)]
struct PoolRun {
    started: i64,
    end: i64,
    class: Option<u8>,
}

/// The simulated pool.
pub struct PoolWorld {
    workload: PoolWorkload,
    classes: Classes,
    model: StartModel,
    forecast: Option<QueueForecast>,
    tasks: HashMap<Ticket, PoolTask>,
    events: BinaryHeap<Reverse<(i64, u64, PoolEvent)>>,
    now: i64,
    sequence: u64,
    next_ticket: u64,
    next_count: usize,
    random: Rng,
    pub figures: EstimateFigures,
}

impl PoolWorld {
    pub fn new(workload: PoolWorkload, seed: u64) -> Self {
        let mut classes = Classes::new(Rules::default(), seed);
        classes.set_backends(Timestamp::from_micros(BEGIN), workload.backends(0.0));
        let mut world = PoolWorld {
            workload,
            classes,
            model: StartModel::default(),
            forecast: None,
            tasks: HashMap::new(),
            events: BinaryHeap::new(),
            now: BEGIN,
            sequence: 0,
            next_ticket: 0,
            next_count: 0,
            random: Rng::with_seed(seed),
            figures: EstimateFigures::default(),
        };
        world.after(1.0, PoolEvent::SecondEnds);
        world.schedule_arrivals();
        world
    }

    /// Runs until so many estimates were compared.
    pub fn run(&mut self, estimates: usize) {
        while self.figures.len() < estimates {
            let Some(Reverse((at, _, event))) = self.events.pop() else { return };
            self.now = at;
            match event {
                PoolEvent::Arrive => self.arrive(),
                PoolEvent::End(ticket) => self.end(ticket),
                PoolEvent::Leave(ticket) => self.leave(ticket),
                PoolEvent::Lower(ticket) => self.lower(ticket),
                PoolEvent::SecondEnds => self.end_second(),
            }
        }
    }

    fn moment(&self) -> Timestamp {
        Timestamp::from_micros(self.now)
    }

    fn seconds(&self) -> f64 {
        (self.now - BEGIN) as f64 / 1e6
    }

    fn at(&mut self, moment: i64, event: PoolEvent) {
        self.sequence += 1;
        self.events.push(Reverse((moment, self.sequence, event)));
    }

    fn after(&mut self, seconds: f64, event: PoolEvent) {
        self.at(self.now + micros(seconds), event);
    }

    fn schedule_arrivals(&mut self) {
        let (wait, count) = self.workload.arrivals.next(self.seconds(), &mut self.random);
        self.next_count = count;
        self.after(wait, PoolEvent::Arrive);
    }

    fn arrive(&mut self) {
        for _ in 0..self.next_count {
            let (ask, run) = self.workload.task(self.seconds(), &mut self.random);
            let ticket = Ticket(self.next_ticket);
            self.next_ticket += 1;
            let waits_for = match ask {
                RunRequest::Timed(wish) => self.classes.rules().class_for(wish),
                _ => 0,
            };
            let task = PoolTask { ask, run, waits_for, given: None, running: None };
            self.tasks.insert(ticket, task);
            let decisions = self.classes.arrive(self.moment(), ticket, ask);
            self.apply(decisions);
            if self.tasks.get(&ticket).is_some_and(|task| task.running.is_none()) {
                self.estimate(ticket);
                if self.random.f64() < self.workload.clients.0 {
                    let patience = 60.0 * self.random.f64();
                    self.after(patience, PoolEvent::Leave(ticket));
                }
            }
        }
        self.schedule_arrivals();
    }

    /// Estimates a new task, as a scheduler does.
    fn estimate(&mut self, ticket: Ticket) {
        let now = self.moment();
        let forecast = self.forecast.take().filter(|forecast| !forecast.is_overdue(now));
        let mut forecast = forecast.unwrap_or_else(|| {
            let ending = Span::from_micros(micros(STOPPING.1));
            let mut forecast = self.classes.forecast(now, ending, &self.model);
            for earlier in self.classes.waiting_tickets().filter(|one| *one < ticket) {
                self.classes.add_to_forecast(now, earlier, &mut forecast, &self.model);
            }
            forecast
        });
        let waiting = self.classes.add_to_forecast(now, ticket, &mut forecast, &self.model);
        self.forecast = Some(forecast);
        let likely = waiting.and_then(|waiting| waiting.estimate?.likely);
        if let Some(task) = self.tasks.get_mut(&ticket) {
            task.given = likely.map(|likely| likely.given(now));
        }
    }

    fn apply(&mut self, decisions: Vec<Decision>) {
        if !decisions.is_empty() {
            self.forecast = None;
        }
        for decision in decisions {
            match decision {
                Decision::Start { ticket, class, limit } => self.start(ticket, class, limit),
                Decision::Lower { ticket, class, limit, .. } => self.shorten(ticket, class, limit),
                Decision::Halt { ticket } | Decision::Deny { ticket, .. } => {
                    self.tasks.remove(&ticket);
                }
            }
        }
    }

    fn start(&mut self, ticket: Ticket, class: Option<u8>, limit: Span) {
        let Some(task) = self.tasks.get_mut(&ticket) else { return };
        let limit = limit.as_secs_f64();
        let run = if task.run > limit { limit + STOPPING.0 } else { task.run };
        let end = self.now + micros(run);
        task.running = Some(PoolRun { started: self.now, end, class });
        if let Some(given) = task.given.take() {
            let now = Timestamp::from_micros(self.now);
            let held = self.model.start(now, task.waits_for, given);
            self.figures.add(held, &given.shown, now.since(given.at).as_secs_f64());
        }
        self.at(end, PoolEvent::End(ticket));
        if self.random.f64() < self.workload.clients.1 {
            let wait = self.random.f64();
            self.after(wait, PoolEvent::Lower(ticket));
        }
    }

    fn shorten(&mut self, ticket: Ticket, class: u8, limit: Span) {
        let now = self.now;
        let Some(run) = self.tasks.get_mut(&ticket).and_then(|task| task.running.as_mut()) else {
            return;
        };
        run.class = Some(class);
        let end = (run.started + limit.as_micros()).max(now) + micros(STOPPING.0);
        if end < run.end {
            run.end = end;
            self.at(end, PoolEvent::End(ticket));
        }
    }

    fn end(&mut self, ticket: Ticket) {
        let run = self.tasks.get(&ticket).and_then(|task| task.running);
        let Some(run) = run.filter(|run| run.end == self.now) else { return };
        let Some(task) = self.tasks.remove(&ticket) else { return };
        let kind = match task.ask {
            RunRequest::Timed(_) => TaskKind::Explicit,
            RunRequest::Default => TaskKind::Default,
            RunRequest::Interactive => TaskKind::Interactive,
        };
        let took = Span::from_micros(self.now - run.started);
        self.model.add_run(self.moment(), kind, run.class.unwrap_or(0), took);
        self.remove(ticket);
    }

    /// A waiting client leaves.
    fn leave(&mut self, ticket: Ticket) {
        if self.tasks.get(&ticket).is_some_and(|task| task.running.is_none()) {
            self.tasks.remove(&ticket);
            self.remove(ticket);
        }
    }

    fn remove(&mut self, ticket: Ticket) {
        self.forecast = None;
        let decisions = self.classes.remove(self.moment(), ticket);
        self.apply(decisions);
    }

    /// A client lowers the duration of its running task.
    fn lower(&mut self, ticket: Ticket) {
        let lowered = self.classes.lower(self.moment(), ticket, Span::from_secs(2));
        self.apply(lowered.unwrap_or_default());
    }

    fn end_second(&mut self) {
        let backends = self.workload.backends(self.seconds());
        if backends != self.classes.backends() {
            self.forecast = None;
            let decisions = self.classes.set_backends(self.moment(), backends);
            self.apply(decisions);
        }
        self.after(1.0, PoolEvent::SecondEnds);
    }
}

fn micros(seconds: f64) -> i64 {
    (seconds * 1e6) as i64
}
