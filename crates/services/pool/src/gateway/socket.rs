//! Serves one client on a WebSocket: receives its files, then forwards frames until its task has ended.

use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use taskyard_core::Span;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;

use super::client_limits::ClientSlot;
use super::client_task::{ClientTask, NextFrame};
use super::file_cache::{FileHash, hash, parse_hash};
use super::shared::Gateway;
use super::stdin_queue::{StdinQueue, stdin_permit};
use super::upgrade::{ClientSocket, SocketError, Upgrade};
use super::{Peer, address, refusal};
use crate::backend::{TaskSpec, TaskSpecError, add_file, duration};
use crate::config::Program;
use crate::protocol::{
    IncomingFrame, InputHead, MissingFile, Options, OutgoingFrame, QueuePosition, StartHead,
};

/// How long a client may take between two frames before it starts its task.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// Size of a frame beyond the largest input, in bytes.
const FRAME_OVERHEAD: usize = 64 << 10;

/// A task with files.
pub(super) async fn batch(
    state: State<Gateway>,
    path: Path<String>,
    peer: Peer,
    upgrade: Upgrade,
) -> Response {
    accept(state, path, peer, upgrade, false)
}

/// A session with standard input.
pub(super) async fn interactive(
    state: State<Gateway>,
    path: Path<String>,
    peer: Peer,
    upgrade: Upgrade,
) -> Response {
    accept(state, path, peer, upgrade, true)
}

fn accept(
    State(gateway): State<Gateway>,
    Path(name): Path<String>,
    peer: Peer,
    upgrade: Upgrade,
    interactive: bool,
) -> Response {
    let Some(program) = gateway.0.programs.get(&name).cloned() else {
        return refusal(StatusCode::NOT_FOUND, "no such program; GET /pool/programs lists them");
    };
    let Ok(permit) = gateway.0.client_permits.clone().try_acquire_owned() else {
        return refusal(StatusCode::SERVICE_UNAVAILABLE, "too many clients; try again later");
    };
    let bytes_max = gateway.0.limits.input_bytes_max + FRAME_OVERHEAD;
    upgrade.serve(bytes_max, move |socket| async move {
        let (input_permits, address) = (Vec::new(), address(peer));
        let mut client =
            SocketClient { socket, gateway, program, interactive, address, input_permits };
        // All resources are released when this ends, for whatever reason.
        if let Err(SessionEnd::Rejected(why)) = client.serve().await {
            let _ = client.send(&OutgoingFrame::Deny(why)).await;
        }
        let SocketClient { socket, input_permits, .. } = client;
        drop(input_permits);
        socket.finish().await;
        drop(permit);
    })
}

/// A connected client.
struct SocketClient {
    socket: ClientSocket,
    gateway: Gateway,
    program: Arc<Program>,
    interactive: bool,
    address: Option<IpAddr>,
    /// Permits for the memory of its files.
    input_permits: Vec<OwnedSemaphorePermit>,
}

/// Why a session ended early.
pub(super) enum SessionEnd {
    /// The client disconnected.
    Disconnected,
    /// The client violated the protocol or a limit.
    Rejected(String),
}

pub(super) fn rejected(error: impl ToString) -> SessionEnd {
    SessionEnd::Rejected(error.to_string())
}

impl SocketClient {
    async fn serve(&mut self) -> Result<(), SessionEnd> {
        let spec = self.receive_task().await?;
        let (_slot, requested) = self.acquire_slot().await?;
        let mut client_task = ClientTask::submit(&self.gateway, spec).await.map_err(rejected)?;
        if let Some(requested) = requested {
            self.lower(&mut client_task, requested).await?;
        }
        // Whether the next binary frame is for the standard input.
        let mut stdin = false;
        let mut pending = StdinQueue::new(self.gateway.0.limits.input_bytes_max);
        loop {
            let stdin_permit = stdin_permit(client_task.input(), pending.is_empty());
            tokio::select! {
                next = client_task.next_frame() => match next {
                    NextFrame::Frame(frame) => {
                        self.send(&frame).await?;
                        if frame.is_last() {
                            return Ok(());
                        }
                    }
                    NextFrame::End => return Ok(()),
                },
                permit = stdin_permit => pending.send_next(permit),
                message = self.socket.next() => match self.read(message)? {
                    ClientMessage::Text(text) => stdin = self.handle_text(&mut client_task, &text).await?,
                    ClientMessage::Bytes(bytes) if stdin => {
                        stdin = false;
                        pending.push(bytes)?;
                    }
                    ClientMessage::Bytes(_) => return Err(rejected("unexpected binary frame")),
                    ClientMessage::Control => {}
                },
            }
        }
    }

    /// Waits outside the queue until the client is below its limit of tasks; an interactive task is denied instead.
    /// Also returns the lower duration that the client asked for meanwhile.
    async fn acquire_slot(&mut self) -> Result<(Option<ClientSlot>, Option<Span>), SessionEnd> {
        let wait = match self.gateway.0.client_limits.take(self.address) {
            Ok(slot) => return Ok((slot, None)),
            Err(_) if self.interactive => {
                return Err(rejected("client limit reached; try again later"));
            }
            Err(wait) => wait,
        };
        self.send(&OutgoingFrame::Queue(QueuePosition::client_limit())).await?;
        let mut slot = pin!(wait.take());
        let mut requested: Option<Span> = None;
        loop {
            tokio::select! {
                slot = &mut slot => return Ok((slot, requested)),
                message = self.socket.next() => match self.read(message)? {
                    ClientMessage::Text(text) => {
                        let less = lowered_duration(&text)?;
                        requested = requested.into_iter().chain(less).min();
                    }
                    ClientMessage::Bytes(_) => return Err(rejected("unexpected binary frame")),
                    ClientMessage::Control => {}
                },
            }
        }
    }

    /// Handles a text frame of a running task; returns whether bytes for the standard input follow.
    async fn handle_text(
        &mut self,
        client_task: &mut ClientTask,
        text: &str,
    ) -> Result<bool, SessionEnd> {
        let stdin = |head: &InputHead| head.stream.as_deref() == Some("stdin");
        match IncomingFrame::read(text).map_err(rejected)? {
            IncomingFrame::Input(head) if self.interactive && stdin(&head) => return Ok(true),
            _ => {}
        }
        if let Some(requested) = lowered_duration(text)? {
            self.lower(client_task, requested).await?;
        }
        Ok(false)
    }

    async fn lower(
        &mut self,
        client_task: &mut ClientTask,
        requested: Span,
    ) -> Result<(), SessionEnd> {
        match client_task.lower(requested).await {
            Ok(()) => Ok(()),
            Err(why) => self.send(&OutgoingFrame::Status(why)).await,
        }
    }

    /// Receives files and options until `start`.
    async fn receive_task(&mut self) -> Result<TaskSpec, SessionEnd> {
        let (mut files, mut options) = (Vec::new(), Options::default());
        let mut missing = Vec::new();
        let mut asked = false;
        let mut pending = Vec::new();
        loop {
            let ClientMessage::Text(text) = self.next_message().await? else {
                return Err(rejected("unexpected binary frame: send `input` first"));
            };
            match IncomingFrame::read(&text).map_err(rejected)? {
                IncomingFrame::Options(new) => options = options.then(new),
                IncomingFrame::Input(InputHead { stream: Some(stream), .. })
                    if self.interactive && stream == "stdin" =>
                {
                    self.receive_stdin(&mut pending).await?;
                }
                IncomingFrame::Input(head) => {
                    self.receive_file(head, &mut files, &mut missing).await?
                }
                IncomingFrame::Start(_) if !missing.is_empty() => {
                    if std::mem::replace(&mut asked, true) {
                        return Err(rejected("missing files were not sent"));
                    }
                    let files = std::mem::take(&mut missing);
                    self.send(&OutgoingFrame::Missing(files)).await?;
                }
                IncomingFrame::Start(start) => {
                    let spec = self.spec(files, &options, &start)?;
                    return Ok(TaskSpec { stdin: pending, ..spec });
                }
            }
        }
    }

    async fn receive_file(
        &mut self,
        head: InputHead,
        files: &mut Vec<(String, Vec<u8>)>,
        missing: &mut Vec<MissingFile>,
    ) -> Result<(), SessionEnd> {
        let Some(name) = head.filename else {
            return Err(rejected("`input` needs `filename`"));
        };
        let hash = head.hash.as_deref().map(|text| {
            parse_hash(text)
                .ok_or_else(|| rejected("`hash` must be a SHA-256 of 64 hexadecimal digits"))
        });
        let hash = hash.transpose()?;
        let bytes = if head.restore {
            let Some(bytes) = hash.and_then(|hash| self.gateway.0.file_cache.get(&hash)) else {
                if missing.len() >= self.gateway.0.limits.input_files_max {
                    return Err(rejected("too many files"));
                }
                missing.push(MissingFile { filename: name, hash: head.hash });
                return Ok(());
            };
            bytes.to_vec()
        } else {
            self.receive_bytes(hash).await?
        };
        self.input_permits.push(self.gateway.reserve_input(bytes.len()).map_err(rejected)?);
        let limits = &self.gateway.0.limits;
        add_file(files, &self.program, limits, (name, bytes)).map_err(rejected)
    }

    async fn receive_bytes(&mut self, wanted: Option<FileHash>) -> Result<Vec<u8>, SessionEnd> {
        let ClientMessage::Bytes(bytes) = self.next_message().await? else {
            return Err(rejected("`input` must be followed by the bytes of the file"));
        };
        if wanted.is_some_and(|wanted| wanted != hash(&bytes)) {
            return Err(rejected("the bytes do not match `hash`"));
        }
        if self.gateway.0.file_cache.is_enabled()
            && bytes.len() <= self.gateway.0.limits.input_bytes_max
        {
            self.gateway.0.file_cache.insert(&bytes);
        }
        Ok(bytes)
    }

    /// Receives input that a session gets as soon as it runs.
    async fn receive_stdin(&mut self, pending: &mut Vec<u8>) -> Result<(), SessionEnd> {
        let ClientMessage::Bytes(bytes) = self.next_message().await? else {
            return Err(rejected("`input` must be followed by the bytes for the standard input"));
        };
        let bytes_max = self.gateway.0.limits.input_bytes_max;
        if pending.len() + bytes.len() > bytes_max {
            return Err(rejected(TaskSpecError::TooLarge(bytes_max)));
        }
        self.input_permits.push(self.gateway.reserve_input(bytes.len()).map_err(rejected)?);
        pending.extend(bytes);
        Ok(())
    }

    fn spec(
        &self,
        files: Vec<(String, Vec<u8>)>,
        options: &Options,
        start: &StartHead,
    ) -> Result<TaskSpec, SessionEnd> {
        TaskSpec::new(self.program.clone(), files, options, start, self.interactive)
            .map_err(rejected)
    }

    async fn next_message(&mut self) -> Result<ClientMessage, SessionEnd> {
        loop {
            let message = timeout(IDLE_MAX, self.socket.next()).await;
            let late = || format!("no frame for {} s: send input, then start", IDLE_MAX.as_secs());
            let message = message.map_err(|_| rejected(late()))?;
            match self.read(message)? {
                ClientMessage::Control => {}
                message => return Ok(message),
            }
        }
    }

    async fn send(&mut self, frame: &OutgoingFrame) -> Result<(), SessionEnd> {
        let bytes = frame.bytes().map(|bytes| Message::Binary(bytes.to_vec().into()));
        for message in [Some(Message::Text(frame.text().into())), bytes].into_iter().flatten() {
            self.socket.send(message).await.map_err(|_| SessionEnd::Disconnected)?;
        }
        Ok(())
    }

    fn read(&self, message: Result<Message, SocketError>) -> Result<ClientMessage, SessionEnd> {
        match message {
            Ok(Message::Text(text)) => Ok(ClientMessage::Text(text.as_str().into())),
            Ok(Message::Binary(bytes)) => Ok(ClientMessage::Bytes(bytes.into())),
            Ok(_) => Ok(ClientMessage::Control),
            Err(SocketError::Closed) => Err(SessionEnd::Disconnected),
            Err(SocketError::TooLong) => {
                Err(rejected(TaskSpecError::TooLarge(self.gateway.0.limits.input_bytes_max)))
            }
            Err(SocketError::Protocol(why)) => {
                Err(rejected(format!("invalid WebSocket frame: {why}")))
            }
        }
    }
}

/// The lower duration in a frame; after `start` a client may send nothing else.
fn lowered_duration(text: &str) -> Result<Option<Span>, SessionEnd> {
    match IncomingFrame::read(text).map_err(rejected)? {
        IncomingFrame::Options(options) => {
            options.duration.map(duration).transpose().map_err(rejected)
        }
        _ => Err(rejected("the task has started; only the duration can be changed")),
    }
}

/// A message of a client.
enum ClientMessage {
    Text(String),
    Bytes(Vec<u8>),
    Control,
}
