//! Finds time zones by name.
//!
//! The core's rules of time know a zone as a function from moments to offsets. This crate reads the
//! time zone database of the system, or the built-in one; it decides nothing.

use std::sync::Arc;

use jiff::tz::TimeZone;
use taskyard_core::Timestamp;
use taskyard_core::schedule::{SharedZone, Zone, Zones};

/// All time zones of the system's database and of the built-in one.
#[derive(Clone, Copy, Debug, Default)]
pub struct NamedZones;

impl Zones for NamedZones {
    fn find(&self, name: &str) -> Option<SharedZone> {
        NamedZone::find(name).map(|zone| Arc::new(zone) as SharedZone)
    }
}

/// A time zone of the system's database, or of the built-in one.
#[derive(Clone, Debug)]
pub struct NamedZone(TimeZone);

impl NamedZone {
    /// The zone of this name, if there is one.
    pub fn find(name: &str) -> Option<Self> {
        TimeZone::get(name).or_else(|_| TimeZone::posix(name)).ok().map(NamedZone)
    }

    /// The zone of this name, or UTC.
    pub fn or_utc(name: &str) -> Self {
        Self::find(name).unwrap_or(NamedZone(TimeZone::UTC))
    }
}

impl Zone for NamedZone {
    fn offset_micros(&self, at: Timestamp) -> i64 {
        let Ok(at) = jiff::Timestamp::from_microsecond(at.as_micros()) else { return 0 };
        i64::from(self.0.to_offset(at).seconds()) * 1_000_000
    }
}

#[cfg(test)]
mod tests {
    use taskyard_core::schedule::Timing;

    use super::*;

    #[test]
    fn zones_are_found_by_name() {
        let berlin = NamedZone::find("Europe/Berlin").expect("every database has it");
        let winter = Timestamp::from_micros(1_768_435_200_000_000);
        let summer = Timestamp::from_micros(1_784_073_600_000_000);
        assert_eq!(berlin.offset_micros(winter), 3_600_000_000);
        assert_eq!(berlin.offset_micros(summer), 7_200_000_000);
        assert!(NamedZone::find("Nowhere/Land").is_none());
        assert_eq!(NamedZone::or_utc("Nowhere/Land").offset_micros(summer), 0);
        assert_eq!(berlin.offset_micros(Timestamp::NEVER), 0);
    }

    fn micros(text: &str) -> Timestamp {
        let at: jiff::Timestamp = text.parse().expect("a moment");
        Timestamp::from_micros(at.as_microsecond())
    }

    /// The first times of a rule after a moment, as UTC.
    fn times(rule: &str, after: &str, count: usize) -> Vec<String> {
        let timing = Timing::read(rule, &NamedZones).expect(rule);
        let text = |at: Timestamp| jiff::Timestamp::from_microsecond(at.as_micros()).unwrap();
        timing.times(micros(after)).take(count).map(|at| text(at).to_string()).collect()
    }

    #[test]
    fn the_missing_hour_runs_at_its_end() {
        let berlin = times("cron Europe/Berlin 30 2 * * *", "2026-03-28T00:00:00Z", 3);
        assert_eq!(
            berlin,
            ["2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]
        );
        // Here midnight itself does not exist on that day.
        let santiago = times("cron America/Santiago 0 0 * * *", "2026-09-05T00:00:00Z", 3);
        assert_eq!(
            santiago,
            ["2026-09-05T04:00:00Z", "2026-09-06T04:00:00Z", "2026-09-07T03:00:00Z"]
        );
        // Clocks are set by half an hour.
        let howe = times("cron Australia/Lord_Howe 15 2 * * *", "2026-10-03T00:00:00Z", 2);
        assert_eq!(howe, ["2026-10-03T15:30:00Z", "2026-10-04T15:15:00Z"]);
    }

    #[test]
    fn the_repeated_hour_runs_once_unless_every_hour_does() {
        let fixed = times("cron Europe/Berlin 30 2 * * *", "2026-10-24T12:00:00Z", 2);
        assert_eq!(fixed, ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]);
        let hourly = times("cron Europe/Berlin */30 * * * *", "2026-10-24T23:59:00Z", 5);
        let expected = ["00:00", "00:30", "01:00", "01:30", "02:00"];
        assert_eq!(hourly, expected.map(|time| format!("2026-10-25T{time}:00Z")));
        let every = times("every 1800", "2026-10-24T23:59:00Z", 5);
        assert_eq!(every, hourly);
    }

    #[test]
    fn an_unknown_zone_is_refused() {
        let refused = Timing::read("cron Nowhere/Land 0 0 * * *", &NamedZones).unwrap_err();
        assert_eq!(refused.to_string(), "'zone' is refused: there is no time zone 'Nowhere/Land'");
    }
}
