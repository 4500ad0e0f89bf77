//! Several servers on one Redis.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use taskyard_core::{Command, Kind, Outcome, TubeOptions};
use taskyard_store::Store;

use taskyard_testkit::calls::{ack, ask, make_tube, put, take};
use taskyard_testkit::redis::{instance, open, own, run};

use taskyard_testkit::suite::servers::{join, take_as};

taskyard_testkit::server_suite!(taskyard_testkit::redis::SharedRedis);

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
