//! The scheduler's task: carries events to the desk, and its orders to clients and backends of this
//! process.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use taskyard_core::Timestamp;
use taskyard_core::classes::{Ask, Ticket};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::allocation::{Allocation, Control, Release, Run};
use super::desk::{Desk, Ended, Freed, Order};
use super::places::Places;
use super::{Client, Event, Move, Scheduler, Seat, SharedDesk};
use crate::clock::Clock;

/// Most events between two looks at the time.
const EVENTS_AT_ONCE: usize = 256;
/// How long to sleep when nothing is to be told: some event comes earlier.
const FAR: Duration = Duration::from_secs(3600);

/// The scheduler's task.
pub(super) struct Actor {
    clock: Clock,
    desk: SharedDesk,
    visitors: HashMap<Ticket, Visitor>,
    places: Places,
    events: mpsc::WeakUnboundedSender<Event>,
}

/// The ways to one task: to its client, and to its program while that runs.
struct Visitor {
    visible: Arc<AtomicBool>,
    client: Client,
    running: Option<Held>,
}

/// The backend that a task holds.
struct Held {
    control: mpsc::UnboundedSender<Control>,
    attempt: u64,
    backend: usize,
}

impl Actor {
    pub fn new(desk: SharedDesk, events: mpsc::WeakUnboundedSender<Event>) -> Self {
        let (visitors, places) = (HashMap::new(), Places::default());
        Actor { clock: Clock::start(), desk, visitors, places, events }
    }

    pub async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<Event>) {
        let mut events = Vec::new();
        loop {
            let next = self.desk().next_look();
            let pause = next.map_or(FAR, |next| next.since(self.clock.now()).into());
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
                    self.desk().plan_look(self.clock.now());
                }
                () = sleep(pause) => self.look(),
            }
        }
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock()
    }

    fn look(&mut self) {
        let begun = Instant::now();
        let orders = self.desk().look(self.clock.now());
        self.desk().note_look(begun.elapsed().into());
        self.carry(orders);
    }

    fn handle(&mut self, event: Event) {
        let now = self.clock.now();
        match event {
            Event::Arrive { ask, visible, client, reply } => {
                let Some(events) = self.events.upgrade() else { return };
                let ticket = self.desk().ticket();
                // A seat that does not reach its client is dropped, and the task leaves.
                let seat = Seat { ticket, scheduler: self.handle_with(events) };
                if reply.send(seat).is_ok() {
                    self.arrive(now, ticket, ask, Visitor { visible, client, running: None });
                }
            }
            Event::Left(ticket) => self.leave(now, ticket),
            Event::Lower { ticket, wish, reply } => {
                let lowered = self.desk().lower(now, ticket, wish);
                let _ = reply.send(lowered.map(|orders| self.carry(orders)));
            }
            Event::Freed { backend, freed } => self.free(now, backend, freed),
            Event::Backend { id, alive, done } => {
                self.set_backend(now, id, alive);
                let _ = done.send(());
            }
            Event::Pause { paused, done } => {
                let orders = self.desk().set_paused(now, paused);
                self.carry(orders);
                let _ = done.send(());
            }
            Event::Status(reply) => drop(reply.send(self.desk().status())),
            // The loop ends before this is asked.
            Event::Stop => {}
        }
    }

    fn handle_with(&self, events: mpsc::UnboundedSender<Event>) -> Scheduler {
        Scheduler { events, desk: self.desk.clone() }
    }

    fn arrive(&mut self, now: Timestamp, ticket: Ticket, ask: Ask, visitor: Visitor) {
        self.visitors.insert(ticket, visitor);
        let orders = self.desk().arrive(now, ticket, ask);
        self.carry(orders);
    }

    fn leave(&mut self, now: Timestamp, ticket: Ticket) {
        // One whose program runs is needed until that has ended.
        if self.visitors.get(&ticket).is_some_and(|visitor| visitor.running.is_none()) {
            self.visitors.remove(&ticket);
        }
        let orders = self.desk().leave(now, ticket);
        self.carry(orders);
    }

    fn set_backend(&mut self, now: Timestamp, id: usize, alive: bool) {
        self.places.set(id, alive);
        let orders = self.desk().set_backends(now, self.places.alive());
        self.carry(orders);
    }

    fn free(&mut self, now: Timestamp, backend: usize, freed: Freed) {
        self.places.free(backend, freed.attempt);
        if freed.ended == Ended::Stuck {
            tracing::error!(backend, "a program cannot be killed");
            self.set_backend(now, backend, false);
        }
        if let Some(visitor) = self.visitors.get_mut(&freed.ticket) {
            visitor.running.take_if(|run| run.attempt == freed.attempt);
        }
        let orders = self.desk().free(now, freed);
        self.carry(orders);
        if !self.desk().knows(freed.ticket) {
            self.visitors.remove(&freed.ticket);
        }
    }

    fn carry(&mut self, orders: Vec<Order>) {
        for order in orders {
            match order {
                Order::Start { ticket, attempt, limit, again } => {
                    self.start(Run { ticket, attempt, limit, again });
                }
                Order::Limit(ticket, limit) => self.control(ticket, Control::Limit(limit)),
                Order::Halt(ticket, why) => {
                    self.control(ticket, Control::Halt(why));
                    // The next task may have the backend while the program is still being killed.
                    if let Some(run) = self.run_of(ticket) {
                        let (backend, attempt) = (run.backend, run.attempt);
                        self.places.free(backend, attempt);
                    }
                }
                Order::Deny(ticket, why) => self.send_away(ticket, Move::Deny(why)),
                Order::Lost(ticket) => self.send_away(ticket, Move::Lost),
                Order::News(ticket, news) => {
                    if let Some(visitor) = self.visitors.get(&ticket) {
                        visitor.client.news.send_replace(Some(news));
                    }
                }
            }
        }
    }

    fn send_away(&mut self, ticket: Ticket, last: Move) {
        if let Some(visitor) = self.visitors.remove(&ticket) {
            let _ = visitor.client.moves.send(last);
        }
    }

    fn start(&mut self, run: Run) {
        let Run { ticket, attempt, .. } = run;
        let (Some(visitor), Some(backend), Some(events)) =
            (self.visitors.get_mut(&ticket), self.places.take(attempt), self.events.upgrade())
        else {
            tracing::error!(%ticket, "there is no backend for a task that may start");
            return;
        };
        // A scheduler that is gone needs no backend back.
        let release = Release::new(move |freed| _ = events.send(Event::Freed { backend, freed }));
        let (allocation, control) = Allocation::new(run, backend, visitor.visible.clone(), release);
        visitor.running = Some(Held { control, attempt, backend });
        // Undelivered, the allocation frees its backend by being dropped.
        let _ = visitor.client.moves.send(Move::Start(allocation));
    }

    fn run_of(&self, ticket: Ticket) -> Option<&Held> {
        self.visitors.get(&ticket)?.running.as_ref()
    }

    fn control(&self, ticket: Ticket, control: Control) {
        if let Some(run) = self.run_of(ticket) {
            let _ = run.control.send(control);
        }
    }
}
