//! `pool status`: shows the status of a pool.

use clap::Args;
use serde_json::Value;
use taskyard_pool::redis::{PoolAddress, RedisClient, read_status};
use taskyard_wire::Exit;

use crate::connect::{ConnectArgs, block_on};
use crate::failure::UsageError;
use crate::output;

/// The pool.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard pool status --url http://10.0.0.5:7070
  taskyard pool status --redis redis://db --json")]
pub struct PoolStatusArgs {
    /// Print it as JSON.
    #[arg(long)]
    json: bool,
    /// Read the status from the Redis of the pool instead of a server.
    #[arg(long, value_name = "URL", env = "TASKYARD_POOL_REDIS", hide_env_values = true)]
    redis: Option<String>,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Reads the status and prints it.
pub fn run(args: &PoolStatusArgs) -> anyhow::Result<Exit> {
    let status: Value = match &args.redis {
        Some(url) => {
            let address =
                PoolAddress::parse(url, "status").map_err(|error| UsageError(error.to_string()))?;
            block_on(async { Ok(read_status(&RedisClient::open(&address)).await?) })?
        }
        None => {
            let http = args.connect.http()?;
            block_on(async { Ok(http.get("/pool/status").await?) })?
        }
    };
    let text = if args.json { status.to_string() } else { table_of(&status) };
    output::line(text)?;
    Ok(Exit::Ok)
}

/// The status as text.
fn table_of(status: &Value) -> String {
    let head = ["class", "seconds", "running", "limit", "waiting", "started", "mean wait"];
    let more = ["lowered", "denied", "in time", "early", "late"];
    let mut table = output::table(&[&head[..], &more].concat());
    let classes = status["classes"].as_array().into_iter().flatten();
    let counts = status["counts"]["classes"].as_array().into_iter().flatten();
    for (class, counts) in classes.zip(counts) {
        table.add_row(row(class, counts));
    }
    if status["in_redis"].is_null() {
        return format!("{table}\n{}", summary(status));
    }
    if status["classes"].is_null() {
        return format!("no active scheduler\n{}", distribution(status));
    }
    format!("{table}\n{}\n{}", summary(status), distribution(status))
}

/// The parts of a pool on several machines.
fn distribution(status: &Value) -> String {
    let redis = &status["in_redis"];
    let text = |value: &Value| value.as_str().unwrap_or("none").to_owned();
    let leader = &status["leader"];
    let mut lines =
        vec![format!("leader: {} (lead {})", text(&leader["name"]), text(&leader["number"]))];
    if leader.is_null() {
        let old =
            if status["classes"].is_null() { "" } else { "; the counts are those of the last one" };
        lines = vec![format!("leader: none{old}")];
    }
    lines.push(format!("waiting in Redis: {}", redis["waiting"]));
    for backend in redis["backends"].as_array().into_iter().flatten() {
        let (id, address) = (text(&backend["backend"]), text(&backend["address"]));
        let tasks = redis["allocations"].as_array().into_iter().flatten();
        let tasks: Vec<String> = tasks
            .filter(|task| task["backend"] == backend["backend"])
            .map(|task| format!("runs task {} ({})", text(&task["task"]), text(&task["kind"])))
            .collect();
        let what = if tasks.is_empty() { "free".into() } else { tasks.join(", ") };
        let encrypted = if backend["encrypted"] == true { " (encrypted)" } else { "" };
        lines.push(format!("backend {id} at {address}{encrypted}: {what}"));
    }
    lines.join("\n")
}

/// A row of the table: status and counts of a class.
fn row(class: &Value, counts: &Value) -> Vec<String> {
    let estimates = &counts["estimates"];
    let given = number(&estimates["estimates_given"]);
    let mean = |sum: &Value, count: f64| match count {
        0.0 => "-".to_owned(),
        count => format!("{:.2} s", number(sum) / count),
    };
    let met = number(&estimates["estimates_met"]);
    vec![
        class["name"].as_str().unwrap_or_default().to_owned(),
        class["seconds"].to_string(),
        class["running"].to_string(),
        class["limit"].to_string(),
        class["queued"].to_string(),
        counts["started"].to_string(),
        mean(&counts["waited_seconds"], number(&counts["admitted"])),
        counts["lowered"].to_string(),
        counts["denied"].to_string(),
        if given > 0.0 { format!("{met} of {given}") } else { "-".into() },
        mean(&estimates["early_seconds"], met),
        mean(&estimates["late_seconds"], given - met),
    ]
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_default()
}

/// A number with its noun.
fn counted(value: &Value, noun: &str) -> String {
    output::plural(value.as_u64().unwrap_or_default(), noun)
}

/// How many likely starts held; nothing before the first.
fn likely_starts(within: &Value) -> String {
    let [p50, p90, late] = ["p50", "p90", "late"].map(|name| number(&within[name]));
    let all = p50 + p90 + late;
    if all == 0.0 {
        return String::new();
    }
    let percent = |part: f64| 100.0 * part / all;
    format!("\np50 held for {:.1} %, p90 for {:.1} % of {all}", percent(p50), percent(p50 + p90))
}

fn summary(status: &Value) -> String {
    let counts = &status["counts"];
    let mut text = format!(
        "{}, {} running, {} waiting{}\n",
        counted(&status["backends"], "backend"),
        counted(&status["running"], "task"),
        status["queued"],
        match status["paused"] == true {
            true if status["in_redis"].is_null() => "; paused",
            true => "; no task starts yet, because backends may still have to report their runs",
            false => "",
        },
    );
    text.push_str(&format!(
        "sessions: {} running, {} started, {} halted, {} denied\n",
        status["interactive"],
        counts["interactive"],
        counts["halted"],
        counts["interactive_denied"],
    ));
    text.push_str(&format!(
        "clients: {} submitted, {} left the queue; lost runs: {} requeued, {} given up\n",
        counted(&counts["arrived"], "task"),
        counts["left"],
        counts["requeued"],
        counts["lost"],
    ));
    match status["estimates_met_share"].as_f64() {
        Some(share) => text.push_str(&format!(
            "{:.1} % of {} with an estimate started no later than their first estimate",
            share * 100.0,
            counted(&counts["estimates_given"], "task"),
        )),
        None => text.push_str("no task needed an estimate yet"),
    }
    text.push_str(&likely_starts(&counts["within"]));
    if let Some(sandboxes) = status.get("sandboxes") {
        text.push_str(&format!(
            "\nsandboxes: {} ready, {} started in a ready one",
            sandboxes["ready"],
            counted(&sandboxes["used"], "task")
        ));
    }
    if let Some(accounting) = status["memory_accounting"].as_str() {
        text.push_str(&format!("\n{accounting}"));
    }
    for gap in status["not_isolated"].as_array().into_iter().flatten() {
        text.push_str(&format!("\nnot isolated: {}", gap.as_str().unwrap_or_default()));
    }
    text
}
