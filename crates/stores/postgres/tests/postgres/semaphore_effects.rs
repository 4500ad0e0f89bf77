//! Tests which effects of semaphores reach the calling server and other servers, and which calls must not
//! wait.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use taskyard_conformance::semaphores::SemaphoreCommands;
use taskyard_conformance::{Harness, StoreHarness, block_on};
use taskyard_core::{
    Body, Command, Effects, EnqueueItem, Execute, Finish, FinishItem, GrantFinish, GrantItem,
    Holder, Kind, NewTask, Reply, SemaphoreChange, SemaphoreCommand, SemaphoreKey, Span, Take,
    TaskId, Timestamp, TubeName, TubeOptions,
};
use taskyard_store::{RemoteChange, Store};
use taskyard_store_postgres::{Clock, PostgresStore};
use tokio_postgres::{Client, NoTls};

use taskyard_testkit::postgres::{Database, run, runtime, sql};

/// A server of its own on the database.
fn server(database: &Database) -> StoreHarness {
    let url = database.url();
    StoreHarness::new(move || {
        Box::new(PostgresStore::open(&url, Clock::Caller).expect("the store opens"))
    })
}

async fn connect(database: &Database) -> Client {
    let (client, connection) =
        tokio_postgres::connect(&database.url(), NoTls).await.expect("connects");
    tokio::spawn(connection);
    client
}

/// A semaphore whose tick failed stopped the ticks of all tubes, every second again.
#[test]
fn one_failing_semaphore_does_not_stop_the_ticks_of_others() {
    run(async {
        let database = Database::new();
        let queue = server(&database);
        let lease = Some(Some(Span::from_secs(10)));
        queue.change(SemaphoreChange { lease, ..SemaphoreChange::limits(1, 1) }).await;
        queue.enqueue(1, 666.0).await;
        let tube = TubeName::new("jobs").expect("a good name");
        let options = TubeOptions::new(Kind::FifoTtl);
        let delay = Some(Span::from_secs(10));
        let tasks = vec![NewTask { delay, ..NewTask::new(Body::new(&[0xc0])) }];
        let create = Command::CreateTube { tube: tube.clone(), options, if_not_exists: false };
        let put = Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO };
        assert!(queue.execute(vec![create, put]).await.iter().all(Result::is_ok));
        sql(
            &database.url(),
            "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN RAISE numeric_value_out_of_range; END $$; \
             CREATE TRIGGER fail BEFORE UPDATE ON taskyard.semaphore_task \
             FOR EACH ROW WHEN (OLD.priority = 666) EXECUTE FUNCTION fail()",
        );
        let before = queue.member(1).await.expect("it is there").grant;
        queue.advance(Span::from_secs(10));
        let take =
            Take { tube, count: 1, session: None, lease: None, worker: None, wait: Span::ZERO };
        let taken = queue.execute(vec![Command::Take(take)]).await.remove(0);
        assert!(matches!(&taken, Ok(Reply::Taken(tasks)) if tasks.len() == 1), "{taken:?}");
        assert_eq!(queue.member(1).await.expect("it is there").grant, before);
        sql(&database.url(), "DROP FUNCTION fail() CASCADE");
        let after = queue.member(1).await.expect("it is admitted again").grant;
        assert!(after > before, "the failed tick is repeated later");
    });
}

fn semaphore_command(command: SemaphoreCommand) -> Command {
    Command::Semaphore(command)
}

fn enqueue(task: u64, priority: f64) -> Command {
    let entries = vec![EnqueueItem { task: TaskId(task), priority }];
    semaphore_command(SemaphoreCommand::Enqueue { key: yang(), entries })
}

fn yang() -> SemaphoreKey {
    SemaphoreKey::new("yang").expect("a good key")
}

/// A semaphore that admits one task, and two tubes with it.
fn gated_tubes(store: &PostgresStore) -> [TubeName; 2] {
    let change = Box::new(SemaphoreChange::limits(1, 1));
    let configure = SemaphoreCommand::Configure { key: yang(), change, only_new: false };
    effects(store, vec![semaphore_command(configure)]);
    ["one", "other"].map(|text| {
        let tube = TubeName::new(text).expect("a good name");
        let options = TubeOptions { semaphore: Some(yang()), ..TubeOptions::new(Kind::FifoTtl) };
        let create = Command::CreateTube { tube: tube.clone(), options, if_not_exists: false };
        effects(store, vec![create]);
        tube
    })
}

fn put(tube: &TubeName) -> Command {
    let tasks = vec![NewTask::new(Body::new(&[0xc0]))];
    Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO }
}

/// Runs a batch whose first command must succeed; returns the effects on waiting callers.
fn effects(store: &PostgresStore, commands: Vec<Command>) -> Effects {
    let executed = block_on(store.execute(Timestamp::from_micros(1_700_000_000_000_000), commands));
    assert!(executed.replies[0].is_ok(), "{:?}", executed.replies);
    executed.effects
}

// The effects of a gated tube on its semaphore were not reported to the server: callers that waited for the event, or for a
// task of another tube, were only served by the poll once a second.
#[test]
fn tasks_that_a_gated_tube_makes_ready_in_another_are_reported_at_once() {
    run(async {
        let database = Database::new();
        let store = database.open();
        let [one, other] = gated_tubes(&store);
        let ack = |id| {
            let items =
                vec![FinishItem { id: TaskId(id), holder: Holder::Any, finish: Finish::Ack }];
            Command::Finish { tube: one.clone(), items, show: false }
        };
        let take = Take {
            tube: one.clone(),
            count: 1,
            session: None,
            lease: None,
            worker: None,
            wait: Span::ZERO,
        };
        effects(&store, vec![put(&one)]);
        effects(&store, vec![Command::Take(take.clone())]);
        effects(&store, vec![put(&other)]);
        let after = effects(&store, vec![ack(0)]);
        let ready: Vec<_> = after.ready.iter().map(|(tube, _)| tube.clone()).collect();
        assert!(ready.contains(&other), "{after:?}");
        assert!(!after.events.any());
        // The reverse: a task of a caller waits behind one of the tube.
        let kick = Command::Delete { tube: other.clone(), ids: vec![TaskId(0)], show: false };
        assert!(!effects(&store, vec![enqueue(7, -1e12)]).events.any());
        assert!(effects(&store, vec![kick]).events.any(), "its grant is an event");
    });
}

/// After a batch of which one command failed the events of the others were not reported.
#[test]
fn a_batch_with_a_failed_command_reports_its_events() {
    run(async {
        let database = Database::new();
        let store = database.open();
        gated_tubes(&store);
        let jobs = TubeName::new("jobs").expect("a good name");
        let options = TubeOptions::new(Kind::FifoTtl);
        let create = Command::CreateTube { tube: jobs.clone(), options, if_not_exists: false };
        effects(&store, vec![create]);
        sql(
            &database.url(),
            "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN RAISE numeric_value_out_of_range; END $$; \
             CREATE TRIGGER fail BEFORE INSERT ON taskyard.task \
             FOR EACH ROW EXECUTE FUNCTION fail()",
        );
        let events = effects(&store, vec![enqueue(1, 1.0), put(&jobs)]).events;
        // Another test gets this database.
        sql(&database.url(), "DROP FUNCTION fail() CASCADE");
        assert!(events.any());
    });
}

// Notifications were only about tubes.
#[test]
fn servers_are_notified_of_events_of_others() {
    run(async {
        let database = Database::new();
        let (here, there) = (database.open(), database.open());
        gated_tubes(&here);
        let (sender, received) = mpsc::channel();
        there.watch(Arc::new(move |what| _ = sender.send(what)));
        let release = || {
            let finish = GrantFinish::Release;
            let items = vec![GrantItem { task: TaskId(1), grant: None, finish }];
            semaphore_command(SemaphoreCommand::Finish { key: yang(), items })
        };
        // The servers need not know of each other yet when the first notifications come.
        let notified = (0..600).any(|_| {
            effects(&here, vec![enqueue(1, 1.0)]);
            effects(&here, vec![release()]);
            let change = received.recv_timeout(Duration::from_millis(100));
            change.into_iter().chain(received.try_iter()).any(|what| what == RemoteChange::Events)
        });
        assert!(notified);
    });
}

// A get-or-create of an existing semaphore locked it and counted all waiting tasks, while all other calls waited.
#[test]
fn get_or_create_waits_for_no_lock() {
    let _runtime = runtime().enter();
    run(async {
        let database = Database::new();
        let queue = server(&database);
        queue.limits(1, 0).await;
        let (holder, caller) = (connect(&database).await, connect(&database).await);
        let lock = "BEGIN; SELECT * FROM taskyard.semaphore_state FOR UPDATE";
        holder.batch_execute(lock).await.expect("it is locked");
        caller.batch_execute("SET lock_timeout = '1ms'").await.expect("it is set");
        let get = "SELECT active FROM taskyard.semaphore_configure('yang', true, NULL, 9, NULL, NULL, \
                   NULL, NULL, NULL, false, NULL, NULL, NULL, false, NULL, false, NULL, NULL, NULL)";
        let row = caller.query_one(get, &[]).await.expect("it is answered at once");
        assert_eq!(row.get::<_, i32>(0), 1);
    });
}
