//! Which commands get an audit entry, and what the entry says about them.

use super::needs::{AccessTarget, verb_of_change, verb_of_item};
use super::verb::AccessVerb;
use crate::command::{AfterFailure, Command, Finish, FinishItem, Outcome, Placed, Reply};
use crate::semaphore::SemaphoreCommand;
use crate::stored_schedule::{ScheduleCommand, ScheduleReply};

/// An action that gets an audit entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditedAction<'a> {
    /// The row of the table.
    pub verb: AccessVerb,
    /// The name of the action in the entry.
    pub name: &'static str,
    /// What it is applied to.
    pub target: AccessTarget<'a>,
    /// The number of tasks that the command names.
    pub ids: Option<usize>,
}

/// The action of a command that gets an audit entry. Commands of producers and consumers have none;
/// to find that out costs no memory.
#[inline]
pub fn audited_action(command: &Command) -> Option<AuditedAction<'_>> {
    let action = match command {
        Command::Put { .. } | Command::Take(_) => return None,
        Command::Finish { tube, items, .. } => {
            let (verb, name) = action_of_items(items)?;
            let target = AccessTarget::Tube(tube.as_str());
            AuditedAction { verb, name, target, ids: Some(items.len()) }
        }
        command => other_action(command)?,
    };
    Some(action).filter(|action| action.verb.is_audited())
}

/// The first audited verb of the items, and the name of their action: of different ones `finish`.
fn action_of_items(items: &[FinishItem]) -> Option<(AccessVerb, &'static str)> {
    let mut audited = items.iter().filter(|item| verb_of_item(item).is_audited());
    let first = audited.next()?;
    let name = name_of_finish(&first.finish);
    let is_same = audited.all(|item| name_of_finish(&item.finish) == name);
    Some((verb_of_item(first), if is_same { name } else { "finish" }))
}

fn name_of_finish(finish: &Finish) -> &'static str {
    match finish {
        Finish::Ack | Finish::AckWithResult(_) => "ack",
        Finish::Release { .. } => "release",
        Finish::Bury => "bury",
        Finish::Touch(_) => "touch",
        Finish::Fail(fail) if fail.then == AfterFailure::Bury => "bury",
        Finish::Fail(_) => "fail",
    }
}

fn other_action(command: &Command) -> Option<AuditedAction<'_>> {
    use AccessVerb as Verb;
    let mut named = None;
    let (verb, name, tube) = match command {
        Command::CreateTube { tube, .. } => (Verb::CreateTube, "create_tube", tube),
        Command::AlterTube { tube, change } => {
            let verb = verb_of_change(change);
            let name = match (verb, change.paused) {
                (Verb::PauseTube, Some(true)) => "pause_tube",
                (Verb::PauseTube, _) => "resume_tube",
                _ => "alter_tube",
            };
            (verb, name, tube)
        }
        Command::NameTube { tube, .. } => (Verb::NameTube, "name_tube", tube),
        Command::DropTube { tube } => (Verb::DropTube, "drop_tube", tube),
        Command::Kick { tube, .. } => (Verb::Kick, "kick", tube),
        Command::KickTasks { tube, ids, .. } => {
            named = Some(ids.len());
            (Verb::Kick, "kick", tube)
        }
        Command::Delete { tube, ids, .. } => {
            named = Some(ids.len());
            (Verb::Delete, "delete", tube)
        }
        Command::Truncate { tube } => (Verb::Truncate, "truncate", tube),
        Command::ReleaseAll { tube } => (Verb::ReleaseAll, "release_all", tube),
        Command::ConfigureSessions { .. } => {
            let (verb, name) = (Verb::ConfigureSessions, "configure_sessions");
            return Some(AuditedAction { verb, name, target: AccessTarget::All, ids: None });
        }
        Command::Semaphore(command) => return semaphore_action(command),
        Command::Schedule(command) => return schedule_action(command),
        Command::Put { .. }
        | Command::Take(_)
        | Command::Finish { .. }
        | Command::Tubes { .. }
        | Command::Peek { .. }
        | Command::Deliveries { .. }
        | Command::List(_)
        | Command::Search(_)
        | Command::Positions { .. }
        | Command::JoinSession { .. }
        | Command::LeaveSession { .. }
        | Command::Tick { .. } => return None,
    };
    Some(AuditedAction { verb, name, target: AccessTarget::Tube(tube.as_str()), ids: named })
}

fn semaphore_action(command: &SemaphoreCommand) -> Option<AuditedAction<'_>> {
    let (name, key) = match command {
        SemaphoreCommand::Configure { key, .. } => ("set_semaphore", key),
        SemaphoreCommand::Drop { key, .. } => ("drop_semaphore", key),
        SemaphoreCommand::Enqueue { .. }
        | SemaphoreCommand::Finish { .. }
        | SemaphoreCommand::Peek { .. }
        | SemaphoreCommand::Members { .. }
        | SemaphoreCommand::List { .. }
        | SemaphoreCommand::Events { .. }
        | SemaphoreCommand::Acknowledge { .. } => return None,
    };
    let (verb, target) = (AccessVerb::ConfigureSemaphore, AccessTarget::Semaphore(key.as_str()));
    Some(AuditedAction { verb, name, target, ids: None })
}

fn schedule_action(command: &ScheduleCommand) -> Option<AuditedAction<'_>> {
    let (verb, name, schedule) = match command {
        ScheduleCommand::Set { schedule, .. } => {
            (AccessVerb::SetSchedule, "set_schedule", &schedule.name)
        }
        ScheduleCommand::Remove { name } => (AccessVerb::SetSchedule, "remove_schedule", name),
        ScheduleCommand::Pause { name, paused: true } => {
            (AccessVerb::PauseSchedule, "pause_schedule", name)
        }
        ScheduleCommand::Pause { name, paused: false } => {
            (AccessVerb::PauseSchedule, "resume_schedule", name)
        }
        // Servers fire schedules without a request; one that a client sends is an action of an administrator.
        ScheduleCommand::Fire { name, .. } => (AccessVerb::RunSchedule, "run_schedule", name),
        ScheduleCommand::Get { .. }
        | ScheduleCommand::List { .. }
        | ScheduleCommand::Due { .. } => {
            return None;
        }
    };
    let target = AccessTarget::Schedule(schedule.as_str());
    Some(AuditedAction { verb, name, target, ids: None })
}

/// How many tasks a command has changed, if its reply shows that.
pub fn changed_tasks(reply: &Reply) -> Option<u64> {
    match reply {
        Reply::Finished(outcomes) => {
            let done = outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Done(_)));
            Some(done.count() as u64)
        }
        Reply::Kicked(count) => Some(*count),
        Reply::Put(placed) => Some(added(placed)),
        Reply::Schedule(ScheduleReply::Fired(placed)) => Some(placed.as_deref().map_or(0, added)),
        _ => None,
    }
}

fn added(placed: &[Placed]) -> u64 {
    placed.iter().filter(|placed| !placed.existing).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::for_each_need;
    use crate::command::{Holder, Take};
    use crate::lease::Lease;
    use crate::semaphore::{SemaphoreChange, SemaphoreKey};
    use crate::stored_schedule::ScheduleName;
    use crate::task::TaskId;
    use crate::time::{Span, Timestamp};
    use crate::tube::{Kind, TubeChange, TubeName, TubeOptions};

    fn tube() -> TubeName {
        TubeName::new("mail").unwrap()
    }

    fn finish(holder: Holder, finishes: &[Finish]) -> Command {
        let item = |finish: &Finish| FinishItem { id: TaskId(0), holder, finish: finish.clone() };
        let items = finishes.iter().map(item).collect();
        Command::Finish { tube: tube(), items, show: false }
    }

    fn name_of(command: &Command) -> Option<&'static str> {
        audited_action(command).map(|action| action.name)
    }

    #[test]
    fn work_with_own_deliveries_is_not_audited() {
        let take = Take {
            tube: tube(),
            count: 1,
            session: None,
            lease: None,
            worker: None,
            wait: Span::ZERO,
        };
        let release = Finish::Release { delay: Span::ZERO, counted: true };
        let all = [
            Finish::Ack,
            release.clone(),
            Finish::Touch(Span::ZERO),
            Finish::Bury,
            Finish::fail("no route", None),
            Finish::fail_by_policy("no route", 1),
        ];
        let own = finish(Holder::Lease(Lease(1)), &all);
        for command in [
            Command::Put { tube: tube(), tasks: Vec::new(), wait: Span::ZERO },
            Command::Take(take),
            own,
            finish(Holder::Any, &[]),
            Command::Tubes { tube: None },
            Command::Peek { tube: tube(), ids: vec![TaskId(0)] },
            Command::Tick { limit: 1, seed: 0 },
        ] {
            assert_eq!(name_of(&command), None, "{command:?}");
        }
        for (finishes, name) in [
            (&all[..1], "ack"),
            (&all[1..2], "release"),
            (&all[2..3], "touch"),
            (&all[3..5], "bury"),
            (&all[5..], "fail"),
            (&all[..], "finish"),
        ] {
            assert_eq!(name_of(&finish(Holder::Any, finishes)), Some(name));
        }
    }

    #[test]
    fn an_action_names_its_target_and_its_tasks() {
        let change = |paused| TubeChange { paused, ..TubeChange::default() };
        let alter = |change| Command::AlterTube { tube: tube(), change };
        let options = TubeOptions::new(Kind::FifoTtl);
        for (command, name, ids) in [
            (Command::Kick { tube: tube(), count: 3 }, "kick", None),
            (
                Command::Delete { tube: tube(), ids: vec![TaskId(1); 4], show: false },
                "delete",
                Some(4),
            ),
            (alter(change(Some(true))), "pause_tube", None),
            (alter(change(Some(false))), "resume_tube", None),
            (alter(change(None)), "alter_tube", None),
            (
                Command::CreateTube { tube: tube(), options, if_not_exists: true },
                "create_tube",
                None,
            ),
            (Command::DropTube { tube: tube() }, "drop_tube", None),
            (Command::Truncate { tube: tube() }, "truncate", None),
            (Command::ReleaseAll { tube: tube() }, "release_all", None),
        ] {
            let action = audited_action(&command).unwrap();
            assert_eq!((action.name, action.ids), (name, ids));
            assert_eq!(action.target, AccessTarget::Tube("mail"));
        }
        let key = SemaphoreKey::new("gpu").unwrap();
        let change = Box::new(SemaphoreChange::default());
        let set = SemaphoreCommand::Configure { key, change, only_new: false };
        let set = Command::Semaphore(set);
        let action = audited_action(&set).unwrap();
        assert_eq!((action.name, action.target), ("set_semaphore", AccessTarget::Semaphore("gpu")));
        let name = ScheduleName::new("nightly").unwrap();
        let remove = Command::Schedule(Box::new(ScheduleCommand::Remove { name }));
        let action = audited_action(&remove).unwrap();
        assert_eq!(action.target, AccessTarget::Schedule("nightly"));
        let (name, expected) = (ScheduleName::new("nightly").unwrap(), Timestamp::from_micros(1));
        let fire =
            ScheduleCommand::Fire { name, expected, next: None, puts: Vec::new(), skipped: 0 };
        assert_eq!(name_of(&Command::Schedule(Box::new(fire))), Some("run_schedule"));
    }

    // A command whose rights have an audited verb has an entry, and no other command has one but the firing of a schedule, which
    // needs the rights of a server.
    #[test]
    fn the_verbs_of_the_rights_decide() {
        let release = Finish::Release { delay: Span::ZERO, counted: true };
        for command in [
            Command::Kick { tube: tube(), count: 1 },
            Command::ConfigureSessions { ttr: Span::ZERO },
            Command::Deliveries { tube: tube(), count: 1 },
            Command::Tubes { tube: Some(tube()) },
            finish(Holder::Any, std::slice::from_ref(&release)),
            finish(Holder::Lease(Lease(1)), &[release, Finish::Bury]),
            Command::NameTube { tube: tube(), name: tube(), queue_num: None },
        ] {
            let mut is_audited = false;
            let check = |verb: AccessVerb, _: AccessTarget<'_>| {
                is_audited |= verb.is_audited();
                Ok::<(), ()>(())
            };
            for_each_need(&command, check).unwrap();
            assert_eq!(audited_action(&command).is_some(), is_audited, "{command:?}");
        }
    }

    #[test]
    fn a_reply_counts_the_tasks_that_changed() {
        let outcomes = vec![Outcome::Done(None), Outcome::Stale, Outcome::Missing];
        assert_eq!(changed_tasks(&Reply::Finished(outcomes)), Some(1));
        assert_eq!(changed_tasks(&Reply::Kicked(7)), Some(7));
        assert_eq!(changed_tasks(&Reply::Schedule(ScheduleReply::Fired(None))), Some(0));
        assert_eq!(changed_tasks(&Reply::Nothing), None);
    }
}
