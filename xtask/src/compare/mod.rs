//! `cargo xtask bench --compare OLD NEW`: runs two builds of a part of the benchmark in turns and prints the ratios of their figures.
//!
//! Figures of a shared machine differ by a third from one minute to the next, so two runs of different minutes cannot show a
//! difference of a few per cent. Here each turn runs both builds one after the other, in alternating order; the ratio of each such pair is
//! one observation, and the confidence interval of their median tells what is shown. Start reading at [`run`], then `statistics`.

mod builds;
mod figures;
pub mod json;
mod options;
mod statistics;
mod table;
mod turns;

use options::CompareOptions;
use statistics::Limit;

/// Whether these arguments of `bench` ask for a comparison.
pub fn is_asked(args: &[String]) -> bool {
    args.iter().any(|arg| arg == "--compare")
}

/// Compares two builds.
pub fn run(args: &[String]) -> Result<(), String> {
    let Some(options) = CompareOptions::parse(args)? else {
        print!("{}", options::HELP);
        return Ok(());
    };
    let builds = builds::prepare(&options)?;
    let pairs = turns::run_all(&options, &builds)?;
    let comparisons = figures::compare(&pairs);
    if comparisons.is_empty() {
        return Err(format!(
            "no figure was printed by both builds in every turn: `{}` prints other figures of the part `{}`",
            options.old, options.part
        ));
    }
    let limit = Limit { percent: options.limit };
    let text = match options.json {
        true => table::json_lines(&options, &comparisons, limit),
        false => table::table(&options, &comparisons, limit),
    };
    print!("{text}");
    Ok(())
}
