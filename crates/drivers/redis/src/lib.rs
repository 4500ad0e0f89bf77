//! How a Redis is reached: URLs, encryption, the nodes of a cluster, libraries of functions.
//!
//! Whoever asks must know whether what failed can have been done, so connections are our own: [`Failure`] tells one that
//! was found broken before anything left from one that broke on the way, and nothing is repeated that may have been
//! done. It knows no tube, no task and no other crate of Taskyard: words go in, answers come out.
//!
//! The crate `redis` was not taken: a batch leaves behind another only where that is known to be harmless, so that nothing of its
//! multiplexing is used, and its cluster client repeats requests by itself, which a put must not be.
//!
//! Start reading at `url`, then `connection` and `link`.

pub mod resp;
pub mod tls;

mod connection;
mod library;
mod link;
mod slots;
mod url;

pub use connection::{Client, Connection, Failure};
pub use library::Library;
pub use link::{Answer, Call, Link, Reach, Sent, Trouble};
pub use resp::Value;
pub use slots::slot;
pub use url::{Address, Place};
