//! Encryption on the way to the database, for the driver; whom to believe is decided in `taskyard_postgres`.

use taskyard_postgres::{Security, SslMode, client_config};
use tokio_postgres::config;
use tokio_postgres_rustls::MakeRustlsConnect;

/// What encrypts connections; nothing where nothing shall.
pub(super) fn connector(security: &Security) -> Result<Option<MakeRustlsConnect>, String> {
    Ok(client_config(security)?.map(MakeRustlsConnect::new))
}

/// The same for the driver, which leaves it to us to look at certificates.
pub(super) fn to_driver(mode: SslMode) -> config::SslMode {
    match mode {
        SslMode::Disable => config::SslMode::Disable,
        SslMode::Prefer => config::SslMode::Prefer,
        SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => config::SslMode::Require,
    }
}
