//! Renders all metrics in the text format of Prometheus.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::{MatchedPath, Request};
use axum::http::{Method, StatusCode};
use taskyard_core::command::TubeInfo;
use taskyard_core::estimate::Calibrated;
use taskyard_core::limits::{METRICS_HISTOGRAMS_MAX, METRICS_ROWS_MAX};
use taskyard_core::service::{Health, Service};
use taskyard_core::{Error, SemaphoreInfo, TubeName};
use taskyard_engine::{
    Latency, ScheduleCounts, StoreHealth, TubeFigures, TubeLatency, WaitingCount,
};

use crate::app::App;
use crate::iproto::Counters;
use crate::semaphore_monitor::{SemaphoreSnapshot, now};
use crate::tube_rows::{LatencyRow, TubeRow, latency_rows, rows};

/// Counts the requests of the server.
#[derive(Default)]
pub(crate) struct Requests {
    /// By route, method and status. The routes are fixed, so this stays small.
    finished: Mutex<BTreeMap<String, Statuses>>,
    /// Connections that were refused because there are too many.
    pub refused_connections: AtomicU64,
}

/// How often a method was answered with a status.
type Statuses = BTreeMap<(&'static str, u16), u64>;

/// A request that is being served.
pub(crate) struct CountedRequest {
    route: CountedRoute,
    method: &'static str,
}

/// The route of a request that is being served.
enum CountedRoute {
    /// Found by the router, if there is one.
    Matched(Option<MatchedPath>),
    /// Found without the router.
    Known(&'static str),
}

impl Requests {
    /// Remembers the request until its status is known.
    pub fn begin(&self, request: &Request) -> CountedRequest {
        let route = CountedRoute::Matched(request.extensions().get::<MatchedPath>().cloned());
        CountedRequest { route, method: method_name(request.method()) }
    }

    /// The same for a request whose route is known without the router.
    pub fn begin_known(&self, route: &'static str, method: &Method) -> CountedRequest {
        CountedRequest { route: CountedRoute::Known(route), method: method_name(method) }
    }

    /// Counts a finished request.
    pub fn end(&self, counted: CountedRequest, status: StatusCode) {
        let route = match &counted.route {
            CountedRoute::Matched(path) => path.as_ref().map_or("", MatchedPath::as_str),
            CountedRoute::Known(path) => path,
        };
        let key = (counted.method, status.as_u16());
        let mut finished = self.finished.lock().unwrap_or_else(PoisonError::into_inner);
        match finished.get_mut(route) {
            Some(counts) => *counts.entry(key).or_default() += 1,
            None => {
                finished.insert(route.into(), BTreeMap::from([(key, 1)]));
            }
        }
    }

    fn write(&self, text: &mut MetricsText) {
        text.family(
            "taskyard_http_requests_total",
            "counter",
            "Finished requests by method, route and status.",
        );
        let finished = self.finished.lock().unwrap_or_else(PoisonError::into_inner);
        for (route, counts) in &*finished {
            for ((method, status), count) in counts {
                let status = status.to_string();
                let labels = [("method", *method), ("route", route), ("status", &status)];
                text.line(&labels, count);
            }
        }
    }
}

/// The name of a standard method; all others share one name, because callers can invent any number.
fn method_name(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}

/// What is known of the tubes to show.
pub(crate) struct TubeMetrics {
    /// The tubes.
    pub tubes: Vec<TubeInfo>,
    /// Waiting takes and puts.
    pub waiting: BTreeMap<TubeName, WaitingCount>,
    /// What the series of each tube say, if this server has any.
    pub figures: Option<BTreeMap<TubeName, TubeFigures>>,
    /// How long tasks waited and ran, also in tubes that are not shown.
    pub latencies: Vec<TubeLatency>,
    /// How often schedules fired on this server.
    pub schedules: ScheduleCounts,
    /// How many keys of ended tasks this server freed before their time.
    pub keys_freed_early: u64,
    /// How many estimates held on this server.
    pub estimates: BTreeMap<TubeName, Calibrated>,
}

/// All metrics as text.
pub(crate) fn text(app: &App, metrics: &TubeMetrics, store: &Result<StoreHealth, Error>) -> String {
    let mut text = MetricsText::default();
    write_server(&mut text, app);
    let TubeMetrics { tubes, figures, latencies, schedules, keys_freed_early, .. } = metrics;
    let rows = rows(metrics, now(), app.metrics_tubes_max);
    write_tubes(&mut text, &rows);
    if figures.is_some() {
        write_failures(&mut text, &rows);
    }
    write_estimates(&mut text, &rows);
    let most = app.metrics_tubes_max.min(METRICS_HISTOGRAMS_MAX);
    write_latencies(&mut text, &latency_rows(tubes, latencies, most));
    write_schedules(&mut text, schedules);
    write_keys(&mut text, *keys_freed_early);
    write_semaphores(&mut text, &app.semaphore_monitor.snapshot());
    app.requests.write(&mut text);
    if let Some(iproto) = &app.iproto {
        write_iproto(&mut text, &iproto.counters);
    }
    write_services(&mut text, &app.services);
    write_store(&mut text, store);
    write_omitted_rows(&mut text);
    text.written
}

/// What this server did for schedules.
fn write_schedules(text: &mut MetricsText, counts: &ScheduleCounts) {
    let families = [
        (
            "taskyard_schedule_tasks_total",
            "Tasks that schedules added on this server.",
            counts.fired,
        ),
        (
            "taskyard_schedule_skipped_total",
            "Times of schedules that this server skipped.",
            counts.skipped,
        ),
        (
            "taskyard_schedule_failures_total",
            "Times that were skipped because the tube was missing or refused the task.",
            counts.failed,
        ),
    ];
    for (name, about, count) in families {
        text.family(name, "counter", about);
        text.line(&[], count);
    }
    let about = "How late schedules added their tasks: the sum over all times that were fired.";
    text.family("taskyard_schedule_late_seconds_total", "counter", about);
    text.line(&[], counts.late.as_secs_f64());
}

/// What this server did to keys.
fn write_keys(text: &mut MetricsText, freed_early: u64) {
    let about = "Keys of ended tasks that this server freed before their time, because a tube had too many.";
    text.family("taskyard_keys_freed_early_total", "counter", about);
    text.line(&[], freed_early);
}

/// The number of rows above the limit.
fn write_omitted_rows(text: &mut MetricsText) {
    let omitted = text.rows.saturating_sub(METRICS_ROWS_MAX);
    text.rows = 0;
    let about = "Rows omitted because there are too many.";
    text.family("taskyard_metrics_rows_omitted", "gauge", about);
    text.line(&[], omitted);
}

fn write_tubes(text: &mut MetricsText, tubes: &[TubeRow<'_>]) {
    text.family("taskyard_tasks", "gauge", "Tasks by tube and state.");
    for row in tubes {
        let tasks = &row.tasks;
        for (state, count) in [
            ("ready", tasks.ready),
            ("taken", tasks.taken),
            ("buried", tasks.buried),
            ("delayed", tasks.delayed),
        ] {
            text.line(&[("tube", row.tube), ("state", state)], count);
        }
    }
    text.family("taskyard_calls_total", "counter", "Calls that took effect, by tube and verb.");
    for row in tubes {
        for (verb, count) in row.calls.named() {
            text.line(&[("tube", row.tube), ("verb", verb)], count);
        }
    }
    type Value = fn(&TubeRow<'_>) -> f64;
    let families: [(&str, &str, &str, Value); 7] = [
        ("taskyard_tasks_takeable", "gauge", "Tasks that can be taken now.", |row| {
            row.takeable as f64
        }),
        ("taskyard_tasks_done_total", "counter", "Finished tasks.", |row| row.tasks.done as f64),
        ("taskyard_tasks_kept", "gauge", "Done tasks that are kept.", |row| row.tasks.kept as f64),
        ("taskyard_tube_paused", "gauge", "Whether the tube is paused.", |row| row.paused as f64),
        (
            "taskyard_oldest_ready_age_seconds",
            "gauge",
            "How long the oldest task that can be taken has been ready; 0 without such a task.",
            |row| row.oldest.as_micros() as f64 / 1e6,
        ),
        ("taskyard_waiting_consumers", "gauge", "Takes that wait for a task.", |row| {
            row.waiting.takes as f64
        }),
        ("taskyard_waiting_producers", "gauge", "Puts that wait for capacity.", |row| {
            row.waiting.puts as f64
        }),
    ];
    for (name, kind, about, of) in families {
        text.family(name, kind, about);
        for row in tubes {
            text.line(&[("tube", row.tube)], of(row));
        }
    }
}

fn write_failures(text: &mut MetricsText, tubes: &[TubeRow<'_>]) {
    let about = "Deliveries that failed on this server: reported as failed, lease expired, or session ended.";
    text.family("taskyard_failures_total", "counter", about);
    for row in tubes {
        text.line(&[("tube", row.tube)], row.failures);
    }
}

/// How well estimates held, of tubes where one was checked.
fn write_estimates(text: &mut MetricsText, tubes: &[TubeRow<'_>]) {
    let about = "Estimates that were compared with the start of their task on this server: it started by p50, after \
                 that but by p90, or late.";
    text.family("taskyard_estimate_total", "counter", about);
    for row in tubes.iter().filter(|row| row.estimates.total() > 0) {
        let Calibrated { p50, p90, late, .. } = row.estimates;
        for (within, count) in [("p50", p50), ("p90", p90), ("late", late)] {
            text.line(&[("tube", row.tube), ("within", within)], count);
        }
    }
    let about = "Estimates of this server that were not compared: the task was removed here before it started here, or \
                 too many estimates waited for the start of their task.";
    text.family("taskyard_estimate_dropped_total", "counter", about);
    for row in tubes.iter().filter(|row| row.estimates.total() + row.estimates.dropped > 0) {
        text.line(&[("tube", row.tube)], row.estimates.dropped);
    }
}

/// The histograms of wait and run times.
fn write_latencies(text: &mut MetricsText, rows: &[LatencyRow<'_>]) {
    type Of = for<'a> fn(&'a LatencyRow<'_>) -> &'a Latency;
    let families: [(&str, &str, Of); 2] = [
        (
            "taskyard_wait_seconds",
            "How long tasks had been ready when this server delivered them.",
            |row| &row.wait,
        ),
        (
            "taskyard_run_seconds",
            "How long deliveries that were acknowledged or failed on this server had lasted.",
            |row| &row.run,
        ),
    ];
    for (name, about, of) in families {
        text.family(name, "histogram", about);
        for row in rows {
            let (tube, latency) = (("tube", row.tube), of(row));
            let count = latency.count();
            if count == 0 {
                continue;
            }
            for (bound, count) in latency.cumulative() {
                let bound = bound.as_secs_f64().to_string();
                text.suffixed_line("_bucket", &[tube, ("le", &bound)], count);
            }
            text.suffixed_line("_bucket", &[tube, ("le", "+Inf")], count);
            text.suffixed_line("_sum", &[tube], latency.sum_seconds());
            text.suffixed_line("_count", &[tube], count);
        }
    }
}

/// The latest snapshot of semaphores, a few seconds old: counting the waiting tasks is expensive in
/// some stores.
fn write_semaphores(text: &mut MetricsText, snapshot: &SemaphoreSnapshot) {
    type Value = fn(&SemaphoreSnapshot, &SemaphoreInfo) -> u64;
    let families: [(&str, &str, Value); 7] = [
        ("taskyard_semaphore_waiting", "Tasks that wait for a grant.", |_, info| info.waiting),
        (
            "taskyard_semaphore_delayed",
            "Tasks that yielded and are not queued again yet.",
            |_, info| info.delayed,
        ),
        ("taskyard_semaphore_acquired", "Tasks that hold a grant.", |_, info| info.acquired),
        ("taskyard_semaphore_revoking", "Holders that were asked to release.", |_, info| {
            info.revoking
        }),
        ("taskyard_semaphore_free", "Free grants.", |_, info| {
            u64::from(info.options.active).saturating_sub(info.acquired + info.revoking)
        }),
        ("taskyard_semaphore_events", "Events that are not acknowledged.", |_, info| info.events),
        (
            "taskyard_semaphore_stalled",
            "Whether grants have been free for a waiting task, or events unfetched, for over ten seconds.",
            |snapshot, info| snapshot.is_stalled(&info.key).into(),
        ),
    ];
    for (name, about, of) in families.into_iter().filter(|_| !snapshot.infos.is_empty()) {
        text.family(name, "gauge", about);
        for info in &snapshot.infos {
            text.line(&[("semaphore", info.key.as_str())], of(snapshot, info));
        }
    }
}

fn write_store(text: &mut MetricsText, store: &Result<StoreHealth, Error>) {
    let about = "Whether the store can be read and written.";
    text.family("taskyard_store_healthy", "gauge", about);
    text.line(&[], u8::from(store.is_ok()));
    if let Ok(StoreHealth { log_bytes: Some(bytes), .. }) = store {
        let about =
            "Used bytes of the write-ahead log; it grows while another program reads the database.";
        text.family("taskyard_store_log_bytes", "gauge", about);
        text.line(&[], bytes);
    }
}

fn write_server(text: &mut MetricsText, app: &App) {
    let iproto = app.iproto.as_ref().map_or(0, |server| server.counters.connections());
    text.family("taskyard_http_connections", "gauge", "Open connections.");
    text.line(&[], app.connections().saturating_sub(iproto));
    let refused = app.requests.refused_connections.load(Ordering::Relaxed);
    let about = "Connections refused because there were too many.";
    text.family("taskyard_http_connections_refused_total", "counter", about);
    text.line(&[], refused);
    write_handshakes(text, app);
    let families: [(&str, &str, &str, u64); 6] = [
        (
            "taskyard_http_request_bytes",
            "gauge",
            "Bytes of requests being received.",
            app.request_reader.bytes() as u64,
        ),
        (
            "taskyard_http_response_bytes",
            "gauge",
            "Bytes of large responses that clients have not read yet.",
            app.response_budget.bytes() as u64,
        ),
        (
            "taskyard_login_failures_total",
            "counter",
            "Failed logins over HTTP and iproto.",
            app.throttle.failures(),
        ),
        (
            "taskyard_audit_entries_total",
            "counter",
            "Audit entries of this server.",
            app.audit.recorded(),
        ),
        (
            "taskyard_audit_errors_total",
            "counter",
            "Audit entries that could not be written to the audit file.",
            app.audit.errors(),
        ),
        (
            "taskyard_audit_refused_omitted_total",
            "counter",
            "Refused attempts without an audit entry, because their user had too many.",
            app.audit.omitted(),
        ),
    ];
    for (name, kind, about, value) in families {
        text.family(name, kind, about);
        text.line(&[], value);
    }
    text.family("taskyard_uptime_seconds", "gauge", "Time since the server started.");
    text.line(&[], app.started.elapsed().as_secs_f64());
    text.family("taskyard_info", "gauge", "Version and store of the server.");
    let store = app.engine.capabilities().name;
    text.line(&[("version", env!("CARGO_PKG_VERSION")), ("store", store)], 1);
}

/// The TLS handshakes of both addresses, where connections are encrypted.
fn write_handshakes(text: &mut MetricsText, app: &App) {
    let iproto = app.iproto.as_ref().and_then(|iproto| iproto.tls.as_ref());
    let listeners = [("http", app.tls.as_ref()), ("iproto", iproto)];
    let about = "TLS handshakes that failed, by protocol.";
    text.family("taskyard_tls_handshake_failures_total", "counter", about);
    for (protocol, listener) in listeners {
        if let Some(listener) = listener {
            text.line(&[("protocol", protocol)], listener.failures());
        }
    }
}

fn write_iproto(text: &mut MetricsText, counters: &Counters) {
    let about = "Open connections of clients of Tarantool's queue.";
    text.family("taskyard_iproto_connections", "gauge", about);
    text.line(&[], counters.connections());
    let about = "Connections of clients of Tarantool's queue refused because there were too many.";
    text.family("taskyard_iproto_connections_refused_total", "counter", about);
    text.line(&[], counters.refused_connections.load(Ordering::Relaxed));
    let about =
        "Finished requests of clients of Tarantool's queue by verb and error code; 0 is success.";
    text.family("taskyard_iproto_requests_total", "counter", about);
    for (verb, code, count) in counters.counts() {
        text.line(&[("verb", verb), ("code", &code.to_string())], count);
    }
}

fn write_services(text: &mut MetricsText, services: &[Arc<dyn Service>]) {
    if services.is_empty() {
        return;
    }
    let about = "Whether a hosted service is unhealthy.";
    text.family("taskyard_service_unhealthy", "gauge", about);
    for service in services {
        let unhealthy = service.health() != Health::Healthy;
        text.line(&[("service", service.name())], u8::from(unhealthy));
    }
    for metric in services.iter().flat_map(|service| service.metrics()) {
        text.family(metric.name, if metric.grows { "counter" } else { "gauge" }, metric.about);
        for (labels, value) in &metric.values {
            let labels: Vec<(&str, &str)> =
                labels.iter().map(|(name, value)| (*name, value.as_str())).collect();
            text.line(&labels, value);
        }
    }
}

/// The text being written.
#[derive(Default)]
struct MetricsText {
    written: String,
    name: &'static str,
    /// The number of values, including those above the limit.
    rows: usize,
}

impl MetricsText {
    /// Begins a metric.
    fn family(&mut self, name: &'static str, kind: &str, about: &str) {
        self.name = name;
        self.push(format_args!("# HELP {name} {about}\n# TYPE {name} {kind}\n"));
    }

    /// Writes one value, unless there are too many.
    fn line(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.suffixed_line("", labels, value);
    }

    /// The same for a part of a histogram.
    fn suffixed_line(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Display) {
        self.rows += 1;
        if self.rows > METRICS_ROWS_MAX {
            return;
        }
        self.written.push_str(self.name);
        self.written.push_str(suffix);
        for (place, (label, text)) in labels.iter().enumerate() {
            let before = if place == 0 { '{' } else { ',' };
            self.push(format_args!("{before}{label}=\"{}\"", Escaped(text)));
        }
        let end = if labels.is_empty() { "" } else { "}" };
        self.push(format_args!("{end} {value}\n"));
    }

    fn push(&mut self, text: fmt::Arguments<'_>) {
        self.written.write_fmt(text).expect("writing to a String cannot fail");
    }
}

/// The value of a label, with special characters escaped.
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|char| match char {
            '\\' => f.write_str("\\\\"),
            '"' => f.write_str("\\\""),
            '\n' => f.write_str("\\n"),
            char => f.write_char(char),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_cannot_be_broken_out_of() {
        let mut text = MetricsText::default();
        text.family("a", "gauge", "About.");
        text.line(&[("tube", "x\"} 1\n\\"), ("state", "y")], 7);
        text.line(&[], 0.5);
        let expected = "# HELP a About.\n# TYPE a gauge\n\
                        a{tube=\"x\\\"} 1\\n\\\\\",state=\"y\"} 7\na 0.5\n";
        assert_eq!(text.written, expected);
    }

    #[test]
    fn rows_are_limited_and_omitted_ones_counted() {
        let mut text = MetricsText::default();
        text.family("a", "gauge", "About.");
        for number in 0..METRICS_ROWS_MAX + 7 {
            text.line(&[], number);
        }
        write_omitted_rows(&mut text);
        assert_eq!(
            text.written.lines().filter(|line| line.starts_with("a ")).count(),
            METRICS_ROWS_MAX
        );
        assert!(text.written.ends_with("taskyard_metrics_rows_omitted 7\n"));
    }
}
