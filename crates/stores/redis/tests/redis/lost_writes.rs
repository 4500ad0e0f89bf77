//! Tests with a Redis that loses its last writes while its servers keep running.

use taskyard_core::{
    Command, EnqueueItem, EventId, Grant, Kind, Outcome, Reply, SemaphoreChange, SemaphoreCommand,
    SemaphoreEvent, SemaphoreKey, SemaphoreReply, TaskId, TubeName, TubeOptions,
};
use taskyard_store::Store;
use taskyard_store_redis::RedisStore;

use taskyard_testkit::calls::{ack, ask, make_tube, put, take};
use taskyard_testkit::redis::{RedisInstance, program};
use taskyard_testkit::redis::{instance, open, own, run};

/// It keeps only its last snapshot.
const FORGETFUL: &[&str] = &["--appendonly", "no", "--save", ""];

/// Crashes Redis, which comes back with its last snapshot.
fn crash(redis: &RedisInstance) {
    redis.kill();
    redis.start();
}

fn save(redis: &RedisInstance) {
    assert_eq!(redis.talk(&["SAVE"]), "OK");
}

fn key(text: &str) -> SemaphoreKey {
    SemaphoreKey::new(text).expect("a key")
}

/// Repeats a command while Redis is away.
fn ask_semaphore(store: &RedisStore, command: SemaphoreCommand) -> SemaphoreReply {
    loop {
        match ask(store, Command::Semaphore(command.clone())) {
            Ok(Reply::Semaphore(reply)) => return reply,
            Err(taskyard_core::Error::StoreUnavailable(_)) => std::thread::yield_now(),
            other => panic!("a semaphore answers, not {other:?}"),
        }
    }
}

fn configure(store: &RedisStore, text: &str) {
    let change = Box::new(SemaphoreChange::limits(5, 0));
    ask_semaphore(store, SemaphoreCommand::Configure { key: key(text), change, only_new: false });
}

fn enqueue(store: &RedisStore, text: &str, task: u64) {
    let entries = vec![EnqueueItem { task: TaskId(task), priority: 1.0 }];
    ask_semaphore(store, SemaphoreCommand::Enqueue { key: key(text), entries });
}

fn events(store: &RedisStore, of: Option<&str>) -> Vec<SemaphoreEvent> {
    let wait = taskyard_core::Span::ZERO;
    let events = SemaphoreCommand::Events { key: of.map(key), count: 9, wait };
    match ask_semaphore(store, events) {
        SemaphoreReply::Events(events) => events,
        other => panic!("events were asked for, not {other:?}"),
    }
}

fn acknowledge(store: &RedisStore, events: Vec<EventId>) -> SemaphoreReply {
    ask_semaphore(store, SemaphoreCommand::Acknowledge { events })
}

fn put_one(store: &RedisStore, tube: &TubeName) -> TaskId {
    loop {
        match ask(store, put(tube, 1)) {
            Ok(Reply::Put(placed)) => return placed[0].id,
            Err(taskyard_core::Error::StoreUnavailable(_)) => std::thread::yield_now(),
            other => panic!("a put answers with ids, not {other:?}"),
        }
    }
}

// Two callers got the same id for two tasks, and commands of the first changed the task of the second.
#[test]
fn ids_are_not_reused() {
    let Some(program) = program() else { return };
    let redis = RedisInstance::with(program, FORGETFUL);
    let store = open(&redis.url());
    let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
    assert_eq!(put_one(&store, &tube), TaskId(0));
    save(&redis);
    assert_eq!(put_one(&store, &tube), TaskId(1));
    crash(&redis);
    let later = put_one(&store, &tube);
    assert!(later > TaskId(1), "{later}");
    assert_eq!(put_one(&store, &tube), TaskId(later.0 + 1), "once for each incarnation of Redis");
    let ids = vec![TaskId(1)];
    assert_eq!(ask(&store, Command::Peek { tube, ids }), Ok(Reply::Tasks(Vec::new())));
}

// An event that was delivered before the crash had the number of a later one. Acknowledging the first deleted the second: a task was
// never notified of its grant, which was lost.
#[test]
fn event_and_grant_numbers_are_not_reused() {
    let Some(program) = program() else { return };
    let redis = RedisInstance::with(program, FORGETFUL);
    let store = open(&redis.url());
    configure(&store, "door");
    save(&redis);
    enqueue(&store, "door", 1);
    let first = events(&store, None).remove(0);
    assert_eq!(first.grant, Grant(1));
    crash(&redis);
    enqueue(&store, "door", 2);
    assert_eq!(acknowledge(&store, vec![first.id]), SemaphoreReply::Acknowledged(0));
    let second = events(&store, None).remove(0);
    assert_eq!(second.task, TaskId(2));
    assert!(second.grant > first.grant, "{:?}", second.grant);
    assert_eq!(acknowledge(&store, vec![second.id]), SemaphoreReply::Acknowledged(1));
    assert_eq!(events(&store, None), []);
}

// The number of a lost semaphore was given to another one, and a server that had seen both confused them: an acknowledgement for one
// deleted an event of the other.
#[test]
fn a_semaphore_is_not_confused_with_a_lost_one() {
    let Some(program) = program() else { return };
    let redis = RedisInstance::with(program, FORGETFUL);
    let store = open(&redis.url());
    configure(&store, "old");
    save(&redis);
    configure(&store, "x");
    enqueue(&store, "x", 1);
    crash(&redis);
    // As if the incarnation marks were lost too: numbers are given again.
    redis.talk(&["DEL", "{taskyard}:life"]);
    for text in ["y", "x"] {
        configure(&store, text);
        enqueue(&store, text, 10);
    }
    let of_y = events(&store, Some("y")).remove(0);
    assert_eq!(acknowledge(&store, vec![of_y.id]), SemaphoreReply::Acknowledged(1));
    let left = events(&store, None);
    assert_eq!(left.iter().map(|event| event.semaphore.as_str()).collect::<Vec<_>>(), ["x"]);
    assert_eq!(acknowledge(&store, vec![left[0].id]), SemaphoreReply::Acknowledged(1));
}

// A semaphore that only the list had lost never got ticks again.
#[test]
fn configuring_a_semaphore_lists_it_again() {
    run(async {
        let url = own(&instance().url());
        let prefix = url.rsplit_once('=').expect("it has a prefix").1.to_owned();
        let store = open(&url);
        configure(&store, "door");
        let list = format!("{{{prefix}}}:semaphores");
        assert_eq!(instance().talk(&["HDEL", &list, "door"]), "1");
        configure(&store, "door");
        assert_eq!(instance().talk(&["HGET", &list, "door"]), "1");
    });
}

// The epoch began again at one, tubes had later ones, and tasks that were taken when the servers died were never given back.
#[test]
fn a_lost_epoch_is_not_reused() {
    run(async {
        let url = own(&instance().url());
        let prefix = url.rsplit_once('=').expect("it has a prefix").1.to_owned();
        for _ in 0..3 {
            open(&url).close().await.expect("it closes");
        }
        let store = open(&url);
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        ask(&store, put(&tube, 1)).expect("it is put");
        let held = take(&store, &tube, 1).remove(0);
        drop(store);
        let keys = ["epoch", "v", "life"].map(|key| format!("{{{prefix}}}:{key}"));
        instance().talk(&["DEL", &keys[0], &keys[1], &keys[2]]);
        let store = open(&url);
        assert_eq!(ack(&store, &tube, &held), Outcome::Stale);
        assert_eq!(take(&store, &tube, 1).len(), 1);
    });
}

/// Running servers know the epoch, so that later servers do not use an older one.
#[test]
fn a_lost_epoch_is_restored_by_a_server() {
    run(async {
        let url = own(&instance().url());
        let epoch = format!("{{{}}}:epoch", url.rsplit_once('=').expect("it has a prefix").1);
        let _store = open(&url);
        let before = instance().talk(&["GET", &epoch]);
        assert_eq!(instance().talk(&["DEL", &epoch]), "1");
        // With the next heartbeat.
        while instance().talk(&["GET", &epoch]) != before {}
    });
}
