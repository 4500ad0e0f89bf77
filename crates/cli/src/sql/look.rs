//! Looking at configurations and tasks.

use std::path::Path;

use serde_json::json;
use taskyard_sql::desk::shown;
use taskyard_sql::{Desk, Source};
use taskyard_wire::Exit;

use super::OneArgs;
use crate::failure::Wrong;
use crate::output::{self, note, printable};

/// How much of a query stands in a line.
const INPUT_CHARS: usize = 60;

/// Says what a configuration means.
pub fn check(file: &Path, as_json: bool) -> anyhow::Result<Exit> {
    let config = Source::File(file.into()).read().map_err(|error| Wrong(error.to_string()))?;
    for warning in &config.warnings {
        note(warning);
    }
    if as_json {
        output::json_lines(config.rows.iter().map(|row| {
            json!({
                "data": row.data,
                "user": row.user,
                "schema": row.names.schema,
                "table": row.names.table,
                "sleep_ms": row.sleep.as_millis() as u64,
                "reset_seconds": row.reset.as_secs_f64(),
                "run": row.run,
                "keep_seconds": row.keep.map(|keep| keep.as_secs_f64()),
            })
        }))?;
        return Ok(Exit::Ok);
    }
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
            row.run.to_string(),
            row.keep.map_or("for ever".into(), |keep| format!("{} s", keep.as_secs_f64())),
        ]);
    }
    output::show(&table)?;
    Ok(Exit::Ok)
}

/// Shows the newest tasks.
pub async fn list(
    desk: &mut Desk,
    state: Option<&str>,
    count: usize,
    as_json: bool,
) -> anyhow::Result<Exit> {
    let tasks = desk.list(state, count).await?;
    if as_json {
        output::json_lines(tasks.iter().map(|task| {
            json!({
                "id": task.id,
                "state": task.state,
                "group": task.group,
                "plan": shown(task.plan),
                "reason": task.reason.name(),
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
            shown(task.plan),
            task.reason.name().to_owned(),
            short(&task.input),
            task.output.as_deref().map(short).unwrap_or_default(),
            task.error.as_deref().map(short).unwrap_or_default(),
        ]);
    }
    output::show(&table)?;
    Ok(Exit::Ok)
}

/// Shows every column of a task.
pub async fn show(desk: &mut Desk, one: &OneArgs) -> anyhow::Result<Exit> {
    let Some(columns) = desk.show(one.id).await? else {
        note(format!("taskyard: there is no task {}", one.id));
        return Ok(Exit::NotFound);
    };
    if one.table.json {
        let object: serde_json::Map<_, _> =
            columns.into_iter().map(|(name, value)| (name, json!(value))).collect();
        output::json(&object)?;
        return Ok(Exit::Ok);
    }
    for (name, value) in columns {
        let value = value.as_deref().map_or("".into(), |value| {
            value.lines().map(printable).collect::<Vec<_>>().join("\n             ")
        });
        output::line(format!("{name:<12} {value}").trim_end())?;
    }
    Ok(Exit::Ok)
}

/// Shows the coming runs.
pub async fn next(
    desk: &mut Desk,
    id: Option<i64>,
    count: usize,
    as_json: bool,
) -> anyhow::Result<Exit> {
    let runs = desk.next(id, count).await?;
    if as_json {
        output::json_lines(runs.iter().map(|run| {
            json!({ "at": shown(run.at), "id": run.id, "group": run.group, "input": run.input })
        }))?;
        return Ok(Exit::Ok);
    }
    let mut table = output::table(&["at", "id", "group", "input"]);
    for run in &runs {
        let id = run.id.to_string();
        table.add_row([shown(run.at), id, printable(&run.group), short(&run.input)]);
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
