//! The one that leads a table: claims tasks, gives them to sessions, writes down how they ended.
//!
//! Everything that happened since the last round trip goes into the next one: ends, beginnings, and the claim of what
//! may begin now. So the more there is to do, the less each task costs.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use taskyard_core::Timestamp;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};

use crate::clock::Clock;
use crate::crew::{Crew, Ended, array, json};
use crate::scheduler::{Going, Settings};
use crate::session::{Event, Order};
use crate::status::Status;
use crate::table::{Profile, Table};
use crate::task;
use crate::verdict::Verdict;
use crate::wire::{Ask, AskError, Row, Wire};
use crate::zone::Named;

mod claims;
mod ends;
mod room;
mod upkeep;

pub use room::LIMIT_LOCK;
use room::{Allowance, Room, Waiting};

/// How long the database may take for one round trip.
const ROUND_MAX: Duration = Duration::from_secs(60);

/// A task that began longer ago than this is not waited for when others end.
const YOUNG: Duration = Duration::from_millis(2);
/// For how long at most the end of a task waits for those that have just begun.
const GATHER_MAX: Duration = Duration::from_millis(1);

/// How often in a row a session may fail to open before that is told.
const UNOPENED_TOLD: u32 = 3;

/// Lets a round be answered before it is on disk: if the server falls, what is taken and runs falls with it.
const UNSYNCED: &str = "SELECT set_config('synchronous_commit', 'off', true)";

/// Why it no longer leads.
pub enum Why {
    /// It was told to stop, and nothing is left to do.
    Over,
    /// The connection is gone.
    Lost(String),
    /// The table is not what it was.
    Changed(String),
}

/// Where there may be something to claim.
#[derive(Debug, Default)]
struct Look {
    /// In all groups.
    all: bool,
    /// In these groups, by key.
    keys: HashSet<String>,
}

impl Look {
    /// In this group too.
    fn add(&mut self, key: &str) {
        self.keys.insert(key.to_owned());
    }
}

/// The one that leads a table. Its sessions and what they told outlive its connection.
pub struct Leader {
    settings: watch::Receiver<Settings>,
    going: watch::Receiver<Going>,
    status: Arc<Status>,
    crew: Crew,
    events: mpsc::UnboundedReceiver<(u64, Event)>,
    /// Ends that are not written down yet.
    ends: Vec<Verdict>,
    /// Sessions whose task is to begin as soon as that is written down.
    starts: Vec<u64>,
    /// What was sent and not answered yet: of both.
    sent: (Vec<Verdict>, Vec<u64>),
    /// Ends that the database refuses for good; tried again with everything else that is seen to from time to time.
    unwritten: Vec<Verdict>,
    /// Where there may be something to claim.
    look: Look,
    /// Groups whose tasks could begin if there were room for more tasks in all.
    waiting: Waiting,
    /// When all groups were last looked at, and until when that is not done again while groups are known to wait.
    full_at: Instant,
    full_after: Instant,
    /// How many sessions the server has room for, where the configuration does not say it.
    allowance: Option<Allowance>,
    /// Whether it was told that tasks wait because of the limit, and when the log said so.
    limit_told: bool,
    limit_logged: Option<Instant>,
    /// Whether tasks under way may have been stopped.
    check: bool,
    /// How many more rows to look at, because many are not active any more.
    spare: usize,
    next_plan: Option<Timestamp>,
    /// When a plan or the end of a pause wants all groups looked at. A claim for some of them does not put it off.
    next_look: Option<Timestamp>,
    /// Whether the claim under way is for all groups.
    looks_at_all: bool,
    clock: Clock,
    zone: Named,
    /// Until when no sessions are opened, because there is no room for them.
    full_until: Option<Instant>,
    /// When to try again what somebody holds locked, and sessions of a remote without room.
    again: Option<Instant>,
    /// Until when nothing is written, because the database cannot now.
    hold: Option<Instant>,
    reopen: Vec<(Instant, u64)>,
    /// When running tasks are given back.
    patience: Option<Instant>,
    next_upkeep: Instant,
    next_reset: Instant,
    next_unwritten: Instant,
    /// Which states the table has.
    profile: Profile,
    /// Whether a round went well since it was last asked.
    worked: bool,
    /// What keeps tasks from beginning or from being written down.
    trouble: Option<String>,
    /// How often in a row no session could be opened although there is room, and why.
    unopened: (u32, String),
    name: String,
}

impl Leader {
    /// One that does not lead yet.
    pub fn new(
        settings: watch::Receiver<Settings>,
        going: watch::Receiver<Going>,
        status: Arc<Status>,
    ) -> Self {
        let (teller, events) = mpsc::unbounded_channel();
        let now = Instant::now();
        let (profile, name) = (settings.borrow().profile, settings.borrow().names.quoted());
        Leader {
            settings,
            going,
            status,
            crew: Crew::new(teller),
            events,
            ends: Vec::new(),
            starts: Vec::new(),
            sent: (Vec::new(), Vec::new()),
            unwritten: Vec::new(),
            look: Look { all: true, ..Look::default() },
            waiting: Waiting::default(),
            full_at: now,
            full_after: now,
            allowance: None,
            limit_told: false,
            limit_logged: None,
            check: false,
            spare: 0,
            next_plan: None,
            next_look: None,
            looks_at_all: true,
            clock: Clock::showing(Timestamp::EPOCH),
            zone: Named::or_utc("UTC"),
            full_until: None,
            again: None,
            hold: None,
            reopen: Vec::new(),
            patience: None,
            next_upkeep: now,
            next_reset: now,
            next_unwritten: now,
            profile,
            worked: false,
            trouble: None,
            unopened: (0, String::new()),
            name,
        }
    }

    /// Whether tasks are under way or not written down.
    pub fn has_tasks(&self) -> bool {
        self.crew.busy() > 0 || !self.ends.is_empty() || !self.sent.0.is_empty()
    }

    /// Whether a round went well since this was last asked.
    pub fn has_worked(&mut self) -> bool {
        std::mem::take(&mut self.worked)
    }

    /// Closes what is open.
    pub fn close(&mut self) {
        self.crew.close_idle();
        self.tell();
    }

    /// Leads until something ends it.
    pub async fn lead(&mut self, mut wire: Wire, table: Table) -> Why {
        self.zone = Named::or_utc(&table.zone);
        (self.profile, self.hold) = (table.profile, None);
        (self.limit_told, self.allowance) = (false, None);
        // What had no answer when the last connection was lost is sent again: it is done once all the same.
        let (ends, starts) = std::mem::take(&mut self.sent);
        self.ends.extend(ends);
        self.starts.extend(starts);
        if let Err(error) = self.take_over(&mut wire, &table).await {
            return why(error);
        }
        loop {
            self.note_going();
            match timeout(ROUND_MAX, self.round(&mut wire, &table)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return why(error),
                Err(_) => return Why::Lost("the database does not answer".into()),
            }
            self.worked = true;
            self.tell();
            self.status.trouble(&self.name, self.trouble());
            if self.settings.borrow().profile != self.profile {
                return Why::Changed("the profile has changed".into());
            }
            if *self.going.borrow() != Going::On && !self.has_tasks() {
                return Why::Over;
            }
            if !wire.notified.is_empty() {
                wire.notified.clear();
                (self.look.all, self.check) = (true, true);
                continue;
            }
            if self.has_more() {
                self.gather().await;
                continue;
            }
            let wake = self.wake();
            tokio::select! {
                event = self.events.recv() => if let Some((session, event)) = event {
                    self.take_event(session, event);
                },
                noticed = wire.notification() => if let Err(error) = noticed {
                    return Why::Lost(error.to_string());
                },
                () = sleep_until(wake) => self.look.all = true,
                Ok(()) = self.settings.changed() => self.look.all = true,
                Ok(()) = self.going.changed() => self.look.all = true,
            }
            self.gather().await;
        }
    }

    /// Takes what was told meanwhile. When a task has ended and others began a moment ago, their ends may come at any
    /// moment, and one round for all costs little more than one for each.
    async fn gather(&mut self) {
        let until = Instant::now() + GATHER_MAX;
        loop {
            while let Ok((session, event)) = self.events.try_recv() {
                self.take_event(session, event);
            }
            if self.ends.is_empty() || !self.crew.has_begun_since(Instant::now() - YOUNG) {
                return;
            }
            tokio::select! {
                Some((session, event)) = self.events.recv() => self.take_event(session, event),
                () = sleep_until(until) => return,
            }
        }
    }

    /// One round trip, if there is something to say or to ask.
    async fn round(&mut self, wire: &mut Wire, table: &Table) -> Result<(), AskError> {
        let now = Instant::now();
        self.upkeep(wire, table, now).await?;
        if std::mem::take(&mut self.check) {
            self.cancel_unwanted(wire, table).await?;
        }
        self.reopen_due(table, now);
        if self.hold.is_some_and(|hold| hold > now) {
            return Ok(());
        }
        self.hold = None;
        self.full_until = self.full_until.filter(|until| *until > now);
        // A moment that has come is seen to however busy some groups keep us.
        if self.next_look.is_some_and(|at| at <= self.clock.now()) {
            self.look.all = true;
        }
        let mut claiming = self.claims(now);
        if claiming || self.waiting.is_any() {
            self.count_connections(wire, now).await?;
            claiming = self.claims(now);
        }
        if self.again.is_some_and(|again| again > now) && !claiming {
            return Ok(());
        }
        self.again = None;
        if self.ends.is_empty() && self.starts.is_empty() && !claiming {
            self.crew.close_idle();
            return self.tell_limit(wire, table).await;
        }
        let portion = ends::portion(&self.ends);
        let finish = self.finish_text(wire, table, &self.ends[..portion]).await?;
        let rest = self.ends.split_off(portion);
        self.sent = (std::mem::replace(&mut self.ends, rest), std::mem::take(&mut self.starts));
        let mut asks = Vec::with_capacity(3);
        match self.sent.0.is_empty() {
            true => asks.push(Ask::new(UNSYNCED, [])),
            false => asks.push(Ask { sql: &finish, params: vec![Some(json(&self.sent.0))] }),
        }
        if !self.sent.1.is_empty() {
            let text = self.starts_json();
            asks.push(Ask { sql: &table.statements.start, params: vec![Some(text)] });
        }
        let room = self.room(now);
        if claiming {
            asks.push(self.claim(table, room, now));
        }
        let answered = wire.transact(&asks).await;
        if claiming && self.looks_at_all {
            self.looked_at_all(now.elapsed());
        }
        let (ends, starts) = std::mem::take(&mut self.sent);
        match answered {
            Ok(answers) => {
                self.answered((ends, starts), claiming.then_some(room), answers, table);
                self.tell_limit(wire, table).await
            }
            Err(AskError::Refused(refusal)) if !ends.is_empty() => {
                tracing::debug!("a round was refused: {}", refusal.line());
                (self.starts, self.look.all) = (starts, true);
                self.write_alone(wire, table, ends).await
            }
            Err(error) => {
                self.ends.extend(ends);
                self.starts = starts;
                Err(error)
            }
        }
    }

    /// Takes in what a round said: of ends and starts that were sent, and of a claim for so much room.
    fn answered(
        &mut self,
        (ends, starts): (Vec<Verdict>, Vec<u64>),
        claimed: Option<Room>,
        answers: Vec<Vec<Row>>,
        table: &Table,
    ) {
        let mut answers = answers.into_iter();
        let locked = answers.next().unwrap_or_default();
        if !ends.is_empty() {
            self.trouble = None;
            self.written(ends, &locked);
        }
        if !starts.is_empty() {
            self.started(starts, &answers.next().unwrap_or_default(), table);
        }
        if let Some(room) = claimed {
            self.claimed(answers.next().unwrap_or_default(), room, table);
        }
        self.crew.close_idle();
    }

    /// Whether the last round left something to be done at once.
    fn has_more(&self) -> bool {
        if self.hold.is_some() {
            return false;
        }
        let looks = self.may_claim(Instant::now());
        // What somebody else holds locked is tried again a little later.
        looks || (self.again.is_none() && !(self.ends.is_empty() && self.starts.is_empty()))
    }

    /// When to look again though nothing happens.
    fn wake(&self) -> Instant {
        let settings = self.settings.borrow();
        let poll = Instant::now() + settings.sleep;
        // One that stops claims nothing more, so what it waited for stays past and would wake it for ever.
        // Neither does one without room, before a task has ended.
        let (now, clock) = (Instant::now(), self.clock.now());
        let claims = *self.going.borrow() == Going::On && self.hold.is_none();
        let looks = claims && self.room(now).all > 0;
        let soon = self.may_look_at_all(now);
        let plans =
            [self.next_plan, self.next_look, self.crew.next_slot(clock)].into_iter().flatten();
        let plans = plans.filter(|_| looks && soon).map(|at| self.clock.when(at));
        let full = self.full_until.filter(|_| claims);
        let later = Some(self.full_after).filter(|_| looks && !soon);
        let room = self.wake_for_room().filter(|_| claims);
        let others = [full, later, room, self.again, self.hold, self.patience];
        let others = others.into_iter().flatten();
        let reopen = self.reopen.iter().map(|(at, _)| *at);
        let upkeep = settings.keep.as_ref().map(|_| self.next_upkeep);
        let upkeep = upkeep.into_iter().chain([self.next_reset]);
        plans.chain(others).chain(reopen).chain(upkeep).fold(poll, Instant::min)
    }

    /// Sees whether to stop, and how patiently.
    fn note_going(&mut self) {
        let going = *self.going.borrow();
        if let (Going::Within(patience), None) = (going, self.patience) {
            self.patience = Some(Instant::now() + patience);
        }
        if self.patience.is_some_and(|patience| patience <= Instant::now()) {
            for session in self.crew.sessions.values_mut() {
                if let Some(held) = session.held.as_mut().filter(|held| !held.give_back) {
                    held.give_back = true;
                    session.order(if session.pid.is_some() { Order::Cancel } else { Order::Close });
                }
            }
            self.give_back_unopened();
            self.patience = None;
        }
    }

    /// What keeps it from its work.
    fn trouble(&self) -> Option<String> {
        let unopened = Some(&self.unopened).filter(|(count, _)| *count >= UNOPENED_TOLD);
        let unopened = unopened.map(|(_, why)| format!("no session for a task: {why}"));
        self.trouble.clone().or(unopened)
    }

    /// Publishes what others may want to know.
    fn tell(&self) {
        let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        let next = self.next_plan.map_or(0, Timestamp::as_micros);
        self.status.sessions.store(number(self.crew.sessions.len()), Ordering::Relaxed);
        self.status.running.store(number(self.crew.busy()), Ordering::Relaxed);
        self.status.next_plan.store(next, Ordering::Relaxed);
    }

    /// Ends what another one left behind, and learns the pauses that are not over.
    async fn take_over(&mut self, wire: &mut Wire, table: &Table) -> Result<(), AskError> {
        self.restore(wire, table).await?;
        self.end_orphans(wire, table).await?;
        let pauses = wire.ask(Ask::new(&table.statements.pauses, [])).await?;
        for mut row in pauses {
            let moment = |place: usize| task::moment(row.text(place)?);
            let (Some(plan), Some(stop), Some(max)) = (moment(1), moment(2), row.parsed(3)) else {
                continue;
            };
            let ended = Ended { plan, stop, max, drift: row.is_true(4) };
            if let Some(key) = row.take(0) {
                self.crew.pause(&key, &ended, &self.zone);
            }
        }
        (self.look.all, self.check) = (true, true);
        Ok(())
    }

    /// The tasks that are not to be given to anybody else.
    fn mine(&self) -> String {
        let ends = self.ends.iter().chain(&self.unwritten).chain(&self.sent.0);
        array(self.crew.ids().chain(ends.map(|end| end.id)))
    }
}

/// What a failed round means.
fn why(error: AskError) -> Why {
    match error {
        AskError::Lost(said) => Why::Lost(said),
        // Whatever it is, a new look at the table finds out.
        AskError::Refused(refusal) => Why::Changed(refusal.line()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[tokio::test]
    async fn one_that_stops_does_not_wake_for_what_it_will_not_claim() {
        // A plan that was past, which only a claim renews, woke it at once, again and again: a core was busy as long as
        // the last task ran.
        let config = Config::parse(r#"[{"sleep": 3600000}]"#).expect("a configuration");
        let settings = config.rows[0].settings(&taskyard_postgres::Conninfo::default());
        let (_settings, given) = watch::channel(settings);
        let (going, told) = watch::channel(Going::On);
        let mut leader = Leader::new(given, told, Arc::default());
        let long = Instant::now() + Duration::from_secs(1800);
        leader.clock = Clock::showing(Timestamp::from_micros(1_000_000));
        leader.next_reset = long + Duration::from_secs(1);
        leader.next_plan = Some(Timestamp::EPOCH);
        leader.full_until = Some(Instant::now());
        assert!(leader.wake() < long);
        going.send_replace(Going::AfterTasks);
        assert!(leader.wake() > long);
    }
}
