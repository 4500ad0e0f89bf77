//! Receives a backup from a server over HTTP.

use hyper::Method;
use hyper::body::Bytes;
use taskyard_wire::http::NothingAnswer;

use super::Http;
use super::connection_pool::{HttpCall, StreamedResponse};
use crate::error::HttpError;

/// A backup that a server sends, part by part. Its checksums are not verified here: `taskyard restore --check` does that.
pub struct BackupDownload {
    http: Http,
    response: StreamedResponse,
}

impl Http {
    /// Begins a backup of everything in the store of the server at one moment. Only administrators may.
    pub async fn backup(&self) -> Result<BackupDownload, HttpError> {
        let call = HttpCall::new(Method::POST, self.target(&["backup"])).json(&NothingAnswer {});
        let response = self.pool.open(call, self.answer_max).await;
        let response = response.map_err(|error| error.of_server(self.url()))?;
        if response.status.is_success() {
            return Ok(BackupDownload { http: self.clone(), response });
        }
        let status = response.status;
        let body = response.collect().await.map_err(|error| error.of_server(self.url()))?;
        Err(self.refusal(status, &body, "backup"))
    }
}

impl BackupDownload {
    /// The next bytes of the file; `None` after the last ones.
    pub async fn next(&mut self) -> Result<Option<Bytes>, HttpError> {
        self.response.next().await.map_err(|error| error.of_server(self.http.url()))
    }
}

impl std::fmt::Debug for BackupDownload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BackupDownload").finish_non_exhaustive()
    }
}
