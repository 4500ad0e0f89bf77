//! Serves the gateway that connects for a claimed task: sends frames and receives commands and input.

use std::collections::VecDeque;
use std::time::Duration;

use axum::extract::ws::{Message, WebSocket};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::GATEWAY_CONNECT_MAX;
use super::events::limit_of;
use super::token_listener::OneTimeToken;
use crate::backend::RunningProgram;
use crate::protocol::OutgoingFrame;
use crate::scheduler::{Control, FinishedRun};

/// How long a gateway may take to accept a frame, and to connect for a task that has ended.
const SEND_MAX: Duration = Duration::from_secs(30);
/// Longest standard input that is buffered for a program, in bytes; then reading from the gateway pauses.
const STDIN_BYTES_MAX: usize = 1 << 20;

/// An event of a job, for its backend.
#[derive(Debug)]
pub(super) enum JobEvent {
    Finished {
        id: String,
        attempt: String,
        finished: FinishedRun,
    },
    /// No gateway connected, so the client does not know how it ended.
    NoGateway {
        id: String,
        attempt: String,
    },
    /// It was halted: the next task may start while its program is still being killed.
    Halted {
        id: String,
        attempt: String,
    },
    /// Its time limit was lowered, to so many microseconds.
    Lowered {
        id: String,
        attempt: String,
        limit: String,
    },
}

/// A running program and the connection of its gateway.
pub(super) struct GatewaySession {
    pub running: RunningProgram,
    pub control: mpsc::UnboundedSender<Control>,
    pub events: mpsc::UnboundedSender<JobEvent>,
    /// The task and its attempt.
    pub id: String,
    pub attempt: String,
}

impl GatewaySession {
    /// Forwards frames until the end. When this returns the program is stopped.
    pub async fn run(mut self, mut token: OneTimeToken) {
        let Some(mut socket) = self.wait_for_gateway(&mut token).await else {
            tracing::debug!("no gateway connected for a task");
            // Sent before the program is stopped, so that its end does not count as the end of the task.
            let (id, attempt) = (self.id, self.attempt);
            let _ = self.events.send(JobEvent::NoGateway { id, attempt });
            return;
        };
        let mut stdin = false;
        let mut pending_stdin: VecDeque<Vec<u8>> = VecDeque::new();
        // An empty piece counts as a byte.
        let mut waiting = 0;
        // After input it is the turn of output.
        let mut had_input = false;
        loop {
            let reads = waiting < STDIN_BYTES_MAX && (!had_input || self.running.frames.is_empty());
            tokio::select! {
                // Commands come first: a program with much output must not delay a halt.
                biased;
                message = socket.recv(), if reads => match message {
                    Some(Ok(Message::Text(text))) => {
                        stdin = self.handle_text(text.as_str());
                    }
                    Some(Ok(Message::Binary(bytes))) if stdin => {
                        stdin = false;
                        had_input = true;
                        waiting += bytes.len().max(1);
                        pending_stdin.push_back(bytes.into());
                    }
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                    _ => return,
                },
                permit = self.running.input.reserve(), if !pending_stdin.is_empty() => {
                    let piece = pending_stdin.pop_front().unwrap_or_default();
                    waiting -= piece.len().max(1);
                    match permit {
                        Ok(permit) => permit.send(piece),
                        // A program without standard input discards it.
                        Err(_) => {
                            pending_stdin.clear();
                            waiting = 0;
                        }
                    }
                }
                frame = self.running.frames.recv() => {
                    let Some(frame) = frame else { break };
                    had_input = false;
                    if send(&mut socket, &frame).await.is_err() {
                        return;
                    }
                    if frame.is_last() {
                        break;
                    }
                }
            }
        }
        let _ = timeout(SEND_MAX, socket.send(Message::Close(None))).await;
        // The gateway may be sending just now: a connection that is closed with unread bytes is reset, and the
        // gateway loses what it has not read.
        let rest = async { while let Some(Ok(_)) = socket.recv().await {} };
        let _ = timeout(GATEWAY_CONNECT_MAX, rest).await;
    }

    /// Waits for the gateway. A program must not run without a client; one that has ended costs nothing, and its
    /// frames are kept longer, because a slow gateway must not turn an end into a loss.
    async fn wait_for_gateway(&self, token: &mut OneTimeToken) -> Option<WebSocket> {
        match timeout(GATEWAY_CONNECT_MAX, &mut token.connection).await {
            Ok(connected) => connected.ok(),
            Err(_) if self.running.frames.is_closed() => {
                timeout(SEND_MAX, &mut token.connection).await.ok()?.ok()
            }
            Err(_) => None,
        }
    }

    /// Handles a text message of the gateway. Returns whether bytes for the standard input follow.
    fn handle_text(&self, text: &str) -> bool {
        let (id, attempt) = (self.id.clone(), self.attempt.clone());
        match text.split_once(' ').unwrap_or((text, "")) {
            ("limit", micros) => {
                if let Some(Some(limit)) = limit_of(micros) {
                    let _ = self.control.send(Control::Limit(limit));
                    let limit = micros.to_owned();
                    let _ = self.events.send(JobEvent::Lowered { id, attempt, limit });
                }
            }
            ("halt", why) => {
                let _ = self.control.send(Control::Halt(why.into()));
                let _ = self.events.send(JobEvent::Halted { id, attempt });
            }
            ("input", _) => return true,
            (verb, _) => tracing::debug!(verb, "unknown message from a gateway"),
        }
        false
    }
}

async fn send(socket: &mut WebSocket, frame: &OutgoingFrame) -> Result<(), ()> {
    let bytes = frame.bytes().map(|bytes| Message::Binary(bytes.to_vec().into()));
    for message in [Some(Message::Text(frame.text().into())), bytes].into_iter().flatten() {
        let sent = timeout(SEND_MAX, socket.send(message)).await;
        sent.map_err(drop)?.map_err(drop)?;
    }
    Ok(())
}
