//! Tube names and options.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::limits::{KEEP_DONE_DEFAULT, KEEP_DONE_MAX, TUBE_NAME_BYTES_MAX};
use crate::rate::RateLimit;
use crate::retry::RetryPolicy;
use crate::semaphore::SemaphoreKey;
use crate::time::Span;

/// The prefix of internal tubes.
const INTERNAL_PREFIX: &str = "taskyard.";

/// The checked name of a tube. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TubeName(Arc<str>);

impl TubeName {
    /// Checks a name: 1 to 128 bytes without control characters, `/` or `:`. The names `.` and `..`
    /// have another meaning in a path and are refused.
    pub fn new(name: &str) -> Result<Self> {
        if name.is_empty() {
            return Err(Error::Invalid("a tube name must not be empty".into()));
        }
        if name.len() > TUBE_NAME_BYTES_MAX {
            return Err(Error::Invalid(format!(
                "a tube name may have {TUBE_NAME_BYTES_MAX} bytes, this one has {}",
                name.len()
            )));
        }
        if matches!(name, "." | "..") {
            return Err(Error::Invalid(format!("a tube must not be named '{name}'")));
        }
        if let Some(bad) = name.chars().find(|c| c.is_control() || matches!(c, '/' | ':')) {
            return Err(Error::Invalid(format!("a tube name must not contain {bad:?}")));
        }
        Ok(TubeName(name.into()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the tube is internal: lists omit it unless it is requested.
    pub fn is_internal(&self) -> bool {
        self.0.starts_with(INTERNAL_PREFIX)
    }
}

impl Borrow<str> for TubeName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TubeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TubeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The five presets, by the names Tarantool's queue gave them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// In order of arrival, nothing else.
    Fifo,
    /// Priorities and times.
    FifoTtl,
    /// The same with a capacity.
    LimFifoTtl,
    /// In order of arrival, one running task for each sub-queue.
    Utube,
    /// Sub-queues, priority and times.
    UtubeTtl,
}

impl Kind {
    /// All of them, in the order of the documents.
    pub const ALL: [Kind; 5] =
        [Kind::Fifo, Kind::FifoTtl, Kind::LimFifoTtl, Kind::Utube, Kind::UtubeTtl];

    /// The kind's name in all interfaces.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Fifo => "fifo",
            Kind::FifoTtl => "fifottl",
            Kind::LimFifoTtl => "limfifottl",
            Kind::Utube => "utube",
            Kind::UtubeTtl => "utubettl",
        }
    }

    /// The kind of this name.
    pub fn from_name(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether tasks have a priority, ttl, ttr and delay. Other kinds ignore these options.
    pub const fn has_times(self) -> bool {
        matches!(self, Kind::FifoTtl | Kind::LimFifoTtl | Kind::UtubeTtl)
    }

    /// Whether at most one task of each sub-queue runs.
    pub const fn has_subqueues(self) -> bool {
        matches!(self, Kind::Utube | Kind::UtubeTtl)
    }
}

/// The options of a tube.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TubeOptions {
    /// The preset it was created from.
    pub kind: Kind,
    /// Whether its tasks may be lost at a restart, for speed.
    pub temporary: bool,
    /// Maximum number of tasks of any state; with 0 the tube accepts no task, `None` is no limit.
    pub capacity: Option<u64>,
    /// Time to live of a task whose put names none.
    pub ttl: Option<Span>,
    /// Time to run of a task whose put names none; without it a task's own ttl.
    pub ttr: Option<Span>,
    /// Delay of a task whose put names none.
    pub delay: Option<Span>,
    /// Priority of a task whose put names none.
    pub pri: u64,
    /// Bury a task instead of releasing it when this many deliveries have failed.
    pub attempts_max: Option<u32>,
    /// The delays between attempts, for failed deliveries without an explicit delay.
    pub retry: Option<Box<RetryPolicy>>,
    /// How many deliveries are allowed.
    pub rate: Option<Box<RateLimit>>,
    /// Keep done tasks for this long; `None` removes them at once.
    pub keep_done: Option<Span>,
    /// Maximum number of done tasks to keep; up to an eighth more until they are removed.
    pub keep_done_max: u64,
    /// Let the ttl end a delivery, as the original queue does.
    pub ttl_kills_taken: bool,
    /// No task is delivered while this is set.
    pub paused: bool,
    /// The semaphore that gates the tube: its tasks are ready only while they hold a grant. It
    /// cannot be changed.
    pub semaphore: Option<SemaphoreKey>,
    /// The permanent queue number from a contract; no other tube of the store has it.
    pub queue_num: Option<u32>,
}

impl TubeOptions {
    /// The defaults of a kind.
    pub const fn new(kind: Kind) -> Self {
        TubeOptions {
            kind,
            temporary: false,
            capacity: None,
            ttl: None,
            ttr: None,
            delay: None,
            pri: 0,
            attempts_max: None,
            retry: None,
            rate: None,
            keep_done: None,
            keep_done_max: KEEP_DONE_DEFAULT,
            ttl_kills_taken: false,
            paused: false,
            semaphore: None,
            queue_num: None,
        }
    }

    /// Refuses values without a meaning. Every store checks them before it looks for the tube.
    pub fn check(&self) -> Result<()> {
        check_attempts_max(self.attempts_max)?;
        check_pace(self.retry.as_deref(), self.rate.as_deref())?;
        check_keep_done(self.keep_done, Some(self.keep_done_max))?;
        check_queue_num(self.queue_num)
    }
}

/// A change of a tube; `None` leaves an option unchanged, and the inner `None` removes a limit.
/// Existing tasks keep their times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TubeChange {
    /// Stop or resume deliveries.
    pub paused: Option<bool>,
    /// Maximum number of tasks of any state.
    pub capacity: Option<Option<u64>>,
    /// Default time to live.
    pub ttl: Option<Option<Span>>,
    /// Default time to run.
    pub ttr: Option<Option<Span>>,
    /// Default delay.
    pub delay: Option<Option<Span>>,
    /// Default priority.
    pub pri: Option<u64>,
    /// Deliveries before a task is buried.
    pub attempts_max: Option<Option<u32>>,
    /// The delays between attempts.
    pub retry: Option<Option<Box<RetryPolicy>>>,
    /// How many deliveries are allowed.
    pub rate: Option<Option<Box<RateLimit>>>,
    /// How long done tasks are kept.
    pub keep_done: Option<Option<Span>>,
    /// Maximum number of done tasks to keep.
    pub keep_done_max: Option<u64>,
}

impl TubeChange {
    /// Refuses values without a meaning. Every store checks them before it looks for the tube.
    pub fn check(&self) -> Result<()> {
        check_attempts_max(self.attempts_max.flatten())?;
        let retry = self.retry.as_ref().and_then(Option::as_deref);
        check_pace(retry, self.rate.as_ref().and_then(Option::as_deref))?;
        check_keep_done(self.keep_done.flatten(), self.keep_done_max)
    }
}

fn check_attempts_max(attempts_max: Option<u32>) -> Result<()> {
    if attempts_max == Some(0) {
        let message = "attempts_max must be at least 1; leave it out to retry forever";
        return Err(Error::Invalid(message.into()));
    }
    Ok(())
}

fn check_pace(retry: Option<&RetryPolicy>, rate: Option<&RateLimit>) -> Result<()> {
    retry.map_or(Ok(()), RetryPolicy::check)?;
    rate.map_or(Ok(()), RateLimit::check)
}

fn check_keep_done(keep_done: Option<Span>, keep_done_max: Option<u64>) -> Result<()> {
    if keep_done == Some(Span::ZERO) {
        let message = "keep_done must be longer than 0; leave it out to remove finished tasks";
        return Err(Error::Invalid(message.into()));
    }
    match keep_done_max {
        Some(most) if !(1..=KEEP_DONE_MAX).contains(&most) => Err(Error::Invalid(format!(
            "keep_done_max must be between 1 and {KEEP_DONE_MAX}, not {most}"
        ))),
        _ => Ok(()),
    }
}

/// Refuses the queue number 0.
pub fn check_queue_num(queue_num: Option<u32>) -> Result<()> {
    if queue_num == Some(0) {
        return Err(Error::Invalid("a queue number must be at least 1".into()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        for good in ["a", "mail", "a b!", "почта", &"x".repeat(128)] {
            assert_eq!(TubeName::new(good).unwrap().as_str(), good);
        }
        for bad in ["", ".", "..", "a/b", "a:b", "a\nb", "\u{7f}", &"x".repeat(129)] {
            assert!(matches!(TubeName::new(bad), Err(Error::Invalid(_))), "{bad:?}");
        }
    }

    #[test]
    fn kinds_are_found_by_name() {
        for kind in Kind::ALL {
            assert_eq!(Kind::from_name(kind.name()), Some(kind));
        }
        assert_eq!(Kind::from_name("FIFO"), None);
    }
}
