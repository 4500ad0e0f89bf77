//! Checks whether the rights of a user allow a call.

use taskyard_core::access::{AccessTarget, AccessVerb, Denied, Permissions, for_each_need};
use taskyard_iproto::{Call, CallAction};

/// Refuses a call that these rights do not allow.
pub(super) fn check(permissions: &Permissions, call: &Call) -> Result<(), Denied> {
    if *permissions == Permissions::All {
        return Ok(());
    }
    match &call.action {
        CallAction::Command(command, _) => for_each_need(command, |verb, target| match verb {
            // The answer to a call shows a task without its session, unlike a native reply.
            AccessVerb::ShowHolders => Ok(()),
            _ => permissions.require(verb, target),
        }),
        CallAction::Batch(commands) => {
            commands.iter().try_for_each(|command| permissions.check(command))
        }
        // The right to put into its tube is checked when the tube is known.
        CallAction::RunSchedule { name } => {
            permissions.require(AccessVerb::RunSchedule, AccessTarget::Schedule(name.as_str()))
        }
        CallAction::TubeExists { name } => {
            permissions.require(AccessVerb::ShowTube, AccessTarget::Tube(name))
        }
        CallAction::Identify { .. }
        | CallAction::Worker { .. }
        | CallAction::State
        | CallAction::BoxInfo => permissions.require(AccessVerb::Session, AccessTarget::Any),
        CallAction::NoSettings => {
            permissions.require(AccessVerb::ConfigureSessions, AccessTarget::All)
        }
        CallAction::DependsOnKind { tube, .. } => {
            permissions.require(verb_of_method(call.function), AccessTarget::Tube(tube.as_str()))
        }
    }
}

/// The verb of a method whose arguments are not parsed yet. A method that is not listed needs all
/// rights.
pub(super) fn verb_of_method(method: &str) -> AccessVerb {
    match method {
        "put" | "put_many" => AccessVerb::Put,
        "take" | "take_many" => AccessVerb::Take,
        "ack" | "ack_many" => AccessVerb::Ack,
        "release" | "fail" => AccessVerb::Release,
        "touch" => AccessVerb::Touch,
        "bury" => AccessVerb::Bury,
        "kick" => AccessVerb::Kick,
        "peek" | "list" => AccessVerb::Peek,
        "delete" => AccessVerb::Delete,
        "truncate" => AccessVerb::Truncate,
        "release_all" => AccessVerb::ReleaseAll,
        "drop" => AccessVerb::DropTube,
        _ => AccessVerb::RunServer,
    }
}
