//! Tests with a Tarantool that is down, full, read-only or misconfigured.

use std::io::Write;
use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use taskyard_core::{
    Command, Error, Finish, FinishItem, Holder, Kind, Outcome, Reply, TubeName, TubeOptions,
};
use taskyard_store::{OpenError, Store};
use taskyard_store_tarantool::{Clock, TarantoolStore};
use taskyard_tarantool::LuaValue;

use taskyard_testkit::calls::{ack, ask, ask_until_there, make_tube, put, take};
use taskyard_testkit::recorded_output::record;
use taskyard_testkit::tarantool::{TarantoolInstance, free_port, program};
use taskyard_testkit::tarantool::{open, own, run};

fn counts(store: &TarantoolStore, tube: &TubeName) -> (u64, u64) {
    match ask_until_there(store, &Command::Tubes { tube: Some(tube.clone()) }) {
        Reply::Tubes(tubes) => (tubes[0].stats.tasks.ready, tubes[0].stats.tasks.taken),
        other => panic!("a tube was expected, not {other:?}"),
    }
}

fn is_away(reply: Result<Reply, Error>) {
    assert!(matches!(reply, Err(Error::StoreUnavailable(_))), "{reply:?}");
}

#[test]
fn a_tarantool_that_is_down_is_away_and_comes_back_as_it_was() {
    let Some(program) = program() else { return };
    let tarantool = TarantoolInstance::new(program);
    let store = open(&tarantool.url());
    let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
    ask(&store, put(&tube, 3)).expect("they are put");
    let held = take(&store, &tube, 1).remove(0);
    tarantool.kill();
    // Nothing was in flight: it is known that nothing was done.
    is_away(ask(&store, put(&tube, 1)));
    is_away(ask(&store, Command::Tubes { tube: None }));
    tarantool.start();
    assert_eq!(counts(&store, &tube), (2, 1));
    assert_eq!(ack(&store, &tube, &held), Outcome::Done(None));
    tarantool.audit("taskyard");
}

// Procedures are in memory only: a server that finds them missing loads them again.
#[test]
fn procedures_that_were_lost_are_loaded_again() {
    let Some(program) = program() else { return };
    let tarantool = TarantoolInstance::new(program);
    let store = open(&tarantool.url());
    let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
    tarantool.talk(
        "for key in pairs(_G) do if tostring(key):match('^taskyard_1_') then rawset(_G, key, nil) end end",
    );
    ask(&store, put(&tube, 1)).expect("it is put");
    assert_eq!(take(&store, &tube, 9).len(), 1);
}

// Tarantool 3 aborts a fiber that does not yield for a second, and our transactions never yield: a large tube could not be emptied there.
// If this version has no such limit, the test only checks that the limit would be set.
#[test]
fn a_long_call_is_not_aborted() {
    let Some(program) = program() else { return };
    let tarantool = TarantoolInstance::new(program);
    let store = open(&tarantool.url());
    tarantool.talk(
        "local fiber = require('fiber')
        local real = fiber.set_slice
        fiber.set_slice = function(slice)
            rawset(_G, 'slice', slice.err)
            if real then real(slice) end
        end",
    );
    make_tube(&store, TubeOptions::new(Kind::Fifo));
    assert_eq!(tarantool.talk("return slice >= 60"), LuaValue::Bool(true));
}

#[test]
fn a_full_tarantool_refuses_puts_and_nothing_else() {
    let Some(program) = program() else { return };
    let tarantool = TarantoolInstance::with(program, &[("memtx_memory", "50331648")]);
    let store = open(&tarantool.url());
    let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
    let mut there = 0;
    let refusal = loop {
        match ask(&store, put(&tube, 1000)) {
            Ok(_) => there += 1000,
            Err(refusal) => break refusal,
        }
    };
    assert!(
        matches!(refusal, Error::Overloaded(text) if text.contains("memtx_memory")),
        "{refusal:?}"
    );
    assert_eq!(counts(&store, &tube), (there, 0), "what was refused is not there, what was not is");
    // In one batch with refused commands the rest is done.
    let commands = vec![put(&tube, 1), Command::Tick { limit: 1, seed: 0 }, put(&tube, 1)];
    let replies =
        taskyard_conformance::block_on(store.execute(taskyard_testkit::calls::NOW, commands))
            .replies;
    assert!(replies[1].is_ok() && replies[0].is_err() && replies[2].is_err(), "{replies:?}");
    for _ in 0..there / 1000 {
        let taken = take(&store, &tube, 1000);
        assert_eq!(taken.len(), 1000, "takes need memory too, and find it");
        let items = taken.iter().map(|task| FinishItem {
            id: task.id,
            holder: Holder::Lease(task.lease.expect("a lease")),
            finish: Finish::Ack,
        });
        let items = items.collect();
        ask(&store, Command::Finish { tube: tube.clone(), items, show: false }).expect("acked");
    }
    assert_eq!(counts(&store, &tube), (0, 0));
    ask(&store, put(&tube, 1)).expect("there is room again");
    tarantool.audit("taskyard");
}

#[test]
fn a_read_only_tarantool_is_away() {
    let Some(program) = program() else { return };
    let tarantool = TarantoolInstance::new(program);
    let store = open(&tarantool.url());
    let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
    tarantool.talk("box.cfg{read_only = true}");
    is_away(ask(&store, put(&tube, 1)));
    let refusal = TarantoolStore::open(&tarantool.url(), Clock::Database).err();
    assert!(refusal.expect("it is refused").to_string().contains("read-only"));
    tarantool.talk("box.cfg{read_only = false}");
    ask_until_there(&store, &put(&tube, 1));
    assert_eq!(counts(&store, &tube), (1, 0));
}

#[test]
fn the_durability_of_tarantool_is_reported() {
    let Some(program) = program() else { return };
    for (mode, words, durable) in [
        ("fsync", "are on disk", true),
        ("write", "the operating system", false),
        ("none", "snapshot", false),
    ] {
        let tarantool = TarantoolInstance::with(program.clone(), &[("wal_mode", mode)]);
        let store = open(&tarantool.url());
        let said = store.durability().expect("Tarantool says it");
        assert!(said.contains(words), "{said}");
        assert_eq!(store.capabilities().durable, durable);
    }
}

#[test]
fn a_user_needs_a_password_and_rights() {
    let Some(program) = program() else { return };
    let tarantool = TarantoolInstance::new(program);
    let opened = |url: String| {
        TarantoolStore::open(&url, Clock::Database).map(drop).map_err(|error| error.to_string())
    };
    let refusal = opened(tarantool.url_as("worker")).expect_err("there are no spaces yet");
    assert!(refusal.contains("create"), "{refusal}");
    assert_eq!(opened(tarantool.url()), Ok(()));
    assert_eq!(opened(tarantool.url_as("worker")), Ok(()), "who makes no spaces needs no right to");
    for (url, why) in [
        (tarantool.url_with("taskyard:wrong@"), "password"),
        (tarantool.url_as("unknown"), "not found"),
        (tarantool.url_as("stranger"), "execute"),
        (tarantool.url_with(""), "execute"),
    ] {
        let refusal = opened(url).expect_err("it is refused");
        record("refusals", &refusal);
        assert!(refusal.contains(why), "{why}: {refusal}");
        assert!(!refusal.contains("wrong") && !refusal.contains("pass%2F"), "{refusal}");
    }
    assert_eq!(tarantool.talk("return box.space.taskyard_task:len()"), LuaValue::Int(0));
}

#[test]
fn a_server_that_is_not_tarantool_is_refused() {
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("it has an address").port();
        thread::spawn(move || {
            let greetings = ["HTTP/1.1 400 Bad Request\r\n\r\n", "Tarantool 1.10.15 (Binary) x"];
            for (mut socket, greeting) in listener.incoming().flatten().zip(greetings) {
                let mut bytes = [b' '; 128];
                bytes[..greeting.len()].copy_from_slice(greeting.as_bytes());
                bytes[64..108].copy_from_slice(&[b'A'; 44]);
                bytes[107] = b'=';
                let _ = socket.write_all(&bytes);
                std::mem::forget(socket);
            }
        });
        let url = own(&format!("tarantool://127.0.0.1:{port}"));
        let refusal = || TarantoolStore::open(&url, Clock::Database).err().map(|e| e.to_string());
        assert!(refusal().is_some_and(|text| text.contains("greeting")));
        let old = refusal();
        assert!(old.as_ref().is_some_and(|text| text.contains("too old")), "{old:?}");
    });
}

// A server that was started together with a Tarantool with many tasks ended at once: it waited only for a Tarantool that does not answer, not
// for one that loads its data.
#[test]
fn a_server_waits_for_a_tarantool_that_loads_its_data() {
    let Some(program) = program() else { return };
    let tarantool = TarantoolInstance::new(program);
    let refusal = TarantoolStore::open(&tarantool.loading_url(1), Clock::Database).err();
    let refusal = refusal.expect("it does not wait").to_string();
    assert!(refusal.contains("starting"), "{refusal}");
    let wait = Duration::from_secs(60);
    let store = TarantoolStore::open_within(&tarantool.loading_url(3), Clock::Caller, wait);
    let store = store.expect("it is there in the end");
    let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
    ask(&store, put(&tube, 1)).expect("it is put");
    // Opening it read-only waits as well.
    let seen = TarantoolStore::open_read_only(&tarantool.loading_url(3), Clock::Caller, wait);
    assert!(seen.is_ok());
}

// The runtime of a store that could not be opened was dropped where waiting is forbidden: a program on a runtime of its own
// got a panic instead of the reason.
#[test]
fn a_failed_open_inside_a_runtime_returns_the_reason() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let url = format!("tarantool://127.0.0.1:{}", free_port());
    let opened =
        runtime.expect("a runtime").block_on(async { TarantoolStore::open(&url, Clock::Caller) });
    assert!(matches!(opened.err(), Some(OpenError::Unavailable { .. })));
}
