//! The options of a semaphore, and their changes.

use crate::error::{Error, Result};
use crate::limits::{SEMAPHORE_ACTIVE_MAX, SEMAPHORE_REVOKING_MAX};
use crate::time::Span;

use super::key::{Priority, SemaphoreKey};

/// Default for how many holders are asked to release at the same time.
const MAX_REVOKING: u32 = 16;

/// The options of a semaphore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SemaphoreOptions {
    /// Maximum number of grants at the same time. Zero grants nothing.
    pub active: u32,
    /// How many of the holders, from the worst on, may be asked to release for better ones. More
    /// than `active` is the same as `active`, and shown so.
    pub try_release: u32,
    /// How much better than a holder a task must be for that holder to be asked.
    pub margin: Priority,
    /// No holder is asked to release before it has held its grant this long.
    pub min_hold: Span,
    /// A task that yields is not queued again before this time has passed.
    pub cool_down: Span,
    /// How many holders may be asked to release at the same time; `None` is the smaller of 16 and
    /// `try_release`.
    pub max_revoking: Option<u32>,
    /// A holder that was asked to release and did not is asked again after this time, or loses the
    /// grant (`force`).
    pub revoke_grace: Span,
    /// Revoke the grant when the grace period is over.
    pub force: bool,
    /// How long a grant lasts unless it is extended; `None` is until it is released.
    pub lease: Option<Span>,
    /// How long the event of a grant may stay unacknowledged before the grant goes to another task;
    /// `None` is forever.
    pub ack_timeout: Option<Span>,
    /// After `active` was lowered: ask surplus holders to release, instead of waiting for them.
    pub shed: bool,
    /// A task whose lease expires is removed, instead of queued again.
    pub drop_expired: bool,
}

impl Default for SemaphoreOptions {
    fn default() -> Self {
        SemaphoreOptions {
            active: 1000,
            try_release: 900,
            margin: Priority::ZERO,
            min_hold: Span::ZERO,
            cool_down: Span::ZERO,
            max_revoking: None,
            revoke_grace: Span::from_secs(60),
            force: false,
            lease: None,
            ack_timeout: None,
            shed: false,
            drop_expired: false,
        }
    }
}

impl SemaphoreOptions {
    /// How many holders, from the worst on, may be asked to release.
    pub fn tail(&self) -> u32 {
        self.try_release.min(self.active)
    }

    /// How many of the best holders are never asked.
    pub fn protected(&self) -> usize {
        (self.active - self.tail()) as usize
    }

    /// How many may be asked at the same time for better tasks.
    pub fn revoking_limit(&self) -> usize {
        self.max_revoking.unwrap_or(MAX_REVOKING).min(self.tail()) as usize
    }

    /// How many may be asked at the same time because there are too many. With `active` 0 no holder
    /// is protected, whatever `try_release` is; otherwise a `try_release` of 0 means that no holder
    /// is ever asked.
    pub fn shedding_limit(&self) -> usize {
        let never = self.try_release == 0 && self.active > 0;
        if never { 0 } else { self.max_revoking.unwrap_or(MAX_REVOKING) as usize }
    }

    /// The options as they are shown, with the effective `try_release`.
    pub fn shown(mut self) -> Self {
        self.try_release = self.tail();
        self
    }

    /// The options after a change, or why it is invalid.
    pub fn changed(&self, change: &SemaphoreChange) -> Result<SemaphoreOptions> {
        change.check()?;
        let mut options = self.clone();
        if let Some(active) = change.active {
            options.active = count("active", active)?;
        }
        if let Some(tail) = change.try_release {
            options.try_release = count("try_release", tail)?;
            if options.try_release > options.active {
                return Err(tail_too_long(tail, options.active));
            }
        }
        if let Some(margin) = change.margin {
            options.margin = Priority::new(margin)?;
        }
        if let Some(most) = change.max_revoking {
            options.max_revoking = most.map(revoking).transpose()?;
        }
        options.min_hold = change.min_hold.unwrap_or(options.min_hold);
        options.cool_down = change.cool_down.unwrap_or(options.cool_down);
        options.revoke_grace = change.revoke_grace.unwrap_or(options.revoke_grace);
        options.lease = change.lease.unwrap_or(options.lease);
        options.ack_timeout = change.ack_timeout.unwrap_or(options.ack_timeout);
        options.force = change.force.unwrap_or(options.force);
        options.shed = change.shed.unwrap_or(options.shed);
        options.drop_expired = change.drop_expired.unwrap_or(options.drop_expired);
        Ok(options)
    }
}

/// The error for a `try_release` larger than `active`.
pub fn tail_too_long(try_release: i64, active: u32) -> Error {
    Error::Invalid(format!(
        "try_release is {try_release}, but only {active} may be active; it must not be more"
    ))
}

fn count(name: &str, value: i64) -> Result<u32> {
    count_up_to(SEMAPHORE_ACTIVE_MAX, name, value)
}

fn revoking(value: i64) -> Result<u32> {
    count_up_to(SEMAPHORE_REVOKING_MAX, "max_revoking", value)
}

fn count_up_to(most: u32, name: &str, value: i64) -> Result<u32> {
    u32::try_from(value)
        .ok()
        .filter(|count| *count <= most)
        .ok_or_else(|| Error::Invalid(format!("{name} must be between 0 and {most}, not {value}")))
}

/// A change of a semaphore, not validated yet; `None` leaves an option unchanged, and the inner
/// `None` removes it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SemaphoreChange {
    /// Maximum number of grants.
    pub active: Option<i64>,
    /// How many holders may be asked to release.
    pub try_release: Option<i64>,
    /// How much better a task must be.
    pub margin: Option<f64>,
    /// How long a new grant is not asked for.
    pub min_hold: Option<Span>,
    /// How long a task that yields stays out of the queue.
    pub cool_down: Option<Span>,
    /// How many may be asked at the same time.
    pub max_revoking: Option<Option<i64>>,
    /// How long a holder may take to release.
    pub revoke_grace: Option<Span>,
    /// Whether the grant is revoked then.
    pub force: Option<bool>,
    /// How long a grant lasts.
    pub lease: Option<Option<Span>>,
    /// How long an acknowledgement may take.
    pub ack_timeout: Option<Option<Span>>,
    /// Whether surplus holders are asked to release.
    pub shed: Option<bool>,
    /// Whether tasks whose lease expires are removed.
    pub drop_expired: Option<bool>,
}

impl SemaphoreChange {
    /// Refuses what is invalid for any semaphore.
    pub fn check(&self) -> Result<()> {
        for (name, value) in [("active", self.active), ("try_release", self.try_release)] {
            value.map(|value| count(name, value)).transpose()?;
        }
        self.max_revoking.flatten().map(revoking).transpose()?;
        if let Some(margin) = self.margin.filter(|margin| !margin.is_finite() || *margin < 0.0) {
            let text = format!("margin must be a number of at least 0, not {margin}");
            return Err(Error::Invalid(text));
        }
        let times = [
            ("revoke_grace", self.revoke_grace),
            ("lease", self.lease.flatten()),
            ("ack_timeout", self.ack_timeout.flatten()),
        ];
        match times.iter().find(|(_, time)| time.is_some_and(Span::is_zero)) {
            Some((name, _)) => Err(Error::Invalid(format!("{name} must be longer than nothing"))),
            None => Ok(()),
        }
    }

    /// Refuses an existing semaphore that differs in a given option.
    pub fn check_same(&self, key: &SemaphoreKey, options: &SemaphoreOptions) -> Result<()> {
        let mut differs = Vec::new();
        let mut compare = |name: &str, wanted: Option<String>, found: String| {
            if let Some(wanted) = wanted.filter(|wanted| *wanted != found) {
                differs.push(format!("{name} is {found}, not {wanted}"));
            }
        };
        let time = |span: Span| format!("{} s", span.as_secs_f64());
        let optional = |span: Option<Span>| span.map_or("none".to_owned(), time);
        let most = |most: Option<i64>| most.map_or("unset".to_owned(), |most| most.to_string());
        compare("active", self.active.map(|n| n.to_string()), options.active.to_string());
        compare("try_release", self.try_release.map(|n| n.to_string()), options.tail().to_string());
        let margin = self.margin.map(|margin| (margin + 0.0).to_string());
        compare("margin", margin, options.margin.value().to_string());
        compare("min_hold", self.min_hold.map(time), time(options.min_hold));
        compare("cool_down", self.cool_down.map(time), time(options.cool_down));
        compare(
            "max_revoking",
            self.max_revoking.map(most),
            most(options.max_revoking.map(i64::from)),
        );
        compare("revoke_grace", self.revoke_grace.map(time), time(options.revoke_grace));
        compare("force", self.force.map(|flag| flag.to_string()), options.force.to_string());
        compare("lease", self.lease.map(optional), optional(options.lease));
        compare("ack_timeout", self.ack_timeout.map(optional), optional(options.ack_timeout));
        compare("shed", self.shed.map(|flag| flag.to_string()), options.shed.to_string());
        let drops = self.drop_expired.map(|flag| flag.to_string());
        compare("drop_expired", drops, options.drop_expired.to_string());
        if differs.is_empty() {
            return Ok(());
        }
        Err(Error::SemaphoreExists { key: key.clone(), differs: differs.join(", ") })
    }

    /// The change of the two most important options.
    pub fn limits(active: i64, try_release: i64) -> Self {
        let (active, try_release) = (Some(active), Some(try_release));
        SemaphoreChange { active, try_release, ..SemaphoreChange::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: SemaphoreChange) {
        let refused = SemaphoreOptions::default().changed(&change);
        assert!(matches!(refused, Err(Error::Invalid(_))), "{change:?}");
    }

    #[test]
    fn wrong_numbers_are_refused() {
        refused(SemaphoreChange::limits(-1, 0));
        refused(SemaphoreChange::limits(10, -1));
        refused(SemaphoreChange::limits(10, 11));
        refused(SemaphoreChange::limits(i64::from(SEMAPHORE_ACTIVE_MAX) + 1, 0));
        for margin in [-1.0, f64::NAN, f64::INFINITY] {
            refused(SemaphoreChange { margin: Some(margin), ..Default::default() });
        }
        for most in [-1, i64::from(SEMAPHORE_REVOKING_MAX) + 1] {
            refused(SemaphoreChange { max_revoking: Some(Some(most)), ..Default::default() });
        }
        refused(SemaphoreChange { lease: Some(Some(Span::ZERO)), ..Default::default() });
        refused(SemaphoreChange { ack_timeout: Some(Some(Span::ZERO)), ..Default::default() });
        refused(SemaphoreChange { revoke_grace: Some(Span::ZERO), ..Default::default() });
    }

    #[test]
    fn a_default_try_release_fits_the_capacity() {
        let small = SemaphoreChange { active: Some(10), ..Default::default() };
        let small = SemaphoreOptions::default().changed(&small).unwrap();
        assert_eq!((small.tail(), small.protected(), small.revoking_limit()), (10, 0, 10));
        let large = SemaphoreChange { active: Some(1000), ..Default::default() };
        let large = small.changed(&large).unwrap();
        assert_eq!((large.tail(), large.protected(), large.revoking_limit()), (900, 100, 16));
    }
}
