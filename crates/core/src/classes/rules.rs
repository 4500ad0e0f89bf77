//! The settings of an operator: the classes, their limits, and how a victim is chosen.

use crate::classes::Policy;
use crate::classes::load::ClassCounts;
use crate::limits::{CLASSES_MAX, POOL_QUEUE_MAX};
use crate::time::Span;

/// How long tasks of a class may run, and how many of them and of longer ones at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// Its name in all interfaces.
    pub name: String,
    /// How long its tasks may run.
    pub duration: Span,
    /// How many tasks of this class and of longer ones may run at once.
    pub limit: Limit,
}

impl Class {
    /// A class with this name, time and limit.
    pub fn new(name: &str, duration: Span, limit: Limit) -> Self {
        Class { name: name.into(), duration, limit }
    }
}

/// How many tasks may run at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// This many.
    Count(u32),
    /// This share of the live backends, at least one.
    Percent(u32),
}

/// Classes whose durations grow and whose limits do not.
///
/// That the limits are nested is what makes estimates depend on earlier tasks alone, so rules that
/// are not are refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    classes: Vec<Class>,
    /// Which task is lowered or halted when several could be.
    pub policy: Policy,
    /// Whether an interactive task is spared while a lowered one is about to end.
    pub patient: bool,
    /// Maximum number of waiting tasks.
    pub queue_max: usize,
    /// How long a task may wait before it is denied; `None` for no limit.
    pub wait_max: Option<Span>,
}

/// Why rules are refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RulesError {
    /// There is no class, or there are too many.
    #[error("there must be 1 to {CLASSES_MAX} classes")]
    ClassCount,
    /// A class does not last longer than the one before it.
    #[error("class {0:?} must last longer than the class before it")]
    Duration(String),
    /// A class may have more tasks than the one before it.
    #[error("class {0:?} must not have a higher limit than the class before it")]
    Unsorted(String),
    /// No task of the class could ever run.
    #[error("the limit of class {0:?} must be at least 1 or 1 %, and at most 100 %")]
    Limit(String),
    /// The first limit is not the number of backends.
    #[error("the first class, {0:?}, has the limit 100 %: each backend runs one task")]
    First(String),
    /// Two classes have one name.
    #[error("two classes are named {0:?}")]
    Name(String),
}

impl Rules {
    /// Rules with these classes; refused unless durations grow and limits do not.
    pub fn new(classes: Vec<Class>) -> Result<Self, RulesError> {
        let first = classes.first().ok_or(RulesError::ClassCount)?;
        if classes.len() > CLASSES_MAX {
            return Err(RulesError::ClassCount);
        }
        if first.limit != Limit::Percent(100) {
            return Err(RulesError::First(first.name.clone()));
        }
        let mut before: Option<&Class> = None;
        for (at, class) in classes.iter().enumerate() {
            check(class, before)?;
            if classes[..at].iter().any(|other| other.name == class.name) {
                return Err(RulesError::Name(class.name.clone()));
            }
            before = Some(class);
        }
        Ok(Rules { classes, ..Rules::default() })
    }

    /// The classes, shortest first.
    pub fn classes(&self) -> &[Class] {
        &self.classes
    }

    /// The limit of each class with this many backends.
    pub fn limits(&self, backends: u32) -> ClassCounts {
        let mut limits = ClassCounts::new(self.classes.len());
        let mut above = backends;
        for (at, class) in self.classes.iter().enumerate() {
            let wanted = match class.limit {
                Limit::Count(count) => count,
                Limit::Percent(percent) => share(percent, backends),
            };
            above = wanted.min(above);
            limits.set(at, above);
        }
        limits
    }

    /// The shortest class in which a task may run this long; beyond the last class it is the last.
    pub fn class_for(&self, duration: Span) -> u8 {
        let fits = self.classes.iter().position(|class| class.duration >= duration);
        fits.unwrap_or(self.classes.len() - 1) as u8
    }

    /// How long a task of this class may run.
    pub fn duration(&self, class: u8) -> Span {
        self.classes[usize::from(class)].duration
    }

    /// The longest time any task may run.
    pub fn longest(&self) -> Span {
        self.duration((self.classes.len() - 1) as u8)
    }
}

/// fast 3 s, medium 10 s, slow 30 s with 100 %, 50 % and 25 % of the backends.
impl Default for Rules {
    fn default() -> Self {
        let classes = vec![
            Class::new("fast", Span::from_secs(3), Limit::Percent(100)),
            Class::new("medium", Span::from_secs(10), Limit::Percent(50)),
            Class::new("slow", Span::from_secs(30), Limit::Percent(25)),
        ];
        let (policy, patient) = (Policy::Random, false);
        Rules { classes, policy, patient, queue_max: POOL_QUEUE_MAX, wait_max: None }
    }
}

fn check(class: &Class, before: Option<&Class>) -> Result<(), RulesError> {
    let name = || class.name.clone();
    if matches!(class.limit, Limit::Count(0) | Limit::Percent(0 | 101..)) {
        return Err(RulesError::Limit(name()));
    }
    if before.map_or(Span::ZERO, |before| before.duration) >= class.duration {
        return Err(RulesError::Duration(name()));
    }
    // A count beside a percentage is compared when the number of backends is known.
    let grows = match (before.map(|before| before.limit), class.limit) {
        (Some(Limit::Count(before)), Limit::Count(after)) => after > before,
        (Some(Limit::Percent(before)), Limit::Percent(after)) => after > before,
        _ => false,
    };
    if grows { Err(RulesError::Unsorted(name())) } else { Ok(()) }
}

fn share(percent: u32, backends: u32) -> u32 {
    let share = u64::from(percent) * u64::from(backends) / 100;
    (share as u32).max(1)
}
