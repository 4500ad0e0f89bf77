//! The pool over three masters with a replica each.

use std::time::Duration;

use super::fixture::RedisFixture;

const SHORT: &str = "leases: {task_seconds: 6, backend_seconds: 3, leader_seconds: 1}\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_on_a_cluster_uses_one_hash_tag_and_survives_its_master() {
    let Some(fixture) = RedisFixture::of_cluster(2, SHORT) else { return };
    let cluster = fixture.cluster().unwrap();
    let (_one, _two) = (fixture.scheduler("one"), fixture.scheduler("two"));
    let (_backends, gateway) = (fixture.backends().await, fixture.gateway().await);
    let answer = gateway.run("echo made > result.txt").await;
    assert_eq!(answer["ok"]["result"], "bWFkZQo=", "{answer}");
    for node in cluster.nodes.iter().filter(|node| node.port() != fixture.redis().port()) {
        let keys = node.talk(&["KEYS", "*"]);
        assert!(keys.lines().all(|key| key.starts_with("{pool}")), "{keys}");
    }
    // Its replica takes over in order, then the new master is killed.
    let before = fixture.redis().port();
    assert_eq!(cluster.replica_of("{pool}").talk(&["CLUSTER", "FAILOVER"]), "OK");
    while cluster.master_of("{pool}").port() == before {}
    let answer = gateway.run("echo made > result.txt").await;
    assert_eq!(answer["ok"]["result"], "bWFkZQo=", "{answer}");
    cluster.wait_until_whole();
    let master = cluster.master_of("{pool}");
    let port = master.port();
    master.kill();
    while cluster.living_master_of("{pool}").is_none_or(|now| now == port) {}
    master.start();
    cluster.wait_until_whole();
    let mut answer = gateway.run("echo made > result.txt").await;
    // Tasks that arrive while the cluster recovers are refused with a message.
    while answer["error"]["error"].as_str().is_some_and(|why| why.contains("database")) {
        answer = gateway.run("echo made > result.txt").await;
    }
    assert_eq!(answer["ok"]["result"], "bWFkZQo=", "{answer}");
    fixture.until_empty().await;
}

/// Load without programs on a cluster, with parts as processes: no task is lost when schedulers and backends die.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_survive_kills_on_a_cluster() {
    let Some(fixture) = RedisFixture::of_cluster(4, SHORT) else { return };
    let scheduler = fixture.process("scheduler one");
    let _other = fixture.process("scheduler two");
    let backend = fixture.process("stub 5");
    let gateway = fixture.gateway().await;
    let backends = fixture.stubs(Duration::from_millis(5)).await;
    fixture.until(|status| status["backends"] == 8 && status["paused"] == false).await;
    let mut clients = Vec::new();
    for _ in 0..100 {
        clients.push(gateway.start("{}", "").await);
    }
    scheduler.kill();
    backend.kill();
    for client in &mut clients {
        let received = client.rest().await;
        let ends = received.iter().filter(|one| one.verb == "complete").count();
        assert_eq!(ends, 1, "{received:?}");
    }
    fixture.until_empty().await;
    backends.stop().await;
    fixture.until(|status| status["backends"] == 0).await;
}
