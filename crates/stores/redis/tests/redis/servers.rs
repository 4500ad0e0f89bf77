//! Tests of several servers on one Redis.

use taskyard_core::{Kind, Outcome, TubeOptions};

use taskyard_testkit::calls::{ack, ask, make_tube, put, take};
use taskyard_testkit::redis::{instance, open, own, run};

taskyard_testkit::server_suite!(taskyard_testkit::redis::SharedRedis);

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
