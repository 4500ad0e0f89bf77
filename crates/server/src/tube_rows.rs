//! Selects the tubes for `/metrics`: the busiest get their own rows, the others share one.

use std::collections::HashMap;

use taskyard_core::command::TubeInfo;
use taskyard_core::estimate::Calibrated;
use taskyard_core::{Calls, Counts, Span, Timestamp, TubeName};
use taskyard_engine::{Latency, TubeLatency, WaitingCount};

use crate::metrics::TubeMetrics;

/// The name of the row for all other tubes; no tube can have this name.
const REST: &str = ":rest";

/// One tube, or several together.
#[derive(Debug, Default)]
pub(crate) struct TubeRow<'a> {
    /// The name.
    pub tube: &'a str,
    /// Tasks by state.
    pub tasks: Counts,
    /// Calls that took effect.
    pub calls: Calls,
    /// Tasks that can be taken.
    pub takeable: u64,
    /// How many of the tubes are paused.
    pub paused: u64,
    /// How long the oldest ready task has been ready.
    pub oldest: Span,
    /// Waiting takes and puts.
    pub waiting: WaitingCount,
    /// Deliveries that failed on this server.
    pub failures: u64,
    /// How many estimates held on this server.
    pub estimates: Calibrated,
}

/// A row for each of the `most` busiest tubes, by name, and one for the others if there are any.
pub(crate) fn rows(metrics: &TubeMetrics, now: Timestamp, most: usize) -> Vec<TubeRow<'_>> {
    let tubes = &metrics.tubes;
    let row = |info| TubeRow::new(info, metrics, now);
    if tubes.len() <= most {
        return tubes.iter().map(row).collect();
    }
    let mut busiest: Vec<&TubeInfo> = tubes.iter().collect();
    busiest.sort_by(|a, b| activity(b).cmp(&activity(a)).then_with(|| a.name.cmp(&b.name)));
    let others = busiest.split_off(most);
    busiest.sort_by(|a, b| a.name.cmp(&b.name));
    let mut rows: Vec<_> = busiest.into_iter().map(row).collect();
    let mut rest = TubeRow { tube: REST, ..TubeRow::default() };
    others.into_iter().for_each(|info| rest.add(row(info)));
    rows.push(rest);
    rows
}

/// How long the tasks of one tube, or of several together, waited and ran.
#[derive(Debug)]
pub(crate) struct LatencyRow<'a> {
    /// The name.
    pub tube: &'a str,
    /// How long tasks waited.
    pub wait: Latency,
    /// How long deliveries lasted.
    pub run: Latency,
}

/// A row for each of the `most` shown tubes with most durations, by name, and one for the others if
/// there are any.
pub(crate) fn latency_rows<'a>(
    tubes: &'a [TubeInfo],
    latencies: &[TubeLatency],
    most: usize,
) -> Vec<LatencyRow<'a>> {
    let shown: HashMap<&TubeName, &'a str> =
        tubes.iter().map(|info| (&info.name, info.name.as_str())).collect();
    let row = |found: &TubeLatency| {
        let TubeLatency { tube, wait, run } = found;
        Some(LatencyRow { tube: shown.get(tube)?, wait: wait.clone(), run: run.clone() })
    };
    let mut rows: Vec<_> = latencies.iter().filter_map(row).collect();
    let count = |row: &LatencyRow<'_>| row.wait.count() + row.run.count();
    rows.sort_by(|a, b| count(b).cmp(&count(a)).then_with(|| a.tube.cmp(b.tube)));
    let others = rows.split_off(most.min(rows.len()));
    rows.sort_by(|a, b| a.tube.cmp(b.tube));
    let rest = others.into_iter().reduce(|mut sum, more| {
        sum.wait.add(&more.wait);
        sum.run.add(&more.run);
        sum
    });
    rows.extend(rest.map(|rest| LatencyRow { tube: REST, ..rest }));
    rows
}

/// The number of calls since the store was opened, then the number of tasks.
fn activity(info: &TubeInfo) -> (u64, u64) {
    let Calls { put, take, ack, .. } = info.stats.calls;
    (put.saturating_add(take).saturating_add(ack), info.stats.tasks.total())
}

impl<'a> TubeRow<'a> {
    fn new(info: &'a TubeInfo, metrics: &TubeMetrics, now: Timestamp) -> Self {
        let figures = metrics.figures.as_ref().and_then(|all| all.get(&info.name));
        TubeRow {
            tube: info.name.as_str(),
            tasks: info.stats.tasks,
            calls: info.stats.calls,
            takeable: info.takeable,
            paused: info.options.paused.into(),
            oldest: info.oldest_ready.map_or(Span::ZERO, |since| now.since(since)),
            waiting: metrics.waiting.get(&info.name).copied().unwrap_or_default(),
            failures: figures.map_or(0, |figures| figures.failures),
            estimates: metrics.estimates.get(&info.name).copied().unwrap_or_default(),
        }
    }

    fn add(&mut self, other: TubeRow<'_>) {
        add_tasks(&mut self.tasks, other.tasks);
        add_calls(&mut self.calls, other.calls);
        self.takeable += other.takeable;
        self.paused += other.paused;
        self.oldest = self.oldest.max(other.oldest);
        self.waiting.takes += other.waiting.takes;
        self.waiting.puts += other.waiting.puts;
        self.failures += other.failures;
        self.estimates.p50 += other.estimates.p50;
        self.estimates.p90 += other.estimates.p90;
        self.estimates.late += other.estimates.late;
        self.estimates.dropped += other.estimates.dropped;
    }
}

/// Adds counts of tasks.
pub(crate) fn add_tasks(sum: &mut Counts, more: Counts) {
    let Counts { ready, taken, buried, delayed, done, kept } = more;
    sum.ready += ready;
    sum.taken += taken;
    sum.buried += buried;
    sum.delayed += delayed;
    sum.done += done;
    sum.kept += kept;
}

/// Adds counts of calls.
pub(crate) fn add_calls(sum: &mut Calls, more: Calls) {
    let Calls { ack, bury, delete, kick, put, release, take, touch, ttl, ttr, delay } = more;
    sum.ack += ack;
    sum.bury += bury;
    sum.delete += delete;
    sum.kick += kick;
    sum.put += put;
    sum.release += release;
    sum.take += take;
    sum.touch += touch;
    sum.ttl += ttl;
    sum.ttr += ttr;
    sum.delay += delay;
}
