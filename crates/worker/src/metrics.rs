//! The metrics of workers, in the text format of Prometheus.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use taskyard_core::command::TubeInfo;
use taskyard_core::{Span, Timestamp, TubeName};

/// The upper bounds of the histogram's buckets, in milliseconds.
const BUCKETS_MS: [u64; 14] =
    [5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 15_000, 30_000, 60_000];

/// The metrics of workers. Cheap to clone: clones share one set, which any number of workers may use.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    set: Arc<MetricSet>,
}

#[derive(Debug, Default)]
struct MetricSet {
    namespace: String,
    workers: AtomicI64,
    processors: AtomicI64,
    config_errors: AtomicU64,
    queues: Mutex<BTreeMap<MetricKey, Arc<QueueMetrics>>>,
}

/// The label of a counter: a queue of a contract has its number, any other tube its name.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum MetricKey {
    Queue(u32),
    Tube(TubeName),
}

impl fmt::Display for MetricKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MetricKey::Queue(num) => write!(f, "queue_num=\"{num}\""),
            MetricKey::Tube(tube) => {
                let name = tube.as_str().replace('\\', "\\\\").replace('"', "\\\"");
                write!(f, "tube=\"{name}\"")
            }
        }
    }
}

/// The metrics of one queue.
#[derive(Debug, Default)]
pub(crate) struct QueueMetrics {
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
    /// A set whose names begin with this namespace and `_`.
    pub fn with_namespace(namespace: &str) -> Self {
        let namespace = format!("{namespace}_");
        Metrics { set: Arc::new(MetricSet { namespace, ..MetricSet::default() }) }
    }

    pub(crate) fn queue(&self, num: u32) -> Arc<QueueMetrics> {
        self.of(MetricKey::Queue(num))
    }

    /// The metrics of a program that processes one tube without a [`Worker`](crate::Worker). The program counts as one
    /// worker with one processor until the result is dropped.
    pub fn tube(&self, tube: TubeName) -> TubeMetrics {
        self.workers().fetch_add(1, Ordering::Relaxed);
        self.processors().fetch_add(1, Ordering::Relaxed);
        TubeMetrics { all: self.clone(), tube: self.of(MetricKey::Tube(tube)) }
    }

    fn of(&self, key: MetricKey) -> Arc<QueueMetrics> {
        let mut queues = self.set.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.entry(key).or_default().clone()
    }

    pub(crate) fn workers(&self) -> &AtomicI64 {
        &self.set.workers
    }

    pub(crate) fn processors(&self) -> &AtomicI64 {
        &self.set.processors
    }

    #[cfg(feature = "config")]
    pub(crate) fn config_errors(&self) -> &AtomicU64 {
        &self.set.config_errors
    }

    /// All metrics as text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let queues = self.set.queues.lock().unwrap_or_else(PoisonError::into_inner);
        self.histogram(&mut text, &queues);
        let name = "queue_tasks_in_progress";
        self.head(&mut text, name, "gauge", "Tasks that are in a handler.");
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
        let (name, help) = ("queue_config_errors_total", "Invalid settings in settings files.");
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
        self.head(&mut text, name, "gauge", "Age of the oldest ready task.");
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

    fn histogram(&self, text: &mut String, queues: &BTreeMap<MetricKey, Arc<QueueMetrics>>) {
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

    fn line(&self, text: &mut String, name: &str, key: &MetricKey, value: impl fmt::Display) {
        let _ = writeln!(text, "{}{name}{{{key}}} {value}", self.set.namespace);
    }
}

/// The metrics of a tube that a program processes without a [`Worker`](crate::Worker).
#[derive(Debug)]
pub struct TubeMetrics {
    all: Metrics,
    tube: Arc<QueueMetrics>,
}

/// How the processing of a task ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskEnd {
    /// The task is done.
    Done,
    /// The task failed and was released for another attempt.
    Failed,
    /// The task took too long and was released for another attempt.
    TimedOut,
    /// The task was delivered to another consumer meanwhile.
    Lost,
    /// The task was released as if it had never been taken.
    GivenBack,
}

impl TubeMetrics {
    /// Counts a task that was taken.
    pub fn begin(&self) {
        self.tube.in_progress.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the end of a task and how long it took.
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

    /// Counts a request that the server could not answer.
    pub fn store_error(&self) {
        count(&self.tube.store_errors, 1);
    }

    /// Records the state of the tube.
    pub fn observe(&self, tube: &TubeInfo, now: Timestamp) {
        self.tube.observe(tube, now);
    }

    /// All metrics in the text format of Prometheus.
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

type CounterOf = fn(&QueueMetrics) -> &AtomicU64;

/// The state of the queue at the last reading.
const GAUGES: [(&str, &str, CounterOf); 2] = [
    ("queue_tasks_ready", "Tasks that are ready.", |queue| &queue.ready),
    ("queue_tasks_delayed", "Tasks that are delayed.", |queue| &queue.delayed),
];

const COUNTERS: [(&str, &str, CounterOf); 12] = [
    ("queue_tasks_expired_total", "Deliveries whose lease expired, of all workers.", |queue| {
        &queue.expired
    }),
    ("queue_tasks_processed_total", "Tasks done.", |queue| &queue.processed),
    ("queue_tasks_errors_total", "Tasks that failed.", |queue| &queue.errors),
    ("queue_tasks_retried_total", "Tasks returned for another attempt.", |queue| &queue.retried),
    ("queue_handler_errors_total", "Batches whose handler failed.", |queue| &queue.handler_errors),
    ("queue_handler_panics_total", "Batches whose handler panicked.", |queue| &queue.panics),
    ("queue_handler_timeouts_total", "Batches that were cancelled at run_max.", |queue| {
        &queue.timeouts
    }),
    ("queue_tasks_poison_total", "Tasks that could not be decoded.", |queue| &queue.poison),
    ("queue_tasks_unsettled_total", "Tasks that a handler left unsettled.", |queue| {
        &queue.unsettled
    }),
    ("queue_slow_cycles_total", "Cycles longer than slow_cycle.", |queue| &queue.slow_cycles),
    (
        "queue_tasks_fenced_total",
        "Tasks that were delivered again before they were settled.",
        |queue| &queue.fenced,
    ),
    ("queue_store_errors_total", "Requests that the queue could not answer.", |queue| {
        &queue.store_errors
    }),
];

impl QueueMetrics {
    /// Records the state of the queue.
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
pub(crate) fn count(counter: &AtomicU64, more: usize) {
    counter.fetch_add(more as u64, Ordering::Relaxed);
}

/// Raises a gauge until dropped.
pub(crate) struct GaugeGuard<'a> {
    gauge: &'a AtomicI64,
    by: i64,
}

impl<'a> GaugeGuard<'a> {
    pub fn add(gauge: &'a AtomicI64, by: usize) -> Self {
        let by = by as i64;
        gauge.fetch_add(by, Ordering::Relaxed);
        GaugeGuard { gauge, by }
    }
}

impl Drop for GaugeGuard<'_> {
    fn drop(&mut self) {
        self.gauge.fetch_sub(self.by, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metric_names_have_no_prefix_by_default() {
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
    fn a_namespace_prefixes_every_name() {
        let metrics = Metrics::with_namespace("shop");
        drop(GaugeGuard::add(metrics.workers(), 1));
        let _running = GaugeGuard::add(metrics.workers(), 1);
        let text = metrics.text();
        assert!(text.contains("\nshop_queue_running_workers 1\n"), "{text}");
        let names = text.lines().filter(|line| !line.starts_with('#'));
        assert!(names.into_iter().all(|line| line.starts_with("shop_")), "{text}");
    }

    #[test]
    fn a_tube_without_a_number_is_labelled_with_its_name() {
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
