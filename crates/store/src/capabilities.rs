//! Describes the features and guarantees of a store; docs/stores.md is generated from these descriptions.

use taskyard_core::{Command, Error, NewTask, Overlap, RateLimit, RetryPolicy, ScheduleCommand};

use crate::Import;

/// Names of features in messages.
const UNIQUE_KEYS: &str = "unique keys";
const OWN_ATTEMPTS: &str = "attempts_max of a task";

/// The features and guarantees of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The store's name, as in its URL.
    pub name: &'static str,
    /// Whether an acknowledged task is on disk.
    pub durable: bool,
    /// Whether several servers may use it at the same time.
    pub shared: bool,
    /// Whether it has semaphores.
    pub semaphores: bool,
    /// Whether a tube may have a semaphore as its gate.
    pub gates: bool,
    /// Whether tasks may have unique keys.
    pub keys: bool,
    /// Whether tubes have retry policies, and tasks their own number of attempts.
    pub retries: bool,
    /// Whether tubes have rate limits.
    pub rates: bool,
    /// Whether it has schedules.
    pub schedules: bool,
    /// Whether it can be copied from.
    pub exports: bool,
    /// Whether it can be copied to.
    pub imports: bool,
    /// What to use instead of backups by the server; `None` if it can make them.
    pub instead_of_backup: Option<&'static str>,
    /// How soon a waiting take learns of a task.
    pub wakes: &'static str,
    /// The data that is lost by each kind of failure.
    pub loses: &'static [(&'static str, &'static str)],
}

impl Capabilities {
    /// A store with no optional feature.
    pub const fn plain(name: &'static str) -> Self {
        Capabilities {
            name,
            durable: false,
            shared: false,
            semaphores: false,
            gates: false,
            keys: false,
            retries: false,
            rates: false,
            schedules: false,
            exports: false,
            imports: false,
            instead_of_backup: Some("the backups of the database, or `taskyard copy`"),
            wakes: "",
            loses: &[],
        }
    }

    /// Refuses a command that needs a feature that the store does not have.
    pub fn check(&self, command: &Command) -> Result<(), Error> {
        if self.keys && self.retries && self.rates && self.schedules {
            return Ok(());
        }
        match command {
            Command::Put { tasks, .. } => self.check_tasks(tasks),
            Command::List(list) if list.key.is_some() => self.need(self.keys, UNIQUE_KEYS),
            Command::CreateTube { options, .. } => {
                self.check_options(options.retry.as_deref(), options.rate.as_deref())
            }
            Command::AlterTube { change, .. } => self.check_options(
                change.retry.as_ref().and_then(Option::as_deref),
                change.rate.as_ref().and_then(Option::as_deref),
            ),
            Command::Schedule(command) => self.check_schedule(command),
            _ => Ok(()),
        }
    }

    /// Refuses a part of an import that the store would not store completely.
    pub fn check_import(&self, part: &Import) -> Result<(), Error> {
        match part {
            Import::Tasks(_, records) => records.iter().try_for_each(|task| {
                self.need(self.keys || task.key.is_none(), UNIQUE_KEYS)?;
                self.need(self.retries || task.attempts_max.is_none(), OWN_ATTEMPTS)
            }),
            Import::EndedKeys(..) => self.need(self.keys, UNIQUE_KEYS),
            Import::End(end) => {
                self.need(self.schedules || end.schedules.is_empty(), "schedules")?;
                end.tubes.iter().try_for_each(|(_, copy)| {
                    let options = &copy.record.options;
                    self.check_options(options.retry.as_deref(), options.rate.as_deref())
                })
            }
        }
    }

    fn check_tasks(&self, tasks: &[NewTask]) -> Result<(), Error> {
        tasks.iter().try_for_each(|task| {
            self.need(self.keys || task.key.is_none(), UNIQUE_KEYS)?;
            self.need(self.retries || task.attempts_max.is_none(), OWN_ATTEMPTS)
        })
    }

    fn check_schedule(&self, command: &ScheduleCommand) -> Result<(), Error> {
        self.need(self.schedules, "schedules")?;
        match command {
            ScheduleCommand::Set { schedule, .. } => {
                self.need(self.keys || schedule.overlap == Overlap::Allow, "overlap `skip`")?;
                self.check_tasks(std::slice::from_ref(&schedule.template))
            }
            ScheduleCommand::Fire { puts, .. } => self.check_tasks(puts),
            _ => Ok(()),
        }
    }

    fn check_options(
        &self,
        retry: Option<&RetryPolicy>,
        rate: Option<&RateLimit>,
    ) -> Result<(), Error> {
        self.need(self.retries || retry.is_none(), "retry policies")?;
        self.need(self.rates || rate.is_none(), "rate limits")
    }

    /// The error of a store without this feature.
    pub const fn missing(&self, feature: &'static str) -> Error {
        Error::MissingFeature { store: self.name, feature }
    }

    fn need(&self, has: bool, feature: &'static str) -> Result<(), Error> {
        if has { Ok(()) } else { Err(self.missing(feature)) }
    }
}

#[cfg(test)]
mod tests {
    use taskyard_core::{Body, Kind, Span, TubeChange, TubeName, TubeOptions};

    use super::*;

    #[test]
    fn a_missing_feature_is_refused_with_the_name_of_the_store() {
        let tube = || TubeName::new("mail").expect("a good name");
        let retry = Some(Box::new(RetryPolicy::DEFAULT));
        let rate = Some(Box::new(RateLimit { count: 1, per: Span::from_secs(1), burst: 1 }));
        let plain = TubeOptions::new(Kind::Fifo);
        let create = |options| Command::CreateTube { tube: tube(), options, if_not_exists: false };
        let alter = |change| Command::AlterTube { tube: tube(), change };
        let task = NewTask { attempts_max: Some(3), ..NewTask::new(Body::new(b"x")) };
        let commands = [
            (create(TubeOptions { retry: retry.clone(), ..plain.clone() }), "retry policies"),
            (create(TubeOptions { rate: rate.clone(), ..plain.clone() }), "rate limits"),
            (alter(TubeChange { retry: Some(retry), ..TubeChange::default() }), "retry policies"),
            (alter(TubeChange { rate: Some(rate), ..TubeChange::default() }), "rate limits"),
            (
                Command::Put { tube: tube(), tasks: vec![task], wait: Span::ZERO },
                "attempts_max of a task",
            ),
            (Command::Schedule(Box::new(ScheduleCommand::Due { skip: 0, limit: 1 })), "schedules"),
        ];
        let none = Capabilities::plain("redis");
        let all = Capabilities { keys: true, retries: true, rates: true, schedules: true, ..none };
        for (command, feature) in commands {
            let refused = Err(Error::MissingFeature { store: "redis", feature });
            assert_eq!(none.check(&command), refused, "{command:?}");
            assert_eq!(all.check(&command), Ok(()), "{command:?}");
        }
        let removes = TubeChange { retry: Some(None), rate: Some(None), ..TubeChange::default() };
        for command in [create(plain), alter(removes)] {
            assert_eq!(none.check(&command), Ok(()), "{command:?}");
        }
    }
}
