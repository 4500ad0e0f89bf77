//! Tests of data in an earlier format.

use taskyard_core::{
    Body, Command, Finish, FinishItem, Holder, Kind, NewTask, Outcome, Reply, SessionId, Span,
    Take, Task, TaskId, TubeName, TubeOptions,
};
use taskyard_store::Store;
use taskyard_store_redis::RedisStore;

use taskyard_testkit::calls::{ack, ask, make_tube, put, take};
use taskyard_testkit::redis::{instance, open, own, run};

const SESSION: SessionId = SessionId([7; 16]);

/// A URL with a prefix of its own, and that prefix.
fn part() -> (String, String) {
    let url = own(&instance().url());
    let prefix = url.rsplit_once('=').expect("it has a prefix").1.to_owned();
    (url, prefix)
}

/// Bodies inside and outside of the record, and times of every kind.
fn some_tasks() -> Vec<NewTask> {
    let key = |number: usize| Some(format!("key {number}").into());
    let sized = |(number, size): (usize, usize)| NewTask {
        subqueue: key(number),
        pri: Some(u64::MAX - number as u64),
        ..NewTask::new(Body::with_meta(&vec![0xc0; size], b"meta"))
    };
    let mut tasks: Vec<NewTask> =
        [1, 507, 508, 509, 510, 5_000, 90_000].into_iter().enumerate().map(sized).collect();
    let second = Some(Span::from_secs(1));
    let new = |number| NewTask { subqueue: key(number), ..NewTask::new(Body::new(&[0xc0])) };
    tasks.push(NewTask { ttl: second, ..new(20) });
    tasks.push(NewTask { delay: second, ttr: second, ..new(21) });
    tasks.push(NewTask { ttl: second, delay: second, ..new(22) });
    tasks.extend([new(23), new(24), new(24)]);
    tasks
}

fn look(store: &RedisStore, tube: &TubeName) -> Vec<Task> {
    let peek = Command::Peek { tube: tube.clone(), ids: (0..20).map(TaskId).collect() };
    match ask(store, peek) {
        Ok(Reply::Tasks(tasks)) => tasks,
        other => panic!("a peek shows tasks, not {other:?}"),
    }
}

fn finish(store: &RedisStore, tube: &TubeName, task: &Task, finish: Finish) {
    let holder = Holder::Lease(task.lease.expect("it is taken"));
    let items = vec![FinishItem { id: task.id, holder, finish }];
    let finished = ask(store, Command::Finish { tube: tube.clone(), items, show: false });
    assert_eq!(finished, Ok(Reply::Finished(vec![Outcome::Done(None)])));
}

/// Tasks in every state. Answers those that are taken.
fn fill(store: &RedisStore, tube: &TubeName) -> Vec<Task> {
    let tasks = some_tasks();
    let all = Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO };
    ask(store, all).expect("they are put");
    ask(store, Command::JoinSession { session: SESSION, create: true }).expect("it joins");
    let (lease, session) = (Some(Span::from_secs(9)), Some(SESSION));
    let wanted =
        Take { tube: tube.clone(), count: 2, session, lease, worker: None, wait: Span::ZERO };
    let Ok(Reply::Taken(mut held)) = ask(store, Command::Take(wanted)) else { panic!("two") };
    held.extend(take(store, tube, 6));
    let delay = Span::from_secs(3);
    finish(store, tube, &held.remove(7), Finish::Release { delay, counted: true });
    finish(store, tube, &held.remove(6), Finish::Release { delay: Span::ZERO, counted: true });
    finish(store, tube, &held.remove(5), Finish::Bury);
    held
}

fn as_earlier(prefix: &str) {
    let said = instance().script("earlier.lua", EARLIER, &format!("{{{prefix}:mail}}"));
    assert_eq!(said, "", "the script fails");
}

const EARLIER: &str = include_str!("earlier.lua");

#[test]
fn the_first_call_converts_a_tube_of_an_earlier_format() {
    run(async {
        for kind in [Kind::FifoTtl, Kind::UtubeTtl] {
            let (url, prefix) = part();
            let store = open(&url);
            let tube = make_tube(&store, TubeOptions::new(kind));
            let held = fill(&store, &tube);
            let before = look(&store, &tube);
            let stats = ask(&store, Command::Tubes { tube: Some(tube.clone()) });
            as_earlier(&prefix);
            assert_eq!(look(&store, &tube), before);
            assert_eq!(ask(&store, Command::Tubes { tube: Some(tube.clone()) }), stats);
            instance().audit(&prefix, "mail");
            let old = format!("{{{prefix}:mail}}:n");
            assert_eq!(instance().talk(&["EXISTS", &old]), "0", "functions of then miss it");
            for task in &held {
                assert_eq!(ack(&store, &tube, task), Outcome::Done(None));
            }
            instance().audit(&prefix, "mail");
        }
    });
}

#[test]
fn an_empty_tube_of_an_earlier_format_can_be_used() {
    run(async {
        let (url, prefix) = part();
        let store = open(&url);
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        ask(&store, put(&tube, 2)).expect("they are put");
        for task in take(&store, &tube, 2) {
            assert_eq!(ack(&store, &tube, &task), Outcome::Done(None));
        }
        as_earlier(&prefix);
        let placed = ask(&store, put(&tube, 1));
        assert!(matches!(&placed, Ok(Reply::Put(placed)) if placed[0].id == TaskId(2)));
        assert_eq!(take(&store, &tube, 5).len(), 1);
        instance().audit(&prefix, "mail");
    });
}

// Tasks of format 1 have no priority for a semaphore; all else is as in format 2.
#[test]
fn taken_tasks_of_an_earlier_format_are_given_back() {
    run(async {
        let (url, prefix) = part();
        let store = open(&url);
        let tube = make_tube(&store, TubeOptions::new(Kind::UtubeTtl));
        let held = fill(&store, &tube);
        store.close().await.expect("it closes");
        drop(store);
        as_earlier(&prefix);
        let format = format!("{{{prefix}}}:format");
        assert_eq!(instance().talk(&["SET", &format, "1"]), "OK");
        let store = open(&url);
        assert_eq!(ack(&store, &tube, &held[0]), Outcome::Stale, "it was given back");
        assert!(look(&store, &tube).iter().all(|task| task.lease.is_none()));
        instance().audit(&prefix, "mail");
        assert_eq!(instance().talk(&["GET", &format]), "5", "older programs leave it alone now");
    });
}
