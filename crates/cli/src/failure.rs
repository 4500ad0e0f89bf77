//! What is said when something failed, and how the program ends then.

use std::io;

use taskyard::HttpError;
use taskyard_wire::{Code, Exit};

use crate::output::note;

/// A wrong argument that the parser cannot see.
#[derive(Debug)]
pub struct Wrong(pub String);

impl std::fmt::Display for Wrong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Wrong {}

/// Says what failed in one line and what to do about it.
pub fn report(error: &anyhow::Error) -> Exit {
    if is_closed_pipe(error) {
        // Whoever reads our output has seen enough.
        return Exit::Ok;
    }
    let exit = exit_of(error);
    note(format!("taskyard: {error:#}{}", advice(error)));
    exit
}

fn exit_of(error: &anyhow::Error) -> Exit {
    if error.chain().any(|cause| cause.is::<Wrong>()) {
        return Exit::Usage;
    }
    let refusal = error.chain().find_map(|cause| cause.downcast_ref::<taskyard_core::Error>());
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

/// What to do, where the error itself cannot know it.
fn advice(error: &anyhow::Error) -> &'static str {
    match http_error(error) {
        Some(HttpError::Unreachable { .. }) => "; is it running? start it with: taskyard serve",
        Some(HttpError::Unauthorized(_)) => "; here: --token or TASKYARD_TOKEN",
        _ => "",
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
    use taskyard_core::{Error, TubeName};

    use super::*;

    #[test]
    fn a_refusal_decides_how_we_end() {
        let tube = TubeName::new("mail").unwrap();
        let error = Error::TubeNotFound(tube);
        let refused = HttpError::Refused { message: error.to_string(), error };
        let failed = Err::<(), _>(refused).context("put stopped after 3 lines").unwrap_err();
        assert_eq!(exit_of(&failed), Exit::NotFound);
    }

    #[test]
    fn a_server_that_is_not_there_is_told_with_what_to_do() {
        let failed = HttpError::Unreachable { url: "http://x".into(), why: "refused".into() };
        let failed = anyhow::Error::from(failed);
        assert_eq!(exit_of(&failed), Exit::Unreachable);
        assert!(advice(&failed).contains("taskyard serve"));
    }

    #[test]
    fn a_wrong_argument_is_usage() {
        assert_eq!(exit_of(&anyhow::Error::from(Wrong("no".into()))), Exit::Usage);
        assert_eq!(exit_of(&anyhow::anyhow!("else")), Exit::Failure);
    }
}
