//! The pool as something that a server hosts: how it is, what it counts, how it ends.

use std::time::Duration;

use taskyard_core::service::{Health, Line, Metric, Service, Stopping};

use crate::backend::Walls;
use crate::pool::Pool;
use crate::scheduler::{ClassCounts, ClassStatus, Counts, Status};

/// How long programs may go on when the pool is told to stop.
const GRACE: Duration = Duration::from_secs(5);
/// What stands for a class where interactive tasks are counted.
const INTERACTIVE: &str = "interactive";

impl Service for Pool {
    fn name(&self) -> &'static str {
        "pool"
    }

    fn health(&self) -> Health {
        if !self.0.scheduler.is_running() {
            return Health::Troubled("it is stopping".into());
        }
        let status = self.0.scheduler.glance();
        match status.wrong {
            Some(wrong) => Health::Troubled(wrong),
            None if status.backends == 0 => Health::Troubled("no backend is alive".into()),
            None => Health::Well,
        }
    }

    fn metrics(&self) -> Vec<Metric> {
        let mut metrics = metrics_of(&self.0.scheduler.glance());
        metrics.extend(walls(self.0.backends.walls()));
        metrics
    }

    fn status(&self) -> Vec<Line> {
        lines_of(&self.0.scheduler.glance())
    }

    fn stop(&self) -> Stopping<'_> {
        Box::pin(Pool::stop(self, GRACE))
    }
}

/// What a pool counts.
pub(crate) fn metrics_of(status: &Status) -> Vec<Metric> {
    let of_classes = BY_CLASS.iter().map(|family| family.metric(status));
    let sums = SUMS.iter().map(|(name, about, of)| {
        let values = vec![(Vec::new(), of(&status.counts) as f64)];
        Metric { name, about, grows: true, values }
    });
    of_classes.chain(sums).chain([backends(status)]).collect()
}

/// A line for each class.
pub(crate) fn lines_of(status: &Status) -> Vec<Line> {
    let lines = status.by_class().map(|(class, counts)| Line {
        part: class.name.clone(),
        words: format!(
            "{} of {} run, {} wait, {} started",
            class.running, class.limit, class.queued, counts.started
        ),
    });
    lines.collect()
}

/// A number that each class has, and perhaps interactive tasks too.
struct Family {
    name: &'static str,
    about: &'static str,
    grows: bool,
    class: fn(&ClassStatus, &ClassCounts) -> f64,
    interactive: Option<fn(&Status) -> f64>,
}

impl Family {
    const fn gauge(
        name: &'static str,
        about: &'static str,
        class: fn(&ClassStatus, &ClassCounts) -> f64,
    ) -> Self {
        Family { name, about, grows: false, class, interactive: None }
    }

    const fn counter(
        name: &'static str,
        about: &'static str,
        class: fn(&ClassStatus, &ClassCounts) -> f64,
    ) -> Self {
        Family { name, about, grows: true, class, interactive: None }
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

const BY_CLASS: [Family; 15] = [
    Family::gauge("taskyard_pool_queued", "Tasks that wait for room in the class.", |class, _| {
        class.queued as f64
    }),
    Family::gauge(
        "taskyard_pool_running",
        "Tasks of the class and longer ones that run; interactive ones count in the first, too.",
        |class, _| class.running.into(),
    )
    .and_interactive(|status| status.interactive as f64),
    Family::gauge(
        "taskyard_pool_limit",
        "Tasks of the class and longer ones that may run.",
        |class, _| class.limit.into(),
    ),
    Family::counter(
        "taskyard_pool_admitted_total",
        "Tasks that waited for room in the class, perhaps not at all, and started.",
        |_, counts| counts.admitted as f64,
    ),
    Family::counter(
        "taskyard_pool_waited_seconds_total",
        "Seconds that they had waited.",
        |_, counts| counts.waited_seconds,
    ),
    Family::counter("taskyard_pool_started_total", "Tasks that started in it.", |_, counts| {
        counts.started as f64
    })
    .and_interactive(|status| status.counts.interactive as f64),
    Family::counter("taskyard_pool_ended_total", "Tasks that ended in it.", |_, counts| {
        counts.ended as f64
    }),
    Family::counter(
        "taskyard_pool_ran_seconds_total",
        "Seconds that they held their backends.",
        |_, counts| counts.ran_seconds,
    ),
    Family::counter(
        "taskyard_pool_lowered_total",
        "Times a running task was lowered out of the class.",
        |_, counts| counts.lowered as f64,
    ),
    Family::counter("taskyard_pool_denied_total", "Tasks that were turned away.", |_, counts| {
        counts.denied as f64
    })
    .and_interactive(|status| status.counts.interactive_denied as f64),
    Family::counter(
        "taskyard_pool_told_total",
        "Tasks that were told when they start, and started.",
        |_, counts| counts.estimates.told as f64,
    ),
    Family::counter(
        "taskyard_pool_kept_total",
        "Those of them that started no later than first told.",
        |_, counts| counts.estimates.kept as f64,
    ),
    Family::counter(
        "taskyard_pool_early_seconds_total",
        "Seconds by which tasks started before the latest moment they were first told.",
        |_, counts| counts.estimates.early_seconds,
    ),
    Family::counter(
        "taskyard_pool_late_seconds_total",
        "Seconds by which tasks started after it.",
        |_, counts| counts.estimates.late_seconds,
    ),
    Family::counter(
        "taskyard_pool_expected_error_seconds_total",
        "Seconds between the start of tasks and what was first expected.",
        |_, counts| counts.estimates.expected_error_seconds,
    ),
];

/// Name, meaning and value of what belongs to no class.
type Sum = (&'static str, &'static str, fn(&Counts) -> u64);

const SUMS: [Sum; 5] = [
    ("taskyard_pool_arrived_total", "Tasks that came.", |counts| counts.arrived),
    ("taskyard_pool_halted_total", "Interactive tasks that ended for another.", |counts| {
        counts.halted
    }),
    ("taskyard_pool_left_total", "Clients that left the queue.", |counts| counts.left),
    ("taskyard_pool_put_back_total", "Tasks that took their place again.", |counts| {
        counts.put_back
    }),
    ("taskyard_pool_lost_total", "Tasks that were lost with their backend.", |counts| counts.lost),
];

/// What stands before its task comes.
fn walls(walls: Walls) -> [Metric; 2] {
    let values = |value: f64| vec![(Vec::new(), value)];
    let ready = Metric {
        name: "taskyard_pool_walls_ready",
        about: "Walls that stand ready for a task.",
        grows: false,
        values: values(walls.ready as f64),
    };
    let used = Metric {
        name: "taskyard_pool_walls_used_total",
        about: "Tasks that found theirs ready.",
        grows: true,
        values: values(walls.used as f64),
    };
    [ready, used]
}

fn backends(status: &Status) -> Metric {
    let values = vec![(Vec::new(), status.backends.into())];
    Metric { name: "taskyard_pool_backends", about: "Live backends.", grows: false, values }
}
