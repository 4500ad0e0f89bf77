//! Redis forgets what it was told last, and its servers do not.

use taskyard_core::{
    Command, EventId, Grant, Kind, Outcome, Reply, SemaphoreChange, SemaphoreCommand,
    SemaphoreEvent, SemaphoreKey, SemaphoreReply, TaskId, TubeName, TubeOptions, Wish,
};
use taskyard_store::Store;
use taskyard_store_redis::RedisStore;

use taskyard_testkit::calls::{ack, ask, make_tube, put, take};
use taskyard_testkit::redis::{Instance, program};
use taskyard_testkit::redis::{instance, open, own, run};

/// It keeps what it had when it was last told to save, and nothing else.
const FORGETFUL: &[&str] = &["--appendonly", "no", "--save", ""];

/// Redis crashes, and is back as it was when it last saved.
fn crash(redis: &Instance) {
    redis.kill();
    redis.start();
}

fn save(redis: &Instance) {
    assert_eq!(redis.talk(&["SAVE"]), "OK");
}

fn key(text: &str) -> SemaphoreKey {
    SemaphoreKey::new(text).expect("a key")
}

/// Asks until Redis is there again.
fn ask_semaphore(store: &RedisStore, command: SemaphoreCommand) -> SemaphoreReply {
    loop {
        match ask(store, Command::Semaphore(command.clone())) {
            Ok(Reply::Semaphore(reply)) => return reply,
            Err(taskyard_core::Error::StoreAway(_)) => std::thread::yield_now(),
            other => panic!("a semaphore answers, not {other:?}"),
        }
    }
}

fn configure(store: &RedisStore, text: &str) {
    let change = Box::new(SemaphoreChange::limits(5, 0));
    ask_semaphore(store, SemaphoreCommand::Configure { key: key(text), change, only_new: false });
}

fn enqueue(store: &RedisStore, text: &str, task: u64) {
    let wishes = vec![Wish { task: TaskId(task), priority: 1.0 }];
    ask_semaphore(store, SemaphoreCommand::Enqueue { key: key(text), wishes });
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
            Err(taskyard_core::Error::StoreAway(_)) => std::thread::yield_now(),
            other => panic!("a put answers with ids, not {other:?}"),
        }
    }
}

// Two callers were told the same id for two tasks, and what the first one did with it was done to the task of the second.
#[test]
fn ids_do_not_come_again() {
    let Some(program) = program() else { return };
    let redis = Instance::with(program, FORGETFUL);
    let store = open(&redis.url());
    let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
    assert_eq!(put_one(&store, &tube), TaskId(0));
    save(&redis);
    assert_eq!(put_one(&store, &tube), TaskId(1));
    crash(&redis);
    let later = put_one(&store, &tube);
    assert!(later > TaskId(1), "{later}");
    assert_eq!(put_one(&store, &tube), TaskId(later.0 + 1), "once for each life of Redis");
    let ids = vec![TaskId(1)];
    assert_eq!(ask(&store, Command::Peek { tube, ids }), Ok(Reply::Tasks(Vec::new())));
}

// An event that was handed out before the crash had the number of one that came about after it. Who acknowledged the first deleted the
// second: nobody was told that a task may go on, and its place was lost.
#[test]
fn events_and_grants_do_not_come_again() {
    let Some(program) = program() else { return };
    let redis = Instance::with(program, FORGETFUL);
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

// A semaphore that was lost had the number of another one from then on, and a server that had seen both took them for each other: what was
// acknowledged for one was deleted from the other.
#[test]
fn a_semaphore_is_not_taken_for_one_that_was_lost() {
    let Some(program) = program() else { return };
    let redis = Instance::with(program, FORGETFUL);
    let store = open(&redis.url());
    configure(&store, "old");
    save(&redis);
    configure(&store, "x");
    enqueue(&store, "x", 1);
    crash(&redis);
    // As if the marks were lost too: numbers are given anew.
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

// A semaphore that only the list of them had lost was never looked at again.
#[test]
fn a_semaphore_that_the_list_has_lost_is_listed_when_it_is_configured() {
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

// The epoch began again at one, tubes had seen later ones, and what was taken when the servers died was never given back.
#[test]
fn an_epoch_that_was_lost_does_not_come_again() {
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

/// Servers that are there remember it, so that those who come later do not work with an older one.
#[test]
fn an_epoch_that_was_lost_is_told_again() {
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
