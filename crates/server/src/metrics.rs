//! Counters, in the text format of Prometheus.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::{MatchedPath, Request};
use axum::http::{Method, StatusCode};
use taskyard_core::command::TubeInfo;
use taskyard_core::limits::METRICS_ROWS_MAX;
use taskyard_core::service::{Health, Service};
use taskyard_core::{Error, SemaphoreInfo, TubeName};
use taskyard_engine::{StoreHealth, WaitingCount};

use crate::app::App;
use crate::iproto::Counters;
use crate::stalled::{Seen, now};
use crate::tube_rows::{TubeRow, rows};

/// What was asked of the server so far.
#[derive(Default)]
pub(crate) struct Requests {
    /// By route, method and status. Routes are few and known, so this stays small.
    finished: Mutex<BTreeMap<String, Statuses>>,
    /// Connections that were refused because there are too many.
    pub refused_connections: AtomicU64,
}

/// How often a method was answered with a status.
type Statuses = BTreeMap<(&'static str, u16), u64>;

/// A request that is being answered.
pub(crate) struct Counted {
    route: Option<MatchedPath>,
    method: &'static str,
}

impl Requests {
    /// Remembers what is asked until the status is known.
    pub fn begin(&self, request: &Request) -> Counted {
        let route = request.extensions().get::<MatchedPath>().cloned();
        Counted { route, method: method_name(request.method()) }
    }

    /// Counts a request that was answered.
    pub fn end(&self, counted: Counted, status: StatusCode) {
        let route = counted.route.as_ref().map_or("", MatchedPath::as_str);
        let key = (counted.method, status.as_u16());
        let mut finished = self.finished.lock().unwrap_or_else(PoisonError::into_inner);
        match finished.get_mut(route) {
            Some(counts) => *counts.entry(key).or_default() += 1,
            None => {
                finished.insert(route.into(), BTreeMap::from([(key, 1)]));
            }
        }
    }

    fn write(&self, text: &mut Text) {
        text.family("taskyard_http_requests_total", "counter", "Requests that were answered.");
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

/// The names of the usual methods; everything else is one, or callers could make up any number.
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

/// All counters as text.
pub(crate) fn text(
    app: &App,
    tubes: &[TubeInfo],
    waiting: &BTreeMap<TubeName, WaitingCount>,
    store: &Result<StoreHealth, Error>,
) -> String {
    let mut text = Text::default();
    write_server(&mut text, app);
    let tubes = rows(tubes, waiting, now(), app.metrics_tubes_max);
    write_tubes(&mut text, &tubes);
    write_semaphores(&mut text, &app.lookout.seen());
    app.requests.write(&mut text);
    if let Some(face) = &app.iproto {
        write_iproto(&mut text, &face.counters);
    }
    write_services(&mut text, &app.services);
    write_store(&mut text, store);
    write_left_out(&mut text);
    text.written
}

/// How many rows there was no room for.
fn write_left_out(text: &mut Text) {
    let left_out = text.rows.saturating_sub(METRICS_ROWS_MAX);
    text.rows = 0;
    let about = "Rows that are left out because there are too many.";
    text.family("taskyard_metrics_rows_left_out", "gauge", about);
    text.line(&[], left_out);
}

fn write_tubes(text: &mut Text, tubes: &[TubeRow<'_>]) {
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
    text.family("taskyard_calls_total", "counter", "What took effect, by tube and verb.");
    for row in tubes {
        for (verb, count) in row.calls.named() {
            text.line(&[("tube", row.tube), ("verb", verb)], count);
        }
    }
    type Of = fn(&TubeRow<'_>) -> f64;
    let families: [(&str, &str, &str, Of); 6] = [
        ("taskyard_tasks_takeable", "gauge", "Tasks that could be taken right now.", |row| {
            row.takeable as f64
        }),
        ("taskyard_tasks_done_total", "counter", "Tasks that are finished.", |row| {
            row.tasks.done as f64
        }),
        ("taskyard_tube_paused", "gauge", "Whether the tube is paused.", |row| row.paused as f64),
        (
            "taskyard_oldest_ready_age_seconds",
            "gauge",
            "For how long the oldest task that could be taken has been ready, 0 without one.",
            |row| row.oldest.as_micros() as f64 / 1e6,
        ),
        ("taskyard_waiting_consumers", "gauge", "Takes that wait for a task.", |row| {
            row.waiting.takes as f64
        }),
        ("taskyard_waiting_producers", "gauge", "Puts that wait for room.", |row| {
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

/// Semaphores as they stood a few seconds ago: to count who waits is not cheap everywhere.
fn write_semaphores(text: &mut Text, seen: &Seen) {
    type Of = fn(&Seen, &SemaphoreInfo) -> u64;
    let families: [(&str, &str, Of); 7] = [
        ("taskyard_semaphore_waiting", "Who stands in line.", |_, info| info.waiting),
        ("taskyard_semaphore_delayed", "Who yielded and is not in line again.", |_, info| {
            info.delayed
        }),
        ("taskyard_semaphore_acquired", "Who holds a grant.", |_, info| info.acquired),
        ("taskyard_semaphore_revoking", "Who was asked to release.", |_, info| info.revoking),
        ("taskyard_semaphore_free", "Places that are free.", |_, info| {
            u64::from(info.options.active).saturating_sub(info.acquired + info.revoking)
        }),
        ("taskyard_semaphore_events", "Events that are not acknowledged.", |_, info| info.events),
        (
            "taskyard_semaphore_stalled",
            "Whether places are free for somebody, or events are due, for over ten seconds.",
            |seen, info| seen.is_stalled(&info.key).into(),
        ),
    ];
    for (name, about, of) in families.into_iter().filter(|_| !seen.infos.is_empty()) {
        text.family(name, "gauge", about);
        for info in &seen.infos {
            text.line(&[("semaphore", info.key.as_str())], of(seen, info));
        }
    }
}

fn write_store(text: &mut Text, store: &Result<StoreHealth, Error>) {
    let about = "Whether the store can be read and written.";
    text.family("taskyard_store_healthy", "gauge", about);
    text.line(&[], u8::from(store.is_ok()));
    if let Ok(StoreHealth { log_bytes: Some(bytes), .. }) = store {
        let about = "How much of the write-ahead log is used; it grows while another program reads the database.";
        text.family("taskyard_store_log_bytes", "gauge", about);
        text.line(&[], bytes);
    }
}

fn write_server(text: &mut Text, app: &App) {
    let iproto = app.iproto.as_ref().map_or(0, |face| face.counters.connections());
    text.family("taskyard_http_connections", "gauge", "Open connections.");
    text.line(&[], app.connections().saturating_sub(iproto));
    let refused = app.requests.refused_connections.load(Ordering::Relaxed);
    let about = "Connections that were refused because there are too many.";
    text.family("taskyard_http_connections_refused_total", "counter", about);
    text.line(&[], refused);
    let families: [(&str, &str, &str, u64); 3] = [
        (
            "taskyard_http_request_bytes",
            "gauge",
            "Bytes of requests that are being received.",
            app.intake.bytes() as u64,
        ),
        (
            "taskyard_http_answer_bytes",
            "gauge",
            "Bytes of large answers that clients have not read yet.",
            app.answers.bytes() as u64,
        ),
        (
            "taskyard_login_failures_total",
            "counter",
            "Logins that failed, over HTTP or iproto.",
            app.throttle.failures(),
        ),
    ];
    for (name, kind, about, value) in families {
        text.family(name, kind, about);
        text.line(&[], value);
    }
    text.family("taskyard_uptime_seconds", "gauge", "For how long the server has been running.");
    text.line(&[], app.started.elapsed().as_secs_f64());
    text.family("taskyard_info", "gauge", "Version and store of the server.");
    let store = app.engine.capabilities().name;
    text.line(&[("version", env!("CARGO_PKG_VERSION")), ("store", store)], 1);
}

fn write_iproto(text: &mut Text, counters: &Counters) {
    let about = "Open connections of clients of Tarantool's queue.";
    text.family("taskyard_iproto_connections", "gauge", about);
    text.line(&[], counters.connections());
    let about = "Such connections that were refused because there are too many.";
    text.family("taskyard_iproto_connections_refused_total", "counter", about);
    text.line(&[], counters.refused_connections.load(Ordering::Relaxed));
    let about = "Their requests that were answered; the code of the fault, 0 is none.";
    text.family("taskyard_iproto_requests_total", "counter", about);
    for (verb, code, count) in counters.counts() {
        text.line(&[("verb", verb), ("code", &code.to_string())], count);
    }
}

fn write_services(text: &mut Text, services: &[Arc<dyn Service>]) {
    if services.is_empty() {
        return;
    }
    let about = "Whether something keeps a service from its work.";
    text.family("taskyard_service_troubled", "gauge", about);
    for service in services {
        let troubled = service.health() != Health::Well;
        text.line(&[("service", service.name())], u8::from(troubled));
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

/// The text while it is written.
#[derive(Default)]
struct Text {
    written: String,
    name: &'static str,
    /// How many values there are, also those there was no room for.
    rows: usize,
}

impl Text {
    /// Begins the lines of one name.
    fn family(&mut self, name: &'static str, kind: &str, about: &str) {
        self.name = name;
        self.push(format_args!("# HELP {name} {about}\n# TYPE {name} {kind}\n"));
    }

    /// One value, if there is room for it.
    fn line(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.rows += 1;
        if self.rows > METRICS_ROWS_MAX {
            return;
        }
        self.written.push_str(self.name);
        for (place, (label, text)) in labels.iter().enumerate() {
            let before = if place == 0 { '{' } else { ',' };
            self.push(format_args!("{before}{label}=\"{}\"", Escaped(text)));
        }
        let end = if labels.is_empty() { "" } else { "}" };
        self.push(format_args!("{end} {value}\n"));
    }

    fn push(&mut self, text: fmt::Arguments<'_>) {
        self.written.write_fmt(text).expect("a String takes any text");
    }
}

/// A label's value: what would end it is written with a backslash.
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
        let mut text = Text::default();
        text.family("a", "gauge", "About.");
        text.line(&[("tube", "x\"} 1\n\\"), ("state", "y")], 7);
        text.line(&[], 0.5);
        let expected = "# HELP a About.\n# TYPE a gauge\n\
                        a{tube=\"x\\\"} 1\\n\\\\\",state=\"y\"} 7\na 0.5\n";
        assert_eq!(text.written, expected);
    }

    #[test]
    fn rows_are_limited_and_those_left_out_counted() {
        let mut text = Text::default();
        text.family("a", "gauge", "About.");
        for number in 0..METRICS_ROWS_MAX + 7 {
            text.line(&[], number);
        }
        write_left_out(&mut text);
        assert_eq!(
            text.written.lines().filter(|line| line.starts_with("a ")).count(),
            METRICS_ROWS_MAX
        );
        assert!(text.written.ends_with("taskyard_metrics_rows_left_out 7\n"));
    }
}
