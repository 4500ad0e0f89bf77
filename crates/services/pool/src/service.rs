//! Reports health, metrics and status of the pool to the server that hosts it.

use std::time::Duration;

use taskyard_core::service::{Health, Metric, PartStatus, Service, StopFuture};

use crate::backend::SandboxCounts;
use crate::pool::Pool;
use crate::scheduler::{ClassCounts, ClassStatus, Counts, Status};

/// How long programs may continue when the pool is asked to stop.
const GRACE: Duration = Duration::from_secs(5);
/// The value of the label `class` for interactive tasks.
const INTERACTIVE: &str = "interactive";

impl Service for Pool {
    fn name(&self) -> &'static str {
        "pool"
    }

    fn health(&self) -> Health {
        if !self.0.scheduler.is_running() {
            return Health::Unhealthy("the pool is stopping".into());
        }
        let status = self.0.scheduler.status_now();
        match status.inconsistency {
            Some(inconsistency) => Health::Unhealthy(inconsistency),
            None if status.backends == 0 => Health::Unhealthy("no backend is alive".into()),
            None => Health::Healthy,
        }
    }

    fn metrics(&self) -> Vec<Metric> {
        let mut metrics = metrics_of(&self.0.scheduler.status_now());
        metrics.extend(sandbox_metrics(self.0.backends.sandboxes()));
        metrics
    }

    fn status(&self) -> Vec<PartStatus> {
        lines_of(&self.0.scheduler.status_now())
    }

    fn stop(&self) -> StopFuture<'_> {
        Box::pin(Pool::stop(self, GRACE))
    }
}

/// All metrics of a pool.
pub(crate) fn metrics_of(status: &Status) -> Vec<Metric> {
    let of_classes = BY_CLASS.iter().map(|metric| metric.metric(status));
    let totals = TOTALS.iter().map(|(name, about, of)| {
        let values = vec![(Vec::new(), of(&status.counts) as f64)];
        Metric { name, about, grows: true, values }
    });
    of_classes.chain(totals).chain([within(status), backends(status)]).collect()
}

/// A line for each class.
pub(crate) fn lines_of(status: &Status) -> Vec<PartStatus> {
    let lines = status.by_class().map(|(class, counts)| PartStatus {
        part: class.name.clone(),
        status: format!(
            "{} of {} running, {} waiting, {} started",
            class.running, class.limit, class.queued, counts.started
        ),
    });
    lines.collect()
}

/// A metric with a value for each class, and optionally one for interactive tasks.
struct ClassMetric {
    name: &'static str,
    about: &'static str,
    grows: bool,
    class: fn(&ClassStatus, &ClassCounts) -> f64,
    interactive: Option<fn(&Status) -> f64>,
}

impl ClassMetric {
    const fn gauge(
        name: &'static str,
        about: &'static str,
        class: fn(&ClassStatus, &ClassCounts) -> f64,
    ) -> Self {
        ClassMetric { name, about, grows: false, class, interactive: None }
    }

    const fn counter(
        name: &'static str,
        about: &'static str,
        class: fn(&ClassStatus, &ClassCounts) -> f64,
    ) -> Self {
        ClassMetric { name, about, grows: true, class, interactive: None }
    }

    const fn and_interactive(mut self, of: fn(&Status) -> f64) -> Self {
        self.interactive = Some(of);
        self
    }

    fn metric(&self, status: &Status) -> Metric {
        let label = |class: &str| vec![("class", class.to_owned())];
        let classes = status.by_class();
        let values =
            classes.map(|(class, counts)| (label(&class.name), (self.class)(class, counts)));
        let interactive = self.interactive.map(|of| (label(INTERACTIVE), of(status)));
        let values = values.chain(interactive).collect();
        Metric { name: self.name, about: self.about, grows: self.grows, values }
    }
}

const BY_CLASS: [ClassMetric; 14] = [
    ClassMetric::gauge("taskyard_pool_queued", "Tasks waiting for the class.", |class, _| {
        class.queued as f64
    }),
    ClassMetric::gauge(
        "taskyard_pool_running",
        "Running tasks of the class and of longer ones; interactive tasks also count in the first.",
        |class, _| class.running.into(),
    )
    .and_interactive(|status| status.interactive as f64),
    ClassMetric::gauge(
        "taskyard_pool_limit",
        "Most tasks of the class and of longer ones that may run.",
        |class, _| class.limit.into(),
    ),
    ClassMetric::counter(
        "taskyard_pool_admitted_total",
        "Tasks that were queued for the class, however briefly, and started.",
        |_, counts| counts.admitted as f64,
    ),
    ClassMetric::counter(
        "taskyard_pool_waited_seconds_total",
        "Seconds that admitted tasks waited.",
        |_, counts| counts.waited_seconds,
    ),
    ClassMetric::counter(
        "taskyard_pool_started_total",
        "Tasks started in the class.",
        |_, counts| counts.started as f64,
    )
    .and_interactive(|status| status.counts.interactive as f64),
    ClassMetric::counter("taskyard_pool_ended_total", "Tasks ended in the class.", |_, counts| {
        counts.ended as f64
    }),
    ClassMetric::counter(
        "taskyard_pool_ran_seconds_total",
        "Seconds that ended tasks held their backends.",
        |_, counts| counts.ran_seconds,
    ),
    ClassMetric::counter(
        "taskyard_pool_lowered_total",
        "Running tasks lowered out of the class.",
        |_, counts| counts.lowered as f64,
    ),
    ClassMetric::counter("taskyard_pool_denied_total", "Tasks denied.", |_, counts| {
        counts.denied as f64
    })
    .and_interactive(|status| status.counts.interactive_denied as f64),
    ClassMetric::counter(
        "taskyard_pool_estimates_given_total",
        "Started tasks that had received an estimate.",
        |_, counts| counts.estimates.estimates_given as f64,
    ),
    ClassMetric::counter(
        "taskyard_pool_estimates_met_total",
        "Started tasks that started no later than their first estimate.",
        |_, counts| counts.estimates.estimates_met as f64,
    ),
    ClassMetric::counter(
        "taskyard_pool_early_seconds_total",
        "Seconds by which tasks started before the bound of their first estimate.",
        |_, counts| counts.estimates.early_seconds,
    ),
    ClassMetric::counter(
        "taskyard_pool_late_seconds_total",
        "Seconds by which tasks started after the bound of their first estimate.",
        |_, counts| counts.estimates.late_seconds,
    ),
];

/// Name, description and value of a counter without a class.
type TotalMetric = (&'static str, &'static str, fn(&Counts) -> u64);

const TOTALS: [TotalMetric; 5] = [
    ("taskyard_pool_arrived_total", "Tasks submitted.", |counts| counts.arrived),
    ("taskyard_pool_halted_total", "Interactive tasks halted for another task.", |counts| {
        counts.halted
    }),
    ("taskyard_pool_left_total", "Clients that left the queue.", |counts| counts.left),
    ("taskyard_pool_requeued_total", "Tasks requeued after a lost run.", |counts| counts.requeued),
    ("taskyard_pool_lost_total", "Tasks lost with their backend.", |counts| counts.lost),
];

/// The metrics of sandboxes that are started ahead of tasks.
fn sandbox_metrics(sandboxes: SandboxCounts) -> [Metric; 2] {
    let values = |value: f64| vec![(Vec::new(), value)];
    let ready = Metric {
        name: "taskyard_pool_sandboxes_ready",
        about: "Sandboxes ready for a task.",
        grows: false,
        values: values(sandboxes.ready as f64),
    };
    let used = Metric {
        name: "taskyard_pool_sandboxes_used_total",
        about: "Tasks that started in a ready sandbox.",
        grows: true,
        values: values(sandboxes.used as f64),
    };
    [ready, used]
}

/// How many likely starts held.
fn within(status: &Status) -> Metric {
    let values = status.by_class().flat_map(|(class, counts)| {
        let within = counts.estimates.within;
        [("p50", within.p50), ("p90", within.p90), ("late", within.late)].map(|(name, count)| {
            let labels = vec![("class", class.name.clone()), ("within", name.to_owned())];
            (labels, count as f64)
        })
    });
    Metric {
        name: "taskyard_pool_estimate_total",
        about: "Started tasks by the likely start in their first estimate.",
        grows: true,
        values: values.collect(),
    }
}

fn backends(status: &Status) -> Metric {
    let values = vec![(Vec::new(), status.backends.into())];
    Metric { name: "taskyard_pool_backends", about: "Live backends.", grows: false, values }
}
