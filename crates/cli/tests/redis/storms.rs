//! Redis and servers are killed, frozen and disconnected under load.

use std::thread;
use std::time::Duration;

use tokio::time::timeout;

use crate::cut_servers::CutServers;
use crate::fixture::{LANES, PLAIN, ROOM, connect, create_tubes, run, serve, start};
use crate::judge::{judge, wait_for_returns};
use crate::key_storm::{self, add_each_key_once};
use crate::killed_servers::KilledServers;
use crate::load::{ServerFate, StormLoad};
use crate::proxy::TcpProxy;
use crate::schedule_storm::fire_each_time_once;
use taskyard_testkit::redis::{RedisCluster, RedisInstance, program};

/// How many replies arrive before and after each fault.
const REPLIES: usize = 150;

fn redis() -> RedisInstance {
    RedisInstance::new(program().expect("the tests checked that it is installed"))
}

/// Checks that the indexes of every tube agree with its tasks.
fn audit(redis: &RedisInstance) {
    for name in [PLAIN, LANES, ROOM] {
        redis.audit("taskyard", name);
    }
}

#[test]
fn killed_servers_lose_no_task() {
    run(async {
        let redis = redis();
        let stays = serve(&redis.url());
        create_tubes(&stays).await;
        let load = StormLoad::new();
        load.begin(&stays, ServerFate::Stays).await;
        for _ in 0..2 {
            let goes = serve(&redis.url());
            load.begin(&goes, ServerFate::Stops).await;
            load.wait_for_replies(REPLIES).await;
            goes.serving.signal("KILL");
            load.wait_for_replies(REPLIES).await;
        }
        load.end().await;
        wait_for_returns(&stays, &load).await;
        judge(&stays, &load).await;
        audit(&redis);
    });
}

#[test]
fn killed_servers_fire_each_time_once() {
    run(async {
        let redis = redis();
        fire_each_time_once(KilledServers::new(2, || start(&redis.url()))).await;
    });
}

#[test]
fn killed_servers_add_each_key_once() {
    run(async {
        let redis = redis();
        add_each_key_once(KilledServers::new(2, || start(&redis.url()))).await;
        redis.audit("taskyard", key_storm::TUBE);
    });
}

/// On a cluster a schedule and its tube are on different nodes, so a fire has two steps.
#[test]
fn killed_servers_of_a_cluster_fire_and_add_once() {
    run(async {
        let cluster = RedisCluster::new(&program().expect("it is installed"));
        fire_each_time_once(KilledServers::new(2, || start(&cluster.url()))).await;
        let url = format!("{}?prefix=keys", cluster.url());
        add_each_key_once(KilledServers::new(2, || start(&url))).await;
        let node = cluster.master_of(&format!("{{keys:{}}}:o", key_storm::TUBE));
        node.audit("keys", key_storm::TUBE);
    });
}

#[test]
fn servers_survive_a_restart_of_redis() {
    run(async {
        let redis = redis();
        let servers = [serve(&redis.url()), serve(&redis.url())];
        create_tubes(&servers[0]).await;
        let load = StormLoad::new();
        for server in &servers {
            load.begin(server, ServerFate::Stays).await;
        }
        for _ in 0..3 {
            load.wait_for_replies(REPLIES).await;
            redis.kill();
            redis.start();
        }
        load.wait_for_replies(REPLIES).await;
        // A server that is started meanwhile waits, and does not declare the others dead.
        redis.kill();
        let newcomer = thread::scope(|scope| {
            let starting = scope.spawn(|| start(&redis.url()));
            redis.start();
            starting.join().expect("it starts")
        });
        let newcomer = connect(newcomer);
        load.begin(&newcomer, ServerFate::Stays).await;
        load.wait_for_replies(REPLIES).await;
        load.end().await;
        judge(&servers[0], &load).await;
        audit(&redis);
    });
}

/// Freezes it for longer than heartbeats may be missing, so that servers must check whether they were declared dead.
#[test]
fn a_frozen_redis_continues() {
    run(async {
        let redis = redis();
        let servers = [serve(&redis.url()), serve(&redis.url())];
        create_tubes(&servers[0]).await;
        let load = StormLoad::new();
        for server in &servers {
            load.begin(server, ServerFate::Stays).await;
        }
        for seconds in [1, 5] {
            load.wait_for_replies(REPLIES).await;
            redis.signal("STOP");
            // Only the passing of time shows whether a server is declared dead.
            let unreachable_count = load.wait_for_replies(usize::MAX / 2);
            assert!(timeout(Duration::from_secs(seconds), unreachable_count).await.is_err());
            redis.signal("CONT");
        }
        load.wait_for_replies(REPLIES).await;
        load.end().await;
        judge(&servers[0], &load).await;
        audit(&redis);
    });
}

/// Other servers release the tasks of its sessions meanwhile, and it learns of that.
#[test]
fn a_frozen_server_is_declared_dead_and_continues() {
    run(async {
        let redis = redis();
        let (stays, freezes) = (serve(&redis.url()), serve(&redis.url()));
        create_tubes(&stays).await;
        let load = StormLoad::new();
        load.begin(&stays, ServerFate::Stays).await;
        load.begin(&freezes, ServerFate::Stops).await;
        load.wait_for_replies(REPLIES).await;
        freezes.serving.signal("STOP");
        // Until the other server has declared it dead.
        while redis.talk(&["ZCARD", "{taskyard}:v"]) != "1" {}
        load.wait_for_replies(REPLIES).await;
        freezes.serving.signal("CONT");
        load.wait_for_replies(REPLIES).await;
        while redis.talk(&["ZCARD", "{taskyard}:v"]) != "2" {}
        load.end().await;
        drop(freezes);
        wait_for_returns(&stays, &load).await;
        judge(&stays, &load).await;
        audit(&redis);
    });
}

#[test]
fn interrupted_replies_leave_no_task_behind() {
    run(async {
        let redis = redis();
        let proxy = TcpProxy::new(&redis.url()).await;
        let (near, far) = (serve(&redis.url()), serve(&proxy.url));
        create_tubes(&near).await;
        let load = StormLoad::new();
        load.begin(&near, ServerFate::Stays).await;
        load.begin(&far, ServerFate::Stays).await;
        load.wait_for_replies(REPLIES).await;
        proxy.cut(40).await;
        load.wait_for_replies(REPLIES).await;
        load.end().await;
        judge(&near, &load).await;
        audit(&redis);
    });
}

#[test]
fn interrupted_replies_add_each_key_once() {
    run(async {
        let redis = redis();
        let proxy = TcpProxy::new(&redis.url()).await;
        let servers = [start(&redis.url()), start(&proxy.url)];
        add_each_key_once(CutServers::new(servers, async |count| proxy.cut(count).await)).await;
        redis.audit("taskyard", key_storm::TUBE);
    });
}

/// With `wait=1` everything acknowledged is on the replica that takes over.
#[test]
fn a_master_of_a_cluster_is_killed_under_load() {
    run(async {
        let cluster = RedisCluster::new(&program().expect("it is installed"));
        let url = format!("{}?wait=1&wait_ms=5000", cluster.url());
        let servers = [serve(&url), serve(&url)];
        create_tubes(&servers[0]).await;
        let load = StormLoad::new();
        for server in &servers {
            load.begin(server, ServerFate::Stays).await;
        }
        for key in ["{taskyard:plain}:o", "{taskyard}:v"] {
            load.wait_for_replies(REPLIES).await;
            let master = cluster.master_of(key);
            let port = master.port();
            master.kill();
            while cluster.living_master_of(key).is_none_or(|now| now == port) {}
            master.start();
            cluster.wait_until_whole();
        }
        load.wait_for_replies(REPLIES).await;
        load.end().await;
        judge(&servers[0], &load).await;
        for name in [PLAIN, LANES, ROOM] {
            cluster.master_of(&format!("{{taskyard:{name}}}:o")).audit("taskyard", name);
        }
    });
}
