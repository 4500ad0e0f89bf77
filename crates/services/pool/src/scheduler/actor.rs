//! Runs the scheduler's task: passes events to the state and performs its actions on the clients and backends of this
//! process.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use taskyard_core::Timestamp;
use taskyard_core::classes::{RunRequest, Ticket};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::allocation::{Allocation, Control, Release, Run};
use super::backend_slots::BackendSlots;
use super::state::{Action, FinishedRun, RunOutcome, SchedulerState};
use super::{
    ClientChannels, QueueEntry, Scheduler, SchedulerEvent, SharedSchedulerState, TaskEvent,
};
use crate::clock::Clock;

/// How many events are handled before the timers are checked again.
const EVENTS_PER_PASS: usize = 256;
/// How long to sleep without a timer; an event usually comes earlier.
const NO_TIMER_DELAY: Duration = Duration::from_secs(3600);

/// The scheduler's task.
pub(super) struct SchedulerActor {
    clock: Clock,
    state: SharedSchedulerState,
    tasks: HashMap<Ticket, TaskChannels>,
    backends: BackendSlots,
    events: mpsc::WeakUnboundedSender<SchedulerEvent>,
}

/// The channels of one task: to its client, and to its program while that runs.
struct TaskChannels {
    visible: Arc<AtomicBool>,
    client: ClientChannels,
    running: Option<HeldBackend>,
}

/// The backend that a task holds.
struct HeldBackend {
    control: mpsc::UnboundedSender<Control>,
    attempt: u64,
    backend: usize,
}

impl SchedulerActor {
    pub fn new(
        state: SharedSchedulerState,
        events: mpsc::WeakUnboundedSender<SchedulerEvent>,
    ) -> Self {
        let (tasks, backends) = (HashMap::new(), BackendSlots::default());
        SchedulerActor { clock: Clock::start(), state, tasks, backends, events }
    }

    pub async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<SchedulerEvent>) {
        let mut events = Vec::new();
        loop {
            let next = self.state().next_timer();
            let pause = next.map_or(NO_TIMER_DELAY, |next| next.since(self.clock.now()).into());
            tokio::select! {
                count = inbox.recv_many(&mut events, EVENTS_PER_PASS) => {
                    if count == 0 {
                        return;
                    }
                    for event in events.drain(..) {
                        if matches!(event, SchedulerEvent::Stop) {
                            return;
                        }
                        self.handle(event);
                    }
                    self.state().schedule_estimates(self.clock.now());
                }
                () = sleep(pause) => self.run_timers(),
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, SchedulerState> {
        self.state.lock()
    }

    fn run_timers(&mut self) {
        let started = Instant::now();
        let actions = self.state().run_timers(self.clock.now());
        self.state().note_estimate_time(started.elapsed().into());
        self.perform(actions);
    }

    fn handle(&mut self, event: SchedulerEvent) {
        let now = self.clock.now();
        match event {
            SchedulerEvent::Submit { ask, visible, client, reply } => {
                let Some(events) = self.events.upgrade() else { return };
                let ticket = self.state().ticket();
                // If the entry does not reach its client, it is dropped and the task is removed.
                let entry = QueueEntry { ticket, scheduler: self.scheduler_handle(events) };
                if reply.send(entry).is_ok() {
                    self.submit(now, ticket, ask, TaskChannels { visible, client, running: None });
                }
            }
            SchedulerEvent::ClientLeft(ticket) => self.client_left(now, ticket),
            SchedulerEvent::Lower { ticket, requested, reply } => {
                let lowered = self.state().lower(now, ticket, requested);
                let _ = reply.send(lowered.map(|actions| self.perform(actions)));
            }
            SchedulerEvent::RunFinished { backend, finished } => {
                self.finish_run(now, backend, finished)
            }
            SchedulerEvent::SetBackend { id, alive, done } => {
                self.set_backend(now, id, alive);
                let _ = done.send(());
            }
            SchedulerEvent::Pause { paused, done } => {
                let actions = self.state().set_paused(now, paused);
                self.perform(actions);
                let _ = done.send(());
            }
            SchedulerEvent::Status(reply) => drop(reply.send(self.state().status())),
            // The loop ends before this is reached.
            SchedulerEvent::Stop => {}
        }
    }

    fn scheduler_handle(&self, events: mpsc::UnboundedSender<SchedulerEvent>) -> Scheduler {
        Scheduler { events, state: self.state.clone() }
    }

    fn submit(&mut self, now: Timestamp, ticket: Ticket, ask: RunRequest, task: TaskChannels) {
        self.tasks.insert(ticket, task);
        let actions = self.state().submit(now, ticket, ask);
        self.perform(actions);
    }

    fn client_left(&mut self, now: Timestamp, ticket: Ticket) {
        // The channels of a running task are needed until it has ended.
        if self.tasks.get(&ticket).is_some_and(|task| task.running.is_none()) {
            self.tasks.remove(&ticket);
        }
        let actions = self.state().client_left(now, ticket);
        self.perform(actions);
    }

    fn set_backend(&mut self, now: Timestamp, id: usize, alive: bool) {
        self.backends.set(id, alive);
        let actions = self.state().set_backends(now, self.backends.alive());
        self.perform(actions);
    }

    fn finish_run(&mut self, now: Timestamp, backend: usize, finished: FinishedRun) {
        self.backends.release(backend, finished.attempt);
        if finished.outcome == RunOutcome::Stuck {
            tracing::error!(backend, "a program cannot be killed; its backend is out of service");
            self.set_backend(now, backend, false);
        }
        if let Some(task) = self.tasks.get_mut(&finished.ticket) {
            task.running.take_if(|run| run.attempt == finished.attempt);
        }
        let actions = self.state().finish_run(now, finished);
        self.perform(actions);
        if !self.state().knows(finished.ticket) {
            self.tasks.remove(&finished.ticket);
        }
    }

    fn perform(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Start { ticket, attempt, limit, may_rerun } => {
                    self.start(Run { ticket, attempt, limit, may_rerun });
                }
                Action::Limit(ticket, limit) => self.control(ticket, Control::Limit(limit)),
                Action::Halt(ticket, why) => {
                    self.control(ticket, Control::Halt(why));
                    // The next task may use the backend while the program is still being killed.
                    if let Some(run) = self.held_backend(ticket) {
                        let (backend, attempt) = (run.backend, run.attempt);
                        self.backends.release(backend, attempt);
                    }
                }
                Action::Deny(ticket, why) => self.end_task(ticket, TaskEvent::Deny(why)),
                Action::Lost(ticket) => self.end_task(ticket, TaskEvent::Lost),
                Action::Estimate(ticket, position) => {
                    if let Some(task) = self.tasks.get(&ticket) {
                        task.client.position.send_replace(Some(position));
                    }
                }
            }
        }
    }

    fn end_task(&mut self, ticket: Ticket, last: TaskEvent) {
        if let Some(task) = self.tasks.remove(&ticket) {
            let _ = task.client.events.send(last);
        }
    }

    fn start(&mut self, run: Run) {
        let Run { ticket, attempt, .. } = run;
        let (Some(task), Some(backend), Some(events)) =
            (self.tasks.get_mut(&ticket), self.backends.take(attempt), self.events.upgrade())
        else {
            tracing::error!(%ticket, "no free backend for a task that may start");
            return;
        };
        // A scheduler that is gone needs no release.
        let release = Release::new(move |finished| {
            _ = events.send(SchedulerEvent::RunFinished { backend, finished })
        });
        let (allocation, control) = Allocation::new(run, backend, task.visible.clone(), release);
        task.running = Some(HeldBackend { control, attempt, backend });
        // If it cannot be delivered, the allocation is dropped, which frees its backend.
        let _ = task.client.events.send(TaskEvent::Start(allocation));
    }

    fn held_backend(&self, ticket: Ticket) -> Option<&HeldBackend> {
        self.tasks.get(&ticket)?.running.as_ref()
    }

    fn control(&self, ticket: Ticket, control: Control) {
        if let Some(run) = self.held_backend(ticket) {
            let _ = run.control.send(control);
        }
    }
}
