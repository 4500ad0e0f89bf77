//! Builds the part of the dashboard that shows a table: its newest tasks and its planned runs.

use std::sync::Arc;
use std::time::Duration;

use taskyard_core::service::StatusTable;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};

use crate::table::TableName;
use crate::task_admin::{ListedTask, PlannedRun, TaskAdmin, TaskAdminError, utc_text};
use taskyard_postgres::Conninfo;

/// How many tasks and how many runs are shown.
const ROWS_MAX: usize = 20;
/// How much of a query or an error is shown.
const TEXT_CHARS_MAX: usize = 200;
/// How long a report is reused, however many pages request it.
const FRESH: Duration = Duration::from_millis(900);
/// How long the queries of a report may take; after that the last report is shown again.
const QUERY_MAX: Duration = Duration::from_secs(1);
/// How long the connection stays open after the last request.
const KEPT: Duration = Duration::from_secs(10);

/// The report about one table. Its connection is open only while a page requests it.
#[derive(Default)]
pub struct StatusReport(Mutex<CachedReport>);

#[derive(Default)]
struct CachedReport {
    admin: Option<TaskAdmin>,
    sheets: Vec<StatusTable>,
    queried_at: Option<Instant>,
}

impl StatusReport {
    /// The current report, or one that is less than a second old.
    pub async fn sheets(
        self: Arc<Self>,
        conninfo: Conninfo,
        names: TableName,
        part: String,
    ) -> Vec<StatusTable> {
        let mut cached = self.0.lock().await;
        if cached.queried_at.is_some_and(|queried_at| queried_at.elapsed() < FRESH) {
            return cached.sheets.clone();
        }
        // A connection whose query was cut off is not used again.
        let admin = cached.admin.take();
        let querying = query_sheets(admin, &conninfo, names, &part);
        if let Ok(Ok((admin, sheets))) = timeout(QUERY_MAX, querying).await {
            (cached.admin, cached.sheets) = (Some(admin), sheets);
        }
        cached.queried_at = Some(Instant::now());
        let sheets = cached.sheets.clone();
        drop(cached);
        tokio::spawn(async move { self.close_later().await });
        sheets
    }

    async fn close_later(&self) {
        sleep(KEPT).await;
        let mut cached = self.0.lock().await;
        if cached.queried_at.is_some_and(|queried_at| queried_at.elapsed() >= KEPT) {
            *cached = CachedReport::default();
        }
    }
}

async fn query_sheets(
    admin: Option<TaskAdmin>,
    conninfo: &Conninfo,
    names: TableName,
    part: &str,
) -> Result<(TaskAdmin, Vec<StatusTable>), TaskAdminError> {
    let mut admin = match admin {
        Some(admin) => admin,
        None => TaskAdmin::open(conninfo, names).await?,
    };
    let tasks = admin.list(None, ROWS_MAX).await?;
    let runs = admin.next(None, ROWS_MAX).await?;
    let sheet = |title, columns, rows| StatusTable { part: part.to_owned(), title, columns, rows };
    let sheets = vec![
        sheet(
            "Newest tasks",
            vec!["id", "state", "group", "plan", "why", "input", "remote", "output", "error"],
            tasks.into_iter().map(task_row).collect(),
        ),
        sheet(
            "Planned runs",
            vec!["at", "id", "group", "input"],
            runs.into_iter().map(run_row).collect(),
        ),
    ];
    Ok((admin, sheets))
}

fn task_row(task: ListedTask) -> Vec<String> {
    vec![
        task.id.to_string(),
        task.state,
        short(&task.group),
        utc_text(task.plan),
        task.why.name().to_owned(),
        short(&task.input),
        task.remote.unwrap_or_default(),
        short(&task.output.unwrap_or_default()),
        short(&task.error.unwrap_or_default()),
    ]
}

fn run_row(run: PlannedRun) -> Vec<String> {
    vec![utc_text(run.at), run.id.to_string(), short(&run.group), short(&run.input)]
}

fn short(text: &str) -> String {
    let mut chars = text.chars();
    let mut short: String = chars.by_ref().take(TEXT_CHARS_MAX).collect();
    if chars.next().is_some() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(short("SELECT 1"), "SELECT 1");
        let exact = "ж".repeat(TEXT_CHARS_MAX);
        assert_eq!(short(&exact), exact);
        assert_eq!(short(&format!("{exact}ж")), format!("{exact}…"));
    }
}
