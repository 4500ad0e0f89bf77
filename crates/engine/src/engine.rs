//! What callers see of the running loop.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::task::Waker;
use std::thread;

use taskyard_core::limits::{BATCH_BYTES_MAX, PAYLOAD_BYTES_DEFAULT, PAYLOAD_BYTES_MAX};
use taskyard_core::{Command, Error, Execute, Reply, Result, TubeName};
use taskyard_store::{Capabilities, Store, StoreHealth};
use tokio::sync::oneshot;

use crate::answer::{Receipt, unanswered};
use crate::clock::Clock;
use crate::inbox::{Inbox, Question};
use crate::listeners::listens;
use crate::running::Running;
use crate::shutdown::{Ended, Ending, end_of};
use crate::waiters::{Waiting, WaitingCount};

/// What an operator may set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Largest payload of a task, in bytes.
    pub payload_bytes_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { payload_bytes_max: PAYLOAD_BYTES_DEFAULT }
    }
}

/// The running loop of one store. Cheap to clone; the loop ends with the last clone, or by
/// [`Engine::stop`].
///
/// It adds to a store what a store leaves out: the time, waiting, ticks, and limits on what may pile
/// up. Commands of all callers run in the order of their arrival, gathered in batches. Whoever waits
/// is served in the order of arrival; a command that waits does not hold up those behind it.
///
/// When a caller goes away before its answer arrives, the tasks taken for it are given back.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

struct Shared {
    inbox: Arc<Inbox>,
    store: Arc<dyn Store>,
    ended: Ended,
    settings: Settings,
}

impl Engine {
    /// Starts the loop on a thread of its own, where embedded stores also do their work.
    pub fn start(store: Box<dyn Store>, clock: Arc<dyn Clock>, settings: Settings) -> Self {
        let store: Arc<dyn Store> = store.into();
        let inbox = Arc::new(Inbox::default());
        clock.watch(Waker::from(inbox.clone()));
        let (ending, ended) = Ending::new(inbox.clone());
        let running = (inbox.clone(), store.clone());
        let spawned = thread::Builder::new().name("taskyard-engine".into()).spawn(move || {
            // Bound first and so dropped last: whoever learns of the end finds the store free.
            let ending = ending;
            let (inbox, store) = running;
            let outcome = Running::new(inbox, store, clock).run();
            ending.orderly(outcome);
        });
        if let Err(error) = spawned {
            // The engine that is handed out answers every command with an error.
            tracing::error!(%error, "cannot start the engine's thread");
        }
        let payload_bytes_max = settings.payload_bytes_max.min(PAYLOAD_BYTES_MAX);
        let settings = Settings { payload_bytes_max };
        Engine { shared: Arc::new(Shared { inbox, store, ended, settings }) }
    }

    /// Stops: new commands are refused, waiting takes answer that there is nothing, waiting puts
    /// that the server is shutting down, everything else is finished and the store is closed.
    /// May be called more than once; each call answers when all that is done.
    pub async fn stop(&self) -> Result<()> {
        self.shared.inbox.stop();
        end_of(self.shared.ended.clone()).await
    }

    /// What the store can do.
    pub fn capabilities(&self) -> Capabilities {
        self.shared.store.capabilities()
    }

    /// What becomes of acknowledged tasks when the machine fails, where that is not for the store to decide.
    pub fn durability(&self) -> Option<String> {
        self.shared.store.durability()
    }

    /// What the store does not have, where it is not all of ours.
    pub fn unsupported(&self) -> &'static [&'static str] {
        self.shared.store.unsupported()
    }

    /// What the operator has set.
    pub fn settings(&self) -> Settings {
        self.shared.settings
    }

    /// Everybody who waits: by tube, in the order of their arrival. Nobody in a stopped engine.
    pub async fn waiting(&self) -> Vec<Waiting> {
        let (reply, receiver) = oneshot::channel();
        self.shared.inbox.ask(Question::Waiting(reply));
        receiver.await.unwrap_or_default()
    }

    /// How many wait on which tube; tubes where nobody waits are left out.
    pub async fn waiting_counts(&self) -> BTreeMap<TubeName, WaitingCount> {
        let (reply, receiver) = oneshot::channel();
        self.shared.inbox.ask(Question::Counts(reply));
        receiver.await.unwrap_or_default()
    }

    /// Whether the store can do its work, which includes writing; an error says why not.
    pub async fn health(&self) -> Result<StoreHealth> {
        let (reply, receiver) = oneshot::channel();
        self.shared.inbox.ask(Question::Health(reply));
        receiver.await.unwrap_or(Err(Error::ShuttingDown))
    }

    /// Runs commands that are within the limits.
    async fn run(&self, commands: Vec<Command>, bytes: usize) -> Vec<Result<Reply>> {
        let Shared { inbox, store, .. } = &*self.shared;
        let count = commands.len();
        let takes = takes_of(&commands);
        let waits = commands.iter().any(waits);
        let (job, receiver) = match inbox.submit(commands, bytes, takes) {
            Ok(submitted) => submitted,
            Err(refusal) => return vec![Err(refusal); count],
        };
        let replies = Receipt::new(inbox, job, waits, receiver).replies(&**store).await;
        replies.unwrap_or_else(|| vec![Err(unanswered()); count])
    }
}

impl Execute for Engine {
    async fn execute(&self, commands: Vec<Command>) -> Vec<Result<Reply>> {
        if commands.is_empty() {
            return Vec::new();
        }
        let mut bytes = 0;
        let mut refused = Vec::new();
        for (index, command) in commands.iter().enumerate() {
            match self.shared.settings.check(command) {
                Ok(size) => bytes += size,
                Err(error) => refused.push((index, error)),
            }
        }
        if refused.is_empty() {
            return self.run(commands, bytes).await;
        }
        let accepted = without(commands, &refused);
        let mut replies =
            if accepted.is_empty() { Vec::new() } else { self.run(accepted, bytes).await };
        for (index, error) in refused {
            replies.insert(index, Err(error));
        }
        replies
    }
}

/// The loop ends when nobody can ask it anything any more.
impl Drop for Shared {
    fn drop(&mut self) {
        self.inbox.stop();
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = f.debug_struct("Engine");
        f.field("store", &self.capabilities().name).finish_non_exhaustive()
    }
}

impl Settings {
    /// How many bytes a command carries, or why it may not pass.
    fn check(&self, command: &Command) -> Result<usize> {
        let Command::Put { tasks, .. } = command else { return Ok(0) };
        let advice = "keep the data elsewhere and put a reference, or have the limit raised";
        for task in tasks {
            let size = task.body.payload().len();
            within("the payload of a task, in bytes,", size, self.payload_bytes_max, advice)?;
        }
        if tasks.len() > 1 {
            // A task that is allowed can be put at least alone.
            let size = tasks.iter().map(|task| task.body.bytes() as usize).sum();
            let advice = "put the tasks in several batches";
            within("one put, in bytes,", size, BATCH_BYTES_MAX, advice)?;
        }
        Ok(command.payload_bytes())
    }
}

fn within(what: &'static str, size: usize, limit: usize, advice: &'static str) -> Result<()> {
    if size <= limit { Ok(()) } else { Err(Error::TooLarge { what, size, limit, advice }) }
}

fn without(commands: Vec<Command>, refused: &[(usize, Error)]) -> Vec<Command> {
    let mut refused = refused.iter().map(|refused| refused.0).peekable();
    let numbered = commands.into_iter().enumerate();
    let accepted = numbered.filter(|(index, _)| refused.next_if_eq(index).is_none());
    accepted.map(|(_, command)| command).collect()
}

fn takes_of(commands: &[Command]) -> Vec<(usize, TubeName)> {
    let takes = commands.iter().enumerate().filter_map(|(index, command)| match command {
        Command::Take(take) => Some((index, take.tube.clone())),
        _ => None,
    });
    takes.collect()
}

fn waits(command: &Command) -> bool {
    match command {
        Command::Take(take) => !take.wait.is_zero(),
        Command::Put { wait, .. } => !wait.is_zero(),
        other => listens(other).is_some(),
    }
}

#[cfg(test)]
mod tests {
    use taskyard_core::limits::META_BYTES_MAX;
    use taskyard_core::{Body, NewTask, Span};

    use super::*;

    fn put(bodies: &[&Body]) -> Command {
        let tasks = bodies.iter().map(|body| NewTask::new((*body).clone())).collect();
        Command::Put { tube: TubeName::new("mail").unwrap(), tasks, wait: Span::ZERO }
    }

    // What a body needs in memory was held against the limit of a put, so that the largest payload an
    // operator may allow was refused.
    #[test]
    fn the_largest_payload_can_be_put_and_only_alone() {
        let settings = Settings { payload_bytes_max: PAYLOAD_BYTES_MAX };
        let payload = vec![0xc0; PAYLOAD_BYTES_MAX + 1];
        let largest = Body::with_meta(&payload[1..], &[0x80; META_BYTES_MAX]);
        assert!(settings.check(&put(&[&largest])).is_ok());
        let half = Body::new(&payload[..BATCH_BYTES_MAX / 2]);
        assert!(settings.check(&put(&[&half, &half])).is_ok());
        for refused in [&[&half, &half, &Body::new(&[0xc0])][..], &[&Body::new(&payload)]] {
            let refused = settings.check(&put(refused));
            assert!(matches!(refused, Err(Error::TooLarge { .. })), "{refused:?}");
        }
    }
}
