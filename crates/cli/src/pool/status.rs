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
    table.set_header([
        "class",
        "seconds",
        "running",
        "limit",
        "queued",
        "started",
        "waited (mean)",
    ]);
    let classes = status["classes"].as_array().into_iter().flatten();
    let counts = status["counts"]["classes"].as_array().into_iter().flatten();
    for (class, counts) in classes.zip(counts) {
        let started = counts["started"].as_f64().unwrap_or_default();
        let waited = counts["waited_seconds"].as_f64().unwrap_or_default() / started.max(1.0);
        table.add_row([
            class["name"].as_str().unwrap_or_default().to_owned(),
            class["seconds"].to_string(),
            class["running"].to_string(),
            class["limit"].to_string(),
            class["queued"].to_string(),
            format!("{started:.0}"),
            format!("{waited:.2} s"),
        ]);
    }
    format!("{table}\n{}", sentences(status))
}

fn sentences(status: &Value) -> String {
    let number = |value: &Value| value.as_f64().unwrap_or_default();
    let counts = &status["counts"];
    let mut text = format!(
        "{} backends, {} tasks run, {} wait{}\n",
        status["backends"],
        status["running"],
        status["queued"],
        if status["paused"] == true { "; paused" } else { "" },
    );
    text.push_str(&format!(
        "lowered {}, halted {}, denied {}, left {}, put back {}, lost {}\n",
        counts["lowered"],
        counts["halted"],
        counts["denied"],
        counts["left"],
        counts["put_back"],
        counts["lost"],
    ));
    match status["kept_share"].as_f64() {
        Some(share) => text.push_str(&format!(
            "{:.1} % of {} tasks started no later than first told; {:.2} s early in the mean",
            share * 100.0,
            counts["told"],
            number(&counts["early_seconds"]) / number(&counts["told"]).max(1.0),
        )),
        None => text.push_str("nobody had to be told when to start yet"),
    }
    for gap in status["not_isolated"].as_array().into_iter().flatten() {
        text.push_str(&format!("\nnot isolated: {}", gap.as_str().unwrap_or_default()));
    }
    text
}
