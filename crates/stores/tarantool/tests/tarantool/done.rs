//! Tests of how done tasks are stored and removed.

use taskyard_conformance::block_on;
use taskyard_core::limits::RESULT_BYTES_MAX;
use taskyard_core::{
    Body, Command, Error, Finish, FinishItem, Holder, Kind, NewTask, Outcome, Reply, Span, State,
    Task, TaskId, Timestamp, TubeChange, TubeName, TubeOptions,
};
use taskyard_store::copy::{copy, plan};
use taskyard_store::{Executed, MemoryStore, Store};
use taskyard_store_tarantool::{Clock, TarantoolStore};
use taskyard_tarantool::LuaValue;

use taskyard_testkit::calls::{NOW, ask, make_tube, put, take};
use taskyard_testkit::tarantool::{TarantoolInstance, instance, open, own, program, run};

const RESULT: &[u8] = b"\xa2ok";
const KEEP: Span = Span::from_secs(100);

fn keeping() -> TubeOptions {
    TubeOptions { keep_done: Some(KEEP), ..TubeOptions::new(Kind::FifoTtl) }
}

/// Acks all of these in one command, with a result.
fn ack_all(store: &dyn Store, tube: &TubeName, tasks: &[Task], result: &[u8]) {
    let item = |task: &Task| FinishItem {
        id: task.id,
        holder: Holder::Lease(task.lease.expect("it is taken")),
        finish: Finish::ack_with(result),
    };
    let items = tasks.iter().map(item).collect();
    let finished = ask(store, Command::Finish { tube: tube.clone(), items, show: false });
    assert!(finished == Ok(Reply::Finished(vec![Outcome::Done(None); tasks.len()])));
}

fn finish_many(store: &dyn Store, tube: &TubeName, count: usize) {
    ask(store, put(tube, count)).expect("they are put");
    let tasks = take(store, tube, count);
    assert_eq!(tasks.len(), count);
    ack_all(store, tube, &tasks, RESULT);
}

fn peek(store: &dyn Store, tube: &TubeName) -> Vec<Task> {
    let peek = Command::Peek { tube: tube.clone(), ids: (0..9).map(TaskId).collect() };
    match ask(store, peek) {
        Ok(Reply::Tasks(tasks)) => tasks,
        other => panic!("a peek shows tasks, not {other:?}"),
    }
}

fn tick_at(store: &dyn Store, now: Timestamp, limit: usize) -> (usize, Option<Timestamp>) {
    let Executed { mut replies, effects, .. } =
        block_on(store.execute(now, vec![Command::Tick { limit, seed: 0 }]));
    match replies.remove(0) {
        Ok(Reply::Ticked(count)) => (count, effects.next_wakeup),
        other => panic!("a tick answers how much it did, not {other:?}"),
    }
}

fn prefix_of(url: &str) -> String {
    url.rsplit_once('=').expect("it has a prefix").1.to_owned()
}

/// How many rows a space has.
fn rows(prefix: &str, space: &str) -> u64 {
    match instance().talk(&format!("return box.space.{prefix}_{space}:len()")) {
        LuaValue::Int(count) => u64::try_from(count).expect("a count"),
        other => panic!("{other:?}"),
    }
}

/// Makes the spaces those of the version that kept no done tasks.
fn forget_kept(tarantool: &TarantoolInstance, prefix: &str) {
    let space = format!("box.space.{prefix}");
    tarantool.talk(&format!(
        "{space}_done:drop() {space}_kept:drop()
        for _, row in ipairs({space}_tube:select()) do
            {space}_tube:update(row[1], {{{{'=', 3, {{unpack(row[3], 1, 12)}}}}}})
        end"
    ));
}

#[test]
fn spaces_of_the_earlier_version_are_completed() {
    run(async {
        let url = own(&instance().url());
        let prefix = prefix_of(&url);
        let store = open(&url);
        let tube = make_tube(&store, TubeOptions::new(Kind::FifoTtl));
        ask(&store, put(&tube, 2)).expect("they are put");
        store.close().await.expect("it closes");
        forget_kept(instance(), &prefix);
        let format =
            || instance().talk(&format!("return box.space.{prefix}_meta:get('format')[2]"));
        let store = open(&url);
        let tasks = take(&store, &tube, 1);
        ack_all(&store, &tube, &tasks, RESULT);
        assert_eq!(peek(&store, &tube).len(), 1, "the tube keeps nothing");
        assert_eq!(format(), LuaValue::Int(1), "the earlier version can work beside this one");
        let fewer = TubeChange { keep_done_max: Some(7), ..TubeChange::default() };
        let alter = |change| ask(&store, Command::AlterTube { tube: tube.clone(), change });
        assert!(alter(fewer).is_ok());
        assert_eq!(format(), LuaValue::Int(1));
        let keep = TubeChange { keep_done: Some(Some(KEEP)), ..TubeChange::default() };
        let Ok(Reply::Tubes(tubes)) = alter(keep) else { panic!("it is altered") };
        let options = &tubes[0].options;
        assert_eq!((options.keep_done, options.keep_done_max), (Some(KEEP), 7));
        assert_eq!(format(), LuaValue::Int(2));
        let tasks = take(&store, &tube, 1);
        ack_all(&store, &tube, &tasks, RESULT);
        assert_eq!(peek(&store, &tube)[0].state, State::Done);
    });
}

/// A server of the earlier version would lose done tasks: its procedures answer no more, so that it connects again and learns why.
#[test]
fn procedures_of_the_earlier_version_are_refused_when_a_tube_keeps_tasks() {
    run(async {
        let url = own(&instance().url());
        let prefix = prefix_of(&url);
        let store = open(&url);
        let name = format!("taskyard_1_{:016x}", 0xfeed);
        instance().talk(&format!(
            "rawset(_G, '{name}', {{ parts = {{ {prefix} = {{ import_tasks = true, batch = function() return 7 end }} }} }})"
        ));
        let call = || {
            instance().talk(&format!(
                "local done, why = pcall(function() return {name}.parts.{prefix}.batch() end)
                return done and why or why.code or tostring(why)"
            ))
        };
        make_tube(&store, TubeOptions::new(Kind::Fifo));
        assert_eq!(call(), LuaValue::Int(7));
        let tube = TubeName::new("keeping").expect("a name");
        let create = Command::CreateTube { tube, options: keeping(), if_not_exists: false };
        assert_eq!(ask(&store, create), Ok(Reply::Created(true)));
        assert_eq!(call(), LuaValue::Int(33), "ER_NO_SUCH_PROC");
        instance().talk(&format!("rawset(_G, '{name}', nil)"));
        assert!(TarantoolStore::open(&url, Clock::Caller).is_ok(), "this version is not concerned");
    });
}

/// Without the right to create spaces a server works, but cannot keep done tasks.
#[test]
fn without_the_right_to_create_spaces_keeping_is_refused() {
    let Some(program) = program() else { return };
    let tarantool = TarantoolInstance::new(program);
    let tube = make_tube(&open(&tarantool.url()), TubeOptions::new(Kind::Fifo));
    forget_kept(&tarantool, "taskyard");
    tarantool.talk(
        "box.schema.user.create('plain', { password = 'plain' })
        box.schema.user.grant('plain', 'read,write,execute', 'universe')",
    );
    let plain = open(&tarantool.url_with("plain:plain@"));
    finish_many(&plain, &tube, 3);
    assert_eq!(tick_at(&plain, NOW, 10).0, 0);
    let change = TubeChange { keep_done: Some(Some(KEEP)), ..TubeChange::default() };
    let alter = Command::AlterTube { tube: tube.clone(), change };
    match ask(&plain, alter.clone()) {
        Err(Error::Invalid(why)) => assert!(why.contains("taskyard migrate"), "{why}"),
        other => panic!("it is refused, not {other:?}"),
    }
    let owner = open(&tarantool.url());
    assert!(ask(&plain, alter).is_ok(), "the owner has created them");
    finish_many(&owner, &tube, 1);
    assert_eq!(peek(&plain, &tube).len(), 1);
}

#[test]
fn servers_share_done_tasks() {
    run(async {
        let url = own(&instance().url());
        let (one, other) = (open(&url), open(&url));
        let tube = make_tube(&one, keeping());
        finish_many(&one, &tube, 5);
        assert_eq!(peek(&other, &tube), peek(&one, &tube));
        assert_eq!(peek(&other, &tube).len(), 5);
        let gone = NOW + KEEP;
        let removed = [&one, &other, &one].map(|store| tick_at(store, gone, 3).0);
        assert_eq!(removed, [3, 2, 0]);
        assert_eq!(rows(&prefix_of(&url), "done"), 0);
    });
}

/// A tick does not do more than it is allowed to, and another one follows soon.
#[test]
fn too_many_done_tasks_are_removed_in_groups() {
    run(async {
        let url = own(&instance().url());
        let prefix = prefix_of(&url);
        let store = open(&url);
        let tube = make_tube(&store, TubeOptions { keep_done_max: 80, ..keeping() });
        for _ in 0..9 {
            finish_many(&store, &tube, 10);
        }
        let age = NOW + KEEP;
        let (removed, wakeup) = tick_at(&store, NOW, 1000);
        assert_eq!((removed, rows(&prefix, "done")), (0, 90), "an eighth more is allowed");
        let soon = |wakeup: Option<Timestamp>, due| {
            let wakeup = wakeup.expect("a tick is needed");
            assert!(due <= wakeup && wakeup <= due + Span::from_secs(1), "{wakeup:?}");
        };
        soon(wakeup, age);
        finish_many(&store, &tube, 1000);
        let (removed, wakeup) = tick_at(&store, NOW, 500);
        assert_eq!((removed, rows(&prefix, "done")), (500, 590));
        soon(wakeup, NOW);
        let (removed, wakeup) = tick_at(&store, NOW, 1000);
        assert_eq!((removed, rows(&prefix, "done")), (510, 80));
        soon(wakeup, age);
        assert_eq!(tick_at(&store, NOW, 1000).0, 0);
        assert_eq!(tick_at(&store, age, 70).0, 70);
        let (removed, wakeup) = tick_at(&store, age, 70);
        assert_eq!((removed, wakeup, rows(&prefix, "kept")), (10, None, 0));
        instance().audit(&prefix);
    });
}

/// Counts and deadlines are not stored; the removal goes on after a restart.
#[test]
fn done_tasks_are_counted_after_a_restart() {
    let Some(program) = program() else { return };
    let tarantool = TarantoolInstance::new(program);
    let store = open(&tarantool.url());
    let tube = make_tube(&store, TubeOptions { keep_done_max: 20, ..keeping() });
    finish_many(&store, &tube, 30);
    drop(store);
    tarantool.kill();
    tarantool.start();
    let store = open(&tarantool.url());
    assert_eq!(tick_at(&store, NOW, 1000).0, 10);
    assert_eq!(tick_at(&store, NOW, 1000).0, 0);
    assert_eq!(tick_at(&store, NOW + KEEP, 1000).0, 20);
}

/// The parts of a large body stay until the done task is removed.
#[test]
fn large_done_tasks_are_removed_with_their_bodies() {
    run(async {
        let url = own(&instance().url());
        let prefix = prefix_of(&url);
        let store = open(&url);
        let tube = make_tube(&store, keeping());
        let body = |id: u8| Body::with_meta(&vec![id; 600_000], b"\x80");
        let tasks = (0..4).map(|id| NewTask::new(body(id))).collect();
        let put = Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO };
        ask(&store, put).expect("they are put");
        let largest = vec![0xc0; RESULT_BYTES_MAX];
        ack_all(&store, &tube, &take(&store, &tube, 4), &largest);
        for (task, id) in peek(&store, &tube).iter().zip(0..) {
            assert!(task.body == Some(body(id)), "the body of {id} differs");
            let finished = task.finished.as_ref().expect("it is done");
            assert!(finished.result() == Some(&largest[..]), "the result of {id} differs");
        }
        assert_eq!(rows(&prefix, "body"), 8);
        let delete = Command::Delete { tube: tube.clone(), ids: vec![TaskId(1)], show: false };
        assert_eq!(ask(&store, delete), Ok(Reply::Finished(vec![Outcome::Done(None)])));
        assert_eq!(rows(&prefix, "body"), 6);
        assert_eq!(tick_at(&store, NOW + KEEP, 1).0, 1);
        assert_eq!(rows(&prefix, "body"), 4);
        assert_eq!(ask(&store, Command::Truncate { tube: tube.clone() }), Ok(Reply::Nothing));
        assert_eq!((rows(&prefix, "body"), rows(&prefix, "kept")), (0, 0));
        instance().audit(&prefix);
    });
}

#[test]
fn done_tasks_are_copied() {
    run(async {
        let url = || own(&instance().url());
        let (from, to, back) = (open(&url()), open(&url()), MemoryStore::default());
        let tube = make_tube(&from, keeping());
        let tasks = [1, 9_000, 2, 3, 4].map(|size| NewTask::new(Body::new(&vec![0xc0; size])));
        let put = Command::Put { tube: tube.clone(), tasks: tasks.to_vec(), wait: Span::ZERO };
        ask(&from, put).expect("they are put");
        let tasks = take(&from, &tube, 4);
        ack_all(&from, &tube, &[tasks[1].clone(), tasks[3].clone()], RESULT);
        let release = Finish::Release { delay: Span::ZERO, counted: false };
        for task in [&tasks[0], &tasks[2]] {
            let (id, finish) = (task.id, release.clone());
            let items = vec![FinishItem { id, holder: Holder::Any, finish }];
            ask(&from, Command::Finish { tube: tube.clone(), items, show: false }).expect("given");
        }
        let expected = peek(&from, &tube);
        let states: Vec<_> = expected.iter().map(|task| task.state).collect();
        let (done, ready) = (State::Done, State::Ready);
        assert_eq!(states, [ready, done, ready, done, ready]);
        let stores: [(&dyn Store, &dyn Store); 2] = [(&from, &to), (&to, &back)];
        for (from, to) in stores {
            let plan = plan(from, to, &[]).await.expect("a plan");
            copy(from, to, NOW, &plan, |_| ()).await.expect("it is copied");
            assert_eq!(peek(to, &tube), expected);
        }
        assert_eq!(tick_at(&to, NOW + KEEP, 9).0, 2);
    });
}

// Done tasks would use up the memory that is reserved for takes and acks.
#[test]
fn deliveries_end_when_the_memory_is_full() {
    let Some(program) = program() else { return };
    let tarantool = TarantoolInstance::with(program, &[("memtx_memory", "50331648")]);
    let store = open(&tarantool.url());
    let options = TubeOptions { keep_done_max: 1_000_000, ..keeping() };
    let tube = make_tube(&store, options);
    while ask(&store, put(&tube, 1000)).is_ok() {}
    let result = vec![0xc0; 4096];
    loop {
        let tasks = take(&store, &tube, 1000);
        if tasks.is_empty() {
            break;
        }
        ack_all(&store, &tube, &tasks, &result);
    }
    let Ok(Reply::Tubes(tubes)) = ask(&store, Command::Tubes { tube: Some(tube) }) else {
        panic!("a tube is shown")
    };
    assert_eq!(tubes[0].stats.tasks.total(), 0);
    assert!(tubes[0].stats.tasks.done > 0);
}
