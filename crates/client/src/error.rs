//! Why a call did not do what it says.

use taskyard_core::{Error as Refusal, TaskId, TubeName};
use taskyard_wire::iproto::Fault;
use taskyard_wire::iproto::faults::OUTCOME_UNKNOWN;

/// What the client's calls return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call did not do what it says.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The queue refused it; nothing was done, unless it says that it does not know.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The task is there, but this delivery of it has ended: its time ran out and it was given back.
    #[error("task {id} of tube '{tube}' is no longer yours; take it again or take longer leases")]
    Stale {
        /// The tube.
        tube: TubeName,
        /// The task.
        id: TaskId,
    },
    /// The value cannot be written as MessagePack.
    #[error("the data cannot be written as MessagePack: {0}")]
    Encode(#[from] rmp_serde::encode::Error),
    /// The payload is not what the caller expects.
    #[error("the task carries other data than expected: {0}")]
    Decode(#[from] rmp_serde::decode::Error),
    /// The address cannot be used.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// The address cannot be used.
    #[error(transparent)]
    Iproto(#[from] IprotoError),
    /// The embedded store cannot be opened.
    #[cfg(feature = "embedded")]
    #[error(transparent)]
    Open(#[from] taskyard_store::OpenError),
}

/// Why a request over HTTP brought no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HttpError {
    /// The address is none.
    #[error("'{0}' is no address of a server; use one such as http://127.0.0.1:7070")]
    Url(String),
    /// The token cannot be sent.
    #[error("the token may contain visible ASCII characters only, without spaces")]
    Token,
    /// Nobody answers there. What was asked may have been done or not.
    #[error("no answer from {url}: {why}")]
    Unreachable {
        /// The address.
        url: String,
        /// What the system said.
        why: String,
    },
    /// The token is missing or wrong.
    #[error("not allowed: {0}")]
    Unauthorized(String),
    /// The server is not to be called in this way, whoever asks.
    #[error("not allowed: {0}")]
    Forbidden(String),
    /// The queue refused it; nothing was done.
    #[error("{message}")]
    Refused {
        /// Why, for programs.
        error: Refusal,
        /// Why, in the server's words.
        message: String,
    },
    /// Something answers there, but not as Taskyard does.
    #[error("{url} does not answer as taskyard does ({what}); is it the right address?")]
    NotTaskyard {
        /// The address.
        url: String,
        /// What is wrong with the answer.
        what: String,
    },
}

/// Why a request over iproto brought no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IprotoError {
    /// The address is none.
    #[error("'{0}' is no address of a server; use one such as 127.0.0.1:3301")]
    Address(String),
    /// Nobody answers there, or no longer. What was asked may have been done or not.
    #[error("no answer from {address}: {why}")]
    Unreachable {
        /// The address.
        address: String,
        /// What the system said.
        why: String,
    },
    /// The server refused it; nothing was done, unless the code is
    /// [`OUTCOME_UNKNOWN`](taskyard_wire::iproto::faults::OUTCOME_UNKNOWN).
    #[error("{} (code {})", .0.text, .0.code)]
    Refused(Fault),
    /// Something answers there, but not as Taskyard does.
    #[error("{address} does not answer as taskyard does ({what}); is it the right address?")]
    NotTaskyard {
        /// The address.
        address: String,
        /// What is wrong with the answer.
        what: String,
    },
}

impl From<IprotoError> for Refusal {
    fn from(error: IprotoError) -> Self {
        match error {
            IprotoError::Unreachable { .. } => Refusal::OutcomeUnknown(error.to_string()),
            IprotoError::Refused(fault) if fault.code == OUTCOME_UNKNOWN => {
                Refusal::OutcomeUnknown(fault.text.into_owned())
            }
            other => Refusal::Store(other.to_string()),
        }
    }
}

impl From<HttpError> for Refusal {
    fn from(error: HttpError) -> Self {
        match error {
            HttpError::Refused { error, .. } => error,
            lost @ HttpError::Unreachable { .. } => Refusal::OutcomeUnknown(lost.to_string()),
            other => Refusal::Store(other.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A server that did not know whether a put was done said so in a text only, and the client took it for refused.
    #[test]
    fn an_unknown_outcome_stays_one() {
        let lost = Fault::new(OUTCOME_UNKNOWN, "the store was lost");
        let lost = Refusal::from(IprotoError::Refused(lost));
        assert_eq!(lost, Refusal::OutcomeUnknown("the store was lost".into()));
        let refused = Refusal::from(IprotoError::Refused(Fault::new(32, "no")));
        assert_eq!(refused, Refusal::Store("no (code 32)".into()));
    }
}
