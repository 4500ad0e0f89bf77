//! Samples the counters of the server and computes rates from two samples.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use taskyard::{Http, HttpError};
use taskyard_core::{Error, Kind};
use taskyard_wire::http::{DurationsAnswer, SeriesQuery, TaskCounts, TubeAnswer};

use crate::internal_tubes::InternalArgs;

/// After this time without a reply the server counts as unreachable.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Wait and run times of all tubes are those of the latest second within this many in which there
/// were any, as those of each tube are.
const DURATIONS_SECONDS: u32 = 60;
/// Two replies closer than this have no rate.
const SECONDS_MIN: f64 = 0.001;

/// One reply of the server.
#[derive(Clone, Debug)]
pub struct Sample {
    /// When it arrived.
    pub at: Instant,
    /// The same time in seconds since 1970, by this machine's clock.
    pub time: f64,
    /// How long it took.
    pub latency: Duration,
    /// Its content.
    pub tubes: Vec<TubeAnswer>,
    /// How long tasks of all tubes waited and ran.
    pub durations: Durations,
}

/// How long tasks waited and ran; absent without a recent one, or if the server collects no time
/// series.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Durations {
    pub wait: Option<DurationsAnswer>,
    pub run: Option<DurationsAnswer>,
}

/// Queries the server once.
pub async fn sample(http: Http, internal: InternalArgs) -> Result<Sample, HttpError> {
    let asked = Instant::now();
    let answer = tokio::time::timeout(ANSWER_MAX, http.tubes(None)).await;
    let mut tubes = answer.unwrap_or_else(|_| {
        let why = format!("no reply within {} s", ANSWER_MAX.as_secs());
        Err(HttpError::Unreachable { url: http.url(), why })
    })?;
    internal.hide(&mut tubes);
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let (at, latency) = (Instant::now(), asked.elapsed());
    Ok(Sample { at, time, latency, tubes, durations: durations(&http).await })
}

/// Asks for wait and run times. A server that cannot tell is shown without them.
async fn durations(http: &Http) -> Durations {
    let from = Some(-f64::from(DURATIONS_SECONDS));
    let query = SeriesQuery { from, all: true, ..SeriesQuery::default() };
    match tokio::time::timeout(ANSWER_MAX, http.series(&query)).await {
        Ok(Ok(series)) => Durations {
            wait: DurationsAnswer::latest(&series.wait),
            run: DurationsAnswer::latest(&series.run),
        },
        _ => Durations::default(),
    }
}

/// Calls per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Rates {
    pub put: f64,
    pub take: f64,
    pub ack: f64,
    /// Failed deliveries, which the server counts by itself: it may collect no time series, or have
    /// begun those of the tube again.
    pub fail: Option<f64>,
}

/// The rates between two replies about a tube; none if the counters were reset meanwhile.
pub fn rates(old: &TubeAnswer, new: &TubeAnswer, seconds: f64) -> Option<Rates> {
    if seconds < SECONDS_MIN {
        return None;
    }
    let rate = |new: u64, old: u64| Some(new.checked_sub(old)? as f64 / seconds);
    Some(Rates {
        put: rate(new.calls.put, old.calls.put)?,
        take: rate(new.calls.take, old.calls.take)?,
        ack: rate(new.calls.ack, old.calls.ack)?,
        fail: new.failures.zip(old.failures).and_then(|(new, old)| rate(new, old)),
    })
}

/// One tube as it is shown.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    pub name: String,
    pub kind: &'static str,
    pub paused: bool,
    pub tasks: TaskCounts,
    pub consumers: u64,
    /// Its next deadline, in seconds since 1970.
    pub next_wakeup: Option<f64>,
    /// Unknown for a tube that is new since the previous reply.
    pub rates: Option<Rates>,
    /// On this server alone.
    #[serde(flatten)]
    pub durations: Durations,
}

/// All tubes together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Total {
    pub tubes: usize,
    pub tasks: TaskCounts,
    pub consumers: u64,
    pub rates: Option<Rates>,
    #[serde(flatten)]
    pub durations: Durations,
}

/// The values shown of one reply and the previous one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// When the reply arrived, in seconds since 1970.
    pub time: f64,
    /// How many seconds it took.
    pub latency: f64,
    /// Over how many seconds the rates were measured; none without a previous reply.
    pub seconds: Option<f64>,
    pub total: Total,
    pub tubes: Vec<Row>,
}

impl Report {
    /// Compares a reply with the previous one.
    pub fn new(new: &Sample, old: Option<&Sample>) -> Self {
        let seconds = old.map(|old| new.at.saturating_duration_since(old.at).as_secs_f64());
        let mut before: HashMap<_, &TubeAnswer> = HashMap::new();
        for tube in old.iter().flat_map(|old| &old.tubes) {
            // A tube that was removed and created again has the same name but another number.
            before.insert((tube.number, tube.name.as_str()), tube);
        }
        let tubes: Vec<Row> = new
            .tubes
            .iter()
            .map(|tube| {
                let old = before.get(&(tube.number, tube.name.as_str()));
                let rates = old.zip(seconds).and_then(|(old, seconds)| rates(old, tube, seconds));
                row(tube, rates)
            })
            .collect();
        let latency = new.latency.as_secs_f64();
        let total = Total { durations: new.durations, ..total(&tubes, seconds.is_some()) };
        Report { time: new.time, latency, seconds, total, tubes }
    }
}

fn row(tube: &TubeAnswer, rates: Option<Rates>) -> Row {
    Row {
        name: tube.name.clone(),
        kind: Kind::from(tube.kind).name(),
        paused: tube.paused,
        tasks: tube.tasks,
        consumers: tube.consumers,
        next_wakeup: tube.next_wakeup,
        rates,
        durations: Durations { wait: tube.wait, run: tube.run },
    }
}

/// The sums, saturating, because the numbers come from outside.
fn total(rows: &[Row], measured: bool) -> Total {
    let sum = |count: fn(&Row) -> u64| rows.iter().map(count).fold(0, u64::saturating_add);
    let tasks = TaskCounts {
        ready: sum(|row| row.tasks.ready),
        taken: sum(|row| row.tasks.taken),
        buried: sum(|row| row.tasks.buried),
        delayed: sum(|row| row.tasks.delayed),
        done: sum(|row| row.tasks.done),
        kept: sum(|row| row.tasks.kept),
        total: sum(|row| row.tasks.total),
    };
    let known = rows.iter().filter_map(|row| row.rates);
    let rates = known.fold(Rates::default(), |sum, more| Rates {
        put: sum.put + more.put,
        take: sum.take + more.take,
        ack: sum.ack + more.ack,
        fail: sum.fail.into_iter().chain(more.fail).reduce(|sum, more| sum + more),
    });
    // After a restart all counters are reset: a rate of zero would be wrong.
    let any = measured && (rows.is_empty() || rows.iter().any(|row| row.rates.is_some()));
    let rates = any.then_some(rates);
    let (consumers, durations) = (sum(|row| row.consumers), Durations::default());
    Total { tubes: rows.len(), tasks, consumers, rates, durations }
}

/// Keeps the previous sample for the next reply.
#[derive(Debug, Default)]
pub struct Tracker {
    before: Option<Sample>,
    reached: bool,
}

/// The result of a query.
#[derive(Debug)]
pub enum Observation {
    Reachable(Report),
    Unreachable(HttpError),
}

impl Tracker {
    /// Evaluates the next reply. An error is one that a retry does not resolve.
    pub fn note(&mut self, answer: Result<Sample, HttpError>) -> Result<Observation, HttpError> {
        match answer {
            Ok(sample) => {
                let report = Report::new(&sample, self.before.as_ref());
                self.before = Some(sample);
                self.reached = true;
                Ok(Observation::Reachable(report))
            }
            Err(error) if self.reached || may_recover(&error) => {
                // Changes while it was unreachable belong to no interval.
                self.before = None;
                Ok(Observation::Unreachable(error))
            }
            Err(error) => Err(error),
        }
    }
}

/// Whether a server that was never reached may become reachable.
fn may_recover(error: &HttpError) -> bool {
    match error {
        HttpError::Unreachable { .. } => true,
        HttpError::Refused { error, .. } => {
            matches!(error, Error::ShuttingDown | Error::Overloaded(_) | Error::StoreUnavailable(_))
        }
        _ => false,
    }
}

#[cfg(test)]
pub mod tests {
    use serde_json::json;

    use super::*;

    /// A tube as the server shows it, with these puts, takes and acks so far.
    pub fn tube(number: u32, name: &str, [put, take, ack]: [u64; 3]) -> TubeAnswer {
        let answer = json!({
            "name": name, "number": number, "kind": "fifottl", "temporary": false, "pri": 0,
            "ttl_kills_taken": false, "paused": false, "takeable": 0, "consumers": 2,
            "tasks": {
                "ready": put - take, "taken": take - ack, "buried": 0, "delayed": 0,
                "done": ack, "total": put - ack,
            },
            "calls": {
                "put": put, "take": take, "ack": ack, "bury": 0, "delete": 0, "kick": 0,
                "release": 0, "touch": 0, "ttl": 0, "ttr": 0, "delay": 0,
            },
        });
        serde_json::from_value(answer).unwrap()
    }

    /// Replies so many milliseconds apart.
    pub fn samples(millis: u64, answers: [Vec<TubeAnswer>; 2]) -> [Sample; 2] {
        let start = Instant::now();
        let mut nth = 0;
        answers.map(|tubes| {
            let after = Duration::from_millis(millis * nth);
            nth += 1;
            let time = 1000.0 + after.as_secs_f64();
            let durations = Durations::default();
            Sample {
                at: start + after,
                time,
                latency: Duration::from_micros(850),
                tubes,
                durations,
            }
        })
    }

    /// The report of the second of these.
    pub fn report(millis: u64, answers: [Vec<TubeAnswer>; 2]) -> Report {
        let [old, new] = samples(millis, answers);
        Report::new(&new, Some(&old))
    }

    fn unreachable() -> HttpError {
        HttpError::Unreachable { url: "http://x".into(), why: "refused".into() }
    }

    #[test]
    fn rates_are_calls_per_elapsed_time() {
        let report =
            report(500, [vec![tube(1, "a", [10, 5, 5])], vec![tube(1, "a", [110, 55, 6])]]);
        let rates = Some(Rates { put: 200.0, take: 100.0, ack: 2.0, fail: None });
        assert_eq!((report.tubes[0].rates, report.total.rates), (rates, rates));
        assert_eq!(report.seconds, Some(0.5));
    }

    #[test]
    fn failures_have_rates_where_the_server_counts_them() {
        let counted = |name, failures| TubeAnswer { failures, ..tube(1, name, [0; 3]) };
        let old = vec![counted("a", Some(1)), counted("b", Some(9)), counted("c", None)];
        let new = vec![counted("a", Some(4)), counted("b", Some(2)), counted("c", Some(5))];
        let report = report(2000, [old, new]);
        let fail: Vec<_> = report.tubes.iter().map(|row| row.rates.unwrap().fail).collect();
        assert_eq!(
            (fail, report.total.rates.unwrap().fail),
            (vec![Some(1.5), None, None], Some(1.5))
        );
    }

    #[test]
    fn a_tube_that_was_created_again_is_another_one() {
        let report = report(1000, [vec![tube(1, "a", [1, 0, 0])], vec![tube(2, "a", [9, 0, 0])]]);
        assert_eq!((report.tubes[0].rates, report.total.rates), (None, None));
    }

    #[test]
    fn reset_counters_have_no_rates_for_an_interval() {
        let report = report(1000, [vec![tube(1, "a", [9, 9, 9])], vec![tube(1, "a", [10, 3, 1])]]);
        assert_eq!(report.tubes[0].rates, None);
    }

    #[test]
    fn replies_at_the_same_time_do_not_divide_by_zero() {
        let report = report(0, [vec![tube(1, "a", [0, 0, 0])], vec![tube(1, "a", [5, 0, 0])]]);
        assert_eq!(report.tubes[0].rates, None);
    }

    #[test]
    fn impossible_numbers_are_added_without_a_panic() {
        let most = || vec![tube(1, "a", [u64::MAX, 0, 0]), tube(2, "b", [u64::MAX, 0, 0])];
        assert_eq!(report(1000, [most(), most()]).total.tasks.ready, u64::MAX);
    }

    #[test]
    fn an_empty_server_has_rates_of_zero() {
        assert_eq!(report(1000, [vec![], vec![]]).total.rates, Some(Rates::default()));
    }

    #[test]
    fn changes_while_the_server_was_unreachable_are_no_rate() {
        let [old, new] = samples(1000, [vec![tube(1, "a", [0; 3])], vec![tube(1, "a", [9, 0, 0])]]);
        let mut tracker = Tracker::default();
        assert!(matches!(tracker.note(Err(unreachable())), Ok(Observation::Unreachable(_))));
        assert!(matches!(tracker.note(Ok(old)), Ok(Observation::Reachable(_))));
        assert!(matches!(tracker.note(Err(unreachable())), Ok(Observation::Unreachable(_))));
        let Ok(Observation::Reachable(report)) = tracker.note(Ok(new)) else {
            panic!("it is reachable")
        };
        assert_eq!((report.seconds, report.tubes[0].rates), (None, None));
    }

    #[test]
    fn only_a_server_that_was_reached_may_fail_with_any_error() {
        let mut tracker = Tracker::default();
        assert!(tracker.note(Err(HttpError::Unauthorized("no".into()))).is_err());
        let [sample, _] = samples(1000, [vec![], vec![]]);
        tracker.note(Ok(sample)).unwrap();
        assert!(tracker.note(Err(HttpError::Unauthorized("no".into()))).is_ok());
    }
}
