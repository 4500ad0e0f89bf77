//! Names of workers and failures, as the database stores them.

use std::sync::Arc;

use taskyard_conformance::block_on;
use taskyard_core::{
    Command, Failures, Finish, FinishItem, Holder, Kind, Outcome, Reply, Span, Take, Task, TaskId,
    TubeName, TubeOptions,
};
use taskyard_store::{Export, Exported, Import, Store};
use taskyard_store_postgres::PostgresStore;

use taskyard_testkit::calls::{NOW, ack, ask, make_tube, put, take};
use taskyard_testkit::postgres::{Database, run, sql};

fn take_by(tube: &TubeName, count: usize, worker: Option<&str>) -> Command {
    let (session, lease) = (None, Some(Span::from_secs(60)));
    let (worker, wait) = (worker.map(Arc::from), Span::ZERO);
    Command::Take(Take { tube: tube.clone(), count, session, lease, worker, wait })
}

/// The replies to takes that are one batch.
fn take_all(store: &PostgresStore, takes: Vec<Command>) -> Vec<Vec<Task>> {
    let replies = block_on(store.execute(NOW, takes)).replies;
    let tasks = replies.into_iter().map(|reply| match reply {
        Ok(Reply::Taken(tasks)) => tasks,
        other => panic!("a take answers with tasks, not {other:?}"),
    });
    tasks.collect()
}

fn peek(store: &PostgresStore, tube: &TubeName, id: TaskId) -> Task {
    match ask(store, Command::Peek { tube: tube.clone(), ids: vec![id] }) {
        Ok(Reply::Tasks(mut tasks)) => tasks.remove(0),
        other => panic!("a peek answers with tasks, not {other:?}"),
    }
}

/// A store that knows its tube to be without sub-queues and a capacity, and that the tube has this many tasks.
fn opened(database: &Database, kind: Kind, count: usize) -> (PostgresStore, TubeName) {
    let store = database.open();
    let tube = make_tube(&store, TubeOptions::new(kind));
    ask(&store, put(&tube, count + 1)).expect("they are put");
    let first = take(&store, &tube, 1).remove(0);
    assert_eq!(ack(&store, &tube, &first), Outcome::Done(None));
    (store, tube)
}

/// Takes that share a call get tasks in their order, each with the name of its own worker.
#[test]
fn each_task_has_the_worker_that_took_it() {
    run(async {
        for kind in [Kind::FifoTtl, Kind::UtubeTtl] {
            let database = Database::new();
            let (store, tube) = opened(&database, kind, 150);
            let names: Vec<Option<String>> = (0..200)
                .map(|place| (place % 5 > 0).then(|| format!("host:{}", place / 3)))
                .collect();
            let takes = names.iter().map(|name| take_by(&tube, 1, name.as_deref())).collect();
            let taken = take_all(&store, takes);
            let ids: Vec<u64> = taken.iter().flatten().map(|task| task.id.0).collect();
            // In a tube with sub-queues they are all of one, so only one can run.
            let expected: Vec<u64> =
                if kind == Kind::FifoTtl { (1..151).collect() } else { vec![1] };
            assert_eq!(ids, expected, "{kind:?}");
            for (tasks, name) in taken.iter().zip(&names) {
                for task in tasks {
                    let shown = peek(&store, &tube, task.id);
                    assert_eq!(shown.worker.as_deref(), name.as_deref(), "{kind:?} {}", task.id);
                }
            }
        }
    });
}

/// The tasks that were found behind the hint are delivered with those before it.
#[test]
fn each_task_has_its_worker_where_the_search_begins_twice() {
    run(async {
        let database = Database::new();
        let (store, tube) = opened(&database, Kind::FifoTtl, 4);
        let text = "SELECT string_agg(id || ':' || worker, ' ' ORDER BY id) FROM taskyard.deliver_to_workers('mail', \
            NULL, 4, NULL, NULL, 1000000, -9223372036854775808, 3, true, '{a,b,c,d}') WHERE status = 0";
        assert_eq!(tube.as_str(), "mail");
        assert_eq!(sql(&database.url(), text).as_deref(), Some("1:c 2:d 3:a 4:b"));
        drop(store);
    });
}

// Large batches use two connections, and the tasks of both were distributed among all takes.
#[test]
fn large_takes_keep_their_workers() {
    run(async {
        let database = Database::new();
        let (store, tube) = opened(&database, Kind::FifoTtl, 2400);
        let names = [Some("a"), Some("b"), None, Some("a")];
        let takes = names.map(|name| take_by(&tube, 600, name)).to_vec();
        let taken = take_all(&store, takes);
        for (tasks, name) in taken.iter().zip(names) {
            assert_eq!(tasks.len(), 600);
            let ids: Vec<String> = tasks.iter().map(|task| task.id.to_string()).collect();
            let name = name.map_or("NULL".into(), |name| format!("'{name}'"));
            let others = format!(
                "SELECT count(*) FROM taskyard.task WHERE id IN ({}) AND worker IS DISTINCT FROM {name}",
                ids.join(",")
            );
            assert_eq!(sql(&database.url(), &others).as_deref(), Some("0"));
        }
    });
}

/// A server of an earlier version calls the function that has no names.
#[test]
fn a_take_of_an_earlier_version_has_no_worker() {
    run(async {
        let database = Database::new();
        let (store, tube) = opened(&database, Kind::FifoTtl, 1);
        let task = take_all(&store, vec![take_by(&tube, 1, Some("new"))]).remove(0).remove(0);
        assert_eq!(peek(&store, &tube, task.id).worker.as_deref(), Some("new"));
        ask(&store, Command::ReleaseAll { tube: tube.clone() }).expect("it is released");
        let old = "SELECT count(*) FROM taskyard.deliver_ready_tasks('mail', NULL, 1, NULL, NULL, 1000000, \
            NULL, NULL, true) WHERE status = 0";
        assert_eq!(sql(&database.url(), old).as_deref(), Some("1"));
        assert_eq!(peek(&store, &tube, task.id).worker, None);
    });
}

#[test]
fn a_copy_has_the_failures() {
    run(async {
        let (from, to) = (Database::new(), Database::new());
        let (store, tube) = opened(&from, Kind::FifoTtl, 2);
        for error in ["first", "sécond"] {
            let task = take_all(&store, vec![take_by(&tube, 1, Some("w"))]).remove(0).remove(0);
            let holder = Holder::Lease(task.lease.expect("it is taken"));
            let finish = Finish::fail(error, Some(Span::ZERO));
            let items = vec![FinishItem { id: task.id, holder, finish }];
            ask(&store, Command::Finish { tube: tube.clone(), items, show: false })
                .expect("it fails");
        }
        let number = sql(&from.url(), "SELECT number FROM taskyard.tube").expect("there is a tube");
        let tube_number = number.parse().expect("a number");
        let wanted = Export::Tasks { tube: tube_number, from: TaskId(0), count: 9, bytes: 1 << 20 };
        let Ok(Exported::Tasks(records)) = block_on(store.export(wanted)) else {
            panic!("tasks are exported")
        };
        let errors = |failures: &Option<Failures>| {
            let all = failures.iter().flat_map(Failures::iter);
            all.map(|failure| failure.error.to_string()).collect::<Vec<_>>()
        };
        let kept: Vec<_> = records.iter().map(|record| errors(&record.failures)).collect();
        assert_eq!(kept, [vec!["first", "sécond"], vec![]]);
        let copy = to.open();
        let tube = make_tube(&copy, TubeOptions::new(Kind::FifoTtl));
        let before = records[0].failures.clone();
        let import = Import::Tasks(tube.clone(), records);
        block_on(copy.import(NOW, import)).expect("they are imported");
        assert_eq!(peek(&copy, &tube, TaskId(1)).failures, before);
        assert_eq!(peek(&copy, &tube, TaskId(2)).failures, None);
    });
}
