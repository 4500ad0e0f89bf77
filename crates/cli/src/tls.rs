//! The options of a server for encrypted connections, and the replacement of certificates while it runs.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use taskyard_server::{HTTP_PROTOCOL, ServerFiles, ServerTls, TlsError};
use tokio::signal::unix::Signal;
use tokio::time::{MissedTickBehavior, interval};

use crate::failure::UsageError;

/// How often the files are compared with what was read.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The options for encrypted connections.
#[derive(Debug, Args)]
pub struct TlsArgs {
    /// PEM file with the certificate for TLS, followed by those that signed it: clients use https:// and iprotos://.
    /// SIGHUP and a change of the file replace it without a restart.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// PEM file with the private key of the certificate, which only its owner may read.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// PEM file with the authorities of client certificates: clients must show one that they signed.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,
}

impl TlsArgs {
    /// The certificate for HTTP, if connections are encrypted.
    pub fn http(&self) -> anyhow::Result<Option<ServerTls>> {
        self.read(None, &[HTTP_PROTOCOL])
    }

    /// The certificate for iproto: its own or that for HTTP.
    pub fn iproto(&self, own: Option<(&Path, &Path)>) -> anyhow::Result<Option<ServerTls>> {
        self.read(own, &[])
    }

    /// The file of the certificate.
    pub fn certificate(&self) -> Option<&Path> {
        self.tls_cert.as_deref()
    }

    /// Whether clients must show a certificate.
    pub fn needs_client_certificate(&self) -> bool {
        self.tls_client_ca.is_some()
    }

    fn read(
        &self,
        own: Option<(&Path, &Path)>,
        protocols: &[&str],
    ) -> anyhow::Result<Option<ServerTls>> {
        let shared = self.tls_cert.as_deref().zip(self.tls_key.as_deref());
        let Some((certificate, key)) = own.or(shared) else { return Ok(None) };
        let client_ca = self.tls_client_ca.clone();
        let files = ServerFiles { certificate: certificate.into(), key: key.into(), client_ca };
        let tls = ServerTls::read(files, protocols);
        Ok(Some(tls.map_err(|error| UsageError(error.to_string()))?))
    }
}

/// Replaces certificates when their files change, and reads them again at each signal.
pub async fn keep_current(certificates: Vec<ServerTls>, mut hangups: Signal) {
    let mut checks = interval(CHECK_INTERVAL);
    checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let is_asked = tokio::select! {
            _ = checks.tick() => false,
            _ = hangups.recv() => true,
        };
        for tls in &certificates {
            let tls = tls.clone();
            // A slow disk must not delay connections.
            let reading = tokio::task::spawn_blocking(move || reload(&tls, is_asked));
            if let Err(error) = reading.await {
                tracing::error!(%error, "cannot read the files of a TLS certificate again");
            }
        }
    }
}

fn reload(tls: &ServerTls, is_asked: bool) {
    let read = if is_asked { Some(tls.reload()) } else { tls.reload_if_changed() };
    if let Some(read) = read {
        log(tls, read);
    }
}

fn log(tls: &ServerTls, read: Result<(), TlsError>) {
    let file = tls.files().certificate.display();
    match read {
        Ok(()) => tracing::info!(%file, "read the TLS certificate again; new connections use it"),
        Err(error) => {
            tracing::error!(%file, %error, "cannot use the new TLS certificate; the old one stays");
        }
    }
}
