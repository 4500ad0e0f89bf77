//! Learns about the consumers of a tube, and computes when a waiting task will start with them.
//!
//! The rate of departures is measured while tasks wait: then consumers have no pause. By Little's law the number of
//! running tasks is the rate times their run time, so a change of the number of consumers shows at once in the
//! number of running tasks, and the measured rate is scaled with it.

use super::departures::{Quantiles, departure};
use super::run_times::RunTimes;
use super::{Basis, Estimate, Forecast, NoEstimate, Position};
use crate::command::TubeInfo;
use crate::rate::RateLimit;
use crate::time::{Span, Timestamp};

/// After this many seconds of activity what was learned has half of its weight.
const HALF_LIFE: f64 = 60.0;
/// The same for the number of running tasks, which changes when consumers join or leave.
const TAKEN_HALF_LIFE: f64 = 3.0;
/// After this many seconds in which tasks waited the usual number of running tasks is known.
const USUAL_SECONDS: f64 = 10.0;
/// The most priorities whose arrivals are counted separately.
const PRIORITIES_MAX: usize = 16;
/// A task that could have been taken for so long waits although a consumer at another server would know of it.
const UNCLAIMED_MIN: Span = Span::from_secs(2);
/// Estimates end here.
const SECONDS_MAX: f64 = 30.0 * 86_400.0;

/// What happened in a tube since the sample before.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueSample {
    /// How long that is.
    pub seconds: f64,
    /// Deliveries.
    pub takes: u64,
    /// Deliveries whose task waits again.
    pub returns: u64,
    /// Ready tasks at its end.
    pub ready: u64,
    /// Taken tasks at its end.
    pub taken: u64,
}

/// The state of a tube when an estimate is asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueNow {
    /// Ready tasks.
    pub ready: u64,
    /// Taken tasks.
    pub taken: u64,
    /// Consumers that wait for a task, as far as they are known.
    pub idle: u64,
    /// Whether other servers may have consumers that wait for a task.
    pub is_shared: bool,
    /// Since when a task has been waiting that could be taken.
    pub unclaimed: Option<Timestamp>,
    /// Whether the tube is paused.
    pub is_paused: bool,
    /// The priority of tasks whose put names none.
    pub pri: u64,
    /// Its rate limit.
    pub rate: Option<RateLimit>,
    /// Deliveries that the rate limit allows at once.
    pub tokens: u64,
    /// Its semaphore.
    pub gate: Option<GateNow>,
}

/// The state of a semaphore.
#[derive(Clone, Copy, Debug)]
pub struct GateNow {
    /// How many tasks it lets run.
    pub active: u64,
    /// How many hold a grant.
    pub held: u64,
}

impl QueueNow {
    /// The state of a tube without its semaphore, idle consumers and other servers.
    ///
    /// The tokens of its rate limit are those that ready tasks can use. If all of them can, there may be more: as many as
    /// the limit saves. In a tube with sub-queues, too, if there are any: only one task of each can use one.
    pub fn of(info: &TubeInfo) -> Self {
        let (options, ready) = (&info.options, info.stats.tasks.ready);
        let rate = options.rate.as_deref().copied();
        let burst = rate.map_or(0, |rate| u64::from(rate.burst));
        let has_more = options.kind.has_subqueues() && info.takeable > 0;
        QueueNow {
            ready,
            taken: info.stats.tasks.taken,
            idle: 0,
            is_shared: false,
            unclaimed: info.oldest_ready.filter(|_| info.takeable > 0),
            is_paused: options.paused,
            pri: options.pri,
            rate,
            tokens: match info.takeable {
                all if all >= ready => burst.max(ready),
                _ if has_more => burst,
                tokens => tokens,
            },
            gate: None,
        }
    }

    /// Why there is no estimate for a tube of which nothing is known but this.
    pub fn unknown(&self, now: Timestamp) -> NoEstimate {
        if self.is_paused {
            NoEstimate::TubePaused
        } else if self.taken == 0 && self.idle == 0 {
            self.no_consumer(now)
        } else {
            NoEstimate::NoHistory
        }
    }

    /// Why there is no estimate if no task runs and no known consumer waits. Consumers that wait at other servers are not
    /// known, but a task that waits longer than they need to take it shows that there are none.
    fn no_consumer(&self, now: Timestamp) -> NoEstimate {
        let is_unclaimed = self.unclaimed.is_some_and(|since| now.since(since) >= UNCLAIMED_MIN);
        if self.is_shared && !is_unclaimed { NoEstimate::NoHistory } else { NoEstimate::NoConsumer }
    }

    /// Whether the rate limit allows the deliveries of so many tasks and one more now.
    fn has_tokens(&self, ahead: u64) -> bool {
        self.rate.is_none() || ahead < self.tokens
    }
}

/// What was learned of one tube.
#[derive(Clone, Debug, Default)]
pub struct ServiceModel {
    runs: RunTimes,
    /// Sums over seconds in which tasks waited, with weights.
    waited: Waited,
    /// The number of running tasks in the last seconds.
    taken: f64,
    /// Whether tasks waited at the latest sample.
    was_waiting: bool,
    /// Taken tasks at the latest sample.
    was_taken: u64,
    /// Arrivals by priority, with weights, and the weight of the seconds. `None` is the usual priority of the tube.
    arrivals: Vec<(Option<u64>, f64)>,
    seconds: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Waited {
    seconds: f64,
    departures: f64,
    taken: f64,
}

impl ServiceModel {
    /// Deliveries of this many seconds have ended.
    pub fn add_runs(&mut self, seconds: f64, count: u32) {
        self.runs.add(seconds, f64::from(count));
    }

    /// Tasks with this priority were put; `None` is the usual one of the tube.
    pub fn add_arrivals(&mut self, pri: Option<u64>, count: u32) {
        let count = f64::from(count);
        if let Some(arrivals) = self.arrivals.iter_mut().find(|arrivals| arrivals.0 == pri) {
            arrivals.1 += count;
        } else if self.arrivals.len() < PRIORITIES_MAX {
            self.arrivals.push((pri, count));
        } else if let Some(rarest) =
            self.arrivals.iter_mut().min_by(|a, b| a.1.total_cmp(&b.1)).filter(|a| a.1 < count)
        {
            *rarest = (pri, count);
        }
    }

    /// Adds a sample of a tube that was used since the one before.
    pub fn add_sample(&mut self, sample: QueueSample) {
        let seconds = sample.seconds;
        let fade = 0.5_f64.powf(seconds / HALF_LIFE);
        self.runs.fade(fade);
        self.arrivals.iter_mut().for_each(|arrivals| arrivals.1 *= fade);
        self.arrivals.retain(|arrivals| arrivals.1 > 1e-3);
        self.seconds = self.seconds * fade + seconds;
        let waits = sample.ready > 0;
        let recent = 0.5_f64.powf(seconds / TAKEN_HALF_LIFE);
        self.taken = self.taken * recent + sample.taken as f64 * (1.0 - recent);
        if waits && self.was_waiting {
            // Takes that only raise the number of running tasks, as those of new consumers, say nothing about how long
            // tasks run.
            let added = sample.taken as f64 - self.was_taken as f64;
            let departures = sample.takes as f64 - sample.returns as f64 - added;
            self.waited = Waited {
                seconds: self.waited.seconds * fade + seconds,
                departures: (self.waited.departures * fade + departures).max(0.0),
                taken: self.waited.taken * fade + sample.taken as f64 * seconds,
            };
        }
        self.was_waiting = waits;
        self.was_taken = sample.taken;
    }

    /// Arrivals per second that go before a task with this priority; `usual` is that of puts that name none.
    fn overtaking(&self, pri: u64, usual: u64) -> f64 {
        let better = self.arrivals.iter().filter(|arrivals| arrivals.0.unwrap_or(usual) < pri);
        better.map(|arrivals| arrivals.1).sum::<f64>() / self.seconds.max(1.0)
    }

    /// How many consumers there are: those that run a task, and those that wait for one. The latter may wait for tasks of
    /// other tubes too; so no more of them count than ran while tasks of this tube waited.
    fn consumers(&self, queue: &QueueNow) -> f64 {
        let (taken, idle) = (queue.taken as f64, queue.idle as f64);
        if taken + idle == 0.0 {
            // Perhaps they are between two tasks.
            return self.taken;
        }
        let usual = self.waited.taken / self.waited.seconds.max(1.0);
        if self.waited.seconds < USUAL_SECONDS {
            taken + idle
        } else {
            (taken + idle).min(usual.max(taken).max(1.0))
        }
    }

    /// How many tasks leave the queue per second, with as many consumers as there are now.
    fn rate(&self, queue: &QueueNow) -> Option<f64> {
        let consumers = self.consumers(queue);
        if self.waited.departures > 0.0 && self.waited.taken > 0.0 {
            return Some(self.waited.departures / self.waited.taken * consumers);
        }
        Some(consumers / self.runs.mean()?)
    }

    /// When a task at this position will start.
    pub fn forecast(&self, now: Timestamp, position: &Position, queue: &QueueNow) -> Forecast {
        if queue.is_paused {
            return Err(NoEstimate::TubePaused);
        }
        let ahead = position.ahead + queue.taken;
        let due = position.due.map_or(0.0, |due| due.since(now).as_secs_f64());
        if queue.taken == 0 && queue.idle == 0 && self.taken < 0.05 {
            return Err(queue.no_consumer(now));
        }
        let (quantiles, basis) = self.quantiles(due, position, queue)?;
        let span = |seconds: f64| Span::from_secs_f64(seconds.clamp(0.0, SECONDS_MAX));
        let (p50, p90) = (span(quantiles.p50), span(quantiles.p90.max(quantiles.p50)));
        let (p50, p90) = (p50.unwrap_or_default(), p90.unwrap_or_default());
        Ok(Estimate { ahead, p50, p90, basis })
    }

    fn quantiles(
        &self,
        due: f64,
        position: &Position,
        queue: &QueueNow,
    ) -> Result<(Quantiles, Basis), NoEstimate> {
        let is_blocked = position.subqueue.is_some_and(|own| own.is_busy || own.ahead > 0);
        if due == 0.0
            && position.ahead < queue.idle
            && position.gate_ahead.is_none()
            && queue.has_tokens(position.ahead)
            && !is_blocked
        {
            return Ok((Quantiles { p50: 0.0, p90: 0.0 }, Basis::IdleConsumer));
        }
        let rate = self.rate(queue).filter(|rate| *rate > 0.0).ok_or(NoEstimate::NoHistory)?;
        let mut found = (self.in_queue(position, queue, rate), Basis::RunTimes);
        if let Some(own) = self.in_subqueue(position)
            && own.p50 > found.0.p50
        {
            found = (own, Basis::Subqueue);
        }
        if let Some(limit) = &queue.rate {
            let pace = f64::from(limit.count) / limit.per.as_secs_f64();
            let missing = (position.ahead + 1).saturating_sub(queue.tokens);
            let time = missing as f64 / pace;
            if time > found.0.p50 {
                found = (Quantiles { p50: time, p90: time.max(found.0.p90) }, Basis::RateLimit);
            }
        }
        if let Some(gated) = self.at_gate(position, queue)
            && gated.p50 > found.0.p50
        {
            found = (gated, Basis::Semaphore);
        }
        if due > found.0.p50 {
            let later = (found.0.p90 - found.0.p50).max(0.0).min(found.0.p90);
            found = (Quantiles { p50: due, p90: due.max(found.0.p90) + later * 0.1 }, Basis::Delay);
        }
        Ok(found)
    }

    /// The time of the departures of all that goes first.
    fn in_queue(&self, position: &Position, queue: &QueueNow, rate: f64) -> Quantiles {
        let overtaking = self.overtaking(position.pri, queue.pri).min(0.95 * rate);
        let consumers = self.consumers(queue);
        let after = |count: u64| {
            let quantiles = departure(count.max(1), consumers, rate, &self.runs);
            let slower = rate / (rate - overtaking);
            Quantiles { p50: quantiles.p50 * slower, p90: quantiles.p90 * slower }
        };
        let ahead = position.ahead.saturating_sub(queue.idle) + 1;
        if position.delayed_ahead.is_empty() {
            return after(ahead);
        }
        // Delayed tasks that are due before count too; there may be more in a longer time.
        let mut time = ahead as f64 / (rate - overtaking);
        let mut delayed = 0;
        for _ in 0..8 {
            let within = Span::from_secs_f64(time.min(SECONDS_MAX)).unwrap_or_default();
            let more = position.delayed_within(within);
            if more == delayed {
                break;
            }
            delayed = more;
            time = (ahead + delayed) as f64 / (rate - overtaking);
        }
        after(ahead + delayed)
    }

    /// The time of the tasks of its own sub-queue, of which one runs at a time.
    fn in_subqueue(&self, position: &Position) -> Option<Quantiles> {
        let own = position.subqueue?;
        let runs = own.ahead + u64::from(own.is_busy);
        let mean = self.runs.mean().filter(|_| runs > 0)?;
        Some(departure(runs, 1.0, 1.0 / mean, &self.runs))
    }

    /// The time of the grants that others get first.
    fn at_gate(&self, position: &Position, queue: &QueueNow) -> Option<Quantiles> {
        let (gate, ahead) = (queue.gate?, position.gate_ahead?);
        let holders = gate.held.max(1).min(gate.active.max(1)) as f64;
        let mean = self.runs.mean()?;
        Some(departure(ahead + 1, holders, holders / mean, &self.runs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(1_000_000_000);

    /// One consumer that needs a hundredth of a second for each task.
    fn fast_consumer() -> ServiceModel {
        let mut model = ServiceModel::default();
        for _ in 0..30 {
            model.add_runs(0.01, 100);
            let (seconds, takes, returns) = (1.0, 100, 0);
            model.add_sample(QueueSample { seconds, takes, returns, ready: 1_000, taken: 1 });
        }
        model
    }

    /// One task per second, with so many tokens now.
    fn limited(tokens: u64) -> QueueNow {
        let rate = RateLimit { count: 1, per: Span::from_secs(1), burst: 100 };
        QueueNow { ready: 200, taken: 1, rate: Some(rate), tokens, ..QueueNow::default() }
    }

    /// A tube with a full bucket delivers a burst at once, but the estimate of each of its tasks was that of an empty one.
    #[test]
    fn saved_tokens_are_deliveries_at_once() {
        let model = fast_consumer();
        let estimate = |ahead, tokens| {
            model.forecast(NOW, &Position::behind(ahead), &limited(tokens)).expect("an estimate")
        };
        let empty = estimate(59, 0);
        assert_eq!((empty.p50, empty.basis), (Span::from_secs(60), Basis::RateLimit));
        let full = estimate(59, 100);
        assert!(full.p50 < Span::from_secs(1) && full.basis == Basis::RunTimes, "{full:?}");
        let behind = estimate(109, 100);
        assert_eq!((behind.p50, behind.basis), (Span::from_secs(10), Basis::RateLimit));
    }

    /// Consumers that take their first tasks from a backlog had given the rate of their takes, so the next task was expected
    /// within seconds although no task had ended.
    #[test]
    fn the_first_takes_of_consumers_are_no_departures() {
        let mut model = ServiceModel::default();
        let mut sample = |takes, taken| {
            let sample = QueueSample { seconds: 1.0, takes, returns: 0, ready: 1_000, taken };
            model.add_sample(sample);
            let queue = QueueNow { ready: 1_000, taken, ..QueueNow::default() };
            model.forecast(NOW, &Position::behind(0), &queue)
        };
        for (takes, taken) in [(0, 0), (3, 3), (2, 5), (0, 5), (0, 5)] {
            let expected = if taken == 0 { NoEstimate::NoConsumer } else { NoEstimate::NoHistory };
            assert_eq!(sample(takes, taken), Err(expected));
        }
        // From now on one of five ends in each second.
        let estimate = (0..30).map(|_| sample(1, 5)).last().expect("samples").expect("an estimate");
        let seconds = estimate.p50.as_secs_f64();
        assert!((0.3..3.0).contains(&seconds), "{estimate:?}");
    }

    /// A rate limit with a token does not make a task wait for which a consumer waits.
    #[test]
    fn an_idle_consumer_needs_a_token() {
        let model = fast_consumer();
        let basis = |tokens| {
            let queue = QueueNow { idle: 5, ..limited(tokens) };
            model.forecast(NOW, &Position::behind(2), &queue).expect("an estimate").basis
        };
        assert_eq!([2, 3].map(basis), [Basis::RateLimit, Basis::IdleConsumer]);
    }

    /// A server of several answered that there is no consumer as soon as it had none itself.
    #[test]
    fn consumers_at_other_servers_are_not_denied() {
        let model = ServiceModel::default();
        let answer = |is_shared, unclaimed: Option<u64>| {
            let unclaimed = unclaimed.map(|seconds| NOW.moved(-1_000_000 * seconds as i64));
            let queue = QueueNow { is_shared, unclaimed, ready: 1, ..QueueNow::default() };
            let found = model.forecast(NOW, &Position::behind(0), &queue);
            assert_eq!(found, Err(queue.unknown(NOW)));
            queue.unknown(NOW)
        };
        assert_eq!(answer(false, None), NoEstimate::NoConsumer);
        assert_eq!(answer(true, None), NoEstimate::NoHistory);
        assert_eq!(answer(true, Some(1)), NoEstimate::NoHistory);
        assert_eq!(answer(true, Some(2)), NoEstimate::NoConsumer);
    }
}
