//! Several servers on one Redis.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use taskyard_conformance::block_on;
use taskyard_core::{
    Command, Finish, FinishItem, Holder, Kind, Outcome, Reply, SessionId, Span, Take, Task,
    TubeName, TubeOptions,
};
use taskyard_store::{OpenError, RemoteChange, Store};
use taskyard_store_redis::{Clock, RedisStore};

use taskyard_testkit::calls::{NOW, ack, ask, make_tube, put, take};
use taskyard_testkit::redis::{instance, open, own, run};

const SESSION: SessionId = SessionId([7; 16]);

fn join(store: &RedisStore, create: bool) {
    let join = Command::JoinSession { session: SESSION, create };
    assert_eq!(ask(store, join), Ok(Reply::Session(SESSION)));
}

fn take_as(store: &RedisStore, tube: &TubeName) -> Task {
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
        let servers = format!("{{{prefix}}}:v");
        assert_eq!(instance().talk(&["ZCARD", &servers]), "2");
        // Who lives hears that something happened once it has judged.
        while instance().talk(&["ZCARD", &servers]) != "1" {
            let _ = heard.recv_timeout(Duration::from_millis(100));
        }
        ask(&store, Command::Tick { limit: 10 }).expect("it ticks");
        assert_eq!(ack(&store, &tube, &task), Outcome::Stale, "the lease is worth nothing now");
        let again = take(&store, &tube, 1);
        assert_eq!(again.iter().map(|task| task.attempts).collect::<Vec<_>>(), [1]);
    });
}

// After a failover Redis had heard of nobody for a while. A server that was started just then believed that it was alone, and took back
// what all others had given out.
#[test]
fn who_starts_after_a_silence_does_not_take_others_for_dead() {
    run(async {
        let url = own(&instance().url());
        let prefix = url.rsplit_once('=').expect("it has a prefix").1.to_owned();
        let lives = open(&url);
        let tube = make_tube(&lives, TubeOptions::new(Kind::Fifo));
        ask(&lives, put(&tube, 1)).expect("it is put");
        let task = take(&lives, &tube, 1).remove(0);
        // One that has only just begun was believed to have heard nobody yet.
        while instance().talk(&["EVAL", UPTIME, "0"]).parse().unwrap_or(0) < 5 {}
        instance().talk(&["EVAL", SILENCE, "1", &format!("{{{prefix}}}:v")]);
        let starts = open(&url);
        assert_eq!(take(&starts, &tube, 1), []);
        assert_eq!(ack(&lives, &tube, &task), Outcome::Done(None));
    });
}

/// Heartbeats of a second: server b was heard 3.5 and 0.5 seconds ago, and a 3 seconds ago; there is no other.
const STANDSTILL: &str = "
local base, time = KEYS[1], redis.call('TIME')
local now = time[1] * 1000000 + time[2]
redis.call('DEL', base .. ':v')
redis.call('ZADD', base .. ':v', now - 3000000, 'a', now - 500000, 'b')
redis.call('HSET', base .. ':p', 'b', now - 3500000)
redis.call('HSET', base .. ':life', 'since', 0)";

// Redis stood still for two or three seconds: the first server that came back took another for dead whose last heartbeat was only a
// little older than its own.
#[test]
fn a_server_is_lost_only_after_two_heartbeats_of_another() {
    run(async {
        let url = own(&instance().url());
        let base = format!("{{{}}}", url.rsplit_once('=').expect("it has a prefix").1);
        drop(open(&url));
        let functions = instance().talk(&["FUNCTION", "LIST"]);
        let beat = functions.lines().find(|line| line.ends_with("_registry"));
        let beat =
            ["FCALL", beat.expect("it is loaded"), "1", &base, "beat", "", "b", "1000000", "0"];
        instance().talk(&["EVAL", STANDSTILL, "1", &base]);
        let others = || instance().talk(&beat).lines().take(2).collect::<Vec<_>>().join(" ");
        assert_eq!(others(), "1 0", "it missed one");
        assert_eq!(others(), "0 1", "it missed two");
    });
}

/// How many seconds Redis has run for.
const UPTIME: &str = "return string.match(redis.call('INFO', 'server'), 'uptime_in_seconds:(%d+)')";
/// Nobody was heard for ages.
const SILENCE: &str = "for _, server in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do redis.call('ZADD', KEYS[1], 1, server) end";

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
        assert_eq!(instance().talk(&["SET", &format!("{{{prefix}}}:format"), "99"]), "OK");
        let refusal = RedisStore::open(&url, Clock::Database).err();
        assert!(matches!(refusal, Some(OpenError::TooNew { found: 99, .. })), "{refusal:?}");
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
