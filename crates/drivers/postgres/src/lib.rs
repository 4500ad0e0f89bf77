//! Configuration of PostgreSQL connections: connection strings, password files and certificates.
//!
//! Tubes and SQL tasks use different PostgreSQL clients, and both must be as strict as `sslmode`
//! requires: so that is decided once, here. The crate opens no socket, runs no query and knows no
//! other crate of Taskyard.
//!
//! Start reading at `conninfo`, then `tls`.

pub mod channel_binding;
pub mod conninfo;
pub mod passfile;
pub mod tls;

pub use channel_binding::server_end_point;
pub use conninfo::{Conninfo, ConninfoError, SslMode, masked};
pub use tls::{Security, client_config};
