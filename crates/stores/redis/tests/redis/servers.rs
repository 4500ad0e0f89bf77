//! Tests of several servers on one Redis.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use taskyard_core::failure::SERVER_LOST;
use taskyard_core::{Command, Kind, Outcome, Reply, TubeOptions};
use taskyard_store::Store;

use taskyard_testkit::calls::{ack, ask, make_tube, put, take};
use taskyard_testkit::redis::{instance, open, own, run};

use taskyard_testkit::suite::servers::{join, take_as};

taskyard_testkit::server_suite!(taskyard_testkit::redis::SharedRedis);

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
        let servers = format!("{{{prefix}}}:v");
        assert_eq!(instance().talk(&["ZCARD", &servers]), "2");
        // The other server reports a change when it has declared this one dead.
        while instance().talk(&["ZCARD", &servers]) != "1" {
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

// After a failover Redis had received no heartbeats for a while. A server that was started just then believed that it was alone, and gave
// back the tasks of all others.
#[test]
fn a_start_after_an_outage_declares_no_server_dead() {
    run(async {
        let url = own(&instance().url());
        let prefix = url.rsplit_once('=').expect("it has a prefix").1.to_owned();
        let lives = open(&url);
        let tube = make_tube(&lives, TubeOptions::new(Kind::Fifo));
        ask(&lives, put(&tube, 1)).expect("it is put");
        let task = take(&lives, &tube, 1).remove(0);
        // A Redis that has just started counts as one that received no heartbeats yet.
        while instance().talk(&["EVAL", UPTIME, "0"]).parse().unwrap_or(0) < 5 {}
        instance().talk(&["EVAL", SILENCE, "1", &format!("{{{prefix}}}:v")]);
        let starts = open(&url);
        assert_eq!(take(&starts, &tube, 1), []);
        assert_eq!(ack(&lives, &tube, &task), Outcome::Done(None));
    });
}

/// Heartbeats of a second: server b sent one 3.5 and 0.5 seconds ago, and a 3 seconds ago; there is no other.
const STANDSTILL: &str = "
local base, time = KEYS[1], redis.call('TIME')
local now = time[1] * 1000000 + time[2]
redis.call('DEL', base .. ':v')
redis.call('ZADD', base .. ':v', now - 3000000, 'a', now - 500000, 'b')
redis.call('HSET', base .. ':p', 'b', now - 3500000)
redis.call('HSET', base .. ':life', 'since', 0)";

// Redis stood still for two or three seconds: the first server that came back declared another dead whose last heartbeat was only a
// little older than its own.
#[test]
fn a_server_is_dead_only_after_two_heartbeats_of_another() {
    run(async {
        let url = own(&instance().url());
        let base = format!("{{{}}}", url.rsplit_once('=').expect("it has a prefix").1);
        drop(open(&url));
        let functions = instance().talk(&["FUNCTION", "LIST"]);
        let beat = functions.lines().find(|line| line.ends_with("_registry"));
        let beat = [
            "FCALL",
            beat.expect("it is loaded"),
            "1",
            &base,
            "heartbeat",
            "",
            "b",
            "1000000",
            "0",
        ];
        instance().talk(&["EVAL", STANDSTILL, "1", &base]);
        let others = || instance().talk(&beat).lines().take(2).collect::<Vec<_>>().join(" ");
        assert_eq!(others(), "1 0", "it missed one");
        assert_eq!(others(), "0 1", "it missed two");
    });
}

/// The uptime of Redis in seconds.
const UPTIME: &str = "return string.match(redis.call('INFO', 'server'), 'uptime_in_seconds:(%d+)')";
/// No heartbeat for a very long time.
const SILENCE: &str = "for _, server in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do redis.call('ZADD', KEYS[1], 1, server) end";
