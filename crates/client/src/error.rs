//! The errors of the client.

use taskyard_core::{Error as Refusal, TaskId, TubeName};
use taskyard_iproto::Fault;
use taskyard_iproto::faults::OUTCOME_UNKNOWN;

/// What the client's calls return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The queue refused the command; nothing was done, unless the error is `OutcomeUnknown`.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The task exists, but this delivery has ended: its lease expired and the task was returned.
    #[error(
        "the delivery of task {id} in tube '{tube}' has ended; take the task again or use longer leases"
    )]
    Stale {
        /// The tube.
        tube: TubeName,
        /// The task.
        id: TaskId,
    },
    /// The value cannot be encoded as MessagePack.
    #[error("cannot encode the data as MessagePack: {0}")]
    Encode(#[from] rmp_serde::encode::Error),
    /// The payload cannot be decoded as the type that the caller expects.
    #[error("cannot decode the data of the task: {0}")]
    Decode(#[from] rmp_serde::decode::Error),
    /// The address is invalid.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// The address is invalid.
    #[error(transparent)]
    Iproto(#[from] IprotoError),
    /// The URL names no queue.
    #[error(
        "'{0}:' is not the scheme of a queue; use http://, https://, iproto://, iprotos://, memory:, sqlite:DIR, \
         postgres://, redis:// or tarantool://"
    )]
    UnknownScheme(String),
    /// This program was built without a part of the client.
    #[error(
        "{what} needs the feature `{feature}` of the crate `taskyard`; add it to `features` in Cargo.toml"
    )]
    MissingFeature {
        /// What was asked for.
        what: String,
        /// The feature.
        feature: &'static str,
    },
    /// The embedded store cannot be opened.
    #[cfg(feature = "embedded")]
    #[error(transparent)]
    Open(#[from] taskyard_store::OpenError),
}

/// Why a request over HTTP failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HttpError {
    /// The address is invalid; it is shown without a password.
    #[error("'{0}' is not the URL of a server; use one such as http://127.0.0.1:7070")]
    Url(String),
    /// The certificate of the server was refused, or there are no root certificates to check it.
    #[error("{0}")]
    Certificates(String),
    /// The token cannot be sent.
    #[error("the token may contain visible ASCII characters only, without spaces")]
    Token,
    /// The server does not respond. The request may have been executed or not.
    #[error("no answer from {url}: {why}")]
    Unreachable {
        /// The address.
        url: String,
        /// The message of the system.
        why: String,
    },
    /// The token is missing or wrong.
    #[error("not allowed: {0}")]
    Unauthorized(String),
    /// The server does not allow this request, whatever the token.
    #[error("not allowed: {0}")]
    Forbidden(String),
    /// The queue refused the command; nothing was done.
    #[error("{message}")]
    Refused {
        /// The error, for programs.
        error: Refusal,
        /// The message of the server.
        message: String,
    },
    /// Another program responds at this address.
    #[error("{url} is not a taskyard server ({what}); check the address")]
    NotTaskyard {
        /// The address.
        url: String,
        /// What is wrong with the response.
        what: String,
    },
}

/// Why a request over iproto failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IprotoError {
    /// The address is invalid; it is shown without a password.
    #[error("'{0}' is not the address of a server; use one such as 127.0.0.1:3301")]
    Address(String),
    /// The certificate of the server was refused, or there are no root certificates to check it.
    #[error("{0}")]
    Certificates(String),
    /// The server does not respond. The request may have been executed or not.
    #[error("no answer from {address}: {why}")]
    Unreachable {
        /// The address.
        address: String,
        /// The message of the system.
        why: String,
    },
    /// The server refused the request; nothing was done, unless the code is
    /// [`OUTCOME_UNKNOWN`](taskyard_iproto::faults::OUTCOME_UNKNOWN).
    #[error("{} (code {})", .0.text, .0.code)]
    Refused(Fault),
    /// Another program responds at this address.
    #[error("{address} is not a taskyard server ({what}); check the address")]
    NotTaskyard {
        /// The address.
        address: String,
        /// What is wrong with the response.
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

    // A server reported an unknown outcome of a put in a text only, and the client took the put for refused.
    #[test]
    fn an_unknown_outcome_is_not_a_refusal() {
        let lost = Fault::new(OUTCOME_UNKNOWN, "the store was lost");
        let lost = Refusal::from(IprotoError::Refused(lost));
        assert_eq!(lost, Refusal::OutcomeUnknown("the store was lost".into()));
        let refused = Refusal::from(IprotoError::Refused(Fault::new(32, "no")));
        assert_eq!(refused, Refusal::Store("no (code 32)".into()));
    }
}
