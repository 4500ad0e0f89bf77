//! Counters of workers, in the text format of Prometheus.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use taskyard_core::command::TubeInfo;
use taskyard_core::{Span, Timestamp, TubeName};

/// The upper ends of the histogram's buckets, in milliseconds.
const BUCKETS_MS: [u64; 14] =
    [5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 15_000, 30_000, 60_000];

/// What workers count. Cheap to clone: clones are one set, which any number of workers may share.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    set: Arc<Set>,
}

#[derive(Debug, Default)]
struct Set {
    namespace: String,
    workers: AtomicI64,
    processors: AtomicI64,
    config_errors: AtomicU64,
    queues: Mutex<BTreeMap<Key, Arc<QueueMetrics>>>,
}

/// What is counted apart: a queue of a contract by its number, any other tube by its name.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Queue(u32),
    Tube(TubeName),
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Queue(num) => write!(f, "queue_num=\"{num}\""),
            Key::Tube(tube) => {
                let name = tube.as_str().replace('\\', "\\\\").replace('"', "\\\"");
                write!(f, "tube=\"{name}\"")
            }
        }
    }
}

/// What is counted for one queue.
#[derive(Debug, Default)]
pub(super) struct QueueMetrics {
    cycles: Histogram,
    pub in_progress: AtomicI64,
    pub processed: AtomicU64,
    pub errors: AtomicU64,
    pub handler_errors: AtomicU64,
    pub retried: AtomicU64,
    pub panics: AtomicU64,
    pub timeouts: AtomicU64,
    pub poison: AtomicU64,
    pub unsettled: AtomicU64,
    pub slow_cycles: AtomicU64,
    pub fenced: AtomicU64,
    pub store_errors: AtomicU64,
    ready: AtomicU64,
    delayed: AtomicU64,
    expired: AtomicU64,
    oldest_micros: AtomicI64,
}

#[derive(Debug, Default)]
struct Histogram {
    buckets: [AtomicU64; BUCKETS_MS.len()],
    count: AtomicU64,
    sum_micros: AtomicU64,
}

impl Metrics {
    /// A set whose names begin with this word and `_`.
    pub fn with_namespace(namespace: &str) -> Self {
        let namespace = format!("{namespace}_");
        Metrics { set: Arc::new(Set { namespace, ..Set::default() }) }
    }

    pub(super) fn queue(&self, num: u32) -> Arc<QueueMetrics> {
        self.of(Key::Queue(num))
    }

    /// For a program that works on one tube without a [`Worker`](super::Worker): counts as one worker with one processor until
    /// it is dropped.
    pub fn tube(&self, tube: TubeName) -> TubeMetrics {
        self.workers().fetch_add(1, Ordering::Relaxed);
        self.processors().fetch_add(1, Ordering::Relaxed);
        TubeMetrics { all: self.clone(), tube: self.of(Key::Tube(tube)) }
    }

    fn of(&self, key: Key) -> Arc<QueueMetrics> {
        let mut queues = self.set.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.entry(key).or_default().clone()
    }

    pub(super) fn workers(&self) -> &AtomicI64 {
        &self.set.workers
    }

    pub(super) fn processors(&self) -> &AtomicI64 {
        &self.set.processors
    }

    #[cfg(feature = "config")]
    pub(super) fn config_errors(&self) -> &AtomicU64 {
        &self.set.config_errors
    }

    /// All counters as text, for whoever serves them.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let queues = self.set.queues.lock().unwrap_or_else(PoisonError::into_inner);
        self.histogram(&mut text, &queues);
        let name = "queue_tasks_in_progress";
        self.head(&mut text, name, "gauge", "Tasks that a handler works on.");
        for (key, queue) in &*queues {
            self.line(&mut text, name, key, queue.in_progress.load(Ordering::Relaxed));
        }
        for (name, help, value) in [
            ("queue_running_workers", "Workers that run.", &self.set.workers),
            ("queue_running_job_processors", "Job processors that run.", &self.set.processors),
        ] {
            self.head(&mut text, name, "gauge", help);
            let value = value.load(Ordering::Relaxed);
            let _ = writeln!(text, "{}{name} {value}", self.set.namespace);
        }
        let (name, help) = ("queue_config_errors_total", "Settings in files that cannot be.");
        self.head(&mut text, name, "counter", help);
        let value = self.set.config_errors.load(Ordering::Relaxed);
        let _ = writeln!(text, "{}{name} {value}", self.set.namespace);
        for (name, help, of) in GAUGES {
            self.head(&mut text, name, "gauge", help);
            for (key, queue) in &*queues {
                self.line(&mut text, name, key, of(queue).load(Ordering::Relaxed));
            }
        }
        let name = "queue_oldest_ready_age_seconds";
        self.head(
            &mut text,
            name,
            "gauge",
            "For how long the oldest task that could be taken has been ready.",
        );
        for (key, queue) in &*queues {
            let seconds = queue.oldest_micros.load(Ordering::Relaxed) as f64 / 1e6;
            self.line(&mut text, name, key, seconds);
        }
        for (name, help, of) in COUNTERS {
            self.head(&mut text, name, "counter", help);
            for (key, queue) in &*queues {
                self.line(&mut text, name, key, of(queue).load(Ordering::Relaxed));
            }
        }
        text
    }

    fn histogram(&self, text: &mut String, queues: &BTreeMap<Key, Arc<QueueMetrics>>) {
        let name = "queue_job_processor_cycle_duration_seconds";
        self.head(text, name, "histogram", "From taking a batch to the end of its handler.");
        let namespace = &self.set.namespace;
        for (labels, queue) in queues {
            let cycles = &queue.cycles;
            let mut below = 0;
            for (end, bucket) in BUCKETS_MS.iter().zip(&cycles.buckets) {
                below += bucket.load(Ordering::Relaxed);
                let end = *end as f64 / 1000.0;
                let _ = writeln!(text, "{namespace}{name}_bucket{{{labels},le=\"{end}\"}} {below}");
            }
            let count = cycles.count.load(Ordering::Relaxed);
            let seconds = cycles.sum_micros.load(Ordering::Relaxed) as f64 / 1e6;
            let _ = writeln!(text, "{namespace}{name}_bucket{{{labels},le=\"+Inf\"}} {count}");
            let _ = writeln!(text, "{namespace}{name}_sum{{{labels}}} {seconds}");
            let _ = writeln!(text, "{namespace}{name}_count{{{labels}}} {count}");
        }
    }

    fn head(&self, text: &mut String, name: &str, kind: &str, help: &str) {
        let namespace = &self.set.namespace;
        let _ = writeln!(text, "# HELP {namespace}{name} {help}\n# TYPE {namespace}{name} {kind}");
    }

    fn line(&self, text: &mut String, name: &str, key: &Key, value: impl fmt::Display) {
        let _ = writeln!(text, "{}{name}{{{key}}} {value}", self.set.namespace);
    }
}

/// What is counted for one tube that a program works on without a [`Worker`](super::Worker).
#[derive(Debug)]
pub struct TubeMetrics {
    all: Metrics,
    tube: Arc<QueueMetrics>,
}

/// How the work on a task ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskEnd {
    /// Done.
    Done,
    /// Gone wrong, and given back for another attempt.
    Failed,
    /// The same because it took longer than it may.
    TimedOut,
    /// Given to another consumer meanwhile.
    Lost,
    /// Given back as if it had never been taken.
    GivenBack,
}

impl TubeMetrics {
    /// A task was taken.
    pub fn begin(&self) {
        self.tube.in_progress.fetch_add(1, Ordering::Relaxed);
    }

    /// The work on it has ended so, after this time.
    pub fn end(&self, end: TaskEnd, took: Duration) {
        self.tube.in_progress.fetch_sub(1, Ordering::Relaxed);
        self.tube.cycle(took);
        let counters: &[&AtomicU64] = match end {
            TaskEnd::Done => &[&self.tube.processed],
            TaskEnd::Failed => &[&self.tube.errors, &self.tube.retried],
            TaskEnd::TimedOut => &[&self.tube.errors, &self.tube.retried, &self.tube.timeouts],
            TaskEnd::Lost => &[&self.tube.fenced],
            TaskEnd::GivenBack => &[],
        };
        counters.iter().for_each(|counter| count(counter, 1));
    }

    /// The server could not answer.
    pub fn store_error(&self) {
        count(&self.tube.store_errors, 1);
    }

    /// What the server says about the tube.
    pub fn observe(&self, tube: &TubeInfo, now: Timestamp) {
        self.tube.observe(tube, now);
    }

    /// All counters as text, in the format of Prometheus.
    pub fn text(&self) -> String {
        self.all.text()
    }
}

impl Drop for TubeMetrics {
    fn drop(&mut self) {
        self.all.workers().fetch_sub(1, Ordering::Relaxed);
        self.all.processors().fetch_sub(1, Ordering::Relaxed);
    }
}

type Of = fn(&QueueMetrics) -> &AtomicU64;

/// What the store said when it was last asked.
const GAUGES: [(&str, &str, Of); 2] = [
    ("queue_tasks_ready", "Tasks that could be taken.", |queue| &queue.ready),
    ("queue_tasks_delayed", "Tasks that wait for their time.", |queue| &queue.delayed),
];

const COUNTERS: [(&str, &str, Of); 12] = [
    ("queue_tasks_expired_total", "Deliveries whose time ran out, of any worker.", |queue| {
        &queue.expired
    }),
    ("queue_tasks_processed_total", "Tasks done.", |queue| &queue.processed),
    ("queue_tasks_errors_total", "Tasks that went wrong.", |queue| &queue.errors),
    ("queue_tasks_retried_total", "Tasks given back for another attempt.", |queue| &queue.retried),
    ("queue_handler_errors_total", "Batches whose handler failed.", |queue| &queue.handler_errors),
    ("queue_handler_panics_total", "Batches whose handler panicked.", |queue| &queue.panics),
    ("queue_handler_timeouts_total", "Batches that were cancelled at run_max.", |queue| {
        &queue.timeouts
    }),
    ("queue_tasks_poison_total", "Tasks that nobody could read.", |queue| &queue.poison),
    ("queue_tasks_unsettled_total", "Tasks that a handler forgot.", |queue| &queue.unsettled),
    ("queue_slow_cycles_total", "Cycles that took too long.", |queue| &queue.slow_cycles),
    ("queue_tasks_fenced_total", "Tasks given to others before they were done.", |queue| {
        &queue.fenced
    }),
    ("queue_store_errors_total", "Requests that the queue could not answer.", |queue| {
        &queue.store_errors
    }),
];

impl QueueMetrics {
    /// What the store says about the queue.
    pub fn observe(&self, tube: &TubeInfo, now: Timestamp) {
        self.ready.store(tube.stats.tasks.ready, Ordering::Relaxed);
        self.delayed.store(tube.stats.tasks.delayed, Ordering::Relaxed);
        self.expired.store(tube.stats.calls.ttr, Ordering::Relaxed);
        let age = tube.oldest_ready.map_or(Span::ZERO, |since| now.since(since));
        self.oldest_micros.store(age.as_micros(), Ordering::Relaxed);
    }

    pub fn cycle(&self, took: Duration) {
        let millis = took.as_micros().div_ceil(1000) as u64;
        let bucket = BUCKETS_MS.iter().position(|end| millis <= *end);
        if let Some(bucket) = bucket {
            self.cycles.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        }
        self.cycles.count.fetch_add(1, Ordering::Relaxed);
        self.cycles.sum_micros.fetch_add(took.as_micros() as u64, Ordering::Relaxed);
    }
}

/// Adds to a counter.
pub(super) fn count(counter: &AtomicU64, more: usize) {
    counter.fetch_add(more as u64, Ordering::Relaxed);
}

/// Adds to a gauge until dropped.
pub(super) struct Gauged<'a> {
    gauge: &'a AtomicI64,
    by: i64,
}

impl<'a> Gauged<'a> {
    pub fn add(gauge: &'a AtomicI64, by: usize) -> Self {
        let by = by as i64;
        gauge.fetch_add(by, Ordering::Relaxed);
        Gauged { gauge, by }
    }
}

impl Drop for Gauged<'_> {
    fn drop(&mut self) {
        self.gauge.fetch_sub(self.by, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_the_seed_are_there_and_bare() {
        let metrics = Metrics::default();
        metrics.queue(7).cycle(Duration::from_millis(20));
        metrics.queue(7).cycle(Duration::from_secs(70));
        let text = metrics.text();
        for line in [
            "queue_job_processor_cycle_duration_seconds_bucket{queue_num=\"7\",le=\"0.01\"} 0",
            "queue_job_processor_cycle_duration_seconds_bucket{queue_num=\"7\",le=\"0.025\"} 1",
            "queue_job_processor_cycle_duration_seconds_bucket{queue_num=\"7\",le=\"60\"} 1",
            "queue_job_processor_cycle_duration_seconds_bucket{queue_num=\"7\",le=\"+Inf\"} 2",
            "queue_job_processor_cycle_duration_seconds_sum{queue_num=\"7\"} 70.02",
            "queue_tasks_in_progress{queue_num=\"7\"} 0",
            "queue_running_workers 0",
            "queue_running_job_processors 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }

    #[test]
    fn a_namespace_stands_before_every_name() {
        let metrics = Metrics::with_namespace("shop");
        drop(Gauged::add(metrics.workers(), 1));
        let _running = Gauged::add(metrics.workers(), 1);
        let text = metrics.text();
        assert!(text.contains("\nshop_queue_running_workers 1\n"), "{text}");
        let names = text.lines().filter(|line| !line.starts_with('#'));
        assert!(names.into_iter().all(|line| line.starts_with("shop_")), "{text}");
    }

    #[test]
    fn a_tube_without_a_number_has_its_name() {
        let metrics = Metrics::default();
        let tube = metrics.tube(TubeName::new("my \"mail\"").unwrap());
        for end in [TaskEnd::Done, TaskEnd::Failed, TaskEnd::TimedOut, TaskEnd::Lost] {
            tube.begin();
            tube.end(end, Duration::from_millis(1));
        }
        tube.begin();
        let text = tube.text();
        for line in [
            r#"queue_job_processor_cycle_duration_seconds_bucket{tube="my \"mail\"",le="0.005"} 4"#,
            r#"queue_tasks_in_progress{tube="my \"mail\""} 1"#,
            r#"queue_tasks_processed_total{tube="my \"mail\""} 1"#,
            r#"queue_tasks_errors_total{tube="my \"mail\""} 2"#,
            r#"queue_handler_timeouts_total{tube="my \"mail\""} 1"#,
            "queue_running_workers 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        drop(tube);
        assert!(metrics.text().contains("\nqueue_running_workers 0\n"));
    }
}
