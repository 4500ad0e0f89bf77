//! Measures how much slower this machine is than two quiet cores of the reference machine: how fast one core calculates, and how
//! much of the processors other programs use.

use std::fs;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// The cores for which the budgets are.
const CORES: f64 = 2.0;
/// What [`calculate`] takes on the machine on which the budgets were measured.
const REFERENCE: Duration = Duration::from_micros(7_000);
/// The fastest of so many calculations counts: other programs can only slow one down.
const CALCULATIONS: usize = 25;
/// Steps of one calculation.
const ROUNDS: u64 = 4_000_000;
/// Other programs are assumed to leave at least this part of the cores: with less, the budgets stop
/// growing, so that no step may take forever.
const LEFT_MIN: f64 = 0.2;
/// How much longer a step may take where the use of processors cannot be read.
const BUSY_IF_UNKNOWN: f64 = 2.0;

/// How much longer than on the reference machine the calculation takes, at least 1: a fast machine keeps the budgets.
pub fn slowness() -> f64 {
    let fastest = (0..CALCULATIONS).map(|_| {
        let started = Instant::now();
        black_box(calculate(black_box(ROUNDS)));
        started.elapsed()
    });
    let fastest = fastest.min().unwrap_or(REFERENCE);
    (fastest.as_secs_f64() / REFERENCE.as_secs_f64()).max(1.0)
}

/// A chain of multiplications, of which each needs the one before.
fn calculate(rounds: u64) -> u64 {
    (0..rounds).fold(0x9e37_79b9_7f4a_7c15, |hash: u64, round| {
        (hash ^ round).wrapping_mul(0x0100_0000_01b3).rotate_left(23)
    })
}

/// The processor time since the machine started, in the unit of the kernel.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessorUse {
    /// Of all cores, idle or not.
    all: u64,
    /// Of all programs, and what the host of a virtual machine gave to others.
    busy: u64,
    /// Of this program and of those that it started and that have ended. A database that a test leaves behind for the system
    /// to end is not among them, so its processor time counts as that of other programs.
    own: u64,
}

impl ProcessorUse {
    /// Reads it; only Linux has these files.
    pub fn read() -> Option<Self> {
        let machine = fs::read_to_string("/proc/stat").ok()?;
        let own = fs::read_to_string("/proc/self/stat").ok()?;
        Self::parse(&machine, &own)
    }

    fn parse(machine: &str, own: &str) -> Option<Self> {
        // user, nice, system, idle, iowait, irq, softirq, steal; the guests after these are part of user and nice.
        let fields: Vec<u64> =
            numbers(machine.lines().next()?.strip_prefix("cpu ")?).take(8).collect();
        let idle = fields.get(3)? + fields.get(4)?;
        let all = fields.iter().sum();
        // The name of the program may contain spaces; after it come the state and ten numbers.
        let after_name = own.rsplit_once(") ")?.1.split_once(' ')?.1;
        let own = numbers(after_name).skip(10).take(4).sum();
        Some(ProcessorUse { all, busy: all - idle, own })
    }
}

/// The numbers in a text up to the first other word; a negative one, which is not a time, is 0.
fn numbers(text: &str) -> impl Iterator<Item = u64> {
    let number = |word: &str| word.parse::<i64>().ok().map(|number| number.max(0).unsigned_abs());
    text.split_whitespace().map_while(number)
}

/// How much longer a step takes because other programs used the processors between these readings, at least 1. With as many
/// cores free as the budgets assume, or more, it is 1.
pub fn busyness(before: Option<ProcessorUse>, after: Option<ProcessorUse>, cores: usize) -> f64 {
    let (Some(before), Some(after)) = (before, after) else { return BUSY_IF_UNKNOWN };
    let all = after.all.saturating_sub(before.all) as f64;
    let busy = after.busy.saturating_sub(before.busy);
    let own = after.own.saturating_sub(before.own);
    // A few units are rounding.
    if all < 10.0 {
        return 1.0;
    }
    let others = busy.saturating_sub(own) as f64 / all;
    let left = cores as f64 * (1.0 - others).max(LEFT_MIN);
    (CORES / left).max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(all: u64, busy: u64, own: u64) -> Option<ProcessorUse> {
        Some(ProcessorUse { all, busy, own })
    }

    #[test]
    fn the_files_of_the_kernel_are_read() {
        let machine = "cpu  40 5 10 100 20 0 3 2 7 0\ncpu0 1 2 3\n";
        let own = "12 (a (b) c) R 1 12 13 0 -1 4194304 99 0 0 0 6 7 80 9 20 0 1 0\n";
        let read = ProcessorUse::parse(machine, own).unwrap();
        assert_eq!((read.all, read.busy, read.own), (180, 60, 102));
        for (machine, own) in [("", own), ("cpu  1 2", own), (machine, ""), (machine, "12 (a)")] {
            assert!(ProcessorUse::parse(machine, own).is_none());
        }
    }

    #[test]
    fn the_processors_of_this_machine_are_read() {
        if cfg!(target_os = "linux") {
            let read = ProcessorUse::read().unwrap();
            assert!(read.all >= read.busy && read.busy > 0, "{read:?}");
        }
    }

    #[test]
    fn other_programs_give_a_step_more_time_and_its_own_do_not() {
        let start = used(1_000, 500, 100);
        // All of it was used by this step, which may have had to wait for itself.
        assert_eq!(busyness(start, used(3_000, 2_500, 2_100), 2), 1.0);
        assert_eq!(busyness(start, used(3_000, 500, 100), 2), 1.0, "it was idle");
        assert_eq!(busyness(start, used(3_000, 2_500, 1_100), 2), 2.0, "others used one of two");
        assert_eq!(busyness(start, used(3_000, 1_500, 100), 8), 1.0, "four of eight are enough");
        assert_eq!(busyness(start, used(3_000, 500, 100), 1), 2.0, "there is one core only");
        assert_eq!(busyness(start, used(3_000, 2_500, 100), 2), 1.0 / LEFT_MIN);
        assert_eq!(busyness(None, start, 2), BUSY_IF_UNKNOWN);
        assert_eq!(busyness(start, start, 2), 1.0, "no time has passed");
    }

    #[test]
    fn a_fast_machine_keeps_the_budgets() {
        let slowness = slowness();
        assert!(slowness >= 1.0 && slowness.is_finite(), "{slowness}");
    }
}
