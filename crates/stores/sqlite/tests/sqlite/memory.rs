//! Tests more payloads than fit in memory: they are returned unchanged, in order, within the budget.

use std::path::Path;

use taskyard_core::{
    Body, Command, Error, Finish, Kind, NewTask, Outcome, Reply, Span, Task, TubeOptions,
};
use taskyard_store::{Executed, OpenOptions, Store, fill};
use taskyard_store_sqlite::SqliteStore;

use crate::fixture::{
    NOW, block_on, create, delete, fast_folder, finish, finish_now, load, must, name, peek, put,
    put_now, random, take, take_now,
};

const MIB: usize = 1 << 20;

#[test]
fn a_backlog_larger_than_memory_is_delivered_in_order() {
    let mut random = random();
    let budget = 256 << 10;
    let folder = fast_folder();
    let store = open(folder.path(), budget);
    must(&store, create("mail", TubeOptions::new(Kind::FifoTtl)));
    let mut expected = Vec::new();
    for _ in 0..30 {
        let tasks: Vec<NewTask> = (0..100).map(|_| new_task(&mut random, 2000)).collect();
        let ids = put_now(&store, "mail", tasks.clone());
        expected.extend(tasks.into_iter().zip(ids).map(|(task, id)| (task.pri, id, task.body)));
        assert!(store.payload_bytes() <= budget, "{} bytes", store.payload_bytes());
    }
    expected.sort_by_key(|(pri, id, _)| (*pri, *id));
    let spilled = execute(&store, vec![peek("mail", 0..3000)]).unloaded.len();
    assert!(spilled > 2000, "only {spilled} payloads are on disk only");
    for expected in expected.chunks(50) {
        let tasks = take_now(&store, "mail", 50);
        let found: Vec<_> = tasks.iter().map(|t| (Some(t.pri), t.id.0, body(t).clone())).collect();
        assert!(found == expected, "another order or another payload");
        execute(&store, tasks.iter().map(|task| finish("mail", task, Finish::Ack)).collect());
        assert!(store.payload_bytes() <= budget, "{} bytes", store.payload_bytes());
    }
    assert!(take_now(&store, "mail", 1).is_empty(), "there were no others");
}

#[test]
fn without_any_memory_everything_is_loaded() {
    let folder = fast_folder();
    let store = open(folder.path(), 0);
    must(&store, create("mail", TubeOptions::new(Kind::Fifo)));
    put_now(&store, "mail", (0..20).map(numbered).collect());
    assert_eq!(store.payload_bytes(), 0);
    let tasks = take_now(&store, "mail", 20);
    let found: Vec<Body> = tasks.iter().map(|task| body(task).clone()).collect();
    assert!(found == (0..20).map(|number| numbered(number).body).collect::<Vec<_>>());
}

/// The payloads of done tasks that a tube keeps leave memory, and are read from disk when they are shown.
#[test]
fn payloads_of_done_tasks_are_on_disk_only() {
    let folder = fast_folder();
    let store = open(folder.path(), MIB);
    let keep_done = Some(Span::FOREVER);
    must(&store, create("mail", TubeOptions { keep_done, ..TubeOptions::new(Kind::Fifo) }));
    put_now(&store, "mail", (0..20).map(numbered).collect());
    let tasks = take_now(&store, "mail", 20);
    let acks = tasks.iter().map(|task| finish("mail", task, Finish::ack_with(&[0xc3])));
    execute(&store, acks.collect());
    store.catch_up().expect("the journal is applied");
    execute(&store, Vec::new());
    assert_eq!(store.payload_bytes(), 0);
    let shown = execute(&store, vec![peek("mail", 0..20)]);
    assert_eq!(shown.unloaded.len(), 20);
    for (number, task) in (0..).zip(&tasks_of(&store, shown)) {
        assert!(*body(task) == numbered(number).body, "task {number}");
        let finished = task.finished.as_ref().expect("it is done");
        assert_eq!(finished.result(), Some(&[0xc3][..]), "task {number}");
    }
}

/// A finished task was returned without its payload when that was on disk only: a client of the original
/// queue, which receives the whole task for an ack, would have received nil.
#[test]
fn a_finished_task_is_returned_with_its_payload_from_memory_or_disk() {
    let folder = fast_folder();
    let store = open(folder.path(), 0);
    must(&store, create("mail", TubeOptions::new(Kind::Fifo)));
    put_now(&store, "mail", (0..4).map(numbered).collect());
    let taken = take_now(&store, "mail", 2);
    let commands = vec![
        finish("mail", &taken[0], Finish::Ack),
        finish("mail", &taken[1], Finish::Bury),
        delete("mail", [2, 3]),
    ];
    let replies = execute(&store, commands).replies.into_iter();
    let outcomes: Vec<Outcome> = replies
        .flat_map(|reply| match reply {
            Ok(Reply::Finished(outcomes)) => outcomes,
            other => panic!("{other:?}"),
        })
        .collect();
    for (number, outcome) in (0..).zip(outcomes) {
        let Outcome::Done(Some(task)) = outcome else { panic!("task {number}: {outcome:?}") };
        assert!(*body(&task) == numbered(number).body, "task {number}");
    }
}

#[test]
fn the_next_payloads_are_read_ahead() {
    let folder = fast_folder();
    let store = open(folder.path(), MIB);
    must(&store, create("mail", TubeOptions::new(Kind::Fifo)));
    put_now(&store, "mail", (0..100).map(numbered).collect());
    drop(store);
    let store = open(folder.path(), MIB);
    assert_eq!(store.payload_bytes(), 0, "no payload is in memory before it is needed");
    let first = execute(&store, vec![take("mail", 1)]);
    assert_eq!(first.unloaded.len(), 1, "the first one must be loaded");
    // The reader handles requests in order, so the reading ahead is finished after this.
    assert!(*body(&tasks_of(&store, first)[0]) == numbered(0).body);
    let rest = execute(&store, vec![take("mail", 99)]);
    assert_eq!(rest.unloaded, [], "the others were read ahead");
    for (number, task) in (1..).zip(&tasks_of(&store, rest)) {
        assert!(*body(task) == numbered(number).body, "task {number}");
    }
}

/// Only the first tasks of idle sub-queues were read ahead, and after a take from each there is none: a
/// backlog in sub-queues was loaded task by task while the takes waited.
#[test]
fn payloads_behind_taken_tasks_are_read_ahead() {
    let folder = fast_folder();
    let store = open(folder.path(), MIB);
    must(&store, create("mail", TubeOptions::new(Kind::UtubeTtl)));
    let keyed = |number: u32| NewTask {
        subqueue: Some(["a", "b"][number as usize % 2].into()),
        ..numbered(number)
    };
    put_now(&store, "mail", (0..20).map(keyed).collect());
    drop(store);
    let store = open(folder.path(), MIB);
    let first = execute(&store, vec![take("mail", 2)]);
    assert_eq!(first.unloaded.len(), 2, "the first ones must be loaded");
    // The reader handles requests in order, so the reading ahead is finished after this.
    let first = tasks_of(&store, first);
    execute(&store, first.iter().map(|task| finish("mail", task, Finish::Ack)).collect());
    let second = execute(&store, vec![take("mail", 2)]);
    assert_eq!(second.unloaded, [], "those behind them were read ahead");
}

/// Reading ahead counted tasks, not bytes: with large payloads it read thousands of them into memory before
/// it checked the budget.
#[test]
fn reading_ahead_keeps_to_the_budget() {
    let mut random = random();
    let budget = 8 * MIB;
    let folder = fast_folder();
    let store = open(folder.path(), budget);
    must(&store, create("films", TubeOptions::new(Kind::Fifo)));
    let bodies: Vec<Body> = (0..40).map(|_| exact(&mut random, MIB)).collect();
    for body in &bodies {
        put_now(&store, "films", vec![NewTask::new(body.clone())]);
        assert!(store.payload_bytes() <= budget, "{} bytes", store.payload_bytes());
    }
    drop(store);
    let store = open(folder.path(), budget);
    let mut in_memory = 0;
    for expected in bodies {
        let executed = execute(&store, vec![take("films", 1)]);
        in_memory += usize::from(executed.unloaded.is_empty());
        assert!(store.payload_bytes() <= budget, "{} bytes", store.payload_bytes());
        let task = tasks_of(&store, executed).remove(0);
        assert!(*body(&task) == expected, "task {}", task.id);
        finish_now(&store, "films", &task, Finish::Ack);
        // The reader handles requests in order, so the reading ahead is finished after this.
        load(&store, Vec::new()).expect("nothing to load");
    }
    assert!(in_memory > 20, "only {in_memory} payloads were in memory");
}

#[test]
fn a_batch_larger_than_the_budget() {
    let mut random = random();
    let folder = fast_folder();
    let store = open(folder.path(), 64 << 10);
    must(&store, create("mail", TubeOptions::new(Kind::Fifo)));
    let bodies: Vec<Body> = (0..32).map(|_| exact(&mut random, 32 << 10)).collect();
    put_now(&store, "mail", bodies.iter().cloned().map(NewTask::new).collect());
    assert!(store.payload_bytes() <= 64 << 10);
    let tasks = take_now(&store, "mail", 32);
    assert!(tasks.iter().map(body).eq(&bodies));
}

/// Payloads of a temporary tube are in memory only, whatever the budget.
#[test]
fn a_temporary_tube_keeps_its_payloads() {
    let folder = fast_folder();
    let store = open(folder.path(), 1000);
    let temporary = TubeOptions { temporary: true, ..TubeOptions::new(Kind::Fifo) };
    must(&store, create("temporary", temporary));
    must(&store, create("mail", TubeOptions::new(Kind::Fifo)));
    for tube in ["temporary", "mail"] {
        put_now(&store, tube, (0..50).map(numbered).collect());
    }
    for tube in ["temporary", "mail"] {
        for (number, task) in (0..).zip(&take_now(&store, tube, 50)) {
            assert!(*body(task) == numbered(number).body, "task {number} of {tube}");
        }
    }
}

/// In one batch a task was returned, its tube dropped and created again: the key of its payload was looked up
/// after the batch, when a task of the new tube had the same number.
#[test]
fn a_task_read_before_its_tube_was_dropped_has_no_payload_of_the_new_one() {
    let folder = fast_folder();
    let store = open(folder.path(), 0);
    must(&store, create("mail", TubeOptions::new(Kind::Fifo)));
    put_now(&store, "mail", (0..5).map(numbered).collect());
    let drop_tube = Command::DropTube { tube: name("mail") };
    let create_again = create("mail", TubeOptions::new(Kind::Fifo));
    let put_again = put("mail", (100..105).map(numbered).collect());
    let batch = vec![peek("mail", 0..5), drop_tube, create_again, put_again, take("mail", 2)];
    let mut executed = execute(&store, batch);
    let keys = executed.unloaded.iter().map(|unloaded| unloaded.key).collect();
    let bodies = load(&store, keys).expect("payloads can be read");
    fill(&mut executed.replies, &executed.unloaded, bodies);
    let [Ok(Reply::Tasks(shown)), _, _, _, Ok(Reply::Taken(taken))] = &executed.replies[..] else {
        panic!("{:?}", executed.replies);
    };
    assert!(shown.is_empty(), "they are gone");
    for (number, task) in (100..).zip(taken) {
        assert!(*body(task) == numbered(number).body, "task {number}");
    }
}

/// Between the reply to a peek and the reading of its payloads the tube was dropped and created again: the
/// payload of another task was returned.
#[test]
fn a_payload_is_not_read_from_a_new_tube_of_the_same_number() {
    let folder = fast_folder();
    let store = open(folder.path(), 0);
    must(&store, create("mail", TubeOptions::new(Kind::Fifo)));
    put_now(&store, "mail", vec![numbered(1)]);
    let old = execute(&store, vec![peek("mail", [0])]).unloaded;
    must(&store, Command::DropTube { tube: name("mail") });
    must(&store, create("secrets", TubeOptions::new(Kind::Fifo)));
    put_now(&store, "secrets", vec![numbered(2)]);
    let new = execute(&store, vec![peek("secrets", [0])]).unloaded;
    let keys = vec![old[0].key, new[0].key];
    let bodies = load(&store, keys).expect("payloads can be read");
    assert!(bodies == [None, Some(numbered(2).body)]);
}

/// The same for payloads that are read ahead, repeatedly, to hit the reader at any time.
#[test]
fn reading_ahead_does_not_mix_tubes() {
    let folder = fast_folder();
    let store = open(folder.path(), 4 << 10);
    for round in 0..100u32 {
        must(&store, create("mail", TubeOptions::new(Kind::Fifo)));
        let numbers = round * 100..round * 100 + 50;
        put_now(&store, "mail", numbers.clone().map(numbered).collect());
        for number in numbers.take(round as usize % 40) {
            let task = take_now(&store, "mail", 1).remove(0);
            assert!(*body(&task) == numbered(number).body, "task {number} in round {round}");
            finish_now(&store, "mail", &task, Finish::Ack);
        }
        if round % 3 == 0 {
            must(&store, Command::Truncate { tube: name("mail") });
        }
        must(&store, Command::DropTube { tube: name("mail") });
    }
}

#[test]
fn a_payload_of_a_deleted_task_is_not_returned() {
    let folder = fast_folder();
    let store = open(folder.path(), 0);
    must(&store, create("mail", TubeOptions::new(Kind::Fifo)));
    put_now(&store, "mail", (0..2).map(numbered).collect());
    let executed = execute(&store, vec![take("mail", 2)]);
    must(&store, delete("mail", [0]));
    store.catch_up().expect("the database can be written");
    let tasks = tasks_of(&store, executed);
    assert_eq!(tasks.iter().map(|task| task.id.0).collect::<Vec<_>>(), [1]);
}

fn open(folder: &Path, memory_bytes: usize) -> SqliteStore {
    let options = OpenOptions { memory_bytes, ..OpenOptions::default() };
    SqliteStore::open(folder, &options).expect("the store opens")
}

fn execute(store: &SqliteStore, commands: Vec<Command>) -> Executed {
    let executed = block_on(store.execute(NOW, commands));
    let failed: Option<&Error> = executed.replies.iter().find_map(|reply| reply.as_ref().err());
    assert_eq!(failed, None);
    executed
}

/// The tasks of a single take, with their payloads.
fn tasks_of(store: &SqliteStore, mut executed: Executed) -> Vec<Task> {
    let keys = executed.unloaded.iter().map(|unloaded| unloaded.key).collect();
    let bodies = load(store, keys).expect("payloads can be read");
    fill(&mut executed.replies, &executed.unloaded, bodies);
    match executed.replies.remove(0) {
        Ok(Reply::Taken(tasks) | Reply::Tasks(tasks)) => tasks,
        other => panic!("a take answered {other:?}"),
    }
}

fn body(task: &Task) -> &Body {
    task.body.as_ref().expect("a task has a body when it is handed out")
}

fn new_task(random: &mut fastrand::Rng, bytes_max: usize) -> NewTask {
    let length = random.usize(..bytes_max);
    NewTask { pri: Some(random.u64(..3)), ..NewTask::new(exact(random, length)) }
}

fn exact(random: &mut fastrand::Rng, length: usize) -> Body {
    let mut payload = vec![0; length];
    random.fill(&mut payload);
    let meta: &[u8] = if random.bool() { &[0x80] } else { &[] };
    Body::with_meta(&payload, meta)
}

/// A task whose payload contains its number.
fn numbered(number: u32) -> NewTask {
    NewTask::new(Body::new(&number.to_le_bytes().repeat(50)))
}
