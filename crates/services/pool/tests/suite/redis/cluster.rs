//! The pool over three masters with a replica each.

use std::time::Duration;

use super::yard::Yard;

const SHORT: &str = "leases: {task_seconds: 6, backend_seconds: 3, leader_seconds: 1}\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_on_a_cluster_has_one_tag_and_outlives_its_master() {
    let Some(yard) = Yard::of_cluster(2, SHORT) else { return };
    let cluster = yard.cluster().unwrap();
    let (_one, _two) = (yard.scheduler("one"), yard.scheduler("two"));
    let (_backends, gateway) = (yard.backends().await, yard.gateway().await);
    let answer = gateway.run("echo made > result.txt").await;
    assert_eq!(answer["ok"]["result"], "bWFkZQo=", "{answer}");
    for node in cluster.nodes.iter().filter(|node| node.port() != yard.redis().port()) {
        let keys = node.talk(&["KEYS", "*"]);
        assert!(keys.lines().all(|key| key.starts_with("{pool}")), "{keys}");
    }
    // Its replica takes over in good order, then the new master is killed.
    let before = yard.redis().port();
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
    // What comes while the cluster settles is refused with a word, and nothing else.
    while answer["error"]["error"].as_str().is_some_and(|why| why.contains("database")) {
        answer = gateway.run("echo made > result.txt").await;
    }
    assert_eq!(answer["ok"]["result"], "bWFkZQo=", "{answer}");
    yard.until_empty().await;
}

/// Storms without programs, as processes, on a cluster: nobody is forgotten when schedulers and backends die.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_die_on_a_cluster_too() {
    let Some(yard) = Yard::of_cluster(4, SHORT) else { return };
    let scheduler = yard.process("scheduler one");
    let _other = yard.process("scheduler two");
    let backend = yard.process("stub 5");
    let gateway = yard.gateway().await;
    let backends = yard.stubs(Duration::from_millis(5)).await;
    yard.until(|status| status["backends"] == 8 && status["paused"] == false).await;
    let mut clients = Vec::new();
    for _ in 0..100 {
        clients.push(gateway.start("{}", "").await);
    }
    scheduler.kill();
    backend.kill();
    for client in &mut clients {
        let heard = client.rest().await;
        let ends = heard.iter().filter(|one| one.verb == "complete").count();
        assert_eq!(ends, 1, "{heard:?}");
    }
    yard.until_empty().await;
    backends.stop().await;
    yard.until(|status| status["backends"] == 0).await;
}
