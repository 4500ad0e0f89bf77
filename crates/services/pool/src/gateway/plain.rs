//! One JSON object in, one out.
//!
//! The request is read to its end before anything is answered, as far as it is not much too long: a connection that is
//! closed with unread bytes is reset, and its client may lose the answer.

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

use super::gate::Gate;
use super::visit::{News, Visit};
use super::{Peer, address, refusal};
use crate::backend::{Plan, add_file};
use crate::config::{Limits, Program};
use crate::protocol::{Outgoing, PlainAnswer, PlainFile, PlainOutput, PlainRequest, PlainResult};
use crate::units::size;

/// Most bytes that are read of a request that is too long, and how long they may take.
const REST_BYTES_MAX: usize = 64 << 20;
const REST_MAX: Duration = Duration::from_secs(10);

/// Why a request was not read.
#[derive(Debug, PartialEq, Eq)]
enum Unread {
    TooLong,
    Broken,
}

/// Runs a task and answers when it is done. A client that goes away takes its task with it.
pub(super) async fn run(
    State(gate): State<Gate>,
    Path(name): Path<String>,
    peer: Peer,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let body = read(body, bytes_max(&gate.0.limits)).await;
    // A form of another site's page cannot send this kind.
    if !is_json(&headers) {
        let why = "send JSON with the header 'Content-Type: application/json'";
        return refusal(StatusCode::UNSUPPORTED_MEDIA_TYPE, why);
    }
    let Some(program) = gate.0.programs.get(&name).cloned() else {
        return refusal(
            StatusCode::NOT_FOUND,
            "there is no such program; GET /pool/programs lists them",
        );
    };
    let body = match body {
        Ok(body) => body,
        Err(Unread::TooLong) => {
            let most = size(gate.0.limits.input_bytes_max as u64);
            let why = format!("the input is too large: send at most {most}");
            return refusal(StatusCode::PAYLOAD_TOO_LARGE, &why);
        }
        Err(Unread::Broken) => {
            return refusal(StatusCode::BAD_REQUEST, "the request ended before its input did");
        }
    };
    let _held = match gate.hold(body.len()) {
        Ok(held) => held,
        Err(error) => return refusal(StatusCode::SERVICE_UNAVAILABLE, &error.to_string()),
    };
    let plan = match plan(&body, program, &gate.0.limits) {
        Ok(plan) => plan,
        Err(why) => return refusal(StatusCode::BAD_REQUEST, &why),
    };
    let _turn = match gate.0.turns.take(address(peer)) {
        Ok(turn) => turn,
        Err(next) => next.take().await,
    };
    let mut visit = match Visit::begin(&gate, plan).await {
        Ok(visit) => visit,
        Err(error) => return refusal(StatusCode::SERVICE_UNAVAILABLE, &error.to_string()),
    };
    let mut gathered = PlainResult::default();
    loop {
        match visit.next().await {
            News::Frame(Outgoing::Complete(error)) => {
                gathered.error = error;
                return answer(gathered);
            }
            News::Frame(Outgoing::Deny(why)) => {
                return refusal(StatusCode::SERVICE_UNAVAILABLE, &why);
            }
            News::Frame(frame) => gather(&mut gathered, frame),
            News::End => return answer(gathered),
        }
    }
}

/// A request of so many bytes at most. What is longer is read on and thrown away.
async fn read(body: Body, bytes_max: usize) -> Result<Vec<u8>, Unread> {
    let mut pieces = body.into_data_stream();
    let mut read = Vec::new();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|_| Unread::Broken)?;
        if read.len() + piece.len() > bytes_max {
            drop(read);
            let mut left = REST_BYTES_MAX;
            let rest = async {
                while let Some(Ok(piece)) = pieces.next().await
                    && piece.len() < left
                {
                    left -= piece.len();
                }
            };
            let _ = timeout(REST_MAX, rest).await;
            return Err(Unread::TooLong);
        }
        read.extend_from_slice(&piece);
    }
    Ok(read)
}

/// Most bytes of a request. Base64 takes four for three, and there is something around it.
fn bytes_max(limits: &Limits) -> usize {
    limits.input_bytes_max.saturating_mul(2).saturating_add(64 << 10)
}

fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let kind = value.and_then(|value| value.split(';').next()).unwrap_or_default();
    kind.trim().eq_ignore_ascii_case("application/json")
}

fn plan(body: &[u8], program: Arc<Program>, limits: &Limits) -> Result<Plan, String> {
    let request: PlainRequest =
        serde_json::from_slice(body).map_err(|error| format!("not the JSON wanted: {error}"))?;
    let mut files = Vec::new();
    for file in request.input {
        let file = bytes(file)?;
        add_file(&mut files, &program, limits, file).map_err(|error| error.to_string())?;
    }
    Plan::new(program, files, &request.options, &request.start, false)
        .map_err(|error| error.to_string())
}

fn bytes(file: PlainFile) -> Result<(String, Vec<u8>), String> {
    match (file.text, file.base64) {
        (Some(text), None) => Ok((file.filename, text.into_bytes())),
        (None, Some(encoded)) => {
            let bytes = STANDARD.decode(encoded).map_err(|error| format!("base64: {error}"))?;
            Ok((file.filename, bytes))
        }
        _ => Err("each file has either `text` or `base64`".into()),
    }
}

fn gather(gathered: &mut PlainResult, frame: Outgoing) {
    match frame {
        Outgoing::Output(stream, bytes) if !bytes.is_empty() => {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            gathered.output.push(PlainOutput { stream, text });
        }
        Outgoing::Result { format, bytes, .. } => {
            gathered.format = Some(format);
            gathered.result = Some(STANDARD.encode(bytes));
        }
        _ => {}
    }
}

fn answer(gathered: PlainResult) -> Response {
    let answer = match gathered.error {
        None => PlainAnswer::Ok(gathered),
        Some(_) => PlainAnswer::Error(gathered),
    };
    Json(answer).into_response()
}
