//! Measuring.

/// What to measure.
#[derive(Debug, clap::Args)]
pub struct BenchArgs {}

/// Measures and prints.
pub fn run(_args: BenchArgs) -> anyhow::Result<()> {
    crate::output::line("not here yet")?;
    Ok(())
}
