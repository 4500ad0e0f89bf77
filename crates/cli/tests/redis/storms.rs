//! Redis and servers are killed, frozen and disconnected under load.

use std::thread;
use std::time::Duration;

use tokio::time::timeout;

use crate::judge::{judge, wait_for_returns};
use crate::load::{Fate, Load};
use crate::proxy::Proxy;
use crate::yard::{LANES, PLAIN, ROOM, make_tubes, run, serve, start, welcome};
use taskyard_testkit::redis::{Cluster, Instance, program};

/// How many answers arrive before and after each fault.
const ANSWERS: usize = 150;

fn redis() -> Instance {
    Instance::new(program().expect("whoever asks has looked for it"))
}

/// Checks that the indexes of every tube agree with its tasks.
fn audit(redis: &Instance) {
    for name in [PLAIN, LANES, ROOM] {
        redis.audit("taskyard", name);
    }
}

#[test]
fn killed_servers_lose_no_task() {
    run(async {
        let redis = redis();
        let stays = serve(&redis.url());
        make_tubes(&stays).await;
        let load = Load::new();
        load.begin(&stays, Fate::Lives).await;
        for _ in 0..2 {
            let goes = serve(&redis.url());
            load.begin(&goes, Fate::Goes).await;
            load.answers(ANSWERS).await;
            goes.serving.signal("KILL");
            load.answers(ANSWERS).await;
        }
        load.end().await;
        wait_for_returns(&stays, &load).await;
        judge(&stays, &load).await;
        audit(&redis);
    });
}

#[test]
fn servers_survive_a_restart_of_redis() {
    run(async {
        let redis = redis();
        let servers = [serve(&redis.url()), serve(&redis.url())];
        make_tubes(&servers[0]).await;
        let load = Load::new();
        for server in &servers {
            load.begin(server, Fate::Lives).await;
        }
        for _ in 0..3 {
            load.answers(ANSWERS).await;
            redis.kill();
            redis.start();
        }
        load.answers(ANSWERS).await;
        // A server that is started meanwhile waits, and does not declare the others dead.
        redis.kill();
        let newcomer = thread::scope(|scope| {
            let starting = scope.spawn(|| start(&redis.url()));
            redis.start();
            starting.join().expect("it starts")
        });
        let newcomer = welcome(newcomer);
        load.begin(&newcomer, Fate::Lives).await;
        load.answers(ANSWERS).await;
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
        make_tubes(&servers[0]).await;
        let load = Load::new();
        for server in &servers {
            load.begin(server, Fate::Lives).await;
        }
        for seconds in [1, 5] {
            load.answers(ANSWERS).await;
            redis.signal("STOP");
            // Only the passing of time shows whether a server is declared dead.
            let nobody = load.answers(usize::MAX / 2);
            assert!(timeout(Duration::from_secs(seconds), nobody).await.is_err());
            redis.signal("CONT");
        }
        load.answers(ANSWERS).await;
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
        make_tubes(&stays).await;
        let load = Load::new();
        load.begin(&stays, Fate::Lives).await;
        load.begin(&freezes, Fate::Goes).await;
        load.answers(ANSWERS).await;
        freezes.serving.signal("STOP");
        // Until the other server has declared it dead.
        while redis.talk(&["ZCARD", "{taskyard}:v"]) != "1" {}
        load.answers(ANSWERS).await;
        freezes.serving.signal("CONT");
        load.answers(ANSWERS).await;
        while redis.talk(&["ZCARD", "{taskyard}:v"]) != "2" {}
        load.end().await;
        drop(freezes);
        wait_for_returns(&stays, &load).await;
        judge(&stays, &load).await;
        audit(&redis);
    });
}

#[test]
fn cut_off_answers_leave_no_task_behind() {
    run(async {
        let redis = redis();
        let proxy = Proxy::new(&redis.url()).await;
        let (near, far) = (serve(&redis.url()), serve(&proxy.url));
        make_tubes(&near).await;
        let load = Load::new();
        load.begin(&near, Fate::Lives).await;
        load.begin(&far, Fate::Lives).await;
        load.answers(ANSWERS).await;
        proxy.cut(40).await;
        load.answers(ANSWERS).await;
        load.end().await;
        judge(&near, &load).await;
        audit(&redis);
    });
}

/// With `wait=1` everything acknowledged is on the replica that takes over.
#[test]
fn a_master_of_a_cluster_is_killed_under_load() {
    run(async {
        let cluster = Cluster::new(&program().expect("it is there"));
        let url = format!("{}?wait=1&wait_ms=5000", cluster.url());
        let servers = [serve(&url), serve(&url)];
        make_tubes(&servers[0]).await;
        let load = Load::new();
        for server in &servers {
            load.begin(server, Fate::Lives).await;
        }
        for key in ["{taskyard:plain}:o", "{taskyard}:v"] {
            load.answers(ANSWERS).await;
            let master = cluster.master_of(key);
            let port = master.port();
            master.kill();
            while cluster.living_master_of(key).is_none_or(|now| now == port) {}
            master.start();
            cluster.wait_until_whole();
        }
        load.answers(ANSWERS).await;
        load.end().await;
        judge(&servers[0], &load).await;
        for name in [PLAIN, LANES, ROOM] {
            cluster.master_of(&format!("{{taskyard:{name}}}:o")).audit("taskyard", name);
        }
    });
}
