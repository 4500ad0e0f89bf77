//! Finds time zones by name.

use jiff::tz::TimeZone;
use taskyard_core::Timestamp;
use taskyard_core::schedule::Zone;

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
}
