//! Counters, in the text format of Prometheus.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::{MatchedPath, Request};
use axum::http::{Method, StatusCode};
use taskyard_core::command::TubeInfo;
use taskyard_core::service::{Health, Service};
use taskyard_core::{Error, SemaphoreInfo, Span, Timestamp, TubeName};
use taskyard_engine::{StoreHealth, WaitingCount};

use crate::app::App;
use crate::iproto::Counters;
use crate::stalled::{Seen, now};

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
    write_tubes(&mut text, tubes);
    write_ages(&mut text, tubes, now());
    write_waiting(&mut text, tubes, waiting);
    write_semaphores(&mut text, &app.lookout.seen());
    app.requests.write(&mut text);
    if let Some(face) = &app.iproto {
        write_iproto(&mut text, &face.counters);
    }
    write_services(&mut text, &app.services);
    write_store(&mut text, store);
    write_server(&mut text, app);
    text.written
}

fn write_tubes(text: &mut Text, tubes: &[TubeInfo]) {
    text.family("taskyard_tasks", "gauge", "Tasks by tube and state.");
    for info in tubes {
        let tasks = &info.stats.tasks;
        for (state, count) in [
            ("ready", tasks.ready),
            ("taken", tasks.taken),
            ("buried", tasks.buried),
            ("delayed", tasks.delayed),
        ] {
            text.line(&[("tube", info.name.as_str()), ("state", state)], count);
        }
    }
    text.family("taskyard_calls_total", "counter", "What took effect, by tube and verb.");
    for info in tubes {
        for (verb, count) in info.stats.calls.named() {
            text.line(&[("tube", info.name.as_str()), ("verb", verb)], count);
        }
    }
    type Of = fn(&TubeInfo) -> u64;
    let families: [(&str, &str, &str, Of); 3] = [
        ("taskyard_tasks_takeable", "gauge", "Tasks that could be taken right now.", |info| {
            info.takeable
        }),
        ("taskyard_tasks_done_total", "counter", "Tasks that are finished.", |info| {
            info.stats.tasks.done
        }),
        ("taskyard_tube_paused", "gauge", "Whether the tube is paused.", |info| {
            info.options.paused.into()
        }),
    ];
    for (name, kind, about, of) in families {
        text.family(name, kind, about);
        for info in tubes {
            text.line(&[("tube", info.name.as_str())], of(info));
        }
    }
}

/// For how long the oldest task of each tube has been ready.
fn write_ages(text: &mut Text, tubes: &[TubeInfo], now: Timestamp) {
    let about = "For how long the oldest task that could be taken has been ready, 0 without one.";
    text.family("taskyard_oldest_ready_age_seconds", "gauge", about);
    for info in tubes {
        let age = info.oldest_ready.map_or(Span::ZERO, |since| now.since(since));
        text.line(&[("tube", info.name.as_str())], age.as_micros() as f64 / 1e6);
    }
}

fn write_waiting(text: &mut Text, tubes: &[TubeInfo], waiting: &BTreeMap<TubeName, WaitingCount>) {
    let count = |info: &TubeInfo| waiting.get(&info.name).copied().unwrap_or_default();
    text.family("taskyard_waiting_consumers", "gauge", "Takes that wait for a task.");
    for info in tubes {
        text.line(&[("tube", info.name.as_str())], count(info).takes);
    }
    text.family("taskyard_waiting_producers", "gauge", "Puts that wait for room.");
    for info in tubes {
        text.line(&[("tube", info.name.as_str())], count(info).puts);
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
}

impl Text {
    /// Begins the lines of one name.
    fn family(&mut self, name: &'static str, kind: &str, about: &str) {
        self.name = name;
        self.push(format_args!("# HELP {name} {about}\n# TYPE {name} {kind}\n"));
    }

    /// One value.
    fn line(&mut self, labels: &[(&str, &str)], value: impl Display) {
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
}
