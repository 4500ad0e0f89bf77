//! The state and the decisions of the scheduler: events go in, actions come out.
//!
//! It has no channel, no clock and no backend by name: it is driven by a task of the same process or by a scheduler
//! that reaches the other parts through Redis.

use std::collections::HashMap;
use std::time::Duration;

use taskyard_core::classes::estimate::StartModel;
use taskyard_core::classes::{
    Classes, Decision, Denial, LowerError, QueueForecast, Resumed, RunRequest, TaskKind, Ticket,
};
use taskyard_core::{Span, Timestamp};

use super::counts::{Counts, StopDelays};
use super::estimates::{FirstEstimate, LastEstimate};
use crate::config::{Config, ConfigError};
use crate::protocol::QueuePosition;

/// How often a task may be requeued after a lost run.
pub(crate) const REQUEUES_MAX: u32 = 2;

/// Everything the scheduler knows about tasks.
#[derive(Debug)]
pub struct SchedulerState {
    pub(super) classes: Classes,
    pub(super) tasks: HashMap<Ticket, KnownTask>,
    pub(super) stop_delays: StopDelays,
    /// Run times of recent tasks, and how well estimates held.
    pub(super) model: StartModel,
    pub(super) counts: Counts,
    /// When the estimates are updated next, and when they were updated last.
    pub(super) next_estimates: Option<Timestamp>,
    pub(super) last_estimates: Option<Timestamp>,
    /// The simulated future for estimates of new tasks; valid until anything but a new arrival happens.
    pub(super) outlook: Option<QueueForecast>,
    pub(super) paused: bool,
    pub(super) seed: u64,
    next_ticket: u64,
    next_attempt: u64,
    denial_pause: Span,
    last_denial: Option<Timestamp>,
}

/// What is to be done now, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Run it on a free backend.
    Start {
        /// The task.
        ticket: Ticket,
        /// A number that identifies this run.
        attempt: u64,
        /// Time limit; none for an interactive task.
        limit: Option<Duration>,
        /// Whether it may run again if it is killed before its client has seen output.
        may_rerun: bool,
    },
    /// The new time limit, counted from its start.
    Limit(Ticket, Duration),
    /// It has to end now; its backend counts as free at once.
    Halt(Ticket, String),
    /// It is denied, for this reason.
    Deny(Ticket, String),
    /// Its backend is gone and it does not run again.
    Lost(Ticket),
    /// Its position in the queue.
    Estimate(Ticket, QueuePosition),
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunOutcome {
    /// The program ended or was stopped, and its client knows how.
    Done,
    /// The program or its backend was killed.
    Lost,
    /// The program cannot be killed: the backend is out of service.
    Stuck,
}

/// The end of a run; its backend is free again.
#[derive(Clone, Copy, Debug)]
pub struct FinishedRun {
    /// The task that held it.
    pub ticket: Ticket,
    /// The run.
    pub attempt: u64,
    /// How it ended.
    pub outcome: RunOutcome,
    /// Whether the client has seen any output of it.
    pub seen: bool,
    /// How long the backend was held.
    pub took: Duration,
    /// How long the task held the backend beyond its time limit, if it used that up.
    pub stopping: Option<Duration>,
}

/// What is known about one task.
#[derive(Debug)]
pub(super) struct KnownTask {
    pub ask: RunRequest,
    /// The class whose limits apply while it waits.
    pub class: usize,
    pub arrived: Timestamp,
    pub last_estimate: Option<LastEstimate>,
    /// The first estimate it received.
    pub first_estimate: Option<FirstEstimate>,
    running: Option<CurrentRun>,
    requeues: u32,
    /// Whether its client is gone.
    left: bool,
}

#[derive(Debug)]
struct CurrentRun {
    attempt: u64,
    class: Option<u8>,
}

impl SchedulerState {
    /// A pool without backends.
    pub fn new(config: &Config) -> Result<Self, ConfigError> {
        let rules = config.rules()?;
        let seed = config.seed.unwrap_or_else(random_seed);
        tracing::info!(seed, "scheduler started");
        let denial_pause = Duration::try_from_secs_f64(config.denial_pause_seconds);
        Ok(SchedulerState {
            counts: Counts::new(rules.classes().len()),
            classes: Classes::new(rules, seed),
            tasks: HashMap::new(),
            stop_delays: StopDelays::new(config.kill_after()),
            model: StartModel::default(),
            next_estimates: None,
            last_estimates: None,
            outlook: None,
            paused: false,
            seed,
            next_ticket: 1,
            next_attempt: 1,
            denial_pause: denial_pause.unwrap_or_default().into(),
            last_denial: None,
        })
    }

    /// The number of the next task.
    pub fn ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        Ticket(self.next_ticket - 1)
    }

    /// Whether the task waits or runs.
    pub fn knows(&self, ticket: Ticket) -> bool {
        self.tasks.contains_key(&ticket)
    }

    /// Adds a running task that another scheduler started. Returns the number of its run here.
    pub fn restore_running(
        &mut self,
        now: Timestamp,
        ticket: Ticket,
        task: Resumed,
        requeues: u32,
    ) -> u64 {
        let attempt = self.next_attempt;
        self.next_attempt += 1;
        let class = (task.kind != TaskKind::Interactive).then_some(task.class);
        let ask = match task.kind {
            TaskKind::Explicit => RunRequest::Timed(task.wish),
            TaskKind::Default => RunRequest::Default,
            TaskKind::Interactive => RunRequest::Interactive,
        };
        self.classes.resume(now, ticket, task);
        self.outlook = None;
        let running = Some(CurrentRun { attempt, class });
        let arrived = task.started;
        let task =
            KnownTask { running, requeues, ..KnownTask::new(ask, self.class_of(ask), arrived) };
        self.tasks.insert(ticket, task);
        attempt
    }

    /// Adds a task that has been waiting since `arrived` under another scheduler. While paused this starts nothing.
    pub fn restore_waiting(
        &mut self,
        now: Timestamp,
        ticket: Ticket,
        (ask, arrived): (RunRequest, Timestamp),
        requeues: u32,
    ) -> Vec<Action> {
        let task = KnownTask { requeues, ..KnownTask::new(ask, self.class_of(ask), arrived) };
        self.tasks.insert(ticket, task);
        let decisions = self.classes.arrive(now, ticket, ask);
        self.actions(now, decisions)
    }

    /// The class of a running task; none for an interactive one.
    pub fn current_class(&self, ticket: Ticket) -> Option<u8> {
        self.tasks.get(&ticket)?.running.as_ref()?.class
    }

    /// The kind of a running task.
    pub fn kind(&self, ticket: Ticket) -> Option<TaskKind> {
        self.classes.kind(ticket)
    }

    /// Continues the counts of an earlier state.
    pub fn restore_counts(&mut self, counts: Counts) {
        if counts.classes.len() == self.counts.classes.len() {
            self.counts = counts;
        }
    }

    fn class_of(&self, ask: RunRequest) -> usize {
        match ask {
            RunRequest::Timed(requested) => self.classes.rules().class_for(requested).into(),
            RunRequest::Default | RunRequest::Interactive => 0,
        }
    }

    /// Submits a task.
    pub fn submit(&mut self, now: Timestamp, ticket: Ticket, ask: RunRequest) -> Vec<Action> {
        self.counts.arrived += 1;
        if ask == RunRequest::Interactive && self.denies_without_lowering(now) {
            self.counts.deny(None);
            return vec![Action::Deny(ticket, Denial::Busy.to_string())];
        }
        self.tasks.insert(ticket, KnownTask::new(ask, self.class_of(ask), now));
        let decisions = self.classes.arrive(now, ticket, ask);
        if decisions.is_empty() {
            return self.estimate_new(now, ticket);
        }
        self.actions(now, decisions)
    }

    /// Whether an interactive task is denied without lowering a default task: a client that retries in a loop would
    /// end every default task.
    fn denies_without_lowering(&self, now: Timestamp) -> bool {
        let busy = self.classes.load().is_full(0);
        busy && self.last_denial.is_some_and(|last| now < last + self.denial_pause)
    }

    /// A client left. A running task is stopped by its backend, which then reports the end of the run.
    pub fn client_left(&mut self, now: Timestamp, ticket: Ticket) -> Vec<Action> {
        let Some(task) = self.tasks.get_mut(&ticket) else { return Vec::new() };
        if task.running.is_some() {
            task.left = true;
            return Vec::new();
        }
        self.tasks.remove(&ticket);
        self.counts.left += 1;
        let decisions = self.classes.remove(now, ticket);
        self.actions(now, decisions)
    }

    /// A client lowers the duration of its task.
    pub fn lower(
        &mut self,
        now: Timestamp,
        ticket: Ticket,
        requested: Span,
    ) -> Result<Vec<Action>, LowerError> {
        let decisions = self.classes.lower(now, ticket, requested)?;
        if let Some(task) = self.tasks.get_mut(&ticket)
            && let RunRequest::Timed(_) = task.ask
        {
            task.class = self.classes.rules().class_for(requested).into();
        }
        Ok(self.actions(now, decisions))
    }

    /// Sets the number of live backends.
    pub fn set_backends(&mut self, now: Timestamp, backends: u32) -> Vec<Action> {
        let decisions = self.classes.set_backends(now, backends);
        self.actions(now, decisions)
    }

    /// While paused nothing starts.
    pub fn set_paused(&mut self, now: Timestamp, paused: bool) -> Vec<Action> {
        self.paused = paused;
        let decisions = self.classes.set_paused(now, paused);
        self.actions(now, decisions)
    }

    /// When [`SchedulerState::run_timers`] has to be called next.
    pub fn next_timer(&self) -> Option<Timestamp> {
        [self.next_estimates, self.classes.next_expiry()].into_iter().flatten().min()
    }

    /// Denies tasks that have waited too long, and updates estimates if that is due.
    pub fn run_timers(&mut self, now: Timestamp) -> Vec<Action> {
        let decisions = self.classes.expire(now);
        let mut actions = self.actions(now, decisions);
        if self.next_estimates.is_some_and(|next| next <= now) {
            actions.extend(self.update_estimates(now));
        }
        actions
    }

    /// A run ended. A run that is not the task's current one is ignored.
    pub fn finish_run(&mut self, now: Timestamp, finished: FinishedRun) -> Vec<Action> {
        if let Some(stopping) = finished.stopping {
            self.stop_delays.note(stopping);
        }
        let Some(task) = self.tasks.get_mut(&finished.ticket) else { return Vec::new() };
        let Some(run) = task.running.take_if(|run| run.attempt == finished.attempt) else {
            return Vec::new();
        };
        if let Some(class) = run.class.filter(|_| finished.outcome == RunOutcome::Done) {
            let counts = &mut self.counts.classes[usize::from(class)];
            counts.ended += 1;
            counts.ran_seconds += finished.took.as_secs_f64();
            let kind = kind_of(task.ask);
            self.model.add_run(now, kind, class, finished.took.into());
        }
        if finished.outcome == RunOutcome::Lost && !task.left && !finished.seen && task.may_rerun()
        {
            task.requeues += 1;
            self.counts.requeued += 1;
            let decisions = self.classes.put_back(now, finished.ticket);
            return self.actions(now, decisions);
        }
        let lost = finished.outcome != RunOutcome::Done && !task.left;
        self.tasks.remove(&finished.ticket);
        let mut actions = Vec::new();
        if lost {
            self.counts.lost += 1;
            actions.push(Action::Lost(finished.ticket));
        }
        let decisions = self.classes.remove(now, finished.ticket);
        actions.extend(self.actions(now, decisions));
        actions
    }

    /// No backend has claimed a task that was to start: it waits again at its old position.
    pub fn requeue_unclaimed(&mut self, now: Timestamp, ticket: Ticket) -> Vec<Action> {
        let run = self.tasks.get_mut(&ticket).and_then(|task| task.running.take());
        if run.is_none() {
            return Vec::new();
        }
        let decisions = self.classes.put_back(now, ticket);
        self.actions(now, decisions)
    }

    fn actions(&mut self, now: Timestamp, decisions: Vec<Decision>) -> Vec<Action> {
        // Every decision invalidates the simulated future.
        self.outlook = None;
        let action = |decision| {
            tracing::debug!(?decision, "decided");
            match decision {
                Decision::Start { ticket, class, limit } => self.start(now, ticket, class, limit),
                Decision::Lower { ticket, class, limit, stop } => {
                    let run = self.tasks.get_mut(&ticket).and_then(|task| task.running.as_mut());
                    // One that must end holds its backend only, also for the next leader.
                    let counted = if stop { 0 } else { class };
                    let before = run.and_then(|run| run.class.replace(counted));
                    self.counts.lower(before.filter(|before| *before != class));
                    Some(Action::Limit(ticket, limit.into()))
                }
                Decision::Halt { ticket } => {
                    self.counts.halted += 1;
                    Some(Action::Halt(ticket, "halted: a waiting task needs its backend".into()))
                }
                Decision::Deny { ticket, why } => {
                    self.last_denial = Some(now);
                    let task = self.tasks.remove(&ticket)?;
                    let class = (task.ask != RunRequest::Interactive).then_some(task.class);
                    self.counts.deny(class);
                    Some(Action::Deny(ticket, why.to_string()))
                }
            }
        };
        decisions.into_iter().filter_map(action).collect()
    }

    fn start(
        &mut self,
        now: Timestamp,
        ticket: Ticket,
        class: Option<u8>,
        limit: Span,
    ) -> Option<Action> {
        let attempt = self.next_attempt;
        self.next_attempt += 1;
        let task = self.tasks.get_mut(&ticket)?;
        task.running = Some(CurrentRun { attempt, class });
        task.last_estimate = None;
        match class {
            Some(class) => {
                self.counts.classes[usize::from(class)].started += 1;
                let counts = &mut self.counts.classes[task.class];
                counts.admitted += 1;
                counts.waited_seconds += now.since(task.arrived).as_secs_f64();
            }
            None => self.counts.interactive += 1,
        }
        if let Some(first_estimate) = task.first_estimate.take() {
            let error = first_estimate.compare(now, task.class, &mut self.model);
            self.counts.note_estimate(task.class, error);
        }
        let limit = (limit < Span::FOREVER).then(|| limit.into());
        let may_rerun = task.may_rerun();
        Some(Action::Start { ticket, attempt, limit, may_rerun })
    }
}

impl KnownTask {
    fn new(ask: RunRequest, class: usize, arrived: Timestamp) -> Self {
        let (last_estimate, first_estimate, running) = (None, None, None);
        KnownTask {
            ask,
            class,
            arrived,
            last_estimate,
            first_estimate,
            running,
            requeues: 0,
            left: false,
        }
    }

    fn may_rerun(&self) -> bool {
        self.requeues < REQUEUES_MAX && self.ask != RunRequest::Interactive
    }
}

fn kind_of(ask: RunRequest) -> TaskKind {
    match ask {
        RunRequest::Timed(_) => TaskKind::Explicit,
        RunRequest::Default => TaskKind::Default,
        RunRequest::Interactive => TaskKind::Interactive,
    }
}

fn random_seed() -> u64 {
    let mut bytes = [0; 8];
    match getrandom::fill(&mut bytes) {
        Ok(()) => u64::from_le_bytes(bytes),
        // A fixed seed only makes the choices predictable.
        Err(_) => 0,
    }
}
