//! Runs seeds until a time is over or one fails: `cargo xtask simulate`.

use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use taskyard_simulator::{Mask, Plan, PlantedFault, RunReport, Scenario, run, shrink};

/// As in the binary of the server.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How often progress is shown.
const PROGRESS: Duration = Duration::from_secs(10);
/// A pool is simulated for every n-th seed, unless it is named.
const POOL_EVERY: u64 = 8;
/// How long a failing run is made smaller.
const SHRINK: Duration = Duration::from_secs(60);

/// The command line.
struct SimulateOptions {
    seed: Option<u64>,
    time: Duration,
    scenario: Option<Scenario>,
    planted: Option<(PlantedFault, Scenario)>,
    is_search: bool,
}

/// What all runs did together.
#[derive(Default)]
struct Totals {
    seeds: u64,
    simulated: Duration,
    crashes: u64,
    recoveries: u64,
    faults: u64,
    commands: u64,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let options = match parse(&args) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    if options.is_search {
        return find_planted(options.scenario);
    }
    simulate(&options)
}

fn parse(args: &[String]) -> Result<SimulateOptions, String> {
    let time = Duration::from_secs(60);
    let mut options =
        SimulateOptions { seed: None, time, scenario: None, planted: None, is_search: false };
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
            _ => {
                return Err(format!(
                    "no such option: {name}; use --seed N, --minutes M, --scenario quiet|memory|embedded|crashes|shared|network|workers|estimates|pool, --planted FAULT or \
                     --find-planted"
                ));
            }
        }
    }
    // One seed is run once.
    if options.seed.is_some() && !has_time {
        options.time = Duration::ZERO;
    }
    Ok(options)
}

fn simulate(options: &SimulateOptions) -> ExitCode {
    let fresh = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let first = options.seed.unwrap_or(fresh * 1_000_000);
    println!("first seed {first}");
    let (begun, mut shown) = (Instant::now(), Instant::now());
    let mut totals = Totals::default();
    for seed in first.. {
        for scenario in scenarios(options, seed) {
            let plan = Plan::draw(seed, scenario);
            let planted = options.planted.map(|(fault, _)| fault);
            let report = run(&plan, &Mask::default(), planted);
            totals.add(&report);
            if options.seed.is_some() && options.time.is_zero() {
                println!("history of {} {:016x}", scenario.name(), report.history.hash());
            }
            if let Some(failure) = shrink(&plan, planted, report, SHRINK) {
                print!("{failure}");
                totals.print(begun.elapsed());
                return ExitCode::FAILURE;
            }
        }
        totals.seeds += 1;
        if shown.elapsed() > PROGRESS {
            shown = Instant::now();
            totals.print(begun.elapsed());
        }
        if begun.elapsed() >= options.time {
            break;
        }
    }
    totals.print(begun.elapsed());
    ExitCode::SUCCESS
}

fn scenarios(options: &SimulateOptions, seed: u64) -> Vec<Scenario> {
    match (options.scenario, options.planted) {
        (Some(scenario), _) | (None, Some((_, scenario))) => vec![scenario],
        (None, None) => {
            // A pool takes much longer than the others.
            let is_due = |scenario: &Scenario| match scenario {
                Scenario::Quiet | Scenario::Crashes => false,
                Scenario::Pool => seed.is_multiple_of(POOL_EVERY),
                _ => true,
            };
            Scenario::ALL.into_iter().filter(is_due).collect()
        }
    }
}

/// Prints for each planted fault, or for those of one scenario, how long it takes to find it, as rows of a table.
fn find_planted(only: Option<Scenario>) -> ExitCode {
    let mut is_missed = false;
    let faults = PlantedFault::ALL.into_iter();
    for (fault, scenario) in faults.filter(|(_, of)| only.is_none_or(|only| *of == only)) {
        let begun = Instant::now();
        let found =
            (0..).take_while(|_| begun.elapsed() < Duration::from_secs(60)).find_map(|seed| {
                // The same plans as in the tests.
                let is_used = |plan: &Plan| scenario == Scenario::Pool || plan.is_short();
                let plan = Some(Plan::draw(seed, scenario)).filter(is_used)?;
                let report = run(&plan, &Mask::default(), Some(fault));
                report.violation.map(|violation| (seed, violation))
            });
        let (name, seconds) = (scenario.name(), begun.elapsed().as_secs_f64());
        is_missed |= found.is_none();
        match found {
            Some((seed, violation)) => {
                println!("| `{fault:?}` | {name} | {} | {seed} | {seconds:.2} |", violation.judge);
                eprintln!("  {}", violation.sentence);
            }
            None => println!("| `{fault:?}` | {name} | not found | | {seconds:.2} |"),
        }
    }
    if is_missed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

impl Totals {
    fn add(&mut self, report: &RunReport) {
        self.simulated += report.simulated;
        self.crashes += report.crashes;
        self.recoveries += report.recoveries;
        self.faults += report.faults;
        self.commands += report.commands;
    }

    fn print(&self, elapsed: Duration) {
        let seconds = elapsed.as_secs_f64();
        println!(
            "{} seeds, {:.1} simulated hours, {} crashes, {} recoveries, {} faults, {} commands, {:.0} recoveries/s, {:.0} commands/s, {seconds:.1} s",
            self.seeds,
            self.simulated.as_secs_f64() / 3_600.0,
            self.crashes,
            self.recoveries,
            self.faults,
            self.commands,
            self.recoveries as f64 / seconds,
            self.commands as f64 / seconds
        );
    }
}
