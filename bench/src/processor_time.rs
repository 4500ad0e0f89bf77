//! Reads how much processor time a process has used.

use anyhow::{Context, Result};

/// Ticks of the processor's clock in a second, as `/proc` counts them.
const TICKS: f64 = 100.0;

/// Seconds of processor time that a process has used, in all its threads.
pub fn seconds_used(process: u32) -> Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The name in brackets may contain anything; the times are the 12th and 13th after it.
    let fields = text.rsplit_once(')').context("an odd line in /proc")?.1;
    let used = fields.split_whitespace().skip(11).take(2);
    Ok(used.filter_map(|one| one.parse::<f64>().ok()).sum::<f64>() / TICKS)
}
