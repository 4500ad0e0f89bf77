//! Tests on a cluster of three masters with a replica each.

use std::sync::OnceLock;
use std::thread;

use taskyard_conformance::semaphores::SemaphoreCommands;
use taskyard_conformance::{StoreHarness, block_on, model};
use taskyard_core::{
    Command, EnqueueItem, Error, Execute, Kind, Reply, SemaphoreChange, SemaphoreCommand,
    SemaphoreKey, SemaphoreReply, Span, Take, TaskId, TubeName, TubeOptions,
};
use taskyard_store::Store;
use taskyard_store_redis::{Clock, RedisStore};

use taskyard_testkit::calls::{NOW, ask, health_becomes, put, take};
use taskyard_testkit::redis::{RedisCluster, program};
use taskyard_testkit::redis::{open, own, run};

pub fn cluster() -> &'static RedisCluster {
    static CLUSTER: OnceLock<RedisCluster> = OnceLock::new();
    CLUSTER.get_or_init(|| {
        RedisCluster::new(&program().expect("the caller has checked that it is installed"))
    })
}

/// The core's machine and a cluster give the same answers to random commands.
#[test]
fn model() {
    run(async {
        let url = own(&cluster().url());
        let queue = StoreHarness::new(move || Box::new(open(&url)));
        model::replay(queue, 7, 600).await;
    });
}

/// Each semaphore is on one node, and events of all are delivered together.
#[test]
fn semaphores_are_on_the_nodes_of_their_keys() {
    run(async {
        let url = own(&cluster().url());
        let queue = StoreHarness::new(move || Box::new(open(&url)));
        let door = SemaphoreKey::new("door").expect("a key");
        queue.configure("door", SemaphoreChange::limits(1, 1)).await;
        queue.configure("gate", SemaphoreChange::limits(1, 0)).await;
        for (task, priority) in [(1, 1.0), (2, 2.0)] {
            for key in ["door", "gate"] {
                let entries = vec![EnqueueItem { task: TaskId(task), priority }];
                let key = SemaphoreKey::new(key).expect("a key");
                let enqueue = SemaphoreCommand::Enqueue { key, entries };
                queue
                    .execute(vec![Command::Semaphore(enqueue)])
                    .await
                    .remove(0)
                    .expect("they stand");
            }
        }
        // The event of the first grant was not delivered yet, so the better task has it.
        let mut told: Vec<_> = queue
            .fetch(None)
            .await
            .into_iter()
            .map(|event| (event.semaphore.as_str().to_owned(), event.task.0, event.grant.0))
            .collect();
        told.sort_unstable();
        assert_eq!(told, [("door".into(), 2, 2), ("gate".into(), 1, 1)]);
        let look = SemaphoreCommand::List { key: Some(door) };
        let shown = queue.execute(vec![Command::Semaphore(look)]).await.remove(0);
        assert!(
            matches!(&shown, Ok(Reply::Semaphore(SemaphoreReply::Semaphores(all))) if all[0].waiting == 1),
            "{shown:?}"
        );
    });
}

/// A tube and its semaphore may be on two nodes, and a function runs on one.
#[test]
fn tubes_with_a_semaphore_are_refused() {
    run(async {
        let store = open(&own(&cluster().url()));
        let semaphore = SemaphoreKey::new("door").ok();
        let options = TubeOptions { semaphore, ..TubeOptions::new(Kind::FifoTtl) };
        let tube = TubeName::new("jobs").expect("a name");
        let refusal = ask(&store, Command::CreateTube { tube, options, if_not_exists: false });
        assert!(
            matches!(&refusal, Err(Error::Invalid(text)) if text.contains("cluster of Redis")),
            "{refusal:?}"
        );
    });
}

fn tubes(count: usize) -> Vec<TubeName> {
    (0..count).map(|n| TubeName::new(&format!("tube {n}")).expect("a name")).collect()
}

fn make(store: &RedisStore, tube: &TubeName) {
    let options = TubeOptions::new(Kind::Fifo);
    let create = Command::CreateTube { tube: tube.clone(), options, if_not_exists: false };
    assert_eq!(ask(store, create), Ok(Reply::Created(true)));
}

/// Repeats a command until the cluster works again.
fn ask_until_there(store: &RedisStore, command: &Command) -> Reply {
    loop {
        match ask(store, command.clone()) {
            Ok(reply) => return reply,
            Err(Error::StoreUnavailable(_)) => thread::yield_now(),
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn tubes_are_spread_over_the_nodes() {
    run(async {
        let url = own(&cluster().url());
        let prefix = url.rsplit_once('=').expect("it has a prefix").1.to_owned();
        let store = open(&url);
        let tubes = tubes(12);
        let mut ports = std::collections::BTreeSet::new();
        for tube in &tubes {
            make(&store, tube);
            ask(&store, put(tube, 2)).expect("they are put");
            ports.insert(cluster().master_of(&format!("{{{prefix}:{tube}}}:o")).port());
        }
        assert_eq!(ports.len(), 3, "each master has some");
        let Ok(Reply::Tubes(shown)) = ask(&store, Command::Tubes { tube: None }) else {
            panic!("tubes are shown")
        };
        assert_eq!(shown.len(), 12);
        assert!(shown.iter().all(|tube| tube.stats.tasks.ready == 2));
    });
}

/// A server learns from a refusal that slots have moved, and every command is done once.
#[test]
fn commands_follow_a_slot_to_another_node() {
    let Some(program) = program() else { return };
    let cluster = RedisCluster::new(&program);
    let store = open(&format!("{}?prefix=moves", cluster.url()));
    let tube = TubeName::new("mail").expect("a name");
    make(&store, &tube);
    ask(&store, put(&tube, 3)).expect("they are put");
    let key = "{moves:mail}:o";
    let before = cluster.master_of(key).port();
    // A planned failover to its replica.
    let replica = cluster.replica_of(key);
    assert_eq!(replica.talk(&["CLUSTER", "FAILOVER"]), "OK");
    while cluster.master_of(key).port() == before {}
    ask_until_there(&store, &put(&tube, 1));
    assert_eq!(take(&store, &tube, 9).len(), 4);
}

#[test]
fn a_master_that_is_killed_is_replaced_by_its_replica() {
    let Some(program) = program() else { return };
    let cluster = RedisCluster::new(&program);
    let store = open(&format!("{}?prefix=dies&wait=1&wait_ms=5000", cluster.url()));
    let tube = TubeName::new("mail").expect("a name");
    make(&store, &tube);
    ask(&store, put(&tube, 3)).expect("the replica has them");
    let key = "{dies:mail}:o";
    let master = cluster.master_of(key);
    let port = master.port();
    master.kill();
    let refused = ask(&store, put(&tube, 1));
    assert!(matches!(refused, Err(Error::StoreUnavailable(_))), "{refused:?}");
    while cluster.living_master_of(key).is_none_or(|port_now| port_now == port) {}
    master.start();
    cluster.wait_until_whole();
    ask_until_there(&store, &put(&tube, 1));
    assert_eq!(take(&store, &tube, 9).len(), 4);
}

// A call to a node was in flight when it died. Until it was back every server with such a call refused all commands, also for the other
// nodes.
#[test]
fn an_unreachable_node_does_not_block_the_others() {
    let Some(program) = program() else { return };
    let cluster = RedisCluster::new(&program);
    for node in &cluster.nodes {
        assert_eq!(node.talk(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]), "OK");
    }
    let store = open(&format!("{}?prefix=part", cluster.url()));
    let port_of = |tube: &TubeName| cluster.master_of(&format!("{{part:{tube}}}:o")).port();
    let registry = cluster.master_of("{part}:v").port();
    let tubes = tubes(40);
    // Neither is the registry node, which all need.
    let dies = tubes.iter().find(|tube| port_of(tube) != registry).expect("a tube on another node");
    let lives = tubes.iter().find(|tube| ![registry, port_of(dies)].contains(&port_of(tube)));
    let lives = lives.expect("one on the third");
    for tube in [dies, lives] {
        make(&store, tube);
        ask(&store, put(tube, 2)).expect("they are put");
        let lease = Some(Span::from_secs(5));
        let take = Take {
            tube: tube.clone(),
            count: 1,
            session: None,
            lease,
            worker: None,
            wait: Span::ZERO,
        };
        ask(&store, Command::Take(take)).expect("one is taken");
    }
    let key = format!("{{part:{dies}}}:o");
    cluster.replica_of(&key).kill();
    let master = cluster.master_of(&key);
    assert_eq!(master.talk(&["CLIENT", "PAUSE", "600000", "WRITE"]), "OK");
    thread::scope(|scope| {
        let asks = scope.spawn(|| ask(&store, put(dies, 1)));
        while !master.talk(&["INFO", "clients"]).contains("blocked_clients:1") {}
        master.kill();
        let lost = asks.join().expect("it is answered");
        assert!(matches!(lost, Err(Error::OutcomeUnknown(_))), "{lost:?}");
    });
    ask(&store, put(lives, 1)).expect("its node is there");
    // Ticks work there too.
    let later = NOW + Span::from_secs(10);
    let ticked = block_on(store.execute(later, vec![Command::Tick { limit: 9, seed: 0 }])).replies;
    assert_eq!(ticked, [Ok(Reply::Ticked(1))]);
    assert_eq!(take(&store, lives, 9).len(), 3);
    let refused = ask(&store, put(dies, 1));
    assert!(matches!(refused, Err(Error::StoreUnavailable(_))), "{refused:?}");
    master.start();
    ask_until_there(&store, &put(dies, 1));
    assert!((2..=3).contains(&take(&store, dies, 9).len()), "one is taken, one may have been lost");
}

#[test]
fn a_cluster_and_a_single_redis_are_distinguished() {
    run(async {
        let node = cluster().nodes[0].url();
        let refusal = RedisStore::open(&node, Clock::Database).err().map(|error| error.to_string());
        assert!(refusal.is_some_and(|why| why.contains("redis+cluster://")));
        let single =
            taskyard_testkit::redis::instance().url().replace("redis://", "redis+cluster://");
        let refusal =
            RedisStore::open(&single, Clock::Database).err().map(|error| error.to_string());
        assert!(refusal.is_some_and(|why| why.contains("no cluster")));
    });
}

#[test]
fn one_master_that_refuses_writes_makes_the_cluster_unhealthy() {
    let Some(program) = program() else { return };
    let cluster = RedisCluster::new(&program);
    let store = open(&own(&cluster.url()));
    health_becomes(&store, true);
    // Their slots are on three masters.
    for key in ["a", "b", "c"] {
        let master = cluster.master_of(key);
        assert_eq!(master.talk(&["CONFIG", "SET", "maxmemory", "1"]), "OK");
        health_becomes(&store, false);
        assert_eq!(master.talk(&["CONFIG", "SET", "maxmemory", "0"]), "OK");
        health_becomes(&store, true);
    }
}
