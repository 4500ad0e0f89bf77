//! Tests of several servers on one Tarantool.

use taskyard_core::{Kind, TubeOptions};
use taskyard_tarantool::LuaValue;

use taskyard_testkit::calls::{ask, make_tube, put, take};
use taskyard_testkit::tarantool::{CALL, TarantoolInstance, open, program};

taskyard_testkit::server_suite!(taskyard_testkit::tarantool::SharedTarantool);

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
