//! What a page shows of a table: its newest tasks and its coming runs.

use std::sync::Arc;
use std::time::Duration;

use taskyard_core::service::Sheet;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};

use crate::desk::{Coming, Desk, DeskError, Listed, shown};
use crate::table::Names;
use taskyard_postgres::Conninfo;

/// How many tasks and how many runs are shown.
const ROWS_MAX: usize = 20;
/// How much of a query or an error is shown.
const TEXT_CHARS_MAX: usize = 200;
/// For how long a look at the table is good enough, however many people look at the page.
const FRESH: Duration = Duration::from_millis(900);
/// How long a look may take; the last one is shown instead.
const LOOK_MAX: Duration = Duration::from_secs(1);
/// For how long the connection stays open when nobody looks any more.
const KEPT: Duration = Duration::from_secs(10);

/// What a page shows of one table. The connection for it is open only while somebody looks.
#[derive(Default)]
pub struct Board(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    desk: Option<Desk>,
    sheets: Vec<Sheet>,
    looked: Option<Instant>,
}

impl Board {
    /// The table as it is, or was a moment ago.
    pub async fn sheets(
        self: Arc<Self>,
        conninfo: Conninfo,
        names: Names,
        part: String,
    ) -> Vec<Sheet> {
        let mut seen = self.0.lock().await;
        if seen.looked.is_some_and(|looked| looked.elapsed() < FRESH) {
            return seen.sheets.clone();
        }
        // Whatever is cut off in the middle of a question is not used again.
        let desk = seen.desk.take();
        if let Ok(Ok((desk, sheets))) = timeout(LOOK_MAX, look(desk, &conninfo, names, &part)).await
        {
            (seen.desk, seen.sheets) = (Some(desk), sheets);
        }
        seen.looked = Some(Instant::now());
        let sheets = seen.sheets.clone();
        drop(seen);
        tokio::spawn(async move { self.close_later().await });
        sheets
    }

    async fn close_later(&self) {
        sleep(KEPT).await;
        let mut seen = self.0.lock().await;
        if seen.looked.is_some_and(|looked| looked.elapsed() >= KEPT) {
            *seen = Seen::default();
        }
    }
}

async fn look(
    desk: Option<Desk>,
    conninfo: &Conninfo,
    names: Names,
    part: &str,
) -> Result<(Desk, Vec<Sheet>), DeskError> {
    let mut desk = match desk {
        Some(desk) => desk,
        None => Desk::open(conninfo, names).await?,
    };
    let tasks = desk.list(None, ROWS_MAX).await?;
    let runs = desk.next(None, ROWS_MAX).await?;
    let sheet = |title, heads, rows| Sheet { part: part.to_owned(), title, heads, rows };
    let sheets = vec![
        sheet(
            "Newest tasks",
            vec!["id", "state", "group", "plan", "why", "input", "remote", "output", "error"],
            tasks.into_iter().map(task_row).collect(),
        ),
        sheet(
            "Coming runs",
            vec!["at", "id", "group", "input"],
            runs.into_iter().map(run_row).collect(),
        ),
    ];
    Ok((desk, sheets))
}

fn task_row(task: Listed) -> Vec<String> {
    vec![
        task.id.to_string(),
        task.state,
        short(&task.group),
        shown(task.plan),
        task.why.name().to_owned(),
        short(&task.input),
        task.remote.unwrap_or_default(),
        short(&task.output.unwrap_or_default()),
        short(&task.error.unwrap_or_default()),
    ]
}

fn run_row(run: Coming) -> Vec<String> {
    vec![shown(run.at), run.id.to_string(), short(&run.group), short(&run.input)]
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
