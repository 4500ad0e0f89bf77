//! Events of semaphores over a WebSocket: they come as they happen, and are acknowledged on the same socket.

use std::collections::HashMap;
use std::pin::Pin;
use std::time::{Duration, Instant};

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
use tokio::time::{MissedTickBehavior, interval, sleep_until, timeout};

use super::route::QueryField;
use super::{Refusal, Route, Shape};
use crate::app::{App, Shared};

/// How many events may be without acknowledgement on one socket; more are not sent.
const WINDOW: usize = 1000;
/// After this time an event that was not acknowledged is told again, if it still is there at all.
const TOLD_AGAIN_AFTER: Duration = Duration::from_secs(30);
/// The name of the protocol that a page may ask for beside its token: browsers want one of theirs to be answered.
const PROTOCOL: &str = "taskyard.events";
/// How long one question for events waits; then it is asked again.
const LISTEN: Span = Span::from_secs(30);
/// How often a silent client is asked whether it is still there.
const PING_EVERY: Duration = Duration::from_secs(20);
/// How many such questions may stay without any word.
const PINGS_UNANSWERED_MAX: u32 = 2;
/// How long a client may take to accept a message.
const SEND_MAX: Duration = Duration::from_secs(30);
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
    let upgrade = upgrade.protocols([PROTOCOL]).max_message_size(MESSAGE_BYTES_MAX);
    // A frame is read whole before the message is looked at.
    Ok(upgrade.max_frame_size(MESSAGE_BYTES_MAX).on_upgrade(move |socket| async move {
        let (window, silence) = (Window::default(), Silence::default());
        Talk { app, key, socket, window, silence }.run().await;
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
    window: Window,
    silence: Silence,
}

/// Events that were sent and not acknowledged. Many never will be: a release takes them back, or they are acknowledged
/// elsewhere. So each is forgotten when it would come again anyway.
#[derive(Default)]
struct Window(HashMap<EventId, Instant>);

impl Window {
    /// How many more may be sent.
    fn room(&mut self, now: Instant) -> usize {
        if self.0.len() >= WINDOW {
            self.0.retain(|_, sent| now < *sent + TOLD_AGAIN_AFTER);
        }
        WINDOW.saturating_sub(self.0.len())
    }

    /// When the first of them is forgotten.
    fn opens_at(&self) -> Option<Instant> {
        self.0.values().min().map(|sent| *sent + TOLD_AGAIN_AFTER)
    }

    fn sent(&mut self, event: EventId, now: Instant) {
        self.0.insert(event, now);
    }

    fn heard(&mut self, event: EventId) {
        self.0.remove(&event);
    }
}

/// How often a client was asked whether it is there since it last said anything.
#[derive(Default)]
struct Silence(u32);

impl Silence {
    /// It is asked once more; whether there is any use in that.
    fn asks(&mut self) -> bool {
        self.0 += 1;
        self.0 <= PINGS_UNANSWERED_MAX
    }

    fn ends(&mut self) {
        self.0 = 0;
    }
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
            let room = self.window.room(Instant::now());
            if fetch.is_none() && room > 0 {
                fetch = Some(self.fetch(room));
            }
            let opens_at = self.window.opens_at().filter(|_| fetch.is_none());
            let goes_on = tokio::select! {
                message = self.socket.recv() => self.hear(message).await,
                events = async { fetch.as_mut().expect("it is there").await }, if fetch.is_some() => {
                    fetch = None;
                    self.tell(events).await
                }
                () = async { sleep_until(opens_at.expect("it is full").into()).await },
                    if opens_at.is_some() => true,
                _ = ping.tick() => {
                    self.silence.asks() && self.pass(Message::Ping(Default::default())).await
                }
            };
            if !goes_on {
                return;
            }
        }
    }

    fn fetch(&self, count: usize) -> Fetch {
        let (app, key) = (self.app.clone(), self.key.clone());
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
        self.window.sent(event.id, Instant::now());
        self.send(&SocketAnswer::Event(EventAnswer::new(event))).await
    }

    async fn send(&mut self, answer: &SocketAnswer) -> bool {
        let Ok(text) = serde_json::to_string(answer) else { return false };
        self.pass(Message::Text(text.into())).await
    }

    /// Sends a message, unless the client does not take it.
    async fn pass(&mut self, message: Message) -> bool {
        matches!(timeout(SEND_MAX, self.socket.send(message)).await, Ok(Ok(())))
    }

    /// Takes in what the client says; whether to go on.
    async fn hear(&mut self, message: Option<Result<Message, axum::Error>>) -> bool {
        self.silence.ends();
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
            events.iter().for_each(|event| self.window.heard(*event));
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
        let _ = self.pass(Message::Close(Some(frame))).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Only an acknowledgement on the same socket made room. A client that released each task instead heard nothing any
    // more after a thousand of them.
    #[test]
    fn events_that_nobody_acknowledges_do_not_close_the_window_for_ever() {
        let (mut window, start) = (Window::default(), Instant::now());
        for number in 0..WINDOW as u64 {
            window.sent(EventId(number), start + Duration::from_millis(number));
        }
        assert_eq!(window.room(start + TOLD_AGAIN_AFTER - Duration::from_millis(1)), 0);
        assert_eq!(window.opens_at(), Some(start + TOLD_AGAIN_AFTER));
        assert_eq!(window.room(start + TOLD_AGAIN_AFTER), 1);
        assert_eq!(window.room(start + TOLD_AGAIN_AFTER * 2), 1, "looked at only when it is full");
        window.sent(EventId(5000), start + TOLD_AGAIN_AFTER);
        assert_eq!(
            window.room(start + TOLD_AGAIN_AFTER * 2 - Duration::from_millis(1)),
            WINDOW - 1
        );
        window.heard(EventId(5000));
        assert_eq!(window.room(start + TOLD_AGAIN_AFTER), WINDOW);
    }

    /// A client that vanished without a word was told events for as long as the network tried.
    #[test]
    fn who_says_nothing_at_all_is_given_up() {
        let mut silence = Silence::default();
        assert!(silence.asks() && silence.asks());
        silence.ends();
        assert!(silence.asks() && silence.asks() && !silence.asks());
    }
}
