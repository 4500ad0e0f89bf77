//! The errors of the queue, with the numbers and texts that its clients know.

use std::borrow::Cow;

use taskyard_core::{Error, Kind, TaskId};

use super::reply::Fault;

/// The number of errors that the queue's own code raises.
pub const LUA: u32 = 32;

/// The number of an error after which it is not known whether the request was done. Tarantool has no number for that; its
/// own are far below.
pub const OUTCOME_UNKNOWN: u32 = 20_001;

/// The number of errors about bytes that are not well-formed.
pub(super) const MALFORMED: u32 = 20;

/// How much of what somebody sent is repeated in a text, in bytes.
const SHOWN_BYTES_MAX: usize = 200;

/// An error with the number of the queue's own errors.
pub fn lua(text: impl Into<Cow<'static, str>>) -> Fault {
    Fault::new(LUA, text)
}

/// What somebody sent, as far as a text repeats it: an answer must not be as large as any name can be.
pub fn shown(sent: &str) -> Cow<'_, str> {
    if sent.len() <= SHOWN_BYTES_MAX {
        return Cow::Borrowed(sent);
    }
    let end = sent.floor_char_boundary(SHOWN_BYTES_MAX);
    Cow::Owned(format!("{}...", &sent[..end]))
}

/// What to answer when the queue refuses: `function` is the name that was called.
pub fn fault_of(error: &Error, function: &str) -> Fault {
    match error {
        Error::TubeNotFound(_) => not_defined(function),
        Error::TubeExists(tube) => lua(format!("Space '{tube}' already exists")),
        Error::TubeHasTaken(_) => lua("There are taken tasks in the tube"),
        Error::TubeHasConsumers(_) => lua("There are consumers connected the tube"),
        Error::TaskNotFound(_, id) => not_found(*id),
        Error::Unsupported { kind, verb } => lua(format!("{kind} queue does not support {verb}")),
        Error::SessionUnknown(session) => lua(format!("The UUID {session} is unknown.")),
        Error::OutcomeUnknown(_) => Fault::new(OUTCOME_UNKNOWN, error.to_string()),
        other => lua(other.to_string()),
    }
}

/// No such function, tube or method.
pub fn not_defined(function: &str) -> Fault {
    Fault::new(33, format!("Procedure '{}' is not defined", shown(function)))
}

/// The task is not this session's to finish.
pub fn not_taken() -> Fault {
    lua("Task was not taken")
}

/// No such task.
pub fn not_found(id: TaskId) -> Fault {
    lua(format!("Task {id} not found"))
}

/// The user may not call this.
pub fn denied(function: &str, user: &str) -> Fault {
    let (function, user) = (shown(function), shown(user));
    let text = format!("Execute access to function '{function}' is denied for user '{user}'");
    Fault::new(42, text)
}

/// The user may not run expressions.
pub fn eval_denied(user: &str) -> Fault {
    let user = shown(user);
    Fault::new(42, format!("Execute access to universe '' is denied for user '{user}'"))
}

/// The user may not read this space.
pub fn read_denied(space: &str, user: &str) -> Fault {
    let user = shown(user);
    Fault::new(42, format!("Read access to space '{space}' is denied for user '{user}'"))
}

/// There is no such user, or its password is another one: which of the two is not told. So Tarantool answers since 2.11.
pub fn login_failed() -> Fault {
    Fault::new(47, "User not found or supplied credentials are invalid")
}

/// Too many logins from the same address failed; the password was not looked at.
pub fn too_many_logins(seconds: u64) -> Fault {
    let text = format!(
        "too many failed logins from this address; correct the user or the password and try again in {seconds} s"
    );
    Fault::new(47, text)
}

/// A type of request that we do not serve.
pub fn unknown_type(kind: u64) -> Fault {
    Fault::new(48, format!("Unknown request type {kind}"))
}

/// No such space.
pub fn no_space(space: u64) -> Fault {
    Fault::new(36, format!("Space '#{space}' does not exist"))
}

/// The statistics of a tube that is not there.
pub fn no_statistics() -> Fault {
    lua("attempt to index a nil value")
}

/// Part `part` of a key, counted from zero, is of another type than its index: `expected` names that one.
pub(super) fn wrong_key(part: u32, expected: &str) -> Fault {
    let text = format!(
        "Supplied key type of part {part} does not match index part type: expected {expected}"
    );
    Fault::new(18, text)
}

/// No id at all where the key has `expected` parts.
pub(super) fn missing_key(expected: u32) -> Fault {
    let got = expected - 1;
    let text = format!("Invalid key part count in an exact match (expected {expected}, got {got})");
    Fault::new(19, text)
}

/// A priority that is not whole or is negative.
pub(super) fn wrong_pri() -> Fault {
    let text = "Tuple field 6 type does not match one required by operation: expected unsigned";
    Fault::new(23, text)
}

/// A put without data, which stand in another field of each kind's tuples.
pub(super) fn missing_data(kind: Kind) -> Fault {
    let field = match kind {
        Kind::Fifo => 3,
        Kind::Utube => 4,
        Kind::FifoTtl | Kind::LimFifoTtl => 8,
        Kind::UtubeTtl => 9,
    };
    Fault::new(39, format!("Tuple field {field} required by space format is missing"))
}

/// An option of a space that must be of another type.
pub(super) fn wrong_option(name: &str, expected: &str) -> Fault {
    let text =
        format!("Illegal parameters, options parameter '{name}' should be of type {expected}");
    Fault::new(1, text)
}

/// A way to walk through rows that does not exist.
pub(super) fn no_iterator() -> Fault {
    Fault::new(1, "Illegal parameters, Invalid iterator type")
}

/// A way to walk through rows that an index of this kind does not have.
pub(super) fn unsupported_iterator(index: &str, space: &str) -> Fault {
    let text = format!(
        "Index '{index}' (TREE) of space '{space}' (memtx) does not support requested iterator type"
    );
    Fault::new(112, text)
}

/// Arguments that are not well-formed.
pub(super) fn malformed() -> Fault {
    Fault::new(MALFORMED, "Invalid MsgPack - packet body")
}
