//! Describes what differs from the recording, and refuses what the trace does not have.

use taskyard_core::classes::{Limit, Rules, RulesError};
use taskyard_core::{Error, RateLimit};

use crate::tasks::Trace;

/// What differs from the recording. The default is nothing.
#[derive(Clone, Debug, Default)]
pub struct Scenario {
    /// The numbers of consumers.
    pub consumers: Vec<ConsumerRule>,
    /// At most so many tasks of a tube, of the tubes of a semaphore or, with classes, of a class run at once.
    pub limits: Vec<(String, u32)>,
    /// Rate limits of tubes; `None` removes one.
    pub rates: Vec<(String, Option<RateLimit>)>,
    /// Other priorities.
    pub priorities: Vec<PriorityChange>,
    /// Run all tasks in a pool with these duration classes instead of taking them from tubes.
    pub classes: Option<Rules>,
}

/// A number of consumers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerRule {
    /// The tube that they take from; `None` is all tubes without consumers of their own.
    pub tube: Option<String>,
    /// How many.
    pub count: u32,
}

/// Another priority for tasks of a tube.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PriorityChange {
    /// The tube.
    pub tube: String,
    /// Only tasks with this priority; `None` is all.
    pub from: Option<u64>,
    /// The new priority.
    pub to: u64,
}

/// Why a trace is not replayed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScenarioError {
    /// A name is not in the trace.
    #[error("the trace has no {what} '{name}'; it has {known}")]
    Unknown {
        /// What the name should be of.
        what: &'static str,
        /// The name.
        name: String,
        /// The names that exist.
        known: String,
    },
    /// Two numbers for the same thing.
    #[error("{what} of '{name}' is given twice; leave one of them out")]
    Twice {
        /// What is given twice.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A pool has backends, which all tasks share.
    #[error("with duration classes all tasks share the consumers; give one number for all tubes")]
    ClassConsumers,
    /// A pool has neither rates nor priorities.
    #[error(
        "duration classes replace tubes, so rates and priorities have no effect; leave them out"
    )]
    ClassRules,
    /// The classes are refused.
    #[error(transparent)]
    Classes(#[from] RulesError),
    /// The core refused a command.
    #[error("the rules refuse the trace: {0}")]
    Refused(#[from] Error),
}

/// How many names an error lists.
const NAMES_SHOWN: usize = 10;

impl Scenario {
    /// Refuses names that the trace does not have, and numbers that contradict each other.
    pub(super) fn check(&self, trace: &Trace) -> Result<(), ScenarioError> {
        let consumers = self.consumers.iter().filter_map(|rule| rule.tube.as_deref());
        let rates = self.rates.iter().map(|rate| rate.0.as_str());
        let priorities = self.priorities.iter().map(|change| change.tube.as_str());
        for name in consumers.clone().chain(rates.clone()).chain(priorities) {
            if !trace.tubes.iter().any(|tube| tube.name == name) {
                return Err(unknown("tube", name, names(trace)));
            }
        }
        let all = self.consumers.iter().map(|rule| rule.tube.as_deref().unwrap_or("all tubes"));
        check_once("the number of consumers", all)?;
        check_once("the rate", rates)?;
        check_once("the limit", self.limits.iter().map(|limit| limit.0.as_str()))?;
        if self.classes.is_some() {
            return self.check_classes(consumers.count());
        }
        for (name, _) in &self.limits {
            if self.limited(trace, name).next().is_none() {
                let mut known = names(trace);
                known.extend(semaphores(trace));
                return Err(unknown("tube or semaphore", name, known));
            }
        }
        Ok(())
    }

    fn check_classes(&self, tubes: usize) -> Result<(), ScenarioError> {
        if tubes > 0 {
            return Err(ScenarioError::ClassConsumers);
        }
        if !self.rates.is_empty() || !self.priorities.is_empty() {
            return Err(ScenarioError::ClassRules);
        }
        self.limited_classes().map(drop)
    }

    /// The tubes that share a limit of this name: the tube itself, and those that the semaphore gates.
    pub(super) fn limited<'a>(
        &self,
        trace: &'a Trace,
        name: &'a str,
    ) -> impl Iterator<Item = usize> + use<'a> {
        let is_limited = move |number: &usize| {
            let tube = &trace.tubes[*number];
            tube.name == name || semaphore(trace, *number) == Some(name)
        };
        (0..trace.tubes.len()).filter(is_limited)
    }

    /// The classes with the limits that are given by their names.
    pub(super) fn limited_classes(&self) -> Result<Rules, ScenarioError> {
        let Some(rules) = &self.classes else { return Ok(Rules::default()) };
        let mut classes = rules.classes().to_vec();
        for (name, limit) in &self.limits {
            let Some(class) = classes.iter_mut().find(|class| class.name == *name) else {
                let known = rules.classes().iter().map(|class| class.name.clone()).collect();
                return Err(unknown("duration class", name, known));
            };
            class.limit = Limit::Count(*limit);
        }
        let mut limited = Rules::new(classes)?;
        limited.queue_max = rules.queue_max;
        Ok(limited)
    }

    /// The number of consumers that a tube has alone.
    pub(super) fn own_consumers(&self, name: &str) -> Option<u32> {
        let own = self.consumers.iter().find(|rule| rule.tube.as_deref() == Some(name));
        own.map(|rule| rule.count)
    }

    /// The number of consumers of all tubes without their own.
    pub(super) fn shared_consumers(&self) -> Option<u32> {
        self.consumers.iter().find(|rule| rule.tube.is_none()).map(|rule| rule.count)
    }
}

/// The name of the semaphore that gates a tube.
pub(super) fn semaphore(trace: &Trace, tube: usize) -> Option<&str> {
    trace.tubes[tube].options.as_ref()?.semaphore.as_ref().map(|key| key.as_str())
}

fn names(trace: &Trace) -> Vec<String> {
    let mut names: Vec<_> = trace.tubes.iter().map(|tube| tube.name.clone()).collect();
    names.dedup();
    names
}

fn semaphores(trace: &Trace) -> Vec<String> {
    let all = (0..trace.tubes.len()).filter_map(|tube| semaphore(trace, tube));
    let mut names: Vec<_> = all.map(str::to_owned).collect();
    names.sort();
    names.dedup();
    names
}

fn unknown(what: &'static str, name: &str, mut known: Vec<String>) -> ScenarioError {
    let more = known.len().saturating_sub(NAMES_SHOWN);
    known.truncate(NAMES_SHOWN);
    let mut known = if known.is_empty() { "none".into() } else { known.join(", ") };
    if more > 0 {
        known.push_str(&format!(" and {more} more"));
    }
    ScenarioError::Unknown { what, name: name.into(), known }
}

fn check_once<'a>(
    what: &'static str,
    names: impl Iterator<Item = &'a str>,
) -> Result<(), ScenarioError> {
    let mut names: Vec<&str> = names.collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(ScenarioError::Twice { what, name: pair[0].into() }),
        None => Ok(()),
    }
}
