//! Sends a backup of the store: part by part, as the client reads it.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes, HttpBody};
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::http::{Method, Response as HttpResponse};
use axum::response::Response;
use hyper::body::Frame;
use taskyard_core::Error;
use taskyard_core::access::{AccessTarget, AccessVerb};
use taskyard_engine::{BackupPart, StoreBackup};
use taskyard_wire::Code;
use tokio::task::{JoinError, JoinHandle, spawn_blocking};

use super::request::{Json, NothingRequest};
use super::route::Shape;
use super::{Refusal, RequestApp, Route, RunError};
use crate::audit::AuditDraft;

/// The type of the file.
const BACKUP: &str = "application/octet-stream";

/// The endpoints of this file.
pub(crate) fn routes() -> Vec<Route> {
    let about = (
        "backup",
        "Make a backup of everything in the store at one moment; `taskyard restore` reads the file",
    );
    let route = Route::new(Method::POST, "/v1/backup", about, backup)
        .request_body::<NothingRequest>()
        .responds_with(
            200,
            "The file; one that was cut is refused by `restore`",
            Shape::Text(BACKUP),
        )
        .uses_engine()
        .refuses([Code::MissingFeature]);
    vec![route]
}

async fn backup(
    app: RequestApp,
    Json(NothingRequest {}): Json<NothingRequest>,
) -> Result<Response, Refusal> {
    let draft = app.draft("backup", AccessTarget::All);
    if let Err(denied) = app.require(AccessVerb::Backup, AccessTarget::All) {
        draft.refused(&denied.to_string()).written().await;
        return Err(denied.into());
    }
    let capabilities = app.engine.capabilities();
    if let Some(instead) = capabilities.instead_of_backup {
        let name = capabilities.name;
        let message = format!("the server makes no backups of the {name} store; use {instead}");
        draft.failed(&message).written().await;
        return Err(Refusal::with_message(&capabilities.missing("backups"), message));
    }
    let engine = app.engine.clone();
    let begun = spawn_blocking(move || engine.backup()).await;
    let begun = begun.unwrap_or_else(|error| Err(lost(&error)));
    match begun {
        Ok(backup) => {
            let body = BackupBody { app, reading: Reading::Waits(backup), draft: Some(draft) };
            let mut response = HttpResponse::new(Body::new(body));
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(BACKUP));
            Ok(response)
        }
        Err(error) => {
            draft.failed(&error.to_string()).written().await;
            Err(error.into())
        }
    }
}

/// The body of the response. Dropped before its end, it is recorded as a backup whose outcome is unknown.
struct BackupBody {
    app: RequestApp,
    reading: Reading,
    draft: Option<AuditDraft>,
}

/// A backup, and its next part.
type ReadPart = (Box<dyn StoreBackup>, Option<BackupPart>);

enum Reading {
    /// The client reads the previous part.
    Waits(Box<dyn StoreBackup>),
    /// A thread reads the next part.
    Reads(JoinHandle<ReadPart>),
    Ended,
}

impl BackupBody {
    /// Records the outcome. The entry is written by another thread, which nothing waits for here.
    fn record(&mut self, failure: Option<&str>) {
        self.reading = Reading::Ended;
        if let Some(draft) = self.draft.take() {
            drop(match failure {
                None => draft.done(),
                Some(why) => draft.failed(why),
            });
        }
    }

    /// The rights of the user may have changed since the previous part.
    fn check_rights(&mut self) -> Result<(), RunError> {
        let found = self.app.require(AccessVerb::Backup, AccessTarget::All);
        found.inspect_err(|denied| self.record(Some(&denied.to_string())))
    }
}

impl HttpBody for BackupBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let this = self.get_mut();
        if matches!(this.reading, Reading::Waits(_)) {
            if let Err(denied) = this.check_rights() {
                return Poll::Ready(Some(Err(Error::Store(denied.to_string()))));
            }
            if let Reading::Waits(mut backup) = std::mem::replace(&mut this.reading, Reading::Ended)
            {
                let read = move || {
                    let part = backup.next_part();
                    (backup, part)
                };
                this.reading = Reading::Reads(spawn_blocking(read));
            }
        }
        let Reading::Reads(handle) = &mut this.reading else { return Poll::Ready(None) };
        match ready!(Pin::new(handle).poll(cx)) {
            Ok((_, None)) => {
                this.record(None);
                Poll::Ready(None)
            }
            Ok((backup, Some(BackupPart { bytes, failure }))) => {
                match failure {
                    None => this.reading = Reading::Waits(backup),
                    Some(error) => this.record(Some(&error.to_string())),
                }
                Poll::Ready(Some(Ok(Frame::data(bytes.into()))))
            }
            Err(error) => {
                let error = lost(&error);
                this.record(Some(&error.to_string()));
                Poll::Ready(Some(Err(error)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.reading, Reading::Ended)
    }
}

fn lost(error: &JoinError) -> Error {
    Error::Store(format!("the thread that reads the backup ended: {error}"))
}
