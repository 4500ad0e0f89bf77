//! Checks whether the grants of a user allow a call.

use taskyard_core::{Command, Finish, FinishItem, Holder, List};
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
            return grants.allows_on_all_tubes(Verb::Execute)
                || commands.iter().all(|command| allows_command(grants, command));
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
        Finish::Ack => Verb::Ack,
        Finish::Release { .. } => Verb::Release,
        Finish::Bury => Verb::Bury,
        Finish::Touch(_) => Verb::Touch,
        Finish::Fail(fail) if fail.then.delay().is_none() => Verb::Bury,
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
            return [tube, name].iter().all(|tube| grants.allows_any(&[Verb::Create], tube));
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
        Command::ConfigureSessions { .. } => return grants.allows_on_any_tube(Verb::Cfg),
        Command::Semaphore(_) | Command::Tick { .. } => return false,
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
