//! The other servers of a store: asks them over HTTP for their time series and workers.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use taskyard::{Http, HttpError};
use taskyard_core::limits::{PEER_ANSWER_BYTES_MAX, PEERS_MAX};
use taskyard_server::{PeerFuture, PeerServer};
use taskyard_wire::http::{SeriesAnswer, SeriesQuery, WorkersAnswer};

use crate::connect::with_scheme;
use crate::failure::UsageError;
use crate::secret_file;

/// How long a peer may take to answer; the server waits for less.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// The options for other servers of the store.
#[derive(Debug, Args)]
pub struct PeerArgs {
    /// URL of another server of the same store: the dashboard, workers and top add what it saw. May be repeated, at most 32
    /// times; naming this server itself does no harm.
    #[arg(long, value_name = "URL", value_parser = with_scheme, hide_env_values = true)]
    peer: Vec<String>,
    /// Read the token for the peers from this file, which other users of this machine must not be able to read: that of a
    /// user with the role read for all names.
    #[arg(long, value_name = "FILE", requires = "peer")]
    peer_token_file: Option<PathBuf>,
    /// PEM file with the certificates that are trusted for https:// peers, instead of those of TASKYARD_CA or the system.
    #[arg(long, value_name = "FILE", requires = "peer")]
    peer_ca: Option<PathBuf>,
}

impl PeerArgs {
    /// The peers of a server whose store may have others.
    pub fn servers(&self, is_shared: bool) -> anyhow::Result<Vec<Arc<dyn PeerServer>>> {
        if self.peer.is_empty() {
            return Ok(Vec::new());
        }
        if !is_shared {
            let message = "--peer names another server of the same store, but this store has one server only; leave --peer \
                           out, or use --store with a database";
            return Err(UsageError(message.into()).into());
        }
        if self.peer.len() > PEERS_MAX {
            let message =
                format!("{} peers are given; at most {PEERS_MAX} are asked", self.peer.len());
            return Err(UsageError(message).into());
        }
        let token = match &self.peer_token_file {
            Some(path) => Some(secret_file::read(path, "the token")?),
            None => None,
        };
        self.peer.iter().map(|url| self.server(url, token.as_deref())).collect()
    }

    fn server(&self, url: &str, token: Option<&str>) -> anyhow::Result<Arc<dyn PeerServer>> {
        let mut http = Http::new(url)?.with_limits(ANSWER_MAX, PEER_ANSWER_BYTES_MAX);
        if let Some(ca) = self.peer_ca.as_ref().filter(|_| http.url().starts_with("https://")) {
            http = http.with_roots(ca)?;
        }
        if let Some(token) = token {
            http = http.with_token(token)?;
        }
        Ok(Arc::new(HttpPeer(http)))
    }
}

/// A server that is reached over HTTP.
#[derive(Debug)]
struct HttpPeer(Http);

impl PeerServer for HttpPeer {
    fn url(&self) -> String {
        self.0.url()
    }

    fn series(&self, query: SeriesQuery) -> PeerFuture<'_, SeriesAnswer> {
        Box::pin(async move { self.0.series(&query).await.map_err(reason) })
    }

    fn workers(&self, after: Option<String>) -> PeerFuture<'_, WorkersAnswer> {
        Box::pin(async move { self.0.seen_workers(after.as_deref()).await.map_err(reason) })
    }
}

/// Why a peer does not answer; its URL is shown beside it.
fn reason(error: HttpError) -> String {
    match error {
        HttpError::Unreachable { why, .. } => why,
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // An http:// peer was refused if there were certificates for others.
    #[test]
    fn certificates_are_for_encrypted_peers_only() {
        let peers = |urls: &[&str]| PeerArgs {
            peer: urls.iter().map(ToString::to_string).collect(),
            peer_token_file: None,
            peer_ca: Some("/nonexistent/ca.pem".into()),
        };
        assert_eq!(peers(&["http://box7", "http://box8"]).servers(true).unwrap().len(), 2);
        let error = peers(&["http://box7", "https://box8"]).servers(true).unwrap_err();
        assert!(error.to_string().contains("ca.pem"), "{error}");
    }
}
