//! Tests of the servers that the other tests use.

use taskyard_testkit::redis::{RedisCluster, RedisInstance, program};

#[test]
fn acknowledged_writes_survive_a_kill() {
    let Some(program) = program() else { return };
    let instance = RedisInstance::new(program);
    assert_eq!(instance.talk(&["SET", "key", "value"]), "OK");
    instance.kill();
    instance.start();
    instance.signal("STOP");
    instance.signal("CONT");
    assert_eq!(instance.talk(&["GET", "key"]), "value");
    assert_eq!(instance.url(), format!("redis://127.0.0.1:{}", instance.port()));
}

#[test]
fn a_cluster_has_a_master_for_every_key() {
    let Some(program) = program() else { return };
    let cluster = RedisCluster::new(&program);
    assert!(cluster.url().ends_with(&cluster.nodes[0].port().to_string()));
    for key in ["a", "b", "c", "d"] {
        assert_eq!(cluster.master_of(key).talk(&["SET", key, "value"]), "OK");
    }
}
