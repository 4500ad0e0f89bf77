//! Done tasks, as the database stores them.

use taskyard_conformance::block_on;
use taskyard_core::{
    Body, Command, Finish, FinishItem, Holder, Kind, List, ListOrder, NewTask, Outcome, Reply,
    Span, State, StateSet, StoredState, Task, TaskId, Timestamp, TubeName, TubeOptions,
};
use taskyard_store::{Export, Exported, Import, Store};
use taskyard_store_postgres::PostgresStore;

use taskyard_testkit::calls::{NOW, ack, ask, make_tube, put, take};
use taskyard_testkit::postgres::{Database, check_counts, run, sql};

const RESULT: &[u8] = b"\xa2ok";

fn keeping() -> TubeOptions {
    TubeOptions { keep_done: Some(Span::from_secs(100)), ..TubeOptions::new(Kind::FifoTtl) }
}

/// A store with a tube that keeps done tasks and has this many.
fn opened(database: &Database, options: TubeOptions, count: usize) -> (PostgresStore, TubeName) {
    let store = database.open();
    let tube = make_tube(&store, options);
    finish_more(&store, &tube, count);
    (store, tube)
}

/// Puts, takes and acks this many tasks.
fn finish_more(store: &PostgresStore, tube: &TubeName, count: usize) {
    ask(store, put(tube, count)).expect("they are put");
    let items = take(store, tube, count).iter().map(item).collect();
    let finish = Command::Finish { tube: tube.clone(), items, show: false };
    let Ok(Reply::Finished(outcomes)) = ask(store, finish) else { panic!("they are acked") };
    assert_eq!(outcomes, vec![Outcome::Done(None); count]);
}

fn item(task: &Task) -> FinishItem {
    let holder = Holder::Lease(task.lease.expect("it is taken"));
    FinishItem { id: task.id, holder, finish: Finish::ack_with(RESULT) }
}

fn peek(store: &PostgresStore, tube: &TubeName, ids: impl Iterator<Item = u64>) -> Vec<Task> {
    let ids = ids.map(TaskId).collect();
    match ask(store, Command::Peek { tube: tube.clone(), ids }) {
        Ok(Reply::Tasks(tasks)) => tasks,
        other => panic!("a peek answers with tasks, not {other:?}"),
    }
}

fn listed(store: &PostgresStore, tube: &TubeName) -> Vec<u64> {
    let order = ListOrder::Id { states: StateSet::ALL, after: None };
    match ask(store, Command::List(List { tube: tube.clone(), order, limit: 1000, key: None })) {
        Ok(Reply::Listed(tasks)) => tasks.iter().map(|task| task.id.0).collect(),
        other => panic!("a list answers with ids, not {other:?}"),
    }
}

fn tick(store: &PostgresStore, now: Timestamp, limit: usize) -> usize {
    match block_on(store.execute(now, vec![Command::Tick { limit, seed: 0 }])).replies.remove(0) {
        Ok(Reply::Ticked(count)) => count,
        other => panic!("a tick answered {other:?}"),
    }
}

/// Compares the counts with the tables.
fn check_kept(database: &Database) {
    check_counts(&database.url());
    let differ = "SELECT count(*) FROM taskyard.tube t WHERE \
        (SELECT coalesce(sum(c.kept), 0) FROM taskyard.count c WHERE c.tube = t.number) \
        <> (SELECT count(*) FROM taskyard.done d WHERE d.tube = t.number)";
    assert_eq!(sql(&database.url(), differ).as_deref(), Some("0"));
}

#[test]
fn servers_share_done_tasks() {
    run(async {
        let database = Database::new();
        let (here, tube) = opened(&database, TubeOptions { keep_done_max: 2, ..keeping() }, 2);
        let there = database.open();
        let seen = peek(&there, &tube, 0..1).remove(0);
        assert_eq!(seen.finished.expect("it is done").result(), Some(RESULT));
        finish_more(&there, &tube, 1);
        assert_eq!(listed(&here, &tube), [0, 1, 2]);
        let removed = tick(&here, NOW, 9) + tick(&there, NOW, 9);
        assert_eq!((removed, listed(&there, &tube)), (1, vec![1, 2]), "each is removed once");
        check_kept(&database);
    });
}

/// A tick removes no more tasks than it may, oldest first, and says when the next is due.
#[test]
fn ticks_remove_done_tasks_in_steps() {
    run(async {
        let database = Database::new();
        let (store, tube) = opened(&database, TubeOptions { keep_done_max: 800, ..keeping() }, 900);
        assert_eq!(tick(&store, NOW, 1000), 0, "an eighth more may be kept");
        finish_more(&store, &tube, 100);
        // Rows of counts are added up meanwhile.
        for _ in 0..60 {
            finish_more(&store, &tube, 1);
        }
        assert_eq!((tick(&store, NOW, 100), tick(&store, NOW, 1000)), (100, 160));
        assert_eq!(tick(&store, NOW, 1000), 0);
        assert_eq!(listed(&store, &tube), (260..1060).collect::<Vec<_>>());
        check_kept(&database);
        let due = sql(
            &database.url(),
            "SELECT r.due FROM taskyard.retention r JOIN taskyard.tube t ON t.number = r.tube",
        );
        let over = NOW + Span::from_secs(100);
        assert_eq!(due, Some(over.as_micros().to_string()));
        let before = Timestamp::from_micros(over.as_micros() - 1);
        assert_eq!((tick(&store, before, 1000), tick(&store, over, 700)), (0, 700));
        assert_eq!((tick(&store, over, 700), tick(&store, over, 700)), (100, 0));
        check_kept(&database);
    });
}

/// Dead index entries of removed tasks cannot be vacuumed while a transaction is open: a search that is costly begins behind them, and
/// sometimes at the beginning.
#[test]
fn a_costly_search_begins_at_the_oldest_task() {
    run(async {
        let database = Database::new();
        let (store, tube) = opened(&database, TubeOptions { keep_done_max: 2, ..keeping() }, 3);
        assert_eq!(tick(&store, NOW, 9), 1);
        let costly = "UPDATE taskyard.retention SET oldest = oldest + 1, searched = taskyard.clock(), cost = 60000000";
        sql(&database.url(), costly);
        finish_more(&store, &tube, 1);
        assert_eq!(tick(&store, NOW, 9), 0, "they are before the place where it begins");
        sql(&database.url(), "UPDATE taskyard.retention SET searched = 0");
        assert_eq!(tick(&store, NOW, 9), 1);
        assert_eq!(listed(&store, &tube), [2, 3]);
    });
}

/// A tube that keeps none any more has nothing left in the database.
#[test]
fn nothing_is_left_without_the_option() {
    run(async {
        let database = Database::new();
        let (store, tube) = opened(&database, keeping(), 5);
        let change = taskyard_core::TubeChange { keep_done: Some(None), ..Default::default() };
        let alter = Command::AlterTube { tube: tube.clone(), change };
        let executed = block_on(store.execute(NOW, vec![alter]));
        assert!(executed.effects.next_wakeup.is_some_and(|at| at <= NOW), "a tick is due");
        assert_eq!((tick(&store, NOW, 3), tick(&store, NOW, 3), tick(&store, NOW, 3)), (3, 2, 0));
        let rows = "SELECT (SELECT count(*) FROM taskyard.done d WHERE d.tube = t.number) \
            + (SELECT count(*) FROM taskyard.retention r WHERE r.tube = t.number) FROM taskyard.tube t";
        assert_eq!(sql(&database.url(), rows).as_deref(), Some("0"));
        check_kept(&database);
    });
}

/// Servers of earlier versions call functions without results; their acks keep the tasks as well.
#[test]
fn acks_of_earlier_versions_are_kept() {
    run(async {
        let database = Database::new();
        let (store, tube) = opened(&database, keeping(), 0);
        ask(&store, put(&tube, 3)).expect("they are put");
        let leases: Vec<u64> =
            take(&store, &tube, 3).iter().filter_map(|task| Some(task.lease?.0)).collect();
        let [first, second, third] = leases[..] else { panic!("three are taken") };
        let now = NOW.as_micros();
        sql(
            &database.url(),
            &format!(
                "SELECT taskyard.ack_tasks('mail', {now}, '{{0}}', NULL, '{{{first}}}', NULL, false, 1000, NULL);
                 SELECT taskyard.ack_tasks('mail', {now}, '{{1}}', NULL, '{{{second}}}', NULL, false, 1000);
                 SELECT taskyard.finish_tasks('mail', {now}, '{{2}}', NULL, '{{{third}}}', NULL, '{{0}}', '{{0}}', \
                    '{{true}}', false, 0)"
            ),
        );
        let kept = peek(&store, &tube, 0..3);
        let states: Vec<_> = kept.iter().map(|task| (task.id.0, task.state)).collect();
        assert_eq!(states, [(0, State::Done), (1, State::Done), (2, State::Done)]);
        let deleted = format!(
            "SELECT count(*) - 1 FROM taskyard.delete_tasks('mail', {now}, '{{1}}', true, 1000)"
        );
        assert_eq!(sql(&database.url(), &deleted).as_deref(), Some("1"));
        assert_eq!(listed(&store, &tube), [0, 2]);
        check_kept(&database);
    });
}

#[test]
fn a_copy_has_the_done_tasks() {
    run(async {
        let (from, to) = (Database::new(), Database::new());
        let (store, tube) = opened(&from, keeping(), 2);
        ask(&store, put(&tube, 2)).expect("they are put");
        let held = take(&store, &tube, 2);
        assert_eq!(ack(&store, &tube, &held[1]), Outcome::Done(None));
        let number = sql(&from.url(), "SELECT number FROM taskyard.tube").expect("there is a tube");
        let number = number.parse().expect("a number");
        let wanted = |count| Export::Tasks { tube: number, from: TaskId(0), count, bytes: 1 << 20 };
        let export = |count| match block_on(store.export(wanted(count))) {
            Ok(Exported::Tasks(records)) => records,
            _ => panic!("tasks are exported"),
        };
        let states: Vec<_> = export(3).iter().map(|record| record.state).collect();
        assert_eq!(states[..2], [StoredState::Done, StoredState::Done]);
        assert!(matches!(states[2], StoredState::Ready(_)), "{states:?}");
        let copy = to.open();
        let there = make_tube(&copy, keeping());
        block_on(copy.import(NOW, Import::Tasks(there.clone(), export(9)))).expect("they come");
        let done = [0, 1, 3];
        let (before, after) =
            (peek(&store, &tube, done.into_iter()), peek(&copy, &there, done.into_iter()));
        assert_eq!((before.len(), before), (3, after));
        assert_eq!(listed(&copy, &there), [0, 1, 2, 3]);
        check_kept(&to);
    });
}

/// Ids that are close together are read as a range: the answer is the same as for each alone.
#[test]
fn a_range_of_ids_shows_the_same_tasks() {
    run(async {
        let database = Database::new();
        let (store, tube) = opened(&database, keeping(), 10);
        ask(&store, put(&tube, 40)).expect("they are put");
        let taken = take(&store, &tube, 5);
        ask(&store, Command::Delete { tube: tube.clone(), ids: vec![TaskId(20)], show: false })
            .expect("it is deleted");
        let alone = |ids: &[u64]| -> Vec<Task> {
            ids.iter().flat_map(|id| peek(&store, &tube, [*id].into_iter())).collect()
        };
        let all: Vec<u64> = (0..60).collect();
        let gaps: Vec<u64> = (3..50).filter(|id| id % 3 > 0).collect();
        for ids in [&all, &gaps] {
            let tasks = peek(&store, &tube, ids.iter().copied());
            assert_eq!(tasks, alone(ids));
            assert!(tasks.iter().any(|task| task.state == State::Done && task.finished.is_some()));
            assert!(tasks.iter().any(|task| task.lease == taken[1].lease));
            assert!(tasks.iter().all(|task| task.id.0 != 20), "it is deleted");
        }
        let missing = Command::Peek {
            tube: TubeName::new("other").expect("a name"),
            ids: (0..20).map(TaskId).collect(),
        };
        let refused = ask(&store, missing);
        assert!(matches!(refused, Err(taskyard_core::Error::TubeNotFound(_))), "{refused:?}");
    });
}

/// A range of tasks is not read twice while no payload is large: then it cannot have too many bytes. As soon as one is large, the bytes are
/// counted before the first task is sent.
#[test]
fn a_range_with_too_many_bytes_is_refused() {
    run(async {
        let database = Database::new();
        let store = database.open();
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        ask(&store, put(&tube, 19)).expect("they are put");
        let shown = |bytes_max: u64| {
            let range = format!("'{tube}', NULL, 0, 19, NULL, {bytes_max}");
            let count = "string_agg(r.outcome::text, '') FILTER (WHERE r.item = 0), count(*) - 1";
            sql(
                &database.url(),
                &format!("SELECT concat_ws(' ', {count}) FROM taskyard.show_range({range}) r"),
            )
        };
        assert_eq!(shown(200_000).as_deref(), Some("0 19"));
        assert_eq!(shown(10).as_deref(), Some("6 0"), "so few bytes are always counted");
        let large = NewTask::new(Body::new(&[0xc0; 300_000]));
        let put = Command::Put { tube: tube.clone(), tasks: vec![large], wait: Span::ZERO };
        ask(&store, put).expect("it is put");
        assert_eq!(shown(200_000).as_deref(), Some("6 0"));
        assert_eq!(shown(400_000).as_deref(), Some("0 20"));
    });
}
