//! Configures encryption for the driver. `taskyard_postgres` decides which certificates are trusted.

use taskyard_postgres::{Security, SslMode, client_config};
use tokio_postgres::config;
use tokio_postgres_rustls::MakeRustlsConnect;

/// The encryption of connections; `None` without one.
pub(super) fn connector(security: &Security) -> Result<Option<MakeRustlsConnect>, String> {
    Ok(client_config(security)?.map(MakeRustlsConnect::new))
}

/// The mode for the driver, which does not check certificates itself.
pub(super) fn to_driver(mode: SslMode) -> config::SslMode {
    match mode {
        SslMode::Disable => config::SslMode::Disable,
        SslMode::Prefer => config::SslMode::Prefer,
        SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => config::SslMode::Require,
    }
}
