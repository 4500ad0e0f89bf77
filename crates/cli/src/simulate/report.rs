//! The waits of a replay beside the recorded ones, as a table, as plots and as JSON.

use std::io;

use serde::Serialize;
use taskyard_trace::{RecordedTube, Replayed, ReplayedTube, Trace, WaitFigures};

use super::plot;
use crate::output::{self, plural, printable};
use crate::units;

/// How many tubes get plots.
const PLOTS_MAX: usize = 5;

/// What is shown.
pub struct WaitReport<'a> {
    trace: &'a Trace,
    replayed: Replayed,
    /// Of each tube: the recorded and the simulated figures.
    figures: Vec<[WaitFigures; 2]>,
}

/// The figures of one side in JSON, in seconds.
#[derive(Serialize)]
struct SideJson {
    #[serde(skip_serializing_if = "Option::is_none")]
    consumers: Option<u32>,
    deliveries: u64,
    p50: f64,
    p90: f64,
    p99: f64,
    max: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    drain: Option<f64>,
    /// How long a consumer needs from the end of a delivery to the next one.
    #[serde(skip_serializing_if = "Option::is_none")]
    turnaround: Option<f64>,
    /// Tasks that nothing can take.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting: Option<u64>,
}

/// A tube or a class in JSON.
#[derive(Default, Serialize)]
pub struct RowJson {
    #[serde(skip_serializing_if = "Option::is_none")]
    tube: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    class: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    recorded: Option<SideJson>,
    simulated: Option<SideJson>,
}

impl<'a> WaitReport<'a> {
    /// Computes the figures.
    pub fn new(trace: &'a Trace, mut replayed: Replayed) -> Self {
        let recorded = trace.recorded_figures();
        let simulated = replayed.tubes.iter_mut().map(ReplayedTube::figures);
        let figures = recorded.into_iter().zip(simulated).map(|(old, new)| [old, new]).collect();
        WaitReport { trace, replayed, figures }
    }

    /// One row for each tube and class.
    pub fn json(&self) -> Vec<RowJson> {
        let tubes = self.tubes().map(|(recorded, simulated, [old, new])| RowJson {
            tube: Some(recorded.name.clone()),
            recorded: Some(SideJson {
                consumers: Some(recorded.consumers.most()),
                drain: Some(seconds(recorded_drain(recorded))),
                turnaround: Some(seconds(recorded.consumers.turnaround())),
                ..SideJson::new(old)
            }),
            simulated: Some(SideJson {
                consumers: Some(simulated.consumers.unwrap_or(recorded.consumers.most())),
                drain: Some(seconds(simulated_drain(recorded, simulated))),
                waiting: Some(simulated.waiting),
                ..SideJson::new(new)
            }),
            ..RowJson::default()
        });
        let classes = self.replayed.classes.iter().map(|(name, figures)| RowJson {
            class: Some(name.clone()),
            simulated: Some(SideJson::new(figures)),
            ..RowJson::default()
        });
        tubes.chain(classes).collect()
    }

    /// Prints the table and the plots.
    pub fn print(&self) -> io::Result<()> {
        let length = units::in_words(self.trace.end as f64 / 1e6);
        let began = units::utc(self.trace.wall_start as f64 / 1e6);
        let tasks = plural(self.trace.len() as u64, "task");
        let tubes = plural(self.trace.tubes.len() as u64, "tube");
        output::line(format!("{tasks} of {tubes} in {length} from {began}\n"))?;
        self.print_table()?;
        self.print_plots()?;
        self.print_notes();
        Ok(())
    }

    fn tubes(&self) -> impl Iterator<Item = (&RecordedTube, &ReplayedTube, &[WaitFigures; 2])> {
        let both = self.trace.tubes.iter().zip(&self.replayed.tubes).zip(&self.figures);
        both.map(|((recorded, simulated), figures)| (recorded, simulated, figures))
    }

    fn print_table(&self) -> io::Result<()> {
        let header = ["tube", "", "consumers", "taken", "p50", "p90", "p99", "max", "drain"];
        let mut table = output::table(&header);
        table.align_right_from(2);
        for (recorded, simulated, [old, new]) in self.tubes() {
            let most = recorded.consumers.most();
            let name = printable(&recorded.name);
            let consumers = most.to_string();
            table.add_row(row([name, "recorded".into(), consumers], old, recorded_drain(recorded)));
            let consumers = simulated.consumers.unwrap_or(most).to_string();
            let drain = simulated_drain(recorded, simulated);
            table.add_row(row([String::new(), "simulated".into(), consumers], new, drain));
        }
        for (name, figures) in &self.replayed.classes {
            let cells = [format!("class {}", printable(name)), "simulated".into(), String::new()];
            let mut cells = row(cells, figures, 0);
            cells.pop();
            table.add_row(cells);
        }
        output::show(&table)
    }

    fn print_plots(&self) -> io::Result<()> {
        let mut order: Vec<usize> = (0..self.figures.len()).collect();
        order.sort_by_key(|tube| std::cmp::Reverse(self.figures[*tube][0].count));
        let waits = self.trace.recorded_waits();
        for tube in
            order.into_iter().take(PLOTS_MAX).filter(|tube| self.figures[*tube][0].count > 0)
        {
            let name = printable(&self.trace.tubes[tube].name);
            let simulated = &self.replayed.tubes[tube];
            output::line(format!("\n{name}"))?;
            output::line(plot::distribution(&waits[tube], &simulated.waits))?;
            let curves = [self.trace.recorded_curve(tube), &simulated.curve];
            output::line(plot::over_time(curves, self.trace.end.max(self.replayed.end)))?;
        }
        Ok(())
    }

    fn print_notes(&self) {
        for (recorded, simulated, _) in self.tubes().filter(|tube| tube.1.waiting > 0) {
            let tasks = plural(simulated.waiting, "task");
            let name = printable(&recorded.name);
            output::note(format!(
                "{name}: {tasks} still wait at the end, because nothing can take them"
            ));
        }
        if self.replayed.cut > 0 {
            let tasks = plural(self.replayed.cut, "task");
            output::note(format!(
                "{tasks} would be ended before their recorded run time: the longest class is shorter"
            ));
        }
        if self.replayed.denied > 0 {
            let tasks = plural(self.replayed.denied, "task");
            output::note(format!("{tasks} would be refused: too many wait in the pool"));
        }
        if self.figures.len() > PLOTS_MAX {
            output::note(format!("the {PLOTS_MAX} tubes with the most deliveries are drawn"));
        }
    }
}

impl SideJson {
    fn new(figures: &WaitFigures) -> Self {
        let WaitFigures { count, p50, p90, p99, max } = *figures;
        SideJson {
            consumers: None,
            deliveries: count,
            p50: seconds(p50),
            p90: seconds(p90),
            p99: seconds(p99),
            max: seconds(max),
            drain: None,
            turnaround: None,
            waiting: None,
        }
    }
}

fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

/// The time from the last put until the last delivery ended.
fn recorded_drain(tube: &RecordedTube) -> u64 {
    tube.last_end.saturating_sub(tube.last_put)
}

fn simulated_drain(recorded: &RecordedTube, simulated: &ReplayedTube) -> u64 {
    simulated.last_end.saturating_sub(recorded.last_put)
}

fn row(begin: [String; 3], figures: &WaitFigures, drain: u64) -> Vec<String> {
    let WaitFigures { count, p50, p90, p99, max } = *figures;
    let mut cells = begin.to_vec();
    cells.push(count.to_string());
    let time = |micros| if count == 0 { "-".into() } else { plot::duration(micros) };
    cells.extend([p50, p90, p99, max, drain].map(time));
    cells
}
