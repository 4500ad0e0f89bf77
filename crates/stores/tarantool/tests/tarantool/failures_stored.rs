//! Tests of how failures of tasks and names of workers are stored.

use taskyard_core::limits::ERROR_BYTES_MAX;
use taskyard_core::{
    Body, Command, Finish, FinishItem, Holder, Kind, NewTask, Outcome, Reply, Span, State, Take,
    Task, TaskId, TubeName, TubeOptions,
};
use taskyard_store::copy::{copy, plan};
use taskyard_store::{MemoryStore, Store};
use taskyard_tarantool::LuaValue;

use taskyard_testkit::calls::{NOW, ask, make_tube, put, take};
use taskyard_testkit::tarantool::{TarantoolInstance, instance, open, own, program, run};

fn take_named(store: &dyn Store, tube: &TubeName, worker: &str, count: usize) -> Vec<Task> {
    let (session, lease, worker) = (None, None, Some(worker.into()));
    let take = Take { tube: tube.clone(), count, session, lease, worker, wait: Span::ZERO };
    match ask(store, Command::Take(take)) {
        Ok(Reply::Taken(tasks)) => tasks,
        other => panic!("a take answers with tasks, not {other:?}"),
    }
}

fn finish(store: &dyn Store, tube: &TubeName, task: &Task, finish: Finish) {
    let holder = Holder::Lease(task.lease.expect("it is taken"));
    let items = vec![FinishItem { id: task.id, holder, finish }];
    let finished = ask(store, Command::Finish { tube: tube.clone(), items, show: false });
    assert_eq!(finished, Ok(Reply::Finished(vec![Outcome::Done(None)])));
}

fn peek(store: &dyn Store, tube: &TubeName) -> Vec<Task> {
    let peek = Command::Peek { tube: tube.clone(), ids: (0..9).map(TaskId).collect() };
    match ask(store, peek) {
        Ok(Reply::Tasks(tasks)) => tasks,
        other => panic!("a peek shows tasks, not {other:?}"),
    }
}

/// The rows of a version without workers and failures are those of tasks that never failed, held by workers without names.
#[test]
fn only_a_failure_or_a_name_makes_a_row_longer() {
    run(async {
        let url = own(&instance().url());
        let prefix = url.rsplit_once('=').expect("it has a prefix").1.to_owned();
        let store = open(&url);
        let tube = make_tube(&store, TubeOptions::new(Kind::FifoTtl));
        let fields = || {
            let space = format!("box.space.{prefix}");
            instance().talk(&format!(
                "local taken = {space}_taken:get({{0, 0}})
                return {{#{space}_task:get({{0, 0}}), taken and #taken or 0}}"
            ))
        };
        let are = |task, taken| LuaValue::List(vec![LuaValue::Int(task), LuaValue::Int(taken)]);
        ask(&store, put(&tube, 1)).expect("it is put");
        for finish_by in [
            Finish::Release { delay: Span::ZERO, counted: true },
            Finish::Release { delay: Span::ZERO, counted: false },
            Finish::Bury,
        ] {
            let task = take(&store, &tube, 1).remove(0);
            assert_eq!(fields(), are(18, 7));
            finish(&store, &tube, &task, finish_by);
            assert_eq!(fields(), are(18, 0));
        }
        let kick = Command::Kick { tube: tube.clone(), count: 1 };
        assert_eq!(ask(&store, kick), Ok(Reply::Kicked(1)));
        let task = take_named(&store, &tube, "host:1:test", 1).remove(0);
        finish(&store, &tube, &task, Finish::Touch(Span::from_secs(1)));
        assert_eq!(fields(), are(18, 8));
        finish(&store, &tube, &task, Finish::fail("no route", Some(Span::ZERO)));
        assert_eq!(fields(), are(19, 0));
        let task = take(&store, &tube, 1).remove(0);
        assert_eq!(fields(), are(19, 7));
        finish(&store, &tube, &task, Finish::Ack);
        instance().audit(&prefix);
    });
}

#[test]
fn failures_are_copied() {
    run(async {
        let url = || own(&instance().url());
        let (from, to, back) = (open(&url()), open(&url()), MemoryStore::default());
        let tube = make_tube(&from, TubeOptions::new(Kind::FifoTtl));
        // Bodies in the rows of their tasks, and apart.
        let tasks = [1, 9_000, 2].map(|size| NewTask::new(Body::new(&vec![0xc0; size]))).to_vec();
        ask(&from, Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO }).expect("put");
        for error in ["no route", "é"] {
            for task in take_named(&from, &tube, "host:1:test", 2) {
                finish(&from, &tube, &task, Finish::fail(error, Some(Span::ZERO)));
            }
        }
        // A taken task is copied as given back, without a failure more.
        assert_eq!(take_named(&from, &tube, "w", 1).len(), 1);
        let failures = |store: &dyn Store| {
            peek(store, &tube).into_iter().map(|task| task.failures).collect::<Vec<_>>()
        };
        let expected = failures(&from);
        let counts: Vec<_> = expected
            .iter()
            .map(|failures| failures.iter().flat_map(|failures| failures.iter()).count())
            .collect();
        assert_eq!(counts, [2, 2, 0]);
        let stores: [(&dyn Store, &dyn Store); 2] = [(&from, &to), (&to, &back)];
        for (from, to) in stores {
            let plan = plan(from, to, &[]).await.expect("a plan");
            copy(from, to, NOW, &plan, |_| ()).await.expect("it is copied");
            assert_eq!(failures(to), expected);
        }
    });
}

// Errors would use up the memory that is reserved for takes and acks.
#[test]
fn deliveries_fail_when_the_memory_is_full() {
    let Some(program) = program() else { return };
    let tarantool = TarantoolInstance::with(program, &[("memtx_memory", "50331648")]);
    let store = open(&tarantool.url());
    let tube = make_tube(&store, TubeOptions::new(Kind::FifoTtl));
    while ask(&store, put(&tube, 1000)).is_ok() {}
    let error = "e".repeat(ERROR_BYTES_MAX);
    for round in 0..10 {
        let fail = |task: Task| FinishItem {
            id: task.id,
            holder: Holder::Lease(task.lease.expect("a lease")),
            finish: Finish::fail(&error, Some(Span::from_secs(1_000))),
        };
        let items: Vec<_> = take(&store, &tube, 1000).into_iter().map(fail).collect();
        let expected = Reply::Finished(vec![Outcome::Done(None); items.len()]);
        let finished = ask(&store, Command::Finish { tube: tube.clone(), items, show: false });
        assert!(finished == Ok(expected), "round {round}");
    }
    let task = peek(&store, &tube).remove(0);
    assert_eq!((task.state, task.attempts, task.failures), (State::Delayed, 1, None));
}
