//! Tests of replicas that take over from a master.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use taskyard_core::{Command, Error, Kind, Reply, SessionId, Span, Take, TubeName, TubeOptions};
use taskyard_store::{RemoteChange, Store};
use taskyard_store_tarantool::TarantoolStore;
use taskyard_tarantool::LuaValue;

use taskyard_testkit::calls::{ask, ask_until_there, make_tube, put, take};
use taskyard_testkit::tarantool::open;
use taskyard_testkit::tarantool::{TarantoolInstance, program};

const SESSION: SessionId = SessionId([7; 16]);

/// A URL with both instances.
fn both(pair: &[TarantoolInstance; 2]) -> String {
    format!("{},127.0.0.1:{}", pair[0].url(), pair[1].port())
}

/// Waits until the second instance has all data of the first, then makes it the master.
fn switch(pair: &[TarantoolInstance; 2]) {
    pair[0].talk("box.cfg{read_only = true}");
    let written = "return tostring(box.info.vclock[1])";
    let all = pair[0].talk(written);
    while pair[1].talk(written) != all {}
    pair[1].talk("box.cfg{read_only = false}");
}

fn taken(store: &TarantoolStore, tube: &TubeName) -> u64 {
    match ask_until_there(store, &Command::Tubes { tube: Some(tube.clone()) }) {
        Reply::Tubes(tubes) => tubes[0].stats.tasks.taken,
        other => panic!("a tube was expected, not {other:?}"),
    }
}

fn join() -> Command {
    Command::JoinSession { session: SESSION, create: true }
}

fn take_as(tube: &TubeName) -> Command {
    let session = Some(SESSION);
    Command::Take(Take {
        tube: tube.clone(),
        count: 1,
        session,
        lease: None,
        worker: None,
        wait: Span::ZERO,
    })
}

// The call that waits for notices stayed at the old master, where there were no more notices.
#[test]
fn notices_work_after_a_change_of_the_master() {
    let Some(program) = program() else { return };
    let pair = TarantoolInstance::pair(&program);
    let (store, other) = (open(&both(&pair)), open(&both(&pair)));
    let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
    let (sender, heard) = mpsc::channel();
    store.watch(Arc::new(move |what| drop(sender.send(what))));
    switch(&pair);
    ask_until_there(&other, &put(&tube, 1));
    // Notices from before the change do not count.
    heard.try_iter().for_each(drop);
    let heard = (0..600).find_map(|_| {
        ask_until_there(&other, &put(&tube, 1));
        let what = heard.recv_timeout(Duration::from_millis(100)).ok();
        what.filter(|what| *what != RemoteChange::Anything)
    });
    assert_eq!(heard, Some(RemoteChange::Tube(tube)));
}

// A leave was done, but no replica had it in time: its outcome was unknown, and it was repeated. It counted twice, and the session ended
// although it had a second connection.
#[test]
fn a_repeated_leave_without_replicas_counts_once() {
    let Some(program) = program() else { return };
    let pair = TarantoolInstance::pair(&program);
    let store = open(&format!("{}?replicas=1", pair[0].url()));
    let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
    ask(&store, put(&tube, 1)).expect("it is put");
    ask(&store, join()).expect("it joins");
    ask(&store, join()).expect("its second connection joins");
    ask(&store, take_as(&tube)).expect("it takes");
    let leave = Command::LeaveSession { session: SESSION };
    pair[1].kill();
    let unknown = ask(&store, leave.clone());
    assert!(matches!(unknown, Err(Error::OutcomeUnknown(_))), "{unknown:?}");
    pair[1].start();
    ask(&store, leave.clone()).expect("it leaves");
    assert_eq!(taken(&store, &tube), 1, "one connection is left");
    ask(&store, leave).expect("it leaves");
    assert_eq!(taken(&store, &tube), 0);
}

// A replica that had not received the last writes took over while no command ran. It did not have sessions that the server knew, and
// lease numbers that had been reserved at the old master could be reserved again.
#[test]
fn sessions_are_restored_after_a_failover() {
    let Some(program) = program() else { return };
    let pair = TarantoolInstance::pair(&program);
    let store = open(&both(&pair));
    let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
    ask(&store, put(&tube, 2)).expect("they are put");
    let before = take(&store, &tube, 1).remove(0).lease.expect("a lease");
    let written = "return tostring(box.info.vclock[1])";
    while pair[1].talk(written) != pair[0].talk(written) {}
    pair[1].talk("box.cfg{replication = {}}");
    ask(&store, join()).expect("it joins");
    pair[0].kill();
    pair[1].talk("box.cfg{read_only = false}");
    let Reply::Taken(tasks) = ask_until_there(&store, &take_as(&tube)) else { panic!("a take") };
    let lease = tasks[0].lease.expect("a lease");
    let reserved = pair[1].talk("return box.space.taskyard_meta:get('lease')[2]");
    assert_eq!(reserved, LuaValue::Int(i128::from(lease.0) + (1 << 20)), "by this instance");
    assert!(lease.0 > before.0 + (1 << 25), "beyond what the other can have reserved");
}
