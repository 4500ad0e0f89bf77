//! Positions in large tubes whose ids or priorities do not show at once how many tasks are ahead.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use hdrhistogram::Histogram;
use taskyard::{Client, Kind, TaskId, TubeOptions};

use super::Size;
use super::load::{self, Load};
use super::report::{Report, Row, Target};

/// Positions whose time is measured.
const PLACES: u64 = 200;
/// How many tasks a command puts or deletes.
const TOGETHER: usize = 1_000;

/// The tasks of a tube.
struct Shape {
    tube: &'static str,
    name: &'static str,
    priorities: usize,
    /// Every n-th id is missing, beginning with 0.
    missing: Option<usize>,
}

const SHAPES: [Shape; 2] = [
    Shape { tube: "missing", name: "a fifth of the ids missing", priorities: 1, missing: Some(5) },
    Shape { tube: "mixed", name: "three mixed priorities", priorities: 3, missing: None },
];

/// Asks for positions all over a tube of each shape.
pub async fn measure(report: &mut Report, name: &str, client: &Client, size: Size) -> Result<()> {
    for shape in &SHAPES {
        client.create(shape.tube, TubeOptions::new(Kind::FifoTtl)).await?;
        fill(client, shape, size.tasks).await?;
        let latency = ask(client, shape, size.tasks as u64).await?;
        let millis = |quantile| latency.value_at_quantile(quantile) as f64 / 1e3;
        report.add(Row {
            what: format!("a position, {}, {name}", shape.name),
            figure: millis(0.5),
            unit: "ms",
            target: match name {
                "SQLite" => Some(Target::AtMost(1.0)),
                "PostgreSQL" => Some(Target::AtMost(5.0)),
                _ => None,
            },
            note: format!("of {} tasks, {PLACES} places, p99 {:.1} ms", size.tasks, millis(0.99)),
        });
    }
    Ok(())
}

async fn fill(client: &Client, shape: &Shape, tasks: usize) -> Result<()> {
    let all = Load { clients: 4, batch: TOGETHER, tasks };
    let (putter, tube, priorities) = (client.clone(), shape.tube, shape.priorities);
    load::run(all, move |count| {
        let client = putter.clone();
        async move {
            let mut tasks = (0..count).map(|_| load::task()).collect::<Result<Vec<_>>>()?;
            for (index, task) in tasks.iter_mut().enumerate() {
                task.pri = Some((index * 7 % 11 % priorities) as u64);
            }
            Ok(client.put_tasks(tube, tasks, Duration::ZERO).await?.len())
        }
    })
    .await?;
    let Some(missing) = shape.missing else { return Ok(()) };
    let ids: Vec<_> = (0..tasks as u64).step_by(missing).map(TaskId).collect();
    for part in ids.chunks(TOGETHER) {
        client.delete_many(shape.tube, part).await?;
    }
    Ok(())
}

async fn ask(client: &Client, shape: &Shape, tasks: u64) -> Result<Histogram<u64>> {
    let mut latency = Histogram::new(3)?;
    for place in 0..PLACES {
        // Not divisible by five, so that it exists.
        let id = place * (tasks / PLACES) / 5 * 5 + 1;
        let begin = Instant::now();
        let positions = client.positions(shape.tube, &[TaskId(id)]).await?;
        latency.record(begin.elapsed().as_micros() as u64)?;
        ensure!(positions.len() == 1, "task {id} is not there");
    }
    Ok(latency)
}
