//! Which grant a call needs.

use taskyard_core::{Command, Finish, FinishItem, Holder};
use taskyard_wire::iproto::Ask;

use super::users::{Grants, Verb};

/// Whether these grants allow it.
pub(super) fn allows(grants: &Grants, ask: &Ask) -> bool {
    if *grants == Grants::All {
        return true;
    }
    let verb = match ask {
        Ask::Put { .. } | Ask::PutMany { .. } => Verb::Put,
        Ask::Take { .. } | Ask::TakeMany { .. } => Verb::Take,
        Ask::AckMany { .. } => Verb::Ack,
        Ask::Finish { finish, .. } => finishing(*finish),
        Ask::Nothing { .. } => Verb::Touch,
        Ask::Kick { .. } => Verb::Kick,
        Ask::Peek { .. } => Verb::Peek,
        Ask::Delete { .. } => Verb::Delete,
        Ask::Truncate { .. } => Verb::Truncate,
        Ask::ReleaseAll { .. } => Verb::ReleaseAll,
        Ask::Drop { .. } => Verb::Drop,
        Ask::CreateTube { .. } => Verb::Create,
        Ask::Cfg { .. } => return grants.allows_somewhere(Verb::Cfg),
        // What grants name are tubes; of semaphores they say nothing.
        Ask::Semaphore(_) => return grants.allows_everywhere(Verb::Execute),
        Ask::Execute(commands) => {
            return grants.allows_everywhere(Verb::Execute)
                || commands.iter().all(|command| permits(grants, command));
        }
        Ask::Statistics { tube: Some(tube) } => return grants.sees(tube.as_str()),
        Ask::TubeExists { name } => return grants.sees(name),
        Ask::Statistics { tube: None } | Ask::TubeNames => return grants.sees_everything(),
        Ask::Identify { .. } | Ask::State | Ask::BoxInfo => return grants.sees_something(),
        Ask::Unclear { method, .. } => match Verb::of_method(method) {
            Some(verb) => verb,
            None => return false,
        },
    };
    ask.tube().is_some_and(|tube| grants.allows(verb, tube.as_str()))
}

const fn finishing(finish: Finish) -> Verb {
    match finish {
        Finish::Ack => Verb::Ack,
        Finish::Release { .. } => Verb::Release,
        Finish::Bury => Verb::Bury,
        Finish::Touch(_) => Verb::Touch,
    }
}

/// Whether these grants allow a command of our own client: what the call of the same name needs, so that who may work on
/// a tube may do so with it too. What no such call does needs `execute` on the tube, or, if it is about none, on all.
fn permits(grants: &Grants, command: &Command) -> bool {
    let (verb, tube) = match command {
        Command::Put { tube, .. } => (Verb::Put, tube),
        Command::Take(take) => (Verb::Take, &take.tube),
        Command::Finish { tube, items, .. } => {
            return items
                .iter()
                .all(|item| grants.allows_any(&[ending(item), Verb::Execute], tube));
        }
        Command::Kick { tube, .. } => (Verb::Kick, tube),
        Command::Delete { tube, show: false, .. } => (Verb::Delete, tube),
        Command::Truncate { tube } => (Verb::Truncate, tube),
        Command::ReleaseAll { tube } => (Verb::ReleaseAll, tube),
        Command::DropTube { tube } => (Verb::Drop, tube),
        Command::CreateTube { tube, .. } => (Verb::Create, tube),
        Command::NameTube { tube, name, .. } => {
            return [tube, name].iter().all(|tube| grants.allows_any(&[Verb::Create], tube));
        }
        Command::Tubes { tube: Some(tube) } => return grants.sees(tube.as_str()),
        Command::Tubes { tube: None } => return grants.sees_everything(),
        // Who holds a task is shown with it, and whoever knows a session can join it.
        Command::AlterTube { tube, .. }
        | Command::Delete { tube, .. }
        | Command::Peek { tube, .. }
        | Command::Deliveries { tube, .. } => (Verb::Execute, tube),
        Command::JoinSession { .. } | Command::LeaveSession { .. } => {
            return grants.sees_something();
        }
        Command::ConfigureSessions { .. } => return grants.allows_somewhere(Verb::Cfg),
        Command::Semaphore(_) | Command::Tick { .. } => return false,
    };
    grants.allows_any(&[verb, Verb::Execute], tube)
}

/// What ending a delivery needs. Who names no holder ends what others hold.
fn ending(item: &FinishItem) -> Verb {
    match (item.holder, item.finish) {
        (Holder::Any, Finish::Ack) => Verb::Delete,
        (Holder::Any, Finish::Release { .. } | Finish::Touch(_)) => Verb::ReleaseAll,
        (_, finish) => finishing(finish),
    }
}
