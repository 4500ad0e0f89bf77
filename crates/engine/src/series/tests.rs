//! Tests of the registry: intervals, idle tubes, the limit of tubes, memory.

use taskyard_core::command::TubeInfo;
use taskyard_core::{Counts, Span, TaskId, Timestamp, TubeName, TubeOptions, TubeStats};

use super::registry::SeriesRegistry;
use super::tube_series::{Ending, TubeSeries};
use super::*;

const DAY: i64 = 24 * 3_600;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_micros(seconds * 1_000_000)
}

fn name(name: &str) -> TubeName {
    TubeName::new(name).unwrap()
}

fn info(tube: &str, tasks: Counts) -> TubeInfo {
    TubeInfo {
        name: name(tube),
        number: 0,
        options: TubeOptions::new(taskyard_core::Kind::Fifo),
        stats: TubeStats { tasks, ..TubeStats::default() },
        takeable: 0,
        next_wakeup: None,
        oldest_ready: None,
    }
}

fn ready(tube: &str, ready: u64) -> TubeInfo {
    info(tube, Counts { ready, ..Counts::default() })
}

/// A registry that begins at second 0.
struct SeriesFixture {
    registry: SeriesRegistry,
    now: i64,
}

impl SeriesFixture {
    fn new(tubes_max: usize) -> Self {
        SeriesFixture { registry: SeriesRegistry::new(tubes_max, at(0)), now: 0 }
    }

    fn go_to(&mut self, second: i64) {
        self.now = second;
        self.registry.advance(at(second));
    }

    fn put(&mut self, tube: &str, count: usize) {
        let number = self.registry.number(&name(tube)).unwrap();
        self.registry.count_puts(number, count, &[]);
    }

    fn take(&mut self, tube: &str, id: u64, wait: Span) {
        let number = self.registry.number(&name(tube)).unwrap();
        let task = (TaskId(id), Span::FOREVER, Some(wait));
        self.registry.begin_deliveries(number, at(self.now), [task].into_iter());
    }

    fn end(&mut self, tube: &str, id: u64, ending: Ending) {
        let number = self.registry.number(&name(tube)).unwrap();
        self.registry.end_deliveries(number, at(self.now), [(TaskId(id), ending)].into_iter());
    }

    fn series(&self, tube: Option<&str>, step: Step) -> Option<Series> {
        self.registry.series(&SeriesRequest {
            tube: tube.map(name),
            from: SeriesStart::Oldest,
            step,
        })
    }

    fn puts(&self, tube: Option<&str>, step: Step) -> Vec<u32> {
        let series = self.series(tube, step).unwrap();
        series.points.iter().map(|point| point.counts.puts).collect()
    }
}

#[test]
fn commands_are_counted_in_their_second_and_minute() {
    let mut fixture = SeriesFixture::new(10);
    fixture.put("mail", 3);
    fixture.go_to(2);
    fixture.take("mail", 7, Span::from_secs(2));
    fixture.take("mail", 8, Span::from_secs(2));
    fixture.go_to(5);
    fixture.end("mail", 7, Ending::Acked);
    fixture.end("mail", 8, Ending::Failed);
    fixture.end("mail", 9, Ending::Returned);
    fixture.go_to(60);
    for tube in [Some("mail"), None] {
        let seconds = fixture.series(tube, Step::Second).unwrap();
        assert_eq!((seconds.from, seconds.points.len()), (at(0), 60));
        let counts = |puts, takes, acks, fails| CommandCounts { puts, takes, acks, fails };
        for (second, point) in seconds.points.iter().enumerate() {
            let expected = match second {
                0 => counts(3, 0, 0, 0),
                2 => counts(0, 2, 0, 0),
                5 => counts(0, 0, 1, 1),
                _ => counts(0, 0, 0, 0),
            };
            assert_eq!(point.counts, expected, "{second}");
            assert_eq!((point.wait().is_some(), point.run().is_some()), (second == 2, second == 5));
        }
        let minutes = fixture.series(tube, Step::Minute).unwrap();
        assert_eq!(minutes.points.len(), 1);
        let minute = minutes.points[0];
        assert_eq!(minute.counts, counts(3, 2, 1, 1));
        for (found, exact) in [(minute.wait(), 2.0), (minute.run(), 3.0)] {
            let [p50, _, p99] = found.unwrap().map(Span::as_secs_f64);
            assert!((p50 - exact).abs() < 0.05 * exact && p50 == p99, "{p50} instead of {exact}");
        }
    }
}

/// The durations of a tube were in its series alone, which `top` would have to ask for one by one.
#[test]
fn figures_have_the_latest_durations_of_the_last_minute() {
    let mut fixture = SeriesFixture::new(10);
    fixture.put("idle", 1);
    fixture.take("mail", 1, Span::from_secs(8));
    fixture.go_to(2);
    fixture.take("mail", 2, Span::from_secs(10));
    fixture.end("mail", 1, Ending::Failed);
    let figures = |fixture: &SeriesFixture| fixture.registry.figures()[&name("mail")];
    let seconds =
        |found: Percentiles| found.map(|found| found.map(|span| span.as_secs_f64().round()));
    let found = figures(&fixture);
    assert_eq!((found.failures, seconds(found.wait), found.run), (1, Some([8.0; 3]), None));
    for second in [3, 62] {
        fixture.go_to(second);
        let found = figures(&fixture);
        assert_eq!((found.failures, seconds(found.wait)), (1, Some([10.0; 3])), "{second}");
        assert_eq!(seconds(found.run), Some([2.0; 3]), "{second}");
    }
    fixture.go_to(63);
    assert_eq!(figures(&fixture), TubeFigures { failures: 1, ..TubeFigures::default() });
    assert_eq!(fixture.registry.figures()[&name("idle")], TubeFigures::default());
    fixture.go_to(3 * DAY);
    assert!(fixture.registry.figures().values().all(|found| found.wait.is_none()));
}

#[test]
fn the_sum_has_all_tubes_but_internal_ones() {
    let mut fixture = SeriesFixture::new(10);
    fixture.put("a", 1);
    fixture.put("b", 2);
    fixture.put("taskyard.plans", 4);
    let depths = [ready("a", 10), ready("b", 20), ready("taskyard.plans", 40)];
    fixture.registry.set_depths(at(0), &depths, true);
    fixture.go_to(1);
    assert_eq!(fixture.puts(None, Step::Second), [3]);
    assert_eq!(fixture.puts(Some("taskyard.plans"), Step::Second), [4]);
    let depth = |fixture: &SeriesFixture| {
        let points = fixture.series(None, Step::Second).unwrap().points;
        points.last().unwrap().depth.ready
    };
    assert_eq!(depth(&fixture), 30);
    // A dropped tube is subtracted, and what it did before stays in the sum.
    fixture.put("b", 5);
    fixture.registry.remove(&name("b"));
    fixture.go_to(2);
    assert_eq!((fixture.puts(None, Step::Second), depth(&fixture)), (vec![3, 5], 10));
    assert_eq!(fixture.series(Some("b"), Step::Second), None);
    fixture.registry.rename(&name("a"), &name("taskyard.a"));
    fixture.go_to(3);
    assert_eq!(depth(&fixture), 0);
    assert_eq!(fixture.puts(Some("taskyard.a"), Step::Second), [1, 0, 0]);
    // Other servers dropped all tubes.
    fixture.registry.set_depths(at(0), &[], true);
    assert_eq!((fixture.registry.len(), fixture.registry.latencies().len()), (0, 0));
}

#[test]
fn depths_stay_until_they_change() {
    let mut fixture = SeriesFixture::new(10);
    fixture.registry.set_depths(at(0), &[ready("mail", 5)], true);
    fixture.go_to(3);
    fixture.put("mail", 1);
    fixture.go_to(4);
    fixture.registry.set_depths(at(0), &[ready("mail", 6)], false);
    fixture.go_to(6);
    let points = fixture.series(Some("mail"), Step::Second).unwrap().points;
    let depths: Vec<_> = points.iter().map(|point| point.depth.ready).collect();
    assert_eq!(depths, [5, 5, 5, 5, 6, 6]);
}

#[test]
fn an_hour_of_seconds_and_two_days_of_minutes_are_kept() {
    let mut fixture = SeriesFixture::new(10);
    for minute in 0..(3 * DAY - 3_600) / 60 {
        fixture.go_to(minute * 60);
        fixture.put("mail", 60);
    }
    for second in 3 * DAY - 3_600..3 * DAY {
        fixture.go_to(second);
        fixture.put("mail", 1);
    }
    fixture.go_to(3 * DAY);
    let seconds = fixture.series(Some("mail"), Step::Second).unwrap();
    assert_eq!((seconds.from, seconds.points.len()), (at(3 * DAY - 3_600), 3_600));
    assert!(seconds.points.iter().all(|point| point.counts.puts == 1));
    let minutes = fixture.series(Some("mail"), Step::Minute).unwrap();
    assert_eq!((minutes.from, minutes.points.len()), (at(DAY), 2_880));
    assert!(minutes.points.iter().all(|point| point.counts.puts == 60));
    let from = SeriesStart::At(at(3 * DAY - 2));
    let request = SeriesRequest { tube: None, from, step: Step::Second };
    assert_eq!(fixture.registry.series(&request).unwrap().points.len(), 2);
    let request = SeriesRequest { from: SeriesStart::At(at(9 * DAY)), ..request };
    assert_eq!(fixture.registry.series(&request).unwrap().points.len(), 0);
}

#[test]
fn a_clock_that_is_set_leaves_no_gap() {
    let mut fixture = SeriesFixture::new(10);
    fixture.go_to(10_000);
    fixture.put("mail", 1);
    fixture.go_to(10_001);
    fixture.put("mail", 2);
    // Set back by an hour, without notice.
    fixture.go_to(6_401);
    fixture.put("mail", 4);
    fixture.go_to(6_402);
    let series = fixture.series(Some("mail"), Step::Second).unwrap();
    let used: Vec<_> = series.points.iter().rev().take(2).map(|point| point.counts.puts).collect();
    assert_eq!((used, series.from), (vec![6, 1], at(6_402 - 3_600)));
    // Set forward by a year.
    fixture.registry.follow_wall_clock(at(365 * DAY));
    fixture.registry.advance(at(365 * DAY));
    fixture.put("mail", 8);
    fixture.go_to(365 * DAY + 1);
    let series = fixture.series(Some("mail"), Step::Second).unwrap();
    let used: Vec<_> = series.points.iter().rev().take(3).map(|point| point.counts.puts).collect();
    assert_eq!(used, [8, 6, 1]);
}

#[test]
fn a_tube_idle_for_a_day_keeps_only_the_minutes() {
    let mut fixture = SeriesFixture::new(10);
    fixture.registry.set_depths(at(0), &[ready("mail", 3)], true);
    fixture.put("mail", 1);
    fixture.go_to(DAY - 1);
    assert_eq!(fixture.puts(Some("mail"), Step::Minute).iter().sum::<u32>(), 1);
    fixture.go_to(DAY + 60);
    assert_eq!(fixture.puts(Some("mail"), Step::Minute).iter().sum::<u32>(), 1);
    let seconds = fixture.series(Some("mail"), Step::Second).unwrap();
    assert_eq!(seconds.points.len(), 3_600);
    assert!(seconds.points.iter().all(|point| point.counts.puts == 0 && point.depth.ready == 3));
    // After two more days nothing is left.
    fixture.go_to(4 * DAY);
    assert_eq!(fixture.series(Some("mail"), Step::Minute), None);
    assert_eq!(fixture.registry.latencies(), []);
    fixture.put("mail", 2);
    fixture.go_to(4 * DAY + 1);
    assert_eq!(fixture.puts(Some("mail"), Step::Second).last(), Some(&2));
}

#[test]
fn the_tube_that_was_idle_for_longest_loses_its_series() {
    let mut fixture = SeriesFixture::new(2);
    fixture.put("a", 1);
    fixture.go_to(10);
    fixture.put("b", 1);
    // Both were used within the last minute: a third one is only in the sum.
    fixture.put("c", 5);
    fixture.take("c", 1, Span::ZERO);
    fixture.end("c", 1, Ending::Acked);
    fixture.go_to(60);
    assert_eq!(fixture.series(Some("c"), Step::Second), None);
    assert_eq!(fixture.puts(None, Step::Second)[10], 6);
    fixture.put("c", 5);
    fixture.go_to(61);
    assert_eq!(fixture.series(Some("a"), Step::Second), None);
    assert!(fixture.series(Some("b"), Step::Second).is_some());
    assert_eq!(fixture.puts(Some("c"), Step::Second)[60], 5);
    // The sum keeps what the evicted tube did.
    assert_eq!(fixture.puts(None, Step::Second)[0], 1);
    assert_eq!(fixture.registry.latencies().len(), 2);
}

#[test]
fn at_most_the_limit_of_tubes_has_series() {
    let mut fixture = SeriesFixture::new(20);
    for second in 0..500 {
        fixture.go_to(second);
        fixture.put(&format!("tube {}", second * 7 % 100), 1);
        assert!(fixture.registry.latencies().len() <= 20);
    }
    fixture.go_to(500);
    assert!(fixture.puts(None, Step::Second).iter().all(|puts| *puts == 1));
}

#[test]
fn a_tube_uses_a_fixed_amount_of_memory() {
    // docs/http.md names these numbers.
    const { assert!(TUBE_SERIES_BYTES_MAX <= 330_000) };
    let mut series = TubeSeries::new(Depth::default());
    assert!(series.bytes() < 10_000, "{}", series.bytes());
    for interval in 0..2 * SECONDS {
        series.second().begin_delivery(Some(Span::from_micros(interval.into())));
        series.deliveries().begin(TaskId(interval.into()), at(interval.into()), Span::FOREVER);
        series.close_second(interval, Depth::default(), None);
        series.close_minute(interval, Depth::default());
    }
    assert_eq!(series.bytes(), TUBE_SERIES_BYTES_MAX);
    series.free_before(2 * SECONDS, 0, true);
    assert!(series.bytes() < 160_000, "an idle tube has only minutes: {}", series.bytes());
}
