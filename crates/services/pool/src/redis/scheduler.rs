//! A scheduler of a pool over Redis: takes the lead, reads events from Redis and performs the actions of the state.

use std::collections::{BTreeMap, HashSet};
use std::future::ready;
use std::time::Duration;

use taskyard_core::classes::{RunRequest, Ticket};
use taskyard_core::{Span, Timestamp};
use taskyard_redis::{Answer, Failure};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

use super::action_calls::{ActionCalls, Attempt, Step};
use super::client::{Notification, RedisClient, subscribe, texts};
use super::events::{CollectedEvents, PoolEvent};
use super::{
    POLL_INTERVAL, PoolAddress, REFRESHES_PER_LEASE, REPORT_SPARE, RedisError, millis, random_token,
};
use crate::config::Config;
use crate::scheduler::{Action, Counts, FinishedRun, RunOutcome, SchedulerState};

/// How many events of each kind one call returns.
const EVENTS_PER_CALL: usize = 500;
/// How many waiting tasks each scan lists, and each call while the state is loaded.
const SCAN_PAGE: usize = 1_000;
const LOAD_PAGE: usize = 5_000;
/// How often a scheduler without the lead requests it.
const LEAD_RETRY: Duration = Duration::from_millis(500);

/// A scheduler of a pool over Redis.
#[derive(Debug)]
pub struct RedisScheduler {
    config: Config,
    redis: RedisClient,
    wake: mpsc::Receiver<Notification>,
    /// Identifies this process in the lock.
    name: String,
    /// The incarnation of Redis that it knows.
    incarnation: String,
    /// The counts of earlier leads of this process.
    counts: Option<Counts>,
}

/// Why a lead has ended.
#[derive(Debug)]
enum LeadEnd {
    /// The process was asked to stop.
    Stopped,
    /// Another scheduler leads, or none does.
    LeadLost,
    /// It is unknown whether Redis executed a call, so the state is read again.
    StateUnknown(String),
}

impl From<Failure> for LeadEnd {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused(text) if text.starts_with("NOTLEADER") => LeadEnd::LeadLost,
            other => LeadEnd::StateUnknown(other.text()),
        }
    }
}

/// One lead.
struct Leadership {
    number: String,
    state: SchedulerState,
    attempts: BTreeMap<Ticket, Attempt>,
    /// How long estimates are stored, in milliseconds.
    lease: String,
    /// Number of live backends.
    backends: u32,
    /// The clock of Redis at an instant of this process.
    clock: (Timestamp, Instant),
    /// The task after which the scan of the queue continues.
    cursor: String,
    /// Until then at least nothing starts: backends may still have to report their runs.
    no_starts_until: Option<Instant>,
}

impl RedisScheduler {
    /// Creates a scheduler; `name` says where it runs. It does nothing before [`RedisScheduler::run`].
    pub fn new(config: Config, address: &PoolAddress, name: &str) -> Result<Self, RedisError> {
        config.rules()?;
        let redis = RedisClient::open(address);
        let wake = subscribe(address, "scheduler.wake");
        // The name contains no spaces, and no two processes have the same.
        let name = format!("{}#{}", name.replace(char::is_whitespace, "_"), &random_token()[..8]);
        Ok(RedisScheduler { config, redis, wake, name, incarnation: String::new(), counts: None })
    }

    /// Leads, or waits for the lead, until `stop`.
    pub async fn run(mut self, stop: impl Future<Output = ()>) {
        let mut stop = std::pin::pin!(stop);
        let mut last = String::new();
        loop {
            match self.request_lead("", "").await {
                Ok((Some(number), clock)) => {
                    tracing::info!(number, "this scheduler has taken the lead");
                    match self.lead(number.clone(), clock, stop.as_mut()).await {
                        LeadEnd::Stopped => {
                            let _ = self.redis.call("release_lead", vec![number]).await;
                            return;
                        }
                        LeadEnd::LeadLost => tracing::warn!("this scheduler has lost the lead"),
                        LeadEnd::StateUnknown(why) => {
                            tracing::warn!(why, "reading the state again")
                        }
                    }
                }
                Ok(_) => last.clear(),
                Err(failure) => {
                    let why = failure.text();
                    if why != last {
                        tracing::warn!(why, "cannot request the lead");
                    }
                    last = why;
                }
            }
            tokio::select! {
                biased;
                () = stop.as_mut() => return,
                () = sleep(LEAD_RETRY) => {}
            }
            while self.wake.try_recv().is_ok() {}
        }
    }

    /// How often the lead is renewed.
    fn refresh(&self) -> Duration {
        self.config.leases.leader() / REFRESHES_PER_LEASE
    }

    /// How long nothing starts after a data loss of Redis: the lease of a backend; and if no part knows an earlier
    /// incarnation, until every part would have reported one.
    fn start_delays(&self) -> [String; 2] {
        let lease = self.config.leases.backend();
        let report_time = lease / REFRESHES_PER_LEASE + REPORT_SPARE;
        [millis(lease.max(report_time)), millis(report_time)]
    }

    /// Requests the lead, or renews the one with this number. Returns its number if it is ours, and the clock of
    /// Redis.
    async fn request_lead(
        &mut self,
        number: &str,
        status: &str,
    ) -> Result<(Option<String>, Timestamp), Failure> {
        let lease = millis(self.config.leases.leader());
        let [number, status] = [number, status].map(str::to_owned);
        let args = vec![self.name.clone(), lease, status, self.incarnation.clone(), number];
        let response = texts(self.redis.call("acquire_lead", args).await?);
        let [number, clock, incarnation, _] = &response[..] else {
            return Err(Failure::Refused("unexpected reply to a scheduler".into()));
        };
        if !self.incarnation.is_empty() && self.incarnation != *incarnation {
            let seconds = self.config.leases.backend().as_secs_f64();
            tracing::warn!(
                seconds,
                "Redis lost its data; no task starts until all backends have reported"
            );
        }
        self.incarnation.clone_from(incarnation);
        let number = (number != "0").then(|| number.clone());
        Ok((number, Timestamp::from_micros(clock.parse().unwrap_or_default())))
    }

    async fn lead(
        &mut self,
        number: String,
        clock: Timestamp,
        stop: std::pin::Pin<&mut impl Future<Output = ()>>,
    ) -> LeadEnd {
        let started = Instant::now();
        let mut state = match SchedulerState::new(&self.config) {
            Ok(state) => state,
            Err(error) => return LeadEnd::StateUnknown(error.to_string()),
        };
        if let Some(counts) = self.counts.take() {
            state.restore_counts(counts);
        }
        let (attempts, cursor) = (BTreeMap::new(), "0".into());
        let lease = millis(self.config.leases.task());
        let clock = (clock, started);
        let (backends, no_starts_until) = (0, None);
        let mut lead =
            Leadership { number, state, attempts, lease, backends, clock, cursor, no_starts_until };
        let end = self.serve(&mut lead, stop).await;
        self.counts = Some(lead.state.status().counts);
        match end {
            Ok(()) => LeadEnd::Stopped,
            Err(end) => end,
        }
    }

    async fn serve(
        &mut self,
        lead: &mut Leadership,
        mut stop: std::pin::Pin<&mut impl Future<Output = ()>>,
    ) -> Result<(), LeadEnd> {
        self.load_state(lead).await?;
        let (mut refresh, mut scan) = (Instant::now(), Instant::now() + POLL_INTERVAL);
        loop {
            if refresh <= Instant::now() {
                self.renew_lead(lead).await?;
                refresh = Instant::now() + self.refresh();
            }
            let unblocks = lead.no_starts_until.is_some_and(|until| until <= Instant::now());
            let full_scan = unblocks || scan <= Instant::now();
            if full_scan {
                scan = Instant::now() + POLL_INTERVAL;
            }
            let more = self.process_events(lead, full_scan, refresh).await?;
            let run_timers = lead.state.next_timer().map(|moment| lead.at(moment));
            let next =
                [Some(refresh), Some(scan), run_timers, lead.no_starts_until].into_iter().flatten();
            let next = next.min().unwrap_or(scan);
            tokio::select! {
                biased;
                () = stop.as_mut() => return Ok(()),
                notification = self.wake.recv() => {
                    if notification.is_none() {
                        return Err(LeadEnd::StateUnknown("the subscription to Redis ended".into()));
                    }
                    while self.wake.try_recv().is_ok() {}
                }
                () = ready(()), if more => {}
                () = sleep_until(next) => {}
            }
        }
    }

    /// Reads all running and waiting tasks before anything is decided.
    async fn load_state(&mut self, lead: &mut Leadership) -> Result<(), LeadEnd> {
        let started = Instant::now();
        let mut renewed = started;
        let mut actions = lead.state.set_paused(lead.now(), true);
        loop {
            let collected = self.collect(lead, true, LOAD_PAGE).await?;
            let done = collected.cursor == "0";
            lead.cursor.clone_from(&collected.cursor);
            lead.no_starts_until = collected.no_starts_until();
            let steps = lead.apply(&self.redis, collected);
            self.run_calls(lead, steps).await?;
            if done {
                break;
            }
            // The lead must be renewed while a long queue is read.
            if renewed.elapsed() > self.refresh() {
                self.renew_lead(lead).await?;
                renewed = Instant::now();
            }
        }
        let status = lead.state.status();
        let took = started.elapsed().as_secs_f64();
        tracing::info!(waiting = status.queued, running = status.running, took, "state loaded");
        if lead.no_starts_until.is_none() {
            actions.extend(lead.state.set_paused(lead.now(), false));
        }
        let steps = lead.calls(&self.redis, actions);
        self.run_calls(lead, steps).await
    }

    async fn renew_lead(&mut self, lead: &Leadership) -> Result<(), LeadEnd> {
        let mut status = serde_json::to_value(lead.state.status()).unwrap_or_default();
        status["leader"] = self.name.as_str().into();
        let (number, ..) = self.request_lead(&lead.number, &status.to_string()).await?;
        if number.as_ref() == Some(&lead.number) { Ok(()) } else { Err(LeadEnd::LeadLost) }
    }

    async fn collect(
        &self,
        lead: &Leadership,
        scan: bool,
        page: usize,
    ) -> Result<CollectedEvents, LeadEnd> {
        let most = EVENTS_PER_CALL.to_string();
        let scan = u8::from(scan).to_string();
        let mut args = vec![lead.number.clone(), most, scan, lead.cursor.clone(), page.to_string()];
        args.extend(self.start_delays());
        Ok(CollectedEvents::read(self.redis.call("collect_events", args).await?))
    }

    /// Collects events and performs the resulting actions, until there are no more events or the lead has to be
    /// renewed. Returns whether there are more.
    async fn process_events(
        &mut self,
        lead: &mut Leadership,
        full_scan: bool,
        until: Instant,
    ) -> Result<bool, LeadEnd> {
        let mut full_scan = full_scan;
        loop {
            let collected = self.collect(lead, full_scan, SCAN_PAGE).await?;
            if full_scan {
                lead.cursor.clone_from(&collected.cursor);
            }
            full_scan = false;
            let more = collected.events.len() >= EVENTS_PER_CALL && !collected.lists_all;
            let no_starts_until = collected.no_starts_until();
            let unblocks = lead.no_starts_until.is_some() && no_starts_until.is_none();
            lead.no_starts_until = no_starts_until;
            let mut steps = lead.apply(&self.redis, collected);
            // The call that allows starts again lists all tasks that hold a backend.
            if unblocks {
                let actions = lead.state.set_paused(lead.now(), false);
                steps.extend(lead.calls(&self.redis, actions));
            }
            lead.state.schedule_estimates(lead.now());
            if lead.state.next_timer().is_some_and(|moment| moment <= lead.now()) {
                let started = Instant::now();
                let actions = lead.state.run_timers(lead.now());
                lead.state.note_estimate_time(started.elapsed().into());
                steps.extend(lead.calls(&self.redis, actions));
            }
            self.run_calls(lead, steps).await?;
            if !more || until <= Instant::now() {
                return Ok(more);
            }
        }
    }

    /// Makes the calls. A start that came too late, because its client is gone, frees its slot for the next task.
    async fn run_calls(&self, lead: &mut Leadership, steps: Vec<Step>) -> Result<(), LeadEnd> {
        let mut steps = steps;
        while !steps.is_empty() {
            let (calls, starts): (Vec<_>, Vec<_>) = steps.into_iter().unzip();
            let answers: Vec<Answer> = self.redis.call_all(calls).await;
            let mut actions = Vec::new();
            for (answer, start) in answers.into_iter().zip(starts) {
                let done = answer?.int();
                if let Some(ticket) = start.filter(|_| done == Some(0)) {
                    actions.extend(lead.drop_task(ticket));
                }
            }
            steps = lead.calls(&self.redis, actions);
        }
        Ok(())
    }
}

impl Leadership {
    fn now(&self) -> Timestamp {
        self.clock.0 + Span::from(self.clock.1.elapsed())
    }

    /// Converts a time of Redis to the clock of this process.
    fn at(&self, moment: Timestamp) -> Instant {
        self.clock.1 + Duration::from(moment.since(self.clock.0))
    }

    fn calls(&mut self, redis: &RedisClient, actions: Vec<Action>) -> Vec<Step> {
        let halted = actions.iter().filter_map(|action| match action {
            Action::Halt(ticket, _) => Some((*ticket, self.attempts.get(ticket)?.number)),
            _ => None,
        });
        let halted: Vec<(Ticket, u64)> = halted.collect();
        let mut all = ActionCalls {
            redis,
            lead: &self.number,
            lease: self.lease.clone(),
            attempts: &mut self.attempts,
        };
        let mut steps = all.calls(&self.state, actions);
        for (ticket, run) in halted {
            // A halted task holds nothing in Redis any more, so no end is reported for it.
            let actions =
                self.state.finish_run(self.now(), finished_run(ticket, run, RunOutcome::Done));
            steps.extend(self.calls(redis, actions));
        }
        steps
    }

    /// Passes all events to the state and returns the resulting calls.
    fn apply(&mut self, redis: &RedisClient, collected: CollectedEvents) -> Vec<Step> {
        let missing = if collected.lists_all { self.missing(&collected) } else { Vec::new() };
        let mut steps = Vec::new();
        // First of all: the slot of a lost backend goes with it and not to the next waiting task.
        if self.backends != collected.backends {
            self.backends = collected.backends;
            let actions = self.state.set_backends(self.now(), collected.backends);
            steps.extend(self.calls(redis, actions));
        }
        for event in collected.events {
            let lost = match &event {
                PoolEvent::Lost { ticket, attempt, .. } => Some((*ticket, attempt.clone())),
                _ => None,
            };
            let mut actions = self.apply_event(event);
            if let Some((ticket, attempt)) = lost {
                let known = actions.len();
                actions.retain(|action| *action != Action::Lost(ticket));
                let ends = actions.len() < known;
                let all = ActionCalls {
                    redis,
                    lead: &self.number,
                    lease: self.lease.clone(),
                    attempts: &mut self.attempts,
                };
                steps.push(match ends {
                    true => all.end_lost(ticket, &attempt),
                    false => all.requeue(ticket, &attempt),
                });
            }
            steps.extend(self.calls(redis, actions));
        }
        for (ticket, attempt) in missing {
            if self.attempts.get(&ticket) == Some(&attempt) {
                let actions = self.drop_task(ticket);
                steps.extend(self.calls(redis, actions));
            }
        }
        steps
    }

    /// Tasks that hold a backend here and were not listed although all were.
    fn missing(&self, collected: &CollectedEvents) -> Vec<(Ticket, Attempt)> {
        let named: HashSet<Ticket> = collected.events.iter().map(PoolEvent::ticket).collect();
        let held = self.attempts.iter().filter(|(ticket, _)| !named.contains(ticket));
        held.map(|(ticket, attempt)| (*ticket, attempt.clone())).collect()
    }

    fn apply_event(&mut self, event: PoolEvent) -> Vec<Action> {
        let now = self.now();
        match event {
            PoolEvent::Waiting { ticket, .. } if self.state.knows(ticket) => Vec::new(),
            PoolEvent::Waiting { ticket, ask, arrived, requeues, requested, is_new } => {
                let mut actions = match is_new && requeues == 0 {
                    true => self.state.submit(now, ticket, ask),
                    false => self.state.restore_waiting(now, ticket, (ask, arrived), requeues),
                };
                if let (RunRequest::Default, Some(requested)) = (ask, requested) {
                    actions.extend(self.state.lower(now, ticket, requested).unwrap_or_default());
                }
                actions
            }
            PoolEvent::Lowered { ticket, requested } => {
                // The gateway has already answered a request that is not allowed.
                self.state.lower(now, ticket, requested).unwrap_or_default()
            }
            PoolEvent::RunningProgram { ticket, .. } if self.state.knows(ticket) => Vec::new(),
            PoolEvent::RunningProgram { ticket, attempt, task, requeues } => {
                let number = self.state.restore_running(now, ticket, task, requeues);
                self.attempts.insert(ticket, Attempt { name: attempt, number });
                Vec::new()
            }
            PoolEvent::Ended { ticket, attempt, outcome, took, stopping } => {
                let finished =
                    |run| FinishedRun { took, stopping, ..finished_run(ticket, run, outcome) };
                self.finish_run(ticket, &attempt, finished)
            }
            PoolEvent::Lost { ticket, attempt, seen } => {
                let finished =
                    |run| FinishedRun { seen, ..finished_run(ticket, run, RunOutcome::Lost) };
                self.finish_run(ticket, &attempt, finished)
            }
            PoolEvent::Gone { ticket, attempt } => {
                let known = self.attempts.get(&ticket).is_some_and(|own| own.name == attempt);
                if known { self.drop_task(ticket) } else { Vec::new() }
            }
            PoolEvent::Unclaimed { ticket, attempt } => {
                match self.attempts.get(&ticket).is_some_and(|own| own.name == attempt) {
                    true => {
                        self.attempts.remove(&ticket);
                        self.state.requeue_unclaimed(now, ticket)
                    }
                    false => Vec::new(),
                }
            }
            PoolEvent::Left { ticket } => self.state.client_left(now, ticket),
        }
    }

    /// A run ended; one that is not the task's current one is ignored.
    fn finish_run(
        &mut self,
        ticket: Ticket,
        attempt: &str,
        finished: impl FnOnce(u64) -> FinishedRun,
    ) -> Vec<Action> {
        match self.attempts.get(&ticket) {
            Some(own) if own.name == attempt => {
                let number = own.number;
                self.attempts.remove(&ticket);
                self.state.finish_run(self.now(), finished(number))
            }
            _ => Vec::new(),
        }
    }

    /// A task that holds a backend is gone with its client.
    fn drop_task(&mut self, ticket: Ticket) -> Vec<Action> {
        let now = self.now();
        let Some(attempt) = self.attempts.remove(&ticket) else { return Vec::new() };
        let mut actions = self.state.client_left(now, ticket);
        actions.extend(
            self.state.finish_run(now, finished_run(ticket, attempt.number, RunOutcome::Lost)),
        );
        actions
    }
}

impl PoolEvent {
    fn ticket(&self) -> Ticket {
        match self {
            PoolEvent::Waiting { ticket, .. }
            | PoolEvent::Lowered { ticket, .. }
            | PoolEvent::RunningProgram { ticket, .. }
            | PoolEvent::Ended { ticket, .. }
            | PoolEvent::Lost { ticket, .. }
            | PoolEvent::Gone { ticket, .. }
            | PoolEvent::Unclaimed { ticket, .. }
            | PoolEvent::Left { ticket } => *ticket,
        }
    }
}

/// A finished run without measurements.
fn finished_run(ticket: Ticket, attempt: u64, outcome: RunOutcome) -> FinishedRun {
    let (took, stopping) = (Duration::ZERO, None);
    FinishedRun { ticket, attempt, outcome, seen: false, took, stopping }
}
