//! `pool status`: how a pool is.

use clap::Args;
use comfy_table::Table;
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use serde_json::Value;
use taskyard_pool::redis::{Site, Wire, look};
use taskyard_wire::Exit;

use crate::connect::{ConnectArgs, block_on};
use crate::failure::Wrong;
use crate::output;

/// Which pool.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard pool status --url http://10.0.0.5:7070
  taskyard pool status --redis redis://db --json")]
pub struct StatusArgs {
    /// Print it as JSON.
    #[arg(long)]
    json: bool,
    /// Ask the Redis of the pool instead of a server.
    #[arg(long, value_name = "URL", env = "TASKYARD_POOL_REDIS", hide_env_values = true)]
    redis: Option<String>,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Asks the pool and prints what it says.
pub fn run(args: &StatusArgs) -> anyhow::Result<Exit> {
    let status: Value = match &args.redis {
        Some(url) => {
            let site = Site::parse(url, "status").map_err(|error| Wrong(error.to_string()))?;
            block_on(async { Ok(look(&Wire::open(&site)).await?) })?
        }
        None => {
            let http = args.connect.http()?;
            block_on(async { Ok(http.look("/pool/status").await?) })?
        }
    };
    let text = if args.json { status.to_string() } else { shown(&status) };
    output::line(text)?;
    Ok(Exit::Ok)
}

/// The status for a person.
fn shown(status: &Value) -> String {
    let mut table = Table::new();
    table.load_style(UTF8_HORIZONTAL_ONLY);
    let head = ["class", "seconds", "run", "limit", "wait", "started", "mean wait"];
    table.set_header(head.into_iter().chain(["lowered", "denied", "as told", "early", "late"]));
    let classes = status["classes"].as_array().into_iter().flatten();
    let counts = status["counts"]["classes"].as_array().into_iter().flatten();
    for (class, counts) in classes.zip(counts) {
        table.add_row(row(class, counts));
    }
    if status["in_redis"].is_null() {
        return format!("{table}\n{}", sentences(status));
    }
    if status["classes"].is_null() {
        return format!("no scheduler leads\n{}", spread(status));
    }
    format!("{table}\n{}\n{}", sentences(status), spread(status))
}

/// What there is of a pool on many machines.
fn spread(status: &Value) -> String {
    let redis = &status["in_redis"];
    let text = |value: &Value| value.as_str().unwrap_or("nobody").to_owned();
    let leader = &status["leader"];
    let mut lines =
        vec![format!("leader: {} as number {}", text(&leader["name"]), text(&leader["number"]))];
    if leader.is_null() {
        let old =
            if status["classes"].is_null() { "" } else { "; so it was when the last one led" };
        lines = vec![format!("leader: nobody{old}")];
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

/// A line of the table: how a class is, and what happened in it so far.
fn row(class: &Value, counts: &Value) -> Vec<String> {
    let estimates = &counts["estimates"];
    let told = number(&estimates["told"]);
    let mean = |sum: &Value, count: f64| match count {
        0.0 => "-".to_owned(),
        count => format!("{:.2} s", number(sum) / count),
    };
    let kept = number(&estimates["kept"]);
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
        if told > 0.0 { format!("{kept} of {told}") } else { "-".into() },
        mean(&estimates["early_seconds"], kept),
        mean(&estimates["late_seconds"], told - kept),
    ]
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_default()
}

fn sentences(status: &Value) -> String {
    let counts = &status["counts"];
    let mut text = format!(
        "{} backends, {} tasks run, {} wait{}\n",
        status["backends"],
        status["running"],
        status["queued"],
        match status["paused"] == true {
            true if status["in_redis"].is_null() => "; paused",
            true => "; nothing starts yet, because backends may still have to say what they run",
            false => "",
        },
    );
    text.push_str(&format!(
        "sessions: {} run, {} started, {} halted, {} denied\n",
        status["interactive"],
        counts["interactive"],
        counts["halted"],
        counts["interactive_denied"],
    ));
    text.push_str(&format!(
        "clients: {} tasks came, {} left the queue; backends lost: {} put back, {} given up\n",
        counts["arrived"], counts["left"], counts["put_back"], counts["lost"],
    ));
    match status["kept_share"].as_f64() {
        Some(share) => text.push_str(&format!(
            "{:.1} % of {} tasks that had to wait started no later than first told",
            share * 100.0,
            counts["told"],
        )),
        None => text.push_str("nobody had to be told when to start yet"),
    }
    if let Some(walls) = status.get("walls") {
        text.push_str(&format!(
            "\nwalls: {} stand ready, {} tasks found theirs so",
            walls["ready"], walls["used"]
        ));
    }
    for gap in status["not_isolated"].as_array().into_iter().flatten() {
        text.push_str(&format!("\nnot isolated: {}", gap.as_str().unwrap_or_default()));
    }
    text
}
