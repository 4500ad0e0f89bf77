//! A client on a WebSocket: first it brings its files, then it waits and watches.

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

use super::files::{Hash, hash, read_hash};
use super::gate::Gate;
use super::turns::Turn;
use super::upgrade::{End, Socket, Upgrade};
use super::visit::{News, Visit};
use super::words::{Words, room};
use super::{Peer, address, refusal};
use crate::backend::{Plan, StageError, add_file, duration};
use crate::config::Program;
use crate::protocol::{Frame, InputHead, MissingFile, Options, Outgoing, QueueNews, StartHead};

/// How long a client may take between two frames while it brings its files.
const BRING_MAX: Duration = Duration::from_secs(60);
/// Room for a frame around the largest input, in bytes.
const FRAME_SPARE: usize = 64 << 10;

/// A task with files.
pub(super) async fn batch(
    state: State<Gate>,
    path: Path<String>,
    peer: Peer,
    upgrade: Upgrade,
) -> Response {
    accept(state, path, peer, upgrade, false)
}

/// A session with standard input.
pub(super) async fn interactive(
    state: State<Gate>,
    path: Path<String>,
    peer: Peer,
    upgrade: Upgrade,
) -> Response {
    accept(state, path, peer, upgrade, true)
}

fn accept(
    State(gate): State<Gate>,
    Path(name): Path<String>,
    peer: Peer,
    upgrade: Upgrade,
    interactive: bool,
) -> Response {
    let Some(program) = gate.0.programs.get(&name).cloned() else {
        return refusal(
            StatusCode::NOT_FOUND,
            "there is no such program; GET /pool/programs lists them",
        );
    };
    let Ok(permit) = gate.0.room.clone().try_acquire_owned() else {
        return refusal(StatusCode::SERVICE_UNAVAILABLE, "there are too many clients; try later");
    };
    let bytes_max = gate.0.limits.input_bytes_max + FRAME_SPARE;
    upgrade.serve(bytes_max, move |socket| async move {
        let (held, address) = (Vec::new(), address(peer));
        let mut client = Client { socket, gate, program, interactive, address, held };
        // Nothing is kept when this ends, however it ends.
        if let Err(Gone::Wrong(why)) = client.serve().await {
            let _ = client.send(&Outgoing::Deny(why)).await;
        }
        let Client { socket, held, .. } = client;
        drop(held);
        socket.finish().await;
        drop(permit);
    })
}

/// A client that is connected.
struct Client {
    socket: Socket,
    gate: Gate,
    program: Arc<Program>,
    interactive: bool,
    address: Option<IpAddr>,
    /// The room that its files have.
    held: Vec<OwnedSemaphorePermit>,
}

/// Why it is over before its time.
pub(super) enum Gone {
    /// The client left.
    Left,
    /// The client did something that is not allowed.
    Wrong(String),
}

pub(super) fn wrong(error: impl ToString) -> Gone {
    Gone::Wrong(error.to_string())
}

impl Client {
    async fn serve(&mut self) -> Result<(), Gone> {
        let plan = self.bring().await?;
        let (_turn, wish) = self.take_turn().await?;
        let mut visit = Visit::begin(&self.gate, plan).await.map_err(wrong)?;
        if let Some(wish) = wish {
            self.lower(&mut visit, wish).await?;
        }
        // Whether the next binary frame is for the standard input.
        let mut stdin = false;
        let mut words = Words::new(self.gate.0.limits.input_bytes_max);
        loop {
            let room = room(visit.input(), words.is_empty());
            tokio::select! {
                news = visit.next() => match news {
                    News::Frame(frame) => {
                        self.send(&frame).await?;
                        if frame.is_last() {
                            return Ok(());
                        }
                    }
                    News::End => return Ok(()),
                },
                permit = room => words.pass(permit),
                message = self.socket.next() => match self.read(message)? {
                    Said::Text(text) => stdin = self.hear(&mut visit, &text).await?,
                    Said::Bytes(bytes) if stdin => {
                        stdin = false;
                        words.add(bytes)?;
                    }
                    Said::Bytes(_) => return Err(wrong("these bytes belong to nothing")),
                    Said::Nothing => {}
                },
            }
        }
    }

    /// Waits outside the queue until the client has no more tasks in it than it may; an interactive one
    /// does not wait. Answers also the time the client wants meanwhile, if it wants less.
    async fn take_turn(&mut self) -> Result<(Option<Turn>, Option<Span>), Gone> {
        let next = match self.gate.0.turns.take(self.address) {
            Ok(turn) => return Ok((turn, None)),
            Err(_) if self.interactive => {
                return Err(wrong("this client has as many tasks as it may; try again later"));
            }
            Err(next) => next,
        };
        self.send(&Outgoing::Queue(QueueNews::outside())).await?;
        let mut turn = pin!(next.take());
        let mut wish: Option<Span> = None;
        loop {
            tokio::select! {
                turn = &mut turn => return Ok((turn, wish)),
                message = self.socket.next() => match self.read(message)? {
                    Said::Text(text) => {
                        let less = less_time(&text)?;
                        wish = wish.into_iter().chain(less).min();
                    }
                    Said::Bytes(_) => return Err(wrong("these bytes belong to nothing")),
                    Said::Nothing => {}
                },
            }
        }
    }

    /// Hears a client whose task is under way; says whether bytes for the standard input follow.
    async fn hear(&mut self, visit: &mut Visit, text: &str) -> Result<bool, Gone> {
        let stdin = |head: &InputHead| head.stream.as_deref() == Some("stdin");
        match Frame::read(text).map_err(wrong)? {
            Frame::Input(head) if self.interactive && stdin(&head) => return Ok(true),
            _ => {}
        }
        if let Some(wish) = less_time(text)? {
            self.lower(visit, wish).await?;
        }
        Ok(false)
    }

    async fn lower(&mut self, visit: &mut Visit, wish: Span) -> Result<(), Gone> {
        match visit.lower(wish).await {
            Ok(()) => Ok(()),
            Err(why) => self.send(&Outgoing::Status(why)).await,
        }
    }

    /// Hears files and options until the client says start.
    async fn bring(&mut self) -> Result<Plan, Gone> {
        let (mut files, mut options) = (Vec::new(), Options::default());
        let mut missing = Vec::new();
        let mut asked = false;
        let mut words = Vec::new();
        loop {
            let Said::Text(text) = self.hear_next().await? else {
                return Err(wrong("bytes without an `input` before them"));
            };
            match Frame::read(&text).map_err(wrong)? {
                Frame::Options(new) => options = options.then(new),
                Frame::Input(InputHead { stream: Some(stream), .. })
                    if self.interactive && stream == "stdin" =>
                {
                    self.bring_words(&mut words).await?;
                }
                Frame::Input(head) => self.bring_file(head, &mut files, &mut missing).await?,
                Frame::Start(_) if !missing.is_empty() => {
                    if std::mem::replace(&mut asked, true) {
                        return Err(wrong("files are still missing"));
                    }
                    let files = std::mem::take(&mut missing);
                    self.send(&Outgoing::Missing(files)).await?;
                }
                Frame::Start(start) => {
                    let plan = self.plan(files, &options, &start)?;
                    return Ok(Plan { words, ..plan });
                }
            }
        }
    }

    async fn bring_file(
        &mut self,
        head: InputHead,
        files: &mut Vec<(String, Vec<u8>)>,
        missing: &mut Vec<MissingFile>,
    ) -> Result<(), Gone> {
        let Some(name) = head.filename else {
            return Err(wrong("`input` needs a filename"));
        };
        let hash = head.hash.as_deref().map(|text| {
            read_hash(text).ok_or_else(|| wrong("`hash` is a SHA-256 of 64 hexadecimal digits"))
        });
        let hash = hash.transpose()?;
        let bytes = if head.restore {
            let Some(bytes) = hash.and_then(|hash| self.gate.0.files.get(&hash)) else {
                if missing.len() >= self.gate.0.limits.input_files_max {
                    return Err(wrong("there are too many files"));
                }
                missing.push(MissingFile { filename: name, hash: head.hash });
                return Ok(());
            };
            bytes.to_vec()
        } else {
            self.bring_bytes(hash).await?
        };
        self.held.push(self.gate.hold(bytes.len()).map_err(wrong)?);
        let limits = &self.gate.0.limits;
        add_file(files, &self.program, limits, (name, bytes)).map_err(wrong)
    }

    async fn bring_bytes(&mut self, wanted: Option<Hash>) -> Result<Vec<u8>, Gone> {
        let Said::Bytes(bytes) = self.hear_next().await? else {
            return Err(wrong("`input` is followed by the bytes of the file"));
        };
        if wanted.is_some_and(|wanted| wanted != hash(&bytes)) {
            return Err(wrong("these bytes have another `hash`"));
        }
        if self.gate.0.files.is_on() && bytes.len() <= self.gate.0.limits.input_bytes_max {
            self.gate.0.files.keep(&bytes);
        }
        Ok(bytes)
    }

    /// Hears what a session is to be told as soon as it runs.
    async fn bring_words(&mut self, words: &mut Vec<u8>) -> Result<(), Gone> {
        let Said::Bytes(bytes) = self.hear_next().await? else {
            return Err(wrong("`input` is followed by the bytes for the standard input"));
        };
        let bytes_max = self.gate.0.limits.input_bytes_max;
        if words.len() + bytes.len() > bytes_max {
            return Err(wrong(StageError::TooLarge(bytes_max)));
        }
        self.held.push(self.gate.hold(bytes.len()).map_err(wrong)?);
        words.extend(bytes);
        Ok(())
    }

    fn plan(
        &self,
        files: Vec<(String, Vec<u8>)>,
        options: &Options,
        start: &StartHead,
    ) -> Result<Plan, Gone> {
        Plan::new(self.program.clone(), files, options, start, self.interactive).map_err(wrong)
    }

    async fn hear_next(&mut self) -> Result<Said, Gone> {
        loop {
            let message = timeout(BRING_MAX, self.socket.next()).await;
            let late =
                || format!("nothing came for {} s: send input, then start", BRING_MAX.as_secs());
            let message = message.map_err(|_| wrong(late()))?;
            match self.read(message)? {
                Said::Nothing => {}
                said => return Ok(said),
            }
        }
    }

    async fn send(&mut self, frame: &Outgoing) -> Result<(), Gone> {
        let bytes = frame.bytes().map(|bytes| Message::Binary(bytes.to_vec().into()));
        for message in [Some(Message::Text(frame.text().into())), bytes].into_iter().flatten() {
            self.socket.send(message).await.map_err(|_| Gone::Left)?;
        }
        Ok(())
    }

    fn read(&self, message: Result<Message, End>) -> Result<Said, Gone> {
        match message {
            Ok(Message::Text(text)) => Ok(Said::Text(text.as_str().into())),
            Ok(Message::Binary(bytes)) => Ok(Said::Bytes(bytes.into())),
            Ok(_) => Ok(Said::Nothing),
            Err(End::Left) => Err(Gone::Left),
            Err(End::TooLong) => {
                Err(wrong(StageError::TooLarge(self.gate.0.limits.input_bytes_max)))
            }
            Err(End::Wrong(why)) => Err(wrong(format!("not a WebSocket frame: {why}"))),
        }
    }
}

/// The time that a client wants from now on; it may say nothing else once it has said start.
fn less_time(text: &str) -> Result<Option<Span>, Gone> {
    match Frame::read(text).map_err(wrong)? {
        Frame::Options(options) => options.duration.map(duration).transpose().map_err(wrong),
        _ => Err(wrong("the task has started; only the duration can be changed")),
    }
}

/// What a client said.
enum Said {
    Text(String),
    Bytes(Vec<u8>),
    Nothing,
}
