//! Tests of how failures of tasks and names of workers are stored.

use taskyard_core::failure::LEASE_EXPIRED;
use taskyard_core::{
    Body, Command, Finish, FinishItem, Holder, Kind, NewTask, Outcome, Reply, Span, Take, Task,
    TaskId, Timestamp, TubeName, TubeOptions,
};
use taskyard_store::copy::{copy, plan};
use taskyard_store::{MemoryStore, Store};

use taskyard_testkit::calls::{NOW, ack, ask, make_tube, put, take};
use taskyard_testkit::redis::{instance, open, own, run};

/// Which tasks have failures according to their record and do not, or the reverse.
const AUDIT: &str = "
local base, wrong, stored = KEYS[1], {}, redis.call('HLEN', KEYS[1] .. ':f')
local tasks = redis.call('HGETALL', base .. ':t')
for place = 1, #tasks, 2 do
    local id, failed = tasks[place], struct.unpack('<d', tasks[place + 1], 10) % 1 > 0
    local delivery = redis.call('HGET', base .. ':x', id)
    stored = stored - (failed and 1 or 0)
    if failed ~= (redis.call('HEXISTS', base .. ':f', id) == 1) or
        delivery and failed ~= (string.byte(delivery, 43) == 1) then
        wrong[#wrong + 1] = tostring(struct.unpack('>I8', id))
    end
end
return table.concat(wrong, ' ') .. (stored == 0 and '' or ' and ' .. stored .. ' of no task')";

/// Deliveries as a version without workers and failures writes them.
const WITHOUT_TAILS: &str = "
local deliveries = redis.call('HGETALL', KEYS[1] .. ':x')
for place = 1, #deliveries, 2 do
    local delivery = string.sub(deliveries[place + 1], 1, 42) .. string.rep('\\0', 23)
    redis.call('HSET', KEYS[1] .. ':x', deliveries[place], delivery)
end
return ''";

/// Panics unless exactly those tasks have failures whose records say so.
pub fn audit_failures(prefix: &str) {
    let wrong = instance().script("failures.lua", AUDIT, &format!("{{{prefix}:mail}}"));
    assert_eq!(wrong, "", "these tasks contradict their failures");
}

/// A URL with a prefix of its own, and that prefix.
fn part() -> (String, String) {
    let url = own(&instance().url());
    let prefix = url.rsplit_once('=').expect("it has a prefix").1.to_owned();
    (url, prefix)
}

fn take_named(store: &dyn Store, tube: &TubeName, worker: &str, count: usize) -> Vec<Task> {
    let (session, lease) = (None, Some(Span::from_secs(60)));
    let worker = Some(worker.into());
    let take = Take { tube: tube.clone(), count, session, lease, worker, wait: Span::ZERO };
    match ask(store, Command::Take(take)) {
        Ok(Reply::Taken(tasks)) => tasks,
        other => panic!("a take answers with tasks, not {other:?}"),
    }
}

fn fail(store: &dyn Store, tube: &TubeName, task: &Task, finish: Finish) {
    let holder = Holder::Lease(task.lease.expect("it is taken"));
    let items = vec![FinishItem { id: task.id, holder, finish }];
    let finished = ask(store, Command::Finish { tube: tube.clone(), items, show: false });
    assert_eq!(finished, Ok(Reply::Finished(vec![Outcome::Done(None)])));
}

fn peek(store: &dyn Store, tube: &TubeName) -> Vec<Task> {
    let peek = Command::Peek { tube: tube.clone(), ids: (0..20).map(TaskId).collect() };
    match ask(store, peek) {
        Ok(Reply::Tasks(tasks)) => tasks,
        other => panic!("a peek shows tasks, not {other:?}"),
    }
}

/// The errors of a task.
fn errors(task: &Task) -> Vec<String> {
    let failures = task.failures.iter().flat_map(|failures| failures.iter());
    failures.map(|failure| failure.error.to_string()).collect()
}

/// Puts tasks with bodies inside and outside of the record, of which all but the last have failed.
fn fill(store: &dyn Store, tube: &TubeName) {
    let task = |size: usize| NewTask {
        subqueue: Some(size.to_string().into()),
        ttl: Some(Span::from_secs(1_000)),
        ..NewTask::new(Body::new(&vec![0xc0; size]))
    };
    let tasks = [1, 5_000, 2, 6_000, 3, 7_000, 4].map(task).to_vec();
    ask(store, Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO }).expect("they are put");
    for task in take_named(store, tube, "host:1:test", 6) {
        fail(store, tube, &task, Finish::fail("no route", Some(Span::ZERO)));
    }
}

#[test]
fn failures_are_removed_with_their_tasks() {
    run(async {
        for kind in [Kind::FifoTtl, Kind::UtubeTtl] {
            let (url, prefix) = part();
            let store = open(&url);
            let tube = make_tube(&store, TubeOptions::new(kind));
            fill(&store, &tube);
            audit_failures(&prefix);
            let taken = take_named(&store, &tube, "w", 3);
            audit_failures(&prefix);
            for task in &taken {
                assert_eq!(ack(&store, &tube, task), Outcome::Done(None));
            }
            let ids = vec![TaskId(3)];
            ask(&store, Command::Delete { tube: tube.clone(), ids, show: true }).expect("deleted");
            let tasks = peek(&store, &tube);
            assert_eq!(tasks.iter().map(|task| task.id.0).collect::<Vec<_>>(), [4, 5, 6]);
            assert_eq!(errors(&tasks[0]), ["no route"]);
            assert_eq!(errors(&tasks[2]), Vec::<String>::new());
            audit_failures(&prefix);
            let later = Timestamp::from_micros(NOW.as_micros() + 2_000_000_000);
            store.execute(later, vec![Command::Tick { limit: 100, seed: 0 }]).await;
            audit_failures(&prefix);
            let key = format!("{{{prefix}:mail}}:f");
            assert_eq!(instance().talk(&["EXISTS", &key]), "0");
            fill(&store, &tube);
            ask(&store, Command::Truncate { tube: tube.clone() }).expect("it is truncated");
            assert_eq!(instance().talk(&["EXISTS", &key]), "0");
            instance().audit(&prefix, "mail");
        }
    });
}

// Servers of a version without failures may work on the same tubes.
#[test]
fn deliveries_of_a_version_without_failures_are_read() {
    run(async {
        for kind in [Kind::FifoTtl, Kind::UtubeTtl] {
            let (url, prefix) = part();
            let store = open(&url);
            let tube = make_tube(&store, TubeOptions::new(kind));
            fill(&store, &tube);
            let taken = take_named(&store, &tube, "w", 3);
            let base = format!("{{{prefix}:mail}}");
            assert_eq!(instance().script("tails.lua", WITHOUT_TAILS, &base), "");
            let tasks = peek(&store, &tube);
            assert!(tasks.iter().all(|task| task.worker.is_none()));
            assert!(tasks[..6].iter().all(|task| errors(task) == ["no route"]));
            assert_eq!(ack(&store, &tube, &taken[0]), Outcome::Done(None));
            fail(&store, &tube, &taken[1], Finish::fail("again", None));
            fail(&store, &tube, &taken[2], Finish::Touch(Span::from_secs(1)));
            let tasks = peek(&store, &tube);
            assert_eq!(errors(&tasks[0]), ["no route", "again"]);
            assert_eq!(ack(&store, &tube, &taken[2]), Outcome::Done(None));
        }
    });
}

#[test]
fn failures_are_copied() {
    run(async {
        let ((url, _), (other, prefix)) = (part(), part());
        let (from, to, back) = (open(&url), open(&other), MemoryStore::default());
        let tube = make_tube(&from, TubeOptions::new(Kind::FifoTtl));
        fill(&from, &tube);
        // What is taken is copied as given back, without a failure more.
        let taken = take_named(&from, &tube, "w", 1);
        let failures = |store: &dyn Store| {
            peek(store, &tube).into_iter().map(|task| task.failures).collect::<Vec<_>>()
        };
        let expected = failures(&from);
        assert_eq!((taken.len(), expected.iter().flatten().count()), (1, 6));
        let stores: [(&dyn Store, &dyn Store); 2] = [(&from, &to), (&to, &back)];
        for (from, to) in stores {
            let plan = plan(from, to, &[]).await.expect("a plan");
            copy(from, to, NOW, &plan, |_| ()).await.expect("it is copied");
            assert_eq!(failures(to), expected);
        }
        audit_failures(&prefix);
    });
}

// The error of an expired lease is stored by the tick of any server, with the name that the taker gave.
#[test]
fn another_server_stores_the_failure_of_an_expired_lease() {
    run(async {
        let (url, prefix) = part();
        let (here, there) = (open(&url), open(&url));
        let tube = make_tube(&here, TubeOptions::new(Kind::Fifo));
        ask(&here, put(&tube, 1)).expect("it is put");
        let worker = "w".repeat(100);
        take_named(&here, &tube, &worker, 1);
        drop(here);
        let later = Timestamp::from_micros(NOW.as_micros() + 70_000_000);
        there.execute(later, vec![Command::Tick { limit: 100, seed: 0 }]).await;
        let failures = peek(&there, &tube).remove(0).failures.expect("it failed");
        let failure = failures.last().expect("a failure");
        assert_eq!((failure.run, &*failure.error), (Span::from_secs(60), LEASE_EXPIRED));
        assert_eq!(failure.worker.as_deref(), Some(&*worker));
        assert_eq!(take(&there, &tube, 1).len(), 1);
        audit_failures(&prefix);
    });
}
