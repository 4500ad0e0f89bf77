//! Two servers whose batches change several semaphores and tubes in opposite orders.

use std::sync::Barrier;
use std::thread;

use taskyard_conformance::block_on;
use taskyard_core::{
    Command, EnqueueItem, Error, EventId, Execute, GrantFinish, GrantItem, Kind, Reply,
    SemaphoreChange, SemaphoreCommand, SemaphoreEvent, SemaphoreKey, SemaphoreReply, Span, TaskId,
    TubeName, TubeOptions,
};
use taskyard_store::Store;
use taskyard_store_postgres::PostgresStore;

use taskyard_testkit::calls::{NOW, put};
use taskyard_testkit::postgres::{Database, run, sql};

/// How many rounds both run.
const ROUNDS: u64 = 60;

struct Server(PostgresStore);

impl Execute for Server {
    async fn execute(&self, commands: Vec<Command>) -> Vec<Result<Reply, Error>> {
        self.0.execute(NOW, commands).await.replies
    }
}

fn key(text: &str) -> SemaphoreKey {
    SemaphoreKey::new(text).expect("a key")
}

fn tube(text: &str) -> TubeName {
    TubeName::new(text).expect("a name")
}

fn configure(text: &str) -> Command {
    let change = SemaphoreChange {
        ack_timeout: Some(Some(Span::from_secs(600))),
        ..SemaphoreChange::limits(1000, 0)
    };
    let (key, change) = (key(text), Box::new(change));
    Command::Semaphore(SemaphoreCommand::Configure { key, change, only_new: false })
}

fn create(text: &str, semaphore: Option<SemaphoreKey>) -> Command {
    let kind = if semaphore.is_some() { Kind::UtubeTtl } else { Kind::FifoTtl };
    let options = TubeOptions { semaphore, capacity: Some(1 << 40), ..TubeOptions::new(kind) };
    Command::CreateTube { tube: tube(text), options, if_not_exists: false }
}

fn enqueue(text: &str, task: u64) -> Command {
    let entries = vec![EnqueueItem { task: TaskId(task), priority: 1.0 }];
    Command::Semaphore(SemaphoreCommand::Enqueue { key: key(text), entries })
}

fn release(text: &str, tasks: [u64; 2]) -> Command {
    let item = |task| GrantItem { task: TaskId(task), grant: None, finish: GrantFinish::Release };
    let items = tasks.map(item).to_vec();
    Command::Semaphore(SemaphoreCommand::Finish { key: key(text), items })
}

fn fetch(text: &str) -> Command {
    let (count, wait) = (10, Span::ZERO);
    Command::Semaphore(SemaphoreCommand::Events { key: Some(key(text)), count, wait })
}

fn acknowledge(events: &[SemaphoreEvent]) -> Command {
    let events: Vec<EventId> = events.iter().rev().map(|event| event.id).collect();
    Command::Semaphore(SemaphoreCommand::Acknowledge { events })
}

async fn all(server: &Server, commands: Vec<Command>) -> Vec<Reply> {
    let replies = server.execute(commands).await.into_iter();
    replies.map(|reply| reply.expect("it is done")).collect()
}

/// What one server does: one order of semaphores and tubes, and the other does the opposite.
async fn play(server: &Server, first: &str, second: &str, offset: u64) {
    for round in 0..ROUNDS {
        let task = offset + round * 2;
        let (a, b) = (task, task + 1);
        all(server, vec![put(&tube(first), 1), enqueue(first, a), put(&tube("plain"), 1)]).await;
        all(server, vec![enqueue(second, b), put(&tube(second), 1), enqueue(first, b)]).await;
        let told = match all(server, vec![fetch(first)]).await.remove(0) {
            Reply::Semaphore(SemaphoreReply::Events(events)) => events,
            other => panic!("{other:?}"),
        };
        all(server, vec![enqueue(second, a), acknowledge(&told)]).await;
        all(server, vec![release(second, [b, a]), release(first, [a, b])]).await;
    }
}

// A batch locked semaphores in the order of its commands: with an acknowledgement after an enqueue, or one semaphore beside a
// tube with a capacity, two servers deadlocked for a second until the database noticed.
#[test]
fn two_servers_never_deadlock() {
    run(async {
        let database = &Database::new();
        let server = Server(database.open());
        let mut begin = vec![configure("x"), configure("y"), create("plain", None)];
        begin.extend(["x", "y"].map(|name| create(name, Some(key(name)))));
        for command in begin {
            all(&server, vec![command]).await;
        }
        let deadlocks = || {
            let count = "SELECT pg_stat_force_next_flush(); \
                SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
            sql(&database.url(), count).and_then(|count| count.parse::<u64>().ok())
        };
        let (before, barrier) = (deadlocks(), Barrier::new(2));
        thread::scope(|scope| {
            for (first, second, offset) in [("x", "y", 0), ("y", "x", 1_000_000)] {
                let barrier = &barrier;
                scope.spawn(move || {
                    let server = Server(database.open());
                    // Servers learn from the first answers which tubes have semaphores.
                    block_on(all(&server, vec![put(&tube(first), 1)]));
                    block_on(all(&server, vec![put(&tube(second), 1)]));
                    barrier.wait();
                    block_on(play(&server, first, second, offset));
                });
            }
        });
        assert_eq!(deadlocks(), before, "times the database had to end a circle");
        for view in ["semaphore_audit", "gate_audit"] {
            assert_eq!(sql(&database.url(), &format!("SELECT * FROM taskyard.{view}")), None);
        }
    });
}

// A tube whose semaphore row was missing behaved as if it had none.
#[test]
fn a_tube_without_its_semaphore_delivers_nothing() {
    run(async {
        let database = Database::new();
        let server = Server(database.open());
        all(&server, vec![configure("x"), create("x", Some(key("x")))]).await;
        all(&server, vec![put(&tube("x"), 1)]).await;
        let lose = "DELETE FROM taskyard.semaphore_state; DELETE FROM taskyard.semaphore; \
                    DELETE FROM taskyard.semaphore_task";
        sql(&database.url(), lose);
        all(&server, vec![put(&tube("x"), 2)]).await;
        let taken = taskyard_testkit::calls::take(&server.0, &tube("x"), 9);
        assert_eq!(taken, [], "what was ready before is not given either");
        let shut = "SELECT count(*) FROM taskyard.task WHERE state = 6";
        assert_eq!(sql(&database.url(), shut).as_deref(), Some("2"));
    });
}
