//! Commands do not read the tasks of a tube that they do not concern.

use taskyard_conformance::block_on;
use taskyard_core::{
    Command, Finish, FinishItem, Holder, Kind, Outcome, Reply, Span, Task, TubeName, TubeOptions,
};
use taskyard_store::Store;
use taskyard_store_postgres::PostgresStore;

use taskyard_testkit::calls::{ack, ask, make_tube, put, take};
use taskyard_testkit::postgres::{Database, run, sql};

/// Tasks that no command names.
const BACKLOG: usize = 3_000;
/// How often each command runs.
const ROUNDS: usize = 10;

fn finish(store: &PostgresStore, tube: &TubeName, task: &Task, finish: Finish) {
    let holder = Holder::Lease(task.lease.expect("a taken task has a lease"));
    let items = vec![FinishItem { id: task.id, holder, finish }];
    let reply = ask(store, Command::Finish { tube: tube.clone(), items, show: false });
    assert_eq!(reply, Ok(Reply::Finished(vec![Outcome::Done(None)])));
}

/// Every command but those that empty the tube.
fn use_all(store: &PostgresStore, tube: &TubeName) {
    let tasks = take(store, tube, 4);
    let [first, second, third, fourth] = tasks.as_slice() else { panic!("{tasks:?}") };
    assert_eq!(ack(store, tube, first), Outcome::Done(None));
    finish(store, tube, second, Finish::fail("no route", Some(Span::ZERO)));
    finish(store, tube, third, Finish::Bury);
    let others = [
        Command::Kick { tube: tube.clone(), count: 1 },
        Command::KickTasks { tube: tube.clone(), ids: vec![third.id], reset_attempts: true },
        Command::Deliveries { tube: tube.clone(), count: 9 },
        Command::Peek { tube: tube.clone(), ids: vec![second.id] },
        Command::Positions { tube: tube.clone(), ids: vec![second.id] },
        Command::ReleaseAll { tube: tube.clone() },
        Command::Delete { tube: tube.clone(), ids: vec![fourth.id], show: false },
        Command::Tick { limit: 9, seed: 0 },
        Command::Tubes { tube: Some(tube.clone()) },
    ];
    for command in others {
        ask(store, command).expect("it works");
    }
}

/// Plans are made once, when the tables may be empty. Those of takes and acks read the whole tube for `id =
/// ANY (...)`, so that a drain of 100,000 tasks took a minute.
#[test]
fn no_command_reads_the_backlog() {
    run(async {
        for kind in [Kind::FifoTtl, Kind::UtubeTtl] {
            let database = Database::unopened();
            let store = database.open();
            let tube = make_tube(&store, TubeOptions::new(kind));
            let subqueues = |count| match put(&tube, count) {
                Command::Put { tube, mut tasks, wait } => {
                    for (place, task) in tasks.iter_mut().enumerate() {
                        task.subqueue = Some(place.to_string().into());
                    }
                    Command::Put { tube, tasks, wait }
                }
                other => other,
            };
            ask(&store, subqueues(4)).expect("they are put");
            use_all(&store, &tube);
            ask(&store, subqueues(BACKLOG)).expect("they are put");
            for _ in 0..ROUNDS {
                use_all(&store, &tube);
            }
            block_on(store.close()).expect("it closes");
            drop(store);
            // The connection's own counts are complete when it has ended.
            sql(
                &database.url(),
                "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity
                WHERE datname = current_database() AND pid <> pg_backend_pid()",
            );
            let read = sql(
                &database.url(),
                "SELECT sum(idx_tup_fetch + seq_tup_read) FROM pg_stat_user_tables
                WHERE schemaname = 'taskyard' AND relname = 'task'",
            );
            let read: usize = read.expect("it is counted").parse().expect("a number");
            // A put into sub-queues checks whether a task of each of them is taken.
            assert!(read < 3 * BACKLOG, "{kind:?}: {read} rows were read");
        }
    });
}
