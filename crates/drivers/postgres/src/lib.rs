//! How a PostgreSQL is reached: connection strings, files of passwords, and whom to believe.
//!
//! Tubes and SQL tasks speak to PostgreSQL in different ways, and both must be as strict as `sslmode` asks: so that is
//! decided once, here. It opens no socket, runs no query and knows no other crate of Taskyard: texts and files in,
//! decisions out.
//!
//! Start reading at `conninfo`, then `tls`.

pub mod conninfo;
pub mod passfile;
pub mod tls;

pub use conninfo::{Conninfo, ConninfoError, SslMode, masked};
pub use tls::{Security, client_config};
