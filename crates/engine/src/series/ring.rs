//! A ring of points, one for each interval in which something happened.
//!
//! Points are stored in chunks that are allocated when their first point is written, so a tube
//! with little to tell uses little memory. An interval without a point had no commands and ended
//! with the depth of the interval before it.

use std::ops::Range;

use super::histogram::{BucketNumber, NO_BUCKET, Percentiles, shown};

/// The number of points in one chunk.
const CHUNK_POINTS: u32 = 60;

/// The number of tasks that commands put, took, acknowledged and failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommandCounts {
    /// Tasks put.
    pub puts: u32,
    /// Tasks delivered.
    pub takes: u32,
    /// Deliveries acknowledged.
    pub acks: u32,
    /// Deliveries that failed.
    pub fails: u32,
}

/// The number of tasks by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depth {
    /// Ready tasks.
    pub ready: u32,
    /// Taken tasks.
    pub taken: u32,
    /// Delayed tasks.
    pub delayed: u32,
    /// Buried tasks.
    pub buried: u32,
}

/// One interval of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeriesPoint {
    /// What commands did in it.
    pub counts: CommandCounts,
    /// The tasks at its end.
    pub depth: Depth,
    wait: [BucketNumber; 3],
    run: [BucketNumber; 3],
}

impl SeriesPoint {
    /// A point with the percentiles in these buckets.
    pub(super) fn new(
        counts: CommandCounts,
        depth: Depth,
        wait: [BucketNumber; 3],
        run: [BucketNumber; 3],
    ) -> Self {
        SeriesPoint { counts, depth, wait, run }
    }

    /// An interval without commands.
    pub fn quiet(depth: Depth) -> Self {
        SeriesPoint::new(CommandCounts::default(), depth, [NO_BUCKET; 3], [NO_BUCKET; 3])
    }

    /// How long the tasks taken in the interval had been ready.
    pub fn wait(&self) -> Percentiles {
        shown(self.wait)
    }

    /// How long the deliveries that were acknowledged or failed in the interval had lasted.
    pub fn run(&self) -> Percentiles {
        shown(self.run)
    }
}

impl CommandCounts {
    /// Adds other counts.
    pub(super) fn add(&mut self, more: CommandCounts) {
        let CommandCounts { puts, takes, acks, fails } = more;
        self.puts = self.puts.saturating_add(puts);
        self.takes = self.takes.saturating_add(takes);
        self.acks = self.acks.saturating_add(acks);
        self.fails = self.fails.saturating_add(fails);
    }
}

/// The points of the latest intervals.
#[derive(Debug)]
pub(super) struct Ring {
    chunks: Box<[Option<Box<Chunk>>]>,
    /// The depth at the end of the latest interval that is no longer stored, and its number.
    before: (Option<u32>, Depth),
}

#[derive(Debug)]
struct Chunk {
    /// Its first interval, divided by the number of points.
    number: u32,
    /// One bit for each stored point.
    stored: u64,
    points: [SeriesPoint; CHUNK_POINTS as usize],
}

impl Ring {
    /// A ring of at least this many intervals, which begins with this depth.
    pub fn new(intervals: u32, depth: Depth) -> Self {
        let chunks = (0..chunks_of(intervals)).map(|_| None).collect();
        Ring { chunks, before: (None, depth) }
    }

    /// The most bytes that a ring of this many intervals uses outside of its own size.
    pub const fn bytes_max(intervals: u32) -> usize {
        chunks_of(intervals) * (size_of::<Option<Box<Chunk>>>() + size_of::<Chunk>())
    }

    /// The bytes that it uses now outside of its own size.
    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        let used = self.chunks.iter().flatten().count();
        self.chunks.len() * size_of::<Option<Box<Chunk>>>() + used * size_of::<Chunk>()
    }

    /// Stores the point of an interval.
    pub fn store(&mut self, interval: u32, point: SeriesPoint) {
        let (number, index) = (interval / CHUNK_POINTS, interval % CHUNK_POINTS);
        let place = number as usize % self.chunks.len();
        if self.chunks[place].as_ref().is_some_and(|chunk| chunk.number != number) {
            self.forget(place);
        }
        let chunk = self.chunks[place].get_or_insert_with(|| {
            let points = [SeriesPoint::quiet(Depth::default()); CHUNK_POINTS as usize];
            Box::new(Chunk { number, stored: 0, points })
        });
        chunk.stored |= 1 << index;
        chunk.points[index as usize] = point;
    }

    /// The points from one interval to before another, including those that are not stored.
    pub fn points(&self, from: u32, to: u32) -> Vec<SeriesPoint> {
        let mut depth = self.depth_before(from);
        let point = |interval| {
            let stored = self.get(interval);
            depth = stored.map_or(depth, |point| point.depth);
            stored.copied().unwrap_or_else(|| SeriesPoint::quiet(depth))
        };
        (from..to).map(point).collect()
    }

    /// The percentiles of the latest of these intervals that has any.
    pub fn latest(&self, within: Range<u32>, of: fn(&SeriesPoint) -> Percentiles) -> Percentiles {
        within.rev().filter_map(|interval| self.get(interval)).find_map(of)
    }

    /// The depth of the latest point.
    pub fn latest_depth(&self) -> Depth {
        self.depth_before(u32::MAX)
    }

    /// Frees the chunks that contain no interval from this one on. Returns whether any is left.
    pub fn free_before(&mut self, interval: u32) -> bool {
        for place in 0..self.chunks.len() {
            let old = |chunk: &Chunk| (chunk.number + 1) * CHUNK_POINTS <= interval;
            if self.chunks[place].as_deref().is_some_and(old) {
                self.forget(place);
            }
        }
        self.chunks.iter().any(Option::is_some)
    }

    fn get(&self, interval: u32) -> Option<&SeriesPoint> {
        let (number, index) = (interval / CHUNK_POINTS, interval % CHUNK_POINTS);
        let chunk = self.chunks[number as usize % self.chunks.len()].as_ref()?;
        let stored = chunk.number == number && chunk.stored & (1 << index) != 0;
        stored.then(|| &chunk.points[index as usize])
    }

    /// The depth at the end of the interval before this one.
    fn depth_before(&self, interval: u32) -> Depth {
        let earlier = self.chunks.iter().flatten().filter_map(|chunk| chunk.last_before(interval));
        let latest = earlier.max_by_key(|(found, _)| *found);
        match (latest, self.before) {
            (Some((found, depth)), (before, _)) if before.is_none_or(|before| before < found) => {
                depth
            }
            (_, (_, depth)) => depth,
        }
    }

    /// Frees a chunk, and keeps the depth with which it ended.
    fn forget(&mut self, place: usize) {
        let Some(chunk) = self.chunks[place].take() else { return };
        if let Some((interval, depth)) = chunk.last_before(u32::MAX)
            && self.before.0.is_none_or(|before| before < interval)
        {
            self.before = (Some(interval), depth);
        }
    }
}

impl Chunk {
    /// The last stored point before an interval: its interval and its depth.
    fn last_before(&self, interval: u32) -> Option<(u32, Depth)> {
        let first = self.number * CHUNK_POINTS;
        let count = interval.saturating_sub(first).min(CHUNK_POINTS);
        let earlier = self.stored & ((1 << count) - 1);
        let index = earlier.checked_ilog2()?;
        Some((first + index, self.points[index as usize].depth))
    }
}

/// One chunk more than the intervals fill, because the oldest one is freed as a whole.
const fn chunks_of(intervals: u32) -> usize {
    (intervals.div_ceil(CHUNK_POINTS) + 1) as usize
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn point(puts: u32, ready: u32) -> SeriesPoint {
        let mut point = SeriesPoint::quiet(Depth { ready, ..Depth::default() });
        point.counts.puts = puts;
        point
    }

    #[test]
    fn intervals_without_a_point_have_no_commands_and_keep_the_depth() {
        let mut ring = Ring::new(3_600, Depth { ready: 9, ..Depth::default() });
        ring.store(100, point(1, 5));
        ring.store(300, point(2, 7));
        let points = ring.points(99, 302);
        assert_eq!(points[..3], [point(0, 9), point(1, 5), point(0, 5)]);
        assert_eq!(points[200..], [point(0, 5), point(2, 7), point(0, 7)]);
        assert_eq!(
            ring.points(200, 201),
            [point(0, 5)],
            "the depth before the first one asked for"
        );
    }

    #[test]
    fn a_ring_keeps_all_its_intervals_and_the_depth_before_them() {
        let mut ring = Ring::new(120, Depth::default());
        for interval in 0..500 {
            ring.store(interval, point(interval, interval * 10));
            let from = (interval + 1).saturating_sub(120);
            let kept: Vec<_> = (from..=interval).map(|at| point(at, at * 10)).collect();
            assert_eq!(ring.points(from, interval + 1), kept);
        }
        // The last point is long ago.
        assert_eq!(ring.points(100_000, 100_002), [point(0, 4_990); 2]);
        assert!(!ring.free_before(100_000), "nothing is left");
        assert_eq!(ring.points(100_000, 100_001), [point(0, 4_990)]);
        assert!(ring.bytes() < 200, "{}", ring.bytes());
    }

    #[test]
    fn a_ring_with_any_gaps_shows_what_a_map_would() {
        for seed in 0..100 {
            let mut random = fastrand::Rng::with_seed(seed);
            let (mut ring, mut map) = (Ring::new(180, Depth::default()), BTreeMap::new());
            let mut now = 0;
            for _ in 0..300 {
                now += if random.u8(..10) == 0 { random.u32(..400) } else { random.u32(1..4) };
                let stored = point(random.u32(..9), random.u32(..99));
                ring.store(now, stored);
                map.insert(now, stored);
                if random.u8(..10) == 0 {
                    ring.free_before((now + 1).saturating_sub(180));
                }
                let from = (now + 1).saturating_sub(random.u32(1..=180));
                let shown = (from..=now).map(|at| {
                    map.get(&at).copied().unwrap_or_else(|| {
                        let before = map.range(..at).next_back();
                        SeriesPoint::quiet(before.map_or(Depth::default(), |found| found.1.depth))
                    })
                });
                let shown: Vec<_> = shown.collect();
                assert_eq!(ring.points(from, now + 1), shown, "seed {seed}");
                assert!(ring.bytes() <= Ring::bytes_max(180));
            }
        }
    }
}
