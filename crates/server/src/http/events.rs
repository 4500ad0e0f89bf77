//! Events of semaphores over a WebSocket: they come as they happen, and are acknowledged on the same socket.

use std::collections::HashSet;
use std::pin::Pin;
use std::time::Duration;

use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket, WebSocketUpgrade};
use axum::extract::{Query, State};
use axum::http::Method;
use axum::response::Response;
use serde::Deserialize;
use taskyard_core::{Command, Error, EventId, Reply, SemaphoreCommand, SemaphoreEvent};
use taskyard_core::{SemaphoreKey, SemaphoreReply, Span};
use taskyard_wire::Code;
use taskyard_wire::http::{AcknowledgeRequest, EventAnswer, SocketAnswer, parse};
use tokio::time::{MissedTickBehavior, interval};

use super::route::QueryField;
use super::{Refusal, Route, Shape};
use crate::app::{App, Shared};

/// How many events may be without acknowledgement on one socket; more are not sent.
const WINDOW: usize = 1000;
/// How long one question for events waits; then it is asked again.
const LISTEN: Span = Span::from_secs(30);
/// How often a silent client is asked whether it is still there.
const PING_EVERY: Duration = Duration::from_secs(20);
/// Largest message of a client, in bytes.
const MESSAGE_BYTES_MAX: usize = 256 << 10;

/// The address of this file.
pub(crate) fn route() -> Route {
    let about = (
        "semaphore_event_socket",
        "Events over a WebSocket: one JSON object in each message; the client answers with {\"events\": [id, ...]}",
    );
    Route::new(Method::GET, "/v1/semaphore-events/socket", about, open)
        .asks(QueryField::text("semaphore", "Of which semaphore; of all when absent"))
        .answers_with(101, "Each message is one of these", Shape::of::<SocketAnswer>())
        .refuses([Code::SemaphoreNotFound])
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Of {
    semaphore: Option<String>,
}

async fn open(
    State(app): State<Shared>,
    of: Result<Query<Of>, axum::extract::rejection::QueryRejection>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Refusal> {
    let Query(of) = of.map_err(|error| Error::Invalid(error.body_text()))?;
    let key = of.semaphore.as_deref().map(SemaphoreKey::new).transpose()?;
    // A key that is not there is told before the socket is open, where it can still be read as a refusal.
    ask(&app, SemaphoreCommand::Events { key: key.clone(), count: 0, wait: Span::ZERO }).await?;
    let upgrade = upgrade.map_err(|_| {
        Error::Invalid("this address speaks WebSocket; POST /v1/semaphore-events does not".into())
    })?;
    // The connection that it came over is given back with the upgrade.
    let room = app.room.clone().try_acquire_owned();
    let room = room.map_err(|_| Error::Overloaded("there are too many connections"))?;
    Ok(upgrade.max_message_size(MESSAGE_BYTES_MAX).on_upgrade(move |socket| async move {
        Talk { app, key, socket, unheard: HashSet::new() }.run().await;
        drop(room);
    }))
}

async fn ask(app: &App, command: SemaphoreCommand) -> Result<SemaphoreReply, Error> {
    match app.ask(Command::Semaphore(command)).await? {
        Reply::Semaphore(reply) => Ok(reply),
        _ => Err(Error::Store("the engine answered something else than was asked".into())),
    }
}

/// One open socket.
struct Talk {
    app: Shared,
    key: Option<SemaphoreKey>,
    socket: WebSocket,
    /// Events that were sent and not acknowledged.
    unheard: HashSet<EventId>,
}

type Fetch = Pin<Box<dyn Future<Output = Result<SemaphoreReply, Error>> + Send>>;

impl Talk {
    /// Sends and hears until one side ends it. What was sent and not acknowledged comes again, to whoever listens then.
    async fn run(mut self) {
        let mut ping = interval(PING_EVERY);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Kept while messages come: a question that is dropped might have had an answer.
        let mut fetch: Option<Fetch> = None;
        loop {
            if fetch.is_none() && self.unheard.len() < WINDOW {
                fetch = Some(self.fetch());
            }
            let goes_on = tokio::select! {
                message = self.socket.recv() => self.hear(message).await,
                events = async { fetch.as_mut().expect("it is there").await }, if fetch.is_some() => {
                    fetch = None;
                    self.tell(events).await
                }
                _ = ping.tick() => self.socket.send(Message::Ping(Default::default())).await.is_ok(),
            };
            if !goes_on {
                return;
            }
        }
    }

    fn fetch(&self) -> Fetch {
        let (app, key) = (self.app.clone(), self.key.clone());
        let count = WINDOW - self.unheard.len();
        let events = SemaphoreCommand::Events { key, count, wait: LISTEN };
        Box::pin(async move { ask(&app, events).await })
    }

    /// Sends events; whether to go on.
    async fn tell(&mut self, events: Result<SemaphoreReply, Error>) -> bool {
        match events {
            Ok(SemaphoreReply::Events(events)) => {
                for event in &events {
                    if !self.send_event(event).await {
                        return false;
                    }
                }
                true
            }
            Ok(_) => false,
            Err(Error::ShuttingDown) => {
                self.close(1001, "the server is shutting down").await;
                false
            }
            Err(error) => {
                self.close(1011, &error.to_string()).await;
                false
            }
        }
    }

    async fn send_event(&mut self, event: &SemaphoreEvent) -> bool {
        self.unheard.insert(event.id);
        self.send(&SocketAnswer::Event(EventAnswer::new(event))).await
    }

    async fn send(&mut self, answer: &SocketAnswer) -> bool {
        let Ok(text) = serde_json::to_string(answer) else { return false };
        self.socket.send(Message::Text(text.into())).await.is_ok()
    }

    /// Takes in what the client says; whether to go on.
    async fn hear(&mut self, message: Option<Result<Message, axum::Error>>) -> bool {
        let text = match message {
            Some(Ok(Message::Text(text))) => text,
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => return true,
            Some(Ok(Message::Binary(_))) => {
                self.close(1003, "acknowledge with text: {\"events\": [1, 2]}").await;
                return false;
            }
            Some(Ok(Message::Close(_)) | Err(_)) | None => return false,
        };
        let request: Result<AcknowledgeRequest, Error> = parse(text.as_bytes());
        let events = match request {
            Ok(request) => request.into_command(),
            Err(error) => {
                self.close(1007, &error.to_string()).await;
                return false;
            }
        };
        if let SemaphoreCommand::Acknowledge { events } = &events {
            events.iter().for_each(|event| _ = self.unheard.remove(event));
        }
        match ask(&self.app, events).await {
            Ok(SemaphoreReply::Acknowledged(count)) => {
                self.send(&SocketAnswer::Acknowledged(count)).await
            }
            Ok(_) => false,
            refusal => self.tell(refusal).await,
        }
    }

    /// Says why it ends; the reason of a frame is short.
    async fn close(&mut self, code: u16, reason: &str) {
        let end =
            reason.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|at| *at <= 120);
        let reason = &reason[..end.last().unwrap_or(0)];
        let frame = CloseFrame { code, reason: Utf8Bytes::from(reason) };
        // Whoever is gone already hears nothing.
        let _ = self.socket.send(Message::Close(Some(frame))).await;
    }
}
