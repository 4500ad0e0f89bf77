//! Schedules: named rules that add tasks to a tube at certain times.
//!
//! The store keeps them and knows no rule of time: the engine reads `timing`, computes `next`, and
//! sends [`ScheduleCommand::Fire`]. That is applied only if `expected` is still the `next` of the
//! schedule, in one step with the puts; so any number of servers may try, and each time fires once.
//!
//! All moments of a schedule are wall time. A schedule names its tube: if the tube was dropped or
//! renamed, a fire with puts is refused with the error of the put and changes nothing, and so it is
//! if the tube is full. The engine records the error and moves on by a fire without puts, which
//! needs no tube and counts the `skipped` times. A schedule whose `next` is `None` is over.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use crate::command::{Command, NewTask, Placed};
use crate::error::{Error, Result};
use crate::key::{Key, KeyRequest};
use crate::limits::{
    KEY_BYTES_MAX, SCHEDULE_NAME_BYTES_MAX, SCHEDULE_PUTS_MAX, SCHEDULE_TEMPLATE_BYTES_MAX,
    SCHEDULE_TIMING_BYTES_MAX, SCHEDULES_LISTED_MAX,
};
use crate::machine::check_tasks;
use crate::schedule::{Timing, TimingRule};
use crate::time::{Span, Timestamp};
use crate::tube::TubeName;

/// Before the name of a schedule in the key that its tasks share if they must not overlap.
const KEY_PREFIX: &str = "schedule:";

/// The checked name of a schedule. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScheduleName(Arc<str>);

impl ScheduleName {
    /// Checks a name: 1 to 128 bytes without control characters or `/`; not `.` or `..`.
    pub fn new(name: &str) -> Result<Self> {
        if name.is_empty() || name.len() > SCHEDULE_NAME_BYTES_MAX {
            return Err(Error::Invalid(format!(
                "the name of a schedule has 1 to {SCHEDULE_NAME_BYTES_MAX} bytes, this one has {}",
                name.len()
            )));
        }
        if matches!(name, "." | "..") {
            return Err(Error::Invalid(format!("a schedule must not be named '{name}'")));
        }
        if let Some(bad) = name.chars().find(|char| char.is_control() || *char == '/') {
            let why = format!("the name of a schedule must not contain {bad:?}");
            return Err(Error::Invalid(why));
        }
        Ok(ScheduleName(name.into()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What is before all names.
    pub(crate) fn least() -> Self {
        ScheduleName("".into())
    }
}

impl Borrow<str> for ScheduleName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ScheduleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ScheduleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What happens with times that were missed: a server fired the schedule over a minute late.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CatchUp {
    /// They are skipped.
    #[default]
    None,
    /// One task is added for all of them, unless a later time fires as well.
    Last,
    /// All of them fire, at most 1,000.
    All,
}

/// Whether a time fires while a task of an earlier time exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overlap {
    /// It fires.
    #[default]
    Allow,
    /// It is skipped.
    Skip,
}

/// A schedule, as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredSchedule {
    /// Its name, unique in the store.
    pub name: ScheduleName,
    /// The tube that its tasks are put into.
    pub tube: TubeName,
    /// The task to put.
    pub template: NewTask,
    /// When to put it: the rule, which the store does not interpret.
    pub timing: Arc<str>,
    /// What happens with times that were missed.
    pub catch_up: CatchUp,
    /// What happens while a task of an earlier time exists.
    pub overlap: Overlap,
    /// No time after this moment fires.
    pub until: Option<Timestamp>,
    /// Whether it is not due at any time.
    pub paused: bool,
    /// The next time; `None` if there is none any more.
    pub next: Option<Timestamp>,
    /// When it last added a task.
    pub last: Option<Timestamp>,
    /// How many tasks it added.
    pub fired: u64,
    /// How many times were skipped.
    pub skipped: u64,
}

impl StoredSchedule {
    /// A new schedule that is not paused, does not catch up and may overlap.
    pub fn new(name: &str, tube: &str, template: NewTask, rule: &TimingRule) -> Result<Self> {
        Ok(StoredSchedule {
            name: ScheduleName::new(name)?,
            tube: TubeName::new(tube)?,
            template,
            timing: rule.to_string().into(),
            catch_up: CatchUp::None,
            overlap: Overlap::Allow,
            until: None,
            paused: false,
            next: None,
            last: None,
            fired: 0,
            skipped: 0,
        })
    }

    /// Refuses a schedule that no store accepts.
    pub fn check(&self) -> Result<()> {
        let length = self.timing.len();
        if length == 0 || length > SCHEDULE_TIMING_BYTES_MAX {
            return Err(Error::Invalid(format!(
                "the rule of a schedule has 1 to {SCHEDULE_TIMING_BYTES_MAX} bytes, this one has {length}"
            )));
        }
        let size = self.template.body.bytes() as usize;
        if size > SCHEDULE_TEMPLATE_BYTES_MAX {
            return Err(Error::TooLarge {
                what: "the payload of a schedule, in bytes,",
                size,
                limit: SCHEDULE_TEMPLATE_BYTES_MAX,
                advice: "store a reference to the data instead",
            });
        }
        if self.overlap_key()?.is_some() && self.template.key.is_some() {
            return Err(Error::Invalid(
                "the tasks of a schedule with overlap `skip` have its key; leave theirs out".into(),
            ));
        }
        check_tasks(std::slice::from_ref(&self.template))
    }

    /// The key that the tasks of a schedule share if they must not overlap.
    pub fn overlap_key(&self) -> Result<Option<Key>> {
        match self.overlap {
            Overlap::Allow => Ok(None),
            Overlap::Skip => {
                let (size, most) = (self.name.as_str().len(), KEY_BYTES_MAX - KEY_PREFIX.len());
                if size > most {
                    return Err(Error::Invalid(format!(
                        "the name of a schedule with overlap `skip` has at most {most} bytes, because its tasks \
                         have the key `{KEY_PREFIX}NAME`; this one has {size}"
                    )));
                }
                Key::new(&format!("{KEY_PREFIX}{}", self.name)).map(Some)
            }
        }
    }

    /// The command that adds its task now, outside its times.
    pub fn run_now(&self) -> Result<Command> {
        let mut task = self.template.clone();
        if let Some(key) = self.overlap_key()? {
            task.key = Some(Box::new(KeyRequest::new(key)));
        }
        Ok(Command::Put { tube: self.tube.clone(), tasks: vec![task], wait: Span::ZERO })
    }

    /// Its times from `next` on.
    pub fn times(&self, timing: &Timing) -> impl Iterator<Item = Timestamp> {
        let until = self.until.unwrap_or(Timestamp::NEVER);
        let times = std::iter::successors(self.next, |at| timing.next(*at));
        times.take_while(move |at| *at <= until)
    }

    /// When it is due, unless it is paused or over.
    pub fn due(&self) -> Option<Timestamp> {
        self.next.filter(|_| !self.paused)
    }
}

/// The limit of a list of schedules, unless it is out of bounds.
pub fn checked_list_limit(limit: usize) -> Result<usize> {
    if (1..=SCHEDULES_LISTED_MAX).contains(&limit) {
        return Ok(limit);
    }
    let why = format!("the limit of a list of schedules is 1 to {SCHEDULES_LISTED_MAX}");
    Err(Error::Invalid(why))
}

/// Refuses a fire with too many tasks, once its schedule is found and whatever its next time is.
pub fn check_fire(puts: &[NewTask]) -> Result<()> {
    let (size, limit) = (puts.len(), SCHEDULE_PUTS_MAX);
    if size <= limit {
        return Ok(());
    }
    let (what, advice) = ("the number of tasks in one fire", "skip the others");
    Err(Error::TooLarge { what, size, limit, advice })
}

/// A command for schedules.
#[derive(Clone, Debug, PartialEq)]
pub enum ScheduleCommand {
    /// Creates a schedule or replaces it; its tube must exist. `last`, `fired` and `skipped` of the
    /// command are ignored: a replaced schedule keeps its own. Replies with [`ScheduleReply::Set`].
    Set {
        /// The schedule.
        schedule: StoredSchedule,
        /// Refuse to replace a schedule.
        only_new: bool,
        /// Ignore `paused` as well: a new schedule is not paused, and a replaced one stays as it is.
        keep_paused: bool,
    },
    /// Shows one schedule. Replies with [`ScheduleReply::Schedules`].
    Get {
        /// Its name.
        name: ScheduleName,
    },
    /// Shows schedules by name. Replies with [`ScheduleReply::Schedules`].
    List {
        /// Only names after this one.
        after: Option<ScheduleName>,
        /// Maximum number, at least 1 and at most
        /// [`SCHEDULES_LISTED_MAX`](crate::limits::SCHEDULES_LISTED_MAX).
        limit: usize,
    },
    /// Shows the schedules that are due, by time and name. Replies with [`ScheduleReply::Due`].
    Due {
        /// How many of them to leave out, from the first on.
        skip: usize,
        /// Maximum number, as in `List`.
        limit: usize,
    },
    /// Removes a schedule; its tasks stay. Replies with [`ScheduleReply::Removed`].
    Remove {
        /// Its name.
        name: ScheduleName,
    },
    /// Pauses or resumes a schedule; `next` stays. Replies with [`ScheduleReply::Schedules`].
    Pause {
        /// Its name.
        name: ScheduleName,
        /// Whether it is paused from now on.
        paused: bool,
    },
    /// Adds the tasks of a schedule, if `expected` is still its next time and it is not paused.
    /// Replies with [`ScheduleReply::Fired`].
    Fire {
        /// Its name.
        name: ScheduleName,
        /// The next time that the caller knows.
        expected: Timestamp,
        /// The next time from now on.
        next: Option<Timestamp>,
        /// The tasks to add, at most [`SCHEDULE_PUTS_MAX`](crate::limits::SCHEDULE_PUTS_MAX).
        puts: Vec<NewTask>,
        /// How many times are skipped.
        skipped: u64,
    },
}

impl ScheduleCommand {
    /// The verb's name, for messages and metrics.
    pub const fn verb(&self) -> &'static str {
        match self {
            ScheduleCommand::Set { .. } => "schedule_set",
            ScheduleCommand::Get { .. } => "schedule_get",
            ScheduleCommand::List { .. } => "schedule_list",
            ScheduleCommand::Due { .. } => "schedule_due",
            ScheduleCommand::Remove { .. } => "schedule_remove",
            ScheduleCommand::Pause { .. } => "schedule_pause",
            ScheduleCommand::Fire { .. } => "schedule_fire",
        }
    }

    /// Whether the command may add tasks to a tube.
    pub fn adds_tasks(&self) -> bool {
        matches!(self, ScheduleCommand::Fire { .. })
    }

    /// The tasks that the command carries.
    pub fn tasks(&self) -> &[NewTask] {
        match self {
            ScheduleCommand::Set { schedule, .. } => std::slice::from_ref(&schedule.template),
            ScheduleCommand::Fire { puts, .. } => puts,
            _ => &[],
        }
    }
}

/// The reply to a command for schedules.
#[derive(Clone, Debug, PartialEq)]
pub enum ScheduleReply {
    /// Whether the schedule is new.
    Set(bool),
    /// Schedules.
    Schedules(Vec<StoredSchedule>),
    /// Schedules that are due.
    Due {
        /// The wall time at which they are, by the clock of the store.
        now: Timestamp,
        /// The schedules.
        schedules: Vec<StoredSchedule>,
        /// The first time after `now` at which a schedule is due.
        next: Option<Timestamp>,
    },
    /// It was removed.
    Removed,
    /// The added tasks; `None` if another time is next or the schedule is paused: nothing was done.
    Fired(Option<Vec<Placed>>),
}
