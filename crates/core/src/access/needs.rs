//! Which rights a command needs.

use std::fmt;

use super::verb::{AccessVerb, VerbSet};
use crate::command::{AfterFailure, Command, Finish, FinishItem, Holder, List};
use crate::search::Search;
use crate::semaphore::SemaphoreCommand;
use crate::stored_schedule::ScheduleCommand;
use crate::tube::TubeChange;

/// What a verb is applied to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessTarget<'a> {
    /// The tube of this name.
    Tube(&'a str),
    /// The semaphore of this name.
    Semaphore(&'a str),
    /// The schedule of this name.
    Schedule(&'a str),
    /// Any name: what is not visible is left out of the reply.
    Any,
    /// Every name.
    All,
}

impl fmt::Display for AccessTarget<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AccessTarget::Tube(name) => write!(f, "tube '{name}'"),
            AccessTarget::Semaphore(name) => write!(f, "semaphore '{name}'"),
            AccessTarget::Schedule(name) => write!(f, "schedule '{name}'"),
            AccessTarget::Any => f.write_str("any tube"),
            AccessTarget::All => f.write_str("all tubes (the pattern '*')"),
        }
    }
}

/// Passes every right that a command needs to `check`, which ends at the first error.
pub fn for_each_need<'a, E>(
    command: &'a Command,
    mut check: impl FnMut(AccessVerb, AccessTarget<'a>) -> Result<(), E>,
) -> Result<(), E> {
    use AccessTarget::{All, Any, Tube};
    use AccessVerb as Verb;
    let (verb, tube) = match command {
        Command::CreateTube { tube, options, .. } => {
            // Tasks of the tube use the grants of its semaphore.
            if let Some(key) = &options.semaphore {
                check(Verb::UseSemaphore, AccessTarget::Semaphore(key.as_str()))?;
            }
            (Verb::CreateTube, tube)
        }
        Command::AlterTube { tube, change } => (verb_of_change(change), tube),
        Command::NameTube { tube, name, .. } => {
            check(Verb::NameTube, Tube(tube.as_str()))?;
            (Verb::NameTube, name)
        }
        Command::DropTube { tube } => (Verb::DropTube, tube),
        Command::Tubes { tube: Some(tube) } | Command::Positions { tube, .. } => {
            (Verb::ShowTube, tube)
        }
        Command::Tubes { tube: None } => return check(Verb::ShowTube, Any),
        Command::Put { tube, .. } => (Verb::Put, tube),
        Command::Take(take) => (Verb::Take, &take.tube),
        Command::Finish { tube, items, .. } => {
            let verbs: VerbSet = items.iter().map(verb_of_item).collect();
            // Without an item nothing is finished, but the reply says whether the tube exists.
            check(Verb::ShowTube, Tube(tube.as_str()))?;
            return verbs.iter().try_for_each(|verb| check(verb, Tube(tube.as_str())));
        }
        Command::Kick { tube, .. } | Command::KickTasks { tube, .. } => (Verb::Kick, tube),
        Command::Delete { tube, show, .. } => {
            if *show {
                check(Verb::ShowHolders, Tube(tube.as_str()))?;
            }
            (Verb::Delete, tube)
        }
        Command::Peek { tube, .. }
        | Command::List(List { tube, .. })
        | Command::Search(Search { tube, .. }) => {
            check(Verb::ShowHolders, Tube(tube.as_str()))?;
            (Verb::Peek, tube)
        }
        Command::Deliveries { tube, .. } => (Verb::ShowHolders, tube),
        Command::Truncate { tube } => (Verb::Truncate, tube),
        Command::ReleaseAll { tube } => (Verb::ReleaseAll, tube),
        Command::JoinSession { .. } | Command::LeaveSession { .. } => {
            return check(Verb::Session, Any);
        }
        Command::ConfigureSessions { .. } => return check(Verb::ConfigureSessions, All),
        Command::Semaphore(command) => {
            let (verb, target) = need_of_semaphore(command);
            return check(verb, target);
        }
        Command::Schedule(command) => return needs_of_schedule(command, check),
        Command::Tick { .. } => return check(Verb::RunServer, All),
    };
    check(verb, Tube(tube.as_str()))
}

/// A change of nothing but the pause is not a change of the options.
pub(super) fn verb_of_change(change: &TubeChange) -> AccessVerb {
    let pause = TubeChange { paused: change.paused, ..TubeChange::default() };
    match change.paused {
        Some(_) if *change == pause => AccessVerb::PauseTube,
        _ => AccessVerb::AlterTube,
    }
}

/// An item without a holder ends the delivery of any consumer.
pub(super) fn verb_of_item(item: &FinishItem) -> AccessVerb {
    let verb = match &item.finish {
        Finish::Ack | Finish::AckWithResult(_) => AccessVerb::Ack,
        Finish::Release { .. } => AccessVerb::Release,
        Finish::Bury => AccessVerb::Bury,
        Finish::Touch(_) => AccessVerb::Touch,
        Finish::Fail(fail) if fail.then == AfterFailure::Bury => AccessVerb::Bury,
        Finish::Fail(_) => AccessVerb::Release,
    };
    match (item.holder, verb) {
        (Holder::Any, AccessVerb::Ack) => AccessVerb::Delete,
        (Holder::Any, AccessVerb::Release | AccessVerb::Touch) => AccessVerb::ReleaseAll,
        (Holder::Any, AccessVerb::Bury) => AccessVerb::BuryAny,
        (_, verb) => verb,
    }
}

fn need_of_semaphore(command: &SemaphoreCommand) -> (AccessVerb, AccessTarget<'_>) {
    let (verb, key) = match command {
        SemaphoreCommand::Configure { key, .. } | SemaphoreCommand::Drop { key, .. } => {
            (AccessVerb::ConfigureSemaphore, key)
        }
        SemaphoreCommand::Enqueue { key, .. } | SemaphoreCommand::Finish { key, .. } => {
            (AccessVerb::UseSemaphore, key)
        }
        SemaphoreCommand::Peek { key, .. } | SemaphoreCommand::Members { key, .. } => {
            (AccessVerb::ShowSemaphore, key)
        }
        SemaphoreCommand::List { key: Some(key) } => (AccessVerb::ShowSemaphore, key),
        SemaphoreCommand::List { key: None } => {
            return (AccessVerb::ShowSemaphore, AccessTarget::Any);
        }
        SemaphoreCommand::Events { key: Some(key), .. } => (AccessVerb::UseSemaphore, key),
        // Events of other semaphores would be delayed for their listeners, and an acknowledgement
        // does not say to which semaphore its events belong.
        SemaphoreCommand::Events { key: None, .. } | SemaphoreCommand::Acknowledge { .. } => {
            return (AccessVerb::UseSemaphore, AccessTarget::All);
        }
    };
    (verb, AccessTarget::Semaphore(key.as_str()))
}

fn needs_of_schedule<'a, E>(
    command: &'a ScheduleCommand,
    mut check: impl FnMut(AccessVerb, AccessTarget<'a>) -> Result<(), E>,
) -> Result<(), E> {
    use AccessTarget::{All, Schedule, Tube};
    match command {
        ScheduleCommand::Set { schedule, .. } => {
            check(AccessVerb::SetSchedule, Schedule(schedule.name.as_str()))?;
            check(AccessVerb::Put, Tube(schedule.tube.as_str()))
        }
        ScheduleCommand::Get { name } => check(AccessVerb::ShowSchedule, Schedule(name.as_str())),
        // A page without the names that are not visible would look like the last one.
        ScheduleCommand::List { .. } => check(AccessVerb::ShowSchedule, All),
        ScheduleCommand::Remove { name } => check(AccessVerb::SetSchedule, Schedule(name.as_str())),
        ScheduleCommand::Pause { name, .. } => {
            check(AccessVerb::PauseSchedule, Schedule(name.as_str()))
        }
        ScheduleCommand::Due { .. } | ScheduleCommand::Fire { .. } => {
            check(AccessVerb::RunServer, All)
        }
    }
}
