//! Runs random semaphore commands on a queue and on the core's machine: every reply must be the same, and the last event
//! of each holder must match its status.
//!
//! A seed determines a run, as for tubes: see [`seeds`](crate::model::seeds).

use std::collections::{HashMap, VecDeque};

use taskyard_core::{
    Command, Error, EventId, EventKind, Grant, GrantFinish, GrantOutcome, Machine, MemberInfo,
    Reply, Result, SemaphoreCommand, SemaphoreKey, SemaphoreReply, Span, Status, TaskId,
};

use super::super::Harness;
use super::script::{SemaphoreScript, TASKS};

/// How many of the latest commands a failure shows.
const SHOWN: usize = 15;

/// Runs the commands of a seed on the queue and on the machine, and compares every reply; at the end
/// the whole visible state, now and after a day.
pub async fn replay<H: Harness>(queue: H, seed: u64, commands: usize) {
    let durable = queue.capabilities().durable;
    let mut run = SemaphoreRun {
        seed,
        asked: 0,
        latest: VecDeque::new(),
        queue,
        machine: Machine::default(),
        to_store: HashMap::new(),
        to_machine: HashMap::new(),
        received: HashMap::new(),
    };
    let mut script = SemaphoreScript::new(seed);
    for key in SemaphoreScript::keys() {
        let change = Box::new(script.change());
        run.execute(vec![SemaphoreCommand::Configure { key, change, only_new: true }]).await;
    }
    while run.asked < commands {
        if let Some(span) = script.pause() {
            run.remember(format!("the clock advances by {} s", span.as_secs_f64()));
            run.queue.advance(span);
        }
        if durable && script.restarts() {
            run = run.restart().await;
        }
        if script.is_quiet() {
            run.check_last_events().await;
        }
        let batch = script.batch();
        run.execute(batch).await.iter().flatten().for_each(|reply| script.learn(reply));
    }
    run.compare_all().await;
    run.queue.advance(Span::from_secs(24 * 3600));
    run.compare_all().await;
    run.check_last_events().await;
}

/// One run: its progress, its latest commands, and the mapping between the event numbers of the two sides.
struct SemaphoreRun<H> {
    seed: u64,
    asked: usize,
    latest: VecDeque<String>,
    queue: H,
    machine: Machine,
    to_store: HashMap<EventId, EventId>,
    to_machine: HashMap<EventId, EventId>,
    /// The last event of each grant; a declined request counts as answered.
    received: HashMap<(SemaphoreKey, Grant), EventKind>,
}

impl<H: Harness> SemaphoreRun<H> {
    /// Runs the commands on both, compares, and returns the machine's replies.
    async fn execute(&mut self, commands: Vec<SemaphoreCommand>) -> Vec<Result<SemaphoreReply>> {
        let now = self.queue.now();
        while self.machine.apply(now, Command::Tick { limit: 1000, seed: 0 })
            != Ok(Reply::Ticked(0))
        {}
        let mut expected = Vec::new();
        for command in &commands {
            self.asked += 1;
            let reply = self.machine.apply(now, Command::Semaphore(command.clone()));
            self.remember(format!("{command:?}\n    -> {reply:?}"));
            self.note_events(command, &reply);
            expected.push(reply);
        }
        self.machine.take_effects();
        let asked = commands.iter().map(|command| Command::Semaphore(self.for_store(command)));
        let got = self.queue.execute(asked.collect()).await;
        assert_eq!(got.len(), expected.len(), "seed {}", self.seed);
        for (expected, got) in expected.iter().zip(got) {
            let said = format!("{got:?}");
            if !self.is_same(expected, got) {
                self.fail(&format!("  machine: {expected:?}\n  queue:   {said}"));
            }
        }
        expected.into_iter().map(semaphore_reply).collect()
    }

    /// Notes the events that holders received, and their declines.
    fn note_events(&mut self, command: &SemaphoreCommand, reply: &Result<Reply>) {
        match (command, reply) {
            (_, Ok(Reply::Semaphore(SemaphoreReply::Events(events)))) => {
                let received =
                    events.iter().map(|event| ((event.semaphore.clone(), event.grant), event.kind));
                self.received.extend(received);
            }
            (
                SemaphoreCommand::Finish { key, items },
                Ok(Reply::Semaphore(SemaphoreReply::Finished(outcomes))),
            ) => {
                for (item, outcome) in items.iter().zip(outcomes) {
                    let declined = (item.finish, *outcome);
                    if declined == (GrantFinish::Decline, GrantOutcome::Done) {
                        let members = self.members(key, vec![item.task]);
                        let grants = members.iter().filter_map(|member| member.grant);
                        grants.for_each(|grant| _ = self.received.remove(&(key.clone(), grant)));
                    }
                }
            }
            _ => {}
        }
    }

    /// Shows tasks, as the machine has them.
    fn members(&mut self, key: &SemaphoreKey, tasks: Vec<TaskId>) -> Vec<MemberInfo> {
        let peek = SemaphoreCommand::Peek { key: key.clone(), tasks };
        match self.machine.apply(self.queue.now(), Command::Semaphore(peek)) {
            Ok(Reply::Semaphore(SemaphoreReply::MemberInfos(members))) => members,
            other => panic!("unexpected reply: {other:?}"),
        }
    }

    /// When all events of a semaphore have arrived, the last event of each holder matches its status.
    async fn check_last_events(&mut self) {
        for key in SemaphoreScript::keys() {
            let fetch =
                SemaphoreCommand::Events { key: Some(key.clone()), count: 1000, wait: Span::ZERO };
            while let Some(Ok(SemaphoreReply::Events(events))) =
                self.execute(vec![fetch.clone()]).await.pop()
                && !events.is_empty()
            {
                let events = events.iter().map(|event| event.id).collect();
                self.execute(vec![SemaphoreCommand::Acknowledge { events }]).await;
            }
            if self.events_left(&key) {
                // Events that were delivered and not acknowledged are repeated later.
                continue;
            }
            for member in self.members(&key, (0..TASKS).map(TaskId).collect()) {
                let Some(grant) = member.grant else { continue };
                let received = self.received.get(&(key.clone(), grant));
                let asked = received == Some(&EventKind::TryRelease);
                if asked != (member.status == Status::TryRelease) {
                    self.fail(&format!("  {member:?} of '{key}' last received {received:?}"));
                }
            }
        }
    }

    /// Whether a semaphore has unacknowledged events, as the machine has it.
    fn events_left(&mut self, key: &SemaphoreKey) -> bool {
        let list = SemaphoreCommand::List { key: Some(key.clone()) };
        match self.machine.apply(self.queue.now(), Command::Semaphore(list)) {
            Ok(Reply::Semaphore(SemaphoreReply::Semaphores(infos))) => {
                infos.iter().any(|info| info.events > 0)
            }
            // Its first options were invalid, and it was never created.
            Err(Error::SemaphoreNotFound(_)) => true,
            other => panic!("unexpected reply: {other:?}"),
        }
    }

    /// The command for the queue: with the queue's event numbers.
    fn for_store(&self, command: &SemaphoreCommand) -> SemaphoreCommand {
        let SemaphoreCommand::Acknowledge { events } = command else { return command.clone() };
        let own = |id: &EventId| self.to_store.get(id).copied().unwrap_or(*id);
        SemaphoreCommand::Acknowledge { events: events.iter().map(own).collect() }
    }

    fn is_same(&mut self, expected: &Result<Reply>, got: Result<Reply>) -> bool {
        match (expected, got) {
            (Err(Error::Invalid(_)), Err(Error::Invalid(_))) => true,
            (
                Ok(Reply::Semaphore(SemaphoreReply::Events(expected))),
                Ok(Reply::Semaphore(SemaphoreReply::Events(mut got))),
            ) => {
                // Events of several semaphores in one batch are in order for each of them, not among them.
                let mut expected = expected.clone();
                expected.sort_by(|a, b| a.semaphore.cmp(&b.semaphore));
                got.sort_by(|a, b| a.semaphore.cmp(&b.semaphore));
                for (expected, got) in expected.iter().zip(&mut got) {
                    self.to_store.insert(expected.id, got.id);
                    let known = self.to_machine.entry(got.id).or_insert(expected.id);
                    got.id = *known;
                }
                expected == got
            }
            (expected, got) => *expected == got,
        }
    }

    async fn restart(mut self) -> Self {
        self.remember("restart".into());
        self.queue = self.queue.restart().await;
        self.compare_all().await;
        self
    }

    /// Compares the whole visible state.
    async fn compare_all(&mut self) {
        self.execute(vec![SemaphoreCommand::List { key: None }]).await;
        for key in SemaphoreScript::keys() {
            let tasks = (0..TASKS).map(TaskId).collect();
            self.execute(vec![SemaphoreCommand::Peek { key, tasks }]).await;
        }
    }

    fn remember(&mut self, line: String) {
        if self.latest.len() == SHOWN {
            self.latest.pop_front();
        }
        self.latest.push_back(line);
    }

    fn fail(&self, difference: &str) -> ! {
        let latest: Vec<&str> = self.latest.iter().map(String::as_str).collect();
        panic!(
            "seed {seed}, after {asked} commands:\n{difference}\nthe latest:\n  {latest}\n\
             run it again with TASKYARD_SEED={seed}",
            seed = self.seed,
            asked = self.asked,
            latest = latest.join("\n  "),
        )
    }
}

fn semaphore_reply(reply: Result<Reply>) -> Result<SemaphoreReply> {
    match reply? {
        Reply::Semaphore(reply) => Ok(reply),
        other => panic!("unexpected reply: {other:?}"),
    }
}
