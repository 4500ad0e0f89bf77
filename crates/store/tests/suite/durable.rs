//! Tests the durable half of the suite without a disk, with a store that keeps its machine when it is closed.
//!
//! It returns every other body late, as a store does whose bodies are on disk.

use std::future::ready;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use taskyard_conformance::{StoreHarness, block_on, model, semaphores as rules};
use taskyard_core::{Body, Command, Error, Machine, Reply, Timestamp};
use taskyard_store::{BodyKey, Capabilities, Executed, Pending, Store, Unloaded};

taskyard_conformance::conformance_suite!(queue());
taskyard_conformance::semaphore_suite!(queue());

#[test]
fn model() {
    for seed in model::seeds(10) {
        block_on(model::replay(queue(), seed, 2000));
    }
}

#[test]
fn model_of_semaphores() {
    for seed in model::seeds(10) {
        block_on(rules::model::replay(queue(), seed, 1000));
    }
}

fn queue() -> StoreHarness {
    let machine = Arc::default();
    StoreHarness::new(move || Box::new(ReopenableStore { machine: Arc::clone(&machine) }))
}

struct ReopenableStore {
    machine: Arc<Mutex<Machine>>,
}

impl ReopenableStore {
    fn machine(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for ReopenableStore {
    fn execute(&self, now: Timestamp, commands: Vec<Command>) -> Pending<'_, Executed> {
        let mut machine = self.machine();
        // Bodies are read after the batch, which may replace them.
        let is_keyed = |command: &Command| match command {
            Command::Put { tasks, .. } => tasks.iter().any(|task| task.key.is_some()),
            _ => false,
        };
        let is_late = !commands.iter().any(is_keyed);
        let mut executed =
            Executed { replies: Vec::new(), effects: Default::default(), unloaded: Vec::new() };
        for (reply, command) in commands.into_iter().enumerate() {
            let tube = match &command {
                Command::Take(take) => machine.tube_number(&take.tube),
                Command::Peek { tube, .. } => machine.tube_number(tube),
                _ => None,
            };
            let mut answer = machine.apply(now, command);
            if let (Some(tube), Ok(Reply::Taken(tasks) | Reply::Tasks(tasks))) = (tube, &mut answer)
            {
                for (item, task) in
                    tasks.iter_mut().enumerate().filter(|(_, task)| is_late && task.id.0 % 2 == 1)
                {
                    task.body = None;
                    let key = BodyKey { tube, id: task.id };
                    executed.unloaded.push(Unloaded { reply, item, key });
                }
            }
            executed.replies.push(answer);
        }
        executed.effects = machine.take_effects();
        Box::pin(ready(executed))
    }

    fn load(&self, keys: Vec<BodyKey>) -> Pending<'_, Vec<Result<Option<Body>, Error>>> {
        let mut machine = self.machine();
        let bodies = keys.into_iter().map(|key| {
            let (tube, _) = machine.tube_by_number(key.tube)?;
            let peek = Command::Peek { tube: tube.clone(), ids: vec![key.id] };
            match machine.apply(Timestamp::EPOCH, peek) {
                Ok(Reply::Tasks(mut tasks)) => tasks.pop()?.body,
                _ => None,
            }
        });
        Box::pin(ready(bodies.map(Ok).collect()))
    }

    fn capabilities(&self) -> Capabilities {
        let plain = Capabilities::plain("reopenable");
        let durable = Capabilities { durable: true, keys: true, ..plain };
        Capabilities { retries: true, rates: true, schedules: true, ..durable }
    }

    fn close(&self) -> Pending<'_, Result<(), Error>> {
        self.machine().restart();
        Box::pin(ready(Ok(())))
    }
}
