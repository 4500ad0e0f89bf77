//! Why a call did not do what it says.

use taskyard_core::{TaskId, TubeName};

use crate::http::HttpError;

/// What the client's calls return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call did not do what it says.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The queue refused it; nothing was done.
    #[error(transparent)]
    Refused(#[from] taskyard_core::Error),
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
    /// The embedded store cannot be opened.
    #[cfg(feature = "embedded")]
    #[error(transparent)]
    Open(#[from] taskyard_store::OpenError),
}
