//! Replays a trace through the machine of the core, on a virtual clock.
//!
//! At each moment deliveries end first, then due tasks become ready, then tasks are put and changes happen, then idle consumers
//! take. Where that cannot change what is delivered next, commands reach the machine in groups (`DeliveryOrder`); the waits are
//! counted from the recorded puts.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

use taskyard_core::limits::BATCH_TASKS_MAX;
use taskyard_core::{
    Body, Command, Finish, FinishItem, Holder, Machine, NewTask, Reply, Result, Span, Take, Task,
    TaskId, Timestamp, TubeName,
};

use super::scenario::{Scenario, ScenarioError};
use super::tube_state::{
    ConsumerPool, DeliveryOrder, GROUP, TubeLimit, TubeState, empty_body, limits, pools, prepare,
};
use super::{REPORT_EVERY, Replayed, ReplayedTube};
use crate::event::Ending;
use crate::tasks::{Change, ChangeKind, TaskRow, Trace};

/// Maximum number of tasks that one tick moves.
const TICK_LIMIT: usize = 1_000;

/// The end of a delivery, or the moment at which its consumer takes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct DeliveryEnd {
    at: i64,
    row: u32,
    /// The task in the machine; [`CONSUMER`] if its consumer takes again.
    id: u32,
}

const CONSUMER: u32 = u32::MAX;

/// A change of the number of consumers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ConsumerChange {
    at: i64,
    pool: u32,
    count: u32,
}

struct TubeReplay<'a> {
    trace: &'a Trace,
    machine: Machine,
    tubes: Vec<TubeState>,
    pools: Vec<ConsumerPool>,
    limits: Vec<TubeLimit>,
    ends: BinaryHeap<Reverse<DeliveryEnd>>,
    /// By time, the next one last.
    consumer_changes: Vec<ConsumerChange>,
    next_row: usize,
    next_change: usize,
    /// How often tasks with details were delivered.
    deliveries: HashMap<u32, u32>,
    /// The id of a task that may be deleted, by its row.
    ids: HashMap<u32, u32>,
    /// Pools with something to do at this moment.
    touched: Vec<u32>,
    subqueues: HashMap<u64, Arc<str>>,
    by_name: HashMap<TubeName, u32>,
    body: Body,
    seed: u32,
    /// Whether tasks or tubes have times at which something becomes due.
    has_timers: bool,
    found: Replayed,
}

/// Replays a trace; the scenario was checked.
pub fn run(
    trace: &Trace,
    scenario: &Scenario,
    progress: &mut dyn FnMut(u64),
) -> std::result::Result<Replayed, ScenarioError> {
    let mut replay = TubeReplay::new(trace, scenario)?;
    replay.run(progress)?;
    Ok(replay.finish()?)
}

/// A moment of the machine.
fn moment(at: i64) -> Timestamp {
    Timestamp::from_micros(at)
}

impl<'a> TubeReplay<'a> {
    fn new(trace: &'a Trace, scenario: &Scenario) -> Result<Self> {
        let (pools, pool_of) = pools(trace, scenario);
        let limits = limits(trace, scenario);
        let mut tubes: Vec<TubeState> = (0..trace.tubes.len())
            .map(|number| TubeState::new(trace, scenario, number, pool_of[number]))
            .collect();
        for (number, limit) in limits.iter().enumerate() {
            for tube in &limit.tubes {
                tubes[*tube as usize].limits.push(number as u32);
            }
        }
        prepare(trace, &mut tubes);
        let mut machine = Machine::default();
        for tube in &tubes {
            let (name, options) = (tube.name.clone(), tube.options.clone());
            let create = Command::CreateTube { tube: name, options, if_not_exists: false };
            machine.apply(Timestamp::EPOCH, create)?;
        }
        let mut consumer_changes = recorded_consumers(trace, scenario, &pool_of);
        consumer_changes.sort_unstable_by_key(|change| Reverse(*change));
        let deletes = trace.changes.iter().filter_map(|change| match change.kind {
            ChangeKind::Delete { row } => Some((row, u32::MAX)),
            _ => None,
        });
        let shown = |number: usize| {
            let is_recorded = !is_given(trace, scenario, number);
            let count = (!is_recorded).then_some(pools[pool_of[number] as usize].count);
            ReplayedTube { consumers: count, ..ReplayedTube::default() }
        };
        let found =
            Replayed { tubes: (0..tubes.len()).map(shown).collect(), ..Replayed::default() };
        let by_name = tubes.iter().zip(0..).map(|(tube, number)| (tube.name.clone(), number));
        let has_times =
            |tube: &TubeState| tube.order == DeliveryOrder::Times || tube.options.rate.is_some();
        Ok(TubeReplay {
            has_timers: !trace.details.is_empty() || tubes.iter().any(has_times),
            by_name: by_name.collect(),
            ids: deletes.collect(),
            trace,
            machine,
            tubes,
            pools,
            limits,
            ends: BinaryHeap::new(),
            consumer_changes,
            next_row: 0,
            next_change: 0,
            deliveries: HashMap::new(),
            touched: Vec::new(),
            subqueues: HashMap::new(),
            body: empty_body(),
            seed: 1,
            found,
        })
    }

    fn run(&mut self, progress: &mut dyn FnMut(u64)) -> Result<()> {
        let mut reported = 0;
        loop {
            let due = if self.has_timers { self.machine.next_wakeup() } else { None };
            let due = due.map(Timestamp::as_micros);
            let Some(now) = self.next_moment(due) else { return Ok(()) };
            self.end_deliveries(now)?;
            if due.is_some_and(|due| due <= now) {
                self.tick(now)?;
            }
            self.change(now)?;
            self.put(now)?;
            self.take(now)?;
            self.found.end = now.max(0).unsigned_abs();
            if self.next_row - reported >= REPORT_EVERY {
                reported = self.next_row;
                progress(reported as u64);
            }
        }
    }

    /// When something happens next; `due` is when the machine wants a tick.
    fn next_moment(&self, due: Option<i64>) -> Option<i64> {
        let put = self.trace.rows.get(self.next_row).map(|row| row.put);
        let end = self.ends.peek().map(|end| end.0.at);
        let change = self.trace.changes.get(self.next_change).map(|change| change.at);
        let consumers = self.consumer_changes.last().map(|change| change.at);
        [put, end, change, consumers, due].into_iter().flatten().min()
    }

    /// Ends the deliveries whose time is over.
    fn end_deliveries(&mut self, now: i64) -> Result<()> {
        while let Some(Reverse(end)) = self.ends.peek().copied().filter(|end| end.0.at <= now) {
            self.ends.pop();
            let row = &self.trace.rows[end.row as usize];
            let number = row.tube;
            if end.id == CONSUMER {
                self.free_consumer(number);
                continue;
            }
            let ending = self.ending(end.row, row);
            self.found.tubes[number as usize].end(end.at);
            self.leave_limits(number);
            match self.tubes[number as usize].turnaround {
                0 => self.free_consumer(number),
                more => {
                    let at = now.saturating_add(more);
                    self.ends.push(Reverse(DeliveryEnd { at, id: CONSUMER, ..end }))
                }
            }
            let tube = &mut self.tubes[number as usize];
            let item =
                |finish| FinishItem { id: TaskId(u64::from(end.id)), holder: Holder::Any, finish };
            if ending == Ending::Acked && tube.order != DeliveryOrder::Times {
                tube.acks.push(item(Finish::Ack));
                if tube.acks.len() >= GROUP {
                    self.send_acks(now, number)?;
                }
                continue;
            }
            self.seed = self.seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let finish = ending.finish(self.seed);
            let items = vec![item(finish)];
            let command = Command::Finish { tube: tube.name.clone(), items, show: false };
            self.machine.apply(moment(now), command)?;
            self.queue_tube(number);
        }
        Ok(())
    }

    /// How the current delivery of a task ends.
    fn ending(&self, index: u32, row: &TaskRow) -> Ending {
        if row.details == 0 {
            return Ending::Acked;
        }
        let nth = self.deliveries.get(&index).map_or(0, |count| count - 1);
        self.trace.replayed_delivery(index, nth as usize).ending
    }

    /// A consumer of a tube can take again.
    fn free_consumer(&mut self, number: u32) {
        let pool = self.tubes[number as usize].pool;
        self.pools[pool as usize].running -= 1;
        self.touch(pool);
    }

    /// A delivery of a tube ended: tubes that wait for a limit of it go on.
    fn leave_limits(&mut self, number: u32) {
        for at in 0..self.tubes[number as usize].limits.len() {
            let limit = &mut self.limits[self.tubes[number as usize].limits[at] as usize];
            limit.running -= 1;
            for other in std::mem::take(&mut limit.waiting) {
                self.tubes[other as usize].is_queued = false;
                self.queue_tube(other);
            }
        }
    }

    /// A pool is to be asked at the end of this moment.
    fn touch(&mut self, pool: u32) {
        let is_touched = &mut self.pools[pool as usize].is_touched;
        if !std::mem::replace(is_touched, true) {
            self.touched.push(pool);
        }
    }

    /// A tube may have tasks.
    fn queue_tube(&mut self, number: u32) {
        let tube = &mut self.tubes[number as usize];
        if !std::mem::replace(&mut tube.is_queued, true) {
            let pool = tube.pool;
            self.pools[pool as usize].queue.push_back(number);
            self.touch(pool);
        }
    }

    /// Lets what is due happen.
    fn tick(&mut self, now: i64) -> Result<()> {
        loop {
            let tick = Command::Tick { limit: TICK_LIMIT, seed: self.seed };
            let moved = match self.machine.apply(moment(now), tick)? {
                Reply::Ticked(moved) => moved,
                _ => 0,
            };
            if moved < TICK_LIMIT {
                break;
            }
        }
        for (name, _) in self.machine.take_effects().ready {
            if let Some(number) = self.by_name.get(&name).copied() {
                self.queue_tube(number);
            }
        }
        Ok(())
    }

    /// Makes the changes of this moment.
    fn change(&mut self, now: i64) -> Result<()> {
        while let Some(change) = self.consumer_changes.pop_if(|change| change.at <= now) {
            self.pools[change.pool as usize].count = change.count;
            self.touch(change.pool);
        }
        let trace = self.trace;
        while let Some(change) = trace.changes.get(self.next_change).filter(|next| next.at <= now) {
            self.next_change += 1;
            self.send_puts(now, change.tube)?;
            self.send_acks(now, change.tube)?;
            self.apply_change(now, change)?;
            self.queue_tube(change.tube);
        }
        Ok(())
    }

    fn apply_change(&mut self, now: i64, change: &Change) -> Result<()> {
        let tube = &mut self.tubes[change.tube as usize];
        let name = tube.name.clone();
        let command = match &change.kind {
            ChangeKind::Options(options) => {
                let change = tube.change(options);
                Command::AlterTube { tube: name, change }
            }
            ChangeKind::Delete { row } => match self.ids.get(row).filter(|id| **id != u32::MAX) {
                // One that runs goes on until its recorded end.
                Some(id) if !self.is_running(*row) => {
                    let ids = vec![TaskId(u64::from(*id))];
                    Command::Delete { tube: name, ids, show: false }
                }
                _ => return Ok(()),
            },
            ChangeKind::Kick { count } => Command::Kick { tube: name, count: *count },
            ChangeKind::Clear => Command::Truncate { tube: name },
        };
        self.machine.apply(moment(now), command).map(drop)
    }

    fn is_running(&self, row: u32) -> bool {
        self.ends.iter().any(|end| end.0.row == row && end.0.id != CONSUMER)
    }

    /// Puts the tasks of this moment.
    fn put(&mut self, now: i64) -> Result<()> {
        let trace = self.trace;
        while let Some(row) = trace.rows.get(self.next_row).filter(|row| row.put <= now) {
            let index = self.next_row as u32;
            self.next_row += 1;
            let tube = &mut self.tubes[row.tube as usize];
            if let Some(id) = self.ids.get_mut(&index) {
                *id = tube.arrived as u32;
            }
            tube.arrived += 1;
            if tube.order != DeliveryOrder::Puts {
                let is_grouped = tube.order == DeliveryOrder::Takes && row.details == 0;
                let task = self.new_task(row);
                let tube = &mut self.tubes[row.tube as usize];
                tube.puts.push(task);
                if !is_grouped || tube.puts.len() >= GROUP {
                    self.send_puts(now, row.tube)?;
                }
            }
            self.queue_tube(row.tube);
        }
        Ok(())
    }

    fn new_task(&mut self, row: &TaskRow) -> NewTask {
        let mut task = NewTask::new(self.body.clone());
        let tube = &self.tubes[row.tube as usize];
        task.pri = row.has_pri.then_some(row.pri);
        if !tube.priorities.is_empty() {
            task.pri = tube.priority(task.pri);
        }
        if let Some(details) = row.details(self.trace) {
            task.delay = details.delay.filter(|delay| !delay.is_zero());
            task.ttl = details.ttl;
            task.attempts_max = details.attempts_max;
            task.subqueue = details.subqueue.map(|hash| {
                self.subqueues.entry(hash).or_insert_with(|| format!("{hash:x}").into()).clone()
            });
        }
        task
    }

    /// Gives the machine the puts that it does not know yet.
    fn send_puts(&mut self, now: i64, number: u32) -> Result<()> {
        let tube = &mut self.tubes[number as usize];
        if tube.puts.is_empty() {
            return Ok(());
        }
        let tasks = std::mem::take(&mut tube.puts);
        let put = Command::Put { tube: tube.name.clone(), tasks, wait: Span::ZERO };
        self.machine.apply(moment(now), put).map(drop)
    }

    /// Gives the machine the acks that it does not know yet.
    fn send_acks(&mut self, now: i64, number: u32) -> Result<()> {
        let tube = &mut self.tubes[number as usize];
        if tube.acks.is_empty() {
            return Ok(());
        }
        let items = std::mem::take(&mut tube.acks);
        let finish = Command::Finish { tube: tube.name.clone(), items, show: false };
        self.machine.apply(moment(now), finish).map(drop)
    }

    /// Lets idle consumers take.
    fn take(&mut self, now: i64) -> Result<()> {
        while let Some(number) = self.touched.pop() {
            self.pools[number as usize].is_touched = false;
            loop {
                let pool = &mut self.pools[number as usize];
                let idle = pool.count.saturating_sub(pool.running);
                if idle == 0 {
                    break;
                }
                let Some(tube) = pool.queue.pop_front() else { break };
                // Tubes that share consumers take turns.
                let wanted = if pool.tubes == 1 { idle } else { 1 };
                if let Some(limit) = self.reached_limit(tube) {
                    self.limits[limit as usize].waiting.push(tube);
                    continue;
                }
                let wanted = wanted.min(self.within_limits(tube)).min(BATCH_TASKS_MAX as u32);
                let is_full = self.take_from(now, tube, wanted)? == wanted;
                self.tubes[tube as usize].is_queued = is_full;
                if is_full {
                    self.pools[number as usize].queue.push_back(tube);
                }
            }
        }
        Ok(())
    }

    /// A limit that allows no more tasks of a tube.
    fn reached_limit(&self, number: u32) -> Option<u32> {
        let is_reached = |limit: &u32| {
            let limit = &self.limits[*limit as usize];
            limit.running >= limit.count
        };
        self.tubes[number as usize].limits.iter().copied().find(is_reached)
    }

    /// How many more tasks of a tube its limits allow.
    fn within_limits(&self, number: u32) -> u32 {
        let limits = self.tubes[number as usize].limits.iter();
        let free = limits.map(|limit| {
            let limit = &self.limits[*limit as usize];
            limit.count.saturating_sub(limit.running)
        });
        free.min().unwrap_or(u32::MAX)
    }

    /// Takes at most so many tasks of a tube. Returns how many.
    fn take_from(&mut self, now: i64, number: u32, wanted: u32) -> Result<u32> {
        let count = match self.tubes[number as usize].order {
            DeliveryOrder::Puts => self.take_ahead(now, number, wanted)?,
            _ => self.take_now(now, number, wanted)?,
        };
        let tube = &mut self.tubes[number as usize];
        self.pools[tube.pool as usize].running += count;
        for limit in &tube.limits {
            self.limits[*limit as usize].running += count;
        }
        Ok(count)
    }

    /// Takes tasks that the machine delivers ahead of time. Returns how many.
    fn take_ahead(&mut self, now: i64, number: u32, wanted: u32) -> Result<u32> {
        let tube = &self.tubes[number as usize];
        let count = (tube.arrived - tube.started).min(wanted as usize);
        for taken in 0..count as u32 {
            if self.tubes[number as usize].ahead.is_empty() {
                self.deliver_ahead(now, number)?;
            }
            let tube = &mut self.tubes[number as usize];
            // At the end of all time every task has expired.
            let Some(id) = tube.ahead.pop_front() else { return Ok(taken) };
            tube.started += 1;
            self.start(now, number, id, None);
        }
        Ok(count as u32)
    }

    /// Lets the machine put and deliver the next tasks of a tube.
    fn deliver_ahead(&mut self, now: i64, number: u32) -> Result<()> {
        let trace = self.trace;
        let tube = &self.tubes[number as usize];
        let count = GROUP.min(tube.rows.len() - tube.started);
        let mut tasks = Vec::with_capacity(count);
        for place in tube.started..tube.started + count {
            let index = self.tubes[number as usize].rows[place];
            tasks.push(self.new_task(&trace.rows[index as usize]));
        }
        let tube = self.tubes[number as usize].name.clone();
        self.machine.apply(moment(now), Command::Put { tube, tasks, wait: Span::ZERO })?;
        let ids = self.deliver(now, number, count)?.into_iter().map(|task| task.id.0 as u32);
        self.tubes[number as usize].ahead.extend(ids);
        Ok(())
    }

    /// Takes tasks that are ready now.
    fn take_now(&mut self, now: i64, number: u32, wanted: u32) -> Result<u32> {
        self.send_puts(now, number)?;
        let tasks = self.deliver(now, number, wanted as usize)?;
        for task in &tasks {
            self.start(now, number, task.id.0 as u32, Some(task));
        }
        Ok(tasks.len() as u32)
    }

    fn deliver(&mut self, now: i64, number: u32, count: usize) -> Result<Vec<Task>> {
        let take = Command::Take(Take {
            tube: self.tubes[number as usize].name.clone(),
            count,
            session: None,
            lease: Some(Span::FOREVER),
            worker: None,
            wait: Span::ZERO,
        });
        match self.machine.apply(moment(now), take)? {
            Reply::Taken(tasks) => Ok(tasks),
            _ => Ok(Vec::new()),
        }
    }

    fn start(&mut self, now: i64, number: u32, id: u32, task: Option<&Task>) {
        let index = self.tubes[number as usize].rows[id as usize];
        let row = &self.trace.rows[index as usize];
        let (mut nth, mut wait) = (0, now - row.put);
        if row.details > 0 {
            let count = self.deliveries.entry(index).or_default();
            nth = *count as usize;
            *count += 1;
            // Without details the machine may have received the put later.
            if let Some((start, due)) = task.and_then(|task| task.start.zip(task.due)) {
                wait = start.since(due).as_micros();
            }
        }
        let delivery = self.trace.replayed_delivery(index, nth);
        self.found.tubes[number as usize].start(now, wait, &delivery);
        let at = now.saturating_add(delivery.run);
        self.ends.push(Reverse(DeliveryEnd { at, row: index, id }));
    }

    /// The result, with the numbers of tasks that nothing can take.
    fn finish(mut self) -> Result<Replayed> {
        let end = i64::try_from(self.found.end).unwrap_or(i64::MAX);
        for number in 0..self.tubes.len() {
            if self.tubes[number].order == DeliveryOrder::Puts {
                let tube = &self.tubes[number];
                self.found.tubes[number].waiting = (tube.arrived - tube.started) as u64;
                continue;
            }
            self.send_puts(end, number as u32)?;
            let shown = Command::Tubes { tube: Some(self.tubes[number].name.clone()) };
            if let Reply::Tubes(infos) = self.machine.apply(moment(end), shown)? {
                let counts = infos.first().map(|info| info.stats.tasks).unwrap_or_default();
                self.found.tubes[number].waiting = counts.ready + counts.delayed;
            }
        }
        Ok(self.found)
    }
}

/// Whether the scenario gives the number of consumers of a tube.
fn is_given(trace: &Trace, scenario: &Scenario, tube: usize) -> bool {
    let own = scenario.own_consumers(&trace.tubes[tube].name);
    own.or(scenario.shared_consumers()).is_some()
}

/// The recorded numbers of consumers over time, where the scenario gives none. Where tasks wait for other reasons than a
/// consumer, the most tasks at once count all the time.
fn recorded_consumers(trace: &Trace, scenario: &Scenario, pools: &[u32]) -> Vec<ConsumerChange> {
    let mut changes = Vec::new();
    for (number, tube) in trace.tubes.iter().enumerate() {
        if tube.has_other_reasons() || is_given(trace, scenario, number) {
            continue;
        }
        let pool = pools[number];
        let over_time = tube.consumers.over_time(trace.end).into_iter();
        changes.extend(over_time.map(|(at, count)| ConsumerChange { at: at as i64, pool, count }));
    }
    changes
}
