//! Tests of several servers on one Tarantool.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use taskyard_core::failure::SERVER_LOST;
use taskyard_core::{Command, Kind, Outcome, Reply, TubeOptions};
use taskyard_store::Store;
use taskyard_tarantool::LuaValue;

use taskyard_testkit::calls::{ack, ask, make_tube, put, take};
use taskyard_testkit::tarantool::{CALL, instance, open, own, run};
use taskyard_testkit::tarantool::{TarantoolInstance, program};

use taskyard_testkit::suite::servers::{join, take_as};

taskyard_testkit::server_suite!(taskyard_testkit::tarantool::SharedTarantool);

/// Heartbeats use real time, so the dead server's heartbeat is set back by hand.
#[test]
fn tasks_of_a_dead_server_are_given_back() {
    run(async {
        let url = own(&instance().url());
        let prefix = url.rsplit_once('=').expect("it has a prefix").1.to_owned();
        let (store, dead) = (open(&url), open(&url));
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        ask(&store, put(&tube, 1)).expect("it is put");
        join(&dead, true);
        let task = take_as(&dead, &tube);
        // Like a killed server: it sends no heartbeats.
        drop(dead);
        let (sender, heard) = mpsc::channel();
        store.watch(Arc::new(move |what| drop(sender.send(what))));
        let servers = format!("return box.space.{prefix}_server:len()");
        assert_eq!(instance().talk(&servers), LuaValue::Int(2));
        // The other server reports a change when it has declared this one dead.
        while instance().talk(&servers) != LuaValue::Int(1) {
            let _ = heard.recv_timeout(Duration::from_millis(100));
        }
        ask(&store, Command::Tick { limit: 10, seed: 0 }).expect("it ticks");
        assert_eq!(ack(&store, &tube, &task), Outcome::Stale, "the lease is worth nothing now");
        let again = take(&store, &tube, 1);
        assert_eq!(again.iter().map(|task| task.attempts).collect::<Vec<_>>(), [1]);
        let peek = Command::Peek { tube: tube.clone(), ids: vec![task.id] };
        let Ok(Reply::Tasks(tasks)) = ask(&store, peek) else { panic!("a peek shows tasks") };
        let failures = tasks[0].failures.iter().flat_map(|failures| failures.iter());
        let errors: Vec<_> = failures.map(|failure| failure.error.to_string()).collect();
        assert_eq!(errors, [SERVER_LOST]);
    });
}

/// How many tasks a living server still holds after another server starts, when these are so many seconds back: its last contact by
/// either clock, and the last time that Tarantool ran.
fn held_after_a_start(contact: u32, clock: u32, ran: u32) -> Option<u64> {
    let tarantool = TarantoolInstance::new(program()?);
    let store = open(&tarantool.url());
    let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
    ask(&store, put(&tube, 1)).expect("it is put");
    take(&store, &tube, 1);
    // In one script, so that no heartbeat arrives in between.
    tarantool.talk(&format!(
        "{CALL}
        local news = taskyard_news_1
        news.since.taskyard, news.awake = 0, 0
        news.last[server] = news.last[server] - {contact}000000
        news.heard[server] = news.heard[server] - {clock}000000
        local row = box.space.taskyard_server:get(server)
        box.space.taskyard_server:update(server, {{{{'=', 2, row[2] - {clock}000000}}}})
        news.pulse = news.pulse - {ran}000000
        call('begin', ('x'):rep(16), nil, 4000000)"
    ));
    let held = tarantool.talk("return box.space.taskyard_taken:len()");
    let LuaValue::Int(held) = held else { panic!("{held:?}") };
    u64::try_from(held).ok()
}

// Tarantool stood still, or its clock was set, and a server that started then had contact before the living ones: it declared them dead and
// gave back all taken tasks.
#[test]
fn a_start_takes_no_tasks_from_living_servers() {
    let Some(held) = held_after_a_start(10, 10, 0) else { return };
    assert_eq!(held, 0, "no server was alive");
    assert_eq!(held_after_a_start(10, 10, 9), Some(1), "Tarantool itself stood still");
    assert_eq!(held_after_a_start(0, 3600, 0), Some(1), "its clock was set");
}

// The network was interrupted for two or three seconds: the first server that came back declared another dead whose last heartbeat
// was only a little older than its own.
#[test]
fn a_server_is_dead_only_after_two_heartbeats_of_another() {
    let Some(program) = program() else { return };
    let tarantool = TarantoolInstance::new(program);
    drop(open(&tarantool.url()));
    // Heartbeats of a second: server b sent one 3.5 and 0.5 seconds ago, and a 3 seconds ago.
    let lost = tarantool.talk(&format!(
        "{CALL}
        local a, b, news = ('a'):rep(16), ('b'):rep(16), taskyard_news_1
        for _, one in pairs({{ a, b }}) do call('begin', one, nil, 1000000) end
        local now = tonumber(require('clock').monotonic64() / 1000)
        news.since.taskyard, news.awake, news.pulse = 0, 0, now
        news.last[server] = now + 60000000
        news.last[a], news.last[b] = now - 3000000, now - 500000
        news.beats[b] = {{ now - 500000, now - 3500000 }}
        return {{ call('heartbeat', b, nil, 1000000)[2], call('heartbeat', b, nil, 1000000)[2] }}"
    ));
    assert_eq!(lost, LuaValue::List(vec![LuaValue::Int(0), LuaValue::Int(1)]));
}
