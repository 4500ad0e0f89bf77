//! Large batches use two connections, without a difference for callers.

use taskyard_conformance::block_on;
use taskyard_core::{
    Body, Command, Error, Finish, FinishItem, Holder, Kind, NewTask, Outcome, Reply, Span, Take,
    Task, TubeName, TubeOptions,
};
use taskyard_store::Store;
use taskyard_store_postgres::PostgresStore;

use taskyard_testkit::calls::{self, NOW, make_tube};
use taskyard_testkit::postgres::{Database, check_counts, run, sql, wait_until};

/// As many as each command has; two of them are a large batch.
const SIZE: usize = 600;

fn numbered(tube: &TubeName, from: usize) -> Command {
    let task = |number: usize| {
        let [high, low] = (number as u16).to_be_bytes();
        NewTask::new(Body::new(&[0xcd, high, low]))
    };
    let tasks = (from..from + SIZE).map(task).collect();
    Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO }
}

fn take(tube: &TubeName) -> Command {
    let (session, lease, wait) = (None, Some(Span::from_secs(60)), Span::ZERO);
    Command::Take(Take { tube: tube.clone(), count: SIZE, session, lease, worker: None, wait })
}

fn ack(tube: &TubeName, tasks: &[Task]) -> Command {
    let item = |task: &Task| {
        let holder = Holder::Lease(task.lease.expect("a taken task has a lease"));
        FinishItem { id: task.id, holder, finish: Finish::Ack }
    };
    let items = tasks.iter().map(item).collect();
    Command::Finish { tube: tube.clone(), items, show: false }
}

fn ask(store: &PostgresStore, commands: Vec<Command>) -> Vec<Result<Reply, Error>> {
    block_on(store.execute(NOW, commands)).replies
}

fn taken(reply: &Result<Reply, Error>) -> &[Task] {
    match reply {
        Ok(Reply::Taken(tasks)) => tasks,
        other => panic!("a take answers with tasks, not {other:?}"),
    }
}

/// A store that knows its tube to be without sub-queues and a capacity.
fn opened(database: &Database) -> (PostgresStore, TubeName) {
    let store = database.open();
    let tube = make_tube(&store, TubeOptions::new(Kind::FifoTtl));
    assert!(calls::ask(&store, calls::put(&tube, 1)).is_ok());
    let first = calls::take(&store, &tube, 1).remove(0);
    assert!(matches!(calls::ack(&store, &tube, &first), Outcome::Done(_)));
    // The store opens the connection that listens in the background, on a busy machine after the first commands.
    wait_until(&database.url(), &format!("({CONNECTIONS}) = 2"));
    (store, tube)
}

/// Counts the connections of servers: one for batches, one that listens, and perhaps another for batches.
const CONNECTIONS: &str = "SELECT count(*) FROM pg_stat_activity \
    WHERE datname = current_database() AND application_name = 'taskyard'";

fn connections(database: &Database) -> Option<String> {
    sql(&database.url(), CONNECTIONS)
}

#[test]
fn puts_and_takes_are_in_the_order_of_arrival() {
    run(async {
        let database = Database::new();
        let (store, tube) = opened(&database);
        let puts = (0..5).map(|place| numbered(&tube, place * SIZE)).collect();
        let ids: Vec<u64> = ask(&store, puts)
            .into_iter()
            .flat_map(|reply| match reply {
                Ok(Reply::Put(placed)) => placed.into_iter().map(|placed| placed.id.0),
                other => panic!("a put answers with ids, not {other:?}"),
            })
            .collect();
        assert!(ids.len() == 5 * SIZE && ids.is_sorted(), "{ids:?}");
        assert_eq!(connections(&database).as_deref(), Some("3"), "it went by both");
        let replies = ask(&store, (0..5).map(|_| take(&tube)).collect());
        let numbers: Vec<u16> = replies
            .iter()
            .flat_map(taken)
            .map(|task| {
                let payload = task.body.as_ref().expect("it has a body").payload();
                u16::from_be_bytes([payload[1], payload[2]])
            })
            .collect();
        assert!(numbers.iter().copied().eq(0..5 * SIZE as u16), "{numbers:?}");
        let acks = replies.iter().map(|reply| ack(&tube, taken(reply))).collect();
        for reply in ask(&store, acks) {
            let Ok(Reply::Finished(outcomes)) = reply else { panic!("{reply:?}") };
            assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Done(_))));
        }
        check_counts(&database.url());
        assert_eq!(
            sql(&database.url(), "SELECT count(*) FROM taskyard.task").as_deref(),
            Some("0")
        );
    });
}

#[test]
fn a_take_sees_earlier_puts() {
    run(async {
        let database = Database::new();
        let (store, tube) = opened(&database);
        let commands = vec![numbered(&tube, 0), take(&tube), numbered(&tube, SIZE), take(&tube)];
        let replies = ask(&store, commands);
        assert_eq!((taken(&replies[1]).len(), taken(&replies[3]).len()), (SIZE, SIZE));
        assert_eq!(connections(&database).as_deref(), Some("2"), "one connection keeps the order");
    });
}

#[test]
fn a_missing_tube_is_reported_by_both_connections() {
    run(async {
        let database = Database::new();
        let (store, tube) = opened(&database);
        let other = database.open();
        let dropped = calls::ask(&other, Command::DropTube { tube: tube.clone() });
        assert_eq!(dropped, Ok(Reply::Nothing));
        for reply in ask(&store, vec![numbered(&tube, 0), numbered(&tube, SIZE)]) {
            assert_eq!(reply, Err(Error::TubeNotFound(tube.clone())));
        }
    });
}

#[test]
fn both_connections_are_opened_again() {
    run(async {
        let database = Database::new();
        let (store, tube) = opened(&database);
        let puts = || vec![numbered(&tube, 0), numbered(&tube, SIZE)];
        assert!(ask(&store, puts()).iter().all(Result::is_ok));
        let end = "SELECT count(pg_terminate_backend(pid, 60000)) FROM pg_stat_activity \
            WHERE datname = current_database() AND application_name = 'taskyard'";
        sql(&database.url(), end);
        let replies = ask(&store, puts());
        assert!(replies.iter().all(Result::is_ok), "{replies:?}");
        check_counts(&database.url());
    });
}
