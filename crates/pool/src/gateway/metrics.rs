//! What is counted, in the text format of Prometheus.

use std::fmt::Write;

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};

use super::refusal;
use crate::pool::Pool;
use crate::scheduler::{ClassCounts, ClassStatus, Status};

pub(super) async fn show(State(pool): State<Pool>) -> Response {
    match pool.status().await {
        Ok(status) => {
            ([(CONTENT_TYPE, "text/plain; version=0.0.4")], text(&status)).into_response()
        }
        Err(error) => refusal(StatusCode::SERVICE_UNAVAILABLE, &error.to_string()),
    }
}

/// A number of each class.
type OfClass = fn(&ClassStatus, &ClassCounts) -> f64;

/// Name, kind, meaning and value of what each class has.
const BY_CLASS: [(&str, &str, &str, OfClass); 6] = [
    ("queued", "gauge", "Tasks that wait for room in the class.", |class, _| class.queued as f64),
    ("running", "gauge", "Tasks of the class and longer ones that run.", |class, _| {
        f64::from(class.running)
    }),
    ("limit", "gauge", "Tasks of the class and longer ones that may run.", |class, _| {
        f64::from(class.limit)
    }),
    ("started_total", "counter", "Tasks that started in the class.", |_, counts| {
        counts.started as f64
    }),
    ("waited_seconds_total", "counter", "Seconds that they had waited.", |_, counts| {
        counts.waited_seconds
    }),
    ("ran_seconds_total", "counter", "Seconds that tasks held their backends.", |_, counts| {
        counts.ran_seconds
    }),
];

/// Everything that is counted.
pub fn text(status: &Status) -> String {
    let mut text = String::new();
    for (name, kind, about, value) in BY_CLASS {
        head(&mut text, name, kind, about);
        for (class, counts) in status.classes.iter().zip(&status.counts.classes) {
            let label = class.name.replace(['\\', '"', '\n'], "_");
            let value = value(class, counts);
            let _ = writeln!(text, "taskyard_pool_{name}{{class=\"{label}\"}} {value}");
        }
    }
    let counts = &status.counts;
    let gauge = [("backends", "Live backends.", f64::from(status.backends))];
    for (name, about, value) in gauge {
        head(&mut text, name, "gauge", about);
        let _ = writeln!(text, "taskyard_pool_{name} {value}");
    }
    for (name, about, value) in [
        ("arrived_total", "Tasks that came.", counts.arrived as f64),
        ("interactive_total", "Interactive tasks that started.", counts.interactive as f64),
        ("lowered_total", "Times a running task got less time.", counts.lowered as f64),
        ("halted_total", "Interactive tasks that ended for another.", counts.halted as f64),
        ("denied_total", "Tasks that were turned away.", counts.denied as f64),
        ("left_total", "Clients that left the queue.", counts.left as f64),
        ("put_back_total", "Tasks that took their place again.", counts.put_back as f64),
        ("lost_total", "Tasks that were lost with their backend.", counts.lost as f64),
        ("told_total", "Tasks that were told when they start.", counts.told as f64),
        ("kept_total", "Those that started no later than first told.", counts.kept as f64),
        ("early_seconds_total", "Seconds tasks started early.", counts.early_seconds),
        ("late_seconds_total", "Seconds tasks started late.", counts.late_seconds),
    ] {
        head(&mut text, name, "counter", about);
        let _ = writeln!(text, "taskyard_pool_{name} {value}");
    }
    text
}

fn head(text: &mut String, name: &str, kind: &str, about: &str) {
    let _ = writeln!(text, "# HELP taskyard_pool_{name} {about}");
    let _ = writeln!(text, "# TYPE taskyard_pool_{name} {kind}");
}
