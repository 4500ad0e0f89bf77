//! Checks whether the grants of a user allow a call.

use taskyard_core::{AfterFailure, Command, Finish, FinishItem, Holder, List};
use taskyard_iproto::{Call, CallAction, ReplyForm};

use super::users::{Grants, Verb};

/// Whether these grants allow the call.
pub(super) fn allows(grants: &Grants, call: &Call) -> bool {
    if *grants == Grants::All {
        return true;
    }
    let tube = match &call.action {
        CallAction::Command(command, form) => match (command, form) {
            (Command::CreateTube { tube, .. }, _) => {
                return grants.allows(Verb::Create, tube.as_str());
            }
            (Command::ConfigureSessions { .. }, _) => return grants.allows_on_any_tube(Verb::Cfg),
            // Grants name tubes, not semaphores.
            (Command::Semaphore(_), _) => return grants.allows_on_all_tubes(Verb::Execute),
            (Command::Tubes { tube: None }, _) => return grants.can_see_all(),
            (Command::Tubes { tube: Some(tube) }, ReplyForm::Statistics) => {
                return grants.can_see(tube.as_str());
            }
            _ => call.tube(),
        },
        CallAction::Batch(commands) => {
            return commands.iter().all(|command| allows_command(grants, command));
        }
        CallAction::TubeExists { name } => return grants.can_see(name),
        CallAction::Identify { .. }
        | CallAction::Worker { .. }
        | CallAction::State
        | CallAction::BoxInfo => return grants.allows_anything(),
        CallAction::NoSettings => return grants.allows_on_any_tube(Verb::Cfg),
        CallAction::DependsOnKind { tube, .. } => Some(tube),
    };
    let verb = Verb::of_method(call.function);
    verb.zip(tube).is_some_and(|(verb, tube)| grants.allows(verb, tube.as_str()))
}

fn verb_of_finish(finish: &Finish) -> Verb {
    match finish {
        Finish::Ack | Finish::AckWithResult(_) => Verb::Ack,
        Finish::Release { .. } => Verb::Release,
        Finish::Bury => Verb::Bury,
        Finish::Touch(_) => Verb::Touch,
        Finish::Fail(fail) if fail.then == AfterFailure::Bury => Verb::Bury,
        Finish::Fail(_) => Verb::Release,
    }
}

/// Whether these grants allow a native command. It needs the same grant as the call of the same
/// name, so that a user who may work on a tube can do so with any client. A command without such a
/// call needs `execute` on its tube, or on all tubes if it names none.
fn allows_command(grants: &Grants, command: &Command) -> bool {
    let (verb, tube) = match command {
        Command::Put { tube, .. } => (Verb::Put, tube),
        Command::Take(take) => (Verb::Take, &take.tube),
        Command::Finish { tube, items, .. } => {
            return items
                .iter()
                .all(|item| grants.allows_any(&[verb_of_item(item), Verb::Execute], tube));
        }
        Command::Kick { tube, .. } | Command::KickTasks { tube, .. } => (Verb::Kick, tube),
        Command::Delete { tube, show: false, .. } => (Verb::Delete, tube),
        Command::Truncate { tube } => (Verb::Truncate, tube),
        Command::ReleaseAll { tube } => (Verb::ReleaseAll, tube),
        Command::DropTube { tube } => (Verb::Drop, tube),
        Command::CreateTube { tube, .. } => (Verb::Create, tube),
        Command::NameTube { tube, name, .. } => {
            let create: &[Verb] = match grants.allows_on_all_tubes(Verb::Execute) {
                true => &[Verb::Create, Verb::Execute],
                false => &[Verb::Create],
            };
            return [tube, name].iter().all(|tube| grants.allows_any(create, tube));
        }
        Command::Tubes { tube: Some(tube) } => return grants.can_see(tube.as_str()),
        Command::Tubes { tube: None } => return grants.can_see_all(),
        // The reply shows the session that holds a task, and a client that knows a session can join
        // it.
        Command::AlterTube { tube, .. }
        | Command::Delete { tube, .. }
        | Command::Peek { tube, .. }
        | Command::Deliveries { tube, .. }
        | Command::List(List { tube, .. }) => (Verb::Execute, tube),
        Command::JoinSession { .. } | Command::LeaveSession { .. } => {
            return grants.allows_anything();
        }
        Command::ConfigureSessions { .. } => {
            return grants.allows_on_any_tube(Verb::Cfg)
                || grants.allows_on_all_tubes(Verb::Execute);
        }
        Command::Semaphore(_) | Command::Schedule(_) | Command::Tick { .. } => {
            return grants.allows_on_all_tubes(Verb::Execute);
        }
    };
    grants.allows_any(&[verb, Verb::Execute], tube)
}

/// The verb that ending a delivery needs. An item without a holder ends deliveries of other
/// sessions.
fn verb_of_item(item: &FinishItem) -> Verb {
    match (item.holder, verb_of_finish(&item.finish)) {
        (Holder::Any, Verb::Ack) => Verb::Delete,
        (Holder::Any, Verb::Release | Verb::Touch) => Verb::ReleaseAll,
        (_, verb) => verb,
    }
}

#[cfg(test)]
mod tests {
    use taskyard_core::{Lease, Span, TaskId, TubeName};

    use super::*;

    #[test]
    fn a_failure_by_policy_needs_the_grant_to_release() {
        let finish = Finish::fail_by_policy("no route", 1);
        let verb =
            |holder| verb_of_item(&FinishItem { id: TaskId(0), holder, finish: finish.clone() });
        assert_eq!(verb(Holder::Lease(Lease(1))), Verb::Release);
        assert_eq!(verb(Holder::Any), Verb::ReleaseAll);
    }
    use crate::iproto::users::Grant;
    use crate::tube_owners::owner_tube;

    // A user that may execute native commands on all tubes could have removed the entries that
    // count the user's tubes.
    #[test]
    fn execute_on_all_tubes_allows_everything_but_the_owners_of_tubes() {
        let grants = Grants::List(vec![Grant::new("*", &[Verb::Execute])]);
        let name = |from: &TubeName, to: &TubeName| Command::NameTube {
            tube: from.clone(),
            name: to.clone(),
            queue_num: None,
        };
        let (mail, owners) = (TubeName::new("mail").unwrap(), owner_tube("ann"));
        for command in [
            Command::Truncate { tube: mail.clone() },
            name(&mail, &mail),
            Command::ConfigureSessions { ttr: Span::ZERO },
            Command::Tick { limit: 1, seed: 0 },
        ] {
            assert!(allows_command(&grants, &command), "{command:?}");
        }
        for command in
            [Command::Truncate { tube: owners.clone() }, name(&mail, &owners), name(&owners, &mail)]
        {
            assert!(!allows_command(&grants, &command), "{command:?}");
        }
    }
}
