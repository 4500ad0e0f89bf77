//! Several servers on one Tarantool.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use taskyard_conformance::block_on;
use taskyard_core::{
    Command, Finish, FinishItem, Holder, Kind, Outcome, Reply, SessionId, Span, Take, Task,
    TubeName, TubeOptions,
};
use taskyard_store::{RemoteChange, Store};
use taskyard_store_tarantool::{Clock, TarantoolStore};
use taskyard_tarantool::Word;

use taskyard_testkit::calls::{NOW, ack, ask, make_tube, put, take};
use taskyard_testkit::tarantool::{CALL, instance, open, own, run};
use taskyard_testkit::tarantool::{Instance, program};

const SESSION: SessionId = SessionId([7; 16]);

fn join(store: &TarantoolStore, create: bool) {
    let join = Command::JoinSession { session: SESSION, create };
    assert_eq!(ask(store, join), Ok(Reply::Session(SESSION)));
}

fn take_as(store: &TarantoolStore, tube: &TubeName) -> Task {
    let session = Some(SESSION);
    let take = Take { tube: tube.clone(), count: 1, session, lease: None, wait: Span::ZERO };
    match ask(store, Command::Take(take)) {
        Ok(Reply::Taken(mut tasks)) if tasks.len() == 1 => tasks.remove(0),
        other => panic!("expected one task, got {other:?}"),
    }
}

#[test]
fn a_session_lives_on_every_server() {
    run(async {
        let url = own(&instance().url());
        let (here, there) = (open(&url), open(&url));
        let tube = make_tube(&here, TubeOptions::new(Kind::Fifo));
        ask(&here, put(&tube, 2)).expect("they are put");
        join(&here, true);
        let task = take_as(&here, &tube);
        join(&there, false);
        let leave = Command::LeaveSession { session: SESSION };
        assert_eq!(ask(&here, leave.clone()), Ok(Reply::Nothing));
        let holder = Holder::Session(SESSION);
        let items = vec![FinishItem { id: task.id, holder, finish: Finish::Ack }];
        let finish = Command::Finish { tube: tube.clone(), items, show: false };
        // Where it is connected, and where it is not any more.
        assert_eq!(ask(&there, finish.clone()), Ok(Reply::Finished(vec![Outcome::Done(None)])));
        assert_eq!(ask(&here, finish), Ok(Reply::Finished(vec![Outcome::Missing])));
        take_as(&here, &tube);
        assert_eq!(ask(&there, leave), Ok(Reply::Nothing));
        assert_eq!(take(&here, &tube, 1).len(), 1, "what it took at either server is back");
    });
}

/// The heartbeat is real time, so the dead one's is set back by hand.
#[test]
fn a_dead_servers_tasks_return() {
    run(async {
        let url = own(&instance().url());
        let prefix = url.rsplit_once('=').expect("it has a prefix").1.to_owned();
        let (store, dead) = (open(&url), open(&url));
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        ask(&store, put(&tube, 1)).expect("it is put");
        join(&dead, true);
        let task = take_as(&dead, &tube);
        // Killed: it says nothing any more.
        drop(dead);
        let (sender, heard) = mpsc::channel();
        store.watch(Arc::new(move |what| drop(sender.send(what))));
        let servers = format!("return box.space.{prefix}_server:len()");
        assert_eq!(instance().talk(&servers), Word::Int(2));
        // Who lives hears that something happened once it has judged.
        while instance().talk(&servers) != Word::Int(1) {
            let _ = heard.recv_timeout(Duration::from_millis(100));
        }
        ask(&store, Command::Tick { limit: 10 }).expect("it ticks");
        assert_eq!(ack(&store, &tube, &task), Outcome::Stale, "the lease is worth nothing now");
        let again = take(&store, &tube, 1);
        assert_eq!(again.iter().map(|task| task.attempts).collect::<Vec<_>>(), [1]);
    });
}

/// What a server that begins does to one that lives and holds a task, when these are so many seconds back: when that was last heard, by
/// either clock, and when Tarantool last ran.
fn held_after_a_begin(heard: u32, clock: u32, ran: u32) -> Option<u64> {
    let tarantool = Instance::new(program()?);
    let store = open(&tarantool.url());
    let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
    ask(&store, put(&tube, 1)).expect("it is put");
    take(&store, &tube, 1);
    // In one go, so that nothing else is heard between.
    tarantool.talk(&format!(
        "{CALL}
        local news = taskyard_news_1
        news.since.taskyard, news.awake = 0, 0
        news.last[server] = news.last[server] - {heard}000000
        news.heard[server] = news.heard[server] - {clock}000000
        local row = box.space.taskyard_server:get(server)
        box.space.taskyard_server:update(server, {{{{'=', 2, row[2] - {clock}000000}}}})
        news.pulse = news.pulse - {ran}000000
        call('begin', ('x'):rep(16), nil, 4000000)"
    ));
    let held = tarantool.talk("return box.space.taskyard_taken:len()");
    let Word::Int(held) = held else { panic!("{held:?}") };
    u64::try_from(held).ok()
}

// Tarantool stood still, or its clock was set, and a server that began then was heard before those that live: it took them for dead and gave
// back all that was held, by them and by anybody.
#[test]
fn who_begins_takes_nothing_from_those_who_live() {
    let Some(held) = held_after_a_begin(10, 10, 0) else { return };
    assert_eq!(held, 0, "nobody lived");
    assert_eq!(held_after_a_begin(10, 10, 9), Some(1), "Tarantool itself stood still");
    assert_eq!(held_after_a_begin(0, 3600, 0), Some(1), "its clock was set");
}

// The way to Tarantool was cut for two or three seconds: the first server that came back took another for dead whose last sign of life
// was only a little older than its own.
#[test]
fn a_server_is_lost_only_after_two_heartbeats_of_another() {
    let Some(program) = program() else { return };
    let tarantool = Instance::new(program);
    drop(open(&tarantool.url()));
    // Heartbeats of a second: server b was heard 3.5 and 0.5 seconds ago, and a 3 seconds ago.
    let lost = tarantool.talk(&format!(
        "{CALL}
        local a, b, news = ('a'):rep(16), ('b'):rep(16), taskyard_news_1
        for _, one in pairs({{ a, b }}) do call('begin', one, nil, 1000000) end
        local now = tonumber(require('clock').monotonic64() / 1000)
        news.since.taskyard, news.awake, news.pulse = 0, 0, now
        news.last[server] = now + 60000000
        news.last[a], news.last[b] = now - 3000000, now - 500000
        news.beats[b] = {{ now - 500000, now - 3500000 }}
        return {{ call('beat', b, nil, 1000000)[2], call('beat', b, nil, 1000000)[2] }}"
    ));
    assert_eq!(lost, Word::List(vec![Word::Int(0), Word::Int(1)]));
}

#[test]
fn the_last_server_puts_things_in_order() {
    run(async {
        let url = own(&instance().url());
        let (here, there) = (open(&url), open(&url));
        let tube = make_tube(&here, TubeOptions::new(Kind::Fifo));
        ask(&here, put(&tube, 1)).expect("it is put");
        let task = take(&here, &tube, 1).remove(0);
        here.close().await.expect("it closes");
        assert_eq!(take(&there, &tube, 1), [], "whoever holds it can still finish it elsewhere");
        there.close().await.expect("it closes");
        let anew = open(&url);
        assert_eq!(ack(&anew, &tube, &task), Outcome::Stale);
        assert_eq!(take(&anew, &tube, 1).len(), 1);
    });
}

#[test]
fn what_a_later_version_keeps_is_left_alone() {
    run(async {
        let url = own(&instance().url());
        let prefix = url.rsplit_once('=').expect("it has a prefix").1.to_owned();
        drop(open(&url));
        instance().talk(&format!("box.space.{prefix}_meta:replace{{'format', 99}}"));
        let refusal = TarantoolStore::open(&url, Clock::Database).err();
        let refusal = refusal.expect("it is refused").to_string();
        assert!(refusal.contains("format 99") && refusal.contains("newer taskyard"), "{refusal}");
    });
}

#[test]
fn servers_hear_of_what_others_put() {
    run(async {
        let url = own(&instance().url());
        let (store, other) = (open(&url), open(&url));
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        let (sender, heard) = mpsc::channel();
        store.watch(Arc::new(move |what| drop(sender.send(what))));
        // It may not listen yet when the first ones come, and the other may not know of it.
        let heard = (0..600).find_map(|_| {
            ask(&other, put(&tube, 1)).expect("it is put");
            let what = heard.recv_timeout(Duration::from_millis(100)).ok();
            what.filter(|what| *what != RemoteChange::Anything)
        });
        assert_eq!(heard, Some(RemoteChange::Tube(tube)));
    });
}

#[test]
fn what_is_counted_all_servers_show() {
    run(async {
        let url = own(&instance().url());
        let (here, there) = (open(&url), open(&url));
        let tube = make_tube(&here, TubeOptions::new(Kind::Fifo));
        ask(&here, put(&tube, 3)).expect("they are put");
        let task = take(&there, &tube, 1).remove(0);
        assert_eq!(ack(&there, &tube, &task), Outcome::Done(None));
        for store in [&here, &there] {
            let tubes = ask(store, Command::Tubes { tube: None });
            let Ok(Reply::Tubes(tubes)) = tubes else { panic!("{tubes:?}") };
            let calls = tubes[0].stats.calls;
            assert_eq!((calls.put, calls.take, calls.ack), (3, 1, 1));
        }
    });
}

/// What another server set is met here, though nobody told this one.
#[test]
fn deadlines_of_others_are_met() {
    run(async {
        let url = own(&instance().url());
        let (here, there) = (open(&url), open(&url));
        let tube = make_tube(&here, TubeOptions::new(Kind::FifoTtl));
        let (sender, heard) = mpsc::channel();
        here.watch(Arc::new(move |what| drop(sender.send(what))));
        block_on(here.execute(NOW, vec![Command::Tick { limit: 1 }]));
        ask(&there, put(&tube, 1)).expect("it is put");
        let lease = Some(Span::from_secs(5));
        let take = Take { tube: tube.clone(), count: 1, session: None, lease, wait: Span::ZERO };
        ask(&there, Command::Take(take)).expect("it is taken");
        drop(there);
        // In the beginning, and whenever others come or go, everything is looked at.
        let later = NOW + Span::from_secs(10);
        let moved = (0..600).any(|_| {
            let ticked = block_on(here.execute(later, vec![Command::Tick { limit: 9 }]));
            let _ = heard.recv_timeout(Duration::from_millis(20));
            ticked.replies == [Ok(Reply::Ticked(1))]
        });
        assert!(moved);
    });
}
