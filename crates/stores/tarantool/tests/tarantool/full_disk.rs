//! Tests with a full disk: the log of Tarantool cannot be written while several servers use it.

use std::sync::Barrier;
use std::thread;

use taskyard_core::{
    Body, Command, EnqueueItem, Error, Finish, FinishItem, Holder, Key, KeyRequest, Kind, Lease,
    NewTask, Outcome, Reply, SemaphoreChange, SemaphoreCommand, SemaphoreKey, Span, TaskId,
    TubeName, TubeOptions,
};
use taskyard_store_tarantool::{Clock, TarantoolStore};
use taskyard_tarantool::LuaValue;

use taskyard_testkit::calls::{ack, ask, health_becomes, make_tube, put, take};
use taskyard_testkit::tarantool::{CALL, open};
use taskyard_testkit::tarantool::{TarantoolInstance, program};

/// The number of batches of each of two servers.
const TIMES: usize = 300;

type Replies = Vec<Result<Reply, Error>>;

/// Sends batches through two servers at the same time while nothing can be written; answers their replies.
fn ask_while_full(
    tarantool: &TarantoolInstance,
    stores: [&TarantoolStore; 2],
    commands: [Command; 2],
) -> [Replies; 2] {
    tarantool.fill_disk(true);
    let together = &Barrier::new(2);
    let told = thread::scope(|scope| {
        let [one, other] = [0, 1].map(|which| {
            let (store, command) = (stores[which], commands[which].clone());
            scope.spawn(move || {
                let once = |_| {
                    together.wait();
                    ask(store, command.clone())
                };
                (0..TIMES).map(once).collect::<Replies>()
            })
        });
        [one, other].map(|asker| asker.join().expect("it does not fail"))
    });
    tarantool.fill_disk(false);
    told
}

fn is_refused(replies: &Replies) {
    for reply in replies {
        let text = reply.as_ref().expect_err("nothing can be written").to_string();
        assert!(text.contains("cannot write its log"), "{text}");
    }
}

fn ack_by(tube: &TubeName, id: u64, lease: u64) -> Command {
    let holder = Holder::Lease(Lease(lease));
    let items = vec![FinishItem { id: TaskId(id), holder, finish: Finish::Ack }];
    Command::Finish { tube: tube.clone(), items, show: false }
}

// A stale ack wrote the unchanged counts of its tube into a space that is not in the log, and committed at once. A put before it that could
// not be logged was rolled back, found its counts overwritten, and Tarantool aborted.
#[test]
fn a_put_that_cannot_be_logged_is_refused_beside_stale_acks() {
    let Some(program) = program() else { return };
    let tarantool = TarantoolInstance::new(program);
    let (store, other) = (open(&tarantool.url()), open(&tarantool.url()));
    let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
    ask(&store, put(&tube, 1)).expect("it is put");
    let nothing = [
        Command::Kick { tube: tube.clone(), count: 1 },
        Command::ReleaseAll { tube: tube.clone() },
        Command::Tick { limit: 10, seed: 0 },
        ack_by(&tube, 0, 5),
    ];
    for command in nothing {
        let commands = [put(&tube, 1), command];
        let [puts, _] = ask_while_full(&tarantool, [&store, &other], commands);
        is_refused(&puts);
        ask(&store, put(&tube, 1)).expect("it is put");
        tarantool.audit("taskyard");
    }
    assert_eq!(take(&other, &tube, 99).len(), 5, "and nothing that was refused is there");
}

// Announced events were stored in such a space too, and each tick of each server wrote there.
#[test]
fn a_grant_that_cannot_be_logged_is_refused_beside_ticks() {
    let Some(program) = program() else { return };
    let tarantool = TarantoolInstance::new(program);
    // The clock must advance, or nothing becomes due.
    let open = || TarantoolStore::open(&tarantool.url(), Clock::Database).expect("it opens");
    let (store, other) = (open(), open());
    let key = SemaphoreKey::new("yang").expect("a key");
    let change = Box::new(SemaphoreChange::limits(5, 5));
    let configure = SemaphoreCommand::Configure { key: key.clone(), change, only_new: false };
    ask(&store, Command::Semaphore(configure)).expect("it is there");
    let entries = vec![EnqueueItem { task: TaskId(1), priority: 0.0 }];
    let enqueue = Command::Semaphore(SemaphoreCommand::Enqueue { key, entries });
    let commands = [enqueue.clone(), Command::Tick { limit: 10, seed: 0 }];
    let [enqueued, _] = ask_while_full(&tarantool, [&store, &other], commands);
    is_refused(&enqueued);
    ask(&store, enqueue).expect("it is granted");
    tarantool.audit("taskyard");
}

// An ack that was not logged yet made another server answer that the task is gone, and then was rolled back: the task was delivered again,
// although its worker got the answer that it is done.
#[test]
fn an_ack_that_is_rolled_back_is_not_visible() {
    let Some(program) = program() else { return };
    let tarantool = TarantoolInstance::new(program);
    let (store, other) = (open(&tarantool.url()), open(&tarantool.url()));
    let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
    ask(&store, put(&tube, 1)).expect("it is put");
    let held = take(&store, &tube, 1).remove(0);
    let lease = held.lease.expect("a lease").0;
    let delete = Command::Delete { tube: tube.clone(), ids: vec![TaskId(0)], show: false };
    for command in [ack_by(&tube, 0, lease), delete] {
        let commands = [ack_by(&tube, 0, lease), command];
        let told = ask_while_full(&tarantool, [&store, &other], commands);
        told.iter().for_each(is_refused);
    }
    assert_eq!(ack(&other, &tube, &held), Outcome::Done(None));
    tarantool.audit("taskyard");
}

/// A put whose key is held by a task that is not logged yet is not answered before that is.
#[test]
fn a_key_that_is_rolled_back_is_not_visible() {
    let Some(program) = program() else { return };
    let tarantool = TarantoolInstance::new(program);
    let (store, other) = (open(&tarantool.url()), open(&tarantool.url()));
    let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
    let key = Some(Box::new(KeyRequest::new(Key::new("k").expect("a key"))));
    let tasks = vec![NewTask { key, ..NewTask::new(Body::new(&[0xc0])) }];
    let put = Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO };
    let told = ask_while_full(&tarantool, [&store, &other], [put.clone(), put.clone()]);
    told.iter().for_each(is_refused);
    let Ok(Reply::Put(placed)) = ask(&other, put) else { panic!("it is put") };
    assert!(!placed[0].existing);
    tarantool.audit("taskyard");
}

// An instance counts all tasks again after another one wrote. It committed the counts before transactions that waited for the log.
#[test]
fn a_put_that_cannot_be_logged_is_refused_while_tasks_are_counted() {
    let Some(program) = program() else { return };
    let tarantool = TarantoolInstance::new(program);
    let store = open(&tarantool.url());
    let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
    tarantool.fill_disk(true);
    let script = "
        local fiber = require('fiber')
        local function batch(number, command)
            local task = fiber.new(call, 'batch', server, number, nil, 1, { command }, 0)
            task:set_joinable(true)
            return task
        end
        local put = batch(1000, { 4, 'mail', { { 'x' } } })
        fiber.yield()
        box.space.taskyard_here:update(0, { { '=', 2, 12345 } })
        local tick = batch(1001, { 16, 10 })
        return { (put:join()), (tick:join()) }";
    let told = tarantool.talk(&format!("{CALL} {script}"));
    assert_eq!(told, LuaValue::List(vec![LuaValue::Bool(false); 2]), "both are refused");
    tarantool.fill_disk(false);
    ask(&store, put(&tube, 1)).expect("it is put");
    tarantool.audit("taskyard");
}

/// A server that reconnects cannot write its resync; reads work nevertheless.
#[test]
fn reads_work_on_a_full_disk() {
    let Some(program) = program() else { return };
    let tarantool = TarantoolInstance::new(program);
    let store = open(&tarantool.url());
    let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
    tarantool.fill_disk(true);
    tarantool.talk(
        "for key in pairs(_G) do if tostring(key):match('^taskyard_1_') then rawset(_G, key, nil) end end",
    );
    for _ in 0..3 {
        let shown = ask(&store, Command::Tubes { tube: None });
        assert!(matches!(&shown, Ok(Reply::Tubes(tubes)) if tubes.len() == 1), "{shown:?}");
        is_refused(&vec![ask(&store, put(&tube, 1))]);
    }
    tarantool.fill_disk(false);
    ask(&store, put(&tube, 1)).expect("it is put");
    tarantool.audit("taskyard");
}

// A Tarantool that answered but could not write was shown as healthy, because the check only read.
#[test]
fn a_tarantool_that_cannot_write_is_unhealthy() {
    let Some(program) = program() else { return };
    let tarantool = TarantoolInstance::new(program);
    let store = open(&tarantool.url());
    check_refusals(&tarantool, &store);
}

#[test]
fn an_existing_queue_that_cannot_write_is_unhealthy() {
    let Some(program) = program() else { return };
    let tarantool = TarantoolInstance::new(program);
    tarantool.load_queue();
    let store = open(&tarantool.url().replace("tarantool://", "tarantool+queue://"));
    make_tube(&store, TubeOptions::new(Kind::Fifo));
    check_refusals(&tarantool, &store);
}

fn check_refusals(tarantool: &TarantoolInstance, store: &TarantoolStore) {
    health_becomes(store, true);
    tarantool.fill_disk(true);
    let why = health_becomes(store, false);
    assert!(why.contains("cannot write its log"), "{why}");
    tarantool.fill_disk(false);
    health_becomes(store, true);
    tarantool.talk("box.cfg{read_only = true}");
    let why = health_becomes(store, false);
    assert!(why.contains("read-only"), "{why}");
    tarantool.talk("box.cfg{read_only = false}");
    health_becomes(store, true);
}

#[test]
fn too_few_replicas_are_unhealthy() {
    let Some(program) = program() else { return };
    let tarantool = TarantoolInstance::new(program);
    let store = open(&format!("{}?replicas=1", tarantool.url()));
    let why = health_becomes(&store, false);
    assert!(why.contains("1 replicas"), "{why}");
}
