//! Calls of a store in short form, all at the same moment.

use std::thread;
use std::time::{Duration, Instant};

use taskyard_conformance::block_on;
use taskyard_core::{
    Body, Command, Error, Finish, FinishItem, Holder, NewTask, Outcome, Reply, Span, Take, Task,
    Timestamp, TubeName, TubeOptions,
};
use taskyard_store::Store;

/// The moment of all calls.
pub const NOW: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

/// How long the health of a store may take to change.
const HEALTH_MAX: Duration = Duration::from_secs(60);

/// Executes one command.
pub fn ask(store: &(impl Store + ?Sized), command: Command) -> Result<Reply, Error> {
    block_on(store.execute(NOW, vec![command])).replies.remove(0)
}

/// Executes one command again and again until the database is reachable. Any other error is a panic.
pub fn ask_until_there(store: &(impl Store + ?Sized), command: &Command) -> Reply {
    loop {
        match ask(store, command.clone()) {
            Ok(reply) => return reply,
            Err(Error::StoreUnavailable(_)) => thread::yield_now(),
            Err(other) => panic!("{other}"),
        }
    }
}

/// Creates the tube `mail`.
pub fn make_tube(store: &(impl Store + ?Sized), options: TubeOptions) -> TubeName {
    let tube = TubeName::new("mail").expect("a name");
    let create = Command::CreateTube { tube: tube.clone(), options, if_not_exists: false };
    assert_eq!(ask(store, create), Ok(Reply::Created(true)));
    tube
}

/// A put of so many tasks with an empty payload.
pub fn put(tube: &TubeName, count: usize) -> Command {
    let tasks = vec![NewTask::new(Body::new(&[0xc0])); count];
    Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO }
}

/// Takes without a session.
pub fn take(store: &(impl Store + ?Sized), tube: &TubeName, count: usize) -> Vec<Task> {
    let take = Take {
        tube: tube.clone(),
        count,
        session: None,
        lease: None,
        worker: None,
        wait: Span::ZERO,
    };
    match ask(store, Command::Take(take)) {
        Ok(Reply::Taken(tasks)) => tasks,
        other => panic!("a take answers with tasks, not {other:?}"),
    }
}

/// Acks by lease.
pub fn ack(store: &(impl Store + ?Sized), tube: &TubeName, task: &Task) -> Outcome {
    let holder = Holder::Lease(task.lease.expect("a taken task has a lease"));
    let items = vec![FinishItem { id: task.id, holder, finish: Finish::Ack }];
    match ask(store, Command::Finish { tube: tube.clone(), items, show: false }) {
        Ok(Reply::Finished(mut outcomes)) => outcomes.remove(0),
        other => panic!("an ack has an outcome, not {other:?}"),
    }
}

/// Waits until the health check of the store succeeds or fails. Answers the error.
pub fn health_becomes(store: &(impl Store + ?Sized), is_healthy: bool) -> String {
    let begun = Instant::now();
    loop {
        let health = block_on(store.health(NOW));
        if health.is_ok() == is_healthy {
            return health.map_or_else(|error| error.to_string(), |_| String::new());
        }
        assert!(begun.elapsed() < HEALTH_MAX, "it stays {health:?}");
        thread::yield_now();
    }
}
