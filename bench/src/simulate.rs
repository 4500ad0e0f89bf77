//! The replay of a generated trace: puts, takes and acks through the rules of the core, on one core of the machine.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hint::black_box;
use std::process;
use std::time::Instant;

use anyhow::Result;
use taskyard_core::{Kind, Span, TubeOptions};
use taskyard_trace::{
    ConsumerRule, Ending, Event, PutFacts, ReadLimits, Scenario, TakeFacts, TraceWriter, read,
    replay,
};

use super::Size;
use super::processor_time::seconds_used;
use super::report::{Report, Row, Target};

/// Tasks each second that are asked for.
const ASKED: f64 = 1_000_000.0;
/// The best of so many runs counts. Processor time is measured, because other programs may use the machine.
const RUNS: usize = 3;
/// The consumers of the generated trace.
const CONSUMERS: u32 = 8;
/// The mean time between two puts, in microseconds.
const PUT_EVERY: u64 = 1_000;
/// The mean run time; with this number of consumers they are busy for nine tenths of the time.
const RUN_MEAN: u64 = PUT_EVERY * CONSUMERS as u64 * 9 / 10;
const SEED: u64 = 17;

pub fn measure(report: &mut Report, size: Size) -> Result<()> {
    for (name, kind, priorities) in
        [("one priority", Kind::FifoTtl, 1), ("ten priorities", Kind::FifoTtl, 10)]
    {
        let bytes = trace(size.tasks, kind, priorities);
        let started = Instant::now();
        let trace = read(&bytes[..], ReadLimits::default(), |_| ())?;
        let read_in = started.elapsed().as_secs_f64();
        for (consumers, text) in
            [(CONSUMERS, "as recorded"), (CONSUMERS * 3 / 4, "a quarter fewer consumers")]
        {
            let rule = ConsumerRule { tube: None, count: consumers };
            let scenario = Scenario { consumers: vec![rule], ..Scenario::default() };
            let mut best = f64::INFINITY;
            for _ in 0..RUNS {
                let before = seconds_used(process::id())?;
                black_box(replay(&trace, &scenario, |_| ())?);
                best = best.min(seconds_used(process::id())? - before);
            }
            report.add(Row {
                what: format!("replay, {name}, {text}"),
                figure: trace.len() as f64 / best,
                unit: "tasks/s",
                target: Some(Target::AtLeast(ASKED)),
                note: format!(
                    "{} tasks, best of {RUNS} by processor time; reading {:.0} tasks/s, {:.0} bytes each",
                    trace.len(),
                    trace.len() as f64 / read_in,
                    bytes.len() as f64 / trace.len() as f64,
                ),
            });
        }
    }
    Ok(())
}

/// A trace of consumers that take the next task at once.
fn trace(tasks: usize, kind: Kind, priorities: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(SEED);
    let mut writer = TraceWriter::in_memory(0);
    let options = Some(Box::new(TubeOptions::new(kind)));
    writer.append([(0, Event::Tube { tube: 0, name: "mail".into(), options })]);
    // The events by time; a trace of first-come-first-served tasks is good enough for the speed.
    let mut events: Vec<(u64, u8, Event)> = Vec::with_capacity(tasks * 3);
    let mut free: BinaryHeap<Reverse<u64>> = vec![Reverse(0); CONSUMERS as usize].into();
    let mut now = 0;
    for id in 0..tasks as u64 {
        now += random.u64(0..=2 * PUT_EVERY);
        let run = random.u64(1..=2 * RUN_MEAN);
        let start = free.pop().map_or(0, |free| free.0).max(now);
        free.push(Reverse(start + run));
        let pri = (priorities > 1).then(|| random.u64(0..priorities));
        let wait = Span::from_micros((start - now) as i64);
        let taken = TakeFacts { wait, age: wait, pri: pri.unwrap_or(0), ..TakeFacts::default() };
        let facts = PutFacts { bytes: 100, pri, ..PutFacts::default() };
        events.push((now, 1, Event::Put { tube: 0, id, facts }));
        events.push((start, 2, Event::Take { tube: 0, id, facts: taken }));
        events.push((start + run, 0, Event::Finish { tube: 0, id, ending: Ending::Acked }));
    }
    events.sort_by_key(|(at, order, _)| (*at, *order));
    writer.append(events.into_iter().map(|(at, _, event)| (at, event)));
    writer.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generated_trace_is_complete() {
        let bytes = trace(2_000, Kind::FifoTtl, 3);
        let trace = read(&bytes[..], ReadLimits::default(), |_| ()).unwrap();
        assert_eq!((trace.len(), trace.tubes[0].consumers.most()), (2_000, CONSUMERS));
        let found = replay(&trace, &Scenario::default(), |_| ()).unwrap();
        assert_eq!((found.tubes[0].started, found.tubes[0].waiting), (2_000, 0));
    }
}
