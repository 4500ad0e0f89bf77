//! Claims, and what is done with the tasks they bring.

use std::collections::HashMap;
use std::time::Duration;

use taskyard_core::Timestamp;
use taskyard_core::schedule::Interval;
use tokio::time::Instant;

use super::Leader;
use super::room::{Claim, INPUT_BYTES_MAX, Room, Waiter};
use crate::clock::Clock;
use crate::crew::{Held, array, json};
use crate::scheduler::{CHECK_CLIENT, KEEPALIVES};
use crate::session::{Job, Order};
use crate::status::Status;
use crate::table::{Profile, Table};
use crate::task::{self, COLUMNS_COUNT, Task};
use crate::verdict::{Judge, cron_of};
use crate::wire::{Ask, Opening, Refusal, Row};
use taskyard_postgres::Conninfo;

/// How many more rows are looked at once some were not active any more.
const SPARE: usize = 1000;
/// The longest group that a session is opened with: the server takes only so many bytes then, and a longer one is told
/// once it is there.
const GROUP_OPENING_BYTES_MAX: usize = 1000;

impl Leader {
    /// The claim that fits in this much room.
    pub(super) fn claim<'a>(&mut self, table: &'a Table, room: Room, now: Instant) -> Ask<'a> {
        let busy = self.crew.busy_json(self.clock.now());
        let idle = self.crew.idle_json();
        self.looks_at_all = self.look.all && self.may_look_at_all(now);
        let mut keys = std::mem::take(&mut self.look.keys);
        let keys = if self.looks_at_all {
            self.look.all = false;
            None
        } else {
            keys.iter().for_each(|key| self.waiting.remove(key));
            keys.extend(self.waiting.take(room));
            Some(array(keys))
        };
        let others = [busy, idle, room.all.to_string(), self.spare.to_string()].map(Some);
        let bytes = INPUT_BYTES_MAX.saturating_sub(self.crew.input_bytes()).to_string();
        let more = [keys, Some(bytes), Some(room.local.to_string())];
        Ask { sql: &table.statements.claim, params: others.into_iter().chain(more).collect() }
    }

    /// Takes what a claim brought.
    pub(super) fn claimed(&mut self, rows: Vec<Row>, room: Room, table: &Table) {
        // Between these is what makes the claim wait for the disk.
        let (key, expired, at) = (COLUMNS_COUNT, COLUMNS_COUNT + 1, COLUMNS_COUNT + 3);
        let (next, left) = (at + 1, at + 2);
        let mut found = 0;
        let mut waiters: Vec<Waiter> = Vec::new();
        self.spare = 0;
        let escapes = self.profile == Profile::Extended;
        for mut row in rows {
            if let Some(shown) = row.text(at).and_then(task::moment) {
                self.clock = Clock::showing(shown);
            }
            let Some(group) = row.take(key) else {
                self.next_plan = row.text(next).and_then(task::moment);
                let before = self.next_look.filter(|_| !self.looks_at_all);
                let pause = self.crew.next_slot(self.clock.now());
                self.next_look = [before, self.next_plan, pause].into_iter().flatten().min();
                let text = row.text(left).unwrap_or("[]");
                waiters = serde_json::from_str(text).unwrap_or_default();
                continue;
            };
            let late = row.is_true(expired);
            let Some(task) = Task::read(&mut row, escapes) else {
                tracing::error!("a claimed row cannot be read");
                continue;
            };
            found += 1;
            Status::count(&self.status.claimed);
            if late {
                self.spare = SPARE;
                Status::count(&self.status.expired);
                let verdict = self.judged(|judge, now| judge.expired(&task, now));
                self.ends.push(verdict);
            } else {
                self.begin(group, task, table);
            }
        }
        if found == 0 && self.full_until.is_none() && self.crew.busy() == 0 {
            self.unopened = (0, String::new());
        }
        self.waiting.left(waiters, Claim { all: self.looks_at_all, room, found: found > 0 });
        if self.spare > 0 {
            self.look.all = true;
        }
    }

    /// Asks the judge about something that happens now.
    pub(super) fn judged<T>(&self, ask: impl FnOnce(&Judge<'_>, Timestamp) -> T) -> T {
        ask(&Judge { profile: self.profile, zone: &self.zone }, self.clock.now())
    }

    /// Gives a task to the session that it was claimed for, or opens one.
    fn begin(&mut self, key: String, task: Task, table: &Table) {
        if let Some(refusal) = unreadable(&task) {
            let verdict = self.judged(|judge, now| judge.refused(&task, now, &refusal));
            self.ends.push(crate::verdict::Verdict { old_pid: task.pid, ..verdict });
            // It took the place of another.
            self.look.add(&key);
            return;
        }
        let held = |task: Task, start| {
            let shown_pid = task.pid;
            let deadline = None;
            Held { task, start, shown_pid, ran: None, give_back: false, tries: 0, deadline }
        };
        if let Some(pid) = task.pid {
            match self.crew.idle(&key, pid) {
                Some(session) => {
                    let start = self.clock.now();
                    self.crew.give(session, held(task, Some(start)));
                    self.run(session, true, table);
                }
                None => {
                    let verdict = self.judged(|judge, _| judge.given_back(&task, Some(pid)));
                    self.ends.push(verdict);
                }
            }
            return;
        }
        match self.opening(&task, table) {
            Ok(how) => {
                let now = self.clock.now();
                // Of a task on a remote, connecting takes a part of its time.
                let limit = timeout(task.timeout).filter(|_| task.remote.is_some());
                let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
                self.crew.open(key, Held { deadline, ..held(task, None) }, now, how);
            }
            Err(refusal) => {
                let verdict = self.judged(|judge, now| judge.refused(&task, now, &refusal));
                self.ends.push(verdict);
            }
        }
    }

    /// How a session for this task is opened.
    pub(super) fn opening(
        &self,
        task: &Task,
        table: &Table,
    ) -> Result<(Conninfo, Opening), Box<Refusal>> {
        let settings = self.settings.borrow();
        let names = &settings.names;
        let name = format!("pg_task {} {} {}", names.schema, names.table, task.group);
        let mut session = vec![("application_name".into(), cut(&name))];
        let Some(remote) = &task.remote else {
            if task.group.len() <= GROUP_OPENING_BYTES_MAX {
                session.extend(identity(task, &settings, table));
            }
            session.extend(KEEPALIVES.map(|(name, value)| (name.into(), value.into())));
            let (name, value) = CHECK_CLIENT;
            session.extend(table.checks_client.then(|| (name.into(), value.into())));
            let opening = Opening { settings: session, password_must_count: false };
            return Ok((settings.conninfo.clone(), opening));
        };
        let wrong = |error: taskyard_postgres::ConninfoError| {
            Box::new(Refusal::detailed("PQconninfoParse failed", error.to_string()))
        };
        let mut conninfo = Conninfo::parse(remote).map_err(wrong)?;
        if !table.superuser && conninfo.names_files() {
            return Err(Box::new(Refusal::detailed(
                "files are not allowed in a remote",
                "Non-superusers must not name sslrootcert, sslcert, sslkey or passfile in the connection string.",
            )));
        }
        conninfo.fill(|name| std::env::var(name).ok()).map_err(wrong)?;
        if !table.superuser && conninfo.password.is_none() {
            return Err(Box::new(Refusal::detailed(
                "password is required",
                "Non-superusers must provide a password in the connection string.",
            )));
        }
        Ok((conninfo, Opening { settings: session, password_must_count: !table.superuser }))
    }

    /// Lets a session run its task.
    pub(super) fn run(&mut self, number: u64, again: bool, table: &Table) {
        let settings = self.settings.borrow();
        let Some(session) = self.crew.sessions.get_mut(&number) else { return };
        let Some(held) = &mut session.held else { return };
        held.ran = Some(Instant::now());
        let task = &held.task;
        let Ok(format) = task.format.clone() else { return };
        let mut before = None;
        let anew = task.remote.is_some() || task.group.len() > GROUP_OPENING_BYTES_MAX;
        if anew || again {
            // What was set when the session was opened is back after it was cleaned.
            let all = identity(task, &settings, table);
            let own = all.into_iter().filter(|(name, _)| anew || name == "pg_task.id");
            // What a task before left behind must not change how this one is read.
            let own = own.chain(again.then(|| ("client_encoding".into(), "UTF8".into())));
            let set = own.map(|(name, value)| {
                let (name, value) = (crate::table::literal(&name), crate::table::literal(&value));
                format!("set_config({name}, {value}, false)")
            });
            before = Some(format!("SELECT {}", set.collect::<Vec<_>>().join(", ")));
        }
        let job = Job {
            input: task.input.clone(),
            timeout: match held.deadline {
                Some(deadline) => Some(deadline.saturating_duration_since(Instant::now())),
                None => timeout(task.timeout),
            },
            format,
            output_bytes_max: settings.output_bytes_max,
            attempt: task.remote.as_ref().map(|_| watchful()),
            before,
            clean: task.reuse.goes_on() && !task.save,
        };
        session.order(Order::Run(Box::new(job)));
    }

    /// The beginnings that are sent.
    pub(super) fn starts_json(&self) -> String {
        let mut items = Vec::new();
        for number in &self.sent.1 {
            let Some(session) = self.crew.sessions.get(number) else { continue };
            if let (Some(held), Some(pid)) = (&session.held, session.pid) {
                items.push(serde_json::json!({ "id": held.task.id, "pid": pid }));
            }
        }
        json(items)
    }

    /// Those of the sessions whose task was not stopped meanwhile run it.
    pub(super) fn started(&mut self, starts: Vec<u64>, rows: &[Row], table: &Table) {
        let begun = |row: &Row| Some((row.parsed::<i64>(0)?, row.text(1).and_then(task::moment)));
        let begun: HashMap<i64, _> = rows.iter().filter_map(begun).collect();
        // Our own clock may be behind by what the last claim took, and no task ends before it began.
        let latest = begun.values().copied().flatten().max();
        if let Some(latest) = latest.filter(|latest| *latest > self.clock.now()) {
            self.clock = Clock::showing(latest);
        }
        for number in starts {
            let Some(session) = self.crew.sessions.get_mut(&number) else { continue };
            let pid = session.pid;
            let Some(held) = &mut session.held else { continue };
            if let Some(start) = begun.get(&held.task.id) {
                (held.shown_pid, held.start) = (pid, *start);
                self.run(number, false, table);
            } else {
                // Somebody has it locked, or it is no longer to run: a look will tell.
                self.starts.push(number);
                self.check = true;
                self.again = Some(Instant::now() + Duration::from_millis(20));
            }
        }
    }
}

/// What in a task cannot be read.
fn unreadable(task: &Task) -> Option<Refusal> {
    let wrong = task.format.as_ref().err().cloned().or_else(|| cron_of(task).err())?;
    Some(Refusal::own(wrong))
}

/// Lets the session of a remote end soon after we are gone, so that its task does not go on for nobody. Not every server
/// can.
fn watchful() -> String {
    let set = [CHECK_CLIENT].into_iter().chain(KEEPALIVES);
    let set = set.map(|(name, value)| format!("set_config('{name}', '{value}', false)"));
    format!("SELECT {}", set.collect::<Vec<_>>().join(", "))
}

/// What a task can find out about itself.
fn identity(
    task: &Task,
    settings: &crate::scheduler::Settings,
    table: &Table,
) -> Vec<(String, String)> {
    let names = &settings.names;
    [
        ("id", task.id.to_string()),
        ("group", task.group.clone()),
        ("schema", names.schema.clone()),
        ("table", names.table.clone()),
        ("oid", table.oid.to_string()),
    ]
    .into_iter()
    .map(|(name, value)| (format!("pg_task.{name}"), value))
    .collect()
}

/// As long as the server lets a name be.
fn cut(name: &str) -> String {
    name[..name.floor_char_boundary(63)].to_owned()
}

fn timeout(interval: Interval) -> Option<Duration> {
    interval.is_positive().then(|| Duration::from(interval.span()))
}
