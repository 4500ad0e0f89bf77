//! The scheduler's task: takes events one by one, asks the core, does what it decides.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use taskyard_core::classes::{Ask, Classes, Decision, Ticket};
use taskyard_core::estimate::Means;
use taskyard_core::{Span, Timestamp};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::allocation::{Allocation, Control, Ended, Freed};
use super::counts::{Counts, Endings};
use super::places::Places;
use super::telling::Told;
use super::{ClassStatus, Client, Event, Move, Scheduler, Seat, Status};
use crate::clock::Clock;
use crate::config::{Config, ConfigError};

/// How often a task may take its place in the queue again.
const PUT_BACK_MAX: u32 = 2;
/// Most events between two looks at the time.
const EVENTS_AT_ONCE: usize = 256;

/// The scheduler's task.
pub(super) struct Actor {
    pub(super) clock: Clock,
    pub(super) classes: Classes,
    pub(super) tasks: HashMap<Ticket, Task>,
    pub(super) endings: Endings,
    pub(super) means: Means,
    pub(super) counts: Counts,
    pub(super) next_telling: Option<Instant>,
    pub(super) last_telling: Option<Instant>,
    places: Places,
    events: mpsc::WeakUnboundedSender<Event>,
    next_ticket: u64,
    next_attempt: u64,
    seed: u64,
    paused: bool,
    denial_pause: Duration,
    last_denial: Option<Instant>,
}

/// What is known of one task.
pub(super) struct Task {
    pub ask: Ask,
    pub visible: Arc<AtomicBool>,
    pub client: Client,
    pub arrived: Timestamp,
    pub told: Option<Told>,
    /// The moment by which it was first said to start.
    pub promised: Option<Timestamp>,
    running: Option<Run>,
    put_back: u32,
    /// Whether its client is gone.
    left: bool,
}

struct Run {
    control: mpsc::UnboundedSender<Control>,
    attempt: u64,
    class: Option<u8>,
    backend: usize,
}

impl Actor {
    pub fn new(
        config: &Config,
        events: mpsc::WeakUnboundedSender<Event>,
    ) -> Result<Self, ConfigError> {
        let rules = config.rules()?;
        let seed = config.seed.unwrap_or_else(random_seed);
        tracing::info!(seed, "the scheduler starts");
        let denial_pause = Duration::try_from_secs_f64(config.denial_pause_seconds);
        Ok(Actor {
            clock: Clock::start(),
            counts: Counts::new(rules.classes().len()),
            classes: Classes::new(rules, seed),
            tasks: HashMap::new(),
            endings: Endings::new(config.kill_after()),
            means: Means::default(),
            next_telling: None,
            last_telling: None,
            places: Places::default(),
            events,
            next_ticket: 1,
            next_attempt: 1,
            seed,
            paused: false,
            denial_pause: denial_pause.unwrap_or_default(),
            last_denial: None,
        })
    }

    pub async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<Event>) {
        let mut events = Vec::new();
        loop {
            let wake = self.next_telling.unwrap_or_else(|| Instant::now() + FAR);
            tokio::select! {
                count = inbox.recv_many(&mut events, EVENTS_AT_ONCE) => {
                    if count == 0 {
                        return;
                    }
                    for event in events.drain(..) {
                        if matches!(event, Event::Stop) {
                            return;
                        }
                        self.handle(event);
                    }
                    self.plan_telling();
                }
                () = sleep_until(wake) => self.tell(),
            }
        }
    }

    fn handle(&mut self, event: Event) {
        let now = self.clock.now();
        match event {
            Event::Arrive { ask, visible, client, reply } => {
                let Some(events) = self.events.upgrade() else { return };
                let ticket = Ticket(self.next_ticket);
                self.next_ticket += 1;
                // A seat that does not reach its client is dropped, and the task leaves.
                let seat = Seat { ticket, scheduler: Scheduler { events } };
                if reply.send(seat).is_ok() {
                    self.arrive(now, ticket, ask, visible, client);
                }
            }
            Event::Left(ticket) => self.leave(now, ticket),
            Event::Lower { ticket, wish, reply } => {
                let lowered = self.classes.lower(now, ticket, wish);
                let _ = reply.send(lowered.map(|decisions| self.apply(now, decisions)));
            }
            Event::Freed(freed) => self.free(now, freed),
            Event::Backend { id, alive, done } => {
                self.set_backend(now, id, alive);
                let _ = done.send(());
            }
            Event::Pause { paused, done } => {
                self.paused = paused;
                let decisions = self.classes.set_paused(now, paused);
                self.apply(now, decisions);
                let _ = done.send(());
            }
            Event::Status(reply) => drop(reply.send(self.status())),
            // The loop ends before this is asked.
            Event::Stop => {}
        }
    }

    fn arrive(
        &mut self,
        now: Timestamp,
        ticket: Ticket,
        ask: Ask,
        visible: Arc<AtomicBool>,
        client: Client,
    ) {
        self.counts.arrived += 1;
        if ask == Ask::Interactive && self.denies_quietly() {
            let why = "all backends are busy; try again later";
            let _ = client.moves.send(Move::Deny(why.into()));
            self.counts.denied += 1;
            return;
        }
        let task = Task {
            ask,
            visible,
            client,
            arrived: now,
            told: None,
            promised: None,
            running: None,
            put_back: 0,
            left: false,
        };
        self.tasks.insert(ticket, task);
        let decisions = self.classes.arrive(now, ticket, ask);
        self.apply(now, decisions);
    }

    /// Whether an interactive task is denied without lowering anybody: a client that tries again
    /// and again would end every default task.
    fn denies_quietly(&self) -> bool {
        let busy = self.classes.load().is_full(0);
        busy && self.last_denial.is_some_and(|last| last.elapsed() < self.denial_pause)
    }

    fn leave(&mut self, now: Timestamp, ticket: Ticket) {
        let Some(task) = self.tasks.get_mut(&ticket) else { return };
        if task.running.is_some() {
            // Its backend stops the program and is free then.
            task.left = true;
            return;
        }
        self.tasks.remove(&ticket);
        self.counts.left += 1;
        let decisions = self.classes.remove(now, ticket);
        self.apply(now, decisions);
    }

    fn set_backend(&mut self, now: Timestamp, id: usize, alive: bool) {
        self.places.set(id, alive);
        let decisions = self.classes.set_backends(now, self.places.alive());
        self.apply(now, decisions);
    }

    fn free(&mut self, now: Timestamp, freed: Freed) {
        self.places.free(freed.backend, freed.attempt);
        if let Some(stopping) = freed.stopping {
            self.endings.note(stopping);
        }
        if freed.ended == Ended::Stuck {
            tracing::error!(backend = freed.backend, "a program cannot be killed");
            self.set_backend(now, freed.backend, false);
        }
        let current = |run: &Run| run.attempt == freed.attempt;
        let Some(task) = self.tasks.get_mut(&freed.ticket) else { return };
        let Some(run) = task.running.take_if(|run| current(run)) else { return };
        if let Some(class) = run.class.filter(|_| freed.ended == Ended::Done) {
            let counts = &mut self.counts.classes[usize::from(class)];
            counts.ended += 1;
            counts.ran_seconds += freed.took.as_secs_f64();
            self.means.note(class, freed.took.into());
        }
        let seen = task.visible.load(Ordering::Acquire);
        let again = freed.ended == Ended::Lost
            && !(task.left || seen || task.put_back >= PUT_BACK_MAX)
            && task.ask != Ask::Interactive;
        let decisions = if again {
            task.put_back += 1;
            self.counts.put_back += 1;
            self.classes.put_back(now, freed.ticket)
        } else {
            self.forget(now, freed)
        };
        self.apply(now, decisions);
    }

    fn forget(&mut self, now: Timestamp, freed: Freed) -> Vec<Decision> {
        if let Some(task) = self.tasks.remove(&freed.ticket)
            && freed.ended != Ended::Done
            && !task.left
        {
            self.counts.lost += 1;
            let _ = task.client.moves.send(Move::Lost);
        }
        self.classes.remove(now, freed.ticket)
    }

    fn apply(&mut self, now: Timestamp, decisions: Vec<Decision>) {
        for decision in decisions {
            tracing::debug!(?decision, "decided");
            match decision {
                Decision::Start { ticket, class, limit } => self.start(now, ticket, class, limit),
                Decision::Lower { ticket, limit, .. } => {
                    self.counts.lowered += 1;
                    self.control(ticket, Control::Limit(limit.into()));
                }
                Decision::Halt { ticket } => self.halt(ticket),
                Decision::Deny { ticket, why } => {
                    self.counts.denied += 1;
                    self.last_denial = Some(Instant::now());
                    if let Some(task) = self.tasks.remove(&ticket) {
                        let _ = task.client.moves.send(Move::Deny(why.to_string()));
                    }
                }
            }
        }
    }

    fn start(&mut self, now: Timestamp, ticket: Ticket, class: Option<u8>, limit: Span) {
        let attempt = self.next_attempt;
        self.next_attempt += 1;
        let (Some(task), Some(backend), Some(events)) =
            (self.tasks.get_mut(&ticket), self.places.take(attempt), self.events.upgrade())
        else {
            tracing::error!(%ticket, "there is no backend for a task that may start");
            return;
        };
        let limit = (limit < Span::FOREVER).then(|| limit.into());
        let (allocation, control) = Allocation::new(ticket, backend, attempt, limit, events);
        task.running = Some(Run { control, attempt, class, backend });
        if let Some(promised) = task.promised.take() {
            let (early, late) = (promised.since(now), now.since(promised));
            self.counts.calibrate(early.into(), late.into());
        }
        match class {
            Some(class) => {
                let counts = &mut self.counts.classes[usize::from(class)];
                counts.started += 1;
                counts.waited_seconds += now.since(task.arrived).as_secs_f64();
            }
            None => self.counts.interactive += 1,
        }
        task.told = None;
        // Undelivered, the allocation frees its backend by being dropped.
        let _ = task.client.moves.send(Move::Start(allocation));
    }

    fn halt(&mut self, ticket: Ticket) {
        self.counts.halted += 1;
        self.control(ticket, Control::Halt("halted: its place is needed".into()));
        // The next task may have the backend while the program is still being killed.
        if let Some(run) = self.tasks.get(&ticket).and_then(|task| task.running.as_ref()) {
            self.places.free(run.backend, run.attempt);
        }
    }

    fn control(&self, ticket: Ticket, control: Control) {
        if let Some(run) = self.tasks.get(&ticket).and_then(|task| task.running.as_ref()) {
            let _ = run.control.send(control);
        }
    }

    fn status(&self) -> Status {
        let (load, rules) = (self.classes.load(), self.classes.rules());
        let classes = rules.classes().iter().enumerate().map(|(at, class)| ClassStatus {
            name: class.name.clone(),
            seconds: class.duration.as_secs_f64(),
            running: load.running(at),
            limit: load.limit(at),
            queued: self.classes.queued_in(at),
        });
        let counts = self.counts.clone();
        let told = (counts.told > 0).then(|| counts.kept as f64 / counts.told as f64);
        Status {
            backends: self.classes.backends(),
            running: self.classes.running(),
            queued: self.classes.queued(),
            paused: self.paused,
            seed: self.seed,
            ending_seconds: self.endings.usual_max().as_secs_f64(),
            kept_share: told,
            classes: classes.collect(),
            counts,
            remembered: self.tasks.len(),
            wrong: self.classes.audit().err(),
        }
    }
}

/// A moment at which nothing is to be told: some event comes earlier.
const FAR: Duration = Duration::from_secs(3600);

fn random_seed() -> u64 {
    let mut bytes = [0; 8];
    match getrandom::fill(&mut bytes) {
        Ok(()) => u64::from_le_bytes(bytes),
        // A fixed seed is still a good one: it only makes choices foreseeable.
        Err(_) => 0,
    }
}
