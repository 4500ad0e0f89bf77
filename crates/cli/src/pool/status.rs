//! `pool status`: how a pool is.

use clap::Args;
use comfy_table::Table;
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use serde_json::Value;
use taskyard_wire::Exit;

use crate::connect::{ConnectArgs, block_on};
use crate::output;

/// Which pool.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Print it as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Asks the pool and prints what it says.
pub fn run(args: &StatusArgs) -> anyhow::Result<Exit> {
    let http = args.connect.http()?;
    let status: Value = block_on(async { Ok(http.look("/pool/status").await?) })?;
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
    format!("{table}\n{}", sentences(status))
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
        if status["paused"] == true { "; paused" } else { "" },
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
    for gap in status["not_isolated"].as_array().into_iter().flatten() {
        text.push_str(&format!("\nnot isolated: {}", gap.as_str().unwrap_or_default()));
    }
    text
}
