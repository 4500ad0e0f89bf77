//! Replays of small traces whose waits are computed by hand, and of generated schedules.

use std::collections::{BTreeMap, VecDeque};

use taskyard_core::classes::{Class, Limit, Rules};
use taskyard_core::{Kind, RateLimit, SemaphoreKey, Span, TubeOptions};

use super::*;
use crate::event::{Ending, Event, PutFacts, TakeFacts};
use crate::file::TraceWriter;
use crate::reader::{ReadLimits, read};

const SECOND: u64 = 1_000_000;

fn seconds(count: u64) -> Span {
    Span::from_secs(count)
}

/// Events in any order, sorted by time and then by the order in which they were added.
#[derive(Default)]
struct Events(BTreeMap<(u64, usize), Event>);

impl Events {
    fn with_tube(name: &str, options: TubeOptions) -> Self {
        let mut events = Events::default();
        events.tube(0, name, options);
        events
    }

    fn tube(&mut self, tube: u32, name: &str, options: TubeOptions) {
        let options = Some(Box::new(options));
        self.add(0, Event::Tube { tube, name: name.into(), options });
    }

    fn add(&mut self, at: u64, event: Event) {
        let number = self.0.len();
        self.0.insert((at, number), event);
    }

    fn put(&mut self, at: u64, tube: u32, id: u64, facts: PutFacts) {
        self.add(at, Event::Put { tube, id, facts });
    }

    fn take(&mut self, at: u64, tube: u32, id: u64, wait: u64) {
        let wait = Span::from_micros(wait as i64);
        let facts = TakeFacts { wait, age: wait, ..TakeFacts::default() };
        self.add(at, Event::Take { tube, id, facts });
    }

    fn end(&mut self, at: u64, tube: u32, id: u64, ending: Ending) {
        self.add(at, Event::Finish { tube, id, ending });
    }

    /// A task that was put, waited, ran and was acknowledged; times in seconds.
    fn task(&mut self, tube: u32, id: u64, [put, wait, run]: [u64; 3], facts: PutFacts) {
        let delay = facts.delay.unwrap_or(Span::ZERO).as_micros().unsigned_abs();
        self.put(put * SECOND, tube, id, facts);
        let start = (put + wait) * SECOND + delay;
        self.take(start, tube, id, wait * SECOND);
        self.end(start + run * SECOND, tube, id, Ending::Acked);
    }

    fn trace(self) -> Trace {
        let mut writer = TraceWriter::in_memory(0);
        writer.append(self.0.into_iter().map(|((at, _), event)| (at, event)));
        read(&writer.into_bytes()[..], ReadLimits::default(), |_| ()).unwrap()
    }
}

fn waits(trace: &Trace, scenario: &Scenario) -> Vec<Vec<u64>> {
    let found = replay(trace, scenario, |_| ()).unwrap();
    let in_seconds = |tube: ReplayedTube| tube.waits.iter().map(|wait| wait / SECOND).collect();
    found.tubes.into_iter().map(in_seconds).collect()
}

fn consumers(tube: Option<&str>, count: u32) -> Scenario {
    let rule = ConsumerRule { tube: tube.map(str::to_owned), count };
    Scenario { consumers: vec![rule], ..Scenario::default() }
}

fn plain() -> TubeOptions {
    TubeOptions::new(Kind::FifoTtl)
}

/// Four tasks of 10 s at once, for two consumers.
fn four_tasks() -> Trace {
    let mut events = Events::with_tube("mail", plain());
    for (id, wait) in [0, 0, 10, 10].into_iter().enumerate() {
        events.task(0, id as u64, [0, wait, 10], PutFacts::default());
    }
    events.trace()
}

// docs/estimates.md says so.
#[test]
fn a_waiting_task_that_is_buried_counts_as_removed() {
    let mut events = Events::with_tube("mail", plain());
    (0..2).for_each(|id| events.put(0, 0, id, PutFacts::default()));
    events.end(SECOND, 0, 1, Ending::Buried);
    events.add(2 * SECOND, Event::Kick { tube: 0, count: 1 });
    let found = replay(&events.trace(), &consumers(None, 0), |_| ()).unwrap();
    assert_eq!(found.tubes[0].waiting, 1);
}

// The sum of run times from a damaged file may exceed 64 bits.
#[test]
fn the_longest_runs_one_after_the_other_are_replayed() {
    let mut events = Events::with_tube("mail", plain());
    let forever = Span::FOREVER.as_micros().unsigned_abs();
    for id in 0..4_000 {
        events.put(0, 0, id, PutFacts::default());
        events.take(0, 0, id, 0);
        events.end(forever, 0, id, Ending::Acked);
    }
    let trace = events.trace();
    let found = replay(&trace, &consumers(None, 1), |_| ()).unwrap();
    let tube = &found.tubes[0];
    assert_eq!(tube.last_end, i64::MAX.unsigned_abs());
    assert_eq!(tube.started + tube.waiting, 4_000);
    let class = Class::new("long", Span::FOREVER, Limit::Percent(100));
    let classes = Some(Rules::new(vec![class]).unwrap());
    let scenario = Scenario { classes, ..consumers(None, 1) };
    let found = replay(&trace, &scenario, |_| ()).unwrap();
    assert_eq!(found.tubes[0].started + found.denied, 4_000);
}

#[test]
fn fewer_consumers_let_tasks_wait_longer() {
    let trace = four_tasks();
    assert_eq!(trace.tubes[0].consumers.most(), 2);
    assert_eq!(waits(&trace, &Scenario::default()), [[0, 0, 10, 10]]);
    assert_eq!(waits(&trace, &consumers(None, 1)), [[0, 10, 20, 30]]);
    assert_eq!(waits(&trace, &consumers(Some("mail"), 3)), [[0, 0, 0, 10]]);
    let limited = Scenario { limits: vec![("mail".into(), 1)], ..consumers(None, 4) };
    assert_eq!(waits(&trace, &limited), [[0, 10, 20, 30]]);
    let mut found = replay(&trace, &consumers(None, 1), |_| ()).unwrap();
    let tube = &mut found.tubes[0];
    assert_eq!((tube.last_end, tube.waiting, tube.consumers), (40 * SECOND, 0, Some(1)));
    let figures = tube.figures();
    assert_eq!((figures.count, figures.p50, figures.max), (4, 10 * SECOND, 30 * SECOND));
    let mut found = replay(&trace, &consumers(None, 0), |_| ()).unwrap();
    assert_eq!((found.tubes[0].waiting, found.tubes[0].figures().count), (4, 0));
}

#[test]
fn rates_and_priorities_of_the_core_apply() {
    let trace = four_tasks();
    let rate = RateLimit { count: 1, per: seconds(60), burst: 1 };
    let slow = Scenario { rates: vec![("mail".into(), Some(rate))], ..consumers(None, 4) };
    assert_eq!(waits(&trace, &slow), [[0, 60, 120, 180]]);
    // Without a change the first goes first; then the second one has a better priority.
    let mut events = Events::with_tube("mail", plain());
    for (id, (wait, pri)) in [(0, 0), (10, 5), (20, 7)].into_iter().enumerate() {
        let facts = PutFacts { pri: Some(pri), ..PutFacts::default() };
        events.task(0, id as u64, [id as u64, wait - id as u64, 10], facts);
    }
    let trace = events.trace();
    assert_eq!(waits(&trace, &Scenario::default()), [[0, 9, 18]]);
    let change = |from, to| PriorityChange { tube: "mail".into(), from, to };
    let first = |change| Scenario { priorities: vec![change], ..Scenario::default() };
    assert_eq!(waits(&trace, &first(change(Some(7), 1))), [[0, 8, 19]]);
    assert_eq!(waits(&trace, &first(change(None, 1))), [[0, 9, 18]]);
}

#[test]
fn subqueues_delays_and_retries_are_those_of_the_core() {
    let options = TubeOptions { attempts_max: Some(2), ..TubeOptions::new(Kind::UtubeTtl) };
    let mut events = Events::with_tube("jobs", options);
    let of = |subqueue| PutFacts { subqueue: Some(subqueue), ..PutFacts::default() };
    events.task(0, 0, [0, 0, 10], of(1));
    events.task(0, 1, [0, 10, 10], of(1));
    events.task(0, 2, [0, 0, 10], of(2));
    let delayed = PutFacts { delay: Some(seconds(30)), ..of(3) };
    events.task(0, 3, [0, 0, 5], delayed);
    // It fails after 2 s, is tried again 5 s later, and fails again.
    events.put(60 * SECOND, 0, 4, of(4));
    events.take(60 * SECOND, 0, 4, 0);
    events.end(62 * SECOND, 0, 4, Ending::FailedRetry(seconds(5)));
    events.take(67 * SECOND, 0, 4, 0);
    events.end(70 * SECOND, 0, 4, Ending::FailedRetry(seconds(5)));
    let trace = events.trace();
    let found = replay(&trace, &consumers(None, 9), |_| ()).unwrap();
    let tube = &found.tubes[0];
    assert_eq!(tube.waits, [0, 0, 10 * SECOND, 0, 0, 0], "the sub-queue waits for its first task");
    assert_eq!((tube.started, tube.last_end), (6, 70 * SECOND), "two attempts, then it is buried");
}

#[test]
fn lost_deliveries_and_tasks_of_before_are_found() {
    let mut events = Events::with_tube("mail", plain());
    // It was put before the recording, and waited for 100 s when that had lasted for 10 s.
    events.take(10 * SECOND, 0, 7, 100 * SECOND);
    // Its lease expired after 20 s; it was delivered again 5 s later.
    events.take(35 * SECOND, 0, 7, 5 * SECOND);
    events.end(36 * SECOND, 0, 7, Ending::Acked);
    // This one still runs at the end, and the other one waits.
    events.put(40 * SECOND, 0, 8, PutFacts::default());
    events.put(40 * SECOND, 0, 9, PutFacts::default());
    events.take(40 * SECOND, 0, 8, 0);
    events.add(50 * SECOND, Event::End { reason: crate::EndReason::Stopped });
    let trace = events.trace();
    assert_eq!(trace.recorded_waits(), [[10 * SECOND, 5 * SECOND, 0]]);
    let found = replay(&trace, &consumers(None, 1), |_| ()).unwrap();
    let tube = &found.tubes[0];
    assert_eq!(tube.waits, [0, 0, 0]);
    assert_eq!((tube.started, tube.last_end), (4, 51 * SECOND), "the last one runs for 1 s");
}

#[test]
fn changes_of_the_recording_happen_in_the_replay() {
    let mut events = Events::with_tube("mail", plain());
    for id in 0..3 {
        events.put(0, 0, id, PutFacts::default());
    }
    events.add(SECOND, Event::Delete { tube: 0, id: 1 });
    events.task(0, 3, [2, 0, 1], PutFacts::default());
    events.end(3 * SECOND, 0, 2, Ending::Buried);
    let paused = TubeOptions { paused: true, ..plain() };
    let change =
        |options| Event::Tube { tube: 0, name: "mail".into(), options: Some(Box::new(options)) };
    events.add(10 * SECOND, change(paused));
    events.add(20 * SECOND, change(plain()));
    events.put(12 * SECOND, 0, 4, PutFacts::default());
    events.take(20 * SECOND, 0, 4, 8 * SECOND);
    events.end(21 * SECOND, 0, 4, Ending::Acked);
    events.put(30 * SECOND, 0, 5, PutFacts::default());
    events.add(31 * SECOND, Event::Clear { tube: 0 });
    let trace = events.trace();
    // Without consumers until 2 s, so that the deleted task is still there.
    let found = replay(&trace, &Scenario::default(), |_| ()).unwrap();
    assert_eq!(found.tubes[0].waits, [0, 8 * SECOND]);
    let mut found = replay(&trace, &consumers(None, 0), |_| ()).unwrap();
    assert_eq!((found.tubes[0].waiting, found.tubes[0].figures().count), (0, 0), "cleared");
}

#[test]
fn tubes_share_consumers_and_limits() {
    let gated = TubeOptions { semaphore: Some(SemaphoreKey::new("license").unwrap()), ..plain() };
    let mut events = Events::with_tube("a", gated.clone());
    events.tube(1, "b", gated);
    for id in 0..2 {
        for tube in 0..2 {
            events.task(tube, id, [0, 10 * id, 10], PutFacts::default());
        }
    }
    let trace = events.trace();
    assert_eq!(waits(&trace, &Scenario::default()), [[0, 10], [0, 10]]);
    assert_eq!(waits(&trace, &consumers(None, 1)), [[0, 20], [10, 30]], "they take turns");
    let limited = |limits: &[(&str, u32)]| {
        let limits = limits.iter().map(|(name, limit)| (name.to_string(), *limit)).collect();
        waits(&trace, &Scenario { limits, ..consumers(None, 9) })
    };
    assert_eq!(limited(&[("license", 1)]), [[0, 20], [10, 30]]);
    assert_eq!(limited(&[]), [[0, 10], [0, 10]], "the semaphore let two run at once");
    assert_eq!(limited(&[("license", 9), ("a", 1)]), [[0, 10], [0, 0]]);
}

#[test]
fn duration_classes_limit_long_tasks() {
    let mut events = Events::with_tube("mail", plain());
    for (id, run) in [20, 20, 1, 100].into_iter().enumerate() {
        events.task(0, id as u64, [0, 0, run], PutFacts::default());
    }
    let trace = events.trace();
    let classes = vec![
        Class::new("fast", seconds(5), Limit::Percent(100)),
        Class::new("slow", seconds(60), Limit::Percent(50)),
    ];
    let rules = Rules::new(classes).unwrap();
    let with = |count, limits: &[(&str, u32)]| {
        let limits = limits.iter().map(|(name, limit)| (name.to_string(), *limit)).collect();
        let classes = Some(rules.clone());
        let found = replay(&trace, &Scenario { classes, limits, ..consumers(None, count) }, |_| ());
        found.unwrap()
    };
    let found = with(4, &[]);
    assert_eq!(found.tubes[0].waits, [0, 0, 0, 20 * SECOND]);
    assert_eq!((found.cut, found.denied, found.tubes[0].last_end), (1, 0, 80 * SECOND));
    let found = with(4, &[("slow", 1)]);
    assert_eq!(found.tubes[0].waits, [0, 0, 20 * SECOND, 40 * SECOND]);
    let slow = &found.classes[1];
    assert_eq!((slow.0.as_str(), slow.1.count, slow.1.max), ("slow", 3, 40 * SECOND));
}

#[test]
fn unknown_names_and_contradictions_are_refused() {
    let trace = four_tasks();
    let refused = |scenario: Scenario| replay(&trace, &scenario, |_| ()).unwrap_err().to_string();
    let limits = vec![("slow".into(), 2)];
    let text = refused(Scenario { limits: limits.clone(), ..Scenario::default() });
    assert_eq!(text, "the trace has no tube or semaphore 'slow'; it has mail");
    let text = refused(consumers(Some("slow"), 1));
    assert_eq!(text, "the trace has no tube 'slow'; it has mail");
    let twice =
        Scenario { limits: vec![("mail".into(), 1), ("mail".into(), 2)], ..Scenario::default() };
    assert!(refused(twice).contains("given twice"));
    let classes = Some(Rules::default());
    let with = |scenario: Scenario| refused(Scenario { classes: classes.clone(), ..scenario });
    assert!(with(consumers(Some("mail"), 1)).contains("share the consumers"));
    let unknown = Scenario { limits: vec![("long".into(), 1)], ..Scenario::default() };
    assert!(with(unknown).contains("no duration class 'long'; it has fast, medium, slow"));
    let rates = vec![("mail".into(), None)];
    assert!(with(Scenario { rates, ..Scenario::default() }).contains("no effect"));
}

/// A schedule by hand: tasks in the order of their arrival, for consumers that take the next one after this time.
fn schedule(seed: u64, tasks: usize, count: usize, turnaround: u64) -> Events {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut events = Events::with_tube("mail", plain());
    let mut free: VecDeque<u64> = vec![0; count].into();
    let mut now = 0;
    for id in 0..tasks as u64 {
        now += random.u64(0..200_000);
        let run = random.u64(1_000..1_000_000);
        let start = free.pop_front().unwrap_or(0).max(now);
        free.push_back(start + run + turnaround);
        free.make_contiguous().sort_unstable();
        events.put(now, 0, id, PutFacts::default());
        events.take(start, 0, id, start - now);
        events.end(start + run, 0, id, Ending::Acked);
    }
    events
}

// What a replay without changes shows must be what was recorded.
#[test]
fn a_generated_schedule_is_reproduced() {
    for (seed, count) in [(1, 3), (2, 5), (3, 8)] {
        let trace = schedule(seed, 5_000, count, 0).trace();
        let recorded = trace.recorded_figures();
        // With the number of consumers the waits are the same, one by one.
        let found = replay(&trace, &consumers(None, count as u32), |_| ()).unwrap();
        assert_eq!(vec![found.tubes[0].waits.clone()], trace.recorded_waits(), "seed {seed}");
        // Without it, their number is that of the recording over time.
        let mut found = replay(&trace, &Scenario::default(), |_| ()).unwrap();
        assert_eq!(found.tubes[0].figures(), recorded[0], "seed {seed}");
        let mut found = replay(&trace, &consumers(None, count as u32 - 1), |_| ()).unwrap();
        let fewer = found.tubes[0].figures();
        assert!(fewer.p50 >= recorded[0].p50 && fewer.max > recorded[0].max, "seed {seed}");
    }
}

// Workers on a network do not take the next task at the moment in which they finish one: waits were a quarter too short.
#[test]
fn the_time_between_two_deliveries_of_a_consumer_counts() {
    for (seed, count) in [(4, 3), (5, 5)] {
        let trace = schedule(seed, 5_000, count, 100_000).trace();
        let recorded = trace.recorded_figures()[0];
        let turnaround = trace.tubes[0].consumers.turnaround();
        assert!((95_000..=105_000).contains(&turnaround), "{turnaround}");
        let mut found = replay(&trace, &Scenario::default(), |_| ()).unwrap();
        let shown = found.tubes[0].figures();
        for (shown, recorded) in [(shown.p50, recorded.p50), (shown.p90, recorded.p90)] {
            assert!(shown.abs_diff(recorded) * 10 <= recorded, "{shown} instead of {recorded}");
        }
    }
}

#[test]
fn a_change_of_the_consumers_is_followed() {
    // Two consumers for 1,000 s, then one, with a queue all the time.
    let mut events = Events::with_tube("mail", plain());
    let (mut id, mut free) = (0, [0, 0]);
    while free[0].min(free[1]) < 3_000 * SECOND {
        let lane = usize::from(free[0] > 1_000 * SECOND || free[1] < free[0]);
        let lane = if free[0] > 1_000 * SECOND { 1 } else { lane };
        events.put(id * SECOND, 0, id, PutFacts::default());
        let start = free[lane].max(id * SECOND + 20 * SECOND);
        events.take(start, 0, id, start - id * SECOND);
        events.end(start + 4 * SECOND, 0, id, Ending::Acked);
        free[lane] = start + 4 * SECOND;
        (id, free) = (id + 1, if free[1] > 3_000 * SECOND { [u64::MAX; 2] } else { free });
    }
    let trace = events.trace();
    let recorded = trace.recorded_figures()[0];
    let shown = replay(&trace, &Scenario::default(), |_| ()).unwrap().tubes.remove(0).figures();
    let (recorded, shown) = (recorded.p90 / SECOND, shown.p90 / SECOND);
    assert!(shown.abs_diff(recorded) * 20 <= recorded, "{shown} instead of {recorded}");
}
