//! What the scheduler knows and decides: events go in, orders come out.
//!
//! No channel, no clock and no backend by name: whoever carries the events in and the orders out may be
//! a task of the same process or a scheduler that speaks to others over a database.

use std::collections::HashMap;
use std::time::Duration;

use taskyard_core::classes::{
    Ask, Classes, Decision, Denial, Kind, LowerError, Outlook, Resumed, Ticket,
};
use taskyard_core::estimate::Means;
use taskyard_core::{Span, Timestamp};

use super::counts::{Counts, Endings};
use super::telling::{Promise, Told};
use crate::config::{Config, ConfigError};
use crate::protocol::QueueNews;

/// How often a task may take its place in the queue again.
pub(crate) const PUT_BACK_MAX: u32 = 2;

/// What the scheduler knows of all tasks.
#[derive(Debug)]
pub struct Desk {
    pub(super) classes: Classes,
    pub(super) tasks: HashMap<Ticket, Task>,
    pub(super) endings: Endings,
    pub(super) means: Means,
    pub(super) counts: Counts,
    /// When those who wait are looked at next, and when they were last.
    pub(super) next_look: Option<Timestamp>,
    pub(super) last_look: Option<Timestamp>,
    /// What those who wait can foresee, until anything else happens than that more of them come.
    pub(super) outlook: Option<Outlook>,
    pub(super) paused: bool,
    pub(super) seed: u64,
    next_ticket: u64,
    next_attempt: u64,
    denial_pause: Span,
    last_denial: Option<Timestamp>,
}

/// What is to be done now, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Order {
    /// Run it on a free backend.
    Start {
        /// Which task.
        ticket: Ticket,
        /// A number that no other run has.
        attempt: u64,
        /// How long it may run; nothing for an interactive one.
        limit: Option<Duration>,
        /// Whether it may run again if it is killed before its client saw anything.
        again: bool,
    },
    /// It may run only so long, counted from its start.
    Limit(Ticket, Duration),
    /// It has to end now; its backend is considered free at once.
    Halt(Ticket, String),
    /// It does not run, and this is why.
    Deny(Ticket, String),
    /// Its backend is gone and it does not run again.
    Lost(Ticket),
    /// Where it stands in the queue.
    News(Ticket, QueueNews),
}

/// How a task's time on a backend ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The program ended or was stopped, and its client knows how.
    Done,
    /// The program or its backend was killed.
    Lost,
    /// The program cannot be killed: the backend is of no use any more.
    Stuck,
}

/// A backend is free again.
#[derive(Clone, Copy, Debug)]
pub struct Freed {
    /// The task that held it.
    pub ticket: Ticket,
    /// Which run of the task.
    pub attempt: u64,
    /// How the run ended.
    pub ended: Ended,
    /// Whether the client has seen anything of it.
    pub seen: bool,
    /// How long the backend was held.
    pub took: Duration,
    /// How much longer than its time the task held the backend, if it used that up.
    pub stopping: Option<Duration>,
}

/// What is known of one task.
#[derive(Debug)]
pub(super) struct Task {
    pub ask: Ask,
    /// The class whose limits hold it back.
    pub class: usize,
    pub arrived: Timestamp,
    pub told: Option<Told>,
    /// What it was told first.
    pub promised: Option<Promise>,
    running: Option<Run>,
    put_back: u32,
    /// Whether its client is gone.
    left: bool,
}

#[derive(Debug)]
struct Run {
    attempt: u64,
    class: Option<u8>,
}

impl Desk {
    /// A pool without backends.
    pub fn new(config: &Config) -> Result<Self, ConfigError> {
        let rules = config.rules()?;
        let seed = config.seed.unwrap_or_else(random_seed);
        tracing::info!(seed, "the scheduler starts");
        let denial_pause = Duration::try_from_secs_f64(config.denial_pause_seconds);
        Ok(Desk {
            counts: Counts::new(rules.classes().len()),
            classes: Classes::new(rules, seed),
            tasks: HashMap::new(),
            endings: Endings::new(config.kill_after()),
            means: Means::default(),
            next_look: None,
            last_look: None,
            outlook: None,
            paused: false,
            seed,
            next_ticket: 1,
            next_attempt: 1,
            denial_pause: denial_pause.unwrap_or_default().into(),
            last_denial: None,
        })
    }

    /// A number for a task that arrives next.
    pub fn ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        Ticket(self.next_ticket - 1)
    }

    /// Whether the task waits or runs.
    pub fn knows(&self, ticket: Ticket) -> bool {
        self.tasks.contains_key(&ticket)
    }

    /// A task runs that another scheduler started. Answers the number of its run here.
    pub fn resume(&mut self, now: Timestamp, ticket: Ticket, task: Resumed, put_back: u32) -> u64 {
        let attempt = self.next_attempt;
        self.next_attempt += 1;
        let class = (task.kind != Kind::Interactive).then_some(task.class);
        let ask = match task.kind {
            Kind::Explicit => Ask::Timed(task.wish),
            Kind::Default => Ask::Default,
            Kind::Interactive => Ask::Interactive,
        };
        self.classes.resume(now, ticket, task);
        self.outlook = None;
        let running = Some(Run { attempt, class });
        let arrived = task.started;
        let task = Task { running, put_back, ..Task::new(ask, self.class_of(ask), arrived) };
        self.tasks.insert(ticket, task);
        attempt
    }

    /// A task waits that another scheduler knew, since that moment. While paused this starts nothing and tells nobody.
    pub fn readmit(
        &mut self,
        now: Timestamp,
        ticket: Ticket,
        (ask, arrived): (Ask, Timestamp),
        put_back: u32,
    ) -> Vec<Order> {
        let task = Task { put_back, ..Task::new(ask, self.class_of(ask), arrived) };
        self.tasks.insert(ticket, task);
        let decisions = self.classes.arrive(now, ticket, ask);
        self.orders(now, decisions)
    }

    /// The class that a running task counts in; nothing for an interactive one.
    pub fn class_now(&self, ticket: Ticket) -> Option<u8> {
        self.tasks.get(&ticket)?.running.as_ref()?.class
    }

    /// What a running task is.
    pub fn kind(&self, ticket: Ticket) -> Option<Kind> {
        self.classes.kind(ticket)
    }

    /// What happened before this desk was here counts on.
    pub fn go_on_counting(&mut self, counts: Counts) {
        if counts.classes.len() == self.counts.classes.len() {
            self.counts = counts;
        }
    }

    fn class_of(&self, ask: Ask) -> usize {
        match ask {
            Ask::Timed(wish) => self.classes.rules().class_for(wish).into(),
            Ask::Default | Ask::Interactive => 0,
        }
    }

    /// A task arrives.
    pub fn arrive(&mut self, now: Timestamp, ticket: Ticket, ask: Ask) -> Vec<Order> {
        self.counts.arrived += 1;
        if ask == Ask::Interactive && self.denies_quietly(now) {
            self.counts.deny(None);
            return vec![Order::Deny(ticket, Denial::Busy.to_string())];
        }
        self.tasks.insert(ticket, Task::new(ask, self.class_of(ask), now));
        let decisions = self.classes.arrive(now, ticket, ask);
        if decisions.is_empty() {
            return self.greet(now, ticket);
        }
        self.orders(now, decisions)
    }

    /// Whether an interactive task is denied without lowering anybody: a client that tries again
    /// and again would end every default task.
    fn denies_quietly(&self, now: Timestamp) -> bool {
        let busy = self.classes.load().is_full(0);
        busy && self.last_denial.is_some_and(|last| now < last + self.denial_pause)
    }

    /// A client left. A task that runs is stopped by its backend, which is free then.
    pub fn leave(&mut self, now: Timestamp, ticket: Ticket) -> Vec<Order> {
        let Some(task) = self.tasks.get_mut(&ticket) else { return Vec::new() };
        if task.running.is_some() {
            task.left = true;
            return Vec::new();
        }
        self.tasks.remove(&ticket);
        self.counts.left += 1;
        let decisions = self.classes.remove(now, ticket);
        self.orders(now, decisions)
    }

    /// A client wants less time than it asked for.
    pub fn lower(
        &mut self,
        now: Timestamp,
        ticket: Ticket,
        wish: Span,
    ) -> Result<Vec<Order>, LowerError> {
        let decisions = self.classes.lower(now, ticket, wish)?;
        if let Some(task) = self.tasks.get_mut(&ticket)
            && let Ask::Timed(_) = task.ask
        {
            task.class = self.classes.rules().class_for(wish).into();
        }
        Ok(self.orders(now, decisions))
    }

    /// There are so many live backends now.
    pub fn set_backends(&mut self, now: Timestamp, backends: u32) -> Vec<Order> {
        let decisions = self.classes.set_backends(now, backends);
        self.orders(now, decisions)
    }

    /// While paused nothing starts.
    pub fn set_paused(&mut self, now: Timestamp, paused: bool) -> Vec<Order> {
        self.paused = paused;
        let decisions = self.classes.set_paused(now, paused);
        self.orders(now, decisions)
    }

    /// When [`Desk::look`] wants to be called next.
    pub fn next_look(&self) -> Option<Timestamp> {
        [self.next_look, self.classes.next_expiry()].into_iter().flatten().min()
    }

    /// Turns away who has waited too long, and tells the others what is news to them.
    pub fn look(&mut self, now: Timestamp) -> Vec<Order> {
        let decisions = self.classes.expire(now);
        let mut orders = self.orders(now, decisions);
        if self.next_look.is_some_and(|next| next <= now) {
            orders.extend(self.tell(now));
        }
        orders
    }

    /// A backend is free again. One whose run is not the task's current one changes nothing.
    pub fn free(&mut self, now: Timestamp, freed: Freed) -> Vec<Order> {
        if let Some(stopping) = freed.stopping {
            self.endings.note(stopping);
        }
        let Some(task) = self.tasks.get_mut(&freed.ticket) else { return Vec::new() };
        let Some(run) = task.running.take_if(|run| run.attempt == freed.attempt) else {
            return Vec::new();
        };
        if let Some(class) = run.class.filter(|_| freed.ended == Ended::Done) {
            let counts = &mut self.counts.classes[usize::from(class)];
            counts.ended += 1;
            counts.ran_seconds += freed.took.as_secs_f64();
            self.means.note(class, freed.took.into());
        }
        if freed.ended == Ended::Lost && !task.left && !freed.seen && task.may_run_again() {
            task.put_back += 1;
            self.counts.put_back += 1;
            let decisions = self.classes.put_back(now, freed.ticket);
            return self.orders(now, decisions);
        }
        let lost = freed.ended != Ended::Done && !task.left;
        self.tasks.remove(&freed.ticket);
        let mut orders = Vec::new();
        if lost {
            self.counts.lost += 1;
            orders.push(Order::Lost(freed.ticket));
        }
        let decisions = self.classes.remove(now, freed.ticket);
        orders.extend(self.orders(now, decisions));
        orders
    }

    /// No backend has taken a task that was to start, and none is left to: it waits in its place again.
    pub fn take_back(&mut self, now: Timestamp, ticket: Ticket) -> Vec<Order> {
        let run = self.tasks.get_mut(&ticket).and_then(|task| task.running.take());
        if run.is_none() {
            return Vec::new();
        }
        let decisions = self.classes.put_back(now, ticket);
        self.orders(now, decisions)
    }

    fn orders(&mut self, now: Timestamp, decisions: Vec<Decision>) -> Vec<Order> {
        // Whatever was asked, somebody ended, left, or has another limit.
        self.outlook = None;
        let order = |decision| {
            tracing::debug!(?decision, "decided");
            match decision {
                Decision::Start { ticket, class, limit } => self.start(now, ticket, class, limit),
                Decision::Lower { ticket, class, limit, .. } => {
                    let run = self.tasks.get_mut(&ticket).and_then(|task| task.running.as_mut());
                    let before = run.and_then(|run| run.class.replace(class));
                    self.counts.lower(before.filter(|before| *before != class));
                    Some(Order::Limit(ticket, limit.into()))
                }
                Decision::Halt { ticket } => {
                    self.counts.halted += 1;
                    Some(Order::Halt(ticket, "halted: its place is needed".into()))
                }
                Decision::Deny { ticket, why } => {
                    self.last_denial = Some(now);
                    let task = self.tasks.remove(&ticket)?;
                    let class = (task.ask != Ask::Interactive).then_some(task.class);
                    self.counts.deny(class);
                    Some(Order::Deny(ticket, why.to_string()))
                }
            }
        };
        decisions.into_iter().filter_map(order).collect()
    }

    fn start(
        &mut self,
        now: Timestamp,
        ticket: Ticket,
        class: Option<u8>,
        limit: Span,
    ) -> Option<Order> {
        let attempt = self.next_attempt;
        self.next_attempt += 1;
        let task = self.tasks.get_mut(&ticket)?;
        task.running = Some(Run { attempt, class });
        task.told = None;
        match class {
            Some(class) => {
                self.counts.classes[usize::from(class)].started += 1;
                let counts = &mut self.counts.classes[task.class];
                counts.admitted += 1;
                counts.waited_seconds += now.since(task.arrived).as_secs_f64();
            }
            None => self.counts.interactive += 1,
        }
        if let Some(promised) = task.promised.take() {
            self.counts.calibrate(task.class, promised.error(now));
        }
        let limit = (limit < Span::FOREVER).then(|| limit.into());
        let again = task.may_run_again();
        Some(Order::Start { ticket, attempt, limit, again })
    }
}

impl Task {
    fn new(ask: Ask, class: usize, arrived: Timestamp) -> Self {
        let (told, promised, running) = (None, None, None);
        Task { ask, class, arrived, told, promised, running, put_back: 0, left: false }
    }

    fn may_run_again(&self) -> bool {
        self.put_back < PUT_BACK_MAX && self.ask != Ask::Interactive
    }
}

fn random_seed() -> u64 {
    let mut bytes = [0; 8];
    match getrandom::fill(&mut bytes) {
        Ok(()) => u64::from_le_bytes(bytes),
        // A fixed seed is still a good one: it only makes choices foreseeable.
        Err(_) => 0,
    }
}
