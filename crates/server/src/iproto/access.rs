//! Which grant a call needs.

use taskyard_core::Finish;
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
        Ask::Finish { finish, .. } => match finish {
            Finish::Ack => Verb::Ack,
            Finish::Release { .. } => Verb::Release,
            Finish::Bury => Verb::Bury,
            Finish::Touch(_) => Verb::Touch,
        },
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
        // A batch of commands may be about any tube.
        Ask::Execute(_) => return grants.allows_everywhere(Verb::Execute),
        Ask::Statistics { tube: Some(tube) } => return grants.sees(tube.as_str()),
        Ask::TubeExists { name } => return grants.sees(name),
        Ask::Statistics { tube: None } | Ask::TubeNames => return grants.sees_everything(),
        Ask::Identify { .. } | Ask::State => return grants.sees_something(),
    };
    ask.tube().is_some_and(|tube| grants.allows(verb, tube.as_str()))
}
