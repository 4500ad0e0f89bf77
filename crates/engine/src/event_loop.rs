//! Runs the event loop, one turn after the other.
//!
//! A turn picks up what has arrived, runs it as one batch, and then runs smaller batches until no
//! waiting command can be served any more. `admit` adds commands to a batch, `wake` serves waiting
//! commands.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::task::Waker;

use taskyard_core::{Command, Effects, Error, NewEvents, Reply, Result, Timestamp, TubeName};
use taskyard_store::{Executed, Store};
use taskyard_trace::Recorder;

use crate::admit::OrderGuard;
use crate::clock::Clock;
use crate::engine::Settings;
use crate::inbox::{Inbox, RemoteChanges, Work};
use crate::jobs::{Jobs, ReplySlot};
use crate::listeners::{ListenerId, Listeners, found_no_events};
use crate::loop_waits::LoopWaits;
use crate::reply::unanswered;
use crate::request::{Job, Query};
use crate::schedules::Scheduler;
use crate::series::{Collector, Notes};
use crate::tick::Ticks;
use crate::timeline::Timeline;
use crate::trace_notes::TraceNotes;
use crate::waiters::{Side, WaiterId, Waiters, Waiting};
use crate::workers::{WorkerInfo, WorkerNotes, WorkerRegistry};

/// A longer list of commands is freed instead of being reused.
const REUSED_MAX: usize = 1_024;

/// The state of the event loop.
pub(crate) struct EventLoop {
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) timeline: Timeline,
    /// How it waits for work and for the store.
    pub(crate) waits: LoopWaits,
    /// Wakes the loop through its inbox, where it also waits for commands.
    pub(crate) waker: Waker,
    pub(crate) ticks: Ticks,
    pub(crate) scheduler: Scheduler,
    /// When to poll for changes by other servers, if the store is shared.
    next_poll: Option<Timestamp>,
    pub(crate) now: Timestamp,
    pub(crate) stopping: bool,
    pub(crate) jobs: Jobs,
    pub(crate) waiters: Waiters,
    pub(crate) listeners: Listeners,
    /// The batch under construction.
    pub(crate) batch: Box<Batch>,
    /// An empty one, whose allocations the next batch reuses.
    pub(crate) spare_batch: Option<Box<Batch>>,
    pub(crate) takes: OrderGuard,
    pub(crate) puts: OrderGuard,
    /// Drops of tubes that are admitted at the end of the turn, when it is known whether consumers
    /// wait.
    pub(crate) late_drops: Vec<(ReplySlot, Command)>,
    /// Puts of tasks with keys for a tube where others wait for capacity. They are admitted when
    /// those have had their turn, because a put whose keys are held needs none.
    pub(crate) late_puts: Vec<(ReplySlot, Command)>,
    /// Parked commands whose wait ends with this turn.
    pub(crate) same_turn_waiters: Vec<WaiterId>,
    /// Commands that return tasks which no caller received.
    pub(crate) returns: Vec<Command>,
    /// The number of ready tasks by tube, after the latest pipelined batch.
    pub(crate) ready_counts: Vec<(TubeName, u64)>,
    /// How many keys were freed before their time.
    keys_freed_early: u64,
    /// The time series, unless they are turned off.
    pub(crate) series: Option<Collector>,
    /// The workers, unless none are remembered.
    pub(crate) workers: Option<WorkerRegistry>,
    /// The trace, if one is recorded.
    pub(crate) recorder: Option<Recorder>,
}

/// A batch for the store, and where each of its replies goes.
#[derive(Default)]
pub(crate) struct Batch {
    commands: Vec<Command>,
    /// Empty; its allocation is for the commands after these, which the store keeps.
    spare: Vec<Command>,
    origins: Vec<Origin>,
    /// Copies of the commands that may have to wait, in order.
    parkable: Vec<Command>,
    /// What the time series need to know about the commands.
    notes: Notes,
    /// The same for the list of workers.
    worker_notes: WorkerNotes,
    /// The same for the trace.
    trace_notes: TraceNotes,
}

/// The source of a command in a batch.
#[derive(Clone, Copy)]
pub(crate) enum Origin {
    /// From a job; its reply is final.
    Job(ReplySlot),
    /// From a job; it is parked when its reply is a temporary refusal.
    Parkable(ReplySlot),
    /// From a waiter; it stays parked when its reply is a temporary refusal.
    Waiter(ReplySlot, WaiterId),
    /// From a caller that waits for semaphore events; keeps waiting when there are none.
    Listener(ListenerId),
    /// From the loop: something is due.
    Tick,
    /// From the loop: reads the schedules that are due.
    Due,
    /// From the loop: fires a schedule, by its index in the batch.
    Fire(usize),
    /// From the loop: returns tasks that no caller received.
    Return,
    /// From the loop: reads depths for the time series, or options for the trace.
    Sample,
}

impl EventLoop {
    /// Creates the loop.
    pub fn new(
        waits: LoopWaits,
        inbox: Arc<Inbox>,
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        settings: Settings,
        recorder: Option<Recorder>,
    ) -> Self {
        let Settings { series_tubes_max, workers_max, fires_schedules, .. } = settings;
        let timeline = Timeline::new(clock, store.time());
        let now = timeline.now();
        let (moment, is_shared) = (timeline.moment(now), store.poll_every().is_some());
        let fires = fires_schedules && store.capabilities().schedules;
        let series = || Collector::new(series_tubes_max, is_shared, moment);
        let listener = inbox.clone();
        store.watch(Arc::new(move |what| listener.note_remote_change(what)));
        EventLoop {
            next_poll: store.poll_every().map(|every| now + every),
            waker: Waker::from(inbox.clone()),
            inbox,
            store,
            timeline,
            waits,
            ticks: Ticks::new(now),
            scheduler: Scheduler::new(fires, is_shared, now),
            now,
            stopping: false,
            jobs: Jobs::default(),
            waiters: Waiters::default(),
            listeners: Listeners::default(),
            batch: Box::default(),
            spare_batch: None,
            takes: OrderGuard::default(),
            puts: OrderGuard::default(),
            late_drops: Vec::new(),
            late_puts: Vec::new(),
            same_turn_waiters: Vec::new(),
            returns: Vec::new(),
            ready_counts: Vec::new(),
            keys_freed_early: 0,
            series: (series_tubes_max > 0).then(series),
            workers: (workers_max > 0).then(|| WorkerRegistry::new(workers_max)),
            recorder,
        }
    }

    /// Runs until the engine is stopped, then closes the store.
    pub async fn run(mut self) -> Result<()> {
        let mut spare = VecDeque::new();
        loop {
            let until = self.next_deadline();
            let work = self.waits.gather(&self.inbox, &self.timeline, until, spare).await;
            let last = work.last;
            spare = self.turn(work).await;
            if last {
                return self.waits.complete(self.store.close()).await;
            }
        }
    }

    pub(crate) fn next_deadline(&self) -> Option<Timestamp> {
        let sample = self.series.as_ref().and_then(Collector::next_sample);
        let options = self.recorder.as_ref().and_then(|recorder| recorder.next_read(self.now));
        let deadlines = [
            self.ticks.next(),
            self.scheduler.next(),
            self.next_poll,
            sample,
            options,
            self.waiters.next_deadline(),
            self.listeners.next_deadline(),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Runs one turn. Returns the emptied job queue for reuse.
    async fn turn(&mut self, mut work: Work) -> VecDeque<Job> {
        self.now = self.timeline.now();
        self.follow_wall_clock().await;
        self.stopping = work.stopping;
        self.end_cancelled_and_expired_waits(work.gone);
        self.apply_remote_changes(work.remote_changes);
        if self.stopping {
            self.end_all_waits();
        } else {
            self.push_due();
        }
        for job in work.jobs.drain(..) {
            self.admit(job);
        }
        self.execute().await;
        self.serve_waiters().await;
        while !self.late_puts.is_empty() {
            self.admit_late_puts();
            self.serve_waiters().await;
        }
        self.end_same_turn_waits();
        self.admit_late_drops();
        self.serve_waiters().await;
        for query in work.queries {
            self.answer_query(query).await;
        }
        work.jobs
    }

    /// Adds what is due to the batch under construction: depths are read before anything changes.
    fn push_due(&mut self) {
        if let Some(series) = &mut self.series {
            for command in series.sample(self.now) {
                self.batch.push(Origin::Sample, command);
            }
        }
        if let Some(recorder) = &mut self.recorder {
            for tube in recorder.take_unread(self.now) {
                self.batch.push(Origin::Sample, Command::Tubes { tube: Some(tube) });
            }
        }
        if let Some(tick) = self.ticks.due(self.now) {
            self.batch.push(Origin::Tick, tick);
        }
        if let Some(due) = self.scheduler.due(self.now) {
            self.batch.push(Origin::Due, due);
        }
    }

    /// Reports a step of the wall clock to a store that uses the engine's time. Durations keep
    /// their length; only tasks with a start time follow the wall clock.
    async fn follow_wall_clock(&mut self) {
        let Some(wall_ahead) = self.timeline.step(self.now) else { return };
        if self.timeline.store_uses_engine_time() {
            let stored = self.store.set_wall_ahead(self.now, wall_ahead);
            let stored = self.waits.complete(stored).await;
            if let Err(error) = stored {
                tracing::warn!(%error, "cannot store that the wall clock was set; trying again in 1 s");
                return self.timeline.postpone(self.now);
            }
        }
        let before = self.timeline.to_wall(self.now);
        let by = self.timeline.adopt(wall_ahead);
        if let Some(series) = &mut self.series {
            series.follow_wall_clock(before, self.timeline.to_wall(self.now));
        }
        let (seconds, way) =
            (by.unsigned_abs() / 1_000_000, if by < 0 { "back" } else { "forward" });
        tracing::warn!(
            "the wall clock was set {way} by {seconds} s; leases, waits and delays keep their remaining time, tasks with a \
             start time follow the wall clock"
        );
        self.ticks.request(self.now);
        self.scheduler.request(self.now);
    }

    /// Marks the tubes and semaphores where changes by other servers may serve waiting commands.
    fn apply_remote_changes(&mut self, mut remote_changes: RemoteChanges) {
        if let (Some(due), Some(every)) = (self.next_poll, self.store.poll_every())
            && due <= self.now
        {
            self.next_poll = Some(self.now + every);
            remote_changes.anything = true;
        }
        if remote_changes.is_empty() {
            return;
        }
        if remote_changes.events || remote_changes.anything {
            self.listeners.new_events.add(NewEvents::All);
        }
        if remote_changes.anything {
            self.ticks.request(self.now);
            self.scheduler.request(self.now);
            remote_changes.tubes.extend(self.waiters.tubes());
        }
        if let Some(series) = &mut self.series {
            series.note_remote_changes(remote_changes.tubes.iter());
        }
        for tube in remote_changes.tubes {
            self.want(Side::Take, tube.clone(), None);
            self.want(Side::Put, tube, None);
        }
    }

    /// Runs batches until no waiting command can be served any more.
    async fn serve_waiters(&mut self) {
        loop {
            self.stage();
            if self.batch.commands.is_empty() {
                return;
            }
            if !self.execute().await {
                // No waiter was served: the amounts reported by the store are not available to
                // them.
                self.takes.wanted.clear();
                self.puts.wanted.clear();
            }
        }
    }

    /// Runs the batch under construction and delivers the replies. Returns whether anything
    /// happened except fruitless tries of waiters.
    async fn execute(&mut self) -> bool {
        if self.store.batches_max() > 1 {
            return self.run_pipelined().await;
        }
        let mut progress = false;
        if !self.batch.commands.is_empty() {
            self.now = self.timeline.now();
            let mut batch = self.take_batch();
            let commands = batch.take_commands();
            let count = commands.len();
            self.note_commands(&commands, &mut batch);
            let now = self.timeline.to_store(self.now);
            let executed = self.waits.complete(self.store.execute(now, commands)).await;
            progress = self.apply_executed(&mut batch, count, executed);
            self.spare_batch = Some(batch);
        }
        self.takes.open();
        self.puts.open();
        self.send_finished();
        progress
    }

    /// The batch under construction; another one begins.
    pub(crate) fn take_batch(&mut self) -> Box<Batch> {
        let next = self.spare_batch.take().unwrap_or_default();
        std::mem::replace(&mut self.batch, next)
    }

    /// Notes the commands of a batch for the time series, the list of workers and the trace.
    pub(crate) fn note_commands(&mut self, commands: &[Command], batch: &mut Batch) {
        if let Some(series) = &mut self.series {
            series.note(commands, &mut batch.notes);
        }
        if let Some(workers) = &mut self.workers {
            workers.note(commands, &mut batch.worker_notes);
        }
        if let Some(recorder) = &self.recorder {
            batch.trace_notes.note(commands, self.timeline.to_wall(self.now), recorder);
        }
    }

    /// Applies the result of a batch of `count` commands.
    pub(crate) fn apply_executed(
        &mut self,
        batch: &mut Batch,
        count: usize,
        mut executed: Executed,
    ) -> bool {
        if executed.replies.len() != count {
            tracing::error!(
                count,
                answered = executed.replies.len(),
                "the store returned too few replies"
            );
            let missing = || Err(unanswered());
            executed.replies.resize_with(count, missing);
        }
        if let Some(series) = &mut self.series {
            let (moment, failed) = (self.timeline.moment(self.now), &executed.effects.failed);
            series.observe(moment, &mut batch.notes, &executed.replies, failed);
        }
        if let Some(workers) = &mut self.workers {
            workers.observe(self.now, &mut batch.worker_notes, &executed.replies);
        }
        if let Some(recorder) = &mut self.recorder {
            let failed = &executed.effects.failed;
            batch.trace_notes.record(self.now, &executed.replies, failed, recorder);
            // The file has its maximum size.
            if !recorder.is_open() {
                self.recorder = None;
            }
        }
        self.distribute(batch, executed)
    }

    /// Delivers the replies and applies what the store reports about due times and tubes.
    fn distribute(&mut self, batch: &mut Batch, executed: Executed) -> bool {
        let Executed { replies, effects, unloaded } = executed;
        for unloaded in unloaded {
            if let Some(slot) = batch.origins.get(unloaded.reply).and_then(Origin::slot) {
                self.jobs.note_missing_body(slot, unloaded);
            }
        }
        let alone = replies.len() == 1;
        let (mut failed, mut progress, mut ticked, mut due) = (false, false, None, None);
        let mut parkable = batch.parkable.drain(..);
        for (origin, reply) in batch.origins.drain(..).zip(replies) {
            failed |= is_failure(&reply);
            progress |= match origin {
                Origin::Waiter(..) => !can_wait(&reply),
                Origin::Listener(_) => !found_no_events(&reply),
                _ => true,
            };
            match origin {
                Origin::Job(slot) => self.jobs.answer(slot, reply),
                Origin::Parkable(slot) => match parkable.next() {
                    Some(command) if can_wait(&reply) => self.park(slot, command, reply),
                    _ => self.jobs.answer(slot, reply),
                },
                Origin::Waiter(_, id) => self.serve(id, reply),
                Origin::Listener(id) => self.serve_listener(id, reply),
                Origin::Tick => ticked = Some(reply),
                Origin::Due => due = Some(reply),
                Origin::Fire(index) => self.record_fire(index, reply),
                Origin::Return => report(&reply),
                // The commands of callers report an unavailable store.
                Origin::Sample => {}
            }
        }
        drop(parkable);
        // A batch that failed as a whole carries no information about due times.
        if !failed || effects.next_wakeup.is_some() {
            let next = effects.next_wakeup.map(|moment| self.timeline.of_store(moment));
            self.ticks.set_next_wakeup(next);
        }
        if !failed || effects.next_schedule.is_some() {
            let next = effects.next_schedule.map(|moment| self.timeline.of_store(moment));
            self.scheduler.set_next(next, self.now);
        }
        if let Some(reply) = ticked {
            self.ticks.record_tick(self.now, &reply, alone);
        }
        if let Some(reply) = due {
            self.plan_schedules(reply);
        }
        self.apply_effects(effects);
        progress
    }

    /// Marks the tubes and semaphores where waiting commands may succeed now.
    fn apply_effects(&mut self, effects: Effects) {
        self.keys_freed_early += effects.keys_freed_early;
        self.listeners.new_events.add(effects.events);
        for (tube, takeable) in effects.ready {
            self.want(Side::Take, tube, Some(takeable));
        }
        for (tube, room) in effects.room {
            self.want(Side::Put, tube, Some(room));
        }
    }

    /// Sends the finished job replies. Tasks in replies that no caller receives are returned by the
    /// next batch.
    pub(crate) fn send_finished(&mut self) {
        // Before the first of them can send its next command.
        self.inbox.note_answered(self.jobs.take_finished_at_once());
        let returns = &mut self.returns;
        self.jobs.send_finished(|answer| returns.extend(answer.returns()));
    }

    async fn answer_query(&mut self, query: Query) {
        // If the caller is gone, the reply is dropped.
        match query {
            Query::Waiting(reply) => {
                let mut waiting = self.waiters.list();
                for Waiting { since, until, .. } in &mut waiting {
                    *since = self.timeline.to_wall(*since);
                    *until = self.timeline.to_wall(*until);
                }
                drop(reply.send(waiting));
            }
            Query::Counts(reply) => drop(reply.send(self.waiters.counts())),
            Query::KeysFreedEarly(reply) => drop(reply.send(self.keys_freed_early)),
            Query::Health(reply) => {
                let now = self.timeline.to_store(self.now);
                drop(reply.send(self.waits.complete(self.store.health(now)).await));
            }
            Query::Series { request, observes, reply } => {
                let moment = self.timeline.moment(self.now);
                let series = self.series.as_mut();
                drop(
                    reply.send(series.and_then(|series| series.series(moment, &request, observes))),
                );
            }
            Query::Latencies(reply) => {
                let latencies = self.series.as_ref().map(Collector::latencies);
                drop(reply.send(latencies.unwrap_or_default()));
            }
            Query::TubeFigures(reply) => {
                let wall = self.timeline.to_wall(self.now);
                drop(reply.send(self.series.as_mut().map(|series| series.figures(wall))));
            }
            Query::Forecast(request, reply) => drop(reply.send(self.forecast(&request))),
            Query::Drains(tubes, reply) => drop(reply.send(self.forecast_drains(&tubes))),
            Query::Calibrated(reply) => {
                let counts = self.series.as_ref().map(Collector::calibrated);
                drop(reply.send(counts.unwrap_or_default()));
            }
            Query::Workers(holding, reply) => drop(reply.send(self.list_workers(holding.as_ref()))),
            Query::Schedules(names, reply) => drop(reply.send(self.scheduler.notes_of(&names))),
        }
    }

    /// The workers; those that wait for a task are seen now.
    fn list_workers(&mut self, holding: Option<&HashSet<Arc<str>>>) -> Vec<WorkerInfo> {
        let Some(workers) = &mut self.workers else { return Vec::new() };
        for (worker, tube) in self.waiters.workers() {
            workers.see_waiting(self.now, worker, tube);
        }
        if let Some(holding) = holding {
            workers.remove_old(self.now, holding);
        }
        let mut infos = workers.list(self.now);
        for WorkerInfo { last_seen, .. } in &mut infos {
            *last_seen = self.timeline.to_wall(*last_seen);
        }
        infos
    }
}

impl Batch {
    /// Reserves capacity for `count` more commands.
    pub fn reserve(&mut self, count: usize) {
        self.commands.reserve(count);
        self.origins.reserve(count);
    }

    /// Adds a command.
    pub fn push(&mut self, origin: Origin, command: Command) {
        self.commands.push(command);
        self.origins.push(origin);
    }

    /// Adds a command that is parked when it is refused temporarily.
    pub fn push_parkable(&mut self, slot: ReplySlot, command: Command) {
        self.parkable.push(command.clone());
        self.push(Origin::Parkable(slot), command);
    }

    /// Moves the commands out of the batch.
    pub fn take_commands(&mut self) -> Vec<Command> {
        let spare = std::mem::take(&mut self.spare);
        std::mem::replace(&mut self.commands, spare)
    }

    /// Keeps the allocation of an emptied list of commands for a later batch, if it is the largest.
    pub fn reuse(&mut self, emptied: Vec<Command>) {
        if (self.spare.capacity() + 1..=REUSED_MAX).contains(&emptied.capacity()) {
            self.spare = emptied;
        }
    }

    /// The index of the next command.
    pub fn len(&self) -> usize {
        self.commands.len()
    }
}

impl Origin {
    fn slot(&self) -> Option<ReplySlot> {
        match self {
            Origin::Job(slot) | Origin::Parkable(slot) | Origin::Waiter(slot, _) => Some(*slot),
            Origin::Listener(_) | Origin::Tick | Origin::Return | Origin::Sample => None,
            Origin::Due | Origin::Fire(_) => None,
        }
    }
}

/// Whether waiting may change this reply: nothing to take, no free capacity, or an unreachable
/// store.
pub(crate) fn can_wait(reply: &Result<Reply>) -> bool {
    match reply {
        Ok(Reply::Taken(tasks)) => tasks.is_empty(),
        Err(Error::TubeFull { .. } | Error::StoreUnavailable(_)) => true,
        _ => false,
    }
}

/// Whether the store failed, and with it the whole batch.
pub(crate) fn is_failure(reply: &Result<Reply>) -> bool {
    matches!(reply, Err(Error::Store(_) | Error::StoreUnavailable(_) | Error::OutcomeUnknown(_)))
}

fn report(reply: &Result<Reply>) {
    if let Err(error) = reply {
        tracing::warn!(%error, "cannot return tasks whose caller is gone; they become ready when their lease expires");
    }
}
