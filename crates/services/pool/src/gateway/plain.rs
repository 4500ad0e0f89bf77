//! Runs a task that comes as one JSON object and answers with one JSON object.
//!
//! The request is read to its end before it is answered, unless it is far too long: a connection that is closed with
//! unread bytes is reset, and its client may lose the answer.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_util::StreamExt;
use tokio::time::timeout;

use super::client_task::{ClientTask, NextFrame};
use super::shared::Gateway;
use super::{Peer, address, refusal};
use crate::backend::{TaskSpec, add_file};
use crate::config::{Limits, Program};
use crate::protocol::{
    OutgoingFrame, PlainAnswer, PlainFile, PlainOutput, PlainRequest, PlainResult,
};
use crate::units::size;

/// How many bytes of a request that is too long are read and discarded, and how long that may take.
const DISCARD_BYTES_MAX: usize = 64 << 20;
const DISCARD_MAX: Duration = Duration::from_secs(10);

/// Why the body of a request could not be read.
#[derive(Debug, PartialEq, Eq)]
enum BodyError {
    TooLong,
    Broken,
}

/// Runs a task and answers when it has ended. The task ends when its client disconnects.
pub(super) async fn run(
    State(gateway): State<Gateway>,
    Path(name): Path<String>,
    peer: Peer,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let body = read(body, bytes_max(&gateway.0.limits)).await;
    // A form of another site's page cannot send this media type.
    if !is_json(&headers) {
        let why = "send JSON with the header 'Content-Type: application/json'";
        return refusal(StatusCode::UNSUPPORTED_MEDIA_TYPE, why);
    }
    let Some(program) = gateway.0.programs.get(&name).cloned() else {
        return refusal(StatusCode::NOT_FOUND, "no such program; GET /pool/programs lists them");
    };
    let body = match body {
        Ok(body) => body,
        Err(BodyError::TooLong) => {
            let most = size(gateway.0.limits.input_bytes_max as u64);
            let why = format!("the input is too large: send at most {most}");
            return refusal(StatusCode::PAYLOAD_TOO_LARGE, &why);
        }
        Err(BodyError::Broken) => {
            return refusal(StatusCode::BAD_REQUEST, "the request body is incomplete");
        }
    };
    let _input_permit = match gateway.reserve_input(body.len()) {
        Ok(permit) => permit,
        Err(error) => return refusal(StatusCode::SERVICE_UNAVAILABLE, &error.to_string()),
    };
    let spec = match spec(&body, program, &gateway.0.limits) {
        Ok(spec) => spec,
        Err(why) => return refusal(StatusCode::BAD_REQUEST, &why),
    };
    let _slot = match gateway.0.client_limits.take(address(peer)) {
        Ok(slot) => slot,
        Err(wait) => wait.take().await,
    };
    let mut client_task = match ClientTask::submit(&gateway, spec).await {
        Ok(client_task) => client_task,
        Err(error) => return refusal(StatusCode::SERVICE_UNAVAILABLE, &error.to_string()),
    };
    let mut collected = PlainResult::default();
    loop {
        match client_task.next_frame().await {
            NextFrame::Frame(OutgoingFrame::Complete(error)) => {
                collected.error = error;
                return answer(collected);
            }
            NextFrame::Frame(OutgoingFrame::Deny(why)) => {
                return refusal(StatusCode::SERVICE_UNAVAILABLE, &why);
            }
            NextFrame::Frame(frame) => collect(&mut collected, frame),
            NextFrame::End => return answer(collected),
        }
    }
}

/// Reads a body of at most `bytes_max` bytes. The rest of a longer one is read and discarded.
async fn read(body: Body, bytes_max: usize) -> Result<Vec<u8>, BodyError> {
    let mut pieces = body.into_data_stream();
    let mut read = Vec::new();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|_| BodyError::Broken)?;
        if read.len() + piece.len() > bytes_max {
            drop(read);
            let mut left = DISCARD_BYTES_MAX;
            let rest = async {
                while let Some(Ok(piece)) = pieces.next().await
                    && piece.len() < left
                {
                    left -= piece.len();
                }
            };
            let _ = timeout(DISCARD_MAX, rest).await;
            return Err(BodyError::TooLong);
        }
        read.extend_from_slice(&piece);
    }
    Ok(read)
}

/// Longest accepted body. Base64 needs four bytes for three, and there are other fields.
fn bytes_max(limits: &Limits) -> usize {
    limits.input_bytes_max.saturating_mul(2).saturating_add(64 << 10)
}

fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let kind = value.and_then(|value| value.split(';').next()).unwrap_or_default();
    kind.trim().eq_ignore_ascii_case("application/json")
}

fn spec(body: &[u8], program: Arc<Program>, limits: &Limits) -> Result<TaskSpec, String> {
    let request: PlainRequest =
        serde_json::from_slice(body).map_err(|error| format!("invalid request: {error}"))?;
    let mut files = Vec::new();
    for file in request.input {
        let file = bytes(file)?;
        add_file(&mut files, &program, limits, file).map_err(|error| error.to_string())?;
    }
    TaskSpec::new(program, files, &request.options, &request.start, false)
        .map_err(|error| error.to_string())
}

fn bytes(file: PlainFile) -> Result<(String, Vec<u8>), String> {
    match (file.text, file.base64) {
        (Some(text), None) => Ok((file.filename, text.into_bytes())),
        (None, Some(encoded)) => {
            let bytes = STANDARD.decode(encoded).map_err(|error| format!("base64: {error}"))?;
            Ok((file.filename, bytes))
        }
        _ => Err("each file needs either `text` or `base64`".into()),
    }
}

fn collect(collected: &mut PlainResult, frame: OutgoingFrame) {
    match frame {
        OutgoingFrame::Output(stream, bytes) if !bytes.is_empty() => {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            collected.output.push(PlainOutput { stream, text });
        }
        OutgoingFrame::Result { format, bytes, .. } => {
            collected.format = Some(format);
            collected.result = Some(STANDARD.encode(bytes));
        }
        _ => {}
    }
}

fn answer(collected: PlainResult) -> Response {
    let answer = match collected.error {
        None => PlainAnswer::Ok(collected),
        Some(_) => PlainAnswer::Error(collected),
    };
    Json(answer).into_response()
}
