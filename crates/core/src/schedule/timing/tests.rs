//! Rules of schedules, compared with a model that looks at every minute.

use std::sync::Arc;

use super::super::civil::test_zone::{BACK, FORWARD, Summer};
use super::super::civil::{Civil, DAY, Date, HOUR, Zone, civil_of};
use super::*;
use crate::command::NewTask;
use crate::stored_schedule::{Overlap, ScheduleName};
use crate::task::Body;
use crate::tube::TubeName;

const MINUTE: i64 = 60_000_000;

/// UTC and a zone with summer time.
struct TwoZones;

impl Zones for TwoZones {
    fn find(&self, name: &str) -> Option<SharedZone> {
        match name {
            "UTC" => Some(Arc::new(Utc)),
            "Summer" => Some(Arc::new(Summer)),
            _ => None,
        }
    }
}

fn at(micros: i64) -> Timestamp {
    Timestamp::from_micros(micros)
}

fn timing(text: &str) -> Timing {
    Timing::read(text, &TwoZones).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn refused(text: &str) -> String {
    Timing::read(text, &TwoZones).expect_err(text).to_string()
}

#[test]
fn a_rule_is_read_as_it_was_written() {
    let cron = |cron: &str, zone: &str| TimingRule::Cron { cron: cron.into(), zone: zone.into() };
    let every = |micros, start: Option<i64>| TimingRule::Every {
        every: Span::from_micros(micros),
        start: start.map(at),
    };
    for (rule, text) in [
        (cron("0 9 * * 1-5", "Europe/Berlin"), "cron Europe/Berlin 0 9 * * 1-5"),
        (cron("@daily", "UTC"), "cron UTC @daily"),
        (every(300_000_000, None), "every 300"),
        (every(1_500_000, Some(1_700_000_000_000_001)), "every 1.5 start 1700000000.000001"),
    ] {
        assert_eq!(rule.to_string(), text);
        assert_eq!(TimingRule::read(text), Ok(rule));
    }
}

#[test]
fn a_wrong_rule_is_refused_with_its_field() {
    for (text, field) in [
        ("", "timing"),
        ("every", "timing"),
        ("every x", "timing"),
        ("every 5 start", "timing"),
        ("every -5", "timing"),
        ("every 1.0000001", "timing"),
        ("every 99999999999999999999", "timing"),
        ("daily UTC", "timing"),
        ("cron UTC", "timing"),
        ("every 0.999999", "every"),
        ("every 4000000000", "every"),
        ("cron UTC 0 0 30 2 *", "cron"),
        ("cron UTC 0 0 31 4,6,9,11 *", "cron"),
        ("cron UTC 61 * * * *", "cron"),
        ("cron Mars/Olympus 0 0 * * *", "zone"),
    ] {
        let message = refused(text);
        assert!(message.starts_with(&format!("'{field}' is refused: ")), "{text:?}: {message}");
    }
    assert_eq!(refused("cron Mars 0 0 * * *"), "'zone' is refused: there is no time zone 'Mars'");
    let long = format!("cron UTC {}1 * * * *", "1,".repeat(300));
    assert!(refused(&long).starts_with("'cron' is refused: the rule has"));
}

#[test]
fn intervals_begin_at_their_start() {
    let hourly = timing("every 3600 start 1700000100");
    let start = at(1_700_000_100_000_000);
    assert_eq!(hourly.next(Timestamp::EPOCH), Some(start));
    assert_eq!(hourly.next(start.moved(-1)), Some(start));
    assert_eq!(hourly.next(start), Some(start.moved(HOUR)));
    assert_eq!(timing("every 300").next(at(1_000 * MINUTE + 1)), Some(at(1_005 * MINUTE)));
    assert_eq!(hourly.next(Timestamp::NEVER.moved(-5)), None);
}

/// The next times of a month with summer time and of one with winter time.
#[test]
fn intervals_do_not_know_local_time() {
    let times: Vec<_> = timing("every 1800").times(at(FORWARD - HOUR)).take(6).collect();
    let expected: Vec<_> = (1..=6).map(|half| at(FORWARD - HOUR + half * HOUR / 2)).collect();
    assert_eq!(times, expected);
}

/// A cron expression as sets of values, and as text.
struct Fields {
    sets: [Vec<i64>; 5],
    text: String,
}

impl Fields {
    fn random(random: &mut fastrand::Rng) -> Self {
        let bounds = [(0, 59), (0, 23), (1, 31), (1, 12), (0, 6)];
        let mut words = Vec::new();
        let sets = bounds.map(|(low, high)| {
            let (mut set, word) = match random.u8(0..4) {
                0 => {
                    let step = random.i64(1..=high / 2);
                    let set = (low..=high).step_by(step as usize).collect();
                    (set, format!("*/{step}"))
                }
                1 if high > 12 => {
                    let (first, last) = (random.i64(low..=high), random.i64(low..=high));
                    let (first, last) = (first.min(last), first.max(last));
                    ((first..=last).collect(), format!("{first}-{last}"))
                }
                2 if high != 12 => {
                    let set: Vec<i64> = (0..3).map(|_| random.i64(low..=high)).collect();
                    let text: Vec<String> = set.iter().map(i64::to_string).collect();
                    (set, text.join(","))
                }
                _ => ((low..=high).collect(), "*".to_owned()),
            };
            set.sort_unstable();
            words.push(word);
            set
        });
        Fields { sets, text: words.join(" ") }
    }

    fn has(&self, civil: Civil) -> bool {
        let date = Date::of(civil.day_number());
        let weekday = (civil.day_number() + 4).rem_euclid(7);
        let (minute, hour) = (civil.of_day() / MINUTE % 60, civil.of_day() / HOUR);
        let [by_minute, by_hour, by_day, by_month, by_weekday] =
            [(0, minute), (1, hour), (2, date.day), (3, date.month), (4, weekday)]
                .map(|(field, value): (usize, i64)| self.sets[field].contains(&value));
        let words: Vec<&str> = self.text.split(' ').collect();
        let both = words[2].starts_with('*') || words[4].starts_with('*');
        let day = if both { by_day && by_weekday } else { by_day || by_weekday };
        by_minute && by_hour && by_month && day
    }

    /// Every minute at which it runs, by looking at each of them.
    fn runs(&self, from: i64, to: i64, zone: &dyn Zone) -> Vec<Timestamp> {
        let every_hour = self.sets[1].len() == 24;
        let is_run = |moment: &Timestamp| {
            let (shown, before) = (civil_of(*moment, zone), civil_of(moment.moved(-MINUTE), zone));
            // Minutes that the clocks left out just before this one.
            let left_out = (before.0 / MINUTE + 1..shown.0 / MINUTE).map(|m| Civil(m * MINUTE));
            let is_again = || (1..=180).any(|m| civil_of(moment.moved(-m * MINUTE), zone) == shown);
            let own = self.has(shown) && (every_hour || !is_again());
            own || left_out.into_iter().any(|civil| self.has(civil))
        };
        (from..to).step_by(MINUTE as usize).map(at).filter(is_run).collect()
    }
}

#[test]
fn times_are_what_looking_at_every_minute_gives() {
    let mut random = fastrand::Rng::with_seed(3);
    for round in 0..120 {
        let fields = Fields::random(&mut random);
        let rule = format!("cron Summer {}", fields.text);
        let Ok(timing) = Timing::read(&rule, &TwoZones) else { continue };
        let middle = [FORWARD, BACK, FORWARD + 20 * DAY][round % 3];
        let (from, to) = (middle - 2 * DAY, middle + 2 * DAY);
        let expected = fields.runs(from, to, &Summer);
        let found = timing.times(at(from - 1)).take_while(|time| *time < at(to));
        assert_eq!(found.collect::<Vec<_>>(), expected, "{rule} around {middle}");
        for _ in 0..20 {
            let (after, through) = (random.i64(from..to), random.i64(from..to));
            let within = |time: &&Timestamp| **time > at(after) && **time <= at(through);
            let count = expected.iter().filter(within).count() as u64;
            let found = timing.count(at(after), at(through));
            assert_eq!(found, count, "{rule} from {after} to {through}");
        }
    }
}

#[test]
fn times_are_counted_as_they_are_walked() {
    let mut random = fastrand::Rng::with_seed(4);
    let texts = ["cron Summer */7 * * * *", "cron Summer 0 3 * * 1-5", "cron Summer 30 2 * * *"];
    let more =
        ["cron Summer */20 5 * * * *", "every 5000 start 1774746000.5", "cron UTC 0 0 1 * *"];
    for text in texts.into_iter().chain(more) {
        let timing = timing(text);
        for _ in 0..5 {
            let after = at(random.i64(FORWARD - 40 * DAY..BACK + 40 * DAY));
            let through = after.moved(random.i64(0..30 * DAY));
            let walked = timing.times(after).take_while(|time| *time <= through).count();
            assert_eq!(timing.count(after, through), walked as u64, "{text} {after:?}");
        }
    }
    let second = timing("cron UTC * * * * * *");
    assert_eq!(second.count(at(0), at(50 * 365 * DAY)), 50 * 365 * 86_400);
    assert!(second.count(at(0), Timestamp::NEVER) > 50 * 365 * 86_400, "it ends");
}

fn schedule(catch_up: CatchUp) -> StoredSchedule {
    StoredSchedule {
        name: ScheduleName::new("daily").unwrap(),
        tube: TubeName::new("mail").unwrap(),
        template: NewTask::new(Body::new(&[1])),
        timing: "every 60".into(),
        catch_up,
        overlap: Overlap::Allow,
        until: None,
        paused: false,
        next: Some(at(0)),
        last: None,
        fired: 0,
        skipped: 0,
    }
}

fn fire(catch_up: CatchUp, minutes: i64) -> (usize, u64) {
    let Firing { next, puts, skipped, .. } =
        timing("every 60").fire(&schedule(catch_up), at(0), at(minutes * MINUTE + 1));
    assert_eq!(next, Some(at((minutes + 1) * MINUTE)));
    (puts, skipped)
}

#[test]
fn missed_times_are_skipped_or_caught_up() {
    for catch_up in [CatchUp::None, CatchUp::Last, CatchUp::All] {
        assert_eq!(fire(catch_up, 0), (1, 0), "{catch_up:?}: it is on time");
    }
    assert_eq!(fire(CatchUp::None, 9), (1, 9), "the last of them is not late");
    assert_eq!(fire(CatchUp::Last, 9), (1, 9));
    assert_eq!(fire(CatchUp::All, 9), (10, 0));
    assert_eq!(fire(CatchUp::All, 999), (1_000, 0));
    assert_eq!(fire(CatchUp::All, 1_000), (1_000, 1));
}

#[test]
fn a_time_is_missed_when_it_is_over_a_minute_late() {
    let daily = timing("cron UTC 0 9 * * *");
    let nine = at(9 * HOUR);
    for (late, puts) in [(0, 1), (LATE_MAX, 1), (LATE_MAX + 1, 0), (5 * HOUR, 0)] {
        let firing = daily.fire(&schedule(CatchUp::None), nine, nine.moved(late));
        let skipped = 1 - puts as u64;
        let (next, late) = (Some(nine.moved(DAY)), Span::from_micros(late));
        assert_eq!(firing, Firing { next, puts, skipped, late });
    }
    let last = daily.fire(&schedule(CatchUp::Last), nine, nine.moved(5 * HOUR));
    assert_eq!((last.puts, last.skipped), (1, 0));
}

// A server that was away for 35 s added one task of a schedule that is due every 10 s: all times but one were skipped, although
// none of them counts as missed.
#[test]
fn every_time_that_is_not_missed_fires() {
    let rule = timing("every 10");
    let fire = |catch_up, seconds: i64| {
        let firing = rule.fire(&schedule(catch_up), at(0), at(seconds * 1_000_000));
        (firing.puts, firing.skipped)
    };
    for catch_up in [CatchUp::None, CatchUp::Last, CatchUp::All] {
        assert_eq!(fire(catch_up, 35), (4, 0), "{catch_up:?}");
        assert_eq!(fire(catch_up, 60), (7, 0), "{catch_up:?}: the first is a minute late");
    }
    assert_eq!(fire(CatchUp::None, 61), (6, 1));
    assert_eq!(fire(CatchUp::Last, 61), (6, 1));
    assert_eq!(fire(CatchUp::None, 6_001), (6, 595));
    let ended = StoredSchedule { until: Some(at(25_000_000)), ..schedule(CatchUp::None) };
    let firing = rule.fire(&ended, at(0), at(70_000_000));
    assert_eq!((firing.next, firing.puts, firing.skipped), (None, 2, 1));
}

#[test]
fn no_time_after_until_fires() {
    let until = |minutes: i64| StoredSchedule {
        until: Some(at(minutes * MINUTE)),
        ..schedule(CatchUp::All)
    };
    let rule = timing("every 60");
    let firing = rule.fire(&until(5), at(0), at(9 * MINUTE));
    assert_eq!((firing.next, firing.puts, firing.skipped), (None, 6, 0));
    let firing = rule.fire(&until(5), at(0), at(4 * MINUTE));
    assert_eq!((firing.next, firing.puts), (Some(at(5 * MINUTE)), 5));
    let firing = rule.fire(&until(-1), at(0), at(0));
    assert_eq!((firing.next, firing.puts, firing.skipped), (None, 0, 0));
}

#[test]
fn a_time_may_be_due_before_the_clock_of_the_caller_shows_it() {
    let firing = timing("every 60").fire(&schedule(CatchUp::None), at(5 * MINUTE), at(MINUTE));
    assert_eq!((firing.next, firing.puts, firing.late), (Some(at(6 * MINUTE)), 1, Span::ZERO));
}
