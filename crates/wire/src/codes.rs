//! The public list of error codes and exit codes.
//!
//! | code | HTTP | exit | when |
//! |---|---|---|---|
//! | `tube_not_found` | 404 | 4 | no tube of this name |
//! | `task_not_found` | 404 | 4 | no task of this id in the tube |
//! | `session_unknown` | 404 | 4 | no live session of this identity |
//! | `tube_exists` | 409 | 6 | a tube of this name exists already, possibly with other options |
//! | `queue_num_taken` | 409 | 6 | the queue number belongs to another tube, or the tube has another |
//! | `tube_has_taken` | 409 | 6 | a drop while tasks are taken |
//! | `tube_has_consumers` | 409 | 6 | a drop while consumers wait |
//! | `semaphore_not_found` | 404 | 4 | no semaphore of this key |
//! | `semaphore_exists` | 409 | 6 | a semaphore of this key exists already, with other options |
//! | `semaphore_in_use` | 409 | 6 | a drop while tasks hold grants or wait |
//! | `semaphore_has_tube` | 409 | 6 | a drop while a tube uses the semaphore |
//! | `no_semaphore` | 409 | 6 | a task names its priority in a semaphore, and its tube has none |
//! | `too_many_semaphores` | 409 | 6 | the store has reached its limit of semaphores |
//! | `schedule_not_found` | 404 | 4 | no schedule of this name |
//! | `schedule_exists` | 409 | 6 | a schedule of this name exists already |
//! | `too_many_schedules` | 409 | 6 | the store has reached its limit of schedules |
//! | `missing_feature` | 501 | 6 | the store of this server does not have the feature |
//! | `too_many_tubes` | 409 | 6 | the store has reached its limit of tubes |
//! | `unsupported` | 409 | 6 | the tube's kind does not have this verb |
//! | `tube_full` | 429 | 6 | the tube is at its capacity; try again |
//! | `too_large` | 413 | 6 | something is larger than its limit |
//! | `overloaded` | 503 | 6 | too many requests are waiting; try again |
//! | `invalid` | 400 | 2 | the request itself is wrong |
//! | `unauthorized` | 401 | 8 | the token is missing or wrong |
//! | `forbidden` | 403 | 8 | a role is missing, or a Host or Origin that is not allowed |
//! | `route_not_found` | 404 | 1 | no such endpoint on this server |
//! | `method_not_allowed` | 405 | 1 | the endpoint does not have this method |
//! | `unsupported_media_type` | 415 | 1 | a body that is not `application/json` |
//! | `store_failed` | 503 | 1 | the store failed; nothing was done |
//! | `store_away` | 503 | 7 | the store is unreachable; nothing was done; try again |
//! | `outcome_unknown` | 503 | 1 | the store was lost: the request may have been executed |
//! | `shutting_down` | 503 | 7 | the server is stopping; try again on the next one |
//!
//! | exit | when |
//! |---|---|
//! | 0 | done |
//! | 1 | something failed that no other number says |
//! | 2 | wrong arguments or a wrong request |
//! | 3 | nothing to take in the time given |
//! | 4 | no such tube, task, session, semaphore or schedule |
//! | 5 | at least one delivery is no longer the caller's |
//! | 6 | refused: full, too large, overloaded, exists or in use |
//! | 7 | the server cannot be reached or is stopping |
//! | 8 | not allowed: the token or a role is missing or wrong |
//! | 9 | serve: the address to listen on is in use or not allowed |
//! | 10 | serve: the data folder is in use by another process |
//! | 11 | serve: the store's URL names no store |

use taskyard_core::Error;

/// An error code for programs: the `code` of an error answer. Codes never change their meaning; new
/// ones may be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Code {
    /// No tube of this name.
    TubeNotFound,
    /// No task of this id in the tube.
    TaskNotFound,
    /// No live session of this identity.
    SessionUnknown,
    /// A tube of this name exists already.
    TubeExists,
    /// The queue number belongs to another tube, or the tube has another.
    QueueNumTaken,
    /// A drop while tasks are taken.
    TubeHasTaken,
    /// A drop while consumers wait.
    TubeHasConsumers,
    /// The store has reached its limit of tubes.
    TooManyTubes,
    /// No semaphore of this key.
    SemaphoreNotFound,
    /// The store has reached its limit of semaphores.
    TooManySemaphores,
    /// The tube has no semaphore.
    NoSemaphore,
    /// A semaphore of this key exists already, with other options.
    SemaphoreExists,
    /// A drop while tasks hold grants or wait.
    SemaphoreInUse,
    /// A drop while a tube uses the semaphore.
    SemaphoreHasTube,
    /// No schedule of this name.
    ScheduleNotFound,
    /// A schedule of this name exists already.
    ScheduleExists,
    /// The store has reached its limit of schedules.
    TooManySchedules,
    /// The store does not have the feature.
    MissingFeature,
    /// The tube's kind does not have this verb.
    Unsupported,
    /// The tube is at its capacity.
    TubeFull,
    /// Something is larger than its limit.
    TooLarge,
    /// Too many requests are waiting.
    Overloaded,
    /// The request itself is wrong.
    Invalid,
    /// The token is missing or wrong.
    Unauthorized,
    /// A Host or Origin that is not allowed.
    Forbidden,
    /// No such endpoint on this server.
    RouteNotFound,
    /// The endpoint does not have this method.
    MethodNotAllowed,
    /// A body that is not `application/json`.
    UnsupportedMediaType,
    /// The store failed.
    Store,
    /// The store is unreachable.
    StoreUnavailable,
    /// The connection to the store was lost; the request may or may not have been executed.
    OutcomeUnknown,
    /// The server is stopping.
    ShuttingDown,
}

/// The exit code of a command line program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Exit {
    /// Done.
    Ok = 0,
    /// A failure without a number of its own.
    Failure = 1,
    /// Wrong arguments or a wrong request.
    Usage = 2,
    /// Nothing to take in the time given.
    Nothing = 3,
    /// No such tube, task or session.
    NotFound = 4,
    /// At least one delivery is no longer the caller's.
    Stale = 5,
    /// Refused: full, too large, overloaded, exists or in use.
    Refused = 6,
    /// The server cannot be reached or is stopping.
    Unreachable = 7,
    /// Not allowed: the token is missing or wrong.
    NotAllowed = 8,
    /// The address to listen on is in use or not allowed.
    AddressBusy = 9,
    /// The data folder is in use by another process.
    FolderBusy = 10,
    /// The store's URL names no store.
    StoreUnknown = 11,
}

/// The list: code, its name in JSON, HTTP status, exit code.
const TABLE: [(Code, &str, u16, Exit); 32] = [
    (Code::TubeNotFound, "tube_not_found", 404, Exit::NotFound),
    (Code::TaskNotFound, "task_not_found", 404, Exit::NotFound),
    (Code::SessionUnknown, "session_unknown", 404, Exit::NotFound),
    (Code::TubeExists, "tube_exists", 409, Exit::Refused),
    (Code::QueueNumTaken, "queue_num_taken", 409, Exit::Refused),
    (Code::TubeHasTaken, "tube_has_taken", 409, Exit::Refused),
    (Code::TubeHasConsumers, "tube_has_consumers", 409, Exit::Refused),
    (Code::TooManyTubes, "too_many_tubes", 409, Exit::Refused),
    (Code::SemaphoreNotFound, "semaphore_not_found", 404, Exit::NotFound),
    (Code::TooManySemaphores, "too_many_semaphores", 409, Exit::Refused),
    (Code::NoSemaphore, "no_semaphore", 409, Exit::Refused),
    (Code::SemaphoreExists, "semaphore_exists", 409, Exit::Refused),
    (Code::SemaphoreInUse, "semaphore_in_use", 409, Exit::Refused),
    (Code::SemaphoreHasTube, "semaphore_has_tube", 409, Exit::Refused),
    (Code::ScheduleNotFound, "schedule_not_found", 404, Exit::NotFound),
    (Code::ScheduleExists, "schedule_exists", 409, Exit::Refused),
    (Code::TooManySchedules, "too_many_schedules", 409, Exit::Refused),
    (Code::MissingFeature, "missing_feature", 501, Exit::Refused),
    (Code::Unsupported, "unsupported", 409, Exit::Refused),
    (Code::TubeFull, "tube_full", 429, Exit::Refused),
    (Code::TooLarge, "too_large", 413, Exit::Refused),
    (Code::Overloaded, "overloaded", 503, Exit::Refused),
    (Code::Invalid, "invalid", 400, Exit::Usage),
    (Code::Unauthorized, "unauthorized", 401, Exit::NotAllowed),
    (Code::Forbidden, "forbidden", 403, Exit::NotAllowed),
    (Code::RouteNotFound, "route_not_found", 404, Exit::Failure),
    (Code::MethodNotAllowed, "method_not_allowed", 405, Exit::Failure),
    (Code::UnsupportedMediaType, "unsupported_media_type", 415, Exit::Failure),
    (Code::Store, "store_failed", 503, Exit::Failure),
    (Code::StoreUnavailable, "store_away", 503, Exit::Unreachable),
    (Code::OutcomeUnknown, "outcome_unknown", 503, Exit::Failure),
    (Code::ShuttingDown, "shutting_down", 503, Exit::Unreachable),
];

impl Code {
    /// Every code, in the order of the list.
    pub fn all() -> impl Iterator<Item = Code> {
        TABLE.iter().map(|row| row.0)
    }

    /// The code's name in answers.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// Its HTTP status.
    pub fn status(self) -> u16 {
        self.row().2
    }

    /// The exit code of a command line program that gets it.
    pub fn exit(self) -> Exit {
        self.row().3
    }

    /// After how many seconds the request may be repeated, for `Retry-After`.
    pub const fn retry_after_secs(self) -> Option<u32> {
        match self {
            Code::TubeFull | Code::Overloaded | Code::StoreUnavailable | Code::ShuttingDown => {
                Some(1)
            }
            _ => None,
        }
    }

    /// The code of this name.
    pub fn from_name(name: &str) -> Option<Code> {
        TABLE.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    /// The code of an error. An error that this version does not know counts as a failed store.
    pub const fn of(error: &Error) -> Code {
        match error {
            Error::TubeNotFound(_) => Code::TubeNotFound,
            Error::TubeExists(_) | Error::TubeDiffers { .. } => Code::TubeExists,
            Error::QueueNumTaken { .. } => Code::QueueNumTaken,
            Error::TubeHasTaken(_) => Code::TubeHasTaken,
            Error::TubeHasConsumers(_) => Code::TubeHasConsumers,
            Error::TubeFull { .. } => Code::TubeFull,
            Error::TooManyTubes(_) => Code::TooManyTubes,
            Error::SemaphoreNotFound(_) => Code::SemaphoreNotFound,
            Error::TooManySemaphores(_) => Code::TooManySemaphores,
            Error::NoSemaphore(_) => Code::NoSemaphore,
            Error::SemaphoreExists { .. } => Code::SemaphoreExists,
            Error::SemaphoreInUse(_) => Code::SemaphoreInUse,
            Error::SemaphoreHasTube { .. } => Code::SemaphoreHasTube,
            Error::ScheduleNotFound(_) => Code::ScheduleNotFound,
            Error::ScheduleExists(_) => Code::ScheduleExists,
            Error::TooManySchedules(_) => Code::TooManySchedules,
            Error::MissingFeature { .. } => Code::MissingFeature,
            Error::TaskNotFound(..) => Code::TaskNotFound,
            Error::Unsupported { .. } => Code::Unsupported,
            Error::Invalid(_) => Code::Invalid,
            Error::TooLarge { .. } => Code::TooLarge,
            Error::SessionUnknown(_) => Code::SessionUnknown,
            Error::Overloaded(_) => Code::Overloaded,
            Error::StoreUnavailable(_) => Code::StoreUnavailable,
            Error::OutcomeUnknown(_) => Code::OutcomeUnknown,
            Error::ShuttingDown => Code::ShuttingDown,
            _ => Code::Store,
        }
    }

    fn row(self) -> &'static (Code, &'static str, u16, Exit) {
        // The table is in the order of the enum; a test compares them.
        &TABLE[self as usize]
    }
}

impl Exit {
    /// The number of the exit code.
    pub const fn number(self) -> u8 {
        self as u8
    }
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        exit.number().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_enum() {
        for (index, row) in TABLE.iter().enumerate() {
            assert_eq!(row.0 as usize, index, "{row:?}");
            assert_eq!(Code::from_name(row.1), Some(row.0));
        }
        assert_eq!(Code::ShuttingDown as usize + 1, TABLE.len());
    }

    #[test]
    fn the_documented_table_is_the_same() {
        let page = include_str!("codes.rs");
        for (_, name, status, exit) in TABLE {
            let row = format!("//! | `{name}` | {status} | {} |", exit.number());
            assert!(page.contains(&row), "missing in the documentation: {row}");
        }
    }

    // The page about HTTP could lack a new code, or keep one that no server sends.
    #[test]
    fn the_page_about_http_has_the_same_codes() {
        let page = include_str!("../../../docs/http.md");
        let table = page.split("| code | status | when |").nth(1).expect("a table of codes");
        let rows: Vec<&str> =
            table.lines().skip(2).take_while(|line| line.starts_with("| `")).collect();
        for (_, name, status, _) in TABLE {
            let row = format!("| `{name}` | {status} | ");
            assert!(rows.iter().any(|found| found.starts_with(&row)), "docs/http.md lacks {row}");
        }
        assert_eq!(rows.len(), TABLE.len(), "docs/http.md has a code that does not exist");
    }

    // The core's list may grow, and the compiler accepts a match without the new variant. This test
    // reads the core's own source instead.
    #[test]
    fn every_refusal_of_the_core_has_its_own_row() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../core/src/error.rs");
        let source = std::fs::read_to_string(path).unwrap();
        let body = source.split("pub enum Error {").nth(1).unwrap().split("\n}").next().unwrap();
        let variants: Vec<&str> = body
            .lines()
            .filter_map(|line| line.strip_prefix("    "))
            .filter(|line| line.starts_with(|c: char| c.is_ascii_uppercase()))
            .map(|line| line.split(|c: char| !c.is_alphanumeric()).next().unwrap())
            .collect();
        assert!(variants.len() >= 14, "{variants:?}");
        // A tube that exists with other options has the code of one that exists.
        for variant in variants.into_iter().filter(|variant| *variant != "TubeDiffers") {
            let named = Code::all().any(|code| format!("{code:?}") == variant);
            assert!(named, "Error::{variant} has no code: add it to Code, TABLE and Code::of");
            let arm = format!("            Error::{variant}");
            let handled = variant == "Store" || include_str!("codes.rs").contains(&arm);
            assert!(handled, "Code::of has no arm for Error::{variant}");
        }
    }
}
