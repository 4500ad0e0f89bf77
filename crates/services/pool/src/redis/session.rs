//! A task at its backend, and the gateway that comes for it.

use std::collections::VecDeque;
use std::time::Duration;

use axum::extract::ws::{Message, WebSocket};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::MEET_MAX;
use super::door::Token;
use super::events::limit_of;
use crate::backend::Running;
use crate::protocol::Outgoing;
use crate::scheduler::{Control, Freed};

/// How long a gateway may take to accept a frame, and to come for a task that has ended.
const SEND_MAX: Duration = Duration::from_secs(30);
/// Most bytes for a standard input that wait for a program; then its gateway waits.
const WORDS_BYTES_MAX: usize = 1 << 20;

/// What a backend's own tasks tell it.
#[derive(Debug)]
pub(super) enum Told {
    Freed {
        id: String,
        attempt: String,
        freed: Freed,
    },
    /// No gateway came for it, so that nobody has heard its end.
    Unmet {
        id: String,
        attempt: String,
    },
    /// It was halted: the next task may come while its program is still being killed.
    Halted {
        id: String,
        attempt: String,
    },
}

/// A task and the gateway that has come for it.
pub(super) struct Session {
    pub running: Running,
    pub control: mpsc::UnboundedSender<Control>,
    pub tell: mpsc::UnboundedSender<Told>,
}

impl Session {
    /// Passes frames on until the end. The program stops when this is over, because nobody hears it then.
    pub async fn run(mut self, mut token: Token, halted: Told, unmet: Told) {
        let Some(mut socket) = self.meet(&mut token).await else {
            tracing::debug!("no gateway came for a task");
            // Told before the program hears of it, so that its end is no end for the client.
            let _ = self.tell.send(unmet);
            return;
        };
        let mut halted = Some(halted);
        let mut stdin = false;
        let mut words: VecDeque<Vec<u8>> = VecDeque::new();
        loop {
            let waiting: usize = words.iter().map(Vec::len).sum();
            tokio::select! {
                permit = self.running.input.reserve(), if !words.is_empty() => {
                    let word = words.pop_front().unwrap_or_default();
                    match permit {
                        Ok(permit) => permit.send(word),
                        // A program without standard input takes nothing.
                        Err(_) => words.clear(),
                    }
                }
                frame = self.running.frames.recv() => {
                    let Some(frame) = frame else { break };
                    if send(&mut socket, &frame).await.is_err() {
                        return;
                    }
                    if frame.is_last() {
                        break;
                    }
                }
                message = socket.recv(), if waiting < WORDS_BYTES_MAX => match message {
                    Some(Ok(Message::Text(text))) => {
                        stdin = self.hear(text.as_str(), &mut halted);
                    }
                    Some(Ok(Message::Binary(bytes))) if stdin => {
                        stdin = false;
                        words.push_back(bytes.into());
                    }
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                    _ => return,
                },
            }
        }
        let _ = timeout(SEND_MAX, socket.send(Message::Close(None))).await;
        // The gateway may just be saying something: a connection that ends before it was heard takes with it what the
        // gateway has not read.
        let rest = async { while let Some(Ok(_)) = socket.recv().await {} };
        let _ = timeout(MEET_MAX, rest).await;
    }

    /// The gateway that comes. A program does not run for nobody; one that has ended costs nothing, and its words wait
    /// longer, because a gateway that is slow must not turn an end into a loss.
    async fn meet(&self, token: &mut Token) -> Option<WebSocket> {
        match timeout(MEET_MAX, &mut token.comes).await {
            Ok(came) => came.ok(),
            Err(_) if self.running.frames.is_closed() => {
                timeout(SEND_MAX, &mut token.comes).await.ok()?.ok()
            }
            Err(_) => None,
        }
    }

    /// What a gateway says. Answers whether bytes for the standard input follow.
    fn hear(&self, said: &str, halted: &mut Option<Told>) -> bool {
        match said.split_once(' ').unwrap_or((said, "")) {
            ("limit", micros) => {
                if let Some(Some(limit)) = limit_of(micros) {
                    let _ = self.control.send(Control::Limit(limit));
                }
            }
            ("halt", why) => {
                let _ = self.control.send(Control::Halt(why.into()));
                if let Some(halted) = halted.take() {
                    let _ = self.tell.send(halted);
                }
            }
            ("input", _) => return true,
            (verb, _) => tracing::debug!(verb, "not understood"),
        }
        false
    }
}

async fn send(socket: &mut WebSocket, frame: &Outgoing) -> Result<(), ()> {
    let bytes = frame.bytes().map(|bytes| Message::Binary(bytes.to_vec().into()));
    for message in [Some(Message::Text(frame.text().into())), bytes].into_iter().flatten() {
        let sent = timeout(SEND_MAX, socket.send(message)).await;
        sent.map_err(drop)?.map_err(drop)?;
    }
    Ok(())
}
