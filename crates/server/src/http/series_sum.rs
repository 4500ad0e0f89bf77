//! Adds the time series of several servers of one store.
//!
//! Commands are added up. Numbers of tasks are those of the server with the most commands: all read
//! the same store, but a server only while it changes something or is observed. A percentile is the least that is certain to be at least the one of
//! all durations together: a server tells three percentiles and not its durations.

use taskyard_wire::http::{PercentilesAnswer, SeriesAnswer};

/// The percentiles of a series, in percent.
const LEVELS: [u64; 3] = [50, 90, 99];
/// By how many intervals the clocks of two servers may differ, by second and by minute.
const LAG_MAX: [i64; 2] = [10, 1];

/// The percentiles of one interval of one server, and the number of its durations.
type Weighted = (u64, [f64; 3]);

/// Checks that the series of a peer can be added to this one, which has at most so many points.
pub(super) fn check(
    own: &SeriesAnswer,
    peer: &SeriesAnswer,
    points_max: u32,
) -> Result<(), String> {
    let counts = [&peer.takes, &peer.acks, &peer.fails, &peer.ready, &peer.taken, &peer.delayed];
    let durations = [&peer.wait, &peer.run];
    let lengths = counts.map(Vec::len).into_iter().chain([peer.buried.len()]);
    let columns = durations.into_iter().flat_map(|of| [&of.p50, &of.p90, &of.p99]);
    let count = peer.puts.len();
    let is_even = lengths.chain(columns.map(Vec::len)).all(|length| length == count);
    if !is_even || count > points_max as usize || peer.step != own.step {
        return Err("its series do not have the expected form; use the same version".into());
    }
    let lag = end(own).saturating_sub(end(peer));
    if lag.saturating_abs() <= LAG_MAX[usize::from(own.step > 1.0)] {
        return Ok(());
    }
    let (seconds, side) =
        (lag.saturating_abs() as f64 * own.step, if lag > 0 { "behind" } else { "ahead of" });
    Err(format!("its clock is about {seconds} s {side} that of this server"))
}

/// Adds the series of peers that were checked. Only intervals that have ended at all servers are
/// shown, so that the numbers of an interval never change.
pub(super) fn sum(own: &SeriesAnswer, peers: &[&SeriesAnswer]) -> SeriesAnswer {
    let servers: Vec<&SeriesAnswer> = std::iter::once(own).chain(peers.iter().copied()).collect();
    let begin = servers.iter().map(|one| begin(one)).min().unwrap_or(0);
    let end = servers.iter().map(|one| end(one)).min().unwrap_or(0);
    let mut by_commands = servers.clone();
    // Of servers with as many commands the first one stays the first.
    by_commands.sort_by_key(|one| std::cmp::Reverse(commands(one)));
    let sum = Sum { servers, by_commands, begin, end };
    let count = |of: fn(&SeriesAnswer) -> &[u32]| sum.counts(of);
    let depth = |of: fn(&SeriesAnswer) -> &[u32]| sum.depths(of);
    SeriesAnswer {
        from: begin as f64 * own.step,
        puts: count(|one| &one.puts),
        takes: count(|one| &one.takes),
        acks: count(|one| &one.acks),
        fails: count(|one| &one.fails),
        ready: depth(|one| &one.ready),
        taken: depth(|one| &one.taken),
        delayed: depth(|one| &one.delayed),
        buried: depth(|one| &one.buried),
        wait: sum.percentiles(|one| &one.wait, |one, at| one.takes[at].into()),
        run: sum.percentiles(
            |one| &one.run,
            |one, at| u64::from(one.acks[at]) + u64::from(one.fails[at]),
        ),
        tube: own.tube.clone(),
        step: own.step,
        instance: own.instance.clone(),
        servers: None,
        missing: Vec::new(),
    }
}

/// Series of several servers, and the intervals to show.
struct Sum<'a> {
    servers: Vec<&'a SeriesAnswer>,
    /// The servers with the most commands first.
    by_commands: Vec<&'a SeriesAnswer>,
    begin: i64,
    end: i64,
}

impl Sum<'_> {
    /// The servers that have an interval, each with the place in its arrays.
    fn of_interval(&self, interval: i64) -> impl Iterator<Item = (&SeriesAnswer, usize)> {
        self.servers.iter().filter_map(move |one| Some((*one, place(one, interval)?)))
    }

    fn counts(&self, of: fn(&SeriesAnswer) -> &[u32]) -> Vec<u32> {
        let add = |interval| {
            let counts = self.of_interval(interval).map(|(one, at)| of(one)[at]);
            counts.fold(0, u32::saturating_add)
        };
        (self.begin..self.end).map(add).collect()
    }

    fn depths(&self, of: fn(&SeriesAnswer) -> &[u32]) -> Vec<u32> {
        let first = |interval| {
            let found =
                self.by_commands.iter().find_map(|one| Some(of(one)[place(one, interval)?]));
            found.unwrap_or(0)
        };
        (self.begin..self.end).map(first).collect()
    }

    fn percentiles(
        &self,
        of: fn(&SeriesAnswer) -> &PercentilesAnswer,
        durations: fn(&SeriesAnswer, usize) -> u64,
    ) -> PercentilesAnswer {
        let mut answer = PercentilesAnswer::default();
        for interval in self.begin..self.end {
            let known = self.of_interval(interval).filter_map(|(one, at)| {
                let PercentilesAnswer { p50, p90, p99 } = of(one);
                Some((durations(one, at).max(1), [p50[at]?, p90[at]?, p99[at]?]))
            });
            let [p50, p90, p99] = upper_bounds(known.collect());
            answer.p50.push(p50);
            answer.p90.push(p90);
            answer.p99.push(p99);
        }
        answer
    }
}

/// For each percentile of all durations together, the least percentile of a server that is certain
/// not to be below it. It is never above the highest of the servers.
fn upper_bounds(servers: Vec<Weighted>) -> [Option<f64>; 3] {
    let total: u64 = servers.iter().map(|(weight, _)| weight).sum();
    // At a percentile of a server, so many hundredths of its durations are certain to be counted.
    let mut steps: Vec<(f64, u64)> = Vec::new();
    for (weight, values) in servers {
        let mut before = 0;
        for (level, value) in LEVELS.into_iter().zip(values) {
            steps.push((value, weight * (level - before)));
            before = level;
        }
    }
    steps.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let (mut bounds, mut next, mut below) = ([None; 3], 0, 0);
    for (value, counted) in steps {
        below += counted;
        while next < LEVELS.len() && below >= LEVELS[next] * total {
            bounds[next] = Some(value);
            next += 1;
        }
    }
    bounds
}

/// The number of commands in a series.
fn commands(series: &SeriesAnswer) -> u64 {
    let counts = [&series.puts, &series.takes, &series.acks, &series.fails];
    counts.into_iter().flatten().map(|count| u64::from(*count)).sum()
}

/// The place of an interval in the arrays of a series that has it.
fn place(series: &SeriesAnswer, interval: i64) -> Option<usize> {
    let at = usize::try_from(interval - begin(series)).ok()?;
    (at < series.puts.len()).then_some(at)
}

/// The number of the first interval since the epoch.
fn begin(series: &SeriesAnswer) -> i64 {
    (series.from / series.step).round() as i64
}

/// The number of the first interval that has not ended.
fn end(series: &SeriesAnswer) -> i64 {
    begin(series).saturating_add(series.puts.len() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A series of seconds from this one on, with these puts and ready tasks.
    fn series(from: i64, puts: &[u32], ready: u32) -> SeriesAnswer {
        let (none, zeros) = (vec![None; puts.len()], vec![0; puts.len()]);
        let percentiles =
            PercentilesAnswer { p50: none.clone(), p90: none.clone(), p99: none.clone() };
        SeriesAnswer {
            step: 1.0,
            from: from as f64,
            puts: puts.into(),
            takes: zeros.clone(),
            acks: zeros.clone(),
            fails: zeros.clone(),
            ready: vec![ready; puts.len()],
            taken: zeros.clone(),
            delayed: zeros.clone(),
            buried: zeros,
            wait: percentiles.clone(),
            run: percentiles,
            ..SeriesAnswer::default()
        }
    }

    #[test]
    fn commands_are_added() {
        let own = series(100, &[1, 2, 3], 7);
        // It runs for longer, and its last second has not ended.
        let peer = series(98, &[10, 20, 30, 40], 9);
        let sum = sum(&own, &[&peer]);
        assert_eq!((sum.from, &*sum.puts), (98.0, &[10, 20, 31, 42][..]));
        assert_eq!((sum.ready.len(), sum.taken.len()), (4, 4));
        assert_eq!((sum.run.p50.len(), sum.wait.p99.len()), (4, 4));
    }

    // They were those of the server that was asked, which does not read them while others work.
    #[test]
    fn tasks_are_those_of_the_server_with_the_most_commands() {
        let ready = |own: &SeriesAnswer, peers: &[&SeriesAnswer]| sum(own, peers).ready;
        let (busy, idle) = (series(100, &[1, 2, 3], 7), series(98, &[0; 5], 9));
        assert_eq!(ready(&idle, &[&busy]), [9, 9, 7, 7, 7]);
        assert_eq!(ready(&busy, &[&idle]), [9, 9, 7, 7, 7]);
        let taking = SeriesAnswer { takes: vec![0, 2, 9], ..series(100, &[0; 3], 5) };
        assert_eq!(ready(&idle, &[&busy, &taking]), [9, 9, 5, 5, 5]);
        let other = series(98, &[0; 5], 4);
        assert_eq!(ready(&idle, &[&other]), [9; 5], "without commands, those of this server");
    }

    #[test]
    fn no_interval_is_shown_before_it_has_ended_everywhere() {
        let (own, peer) = (series(100, &[5], 0), series(100, &[], 0));
        let sum = sum(&own, &[&peer]);
        assert_eq!((sum.from, sum.puts.len(), sum.ready.len()), (100.0, 0, 0));
    }

    #[test]
    fn series_of_another_form_or_time_are_refused() {
        let own = series(100, &[1, 2, 3], 7);
        assert_eq!(check(&own, &series(98, &[0; 4], 1), 3_600), Ok(()));
        let refused = |peer: SeriesAnswer| check(&own, &peer, 3_600).unwrap_err();
        assert!(refused(SeriesAnswer { step: 60.0, ..own.clone() }).contains("form"));
        assert!(refused(SeriesAnswer { buried: vec![1], ..own.clone() }).contains("form"));
        assert!(refused(series(100 - 3_700, &[0; 3_701], 0)).contains("form"));
        let late = "its clock is about 50 s behind that of this server";
        assert_eq!(refused(series(50, &[1, 2, 3], 7)), late);
        let early = "its clock is about 50 s ahead of that of this server";
        assert_eq!(refused(series(150, &[1, 2, 3], 7)), early);
        for from in [f64::MAX, f64::MIN, f64::NAN] {
            assert!(check(&own, &SeriesAnswer { from, ..own.clone() }, 3_600).is_err(), "{from}");
        }
    }

    #[test]
    fn percentiles_of_one_server_stay_as_they_are() {
        assert_eq!(upper_bounds(Vec::new()), [None; 3]);
        assert_eq!(upper_bounds(vec![(3, [1.0, 2.0, 9.0])]), [Some(1.0), Some(2.0), Some(9.0)]);
    }

    #[test]
    fn one_slow_delivery_does_not_change_the_median_of_many_fast_ones() {
        let fast = (10_000, [0.1, 0.2, 0.3]);
        let [p50, p90, p99] = upper_bounds(vec![fast, (1, [50.0; 3])]);
        assert!(p50 <= Some(0.2) && p90 <= Some(0.3), "{p50:?} {p90:?}");
        assert!(p99 <= Some(50.0));
    }

    #[test]
    fn percentiles_are_between_those_of_all_durations_and_the_highest_of_a_server() {
        let percentiles = |sorted: &[f64]| {
            LEVELS.map(|level| sorted[(sorted.len() * level as usize).div_ceil(100) - 1])
        };
        for seed in 0..200 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut all = Vec::new();
            let mut servers = Vec::new();
            for _ in 0..random.usize(1..6) {
                let scale = 10_f64.powi(random.i32(-3..3));
                let count = random.usize(1..300);
                let mut own: Vec<f64> = (0..count).map(|_| random.f64() * scale).collect();
                own.sort_unstable_by(f64::total_cmp);
                servers.push((own.len() as u64, percentiles(&own)));
                all.extend(own);
            }
            all.sort_unstable_by(f64::total_cmp);
            let highest = [0, 1, 2]
                .map(|at| servers.iter().map(|(_, values)| values[at]).fold(0.0, f64::max));
            let exact = percentiles(&all);
            for (at, bound) in upper_bounds(servers).into_iter().enumerate() {
                let bound = bound.unwrap();
                assert!(exact[at] <= bound && bound <= highest[at], "seed {seed}: {bound}");
            }
        }
    }
}
