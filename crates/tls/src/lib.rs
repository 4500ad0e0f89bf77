//! Certificates and keys of TLS connections: reads the files, decides which certificates are trusted, replaces the
//! certificate of a running server, and explains why a handshake failed.
//!
//! It opens no sockets and knows no other crate of Taskyard. The PostgreSQL driver follows the rules of `libpq` and
//! has its own.
//!
//! Start reading at `client` (what a client trusts and shows), then `server` (what a server shows) and `explain`.

mod client;
mod explain;
mod pem_file;
mod server;
mod verifier;

pub use client::{CA_VARIABLE, CERT_VARIABLE, ClientFiles, KEY_VARIABLE, connector};
pub use explain::explain;
pub use pem_file::TlsError;
pub use server::{ServerFiles, ServerTls};
