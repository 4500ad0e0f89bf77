//! The errors of the queue, with the numbers and texts that its clients know.

use std::borrow::Cow;

use taskyard_core::{Error, Kind, TaskId};

use super::reply::Fault;

/// The code of errors that the queue's own code raises.
pub const LUA: u32 = 32;

/// The code of an error after which it is not known whether the request was executed. Tarantool has
/// no such code; its own are far below.
pub const OUTCOME_UNKNOWN: u32 = 20_001;

/// The code of errors about malformed bytes.
pub(super) const MALFORMED: u32 = 20;

/// How many bytes of a client's text an error repeats.
const SHOWN_BYTES_MAX: usize = 200;

/// An error with the code of the queue's own errors.
pub fn lua(text: impl Into<Cow<'static, str>>) -> Fault {
    Fault::new(LUA, text)
}

/// A client's text, shortened for use in an error: an answer must not be as large as any name can
/// be.
pub fn shortened(sent: &str) -> Cow<'_, str> {
    if sent.len() <= SHOWN_BYTES_MAX {
        return Cow::Borrowed(sent);
    }
    let end = sent.floor_char_boundary(SHOWN_BYTES_MAX);
    Cow::Owned(format!("{}...", &sent[..end]))
}

/// The fault for an error of the queue; `function` is the name that was called.
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
    Fault::new(33, format!("Procedure '{}' is not defined", shortened(function)))
}

/// The session does not hold the task.
pub fn not_taken() -> Fault {
    lua("Task was not taken")
}

/// No such task.
pub fn not_found(id: TaskId) -> Fault {
    lua(format!("Task {id} not found"))
}

/// The user may not call this.
pub fn denied(function: &str, user: &str) -> Fault {
    let (function, user) = (shortened(function), shortened(user));
    let text = format!("Execute access to function '{function}' is denied for user '{user}'");
    Fault::new(42, text)
}

/// The user may not run expressions.
pub fn eval_denied(user: &str) -> Fault {
    let user = shortened(user);
    Fault::new(42, format!("Execute access to universe '' is denied for user '{user}'"))
}

/// The user may not read this space.
pub fn read_denied(space: &str, user: &str) -> Fault {
    let user = shortened(user);
    Fault::new(42, format!("Read access to space '{space}' is denied for user '{user}'"))
}

/// The user is unknown or the password is wrong; the text does not say which. Tarantool answers
/// this way since 2.11.
pub fn login_failed() -> Fault {
    Fault::new(47, "User not found or supplied credentials are invalid")
}

/// Too many logins from the same address failed; the password was not checked.
pub fn too_many_logins(seconds: u64) -> Fault {
    let text = format!(
        "too many failed logins from this address; correct the user or the password and try again in {seconds} s"
    );
    Fault::new(47, text)
}

/// A type of request that is not served.
pub fn unknown_type(kind: u64) -> Fault {
    Fault::new(48, format!("Unknown request type {kind}"))
}

/// No such space.
pub fn no_space(space: u64) -> Fault {
    Fault::new(36, format!("Space '#{space}' does not exist"))
}

/// Statistics of a tube that does not exist.
pub fn no_statistics() -> Fault {
    lua("attempt to index a nil value")
}

/// Part `part` of a key, counted from zero, has another type than its index; `expected` names that
/// type.
pub(super) fn wrong_key(part: u32, expected: &str) -> Fault {
    let text = format!(
        "Supplied key type of part {part} does not match index part type: expected {expected}"
    );
    Fault::new(18, text)
}

/// A missing id where the key has `expected` parts.
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

/// A put without data. The data are in another field of each kind's tuples.
pub(super) fn missing_data(kind: Kind) -> Fault {
    let field = match kind {
        Kind::Fifo => 3,
        Kind::Utube => 4,
        Kind::FifoTtl | Kind::LimFifoTtl => 8,
        Kind::UtubeTtl => 9,
    };
    Fault::new(39, format!("Tuple field {field} required by space format is missing"))
}

/// An option of a space with a wrong type.
pub(super) fn wrong_option(name: &str, expected: &str) -> Fault {
    let text =
        format!("Illegal parameters, options parameter '{name}' should be of type {expected}");
    Fault::new(1, text)
}

/// An iterator type that does not exist.
pub(super) fn no_iterator() -> Fault {
    Fault::new(1, "Illegal parameters, Invalid iterator type")
}

/// An iterator type that an index of this kind does not support.
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
