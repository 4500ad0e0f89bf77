//! Prints errors and maps them to exit codes.

use std::io;

use taskyard::HttpError;
use taskyard_core::{Error, TubeName};
use taskyard_server::BindError;
use taskyard_store::OpenError;
use taskyard_store::copy::CopyError;
use taskyard_store_sqlite::backup::RestoreError;
use taskyard_trace::CreateError;
use taskyard_wire::{Code, Exit};

use crate::output::{note, quoted};

/// An invalid argument that the parser cannot detect.
#[derive(Debug)]
pub struct UsageError(pub String);

impl std::fmt::Display for UsageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// Something that is not done because something else exists or is in use.
#[derive(Debug)]
pub struct RefusedError(pub String);

impl std::fmt::Display for RefusedError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for RefusedError {}

/// A put into a tube that does not exist, where the server does not create it.
#[derive(Debug)]
pub struct NoTube {
    /// The tube.
    pub tube: TubeName,
    /// Whether its tasks name sub-queues.
    pub subqueues: bool,
}

impl std::fmt::Display for NoTube {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (tube, name) = (&self.tube, quoted(self.tube.as_str()));
        let kind = if self.subqueues { " --kind utubettl" } else { "" };
        write!(f, "tube '{tube}' does not exist; create it: taskyard tube create {name}{kind}")
    }
}

impl std::error::Error for NoTube {}

/// Prints an error in one line, with what to do about it, and returns the exit code.
pub fn report(error: &anyhow::Error) -> Exit {
    if is_closed_pipe(error) {
        // The reader of the output has closed the pipe, which is not an error.
        return Exit::Ok;
    }
    note(format!("taskyard: {}{}", text(error), advice(error)));
    exit_of(error)
}

/// The message of an error and its causes. The server's hint about an unknown tube is for HTTP clients; `advice` has the
/// one for the command line.
fn text(error: &anyhow::Error) -> String {
    let causes = error.chain().map(|cause| match unknown_tube(cause) {
        Some(tube) => format!("tube '{tube}' does not exist"),
        None => cause.to_string(),
    });
    causes.collect::<Vec<_>>().join(": ")
}

/// The tube that does not exist, if this is the cause.
fn unknown_tube<'a>(cause: &'a (dyn std::error::Error + 'static)) -> Option<&'a TubeName> {
    match cause.downcast_ref()? {
        HttpError::Refused { error: Error::TubeNotFound(tube), .. } => Some(tube),
        _ => None,
    }
}

pub fn exit_of(error: &anyhow::Error) -> Exit {
    if error.chain().any(|cause| cause.is::<UsageError>()) {
        return Exit::Usage;
    }
    if error.chain().any(|cause| cause.is::<NoTube>()) {
        return Exit::NotFound;
    }
    if error.chain().any(is_refused) {
        return Exit::Refused;
    }
    if let Some(exit) = error.chain().find_map(exit_of_copy) {
        return exit;
    }
    if let Some(exit) = error.chain().find_map(exit_of_start) {
        return exit;
    }
    let refusal = error.chain().find_map(|cause| cause.downcast_ref::<Error>());
    if let Some(refusal) = refusal {
        return Code::of(refusal).exit();
    }
    match http_error(error) {
        Some(HttpError::Url(_) | HttpError::Token) => Exit::Usage,
        Some(HttpError::Unreachable { .. }) => Exit::Unreachable,
        Some(HttpError::Unauthorized(_) | HttpError::Forbidden(_)) => Exit::NotAllowed,
        Some(HttpError::Refused { error, .. }) => Code::of(error).exit(),
        _ => Exit::Failure,
    }
}

/// Whether something exists or is in use.
fn is_refused(cause: &(dyn std::error::Error + 'static)) -> bool {
    cause.is::<RefusedError>() || matches!(cause.downcast_ref(), Some(RestoreError::Used { .. }))
}

/// The exit code of a failed `copy`.
fn exit_of_copy(cause: &(dyn std::error::Error + 'static)) -> Option<Exit> {
    match cause.downcast_ref()? {
        CopyError::Refused(_) | CopyError::Changed(_) => Some(Exit::Refused),
        CopyError::NoTube(error) | CopyError::Store { error, .. } => Some(Code::of(error).exit()),
        _ => None,
    }
}

/// The exit code of a `serve` that cannot start.
fn exit_of_start(cause: &(dyn std::error::Error + 'static)) -> Option<Exit> {
    match cause.downcast_ref() {
        Some(
            BindError::Busy(_)
            | BindError::IprotoBusy(_)
            | BindError::Denied(_)
            | BindError::Exposed(_)
            | BindError::IprotoExposed(_),
        ) => return Some(Exit::AddressBusy),
        Some(_) => return None,
        None => {}
    }
    if let Some(CreateError::Exists(_)) = cause.downcast_ref() {
        return Some(Exit::Refused);
    }
    match cause.downcast_ref()? {
        OpenError::InUse(_) => Some(Exit::FolderBusy),
        OpenError::UnknownUrl(_) => Some(Exit::StoreUnknown),
        _ => None,
    }
}

/// What to do about an error, where its message does not say it.
fn advice(error: &anyhow::Error) -> &'static str {
    if error.chain().any(|cause| unknown_tube(cause).is_some()) {
        return "; taskyard tube list shows the existing tubes";
    }
    if let Some(advice) = error.chain().find_map(advice_of_open) {
        return advice;
    }
    match http_error(error) {
        Some(HttpError::Unreachable { .. }) => "; is it running? start it with: taskyard serve",
        Some(HttpError::Unauthorized(_)) => "; set --token-file or TASKYARD_TOKEN",
        _ => "",
    }
}

/// What to do about a database that cannot be opened as a store.
fn advice_of_open(cause: &(dyn std::error::Error + 'static)) -> Option<&'static str> {
    match cause.downcast_ref()? {
        OpenError::Unavailable { what, .. } if what.contains("Connection refused") => {
            Some("; start the database, or correct the host and the port of the URL")
        }
        OpenError::Unavailable { what, .. } if what.contains("tarantool/queue is not loaded") => {
            Some("; load it there first, with: queue = require('queue')")
        }
        _ => None,
    }
}

fn http_error(error: &anyhow::Error) -> Option<&HttpError> {
    error.chain().find_map(|cause| cause.downcast_ref())
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let io = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>());
    io.is_some_and(|io| io.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    fn tube() -> TubeName {
        TubeName::new("my mail").unwrap()
    }

    #[test]
    fn an_error_of_the_server_determines_the_exit_code() {
        let refused = HttpError::Refused {
            message: "see the list of tubes".into(),
            error: Error::TubeNotFound(tube()),
        };
        let failed = Err::<(), _>(refused).context("stopped after 3 tasks").unwrap_err();
        assert_eq!(exit_of(&failed), Exit::NotFound);
        assert_eq!(text(&failed), "stopped after 3 tasks: tube 'my mail' does not exist");
        assert!(advice(&failed).contains("taskyard tube list"));
    }

    #[test]
    fn a_put_into_a_missing_tube_prints_how_to_create_it() {
        let failed = anyhow::Error::from(NoTube { tube: tube(), subqueues: true });
        assert_eq!(exit_of(&failed), Exit::NotFound);
        let said = text(&failed) + advice(&failed);
        assert!(said.ends_with("taskyard tube create 'my mail' --kind utubettl"), "{said}");
    }

    #[test]
    fn each_start_failure_has_its_exit_code() {
        let address = ([127, 0, 0, 1], 1).into();
        for (failed, exit) in [
            (anyhow::Error::from(BindError::Busy(address)), Exit::AddressBusy),
            (BindError::Denied(address).into(), Exit::AddressBusy),
            (BindError::Exposed(address).into(), Exit::AddressBusy),
            (OpenError::InUse("data".into()).into(), Exit::FolderBusy),
            (OpenError::UnknownUrl("nowhere:".into()).into(), Exit::StoreUnknown),
        ] {
            assert_eq!(exit_of(&failed), exit, "{failed}");
        }
    }

    #[test]
    fn a_database_that_cannot_be_opened_prints_what_to_do() {
        for (what, expected) in [
            ("db:6379: Connection refused (os error 111)", "; start the database"),
            ("tarantool/queue is not loaded: there is no global 'queue'", "; load it there first"),
            ("WRONGPASS", ""),
        ] {
            let failed = OpenError::Unavailable { folder: "Redis".into(), what: what.into() };
            let advice = advice(&failed.into());
            assert!(advice.starts_with(expected) && advice.is_empty() == expected.is_empty());
        }
    }

    #[test]
    fn an_unreachable_server_prints_how_to_start_it() {
        let failed = HttpError::Unreachable { url: "http://x".into(), why: "refused".into() };
        let failed = anyhow::Error::from(failed);
        assert_eq!(exit_of(&failed), Exit::Unreachable);
        assert!(advice(&failed).contains("taskyard serve"));
    }

    #[test]
    fn an_invalid_argument_is_a_usage_error() {
        assert_eq!(exit_of(&anyhow::Error::from(UsageError("no".into()))), Exit::Usage);
        assert_eq!(exit_of(&anyhow::anyhow!("else")), Exit::Failure);
    }
}
