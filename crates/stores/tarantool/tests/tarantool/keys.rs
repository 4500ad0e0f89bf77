//! Tests of how unique keys are stored, shared by servers and copied.

use std::thread;

use taskyard_conformance::block_on;
use taskyard_core::limits::ENDED_KEYS_MAX;
use taskyard_core::{
    Body, Command, Error, Key, KeyRequest, Kind, List, ListOrder, NewTask, OnConflict, Outcome,
    Placed, Priority, Reply, Span, State, StateSet, Task, TaskId, TubeName, TubeOptions,
};
use taskyard_store::copy::{copy, plan};
use taskyard_store::{MemoryStore, Store};
use taskyard_store_tarantool::{Clock, TarantoolStore};
use taskyard_tarantool::LuaValue;

use taskyard_testkit::calls::{NOW, ack, ask, make_tube, put, take};
use taskyard_testkit::tarantool::{TarantoolInstance, instance, open, own, program, run};

const UNIQUE_FOR: Span = Span::from_secs(60);

fn keyed(key: &str, payload: &[u8]) -> NewTask {
    let mut request = KeyRequest::new(Key::new(key).expect("a good key"));
    request.held.unique_for = UNIQUE_FOR;
    NewTask { key: Some(Box::new(request)), ..NewTask::new(Body::new(payload)) }
}

fn replacing(key: &str, payload: &[u8]) -> NewTask {
    let mut task = keyed(key, payload);
    task.key.as_mut().expect("a key").on_conflict = OnConflict::Replace;
    task
}

fn put_tasks(tube: &TubeName, tasks: Vec<NewTask>) -> Command {
    Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO }
}

#[track_caller]
fn place(store: &(impl Store + ?Sized), tube: &TubeName, tasks: Vec<NewTask>) -> Vec<Placed> {
    match ask(store, put_tasks(tube, tasks)) {
        Ok(Reply::Put(placed)) => placed,
        other => panic!("a put answered {other:?}"),
    }
}

/// Puts a task with a key, which should be held.
#[track_caller]
fn holder(store: &(impl Store + ?Sized), tube: &TubeName, key: &str) -> Placed {
    place(store, tube, vec![keyed(key, b"\xa5again")])[0]
}

fn existing(id: u64, state: State) -> Placed {
    Placed { id: TaskId(id), state, existing: true }
}

fn delete(tube: &TubeName, ids: &[u64]) -> Command {
    Command::Delete {
        tube: tube.clone(),
        ids: ids.iter().copied().map(TaskId).collect(),
        show: false,
    }
}

#[track_caller]
fn peek(store: &(impl Store + ?Sized), tube: &TubeName) -> Vec<Task> {
    match ask(store, Command::Peek { tube: tube.clone(), ids: (0..9).map(TaskId).collect() }) {
        Ok(Reply::Tasks(tasks)) => tasks,
        other => panic!("a peek shows tasks, not {other:?}"),
    }
}

fn with_key(store: &(impl Store + ?Sized), tube: &TubeName, key: &str) -> Vec<u64> {
    let order = ListOrder::Id { states: StateSet::ALL, after: None };
    let key = Some(Key::new(key).expect("a good key"));
    match ask(store, Command::List(List { tube: tube.clone(), order, limit: 9, key })) {
        Ok(Reply::Listed(tasks)) => tasks.iter().map(|task| task.id.0).collect(),
        other => panic!("a list answered {other:?}"),
    }
}

fn prefix_of(url: &str) -> String {
    url.rsplit_once('=').expect("it has a prefix").1.to_owned()
}

fn number(tarantool: &TarantoolInstance, script: &str) -> i128 {
    match tarantool.talk(&format!("return {script}")) {
        LuaValue::Int(number) => number,
        other => panic!("{other:?}"),
    }
}

/// Tasks 0 to 5: a done one that is kept, a deleted one, ready ones of which one was replaced, one without a key.
fn work(store: &(impl Store + ?Sized)) -> TubeName {
    let keep_done = Some(Span::from_secs(1000));
    let tube = make_tube(store, TubeOptions { keep_done, ..TubeOptions::new(Kind::FifoTtl) });
    place(store, &tube, vec![keyed("kept", b"\x00"), keyed("deleted", b"\x01")]);
    let taken = take(store, &tube, 1).remove(0);
    assert_eq!(ack(store, &tube, &taken), Outcome::Done(None));
    let large = [b"\xc5\x23\x28".as_slice(), &[0; 9000]].concat();
    place(store, &tube, vec![keyed("ready", b"\x02"), keyed("replaced", &large)]);
    place(store, &tube, vec![keyed("gone", b"\x04"), NewTask::new(Body::new(b"\x05"))]);
    let gone = ask(store, delete(&tube, &[1, 4]));
    assert_eq!(gone, Ok(Reply::Finished(vec![Outcome::Done(None); 2])));
    assert_eq!(
        place(store, &tube, vec![replacing("replaced", b"\xa3new")]),
        [existing(3, State::Ready)]
    );
    tube
}

#[track_caller]
fn check_work(store: &(impl Store + ?Sized), tube: &TubeName) {
    assert_eq!(holder(store, tube, "kept"), existing(0, State::Done));
    assert_eq!(holder(store, tube, "deleted"), existing(1, State::Done));
    assert_eq!(holder(store, tube, "ready"), existing(2, State::Ready));
    assert_eq!(holder(store, tube, "replaced"), existing(3, State::Ready));
    assert_eq!(holder(store, tube, "gone"), existing(4, State::Done));
    let shown = peek(store, tube);
    let keys: Vec<_> = shown.iter().map(|task| task.key.as_deref().map(Key::as_str)).collect();
    assert_eq!(keys, [Some("kept"), Some("ready"), Some("replaced"), None]);
    assert_eq!(shown[2].body, Some(Body::new(b"\xa3new")));
    for (key, ids) in [("kept", vec![0]), ("ready", vec![2]), ("gone", vec![])] {
        assert_eq!(with_key(store, tube, key), ids, "{key}");
    }
}

#[test]
fn keys_survive_a_kill() {
    let Some(program) = program() else { return };
    let tarantool = TarantoolInstance::new(program);
    let store = open(&tarantool.url());
    let tube = work(&store);
    check_work(&store, &tube);
    drop(store);
    tarantool.kill();
    tarantool.start();
    let store = open(&tarantool.url());
    check_work(&store, &tube);
    let rows = |space: &str| number(&tarantool, &format!("box.space.taskyard_{space}:len()"));
    assert_eq!(["key", "ended", "body"].map(rows), [5, 3, 0], "the parts of the body are gone");
    // Keys that are free are forgotten, and their number and deadline are not stored.
    let tick = || vec![Command::Tick { limit: 2, seed: 0 }];
    let early = block_on(store.execute(NOW + Span::from_secs(59), tick()));
    assert_eq!(early.replies, [Ok(Reply::Ticked(0))]);
    assert!(early.effects.next_wakeup.is_some_and(|at| at >= NOW + UNIQUE_FOR));
    let late = NOW + Span::from_secs(70);
    for count in [2, 1, 0] {
        let ticked = block_on(store.execute(late, tick()));
        assert_eq!(ticked.replies, [Ok(Reply::Ticked(count))]);
    }
    assert_eq!(["key", "ended", "ended_count"].map(rows), [2, 0, 0]);
    tarantool.audit("taskyard");
}

/// Makes the spaces those of the version that had no keys.
fn forget_keys(tarantool: &TarantoolInstance, prefix: &str) {
    for space in ["key", "ended", "ended_count", "bucket", "schedule"] {
        tarantool.talk(&format!("box.space.{prefix}_{space}:drop()"));
    }
}

#[test]
fn the_first_key_raises_the_stored_format() {
    run(async {
        let url = own(&instance().url());
        let prefix = prefix_of(&url);
        let format = || number(instance(), &format!("box.space.{prefix}_meta:get('format')[2]"));
        let store = open(&url);
        let keep_done = Some(Span::from_secs(100));
        let tube = make_tube(&store, TubeOptions { keep_done, ..TubeOptions::new(Kind::Fifo) });
        store.close().await.expect("it closes");
        forget_keys(instance(), &prefix);
        let store = open(&url);
        ask(&store, put(&tube, 1)).expect("it is put");
        assert_eq!(format(), 2, "the earlier version can work beside this one");
        let bad = NewTask { semaphore_priority: Some(Priority::ZERO), ..keyed("k", b"\x00") };
        assert_eq!(ask(&store, put_tasks(&tube, vec![bad])), Err(Error::NoSemaphore(tube.clone())));
        assert_eq!(format(), 2, "a refused put changes nothing");
        place(&store, &tube, vec![keyed("k", b"\x00")]);
        assert_eq!(format(), 3);
        assert_eq!(holder(&store, &tube, "k"), existing(1, State::Ready));
    });
}

// A server of the earlier version would lose keys: its procedures answer no more, so that it connects again and learns why. Those that it
// refuses itself already fail when they are asked for anything.
#[test]
fn procedures_of_earlier_versions_are_refused_with_the_first_key() {
    run(async {
        let url = own(&instance().url());
        let prefix = prefix_of(&url);
        let store = open(&url);
        let names = ["feed", "food"].map(|end| format!("taskyard_1_{end:0>16}").replace('o', "0"));
        instance().talk(&format!(
            "local old = {{ format = 2, import_tasks = true, batch = function() return 7 end }}
            local refused = setmetatable({{ format = 2 }}, {{ __index = function() error('refused') end }})
            rawset(_G, '{}', {{ parts = {{ {prefix} = old }} }})
            rawset(_G, '{}', {{ parts = {{ {prefix} = refused }} }})",
            names[0], names[1]
        ));
        let call = || {
            instance().talk(&format!(
                "local done, why = pcall(function() return {}.parts.{prefix}.batch() end)
                return done and why or why.code or tostring(why)",
                names[0]
            ))
        };
        let keep_done = Some(Span::from_secs(100));
        let tube = make_tube(&store, TubeOptions { keep_done, ..TubeOptions::new(Kind::Fifo) });
        assert_eq!(call(), LuaValue::Int(7), "the earlier version knows done tasks");
        place(&store, &tube, vec![keyed("k", b"\x00")]);
        assert_eq!(call(), LuaValue::Int(33), "ER_NO_SUCH_PROC");
        for name in names {
            instance().talk(&format!("rawset(_G, '{name}', nil)"));
        }
        assert!(TarantoolStore::open(&url, Clock::Caller).is_ok(), "this version is not concerned");
    });
}

/// Without the right to create spaces a server works, but refuses keys.
#[test]
fn without_the_right_to_create_spaces_keys_are_refused() {
    let Some(program) = program() else { return };
    let tarantool = TarantoolInstance::new(program);
    let tube = make_tube(&open(&tarantool.url()), TubeOptions::new(Kind::Fifo));
    forget_keys(&tarantool, "taskyard");
    tarantool.talk(
        "box.schema.user.create('plain', { password = 'plain' })
        box.schema.user.grant('plain', 'read,write,execute', 'universe')",
    );
    let plain = open(&tarantool.url_with("plain:plain@"));
    ask(&plain, put(&tube, 1)).expect("it is put");
    let taken = take(&plain, &tube, 1).remove(0);
    assert_eq!(ack(&plain, &tube, &taken), Outcome::Done(None));
    match ask(&plain, put_tasks(&tube, vec![keyed("k", b"\x00")])) {
        Err(Error::Invalid(why)) => assert!(why.contains("taskyard migrate"), "{why}"),
        other => panic!("it is refused, not {other:?}"),
    }
    assert_eq!(with_key(&plain, &tube, "k"), [0; 0]);
    let owner = open(&tarantool.url());
    place(&plain, &tube, vec![keyed("k", b"\x00")]);
    assert_eq!(holder(&owner, &tube, "k"), existing(1, State::Ready));
}

/// Several clients of two servers put the same keys in different orders: one task for each key.
#[test]
fn servers_share_keys() {
    run(async {
        let url = own(&instance().url());
        let stores = [open(&url), open(&url)];
        let tube = make_tube(&stores[0], TubeOptions::new(Kind::Fifo));
        const KEYS: usize = 200;
        thread::scope(|scope| {
            for client in 0..4 {
                let (store, tube) = (&stores[client % 2], &tube);
                scope.spawn(move || {
                    let mut order: Vec<usize> = (0..KEYS).collect();
                    fastrand::Rng::with_seed(client as u64).shuffle(&mut order);
                    for keys in order.chunks(7) {
                        let task = |key: &usize| keyed(&key.to_string(), b"\x00");
                        place(store, tube, keys.iter().map(task).collect());
                    }
                });
            }
        });
        let tasks = take(&stores[0], &tube, 10 * KEYS);
        assert_eq!(tasks.len(), KEYS);
        for task in &tasks {
            assert_eq!(ack(&stores[1], &tube, task), Outcome::Done(None));
        }
        assert_eq!(holder(&stores[0], &tube, "7").state, State::Done);
        instance().audit(&prefix_of(&url));
    });
}

/// The key that would be free first is forgotten when there are too many.
#[test]
fn the_number_of_ended_keys_is_limited() {
    run(async {
        let url = own(&instance().url());
        let space = format!("box.space.{}", prefix_of(&url));
        let store = open(&url);
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        place(&store, &tube, ["a", "b", "c"].map(|key| keyed(key, b"\x00")).to_vec());
        ask(&store, delete(&tube, &[0])).expect("it is deleted");
        let later = NOW + Span::from_secs(1);
        block_on(store.execute(later, vec![delete(&tube, &[1])]));
        // As if the tube had as many as it may.
        instance().talk(&format!(
            "local row = {space}_ended_count:select()[1]
            {space}_ended_count:update(row[1], {{{{'=', 3, {ENDED_KEYS_MAX}}}}})"
        ));
        let deleted = block_on(store.execute(NOW, vec![delete(&tube, &[2])]));
        assert!(deleted.replies[0].is_ok(), "{:?}", deleted.replies);
        assert_eq!(deleted.effects.keys_freed_early, 1);
        assert_eq!(number(instance(), &format!("{space}_ended:len()")), 2);
        assert_eq!(holder(&store, &tube, "b"), existing(1, State::Done));
        assert_eq!(holder(&store, &tube, "c"), existing(2, State::Done));
        let again = Placed { id: TaskId(3), state: State::Ready, existing: false };
        assert_eq!(holder(&store, &tube, "a"), again);
    });
}

#[test]
fn keys_are_copied() {
    run(async {
        let url = || own(&instance().url());
        let (source, from, to, back) =
            (MemoryStore::default(), open(&url()), open(&url()), MemoryStore::default());
        let tube = work(&source);
        let expected = peek(&source, &tube);
        let stores: [(&dyn Store, &dyn Store); 3] = [(&source, &from), (&from, &to), (&to, &back)];
        for (from, to) in stores {
            let plan = plan(from, to, &[]).await.expect("a plan");
            copy(from, to, NOW, &plan, |_| ()).await.expect("it is copied");
            assert_eq!(peek(to, &tube), expected);
        }
        for store in stores.map(|(_, to)| to) {
            check_work(store, &tube);
            let free = NOW + UNIQUE_FOR;
            let again = put_tasks(&tube, vec![keyed("gone", b"\x00")]);
            let placed = store.execute(free, vec![again]).await.replies.remove(0);
            let new = Placed { id: TaskId(6), state: State::Ready, existing: false };
            assert_eq!(placed, Ok(Reply::Put(vec![new])));
        }
    });
}
