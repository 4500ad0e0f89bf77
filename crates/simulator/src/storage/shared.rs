//! Connects one server to the simulated database, as a store.

use std::future::ready;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use taskyard_core::{Body, Command, Effects, Error, Result, Span, Timestamp};
use taskyard_store::{
    BodyKey, Capabilities, Executed, MEMORY_CAPABILITIES, Pending, Store, Watcher,
};
use tokio::sync::oneshot;

use super::database::{ConnectionId, Database, Transit};
use crate::effects::{FaultName, count_effect};

/// How often a server looks for changes of others, as the stores in databases do.
const POLL: Span = Span::from_secs(1);

/// The connection of one server process to the database.
pub struct SharedStore {
    database: Arc<Mutex<Database>>,
    id: ConnectionId,
}

impl SharedStore {
    /// Connects a server process.
    pub fn connect(database: Arc<Mutex<Database>>, server: usize) -> Self {
        let id = lock(&database).connect(server);
        SharedStore { database, id }
    }
}

impl Store for SharedStore {
    fn execute(&self, _now: Timestamp, commands: Vec<Command>) -> Pending<'_, Executed> {
        let transit = match lock(&self.database).send(self.id) {
            Ok(transit) => transit,
            Err(error) => return Box::pin(ready(failed(commands.len(), &error))),
        };
        let (database, id) = (self.database.clone(), self.id);
        if transit.back.is_zero() && transit.arrival <= tokio::time::Instant::now() {
            return Box::pin(ready(exchange(&database, id, commands, &transit)));
        }
        let (reply, receiver) = oneshot::channel();
        let count = commands.len();
        // A batch that was sent is executed, whatever happens to its server.
        tokio::task::spawn_local(async move {
            tokio::time::sleep_until(transit.arrival).await;
            let executed = exchange(&database, id, commands, &transit);
            tokio::time::sleep(transit.back).await;
            // A crashed server does not wait for it.
            let _ = reply.send(executed);
        });
        Box::pin(async move { receiver.await.unwrap_or_else(|_| failed(count, &unknown())) })
    }

    fn batches_max(&self) -> usize {
        2
    }

    fn load(&self, keys: Vec<BodyKey>) -> Pending<'_, Vec<Result<Option<Body>>>> {
        Box::pin(ready(vec![Ok(None); keys.len()]))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { name: "simulated", durable: true, shared: true, ..MEMORY_CAPABILITIES }
    }

    fn watch(&self, watcher: Watcher) {
        lock(&self.database).watch(self.id, watcher);
    }

    fn poll_every(&self) -> Option<Span> {
        Some(POLL)
    }

    fn close(&self) -> Pending<'_, Result<()>> {
        // A server whose end does not reach the database is declared dead later.
        let transit = match lock(&self.database).send(self.id) {
            Ok(transit) => transit,
            Err(error) => return Box::pin(ready(Err(error))),
        };
        let (database, id) = (&self.database, self.id);
        Box::pin(async move {
            tokio::time::sleep_until(transit.arrival).await;
            if !lock(database).is_same_run(transit.crashes) {
                return Err(unknown());
            }
            lock(database).disconnect(id);
            tokio::time::sleep(transit.back).await;
            if transit.is_lost { Err(unknown()) } else { Ok(()) }
        })
    }
}

/// Executes a batch at the moment of its arrival, and decides whether its reply arrives.
fn exchange(
    database: &Mutex<Database>,
    id: ConnectionId,
    commands: Vec<Command>,
    transit: &Transit,
) -> Executed {
    let mut database = lock(database);
    let count = commands.len();
    if !database.is_same_run(transit.crashes) {
        count_effect(FaultName::CrashDatabase);
        return failed(count, &unknown());
    }
    if !transit.is_lost {
        return database.execute(id, commands);
    }
    let sent = commands.clone();
    let executed = database.execute(id, commands);
    database.lose(id, &sent, &executed);
    failed(count, &unknown())
}

fn unknown() -> Error {
    Error::OutcomeUnknown("the connection broke before the reply arrived".into())
}

fn failed(count: usize, error: &Error) -> Executed {
    let replies = vec![Err(error.clone()); count];
    Executed { replies, effects: Effects::default(), unloaded: Vec::new() }
}

fn lock(database: &Mutex<Database>) -> MutexGuard<'_, Database> {
    database.lock().unwrap_or_else(PoisonError::into_inner)
}
