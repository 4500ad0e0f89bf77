//! Tarantool and servers are killed, frozen and disconnected under load.

use std::thread;
use std::time::Duration;

use taskyard_tarantool::LuaValue;
use tokio::time::timeout;

use crate::cut_servers::CutServers;
use crate::fixture::{connect, create_tubes, run, serve, start};
use crate::judge::{judge, wait_for_returns};
use crate::key_storm::add_each_key_once;
use crate::killed_servers::KilledServers;
use crate::load::{ServerFate, StormLoad};
use crate::proxy::TcpProxy;
use crate::schedule_storm::fire_each_time_once;
use taskyard_testkit::tarantool::{TarantoolInstance, program};

/// How many replies arrive before and after each fault.
const REPLIES: usize = 150;

fn tarantool() -> TarantoolInstance {
    TarantoolInstance::new(program().expect("the tests checked that it is installed"))
}

/// Checks that the stored data is consistent.
fn audit(tarantool: &TarantoolInstance) {
    tarantool.audit("taskyard");
}

/// Waits until this many servers are alive.
fn wait_for_servers(tarantool: &TarantoolInstance, count: i128) {
    while tarantool.talk("return box.space.taskyard_server:len()") != LuaValue::Int(count) {}
}

#[test]
fn killed_servers_lose_no_task() {
    run(async {
        let tarantool = tarantool();
        let stays = serve(&tarantool.url());
        create_tubes(&stays).await;
        let load = StormLoad::new();
        load.begin(&stays, ServerFate::Stays).await;
        for _ in 0..2 {
            let goes = serve(&tarantool.url());
            load.begin(&goes, ServerFate::Stops).await;
            load.wait_for_replies(REPLIES).await;
            goes.serving.signal("KILL");
            load.wait_for_replies(REPLIES).await;
        }
        load.end().await;
        wait_for_returns(&stays, &load).await;
        judge(&stays, &load).await;
        audit(&tarantool);
    });
}

#[test]
fn killed_servers_fire_each_time_once() {
    run(async {
        let tarantool = tarantool();
        fire_each_time_once(KilledServers::new(2, || start(&tarantool.url()))).await;
        audit(&tarantool);
    });
}

#[test]
fn killed_servers_add_each_key_once() {
    run(async {
        let tarantool = tarantool();
        add_each_key_once(KilledServers::new(2, || start(&tarantool.url()))).await;
        audit(&tarantool);
    });
}

#[test]
fn servers_survive_a_restart_of_tarantool() {
    run(async {
        let tarantool = tarantool();
        let servers = [serve(&tarantool.url()), serve(&tarantool.url())];
        create_tubes(&servers[0]).await;
        let load = StormLoad::new();
        for server in &servers {
            load.begin(server, ServerFate::Stays).await;
        }
        for _ in 0..3 {
            load.wait_for_replies(REPLIES).await;
            tarantool.kill();
            tarantool.start();
        }
        load.wait_for_replies(REPLIES).await;
        // A server that is started meanwhile waits, and does not declare the others dead.
        tarantool.kill();
        let newcomer = thread::scope(|scope| {
            let starting = scope.spawn(|| start(&tarantool.url()));
            tarantool.start();
            starting.join().expect("it starts")
        });
        let newcomer = connect(newcomer);
        load.begin(&newcomer, ServerFate::Stays).await;
        load.wait_for_replies(REPLIES).await;
        load.end().await;
        judge(&servers[0], &load).await;
        audit(&tarantool);
    });
}

/// Freezes it for longer than heartbeats may be missing, so that servers must check whether they were declared dead.
#[test]
fn a_frozen_tarantool_continues() {
    run(async {
        let tarantool = tarantool();
        let servers = [serve(&tarantool.url()), serve(&tarantool.url())];
        create_tubes(&servers[0]).await;
        let load = StormLoad::new();
        for server in &servers {
            load.begin(server, ServerFate::Stays).await;
        }
        for seconds in [1, 5] {
            load.wait_for_replies(REPLIES).await;
            tarantool.signal("STOP");
            // Only the passing of time shows whether a server is declared dead.
            let unreachable_count = load.wait_for_replies(usize::MAX / 2);
            assert!(timeout(Duration::from_secs(seconds), unreachable_count).await.is_err());
            tarantool.signal("CONT");
        }
        load.wait_for_replies(REPLIES).await;
        load.end().await;
        judge(&servers[0], &load).await;
        audit(&tarantool);
    });
}

/// Other servers release the tasks of its sessions meanwhile, and it learns of that.
#[test]
fn a_frozen_server_is_declared_dead_and_continues() {
    run(async {
        let tarantool = tarantool();
        let (stays, freezes) = (serve(&tarantool.url()), serve(&tarantool.url()));
        create_tubes(&stays).await;
        let load = StormLoad::new();
        load.begin(&stays, ServerFate::Stays).await;
        load.begin(&freezes, ServerFate::Stops).await;
        load.wait_for_replies(REPLIES).await;
        freezes.serving.signal("STOP");
        // Until the other server has declared it dead.
        wait_for_servers(&tarantool, 1);
        load.wait_for_replies(REPLIES).await;
        freezes.serving.signal("CONT");
        load.wait_for_replies(REPLIES).await;
        wait_for_servers(&tarantool, 2);
        load.end().await;
        drop(freezes);
        wait_for_returns(&stays, &load).await;
        judge(&stays, &load).await;
        audit(&tarantool);
    });
}

#[test]
fn interrupted_replies_leave_no_task_behind() {
    run(async {
        let tarantool = tarantool();
        let proxy = TcpProxy::new(&tarantool.url()).await;
        let (near, far) = (serve(&tarantool.url()), serve(&proxy.url));
        create_tubes(&near).await;
        let load = StormLoad::new();
        load.begin(&near, ServerFate::Stays).await;
        load.begin(&far, ServerFate::Stays).await;
        load.wait_for_replies(REPLIES).await;
        proxy.cut(40).await;
        load.wait_for_replies(REPLIES).await;
        load.end().await;
        judge(&near, &load).await;
        audit(&tarantool);
    });
}

#[test]
fn interrupted_replies_add_each_key_once() {
    run(async {
        let tarantool = tarantool();
        let proxy = TcpProxy::new(&tarantool.url()).await;
        let servers = [start(&tarantool.url()), start(&proxy.url)];
        add_each_key_once(CutServers::new(servers, async |count| proxy.cut(count).await)).await;
        audit(&tarantool);
    });
}

/// A URL with both instances, in this order.
fn url_of(pair: &[TarantoolInstance; 2]) -> String {
    format!("{},127.0.0.1:{}", pair[0].url(), pair[1].port())
}

/// Waits until `to` has everything that `from` has written.
fn wait_until_caught_up(from: &TarantoolInstance, to: &TarantoolInstance) {
    let clock = |instance: &TarantoolInstance| {
        instance.talk("return require('json').encode(box.info.vclock)")
    };
    while clock(from) != clock(to) {}
}

/// The master is made read-only and the replica promoted, and then the reverse.
#[test]
fn a_replica_takes_over_under_load() {
    run(async {
        let pair = TarantoolInstance::pair(&program().expect("it is installed"));
        let servers = [serve(&url_of(&pair)), serve(&url_of(&pair))];
        create_tubes(&servers[0]).await;
        let load = StormLoad::new();
        for server in &servers {
            load.begin(server, ServerFate::Stays).await;
        }
        for turn in 0..3 {
            load.wait_for_replies(REPLIES).await;
            let (from, to) = (&pair[turn % 2], &pair[(turn + 1) % 2]);
            from.talk("box.cfg{read_only = true}");
            wait_until_caught_up(from, to);
            to.talk("box.cfg{read_only = false}");
        }
        load.wait_for_replies(REPLIES).await;
        load.end().await;
        judge(&servers[0], &load).await;
        audit(&pair[1]);
    });
}

/// With `replicas=1` everything acknowledged is on the replica when the master is killed.
#[test]
fn a_master_is_killed_and_its_replica_promoted_under_load() {
    run(async {
        let pair = TarantoolInstance::pair(&program().expect("it is installed"));
        let url = format!("{}?replicas=1", url_of(&pair));
        let servers = [serve(&url), serve(&url)];
        create_tubes(&servers[0]).await;
        let load = StormLoad::new();
        for server in &servers {
            load.begin(server, ServerFate::Stays).await;
        }
        load.wait_for_replies(REPLIES).await;
        pair[0].kill();
        pair[1].talk("box.cfg{read_only = false}");
        // Alone it can acknowledge nothing. The old master may have writes that no replica has: it must not return with them.
        pair[0].forget();
        pair[0].start_as_replica();
        load.wait_for_replies(REPLIES).await;
        load.end().await;
        judge(&servers[0], &load).await;
        audit(&pair[1]);
    });
}
