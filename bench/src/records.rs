//! Pages of tasks, estimates and searches of payloads: on the embedded store, PostgreSQL and
//! Tarantool.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use taskyard::{Client, Http, NewTask, OpenOptions, TaskId, TubeName};
use taskyard_engine::{Engine, Settings, SystemClock};
use taskyard_server::{Config, Server};
use taskyard_wire::http::TasksQuery;
use tokio::sync::oneshot;

use super::load::{self, Load, TUBE};
use super::report::{Report, Row, Target};
use super::{Size, positions, postgres, store_in, tarantool};

/// Pages, and estimates, whose time is measured.
const PAGES: u64 = 200;

pub async fn measure(report: &mut Report, folder: &Path, size: Size) -> Result<()> {
    lists(report, "SQLite", &store_in(folder, "lists"), size).await?;
    if let Some(database) = postgres::database(folder, None)? {
        lists(report, "PostgreSQL", &database.url(), size).await?;
    }
    if let Some(server) = tarantool::server::start(folder)? {
        lists(report, "Tarantool", &server.url(), size).await?;
    }
    Ok(())
}

/// Pages and a search in a large tube, over HTTP.
async fn lists(report: &mut Report, name: &str, url: &str, size: Size) -> Result<()> {
    let store = taskyard_stores::open(url, &OpenOptions::default())?;
    let engine = Engine::start(store, Arc::new(SystemClock::new()), Settings::default());
    let server = Server::bind(Config::new("127.0.0.1:0".parse()?), engine).await?;
    let client = load::open(&server.url()).await?;
    let http = Http::new(&server.url())?;
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(server.run(async { _ = stopped.await }));
    let put = Load { clients: 4, batch: 1_000, tasks: size.tasks };
    load::put_each(&client, put, load::json_task).await?;
    pages(report, name, &http, size).await?;
    search(report, name, &client, &http, size).await?;
    // Last, because it removes tasks.
    estimates(report, name, &client, size).await?;
    positions::measure(report, name, &client, size).await?;
    drop(stop);
    serving.await.context("the server failed")??;
    Ok(())
}

/// Pages of 100 tasks at places all over the tube.
async fn pages(report: &mut Report, name: &str, http: &Http, size: Size) -> Result<()> {
    let tube = TubeName::new(TUBE)?;
    let mut latency: Histogram<u64> = Histogram::new(3)?;
    for place in 0..PAGES {
        let after = place * (size.tasks as u64 - 200) / PAGES;
        let query = TasksQuery { after: Some(after.to_string()), ..TasksQuery::default() };
        let begin = Instant::now();
        let page = http.tasks(&tube, &query).await?;
        latency.record(begin.elapsed().as_micros() as u64)?;
        ensure!(page.tasks.len() == 100, "a page has {} tasks", page.tasks.len());
    }
    let millis = |quantile| latency.value_at_quantile(quantile) as f64 / 1e3;
    report.add(Row {
        what: format!("a page of 100 tasks, {name}"),
        figure: millis(0.5),
        unit: "ms",
        target: Some(Target::AtMost(10.0)),
        note: format!("of {} tasks, {PAGES} places, p99 {:.1} ms", size.tasks, millis(0.99)),
    });
    Ok(())
}

/// Estimates of single tasks at places all over the tube, while a consumer takes and acknowledges tasks one by one.
async fn estimates(report: &mut Report, name: &str, client: &Client, size: Size) -> Result<()> {
    let consumer = tokio::spawn({
        let client = client.clone();
        async move {
            while let Some(task) = client.take(TUBE, Duration::ZERO).await? {
                client.ack(&task).await?;
            }
            Ok::<(), taskyard::Error>(())
        }
    });
    let last = size.tasks as u64 - 1;
    let begin = Instant::now();
    // A server needs some seconds of deliveries to learn from.
    while !is_estimated(client, last).await? && begin.elapsed() < 10 * size.seconds {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let mut latency: Histogram<u64> = Histogram::new(3)?;
    let mut estimated = 0;
    for place in 0..PAGES {
        let id = last - place * (last / 2) / PAGES;
        let begin = Instant::now();
        estimated += u64::from(is_estimated(client, id).await?);
        latency.record(begin.elapsed().as_micros() as u64)?;
    }
    consumer.abort();
    let millis = |quantile| latency.value_at_quantile(quantile) as f64 / 1e3;
    report.add(Row {
        what: format!("an estimate of one task, {name}"),
        figure: millis(0.5),
        unit: "ms",
        target: Some(Target::AtMost(if name == "SQLite" { 1.0 } else { 5.0 })),
        note: format!(
            "of {} waiting, {PAGES} places beside a consumer, {estimated} of them estimated, p99 {:.1} ms",
            size.tasks,
            millis(0.99)
        ),
    });
    Ok(())
}

/// Asks for the estimate of a task; whether there is one.
async fn is_estimated(client: &Client, id: u64) -> Result<bool> {
    let positions = client.positions(TUBE, &[TaskId(id)]).await?;
    Ok(positions.first().is_some_and(|position| matches!(position.estimate, Some(Ok(_)))))
}

/// Runs a query that finds no task; the seconds, and how many tasks were compared.
async fn find_none(http: &Http, mut query: TasksQuery) -> Result<(f64, u64)> {
    let tube = TubeName::new(TUBE)?;
    let (begin, mut scanned) = (Instant::now(), 0);
    loop {
        let page = http.tasks(&tube, &query).await?;
        ensure!(page.tasks.is_empty(), "the text was found");
        scanned += page.scanned;
        query.after = page.next;
        if query.after.is_none() {
            return Ok((begin.elapsed().as_secs_f64(), scanned));
        }
    }
}

/// Searches for a text that no payload has, and for one that all have: then a store sends them all.
async fn search(
    report: &mut Report,
    name: &str,
    client: &Client,
    http: &Http,
    size: Size,
) -> Result<()> {
    let alone = puts_until(client, tokio::time::sleep(size.seconds)).await?.0;
    let text = Some("no payload contains this".to_owned());
    let searching = find_none(http, TasksQuery { text, ..TasksQuery::default() });
    let (during, searched) = puts_until(client, searching).await?;
    let (seconds, scanned) = searched?;
    ensure!(scanned >= size.tasks as u64, "{scanned} tasks were compared");
    report.add(Row {
        what: format!("search of all payloads, {name}"),
        figure: seconds * 1e6 / scanned as f64,
        unit: "s per 1,000,000",
        target: Some(Target::AtMost(5.0)),
        note: format!("{scanned} tasks with JSON of about 100 bytes in {seconds:.1} s"),
    });
    let p99 = |latency: &Histogram<u64>| latency.value_at_quantile(0.99) as f64 / 1e3;
    let (during, alone) = (p99(&during), p99(&alone));
    report.add(Row {
        what: format!("delay of another client by the search, {name}"),
        figure: during - alone,
        unit: "ms",
        target: Some(Target::AtMost(5.0)),
        note: format!(
            "p99 of puts one by one: {during:.2} ms during the search, {alone:.2} ms before"
        ),
    });
    // One more condition is met by no task, because the time of long answers is not to be measured.
    let (text, subqueue) = (Some("invoice of March".to_owned()), Some("none".to_owned()));
    let searching = find_none(http, TasksQuery { text, subqueue, ..TasksQuery::default() });
    let (during, searched) = puts_until(client, searching).await?;
    let (seconds, scanned) = searched?;
    report.add(Row {
        what: format!("search for a text of every payload, {name}"),
        figure: seconds * 1e6 / scanned as f64,
        unit: "s per 1,000,000",
        target: None,
        note: format!("p99 of puts one by one: {:.2} ms during the search", p99(&during)),
    });
    Ok(())
}

/// Puts one task after the other into another tube until the work is done; returns the time of each put.
async fn puts_until<T>(
    client: &Client,
    work: impl Future<Output = T>,
) -> Result<(Histogram<u64>, T)> {
    let mut latency = Histogram::new(3)?;
    let mut work = std::pin::pin!(work);
    loop {
        let begin = Instant::now();
        let task: NewTask = load::task()?;
        let put = client.put_task("other", task);
        let mut put = std::pin::pin!(put);
        tokio::select! {
            biased;
            placed = put.as_mut() => {
                placed?;
                latency.record(begin.elapsed().as_micros() as u64)?;
            }
            done = work.as_mut() => {
                put.await?;
                return Ok((latency, done));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const TINY: Size = Size { tasks: 1_000, seconds: Duration::from_millis(10), resident: &[] };

    /// Also runs on the databases that are installed.
    #[tokio::test(flavor = "multi_thread")]
    async fn every_figure_is_measured() {
        let folder = tempfile::tempdir().unwrap();
        // PostgreSQL may run as another user.
        set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let mut report = Report::default();
        measure(&mut report, folder.path(), TINY).await.unwrap();
        let found = report.names();
        let stores = [
            ("SQLite", true),
            ("PostgreSQL", postgres::programs().is_some()),
            ("Tarantool", tarantool::server::program().is_some()),
        ];
        let mut expected = Vec::new();
        for (store, _) in stores.into_iter().filter(|(_, is_installed)| *is_installed) {
            let over_http = [
                "a page of 100 tasks",
                "search of all payloads",
                "delay of another client by the search",
                "search for a text of every payload",
                "an estimate of one task",
                "a position, a fifth of the ids missing",
                "a position, three mixed priorities",
            ];
            expected.extend(over_http.map(|what| format!("{what}, {store}")));
        }
        assert_eq!(found, expected);
    }
}
