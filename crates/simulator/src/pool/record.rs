//! Records what happens in a pool: programs, frames of clients, faults, and what a check finds on the way.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use taskyard_pool::protocol::OutgoingFrame;
use tokio::time::Instant;

use super::net::{ProcessNumber, process_of};
use super::plan::{PoolFaultKind, PoolPlan};
use super::redis::Data;
use crate::history::{History, OperationNumber};
use crate::judges::Violation;

/// The record of a run, shared by all parts.
#[derive(Clone)]
pub struct SharedRecord(Arc<Mutex<PoolRecord>>);

impl SharedRecord {
    /// An empty record.
    pub fn new(history: History, plan: &PoolPlan, keeps_programs: bool) -> Self {
        SharedRecord(Arc::new(Mutex::new(PoolRecord {
            history,
            violation: None,
            runs: Vec::new(),
            tasks: BTreeMap::new(),
            quiet_since: Instant::now(),
            latest_loss: None,
            limits: plan.limits,
            bound: Duration::from_secs(u64::from(plan.leases[1]) * 2 + 12),
            keeps_programs,
            classes: BTreeMap::new(),
            incarnation: String::new(),
            known_backends: 0,
            held: BTreeMap::new(),
            started: BTreeMap::new(),
            current: BTreeSet::new(),
            unallocated: BTreeMap::new(),
            unused: BTreeMap::new(),
        })))
    }

    /// Looks at it or changes it.
    pub fn lock(&self) -> MutexGuard<'_, PoolRecord> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What happened.
pub struct PoolRecord {
    /// Notes for the reader, and for the comparison of two runs.
    pub history: History,
    /// The first violation that was found.
    pub violation: Option<Violation>,
    /// All runs of programs, by their number.
    pub runs: Vec<ProgramRecord>,
    /// The tasks of clients.
    pub tasks: BTreeMap<OperationNumber, TaskRecord>,
    /// Since when no fault is active.
    pub quiet_since: Instant,
    /// When Redis lost data or started again.
    pub latest_loss: Option<Instant>,
    limits: [u32; 2],
    /// How long a program and its allocation may differ at a quiet time.
    bound: Duration,
    /// Whether all faults of the run keep the connections of programs.
    pub keeps_programs: bool,
    /// The last known class of each task, by its number, and the shortest.
    classes: BTreeMap<String, TaskClass>,
    /// The incarnation of Redis, and how many backends the scheduler counted.
    incarnation: String,
    known_backends: usize,
    /// What held a backend after the last call.
    held: BTreeMap<String, String>,
    /// The runs that started, with their tasks.
    started: BTreeMap<String, String>,
    /// The runs of which Redis knows no end, although it may have lost that they hold a backend.
    current: BTreeSet<String>,
    /// Since when programs run without an allocation, and allocations have no program.
    unallocated: BTreeMap<usize, Instant>,
    unused: BTreeMap<String, Instant>,
}

/// The classes of a task that holds a backend, as indices.
#[derive(Clone, Copy)]
struct TaskClass {
    latest: usize,
    shortest: usize,
    /// Whether the time of the task is over.
    must_end: bool,
}

/// The name of the run in the text of an allocation.
fn name_of(text: &str) -> &str {
    text.split(' ').next().unwrap_or_default()
}

/// One run of a program.
#[derive(Clone, Debug)]
pub struct ProgramRecord {
    /// The operation of the client.
    pub task: OperationNumber,
    /// The number of its task in Redis.
    pub ticket: String,
    pub process: ProcessNumber,
    pub is_interactive: bool,
    /// Whether it is being stopped.
    pub is_stopping: bool,
    pub has_ended: bool,
    /// Whether it reached its own end.
    pub is_complete: bool,
}

/// One task of a client.
#[derive(Clone, Debug, Default)]
pub struct TaskRecord {
    /// The run whose output the client saw.
    pub seen: Option<usize>,
    /// Whether it saw the whole output of that run.
    pub saw_end: bool,
    /// Whether it received its last frame, or left.
    pub is_over: bool,
}

impl PoolRecord {
    /// Notes the first violation.
    pub fn violate(&mut self, judge: &'static str, sentence: String) {
        self.history.note(format!("violation: {sentence}"));
        self.violation.get_or_insert_with(|| Violation::new(judge, sentence));
    }

    /// A program starts; returns its number.
    pub fn start_program(&mut self, program: ProgramRecord) -> usize {
        let number = self.runs.len();
        let ProgramRecord { task, process, .. } = program;
        self.history.note(format!("run {number} of task {task:?} starts in process {process}"));
        let seen = self.tasks.get(&task).and_then(|task| task.seen);
        if let Some(seen) = seen {
            let text = format!(
                "task {task:?} runs again (run {number}) although its client saw output of run {seen}"
            );
            self.violate("seen", text);
        }
        self.runs.push(program);
        self.check_programs();
        number
    }

    /// Where all programs stay connected, no more of them run than the limits of their classes allow.
    fn check_programs(&mut self) {
        if !self.keeps_programs {
            return;
        }
        for (index, limit) in self.limits.into_iter().enumerate() {
            let counts = |run: &&ProgramRecord| {
                let class = self.classes.get(&run.ticket).map_or(0, |class| class.latest);
                !run.has_ended && !run.is_stopping && !run.is_interactive && class > index
            };
            let running = self.runs.iter().filter(counts).count();
            if running > limit as usize {
                let class = index + 1;
                let text =
                    format!("{running} programs of class {class} or longer run, not {limit}");
                return self.violate("limits", text);
            }
        }
    }

    /// A client receives a frame.
    pub fn receive(&mut self, task: OperationNumber, frame: &OutgoingFrame) {
        match frame {
            OutgoingFrame::Output(_, bytes) if !bytes.is_empty() => {
                let text = String::from_utf8_lossy(bytes).into_owned();
                self.history.note(format!("task {task:?} receives {text:?}"));
                let mut parts = text.split_whitespace();
                let (how, run) = (parts.next(), parts.next().and_then(|run| run.parse().ok()));
                let known = self.tasks.entry(task).or_default();
                let seen = known.seen;
                known.seen = seen.or(run);
                known.saw_end |= how == Some("end");
                if seen.is_some() && seen != run {
                    let text = format!(
                        "the client of task {task:?} sees output of two runs: {seen:?} and {run:?}"
                    );
                    self.violate("seen", text);
                }
            }
            OutgoingFrame::Queue(position) => {
                let is_sane =
                    |seconds: Option<f64>| seconds.is_none_or(|one| (0.0..=1e5).contains(&one));
                if ![position.estimate, position.p50, position.p90].into_iter().all(is_sane) {
                    self.violate(
                        "estimates",
                        format!("task {task:?} got the estimate {position:?}"),
                    );
                }
            }
            frame if frame.is_last() => {
                self.history.note(format!("task {task:?} ends with {frame:?}"));
                let known = self.tasks.entry(task).or_default();
                let (is_over, seen, saw_end) = (known.is_over, known.seen, known.saw_end);
                known.is_over = true;
                if is_over {
                    self.violate(
                        "answers",
                        format!("task {task:?} got a second last frame: {frame:?}"),
                    );
                }
                let is_complete = seen.is_some_and(|run| self.runs[run].is_complete);
                if *frame == OutgoingFrame::Complete(None) && !(saw_end && is_complete) {
                    let text = format!(
                        "task {task:?} ended without an error, but its output is not complete"
                    );
                    self.violate("answers", text);
                }
            }
            _ => {}
        }
    }

    /// Notes that a fault begins.
    pub fn begin_fault(&mut self, kind: PoolFaultKind) {
        if kind.loses_data() {
            self.latest_loss = Some(Instant::now());
        }
        self.history.note(format!("begin of {kind:?}"));
    }

    /// A task ends for its client although that received no last frame.
    pub fn end_early(&mut self, task: OperationNumber) {
        self.violate("answers", format!("task {task:?} ended without a last frame"));
    }

    /// Compares the allocations in Redis with the limits after a call.
    pub fn check_call(&mut self, function: &str, data: &Data, now_ms: i64, error: Option<&str>) {
        if let Some(error) = error {
            self.violate("script", format!("the function {function} failed: {error}"));
        }
        let incarnation = data.text("pool.life", now_ms).unwrap_or_default();
        if incarnation != self.incarnation {
            self.history.note("Redis has a new incarnation".into());
            self.incarnation = incarnation;
            self.known_backends = 0;
            self.held.clear();
        }
        let held = data.hash("queue.executing");
        let backends = data.set_size("backend.set");
        if function == "collect_events" {
            self.known_backends = backends;
        }
        self.check_names(function, &held);
        let grows = held.len() > self.held.len();
        let mut classes = Vec::new();
        for (ticket, text) in &held {
            let class = self.class_of(ticket, text, now_ms);
            self.classes.insert(ticket.clone(), class);
            let is_judged = self.keeps_programs || self.current.contains(name_of(text));
            match class {
                _ if function == "start" => classes.push(class.latest),
                // A backend that was cut off reports runs whose tasks have other runs by now.
                _ if !is_judged => {}
                // Backends do not report the class of a task that must end, because it was lowered below the time that it has used;
                // one that was cut off does not know either what was lowered.
                TaskClass { must_end: true, .. } => classes.push(class.shortest),
                _ if !self.keeps_programs => classes.push(class.shortest),
                _ => classes.push(class.latest),
            }
        }
        self.held = held;
        if grows {
            self.check_limits(&classes, self.known_backends.max(backends));
        }
    }

    /// The classes of a task that holds a backend.
    fn class_of(&self, ticket: &str, text: &str, now_ms: i64) -> TaskClass {
        let parts: Vec<&str> = text.split(' ').collect();
        let number = |at: usize| parts.get(at).and_then(|part| part.parse::<i64>().ok());
        let latest = number(1).unwrap_or_default() as usize;
        let shortest = self.classes.get(ticket).map_or(latest, |class| latest.min(class.shortest));
        let ends_ms = number(4).zip(number(3)).map(|(started, limit)| started + limit / 1_000);
        TaskClass { latest, shortest, must_end: ends_ms.is_some_and(|ends_ms| ends_ms <= now_ms) }
    }

    /// No more tasks of a class or longer ones hold a backend than its limit allows.
    fn check_limits(&mut self, classes: &[usize], backends: usize) {
        let limits = [backends].into_iter().chain(self.limits.map(|limit| limit as usize));
        for (class, limit) in limits.enumerate() {
            let running = classes.iter().filter(|own| **own >= class).count();
            if running > limit {
                let text = format!(
                    "{running} tasks of class {class} or longer hold a backend, not {limit}"
                );
                self.violate("limits", text);
            }
        }
    }

    /// No run that starts has the name of an earlier one, and only a run that was started is reported.
    fn check_names(&mut self, function: &str, held: &BTreeMap<String, String>) {
        let ended: Vec<String> = self
            .held
            .iter()
            .filter(|(ticket, text)| {
                held.get(*ticket).map(|now| name_of(now)) != Some(name_of(text))
            })
            .map(|(_, text)| name_of(text).to_owned())
            .collect();
        ended.iter().for_each(|name| _ = self.current.remove(name));
        for (ticket, text) in held {
            let name = name_of(text);
            if self.held.get(ticket).is_some_and(|before| name_of(before) == name) {
                continue;
            }
            let earlier = self.started.get(name).cloned();
            let wrong = match (function, earlier) {
                ("start", None) => {
                    self.started.insert(name.to_owned(), ticket.clone());
                    self.current.insert(name.to_owned());
                    continue;
                }
                ("start", Some(_)) => "has the name of an earlier one",
                (_, Some(task)) if task == *ticket => continue,
                _ => "was not started for it",
            };
            self.violate("identity", format!("a run of task {ticket} {wrong}: {name}"));
        }
    }

    /// Compares programs with allocations, each second of a quiet time.
    pub fn check_allocations(&mut self, data: &Data, now_ms: i64) {
        let now = Instant::now();
        let held = data.hash("queue.executing");
        let claimed = data.hash("queue.processing");
        let place = |ticket: &String| {
            let about = data.text(&format!("backend:{}", claimed.get(ticket)?), now_ms)?;
            let (_, rest) = about.split_once("\"address\":\"")?;
            process_of(rest.split_once('"')?.0)
        };
        let mut unallocated = BTreeMap::new();
        let mut used = BTreeSet::new();
        for (number, run) in self.runs.iter().enumerate().filter(|(_, run)| !run.has_ended) {
            if place(&run.ticket) == Some(run.process) && held.contains_key(&run.ticket) {
                used.insert(run.ticket.clone());
            } else {
                let since = self.unallocated.get(&number).copied().unwrap_or(now);
                unallocated.insert(number, since.max(self.quiet_since));
            }
        }
        let unused: BTreeMap<String, Instant> = held
            .into_keys()
            .filter(|ticket| !used.contains(ticket))
            .map(|ticket| {
                let since = self.unused.get(&ticket).copied().unwrap_or(now);
                (ticket, since.max(self.quiet_since))
            })
            .collect();
        let is_late = |since: &Instant| now.duration_since(*since) > self.bound;
        let program = unallocated.iter().find(|(_, since)| is_late(since)).map(|(run, _)| *run);
        let allocation = unused.iter().find(|(_, since)| is_late(since)).map(|(id, _)| id.clone());
        (self.unallocated, self.unused) = (unallocated, unused);
        if let Some(run) = program {
            self.violate("allocations", format!("run {run} continues without an allocation"));
        }
        if let Some(ticket) = allocation {
            self.violate(
                "allocations",
                format!("task {ticket} holds a backend, but no program of it runs"),
            );
        }
    }
}
