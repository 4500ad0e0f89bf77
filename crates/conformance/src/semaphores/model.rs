//! Random commands for semaphores on a queue and on the core's machine: every answer must be the same, and what holders
//! have heard must be true of them.
//!
//! A run is its seed, as for tubes: see [`seeds`](crate::model::seeds).

use std::collections::{HashMap, VecDeque};

use taskyard_core::{
    Command, Error, EventId, EventKind, Grant, GrantFinish, GrantOutcome, Machine, Reply, Result,
    SemaphoreCommand, SemaphoreKey, SemaphoreReply, Span, Standing, Status, TaskId,
};

use super::super::Harness;
use super::script::{Script, TASKS};

/// How many of the latest commands a failure shows.
const SHOWN: usize = 15;

/// Replays the commands of a seed on the queue and on the machine, and compares every answer; at the end
/// everything that can be seen, now and after a day.
pub async fn replay<H: Harness>(queue: H, seed: u64, commands: usize) {
    let durable = queue.capabilities().durable;
    let mut run = Run {
        seed,
        asked: 0,
        latest: VecDeque::new(),
        queue,
        machine: Machine::default(),
        to_store: HashMap::new(),
        to_machine: HashMap::new(),
        heard: HashMap::new(),
    };
    let mut script = Script::new(seed);
    for key in Script::keys() {
        let change = Box::new(script.change());
        run.ask(vec![SemaphoreCommand::Configure { key, change, only_new: true }]).await;
    }
    while run.asked < commands {
        if let Some(span) = script.pause() {
            run.remember(format!("time moves by {} s", span.as_secs_f64()));
            run.queue.advance(span);
        }
        if durable && script.restarts() {
            run = run.restart().await;
        }
        if script.is_quiet() {
            run.holders_know().await;
        }
        let batch = script.batch();
        run.ask(batch).await.iter().flatten().for_each(|reply| script.learn(reply));
    }
    run.compare_all().await;
    run.queue.advance(Span::from_secs(24 * 3600));
    run.compare_all().await;
    run.holders_know().await;
}

/// One run: where it stands, what led there, and which event of the one side is which of the other.
struct Run<H> {
    seed: u64,
    asked: usize,
    latest: VecDeque<String>,
    queue: H,
    machine: Machine,
    to_store: HashMap<EventId, EventId>,
    to_machine: HashMap<EventId, EventId>,
    /// What was last delivered of each grant; a request that was declined is answered.
    heard: HashMap<(SemaphoreKey, Grant), EventKind>,
}

impl<H: Harness> Run<H> {
    /// Asks both, compares, and hands back the machine's answers.
    async fn ask(&mut self, commands: Vec<SemaphoreCommand>) -> Vec<Result<SemaphoreReply>> {
        let now = self.queue.now();
        while self.machine.apply(now, Command::Tick { limit: 1000 }) != Ok(Reply::Ticked(0)) {}
        let mut expected = Vec::new();
        for command in &commands {
            self.asked += 1;
            let reply = self.machine.apply(now, Command::Semaphore(command.clone()));
            self.remember(format!("{command:?}\n    -> {reply:?}"));
            self.hear(command, &reply);
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

    /// Notes what holders heard, and what they answered.
    fn hear(&mut self, command: &SemaphoreCommand, reply: &Result<Reply>) {
        match (command, reply) {
            (_, Ok(Reply::Semaphore(SemaphoreReply::Events(events)))) => {
                let heard =
                    events.iter().map(|event| ((event.semaphore.clone(), event.grant), event.kind));
                self.heard.extend(heard);
            }
            (
                SemaphoreCommand::Finish { key, items },
                Ok(Reply::Semaphore(SemaphoreReply::Finished(outcomes))),
            ) => {
                for (item, outcome) in items.iter().zip(outcomes) {
                    let declined = (item.finish, *outcome);
                    if declined == (GrantFinish::Decline, GrantOutcome::Done) {
                        let standings = self.standings(key, vec![item.task]);
                        let grants = standings.iter().filter_map(|standing| standing.grant);
                        grants.for_each(|grant| _ = self.heard.remove(&(key.clone(), grant)));
                    }
                }
            }
            _ => {}
        }
    }

    /// Where tasks stand, as the machine has it.
    fn standings(&mut self, key: &SemaphoreKey, tasks: Vec<TaskId>) -> Vec<Standing> {
        let look = SemaphoreCommand::Look { key: key.clone(), tasks };
        match self.machine.apply(self.queue.now(), Command::Semaphore(look)) {
            Ok(Reply::Semaphore(SemaphoreReply::Standings(standings))) => standings,
            other => panic!("a look answered {other:?}"),
        }
    }

    /// When all events of a semaphore have arrived, each holder has last heard what is wanted of it.
    async fn holders_know(&mut self) {
        for key in Script::keys() {
            let fetch =
                SemaphoreCommand::Events { key: Some(key.clone()), count: 1000, wait: Span::ZERO };
            while let Some(Ok(SemaphoreReply::Events(events))) =
                self.ask(vec![fetch.clone()]).await.pop()
                && !events.is_empty()
            {
                let events = events.iter().map(|event| event.id).collect();
                self.ask(vec![SemaphoreCommand::Acknowledge { events }]).await;
            }
            if self.events_left(&key) {
                // What was handed out and not acknowledged comes again later.
                continue;
            }
            for standing in self.standings(&key, (0..TASKS).map(TaskId).collect()) {
                let Some(grant) = standing.grant else { continue };
                let heard = self.heard.get(&(key.clone(), grant));
                let asked = heard == Some(&EventKind::TryRelease);
                if asked != (standing.status == Status::TryRelease) {
                    self.fail(&format!("  {standing:?} of '{key}' last heard {heard:?}"));
                }
            }
        }
    }

    /// Whether a semaphore has events that did not arrive yet, as the machine has it.
    fn events_left(&mut self, key: &SemaphoreKey) -> bool {
        let list = SemaphoreCommand::List { key: Some(key.clone()) };
        match self.machine.apply(self.queue.now(), Command::Semaphore(list)) {
            Ok(Reply::Semaphore(SemaphoreReply::Semaphores(infos))) => {
                infos.iter().any(|info| info.events > 0)
            }
            // Its first options were wrong, and it was never made.
            Err(Error::SemaphoreNotFound(_)) => true,
            other => panic!("a list answered {other:?}"),
        }
    }

    /// The command as the queue has to hear it: with its own numbers of events.
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
                // What several semaphores tell in one batch is in order for each of them, not among them.
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

    /// Compares everything that can be seen.
    async fn compare_all(&mut self) {
        self.ask(vec![SemaphoreCommand::List { key: None }]).await;
        for key in Script::keys() {
            let tasks = (0..TASKS).map(TaskId).collect();
            self.ask(vec![SemaphoreCommand::Look { key, tasks }]).await;
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
        other => panic!("a semaphore answered {other:?}"),
    }
}
