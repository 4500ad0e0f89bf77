//! The series of all tubes, and their sum.

use std::collections::{BTreeMap, HashMap, HashSet};

use taskyard_core::command::TubeInfo;
use taskyard_core::estimate::Calibrated;
use taskyard_core::limits::TUBES_MAX;
use taskyard_core::{Counts, Span, TaskId, Timestamp, TubeName};

use super::interval_clock::IntervalClock;
use super::ring::Depth;
use super::service::TubeService;
use super::tube_series::{Ending, TubeSeries};
use super::{
    MINUTES, RECENT_SECONDS, SECONDS, Series, SeriesRequest, Step, TubeFigures, TubeLatency,
};

/// A tube that is idle for this many seconds keeps only the minutes.
const IDLE_SECONDS: u32 = 24 * 3_600;
/// A tube that was used within this many seconds keeps its series, however many others want one.
const EVICT_SECONDS: u32 = 60;

/// The number of a tube in the registry.
pub(super) type TubeNumber = u32;

/// The series of all tubes.
#[derive(Debug)]
pub(super) struct SeriesRegistry {
    tubes_max: usize,
    /// By number; `None` is free.
    tubes: Vec<Option<KnownTube>>,
    by_name: HashMap<TubeName, TubeNumber>,
    free: Vec<TubeNumber>,
    with_series: usize,
    /// The sum of all tubes that are not internal.
    sum: TubeSeries,
    sum_depth: SumDepth,
    seconds: IntervalClock,
    minutes: IntervalClock,
    /// Tubes with something to store when the second ends.
    in_second: Vec<TubeNumber>,
    /// The same for the minute.
    in_minute: Vec<TubeNumber>,
    /// The second of the latest search for a series to evict.
    evict_tried: Option<u32>,
}

#[derive(Debug)]
struct KnownTube {
    name: TubeName,
    depth: Depth,
    series: Option<Box<TubeSeries>>,
    /// The second of the latest use.
    used: u32,
    in_second: bool,
    in_minute: bool,
}

/// The sum of the depths of all tubes.
#[derive(Debug, Default)]
struct SumDepth {
    ready: u64,
    taken: u64,
    delayed: u64,
    buried: u64,
}

impl SeriesRegistry {
    /// No tube yet; at most `tubes_max` get series.
    pub fn new(tubes_max: usize, wall: Timestamp) -> Self {
        SeriesRegistry {
            tubes_max,
            tubes: Vec::new(),
            by_name: HashMap::new(),
            free: Vec::new(),
            with_series: 0,
            sum: TubeSeries::new(Depth::default()),
            sum_depth: SumDepth::default(),
            seconds: IntervalClock::new(Step::Second, wall),
            minutes: IntervalClock::new(Step::Minute, wall),
            in_second: Vec::new(),
            in_minute: Vec::new(),
            evict_tried: None,
        }
    }

    /// The number of a known tube.
    pub fn find(&self, tube: &TubeName) -> Option<TubeNumber> {
        self.by_name.get(tube).copied()
    }

    /// The number of a tube that exists. `None` if there are too many.
    pub fn number(&mut self, tube: &TubeName) -> Option<TubeNumber> {
        if let Some(number) = self.find(tube) {
            return Some(number);
        }
        if self.by_name.len() >= TUBES_MAX {
            return None;
        }
        let known = Some(KnownTube {
            name: tube.clone(),
            depth: Depth::default(),
            series: None,
            used: self.seconds.current(),
            in_second: false,
            in_minute: false,
        });
        let number = match self.free.pop() {
            Some(number) => {
                self.tubes[number as usize] = known;
                number
            }
            None => {
                self.tubes.push(known);
                (self.tubes.len() - 1) as TubeNumber
            }
        };
        self.by_name.insert(tube.clone(), number);
        Some(number)
    }

    /// The number of known tubes.
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// The name of a tube.
    pub fn name(&self, number: TubeNumber) -> Option<&TubeName> {
        Some(&self.tubes.get(number as usize)?.as_ref()?.name)
    }

    /// Removes a tube that no longer exists.
    pub fn remove(&mut self, tube: &TubeName) {
        let Some(number) = self.find(tube) else { return };
        self.set_depth(number, Depth::default());
        self.by_name.remove(tube);
        if let Some(known) = self.tubes[number as usize].take() {
            self.free.push(number);
            if let Some(mut series) = known.series {
                self.with_series -= 1;
                if !known.name.is_internal() {
                    self.sum.second().add(series.second());
                }
            }
        }
        self.in_second.retain(|used| *used != number);
        self.in_minute.retain(|used| *used != number);
    }

    /// Renames a tube; its series stays.
    pub fn rename(&mut self, tube: &TubeName, name: &TubeName) {
        if tube == name || !self.by_name.contains_key(tube) {
            return;
        }
        self.remove(name);
        let Some(number) = self.by_name.remove(tube) else { return };
        self.by_name.insert(name.clone(), number);
        let Some(known) = &mut self.tubes[number as usize] else { return };
        // An internal tube is not part of the sum.
        let depth = std::mem::take(&mut known.depth);
        if !known.name.is_internal() {
            self.sum_depth.change(depth, Depth::default());
        }
        known.name = name.clone();
        self.set_depth(number, depth);
    }

    /// Ends the intervals before this moment.
    pub fn advance(&mut self, wall: Timestamp) {
        if let Some(ended) = self.seconds.advance(wall) {
            self.close_second(ended);
        }
        if let Some(ended) = self.minutes.advance(wall) {
            self.close_minute(ended);
            self.free_old();
        }
    }

    /// The wall clock was set: all intervals stand for other times.
    pub fn follow_wall_clock(&mut self, wall: Timestamp) {
        self.seconds.follow(wall);
        self.minutes.follow(wall);
    }

    /// Counts tasks that were put: all, and those with a priority of their own.
    pub fn count_puts(&mut self, number: TubeNumber, puts: usize, priorities: &[(u64, u32)]) {
        if let Some((series, is_own)) = self.use_series(number) {
            if is_own {
                series.service().add_puts(puts, priorities);
            }
            let counts = &mut series.second().counts;
            counts.puts = counts.puts.saturating_add(puts.try_into().unwrap_or(u32::MAX));
        }
    }

    /// Counts deliveries: of each task its id, how long it may last, and how long it had been
    /// ready.
    pub fn begin_deliveries(
        &mut self,
        number: TubeNumber,
        now: Timestamp,
        tasks: impl Iterator<Item = (TaskId, Span, Option<Span>)>,
    ) {
        let Some((series, is_own)) = self.use_series(number) else { return };
        for (id, lease, wait) in tasks {
            series.second().begin_delivery(wait);
            if is_own {
                series.deliveries().begin(id, now, lease);
                series.service().start(id, now);
            }
        }
    }

    /// Counts the ends of deliveries.
    pub fn end_deliveries(
        &mut self,
        number: TubeNumber,
        now: Timestamp,
        tasks: impl Iterator<Item = (TaskId, Ending)>,
    ) {
        let Some((series, is_own)) = self.use_series(number) else { return };
        for (id, ending) in tasks {
            let run = if is_own { series.deliveries().end(id, now) } else { None };
            series.second().end_delivery(ending, run);
            if is_own {
                // An estimate that still waits belongs to a delivery of another server.
                series.service().forget(std::iter::once(id));
            }
        }
    }

    /// Whether estimates of a tube wait for the starts of their tasks.
    pub fn awaits_starts(&self, number: TubeNumber) -> bool {
        let series = self.known(number).and_then(|known| known.series.as_ref());
        let service = series.and_then(|series| series.known_service());
        service.is_some_and(TubeService::awaits_starts)
    }

    /// These tasks of a tube were deleted.
    pub fn forget_tasks(&mut self, number: TubeNumber, ids: impl Iterator<Item = TaskId>) {
        if let Some(service) = self.known_service_mut(number) {
            service.forget(ids);
        }
    }

    /// All tasks of a tube were removed.
    pub fn forget_all_tasks(&mut self, number: TubeNumber) {
        if let Some(service) = self.known_service_mut(number) {
            service.forget_all();
        }
    }

    /// Counts deliveries that failed without a command for them. How long they had lasted is not known.
    pub fn count_failures(&mut self, number: TubeNumber, failures: u64) {
        if let Some((series, _)) = self.use_series(number) {
            let counts = &mut series.second().counts;
            counts.fails = counts.fails.saturating_add(failures.try_into().unwrap_or(u32::MAX));
        }
    }

    /// Sets the current depths of tubes; `all` if there are no others.
    pub fn set_depths(&mut self, now: Timestamp, infos: &[TubeInfo], all: bool) {
        for info in infos {
            if let Some(number) = self.number(&info.name) {
                self.set_depth(number, Depth::of(&info.stats.tasks));
                if let Some(service) = self.known_service_mut(number) {
                    service.add_sample(now, info);
                }
            }
        }
        if all && self.len() > infos.len() {
            let listed: HashSet<&TubeName> = infos.iter().map(|info| &info.name).collect();
            let gone: Vec<TubeName> =
                self.by_name.keys().filter(|name| !listed.contains(name)).cloned().collect();
            gone.iter().for_each(|tube| self.remove(tube));
        }
    }

    /// A part of a series. `None` for a tube that has none.
    pub fn series(&self, request: &SeriesRequest) -> Option<Series> {
        let series = match &request.tube {
            Some(tube) => self.known(self.find(tube)?)?.series.as_deref()?,
            None => &self.sum,
        };
        let clock = match request.step {
            Step::Second => &self.seconds,
            Step::Minute => &self.minutes,
        };
        let (from, to) = (clock.first_from(request.from), clock.current());
        Some(Series { from: clock.begin_of(from), points: series.points(request.step, from, to) })
    }

    /// The durations of each tube that has series.
    pub fn latencies(&self) -> Vec<TubeLatency> {
        let with_series = self.tubes.iter().flatten().filter_map(|known| {
            let [wait, run] = known.series.as_ref()?.latencies();
            Some(TubeLatency { tube: known.name.clone(), wait, run })
        });
        with_series.collect()
    }

    /// What the series of each tube that has some say about it now.
    pub fn figures(&self) -> BTreeMap<TubeName, TubeFigures> {
        let now = self.seconds.current();
        let with_series = self.tubes.iter().flatten().filter_map(|known| {
            let series = known.series.as_ref()?;
            // Later seconds have no durations.
            let seconds = now.saturating_sub(RECENT_SECONDS)..now.min(known.used + 1);
            Some((known.name.clone(), series.figures(seconds)))
        });
        with_series.collect()
    }

    /// What is learned of the consumers of a tube that was used.
    pub fn service(&mut self, tube: &TubeName) -> Option<&mut TubeService> {
        self.known_service_mut(self.find(tube)?)
    }

    fn known_service_mut(&mut self, number: TubeNumber) -> Option<&mut TubeService> {
        let known = self.tubes.get_mut(number as usize)?.as_mut()?;
        let series = known.series.as_deref_mut()?;
        series.known_service()?;
        Some(series.service())
    }

    /// How many estimates of each tube held.
    pub fn calibrated(&self) -> BTreeMap<TubeName, Calibrated> {
        let of_tube = |known: &KnownTube| {
            let counts = known.series.as_ref()?.known_service()?.calibrated()?;
            Some((known.name.clone(), counts))
        };
        self.tubes.iter().flatten().filter_map(of_tube).collect()
    }

    fn known(&self, number: TubeNumber) -> Option<&KnownTube> {
        self.tubes.get(number as usize)?.as_ref()
    }

    /// The series in which to count a command on this tube, and whether it is its own. A tube that
    /// can have none is counted in the sum alone.
    fn use_series(&mut self, number: TubeNumber) -> Option<(&mut TubeSeries, bool)> {
        let second = self.seconds.current();
        let known = self.tubes.get_mut(number as usize)?.as_mut()?;
        known.used = second;
        if known.series.is_none() && !self.give_series(number) {
            let known = self.known(number)?;
            return (!known.name.is_internal()).then_some((&mut self.sum, false));
        }
        self.mark_in_second(number);
        Some((self.tubes[number as usize].as_mut()?.series.as_deref_mut()?, true))
    }

    /// Gives a tube series, if need be those of the tube that has been idle for longest.
    fn give_series(&mut self, number: TubeNumber) -> bool {
        if self.with_series >= self.tubes_max && !self.evict_series() {
            return false;
        }
        let Some(Some(known)) = self.tubes.get_mut(number as usize) else { return false };
        known.series = Some(Box::new(TubeSeries::new(known.depth)));
        self.with_series += 1;
        true
    }

    /// Frees the series of the tube that has been idle for longest. At most one search each second.
    fn evict_series(&mut self) -> bool {
        let second = self.seconds.current();
        if self.evict_tried == Some(second) {
            return false;
        }
        let with_series = self.tubes.iter_mut().flatten().filter(|known| known.series.is_some());
        match with_series.min_by_key(|known| known.used) {
            Some(idle) if second.saturating_sub(idle.used) >= EVICT_SECONDS => {
                idle.series = None;
                self.with_series -= 1;
                true
            }
            _ => {
                self.evict_tried = Some(second);
                false
            }
        }
    }

    fn set_depth(&mut self, number: TubeNumber, depth: Depth) {
        let Some(Some(known)) = self.tubes.get_mut(number as usize) else { return };
        let before = std::mem::replace(&mut known.depth, depth);
        if before == depth {
            return;
        }
        let (internal, has_series) = (known.name.is_internal(), known.series.is_some());
        if !internal {
            self.sum_depth.change(before, depth);
        }
        if has_series {
            self.mark_in_second(number);
        }
    }

    fn mark_in_second(&mut self, number: TubeNumber) {
        if let Some(Some(known)) = self.tubes.get_mut(number as usize)
            && !std::mem::replace(&mut known.in_second, true)
        {
            self.in_second.push(number);
        }
    }

    fn close_second(&mut self, second: u32) {
        let mut used = std::mem::take(&mut self.in_second);
        for number in used.drain(..) {
            let Some(Some(known)) = self.tubes.get_mut(number as usize) else { continue };
            known.in_second = false;
            let Some(series) = &mut known.series else { continue };
            let sum = (!known.name.is_internal()).then_some(&mut self.sum);
            series.close_second(second, known.depth, sum);
            if !std::mem::replace(&mut known.in_minute, true) {
                self.in_minute.push(number);
            }
        }
        self.in_second = used;
        self.sum.close_second(second, self.sum_depth.shown(), None);
    }

    fn close_minute(&mut self, minute: u32) {
        let mut used = std::mem::take(&mut self.in_minute);
        for number in used.drain(..) {
            let Some(Some(known)) = self.tubes.get_mut(number as usize) else { continue };
            known.in_minute = false;
            if let Some(series) = &mut known.series {
                series.close_minute(minute, known.depth);
            }
        }
        self.in_minute = used;
        self.sum.close_minute(minute, self.sum_depth.shown());
    }

    /// Frees points that no request can reach any more, and what idle tubes do not need.
    fn free_old(&mut self) {
        let second = self.seconds.current();
        let first_second = second.saturating_sub(SECONDS);
        let first_minute = self.minutes.current().saturating_sub(MINUTES);
        for known in self.tubes.iter_mut().flatten() {
            let Some(series) = &mut known.series else { continue };
            let idle = second.saturating_sub(known.used) >= IDLE_SECONDS && !known.in_second;
            let has_minutes = series.free_before(first_second, first_minute, idle);
            if idle && !has_minutes && !known.in_minute {
                known.series = None;
                self.with_series -= 1;
            }
        }
        self.sum.free_before(first_second, first_minute, false);
    }
}

impl Depth {
    /// The current numbers of a tube.
    pub fn of(counts: &Counts) -> Self {
        let shown = |count| u32::try_from(count).unwrap_or(u32::MAX);
        Depth {
            ready: shown(counts.ready),
            taken: shown(counts.taken),
            delayed: shown(counts.delayed),
            buried: shown(counts.buried),
        }
    }
}

impl SumDepth {
    /// One tube has another depth.
    fn change(&mut self, before: Depth, after: Depth) {
        let change = |sum: &mut u64, before: u32, after: u32| {
            *sum = (*sum + u64::from(after)).saturating_sub(u64::from(before));
        };
        change(&mut self.ready, before.ready, after.ready);
        change(&mut self.taken, before.taken, after.taken);
        change(&mut self.delayed, before.delayed, after.delayed);
        change(&mut self.buried, before.buried, after.buried);
    }

    fn shown(&self) -> Depth {
        let shown = |count| u32::try_from(count).unwrap_or(u32::MAX);
        Depth {
            ready: shown(self.ready),
            taken: shown(self.taken),
            delayed: shown(self.delayed),
            buried: shown(self.buried),
        }
    }
}
