//! Tests with a Redis that is down, full, read-only or misconfigured.

use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use taskyard_conformance::block_on;
use taskyard_core::{
    Command, EnqueueItem, Error, Finish, FinishItem, GrantFinish, GrantItem, Holder, Kind, Outcome,
    Reply, SemaphoreChange, SemaphoreCommand, SemaphoreKey, Span, Take, TaskId, TubeName,
    TubeOptions,
};
use taskyard_store::{OpenError, OpenOptions, Store};
use taskyard_store_redis::{Clock, RedisStore};

use taskyard_testkit::calls::{NOW, ack, ask, health_becomes, make_tube, put, take};
use taskyard_testkit::recorded_output::record;
use taskyard_testkit::redis::{DURABLE, RedisInstance, free_port, program};
use taskyard_testkit::redis::{open, own, run};

/// Repeats a command while Redis is away. Any other error fails the test.
fn ask_until_there(store: &RedisStore, command: &Command) -> Reply {
    loop {
        match ask(store, command.clone()) {
            Ok(reply) => return reply,
            Err(Error::StoreUnavailable(_)) => thread::yield_now(),
            Err(other) => panic!("{other}"),
        }
    }
}

fn counts(store: &RedisStore, tube: &TubeName) -> (u64, u64) {
    match ask_until_there(store, &Command::Tubes { tube: Some(tube.clone()) }) {
        Reply::Tubes(tubes) => (tubes[0].stats.tasks.ready, tubes[0].stats.tasks.taken),
        other => panic!("a tube was expected, not {other:?}"),
    }
}

fn is_away(reply: Result<Reply, Error>) {
    assert!(matches!(reply, Err(Error::StoreUnavailable(_))), "{reply:?}");
}

#[test]
fn a_redis_that_is_down_is_away_and_comes_back_as_it_was() {
    let Some(program) = program() else { return };
    let redis = RedisInstance::new(program);
    let store = open(&redis.url());
    let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
    ask(&store, put(&tube, 3)).expect("they are put");
    let held = take(&store, &tube, 1).remove(0);
    redis.kill();
    // Nothing was in flight: it is known that nothing was done.
    is_away(ask(&store, put(&tube, 1)));
    is_away(ask(&store, Command::Tubes { tube: None }));
    redis.start();
    assert_eq!(counts(&store, &tube), (2, 1));
    assert_eq!(ack(&store, &tube, &held), Outcome::Done(None));
}

// A Redis that was restarted without its files, or whose functions were flushed, answered every call with an error.
#[test]
fn functions_that_were_lost_are_loaded_again() {
    let Some(program) = program() else { return };
    let redis = RedisInstance::new(program);
    let store = open(&redis.url());
    let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
    assert_eq!(redis.talk(&["FUNCTION", "FLUSH"]), "OK");
    ask(&store, put(&tube, 1)).expect("it is put");
    assert_eq!(redis.talk(&["FLUSHALL"]), "OK");
    assert_eq!(redis.talk(&["FUNCTION", "FLUSH"]), "OK");
    assert_eq!(ask(&store, put(&tube, 1)), Err(Error::TubeNotFound(tube.clone())));
    make_tube(&store, TubeOptions::new(Kind::Fifo));
    ask(&store, put(&tube, 1)).expect("it is put");
    assert_eq!(take(&store, &tube, 9).len(), 1);
}

#[test]
fn a_redis_that_is_full_refuses_puts_and_nothing_else() {
    let Some(program) = program() else { return };
    let settings = ["--maxmemory", "8mb", "--maxmemory-policy", "noeviction"];
    let redis = RedisInstance::with(program, &[DURABLE, &settings].concat());
    let store = open(&redis.url());
    let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
    let mut there = 0;
    let refusal = loop {
        match ask(&store, put(&tube, 1000)) {
            Ok(_) => there += 1000,
            Err(refusal) => break refusal,
        }
    };
    assert!(
        matches!(refusal, Error::Overloaded(text) if text.contains("maxmemory")),
        "{refusal:?}"
    );
    assert_eq!(counts(&store, &tube), (there, 0), "what was refused is not there, what was not is");
    // In one batch with refused commands the rest is done. A thousand tasks found no room; the limit is lowered so that one does not either.
    assert_eq!(redis.talk(&["CONFIG", "SET", "maxmemory", "1mb"]), "OK");
    let commands = vec![put(&tube, 1), Command::Tick { limit: 1, seed: 0 }, put(&tube, 1)];
    let replies =
        taskyard_conformance::block_on(store.execute(taskyard_testkit::calls::NOW, commands))
            .replies;
    assert!(replies[1].is_ok() && replies[0].is_err() && replies[2].is_err(), "{replies:?}");
    for _ in 0..there / 1000 {
        for task in take(&store, &tube, 1000) {
            assert_eq!(ack(&store, &tube, &task), Outcome::Done(None));
        }
    }
    assert_eq!(counts(&store, &tube), (0, 0));
    assert_eq!(redis.talk(&["CONFIG", "SET", "maxmemory", "8mb"]), "OK");
    ask(&store, put(&tube, 1)).expect("there is room again");
}

#[test]
fn a_master_that_became_a_replica_is_away() {
    let Some(program) = program() else { return };
    let redis = RedisInstance::new(program);
    let store = open(&redis.url());
    let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
    assert_eq!(redis.talk(&["REPLICAOF", "127.0.0.1", "1"]), "OK");
    is_away(ask(&store, put(&tube, 1)));
    assert_eq!(redis.talk(&["REPLICAOF", "NO", "ONE"]), "OK");
    ask_until_there(&store, &put(&tube, 1));
    assert_eq!(counts(&store, &tube), (1, 0));
}

#[test]
fn the_durability_of_redis_is_reported() {
    let Some(program) = program() else { return };
    let redis = RedisInstance::new(program);
    for (only, sync, words, durable) in [
        ("yes", "always", "are on disk", true),
        ("yes", "everysec", "last second", false),
        ("yes", "no", "the operating system", false),
        ("no", "always", "last snapshot", false),
    ] {
        assert_eq!(redis.talk(&["CONFIG", "SET", "appendfsync", sync]), "OK");
        assert_eq!(redis.talk(&["CONFIG", "SET", "appendonly", only]), "OK");
        let store = open(&redis.url());
        let said = store.durability().expect("Redis says it");
        assert!(said.contains(words), "{said}");
        assert_eq!(store.capabilities().durable, durable);
    }
}

#[test]
fn a_url_with_wait_waits_for_replicas() {
    let Some(program) = program() else { return };
    let (redis, replica) = (RedisInstance::new(program.clone()), RedisInstance::new(program));
    let waiting = |millis| open(&format!("{}?wait=1&wait_ms={millis}", redis.url()));
    let tube = TubeName::new("mail").expect("a name");
    let create = Command::CreateTube {
        tube: tube.clone(),
        options: TubeOptions::new(Kind::Fifo),
        if_not_exists: true,
    };
    let alone = ask(&waiting(20), create.clone());
    assert!(
        matches!(&alone, Err(Error::OutcomeUnknown(why)) if why.contains("0 of 1")),
        "{alone:?}"
    );
    let port = redis.port().to_string();
    assert_eq!(replica.talk(&["REPLICAOF", "127.0.0.1", &port]), "OK");
    while !replica.talk(&["INFO", "replication"]).contains("master_link_status:up") {}
    // Long: on a busy machine the replica may confirm late.
    let store = waiting(10_000);
    assert_eq!(ask(&store, create), Ok(Reply::Created(false)));
    ask(&store, put(&tube, 1)).expect("the replica has it");
    assert_eq!(replica.talk(&["HLEN", "{taskyard:mail}:t"]), "1");
    assert!(store.durability().expect("Redis says it").contains("1 replicas"));
}

// Every answer was replaced by "done but not replicated", even the refusal of a put into a full tube.
#[test]
fn refusals_are_not_reported_as_unreplicated() {
    let Some(program) = program() else { return };
    let redis = RedisInstance::new(program);
    let store = open(&format!("{}?wait=1&wait_ms=20", redis.url()));
    let is_undoable = |reply: Result<Reply, Error>| {
        let said = matches!(&reply, Err(Error::OutcomeUnknown(why)) if why.contains("0 of 1"));
        assert!(said, "{reply:?}");
    };
    let tube = TubeName::new("mail").expect("a name");
    assert_eq!(ask(&store, put(&tube, 1)), Err(Error::TubeNotFound(tube.clone())));
    let options = TubeOptions { capacity: Some(1), ..TubeOptions::new(Kind::LimFifoTtl) };
    let create = Command::CreateTube { tube: tube.clone(), options, if_not_exists: false };
    is_undoable(ask(&store, create.clone()));
    assert_eq!(ask(&store, create), Err(Error::TubeExists(tube.clone())));
    is_undoable(ask(&store, put(&tube, 1)));
    let full = ask(&store, put(&tube, 1));
    assert!(matches!(full, Err(Error::TubeFull { .. })), "{full:?}");
    assert_eq!(counts(&store, &tube), (1, 0), "what only looks is answered");
    let take = Take {
        tube: tube.clone(),
        count: 1,
        session: None,
        lease: None,
        worker: None,
        wait: Span::ZERO,
    };
    is_undoable(ask(&store, Command::Take(take)));
    assert_eq!(counts(&store, &tube), (1, 0), "the delivery was not answered");
    let holder = Holder::Any;
    let items = vec![FinishItem { id: TaskId(7), holder, finish: Finish::Ack }];
    let ack = Command::Finish { tube, items, show: false };
    assert_eq!(ask(&store, ack), Ok(Reply::Finished(vec![Outcome::Missing])));
}

// Redis evicted tasks silently when its memory was full, and later calls failed.
#[test]
fn a_redis_that_evicts_keys_is_refused() {
    let Some(program) = program() else { return };
    let redis = RedisInstance::with(program, &["--maxmemory-policy", "allkeys-lru"]);
    let opened = |url: &str| RedisStore::open(url, Clock::Database);
    let refusal = opened(&redis.url()).err().expect("it is refused").to_string();
    assert!(refusal.contains("maxmemory-policy is allkeys-lru"), "{refusal}");
    assert!(refusal.contains("noeviction"), "it says what to do: {refusal}");
    assert_eq!(redis.talk(&["EXISTS", "{taskyard}:v"]), "0", "no server has begun");
    let accepted = opened(&format!("{}?eviction=accept", redis.url())).expect("it is accepted");
    assert!(accepted.durability().is_some_and(|said| said.contains("tasks are evicted")));
    for policy in ["volatile-lru", "noeviction"] {
        assert_eq!(redis.talk(&["CONFIG", "SET", "maxmemory-policy", policy]), "OK");
        let store = opened(&redis.url()).expect("nothing of ours is thrown away");
        assert!(store.durability().is_some_and(|said| !said.contains("throws")));
    }
}

// Names of tubes that were never created stayed listed, and counted towards the limit.
#[test]
fn a_tube_that_a_full_redis_refuses_leaves_no_name() {
    let Some(program) = program() else { return };
    let redis = RedisInstance::new(program);
    let store = open(&redis.url());
    assert_eq!(redis.talk(&["CONFIG", "SET", "maxmemory", "1"]), "OK");
    let tube = TubeName::new("mail").expect("a name");
    let options = TubeOptions::new(Kind::Fifo);
    let create = Command::CreateTube { tube, options, if_not_exists: false };
    let refusal = ask(&store, create.clone());
    assert!(matches!(refusal, Err(Error::Overloaded(_))), "{refusal:?}");
    assert_eq!(redis.talk(&["HLEN", "{taskyard}:tubes"]), "0");
    assert_eq!(redis.talk(&["CONFIG", "SET", "maxmemory", "0"]), "OK");
    assert_eq!(ask(&store, create), Ok(Reply::Created(true)));
}

// An enqueue that was refused because Redis is full also blocked releases in the same batch, so memory was never freed.
#[test]
fn a_full_redis_accepts_releases_beside_refused_enqueues() {
    let Some(program) = program() else { return };
    let redis = RedisInstance::new(program);
    let store = open(&redis.url());
    let key = SemaphoreKey::new("door").expect("a key");
    let change = Box::new(SemaphoreChange::limits(1, 0));
    let configure = SemaphoreCommand::Configure { key: key.clone(), change, only_new: false };
    let enqueue = |task: u64| {
        let entries = vec![EnqueueItem { task: TaskId(task), priority: 1.0 }];
        Command::Semaphore(SemaphoreCommand::Enqueue { key: key.clone(), entries })
    };
    ask(&store, Command::Semaphore(configure)).expect("it is made");
    ask(&store, enqueue(1)).expect("it stands");
    assert_eq!(redis.talk(&["CONFIG", "SET", "maxmemory", "1"]), "OK");
    let finish = GrantFinish::Release;
    let items = vec![GrantItem { task: TaskId(1), grant: None, finish }];
    let release = SemaphoreCommand::Finish { key: key.clone(), items };
    let commands = vec![enqueue(2), Command::Semaphore(release)];
    let replies = block_on(store.execute(NOW, commands)).replies;
    assert!(matches!(replies[0], Err(Error::Overloaded(_))), "{replies:?}");
    assert!(replies[1].is_ok(), "{replies:?}");
}

// A wrong password was taken for a Redis that is starting: `serve` waited for it for half a minute.
#[test]
fn a_password_is_needed_where_redis_has_one() {
    let Some(program) = program() else { return };
    let redis = RedisInstance::with_password(program, DURABLE);
    let opened = |url: &str| {
        let options = OpenOptions { wait: Duration::from_secs(3600), ..OpenOptions::default() };
        taskyard_store_redis::open(url, &options).map(drop).map_err(|error| error.to_string())
    };
    let of_user = |user: &str| redis.url().replace("//:", &format!("//{user}:"));
    assert_eq!(opened(&redis.url()), Ok(()));
    assert_eq!(opened(&of_user("default")), Ok(()));
    for url in [redis.url_with(""), redis.url_with(":wrong@"), of_user("unknown")] {
        let refusal = opened(&url).expect_err("it is refused");
        record("refusals", &refusal);
        assert!(refusal.contains("AUTH") || refusal.contains("WRONGPASS"), "{refusal}");
        assert!(!refusal.contains("wrong@") && !refusal.contains("pass%2F"), "{refusal}");
    }
}

#[test]
fn a_server_that_is_not_redis_is_refused() {
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("it has an address").port();
        thread::spawn(move || {
            use std::io::Write;
            for mut socket in listener.incoming().flatten() {
                let _ = socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
            }
        });
        let refusal = RedisStore::open(&own(&format!("redis://127.0.0.1:{port}")), Clock::Database);
        assert!(refusal.is_err());
    });
}

// The runtime of a store that could not be opened was dropped where waiting is forbidden: a program on a runtime of its own got a
// panic instead of the reason.
#[test]
fn a_failed_open_inside_a_runtime_returns_the_reason() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let url = format!("redis://127.0.0.1:{}", free_port());
    let opened =
        runtime.expect("a runtime").block_on(async { RedisStore::open(&url, Clock::Caller) });
    assert!(matches!(opened.err(), Some(OpenError::Unavailable { .. })));
}

// A Redis that answered but refused writes was shown as healthy, because the check only read.
#[test]
fn a_redis_that_refuses_writes_is_unhealthy() {
    let Some(program) = program() else { return };
    let redis = RedisInstance::new(program);
    let store = open(&redis.url());
    health_becomes(&store, true);
    let refusals = [
        (["CONFIG", "SET", "maxmemory", "1"], ["CONFIG", "SET", "maxmemory", "0"], "maxmemory"),
        (
            ["CONFIG", "SET", "min-replicas-to-write", "1"],
            ["CONFIG", "SET", "min-replicas-to-write", "0"],
            "NOREPLICAS",
        ),
    ];
    for (refuse, accept, reason) in refusals {
        assert_eq!(redis.talk(&refuse), "OK");
        let why = health_becomes(&store, false);
        assert!(why.contains(reason), "{why}");
        assert_eq!(redis.talk(&accept), "OK");
        health_becomes(&store, true);
    }
    assert_eq!(redis.talk(&["REPLICAOF", "127.0.0.1", "1"]), "OK");
    health_becomes(&store, false);
    assert_eq!(redis.talk(&["REPLICAOF", "NO", "ONE"]), "OK");
    health_becomes(&store, true);
}

#[test]
fn too_few_replicas_are_unhealthy() {
    let Some(program) = program() else { return };
    let redis = RedisInstance::new(program);
    let store = open(&format!("{}?wait=1", redis.url()));
    let why = health_becomes(&store, false);
    assert!(why.contains("0 of 1 replicas"), "{why}");
}

// The health check, and with it `/healthz`, waited as long as the connection did.
#[test]
fn a_redis_that_does_not_answer_in_time_is_unhealthy() {
    let Some(program) = program() else { return };
    let redis = RedisInstance::new(program);
    let store = open(&redis.url());
    health_becomes(&store, true);
    redis.signal("STOP");
    let why = health_becomes(&store, false);
    redis.signal("CONT");
    assert!(why.contains("within 5 s"), "{why}");
    health_becomes(&store, true);
}
