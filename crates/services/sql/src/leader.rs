//! Runs the tasks of one table: claims them, assigns them to sessions, writes their outcomes.
//!
//! Everything that happened since the last round trip goes into the next one: outcomes, starts, and the claim of tasks
//! that may start now. So the more there is to do, the less each task costs.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use taskyard_core::Timestamp;
use taskyard_timezone::NamedZone;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};

use crate::clock::DatabaseClock;
use crate::connection::{Connection, Query, QueryError, Row};
use crate::outcome::OutcomeRules;
use crate::scheduler::{RunState, Settings};
use crate::session::{SessionCommand, SessionEvent};
use crate::session_pool::{EndedTask, SessionPool, array, json};
use crate::status::SchedulerStatus;
use crate::table::{Profile, Table};
use crate::task;

mod capacity;
mod claim_planner;
mod claims;
mod maintenance;
mod outbox;
mod outcomes;
mod session_retries;
mod starts;
mod waiting_groups;

pub use capacity::LIMIT_LOCK;
use capacity::{Capacity, LimitMonitor};
use claim_planner::ClaimPlanner;
use maintenance::MaintenanceTimers;
use outbox::Outbox;
use session_retries::SessionRetries;

/// How long the database may take for one round trip.
const ROUND_MAX: Duration = Duration::from_secs(60);

/// A task that started longer ago than this does not delay the outcomes of others.
const YOUNG: Duration = Duration::from_millis(2);
/// How long at most an outcome waits for those of tasks that have just started.
const GATHER_MAX: Duration = Duration::from_millis(1);

/// Lets a round be answered before it is on disk: if the server crashes, what is claimed and running is lost with it.
const UNSYNCED: &str = "SELECT set_config('synchronous_commit', 'off', true)";

/// Why a leader stopped leading.
pub enum LeaderExit {
    /// It was asked to stop, and nothing is left to do.
    Stopped,
    /// The connection was lost.
    Lost(String),
    /// The table or its configuration has changed.
    Changed(String),
}

/// The profile and the time of the table, from which outcomes are computed.
struct TableContext {
    profile: Profile,
    clock: DatabaseClock,
    zone: NamedZone,
}

impl TableContext {
    /// Computes an outcome of something that happens now.
    fn outcome<T>(&self, compute: impl FnOnce(&OutcomeRules<'_>, Timestamp) -> T) -> T {
        compute(&OutcomeRules { profile: self.profile, zone: &self.zone }, self.clock.now())
    }
}

/// Runs the tasks of one table. Its sessions and their results outlive its connection.
pub struct Leader {
    settings: watch::Receiver<Settings>,
    run_state: watch::Receiver<RunState>,
    events: mpsc::UnboundedReceiver<(u64, SessionEvent)>,
    status: Arc<SchedulerStatus>,
    /// The sessions and their tasks.
    sessions: SessionPool,
    /// What has to be written to the table.
    outbox: Outbox,
    /// Which groups the next claim covers.
    claims: ClaimPlanner,
    /// How many sessions the server has room for, and whether the limit was reported.
    limits: LimitMonitor,
    /// Sessions that could not be opened.
    retries: SessionRetries,
    /// When the next periodic jobs are due.
    timers: MaintenanceTimers,
    /// The profile and the time of the table.
    context: TableContext,
    /// Whether assigned tasks may have been stopped by a user.
    check_stopped: bool,
    /// When running tasks are returned to the table, because the scheduler stops.
    drain_deadline: Option<Instant>,
    /// Whether a round succeeded since this was last asked.
    progressed: bool,
    table_name: String,
}

impl Leader {
    /// A leader that has no connection yet.
    pub fn new(
        settings: watch::Receiver<Settings>,
        run_state: watch::Receiver<RunState>,
        status: Arc<SchedulerStatus>,
    ) -> Self {
        let (sender, events) = mpsc::unbounded_channel();
        let now = Instant::now();
        let (profile, table_name) = (settings.borrow().profile, settings.borrow().names.quoted());
        Leader {
            settings,
            run_state,
            events,
            status,
            sessions: SessionPool::new(sender),
            outbox: Outbox::default(),
            claims: ClaimPlanner::new(now),
            limits: LimitMonitor::default(),
            retries: SessionRetries::default(),
            timers: MaintenanceTimers::new(now),
            context: TableContext {
                profile,
                clock: DatabaseClock::synced_to(Timestamp::EPOCH),
                zone: NamedZone::or_utc("UTC"),
            },
            check_stopped: false,
            drain_deadline: None,
            progressed: false,
            table_name,
        }
    }

    /// Whether tasks are assigned, or outcomes not written yet.
    pub fn has_tasks(&self) -> bool {
        self.sessions.busy() > 0 || self.outbox.has_outcomes()
    }

    /// Whether a round succeeded since this was last called.
    pub fn take_progress(&mut self) -> bool {
        std::mem::take(&mut self.progressed)
    }

    /// Closes the idle sessions.
    pub fn close(&mut self) {
        self.sessions.close_idle();
        self.publish_status();
    }

    /// Leads until the connection is lost, the table changes, or the scheduler stops.
    pub async fn lead(&mut self, mut connection: Connection, table: Table) -> LeaderExit {
        self.context.zone = NamedZone::or_utc(&table.zone);
        self.context.profile = table.profile;
        self.limits.reset();
        // What had no answer when the last connection was lost is sent again: it takes effect only once.
        self.outbox.reconnected();
        if let Err(error) = self.take_over(&mut connection, &table).await {
            return exit_for(error);
        }
        loop {
            self.update_drain();
            match timeout(ROUND_MAX, self.round(&mut connection, &table)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return exit_for(error),
                Err(_) => return LeaderExit::Lost("the database does not answer".into()),
            }
            self.progressed = true;
            self.publish_status();
            self.status.set_problem(&self.table_name, self.problem());
            if self.settings.borrow().profile != self.context.profile {
                return LeaderExit::Changed("the profile has changed".into());
            }
            if *self.run_state.borrow() != RunState::Running && !self.has_tasks() {
                return LeaderExit::Stopped;
            }
            if !connection.notified.is_empty() {
                connection.notified.clear();
                self.claims.request_all();
                self.check_stopped = true;
                continue;
            }
            if !self.has_more()
                && let Err(exit) = self.wait(&mut connection).await
            {
                return exit;
            }
            self.gather().await;
        }
    }

    /// Waits until something happens: an event of a session, a notification, a due time, or a change of settings.
    async fn wait(&mut self, connection: &mut Connection) -> Result<(), LeaderExit> {
        let wake = self.next_wake();
        tokio::select! {
            event = self.events.recv() => if let Some((session, event)) = event {
                self.handle_event(session, event);
            },
            noticed = connection.notification() => if let Err(error) = noticed {
                return Err(LeaderExit::Lost(error.to_string()));
            },
            () = sleep_until(wake) => self.claims.request_all(),
            Ok(()) = self.settings.changed() => self.claims.request_all(),
            Ok(()) = self.run_state.changed() => self.claims.request_all(),
        }
        Ok(())
    }

    /// Handles the events that have arrived. When a task has ended and others started a moment ago, their ends may arrive
    /// soon, and one round for all costs little more than one for each.
    async fn gather(&mut self) {
        let until = Instant::now() + GATHER_MAX;
        loop {
            while let Ok((session, event)) = self.events.try_recv() {
                self.handle_event(session, event);
            }
            if self.outbox.outcomes.is_empty()
                || !self.sessions.has_started_since(Instant::now() - YOUNG)
            {
                return;
            }
            tokio::select! {
                Some((session, event)) = self.events.recv() => self.handle_event(session, event),
                () = sleep_until(until) => return,
            }
        }
    }

    /// Does one round trip, if there is something to write or to claim.
    async fn round(
        &mut self,
        connection: &mut Connection,
        table: &Table,
    ) -> Result<(), QueryError> {
        let now = Instant::now();
        self.maintain(connection, table, now).await?;
        if std::mem::take(&mut self.check_stopped) {
            self.cancel_stopped(connection, table).await?;
        }
        self.reopen_due(table, now);
        if self.outbox.is_blocked(now) {
            return Ok(());
        }
        self.retries.expire(now);
        // A plan that is due is not delayed by groups that are always busy.
        self.claims.request_due(self.context.clock.now());
        let mut claiming = self.should_claim(now);
        if claiming || self.claims.waiting.is_any() {
            self.count_connections(connection, now).await?;
            claiming = self.should_claim(now);
        }
        if self.outbox.retry_at.is_some_and(|retry_at| retry_at > now) && !claiming {
            return Ok(());
        }
        self.outbox.retry_at = None;
        if self.outbox.is_empty() && !claiming {
            self.sessions.close_idle();
            return self.report_limit(connection, table).await;
        }
        self.exchange(connection, table, claiming, now).await
    }

    /// Sends outcomes, starts and, if `claiming`, the claim in one transaction, and handles the answers.
    async fn exchange(
        &mut self,
        connection: &mut Connection,
        table: &Table,
        claiming: bool,
        now: Instant,
    ) -> Result<(), QueryError> {
        let finish = self.finish_statement(connection, table, self.outbox.next_outcomes()).await?;
        self.outbox.send();
        let sent = &self.outbox.sent;
        let mut queries = Vec::with_capacity(3);
        match sent.outcomes.is_empty() {
            true => queries.push(Query::new(UNSYNCED, [])),
            false => {
                queries.push(Query { sql: &finish, params: vec![Some(json(&sent.outcomes))] });
            }
        }
        if !sent.starts.is_empty() {
            let text = self.starts_json();
            queries.push(Query { sql: &table.statements.start, params: vec![Some(text)] });
        }
        let capacity = self.capacity(now);
        if claiming {
            queries.push(self.claim_query(table, capacity, now));
        }
        let answered = connection.transact(&queries).await;
        if claiming {
            self.claims.note_scan(now.elapsed());
        }
        let sent = self.outbox.take_sent();
        match answered {
            Ok(answers) => {
                self.handle_answers(sent, claiming.then_some(capacity), answers, table);
                self.report_limit(connection, table).await
            }
            Err(QueryError::Refused(error)) if !sent.outcomes.is_empty() => {
                tracing::debug!("the database refused a round: {}", error.line());
                self.outbox.starts = sent.starts;
                self.claims.request_all();
                self.write_one_by_one(connection, table, sent.outcomes).await
            }
            Err(error) => {
                self.outbox.unsend(sent);
                Err(error)
            }
        }
    }

    /// Handles the answers of a round: to the outcomes and starts that were sent, and to a claim for this capacity.
    fn handle_answers(
        &mut self,
        sent: outbox::Batch,
        claimed: Option<Capacity>,
        answers: Vec<Vec<Row>>,
        table: &Table,
    ) {
        let mut answers = answers.into_iter();
        let locked = answers.next().unwrap_or_default();
        if !sent.outcomes.is_empty() {
            self.outbox.confirm(sent.outcomes, &locked);
        }
        if !sent.starts.is_empty() {
            self.handle_started(sent.starts, &answers.next().unwrap_or_default(), table);
        }
        if let Some(capacity) = claimed {
            self.handle_claimed(answers.next().unwrap_or_default(), capacity, table);
        }
        self.sessions.close_idle();
    }

    /// Whether the last round left something that can be done at once.
    fn has_more(&self) -> bool {
        !self.outbox.is_held() && (self.can_claim(Instant::now()) || self.outbox.is_ready())
    }

    /// When to run the next round although nothing happens.
    fn next_wake(&self) -> Instant {
        let settings = self.settings.borrow();
        let now = Instant::now();
        // A scheduler that stops claims nothing more, so a plan that has passed stays so and must not wake it. Neither
        // must it wake one without capacity before a task has ended.
        let claims = *self.run_state.borrow() == RunState::Running && !self.outbox.is_held();
        let starts = claims && self.capacity(now).all > 0;
        let clock = &self.context.clock;
        let slot = self.sessions.next_slot(clock.now());
        let planned = self.claims.wake_at(clock, slot, now).filter(|_| starts);
        let server = self.retries.server_full_until.filter(|_| claims);
        let connections = self.connections_stale_at().filter(|_| claims);
        let outbox = [self.outbox.retry_at, self.outbox.blocked_until];
        let cleanup = settings.keep.as_ref().map(|_| self.timers.next_cleanup);
        let times = [planned, server, connections, self.drain_deadline, cleanup];
        let times = times.into_iter().chain(outbox).flatten().chain([self.timers.next_reset]);
        times.chain(self.retries.times()).fold(now + settings.sleep, Instant::min)
    }

    /// Starts the drain deadline when the scheduler is stopping, and returns the tasks that run when it has passed.
    fn update_drain(&mut self) {
        let run_state = *self.run_state.borrow();
        if let (RunState::DrainingFor(patience), None) = (run_state, self.drain_deadline) {
            self.drain_deadline = Some(Instant::now() + patience);
        }
        if self.drain_deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            for session in self.sessions.sessions.values_mut() {
                let connected = session.pid.is_some();
                if let Some(task) = session.assigned.as_mut().filter(|task| !task.return_on_end) {
                    task.return_on_end = true;
                    let cancel = SessionCommand::Cancel;
                    session.send(if connected { cancel } else { SessionCommand::Close });
                }
            }
            self.return_unconnected();
            self.drain_deadline = None;
        }
    }

    /// What keeps tasks from starting, or outcomes from being written.
    fn problem(&self) -> Option<String> {
        self.outbox.problem.clone().or_else(|| self.retries.problem())
    }

    /// Publishes the number of sessions, running tasks and the next plan.
    fn publish_status(&self) {
        let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        let next = self.claims.next_plan.map_or(0, Timestamp::as_micros);
        self.status.sessions.store(number(self.sessions.sessions.len()), Ordering::Relaxed);
        self.status.running.store(number(self.sessions.busy()), Ordering::Relaxed);
        self.status.next_plan.store(next, Ordering::Relaxed);
    }

    /// Ends the sessions that another scheduler left behind, and reads the pauses that are not over.
    async fn take_over(
        &mut self,
        connection: &mut Connection,
        table: &Table,
    ) -> Result<(), QueryError> {
        self.restore(connection, table).await?;
        self.end_orphans(connection, table).await?;
        let pauses = connection.query(Query::new(&table.statements.pauses, [])).await?;
        for mut row in pauses {
            let at = |column: usize| task::timestamp(row.text(column)?);
            let (Some(plan), Some(stop), Some(max)) = (at(1), at(2), row.parsed(3)) else {
                continue;
            };
            let ended = EndedTask { plan, stop, max, drift: row.is_true(4) };
            if let Some(key) = row.take(0) {
                self.sessions.pause(&key, &ended, &self.context.zone);
            }
        }
        self.claims.request_all();
        self.check_stopped = true;
        Ok(())
    }

    /// The ids of the tasks that must not be given to another session, as an array.
    fn own_ids(&self) -> String {
        array(self.sessions.ids().chain(self.outbox.all_outcomes().map(|outcome| outcome.id)))
    }
}

/// How leading ends after a failed round.
fn exit_for(error: QueryError) -> LeaderExit {
    match error {
        QueryError::Lost(why) => LeaderExit::Lost(why),
        // The table is prepared again, which finds the cause.
        QueryError::Refused(error) => LeaderExit::Changed(error.line()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[tokio::test]
    async fn a_stopping_leader_does_not_wake_for_tasks_that_it_will_not_claim() {
        // A plan in the past, which only a claim renews, woke it at once, again and again: a core was busy as long as
        // the last task ran.
        let config = Config::parse(r#"[{"sleep": 3600000}]"#).expect("a configuration");
        let settings = config.rows[0].settings(&taskyard_postgres::Conninfo::default());
        let (_settings, settings) = watch::channel(settings);
        let (state, run_state) = watch::channel(RunState::Running);
        let mut leader = Leader::new(settings, run_state, Arc::default());
        let long = Instant::now() + Duration::from_secs(1800);
        leader.context.clock = DatabaseClock::synced_to(Timestamp::from_micros(1_000_000));
        leader.timers.next_reset = long + Duration::from_secs(1);
        leader.claims.next_plan = Some(Timestamp::EPOCH);
        leader.retries.server_full_until = Some(Instant::now());
        assert!(leader.next_wake() < long);
        state.send_replace(RunState::Draining);
        assert!(leader.next_wake() > long);
    }
}
