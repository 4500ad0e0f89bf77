//! Looking at configurations and tasks.

use std::path::Path;

use serde_json::json;
use taskyard_sql::config::Row;
use taskyard_sql::desk::shown;
use taskyard_sql::{Config, Conninfo, Desk, Source, Which};
use taskyard_wire::Exit;

use super::{OneArgs, named};
use crate::failure::Wrong;
use crate::output::{self, note, printable};
use crate::table::Table;

/// How much of a query stands in a line.
const INPUT_CHARS: usize = 60;

/// Says what a configuration means, and which rights are missing in the database if one is given.
pub async fn check(
    file: Option<&Path>,
    database: Option<&Conninfo>,
    as_json: bool,
) -> anyhow::Result<Exit> {
    let config = match (file, database) {
        (Some(file), _) => {
            Source::File(file.into()).read().map_err(|error| Wrong(error.to_string()))?
        }
        (None, Some(database)) => Config::alone(database),
        (None, None) => return Err(Wrong("give a file, --database, or both".into()).into()),
    };
    for warning in &config.warnings {
        note(warning);
    }
    let mut grants = Vec::new();
    for row in &config.rows {
        grants.push(match database {
            Some(database) => missing_grants(row, database).await,
            None => Vec::new(),
        });
    }
    if as_json {
        output::json_lines(config.rows.iter().zip(&grants).map(|(row, grants)| {
            json!({
                "data": row.data,
                "user": row.user,
                "schema": row.names.schema,
                "table": row.names.table,
                "sleep_ms": row.sleep.as_millis() as u64,
                "reset_seconds": row.reset.as_secs_f64(),
                "run": row.run,
                "keep_seconds": row.keep.map(|keep| keep.as_secs_f64()),
                "missing_grants": grants,
            })
        }))?;
        return Ok(Exit::Ok);
    }
    output::show(&rows_table(&config))?;
    if grants.iter().any(|grants| !grants.is_empty()) {
        output::line("\nRoles that may INSERT need the sequence of the table too; run:")?;
    }
    for (row, grants) in config.rows.iter().zip(grants) {
        for grant in grants {
            output::line(format!("  {}; -- in {}", printable(&grant), printable(&row.data)))?;
        }
    }
    Ok(Exit::Ok)
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

/// The rights that roles lack in the table of a row; none where it cannot be looked at, which is said.
async fn missing_grants(row: &Row, database: &Conninfo) -> Vec<String> {
    let conninfo = row.settings(database).conninfo;
    let grants = async {
        let mut desk = Desk::open(&conninfo, row.names.clone()).await?;
        desk.missing_grants().await
    };
    grants.await.unwrap_or_else(|error| {
        note(format!("{} in {}: {error}", row.names.quoted(), row.data));
        Vec::new()
    })
}

/// Shows the newest tasks.
pub async fn list(
    desk: &mut Desk,
    state: Option<&str>,
    count: usize,
    as_json: bool,
) -> anyhow::Result<Exit> {
    let tasks = desk.list(state, count).await?;
    let leading = desk.leading().await?;
    if as_json {
        output::json_lines(tasks.iter().map(|task| {
            json!({
                "id": task.id,
                "state": task.state,
                "group": task.group,
                "plan": shown(task.plan),
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
            shown(task.plan),
            task.why.name().to_owned(),
            short(&task.input),
            task.output.as_deref().map(short).unwrap_or_default(),
            task.error.as_deref().map(short).unwrap_or_default(),
        ]);
    }
    output::show(&table)?;
    if let Some(limit) = leading.limit {
        note(format!("limit reached: {limit} tasks running; others wait"));
    }
    Ok(Exit::Ok)
}

/// Shows every column of a task.
pub async fn show(desk: &mut Desk, one: &OneArgs) -> anyhow::Result<Exit> {
    let which = one.which();
    let id = desk.exact(&which).await?;
    if !one.table.json {
        desk.speak_to_people().await?;
    }
    let columns = match id {
        Some(id) => desk.show(id).await?.map(|columns| (id, columns)),
        None => None,
    };
    let Some((id, mut columns)) = columns else {
        note(format!("taskyard: there is {}", named(&which)));
        return Ok(Exit::NotFound);
    };
    if one.table.json {
        let object: serde_json::Map<_, _> =
            columns.into_iter().map(|(name, value)| (name, json!(value))).collect();
        output::json(&object)?;
        return Ok(Exit::Ok);
    }
    let [waited, ran] = desk.lengths(id).await?;
    let follower = desk.find(&Which::Id(id)).await?.filter(|follower| *follower != id);
    columns.push(("waited".into(), waited));
    columns.push(("ran".into(), ran));
    columns.push(("repeated by".into(), follower.map(|follower| follower.to_string())));
    for (name, value) in columns {
        let value = value.as_deref().map_or(String::new(), |value| shown_value(&name, value));
        output::line(format!("{name:<12} {value}").trim_end())?;
    }
    Ok(Exit::Ok)
}

/// A value as a person reads it.
fn shown_value(name: &str, value: &str) -> String {
    match name {
        "plan" | "start" | "stop" | "origin" => printable(&value.replacen('T', " ", 1)),
        "active" | "live" | "repeat" | "timeout" | "backoff" | "waited" | "ran" => {
            let length = value.strip_prefix("@ ").unwrap_or(value);
            printable(if length == "0" { "0 secs" } else { length })
        }
        _ => {
            // Tabs stand between columns, and are no way to steer a terminal.
            let line = |line: &str| line.split('\t').map(printable).collect::<Vec<_>>().join("\t");
            value.lines().map(line).collect::<Vec<_>>().join("\n             ")
        }
    }
}

/// Shows the coming runs.
pub async fn next(
    desk: &mut Desk,
    which: Option<Which>,
    count: usize,
    as_json: bool,
) -> anyhow::Result<Exit> {
    let id = match &which {
        Some(which) => match desk.find(which).await? {
            Some(id) => Some(id),
            None => {
                note(format!("taskyard: there is {}", named(which)));
                return Ok(Exit::NotFound);
            }
        },
        None => None,
    };
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
