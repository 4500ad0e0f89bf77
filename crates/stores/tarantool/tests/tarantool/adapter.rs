//! Tests of tubes of an existing tarantool/queue, or of a substitute that was written from its documentation.

use taskyard_conformance::block_on;
use taskyard_core::{
    Body, Command, Error, Finish, FinishItem, Holder, Kind, List, ListOrder, NewTask, Outcome,
    Reply, Span, State, StateSet, Take, Task, TaskId, TubeChange, TubeName, TubeOptions,
};
use taskyard_store::Store;
use taskyard_store_tarantool::{Clock, TarantoolStore};
use taskyard_tarantool::LuaValue;

use taskyard_testkit::calls::{NOW, ask, make_tube, take};
use taskyard_testkit::skipped::skip;
use taskyard_testkit::tarantool::{TarantoolInstance, program};

/// A Tarantool with a queue, and its URL.
fn queue() -> Option<(TarantoolInstance, String)> {
    let instance = TarantoolInstance::new(program()?);
    instance.load_queue();
    let url = instance.url().replace("tarantool://", "tarantool+queue://");
    Some((instance, url))
}

fn open(url: &str) -> TarantoolStore {
    TarantoolStore::open(url, Clock::Caller).expect("the store opens")
}

/// The payload 7 or any other small number.
fn number(number: u8) -> NewTask {
    NewTask::new(Body::new(&[number]))
}

fn put(tube: &TubeName, tasks: Vec<NewTask>) -> Command {
    Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO }
}

fn finish(tube: &TubeName, task: &Task, finish: Finish) -> Command {
    let holder = Holder::Lease(task.lease.expect("a lease"));
    let items = vec![FinishItem { id: task.id, holder, finish }];
    Command::Finish { tube: tube.clone(), items, show: false }
}

fn peek(store: &TarantoolStore, tube: &TubeName, id: u64) -> Task {
    let peek = Command::Peek { tube: tube.clone(), ids: vec![TaskId(id)] };
    match ask(store, peek) {
        Ok(Reply::Tasks(mut tasks)) if tasks.len() == 1 => tasks.remove(0),
        other => panic!("{other:?}"),
    }
}

const DONE: Outcome = Outcome::Done(None);

#[test]
fn every_kind_supports_the_life_cycle_of_a_task() {
    let Some((instance, url)) = queue() else { return };
    let store = open(&url);
    for kind in Kind::ALL {
        let tube = TubeName::new(kind.name()).expect("a name");
        let options = TubeOptions::new(kind);
        let create = Command::CreateTube { tube: tube.clone(), options, if_not_exists: false };
        assert_eq!(ask(&store, create.clone()), Ok(Reply::Created(true)), "{kind:?}");
        assert_eq!(ask(&store, create), Err(Error::TubeExists(tube.clone())));
        let Ok(Reply::Put(placed)) = ask(&store, put(&tube, vec![number(7), number(8)])) else {
            panic!("they are put")
        };
        assert_eq!(placed.iter().map(|placed| placed.id.0).collect::<Vec<_>>(), [0, 1]);
        let task = take(&store, &tube, 1).remove(0);
        assert_eq!(task.body, Some(Body::new(&[7])));
        assert_eq!(peek(&store, &tube, 0).state, State::Taken);
        let release = Finish::Release { delay: Span::ZERO, counted: true };
        let back = ask(&store, finish(&tube, &task, release));
        assert_eq!(back, Ok(Reply::Finished(vec![DONE])), "{kind:?}");
        let stale = ask(&store, finish(&tube, &task, Finish::Ack));
        assert_eq!(stale, Ok(Reply::Finished(vec![Outcome::Stale])));
        let again = take(&store, &tube, 1).remove(0);
        assert_ne!(again.lease, task.lease);
        assert_eq!(
            ask(&store, finish(&tube, &again, Finish::Bury)),
            Ok(Reply::Finished(vec![DONE]))
        );
        // tarantool/queue 1.5.0 leaves a transaction open when it kicks more tasks of a tube with sub-queues than are buried.
        let kick = Command::Kick { tube: tube.clone(), count: 5 };
        assert_eq!(ask(&store, kick), Ok(Reply::Kicked(1)));
        // Both tasks of a tube with sub-queues are in the same one, of which one task is taken at a time.
        for _task in 0..2 {
            let task = take(&store, &tube, 1).remove(0);
            let acked = ask(&store, finish(&tube, &task, Finish::Ack));
            assert_eq!(acked, Ok(Reply::Finished(vec![DONE])));
        }
        let shown = ask(&store, Command::Tubes { tube: Some(tube.clone()) });
        let Ok(Reply::Tubes(tubes)) = shown else { panic!("{shown:?}") };
        assert_eq!((tubes[0].options.kind, tubes[0].stats.tasks.done), (kind, 2));
        assert_eq!(ask(&store, Command::DropTube { tube }), Ok(Reply::Nothing));
    }
    drop(instance);
}

#[test]
fn tasks_are_exchanged_with_other_users_of_the_module() {
    let Some((instance, url)) = queue() else { return };
    instance.talk(
        "queue.create_tube('mail', 'fifottl', {}) queue.tube.mail:put({to = 'ann'}, {pri = 5})",
    );
    let store = open(&url);
    let tube = TubeName::new("mail").expect("a name");
    let urgent = NewTask { pri: Some(1), ..number(9) };
    let delayed = NewTask { delay: Some(Span::from_secs(60)), ..number(3) };
    ask(&store, put(&tube, vec![urgent, delayed])).expect("they are put");
    let taken = take(&store, &tube, 9);
    let bodies: Vec<Body> = taken.iter().filter_map(|task| task.body.clone()).collect();
    assert_eq!(bodies, [Body::new(&[9]), Body::new(b"\x81\xa2to\xa3ann")]);
    assert_eq!(peek(&store, &tube, 2).state, State::Delayed);
    assert_eq!(instance.talk("return queue.statistics('mail').tasks.taken"), LuaValue::Int(2));
    assert_eq!(ask(&store, finish(&tube, &taken[0], Finish::Ack)), Ok(Reply::Finished(vec![DONE])));
    assert_eq!(instance.talk("return queue.statistics('mail').calls.ack"), LuaValue::Int(1));
    let missing = Command::Kick { tube: TubeName::new("none").expect("a name"), count: 1 };
    assert!(matches!(ask(&store, missing), Err(Error::TubeNotFound(_))));
}

/// A page of a list, as ids and priorities.
fn list(
    store: &TarantoolStore,
    tube: &TubeName,
    order: ListOrder,
    limit: usize,
) -> Vec<(u64, u64)> {
    match ask(store, Command::List(List { tube: tube.clone(), order, limit, key: None })) {
        Ok(Reply::Listed(tasks)) => tasks.iter().map(|task| (task.id.0, task.pri)).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn tasks_are_listed_by_id_and_in_the_order_of_takes() {
    let Some((_instance, url)) = queue() else { return };
    let store = open(&url);
    let tube = make_tube(&store, TubeOptions::new(Kind::FifoTtl));
    let tasks = [3, 0, 1, 0, 2].map(|pri| NewTask { pri: Some(pri), ..number(7) });
    ask(&store, put(&tube, tasks.to_vec())).expect("they are put");
    let later = NewTask { delay: Some(Span::from_secs(60)), ..number(3) };
    ask(&store, put(&tube, vec![later])).expect("it is put");
    let taken = take(&store, &tube, 2);
    ask(&store, finish(&tube, &taken[1], Finish::Bury)).expect("it is buried");
    let by_id = |states, after: Option<u64>| ListOrder::Id { states, after: after.map(TaskId) };
    let some = |state| by_id(StateSet::EMPTY.with(state), None);
    let all = [(0, 3), (1, 0), (2, 1), (3, 0), (4, 2), (5, 0)];
    assert_eq!(list(&store, &tube, by_id(StateSet::ALL, None), 9), all);
    assert_eq!(list(&store, &tube, by_id(StateSet::ALL, Some(1)), 2), all[2..4]);
    assert_eq!(list(&store, &tube, by_id(StateSet::ALL, Some(u64::MAX)), 2), []);
    assert_eq!(list(&store, &tube, some(State::Taken), 9), [(1, 0)]);
    assert_eq!(list(&store, &tube, some(State::Buried), 9), [(3, 0)]);
    assert_eq!(list(&store, &tube, some(State::Delayed), 9), [(5, 0)]);
    let queue = |after: Option<(u64, u64)>| ListOrder::Queue {
        after: after.map(|(pri, id)| (pri, TaskId(id))),
    };
    assert_eq!(list(&store, &tube, queue(None), 9), [(2, 1), (4, 2), (0, 3)]);
    assert_eq!(list(&store, &tube, queue(Some((1, 2))), 1), [(4, 2)]);
    assert_eq!(list(&store, &tube, queue(Some((u64::MAX, 0))), 9), []);
}

#[test]
fn tubes_without_priorities_are_listed_in_the_order_of_takes() {
    let Some((_instance, url)) = queue() else { return };
    let store = open(&url);
    for kind in [Kind::Fifo, Kind::Utube] {
        let tube = TubeName::new(kind.name()).expect("a name");
        let options = TubeOptions::new(kind);
        let create = Command::CreateTube { tube: tube.clone(), options, if_not_exists: false };
        ask(&store, create).expect("it is created");
        let tasks = ["a", "a", "b", "c", "b", "c"];
        let tasks = tasks.map(|key| match kind {
            Kind::Utube => NewTask { subqueue: Some(key.into()), ..number(7) },
            _ => number(7),
        });
        ask(&store, put(&tube, tasks.to_vec())).expect("they are put");
        take(&store, &tube, 1);
        let queue = |after: Option<(u64, u64)>| ListOrder::Queue {
            after: after.map(|(pri, id)| (pri, TaskId(id))),
        };
        let expected: &[(u64, u64)] = match kind {
            Kind::Utube => &[(2, 0), (3, 0)],
            _ => &[(1, 0), (2, 0), (3, 0), (4, 0), (5, 0)],
        };
        let after: Vec<_> = expected.iter().copied().filter(|task| task.0 > 2).collect();
        assert_eq!(list(&store, &tube, queue(None), 9), expected, "{kind:?}");
        assert_eq!(list(&store, &tube, queue(Some((0, 2))), 9), after, "{kind:?}");
        assert_eq!(list(&store, &tube, queue(Some((1, 0))), 9), [], "{kind:?}");
    }
}

/// The module has no lease times: the server gives back tasks whose lease is over.
#[test]
fn a_lease_time_is_kept_by_the_server() {
    let Some((_instance, url)) = queue() else { return };
    let store = open(&url);
    let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
    ask(&store, put(&tube, vec![number(1)])).expect("it is put");
    let lease = Some(Span::from_secs(5));
    let take =
        Take { tube: tube.clone(), count: 1, session: None, lease, worker: None, wait: Span::ZERO };
    let executed = block_on(store.execute(NOW, vec![Command::Take(take)]));
    let Ok(Reply::Taken(tasks)) = &executed.replies[0] else { panic!("{executed:?}") };
    assert_eq!(executed.effects.next_wakeup, tasks[0].lease_until);
    let later = NOW + Span::from_secs(5);
    let ticked = block_on(store.execute(later, vec![Command::Tick { limit: 9, seed: 0 }]));
    assert_eq!(ticked.replies, [Ok(Reply::Ticked(1))]);
    assert_eq!(ticked.effects.ready, [(tube.clone(), 1)]);
    assert_eq!(peek(&store, &tube, 0).state, State::Ready);
}

#[test]
fn a_failed_delivery_is_a_release_or_a_bury() {
    let Some((_instance, url)) = queue() else { return };
    let store = open(&url);
    let tube = make_tube(&store, TubeOptions::new(Kind::FifoTtl));
    ask(&store, put(&tube, vec![number(1)])).expect("it is put");
    let retry = |delay| Finish::fail("no route", Some(delay));
    for (fail, state) in [
        (retry(Span::ZERO), State::Ready),
        (Finish::fail("no route", None), State::Buried),
        (retry(Span::from_secs(9)), State::Delayed),
    ] {
        let (session, lease, worker) = (None, None, Some("w".into()));
        let by_name =
            Take { tube: tube.clone(), count: 1, session, lease, worker, wait: Span::ZERO };
        let Ok(Reply::Taken(tasks)) = ask(&store, Command::Take(by_name)) else { panic!("taken") };
        assert_eq!(peek(&store, &tube, 0).worker, None);
        let failed = ask(&store, finish(&tube, &tasks[0], fail));
        assert_eq!(failed, Ok(Reply::Finished(vec![DONE])));
        let task = peek(&store, &tube, 0);
        assert_eq!((task.state, task.failures), (state, None));
        let (ids, reset_attempts) = (vec![task.id], false);
        let refused = ask(&store, Command::KickTasks { tube: tube.clone(), ids, reset_attempts });
        let is_refused =
            matches!(&refused, Err(Error::Invalid(why)) if why.starts_with("kicking tasks by id"));
        assert!(is_refused, "{refused:?}");
        ask(&store, Command::Kick { tube: tube.clone(), count: 1 }).expect("it is kicked");
    }
    // Any client may bury a task that is not taken, also with an error.
    let finish = Finish::fail("no route", None);
    let items = vec![FinishItem { id: TaskId(0), holder: Holder::Any, finish }];
    let buried = ask(&store, Command::Finish { tube: tube.clone(), items, show: false });
    assert_eq!(buried, Ok(Reply::Finished(vec![DONE])));
    assert_eq!(peek(&store, &tube, 0).state, State::Buried);
}

// After a restart of Tarantool each connection of each server loads the procedures. The last load discarded the deliveries.
#[test]
fn loading_the_procedures_again_keeps_deliveries() {
    const LOAD: &str = include_str!("../../src/lua/load.lua");
    let Some((instance, url)) = queue() else { return };
    let store = open(&url);
    let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
    ask(&store, put(&tube, vec![number(1)])).expect("it is put");
    let task = take(&store, &tube, 1).remove(0);
    instance.talk(&format!(
        "local load = loadstring([==[{LOAD}]==])
        for key in pairs(_G) do
            if tostring(key):match('^taskyard_1_%x+$') then load(key, 'taskyard', 1, 'return {{}}') end
        end"
    ));
    assert_eq!(ask(&store, finish(&tube, &task, Finish::Ack)), Ok(Reply::Finished(vec![DONE])));
}

// While the module starts, ends or waits for others it does nothing and answers nothing. That counted as done.
#[test]
fn commands_fail_while_the_module_is_not_running() {
    if std::env::var_os("TASKYARD_TARANTOOL_QUEUE").is_some() {
        return skip("only the substitute of tarantool/queue has a state that a test can set");
    }
    let Some((instance, url)) = queue() else { return };
    let store = open(&url);
    let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
    ask(&store, put(&tube, vec![number(1), number(2)])).expect("they are put");
    let task = take(&store, &tube, 1).remove(0);
    let again = Command::Take(Take {
        tube: tube.clone(),
        count: 1,
        session: None,
        lease: None,
        worker: None,
        wait: Span::ZERO,
    });
    let release = Finish::Release { delay: Span::ZERO, counted: true };
    let ids = vec![TaskId(1)];
    let commands = [
        put(&tube, vec![number(3)]),
        finish(&tube, &task, Finish::Ack),
        finish(&tube, &task, release),
        finish(&tube, &task, Finish::Bury),
        Command::Delete { tube: tube.clone(), ids, show: false },
        Command::Kick { tube: tube.clone(), count: 1 },
        Command::Truncate { tube: tube.clone() },
        Command::ReleaseAll { tube: tube.clone() },
        again,
    ];
    instance.talk("queue.state('WAITING')");
    for command in &commands {
        let away = ask(&store, command.clone());
        assert!(matches!(away, Err(Error::StoreUnavailable(_))), "{}: {away:?}", command.verb());
    }
    // A peek works, and the rest of its batch is refused nevertheless.
    let look = Command::Peek { tube: tube.clone(), ids: vec![TaskId(0), TaskId(1)] };
    let mixed = vec![look, commands[1].clone()];
    let replies = block_on(store.execute(NOW, mixed)).replies;
    assert!(matches!(&replies[0], Ok(Reply::Tasks(tasks)) if tasks.len() == 2), "{replies:?}");
    assert!(matches!(replies[1], Err(Error::StoreUnavailable(_))), "{replies:?}");
    instance.talk("queue.state('RUNNING')");
    assert_eq!(ask(&store, commands[1].clone()), Ok(Reply::Finished(vec![DONE])));
    assert_eq!(take(&store, &tube, 9).len(), 1);
}

#[test]
fn tasks_of_a_dead_server_are_given_back() {
    let Some((instance, url)) = queue() else { return };
    let (store, dead) = (open(&url), open(&url));
    let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
    ask(&store, put(&tube, vec![number(1)])).expect("it is put");
    let task = take(&dead, &tube, 1).remove(0);
    assert_eq!(
        ask(&store, finish(&tube, &task, Finish::Ack)),
        Ok(Reply::Finished(vec![Outcome::Stale])),
        "it belongs to the other's connection"
    );
    drop(dead);
    while instance.talk("return queue.statistics('mail').tasks.ready") != LuaValue::Int(1) {}
    assert_eq!(take(&store, &tube, 1).len(), 1);
}

#[test]
fn unsupported_commands_are_refused() {
    let Some((instance, url)) = queue() else { return };
    let store = open(&url);
    assert_eq!(store.capabilities().name, "tarantool+queue");
    assert!(store.unsupported().iter().any(|what| what.contains("attempts")));
    let tube = make_tube(&store, TubeOptions::new(Kind::FifoTtl));
    let other = TubeName::new("other").expect("a name");
    let create =
        |options| Command::CreateTube { tube: other.clone(), options, if_not_exists: false };
    let plain = TubeOptions::new(Kind::FifoTtl);
    let key = taskyard_core::SemaphoreKey::new("door").expect("a key");
    let look = taskyard_core::SemaphoreCommand::Peek { key: key.clone(), tasks: Vec::new() };
    let meta = NewTask::new(Body::with_meta(&[1], &[0x80]));
    for command in [
        create(TubeOptions { attempts_max: Some(3), ..plain.clone() }),
        create(TubeOptions { semaphore: Some(key), ..plain.clone() }),
        create(TubeOptions { queue_num: Some(1), ..plain.clone() }),
        create(TubeOptions { capacity: Some(1), ..plain.clone() }),
        create(TubeOptions { keep_done: Some(Span::from_secs(9)), ..plain.clone() }),
        create(TubeOptions { paused: true, ..plain }),
        put(&tube, vec![number(1), meta]),
        Command::AlterTube { tube: tube.clone(), change: TubeChange::default() },
        Command::NameTube { tube: tube.clone(), name: other.clone(), queue_num: None },
        Command::ConfigureSessions { ttr: Span::from_secs(1) },
        Command::Positions { tube: tube.clone(), ids: vec![TaskId(0)] },
        Command::Semaphore(look),
    ] {
        let verb = command.verb();
        let refusal = ask(&store, command);
        let text = refusal.as_ref().map_err(Error::to_string).expect_err("it is refused");
        assert!(text.contains("is not supported by tarantool/queue"), "{verb}: {text}");
    }
    assert_eq!(instance.talk("return queue.statistics('mail').tasks.total"), LuaValue::Int(0));
}

#[test]
fn a_result_is_ignored() {
    let Some((_instance, url)) = queue() else { return };
    let store = open(&url);
    let tube = make_tube(&store, TubeOptions::new(Kind::FifoTtl));
    ask(&store, put(&tube, vec![number(7)])).expect("it is put");
    let task = take(&store, &tube, 1).remove(0);
    let acked = ask(&store, finish(&tube, &task, Finish::ack_with(b"\xa2ok")));
    assert_eq!(acked, Ok(Reply::Finished(vec![DONE])));
    let order = ListOrder::Id { states: StateSet::ALL, after: None };
    let list = Command::List(List { tube, order, limit: 9, key: None });
    assert_eq!(ask(&store, list), Ok(Reply::Listed(Vec::new())));
}

#[test]
fn a_put_into_a_full_tube_puts_all_or_none() {
    let Some((_instance, url)) = queue() else { return };
    let store = open(&url);
    let tube =
        make_tube(&store, TubeOptions { capacity: Some(2), ..TubeOptions::new(Kind::LimFifoTtl) });
    let full = ask(&store, put(&tube, vec![number(1), number(2), number(3)]));
    assert_eq!(full, Err(Error::TubeFull { tube: tube.clone(), capacity: 2 }));
    assert_eq!(take(&store, &tube, 9), []);
    ask(&store, put(&tube, vec![number(1), number(2)])).expect("they fit");
}

// A negative capacity was read as none, and a capacity of 0 would have been none to tarantool/queue.
#[test]
fn a_capacity_of_zero_is_negative_for_the_queue() {
    let Some((instance, url)) = queue() else { return };
    let store = open(&url);
    let tube =
        make_tube(&store, TubeOptions { capacity: Some(0), ..TubeOptions::new(Kind::LimFifoTtl) });
    let stored = format!("return box.space._queue:get('{tube}')[5].capacity");
    assert_eq!(instance.talk(&stored), LuaValue::Int(-1));
    let full = ask(&store, put(&tube, vec![number(1)]));
    assert_eq!(full, Err(Error::TubeFull { tube: tube.clone(), capacity: 0 }));
    match ask(&store, Command::Tubes { tube: Some(tube) }) {
        Ok(Reply::Tubes(tubes)) => assert_eq!(tubes[0].options.capacity, Some(0)),
        other => panic!("{other:?}"),
    }
}

// Tarantool could not decode one of several payloads (an unknown extension type), and those before it stayed.
#[test]
fn a_put_that_is_refused_leaves_nothing() {
    let Some((_instance, url)) = queue() else { return };
    let store = open(&url);
    let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
    let odd = NewTask::new(Body::new(&[0xd4, 0x55, 0]));
    let refused = ask(&store, put(&tube, vec![number(1), odd]));
    assert!(matches!(&refused, Err(Error::Invalid(_))), "{refused:?}");
    assert_eq!(take(&store, &tube, 9), []);
}

#[test]
fn a_tarantool_without_the_module_is_refused() {
    let Some(program) = program() else { return };
    let instance = TarantoolInstance::new(program);
    let url = instance.url().replace("tarantool://", "tarantool+queue://");
    let refusal = TarantoolStore::open(&url, Clock::Database).err().map(|error| error.to_string());
    assert!(refusal.as_ref().is_some_and(|text| text.contains("no global 'queue'")), "{refusal:?}");
}
