//! `sql check`, `list`, `show` and `next`: shows configurations and tasks.

use std::path::Path;

use serde_json::json;
use taskyard_sql::config::TableConfig;
use taskyard_sql::task_admin::{TaskAdminError, utc_text};
use taskyard_sql::{Config, Conninfo, Source, TaskAdmin, TaskSelector};
use taskyard_wire::Exit;

use super::{TaskArgs, missing_text};
use crate::failure::UsageError;
use crate::output::{self, note, printable};
use crate::table::Table;

/// How many characters of a query are shown in a table.
const INPUT_CHARS: usize = 60;

/// Shows a configuration with its defaults and, with a database, the rights that are missing there.
pub async fn check(
    file: Option<&Path>,
    database: Option<&Conninfo>,
    as_json: bool,
) -> anyhow::Result<Exit> {
    let config = match (file, database) {
        (Some(file), _) => {
            Source::File(file.into()).read().map_err(|error| UsageError(error.to_string()))?
        }
        (None, Some(database)) => Config::single(database),
        (None, None) => {
            return Err(UsageError(
                "nothing to check; give a file, --database URL, or both".into(),
            )
            .into());
        }
    };
    let mut checks = Vec::new();
    for row in &config.rows {
        checks.push(match database {
            Some(database) => check_table(row, database).await,
            None => TableCheck::default(),
        });
    }
    let found = checks.iter().any(|check| !check.grants.is_empty() || check.problem.is_some());
    let exit = if found { Exit::Failure } else { Exit::Ok };
    if as_json {
        output::json_lines(config.rows.iter().zip(&checks).map(|(row, check)| {
            json!({
                "data": row.data,
                "user": row.user,
                "schema": row.names.schema,
                "table": row.names.table,
                "sleep_ms": row.sleep.as_millis() as u64,
                "reset_seconds": row.reset.as_secs_f64(),
                "run": row.run,
                "keep_seconds": row.keep.map(|keep| keep.as_secs_f64()),
                "missing_grants": check.grants,
                "problem": check.problem,
            })
        }))?;
        return Ok(exit);
    }
    output::show(&rows_table(&config))?;
    if checks.iter().any(|check| !check.grants.is_empty()) {
        output::line("\nRoles with INSERT also need USAGE on the sequence of the table; run:")?;
    }
    for (row, check) in config.rows.iter().zip(&checks) {
        for grant in &check.grants {
            output::line(format!("  {}; -- in {}", printable(grant), printable(&row.data)))?;
        }
    }
    for problem in checks.iter().filter_map(|check| check.problem.as_ref()) {
        note(format!("taskyard: {}", printable(problem)));
    }
    Ok(exit)
}

fn rows_table(config: &Config) -> Table {
    let mut table =
        output::table(&["data", "user", "schema", "table", "sleep", "reset", "run", "keep"]);
    for row in &config.rows {
        table.add_row([
            printable(&row.data),
            printable(&row.user),
            printable(&row.names.schema),
            printable(&row.names.table),
            format!("{} ms", row.sleep.as_millis()),
            format!("{} s", row.reset.as_secs_f64()),
            row.run.map_or("by connections".into(), |run| run.to_string()),
            row.keep.map_or("for ever".into(), |keep| format!("{} s", keep.as_secs_f64())),
        ]);
    }
    table
}

/// What was found in the database about the table of a row.
#[derive(Default)]
struct TableCheck {
    /// The GRANT statements that are missing.
    grants: Vec<String>,
    /// Why the table cannot be checked.
    problem: Option<String>,
}

/// Searches the GRANT statements that are missing for the table of a row.
async fn check_table(row: &TableConfig, database: &Conninfo) -> TableCheck {
    let conninfo = row.settings(database).conninfo;
    let grants = async {
        let mut admin = TaskAdmin::open(&conninfo, row.names.clone()).await?;
        admin.missing_grants().await
    };
    match grants.await {
        Ok(grants) => TableCheck { grants, problem: None },
        Err(error @ TaskAdminError::Unreachable(_)) => {
            TableCheck { problem: Some(error.to_string()), ..TableCheck::default() }
        }
        Err(error) => TableCheck {
            problem: Some(format!("database '{}': {error}", row.data)),
            ..TableCheck::default()
        },
    }
}

/// Shows the newest tasks.
pub async fn list(
    admin: &mut TaskAdmin,
    state: Option<&str>,
    count: usize,
    as_json: bool,
) -> anyhow::Result<Exit> {
    let tasks = admin.list(state, count).await?;
    let leader = admin.leader_status().await?;
    if as_json {
        output::json_lines(tasks.iter().map(|task| {
            json!({
                "id": task.id,
                "state": task.state,
                "group": task.group,
                "plan": utc_text(task.plan),
                "why": task.why.name(),
                "input": task.input,
                "remote": task.remote,
                "output": task.output,
                "error": task.error,
            })
        }))?;
        return Ok(Exit::Ok);
    }
    let mut table =
        output::table(&["id", "state", "group", "plan", "why", "input", "output", "error"]);
    for task in &tasks {
        table.add_row([
            task.id.to_string(),
            task.state.clone(),
            printable(&task.group),
            utc_text(task.plan),
            task.why.name().to_owned(),
            short(&task.input),
            task.output.as_deref().map(short).unwrap_or_default(),
            task.error.as_deref().map(short).unwrap_or_default(),
        ]);
    }
    output::show(&table)?;
    if let Some(limit) = leader.limit {
        let running = output::plural(limit, "task");
        note(format!("limit reached: {running} running; the others wait"));
    }
    Ok(Exit::Ok)
}

/// Shows every column of a task.
pub async fn show(admin: &mut TaskAdmin, one: &TaskArgs) -> anyhow::Result<Exit> {
    let selector = one.selector();
    let id = admin.find_exact(&selector).await?;
    if !one.table.json {
        admin.use_local_formats().await?;
    }
    let columns = match id {
        Some(id) => admin.show(id).await?.map(|columns| (id, columns)),
        None => None,
    };
    let Some((id, mut columns)) = columns else {
        note(missing_text(&selector));
        return Ok(Exit::NotFound);
    };
    if one.table.json {
        let object: serde_json::Map<_, _> =
            columns.into_iter().map(|(name, value)| (name, json!(value))).collect();
        output::json(&object)?;
        return Ok(Exit::Ok);
    }
    let [waited, ran] = admin.durations(id).await?;
    let next_run = admin.find(&TaskSelector::Id(id)).await?.filter(|next_run| *next_run != id);
    columns.push(("waited".into(), waited));
    columns.push(("ran".into(), ran));
    columns.push(("next run".into(), next_run.map(|next_run| next_run.to_string())));
    for (name, value) in columns {
        let value = value.as_deref().map_or(String::new(), |value| shown_value(&name, value));
        output::line(format!("{name:<12} {value}").trim_end())?;
    }
    Ok(Exit::Ok)
}

/// A value in the format of the output.
fn shown_value(name: &str, value: &str) -> String {
    match name {
        "plan" | "start" | "stop" | "origin" => printable(&value.replacen('T', " ", 1)),
        "active" | "live" | "repeat" | "timeout" | "backoff" | "waited" | "ran" => {
            let length = value.strip_prefix("@ ").unwrap_or(value);
            printable(if length == "0" { "0 secs" } else { length })
        }
        _ => {
            // Tabs separate columns and are harmless to a terminal.
            let line = |line: &str| line.split('\t').map(printable).collect::<Vec<_>>().join("\t");
            value.lines().map(line).collect::<Vec<_>>().join("\n             ")
        }
    }
}

/// Shows the next runs.
pub async fn next(
    admin: &mut TaskAdmin,
    selector: Option<TaskSelector>,
    count: usize,
    as_json: bool,
) -> anyhow::Result<Exit> {
    let id = match &selector {
        Some(selector) => match admin.find(selector).await? {
            Some(id) => Some(id),
            None => {
                note(missing_text(selector));
                return Ok(Exit::NotFound);
            }
        },
        None => None,
    };
    let runs = admin.next(id, count).await?;
    if as_json {
        output::json_lines(runs.iter().map(|run| {
            json!({ "at": utc_text(run.at), "id": run.id, "group": run.group, "input": run.input })
        }))?;
        return Ok(Exit::Ok);
    }
    let mut table = output::table(&["at", "id", "group", "input"]);
    for run in &runs {
        let id = run.id.to_string();
        table.add_row([utc_text(run.at), id, printable(&run.group), short(&run.input)]);
    }
    output::show(&table)?;
    Ok(Exit::Ok)
}

fn short(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut short: String = printable(&line).chars().take(INPUT_CHARS).collect();
    if line.chars().count() > INPUT_CHARS {
        short.push('…');
    }
    short
}
