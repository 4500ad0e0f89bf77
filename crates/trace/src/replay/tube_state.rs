//! The state of a tube in a replay: what it shares with others, and commands that wait to be sent together.

use std::collections::VecDeque;

use taskyard_core::{Body, FinishItem, NewTask, RateLimit, TubeChange, TubeName, TubeOptions};

use super::scenario::{PriorityChange, Scenario, semaphore};
use crate::tasks::{ChangeKind, RecordedTube, Trace};

/// Commands that may wait are sent to the machine in groups of this size.
pub(super) const GROUP: usize = 256;

/// A tube.
pub(super) struct TubeState {
    pub name: TubeName,
    /// The options in the replay.
    pub options: TubeOptions,
    /// The consumers that take from it.
    pub pool: u32,
    /// How long its consumers need from the end of a delivery to the next one, in microseconds.
    pub turnaround: i64,
    /// The limits that it shares.
    pub limits: Vec<u32>,
    /// Whether it is in the queue of its pool, or waits for a limit.
    pub is_queued: bool,
    /// Its tasks by their ids in the machine: in the order of their puts.
    pub rows: Vec<u32>,
    /// How many of them were put.
    pub arrived: usize,
    pub order: DeliveryOrder,
    /// Puts that the machine does not know yet.
    pub puts: Vec<NewTask>,
    /// Acks that the machine does not know yet.
    pub acks: Vec<FinishItem>,
    /// How many tasks started, if the machine gets them ahead of time.
    pub started: usize,
    /// Tasks that the machine delivered ahead of time, in order.
    pub ahead: VecDeque<u32>,
    pub priorities: Vec<PriorityChange>,
    /// Whether the rate is that of the scenario.
    has_own_rate: bool,
}

/// What the order of deliveries in a tube depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeliveryOrder {
    /// Only on the order of puts: no later task overtakes, so the machine may put and deliver tasks ahead of time.
    Puts,
    /// Not on the times of puts and acks between two takes.
    Takes,
    /// On everything: the machine gets each command at its time.
    Times,
}

/// Consumers that take from the same tubes.
#[derive(Debug, Default)]
pub(super) struct ConsumerPool {
    pub count: u32,
    pub running: u32,
    /// How many tubes it has.
    pub tubes: u32,
    /// The tubes that may have tasks, in the order in which they are asked.
    pub queue: VecDeque<u32>,
    /// Whether it is to be asked at the end of this moment.
    pub is_touched: bool,
}

/// How many tasks of some tubes may run at once.
#[derive(Debug)]
pub(super) struct TubeLimit {
    pub count: u32,
    pub running: u32,
    pub tubes: Vec<u32>,
    /// The tubes that wait for it, in the order in which they are asked.
    pub waiting: Vec<u32>,
}

impl TubeLimit {
    fn new(count: u32, tubes: Vec<u32>) -> Self {
        TubeLimit { count, running: 0, tubes, waiting: Vec::new() }
    }
}

/// The pools of the tubes: one that is shared, and one for each other tube.
pub(super) fn pools(trace: &Trace, scenario: &Scenario) -> (Vec<ConsumerPool>, Vec<u32>) {
    let mut pools = Vec::new();
    let shared = scenario.shared_consumers();
    pools.extend(shared.map(|count| ConsumerPool { count, ..ConsumerPool::default() }));
    let mut numbers = Vec::with_capacity(trace.tubes.len());
    for tube in &trace.tubes {
        let own = scenario.own_consumers(&tube.name);
        let number = match (own, shared) {
            (None, Some(_)) => 0,
            _ => {
                // Those of the recording change with time.
                let count = own.unwrap_or(tube.consumers.most());
                pools.push(ConsumerPool { count, ..ConsumerPool::default() });
                pools.len() - 1
            }
        };
        pools[number].tubes += 1;
        numbers.push(number as u32);
    }
    (pools, numbers)
}

/// The limits of the scenario, and for tubes that a semaphore gates the most tasks that ran at once.
pub(super) fn limits(trace: &Trace, scenario: &Scenario) -> Vec<TubeLimit> {
    let mut limits: Vec<TubeLimit> = Vec::new();
    for (name, count) in &scenario.limits {
        let tubes = scenario.limited(trace, name).map(|tube| tube as u32).collect();
        limits.push(TubeLimit::new(*count, tubes));
    }
    let mut keys: Vec<&str> =
        (0..trace.tubes.len()).filter_map(|tube| semaphore(trace, tube)).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.retain(|key| scenario.limits.iter().all(|limit| limit.0 != *key));
    for key in keys {
        let gated = (0..trace.tubes.len()).filter(|tube| semaphore(trace, *tube) == Some(key));
        let tubes: Vec<u32> = gated.map(|tube| tube as u32).collect();
        let most = tubes.iter().map(|tube| trace.tubes[*tube as usize].consumers.most());
        limits.push(TubeLimit::new(most.sum(), tubes));
    }
    limits
}

impl TubeState {
    /// A tube of the trace before its first task. Names are numbers, because a trace may have two tubes of one name.
    pub fn new(trace: &Trace, scenario: &Scenario, number: usize, pool: u32) -> Self {
        let recorded = &trace.tubes[number];
        let name = TubeName::new(&number.to_string()).expect("a number is a name");
        let rate = scenario.rates.iter().find(|rate| rate.0 == recorded.name);
        let fallback = || TubeOptions::new(taskyard_core::Kind::FifoTtl);
        let mut options = recorded.options.as_deref().cloned().unwrap_or_else(fallback);
        // Limits replace the semaphore, whose other members the trace does not have.
        (options.semaphore, options.queue_num) = (None, None);
        if let Some((_, rate)) = rate {
            options.rate = rate.map(Box::new);
        }
        let priorities =
            scenario.priorities.iter().filter(|change| change.tube == recorded.name).cloned();
        TubeState {
            name,
            options,
            pool,
            turnaround: turnaround(recorded),
            limits: Vec::new(),
            is_queued: false,
            rows: Vec::new(),
            arrived: 0,
            order: DeliveryOrder::Times,
            puts: Vec::new(),
            acks: Vec::new(),
            started: 0,
            ahead: VecDeque::new(),
            priorities: priorities.collect(),
            has_own_rate: rate.is_some(),
        }
    }

    /// The priority of a task, from that of its put.
    pub fn priority(&self, given: Option<u64>) -> Option<u64> {
        let current = given.unwrap_or(self.options.pri);
        let change =
            self.priorities.iter().find(|change| change.from.is_none_or(|from| from == current));
        change.map(|change| change.to).or(given)
    }

    /// The command that gives the tube the recorded options, except where the scenario differs.
    pub fn change(&mut self, recorded: &TubeOptions) -> TubeChange {
        let rate: Option<Box<RateLimit>> =
            if self.has_own_rate { self.options.rate.clone() } else { recorded.rate.clone() };
        self.options.pri = recorded.pri;
        TubeChange {
            paused: Some(recorded.paused),
            ttl: Some(recorded.ttl),
            ttr: Some(recorded.ttr),
            delay: Some(recorded.delay),
            pri: Some(recorded.pri),
            attempts_max: Some(recorded.attempts_max),
            retry: Some(recorded.retry.clone()),
            rate: Some(rate),
            ..TubeChange::default()
        }
    }
}

/// Where tasks wait for other reasons than a consumer, it is not known what consumers need.
fn turnaround(tube: &RecordedTube) -> i64 {
    let has_reasons = tube.has_other_reasons();
    if has_reasons { 0 } else { i64::try_from(tube.consumers.turnaround()).unwrap_or(0) }
}

/// Gives each tube its tasks, and finds out what the order of its deliveries depends on.
pub(super) fn prepare(trace: &Trace, tubes: &mut [TubeState]) {
    for tube in tubes.iter_mut() {
        let TubeOptions { kind, ttl, delay, rate, paused, .. } = &tube.options;
        tube.order = match !kind.has_subqueues() && ttl.is_none() && delay.is_none() {
            true if rate.is_none() && !paused => DeliveryOrder::Puts,
            true => DeliveryOrder::Takes,
            false => DeliveryOrder::Times,
        };
    }
    for change in &trace.changes {
        let order = &mut tubes[change.tube as usize].order;
        *order = match change.kind {
            ChangeKind::Options(_) => DeliveryOrder::Times,
            _ if *order == DeliveryOrder::Puts => DeliveryOrder::Takes,
            _ => *order,
        };
    }
    let mut priorities: Vec<Option<u64>> = vec![None; tubes.len()];
    for (index, row) in trace.rows.iter().enumerate() {
        let tube = &mut tubes[row.tube as usize];
        tube.rows.push(index as u32);
        let given = tube.priority(row.has_pri.then_some(row.pri));
        let pri = given.unwrap_or(tube.options.pri);
        let first = *priorities[row.tube as usize].get_or_insert(pri);
        if tube.order == DeliveryOrder::Puts && (first != pri || row.details > 0) {
            tube.order = DeliveryOrder::Takes;
        }
    }
}

/// The body of all tasks.
pub(super) fn empty_body() -> Body {
    Body::new(&[])
}
