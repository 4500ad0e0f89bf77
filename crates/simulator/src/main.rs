//! Runs seeds until a time is over or one fails: `cargo xtask simulate`.

mod find_planted;
mod totals;

use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use taskyard_simulator::{Mask, Plan, PlantedFault, RunReport, Scenario, run, shrink};

use find_planted::find_planted;
use totals::{ScenarioTotals, print, print_result};

/// As in the binary of the server.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How often progress is shown.
const PROGRESS: Duration = Duration::from_secs(10);
/// How long a failing run is made smaller.
const SHRINK: Duration = Duration::from_secs(60);

/// The command line.
struct SimulateOptions {
    seed: Option<u64>,
    time: Duration,
    scenario: Option<Scenario>,
    planted: Option<(PlantedFault, Scenario)>,
    keep: Option<String>,
    is_search: bool,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let done = parse(&args).and_then(|options| {
        if options.is_search {
            return Ok(find_planted(options.scenario));
        }
        simulate(&options)
    });
    done.unwrap_or_else(|error| {
        eprintln!("{error}");
        ExitCode::from(2)
    })
}

fn parse(args: &[String]) -> Result<SimulateOptions, String> {
    let mut options = SimulateOptions {
        seed: None,
        time: Duration::from_secs(60),
        scenario: None,
        planted: None,
        keep: None,
        is_search: false,
    };
    let mut args = args.iter();
    let mut has_time = false;
    while let Some(name) = args.next() {
        if name == "--find-planted" {
            options.is_search = true;
            continue;
        }
        let value = args.next().ok_or_else(|| format!("`{name}` needs a value"))?;
        let wrong = || format!("`{name}` does not accept `{value}`");
        match name.as_str() {
            "--seed" => options.seed = Some(value.parse().map_err(|_| wrong())?),
            "--minutes" => {
                let minutes: f64 = value.parse().map_err(|_| wrong())?;
                options.time = Duration::try_from_secs_f64(minutes * 60.0).map_err(|_| wrong())?;
                has_time = true;
            }
            "--scenario" => options.scenario = Some(Scenario::from_name(value).ok_or_else(wrong)?),
            "--planted" => {
                options.planted = Some(PlantedFault::from_name(value).ok_or_else(wrong)?)
            }
            "--keep" => options.keep = Some(value.clone()),
            _ => {
                let scenarios = Scenario::ALL.map(Scenario::name).join("|");
                return Err(format!(
                    "no such option: {name}; use --seed N, --minutes M, --scenario {scenarios}, --planted FAULT, --keep LIST or --find-planted"
                ));
            }
        }
    }
    // One seed is run once.
    if options.seed.is_some() && !has_time {
        options.time = Duration::ZERO;
    }
    let is_one = options.time.is_zero() && scenarios(&options).len() == 1;
    if options.keep.is_some() && !is_one {
        return Err("`--keep` needs `--seed` and `--scenario`, and no `--minutes`".into());
    }
    Ok(options)
}

/// Runs seeds of all scenarios, of each one after the other, so that each gets its share of the time.
fn simulate(options: &SimulateOptions) -> Result<ExitCode, String> {
    let first = options.seed.unwrap_or_else(fresh_seed);
    println!("first seed {first}");
    let planted = options.planted.map(|(fault, _)| fault);
    let (begun, mut shown) = (Instant::now(), Instant::now());
    let mut all: Vec<ScenarioTotals> = scenarios(options)
        .into_iter()
        .map(|scenario| ScenarioTotals::new(scenario, first))
        .collect();
    while begun.elapsed() < options.time || all.iter().any(|totals| totals.seeds == 0) {
        let Some(next) = all.iter_mut().min_by_key(|totals| totals.share()) else { break };
        let plan = Plan::draw(next.next_seed, next.scenario);
        let mask = match &options.keep {
            Some(kept) => Mask::keeping(&plan, kept).ok_or("`--keep` names no part of this run")?,
            None => Mask::default(),
        };
        let report = next.time(|| run(&plan, &mask, planted));
        if options.seed.is_some() && options.time.is_zero() {
            println!("history of {} {:016x}", next.scenario.name(), report.history.hash());
        }
        if !passes(&plan, &mask, planted, report) {
            print_result(&all, begun.elapsed());
            return Ok(ExitCode::FAILURE);
        }
        if shown.elapsed() > PROGRESS {
            shown = Instant::now();
            print(&all, begun.elapsed());
        }
    }
    print_result(&all, begun.elapsed());
    Ok(ExitCode::SUCCESS)
}

/// Shows a failing run.
fn passes(plan: &Plan, mask: &Mask, planted: Option<PlantedFault>, report: RunReport) -> bool {
    let failure = shrink(plan, mask, planted, report, SHRINK);
    if let Some(failure) = &failure {
        print!("{failure}");
    }
    failure.is_none()
}

fn scenarios(options: &SimulateOptions) -> Vec<Scenario> {
    match (options.scenario, options.planted) {
        (Some(scenario), _) | (None, Some((_, scenario))) => vec![scenario],
        (None, None) => Scenario::ALL.to_vec(),
    }
}

/// A seed that follows from the time: two runs have no seed in common, also if they begin one after the other.
fn fresh_seed() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    mixed(since.as_nanos() as u64) >> 1
}

/// The finalizer of SplitMix64.
const fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fresh seed was a multiple of a million seconds, so two runs within a million seeds of each other shared seeds, and it had always
    /// the same remainders.
    #[test]
    fn fresh_seeds_have_all_remainders_and_are_far_from_each_other() {
        let mut seeds: Vec<u64> =
            (0..1_000).map(|second| mixed(second * 1_000_000_000) >> 1).collect();
        for remainder in 0..8 {
            let count = seeds.iter().filter(|seed| **seed % 8 == remainder).count();
            assert!((90..160).contains(&count), "{count} of 1000 have the remainder {remainder}");
        }
        seeds.sort_unstable();
        assert!(seeds.windows(2).all(|pair| pair[1] - pair[0] > 1_000_000));
    }

    #[test]
    fn what_is_kept_is_of_one_run() {
        let parse = |text: &str| {
            let args: Vec<String> = text.split(' ').map(str::to_owned).collect();
            super::parse(&args).is_ok()
        };
        assert!(parse("--scenario shared --seed 3 --keep 0.1"));
        assert!(!parse("--seed 3 --keep 0.1"));
        assert!(!parse("--scenario shared --keep 0.1"));
        assert!(!parse("--scenario shared --seed 3 --minutes 1 --keep 0.1"));
    }
}
