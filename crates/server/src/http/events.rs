//! Sends events of semaphores over a WebSocket as they occur, and receives their acknowledgements.

use std::collections::HashMap;
use std::pin::Pin;
use std::time::{Duration, Instant};

use axum::extract::Query;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket, WebSocketUpgrade};
use axum::http::Method;
use axum::response::Response;
use serde::Deserialize;
use taskyard_core::access::{AccessTarget, AccessVerb};
use taskyard_core::{Command, Error, EventId, Reply, SemaphoreCommand, SemaphoreEvent};
use taskyard_core::{SemaphoreKey, SemaphoreReply, Span};
use taskyard_wire::Code;
use taskyard_wire::http::{AcknowledgeRequest, EventAnswer, SocketAnswer, parse};
use tokio::time::{MissedTickBehavior, interval, sleep_until, timeout};

use super::route::QueryField;
use super::{Refusal, RequestApp, Route, RunError, Shape};

/// Maximum number of unacknowledged events on one socket; more are not sent.
const WINDOW: usize = 1000;
/// After this time an unacknowledged event is sent again, if it still exists.
const RESEND_AFTER: Duration = Duration::from_secs(30);
/// The subprotocol that a web page requests beside its token: browsers require one of the requested
/// protocols in the response.
const PROTOCOL: &str = "taskyard.events";
/// How long one fetch waits for events before it is repeated.
const LISTEN: Span = Span::from_secs(30);
/// How often a client is pinged.
const PING_EVERY: Duration = Duration::from_secs(20);
/// Maximum number of pings without any message of the client.
const PINGS_UNANSWERED_MAX: u32 = 2;
/// How long a client may take to accept a message.
const SEND_MAX: Duration = Duration::from_secs(30);
/// Largest message of a client, in bytes.
const MESSAGE_BYTES_MAX: usize = 256 << 10;

/// The endpoint of this file.
pub(crate) fn route() -> Route {
    let about = (
        "semaphore_event_socket",
        "Events over a WebSocket: one JSON object in each message; the client acknowledges with {\"events\": [id, ...]}",
    );
    Route::new(Method::GET, "/v1/semaphore-events/socket", about, open)
        .query_param(QueryField::text("semaphore", "The semaphore; all semaphores when absent"))
        .responds_with(101, "Each message is one of these", Shape::of::<SocketAnswer>())
        .refuses([Code::SemaphoreNotFound])
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EventsQuery {
    semaphore: Option<String>,
}

async fn open(
    app: RequestApp,
    query: Result<Query<EventsQuery>, axum::extract::rejection::QueryRejection>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Refusal> {
    let Query(query) = query.map_err(|error| Error::Invalid(error.body_text()))?;
    let key = query.semaphore.as_deref().map(SemaphoreKey::new).transpose()?;
    // An unknown key is reported before the upgrade, while the response can still be an error.
    run(&app, SemaphoreCommand::Events { key: key.clone(), count: 0, wait: Span::ZERO }).await?;
    let upgrade = upgrade.map_err(|_| {
        Error::Invalid(
            "this endpoint needs a WebSocket upgrade; use POST /v1/semaphore-events without one"
                .into(),
        )
    })?;
    // The permit of the HTTP connection is released by the upgrade.
    let permit = app.connection_permits.clone().try_acquire_owned();
    let permit = permit.map_err(|_| Error::Overloaded("too many connections"))?;
    let upgrade = upgrade.protocols([PROTOCOL]).max_message_size(MESSAGE_BYTES_MAX);
    // A frame is read completely before the message is checked.
    Ok(upgrade.max_frame_size(MESSAGE_BYTES_MAX).on_upgrade(move |socket| async move {
        let (window, unanswered_pings) = (Window::default(), UnansweredPings::default());
        EventSocket { app, key, socket, window, unanswered_pings }.run().await;
        drop(permit);
    }))
}

async fn run(app: &RequestApp, command: SemaphoreCommand) -> Result<SemaphoreReply, RunError> {
    match app.run(Command::Semaphore(command)).await? {
        Reply::Semaphore(reply) => Ok(reply),
        _ => Err(Error::Store("unexpected reply of the engine".into()).into()),
    }
}

/// Acknowledges events that the user may acknowledge.
async fn acknowledge(
    app: &RequestApp,
    command: SemaphoreCommand,
) -> Result<SemaphoreReply, RunError> {
    match app.run_checked(Command::Semaphore(command)).await? {
        Reply::Semaphore(reply) => Ok(reply),
        _ => Err(Error::Store("unexpected reply of the engine".into()).into()),
    }
}

/// One open socket.
struct EventSocket {
    app: RequestApp,
    key: Option<SemaphoreKey>,
    socket: WebSocket,
    window: Window,
    unanswered_pings: UnansweredPings,
}

/// Sent and unacknowledged events. Many are never acknowledged here: a release withdraws them, or
/// they are acknowledged through another connection. So each is forgotten when it would be sent again anyway.
#[derive(Default)]
struct Window(HashMap<EventId, Instant>);

impl Window {
    /// How many more events may be sent.
    fn free(&mut self, now: Instant) -> usize {
        if self.0.len() >= WINDOW {
            self.0.retain(|_, sent| now < *sent + RESEND_AFTER);
        }
        WINDOW.saturating_sub(self.0.len())
    }

    /// When the first of them is forgotten.
    fn opens_at(&self) -> Option<Instant> {
        self.0.values().min().map(|sent| *sent + RESEND_AFTER)
    }

    fn sent(&mut self, event: EventId, now: Instant) {
        self.0.insert(event, now);
    }

    fn acknowledged(&mut self, event: EventId) {
        self.0.remove(&event);
    }
}

/// The number of pings since the last message of the client.
#[derive(Default)]
struct UnansweredPings(u32);

impl UnansweredPings {
    /// Counts one more ping; whether it should still be sent.
    fn ping(&mut self) -> bool {
        self.0 += 1;
        self.0 <= PINGS_UNANSWERED_MAX
    }

    fn reset(&mut self) {
        self.0 = 0;
    }
}

type Fetch = Pin<Box<dyn Future<Output = Result<SemaphoreReply, RunError>> + Send>>;

impl EventSocket {
    /// Sends and receives until one side ends it. Unacknowledged events are sent again, to any
    /// listener.
    async fn run(mut self) {
        let mut ping = interval(PING_EVERY);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Kept while messages arrive: a dropped fetch might have had a result.
        let mut fetch: Option<Fetch> = None;
        loop {
            let free = self.window.free(Instant::now());
            if fetch.is_none() && free > 0 {
                fetch = Some(self.fetch(free));
            }
            let opens_at = self.window.opens_at().filter(|_| fetch.is_none());
            let keep_going = tokio::select! {
                message = self.socket.recv() => self.receive(message).await,
                events = async { fetch.as_mut().expect("the branch is enabled").await }, if fetch.is_some() => {
                    fetch = None;
                    self.send_events(events).await
                }
                () = async { sleep_until(opens_at.expect("the branch is enabled").into()).await },
                    if opens_at.is_some() => true,
                _ = ping.tick() => {
                    self.unanswered_pings.ping() && self.send_message(Message::Ping(Default::default())).await
                }
            };
            if !keep_going {
                return;
            }
        }
    }

    fn fetch(&self, count: usize) -> Fetch {
        let (app, key) = (self.app.clone(), self.key.clone());
        let events = SemaphoreCommand::Events { key, count, wait: LISTEN };
        Box::pin(async move { run(&app, events).await })
    }

    /// Sends events; whether to continue.
    async fn send_events(&mut self, events: Result<SemaphoreReply, RunError>) -> bool {
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
            Err(RunError::Failed(Error::ShuttingDown)) => {
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
        self.send_message(Message::Text(text.into())).await
    }

    /// Sends a message; false if the client does not accept it.
    async fn send_message(&mut self, message: Message) -> bool {
        matches!(timeout(SEND_MAX, self.socket.send(message)).await, Ok(Ok(())))
    }

    /// Handles a message of the client; whether to continue.
    async fn receive(&mut self, message: Option<Result<Message, axum::Error>>) -> bool {
        self.unanswered_pings.reset();
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
            Ok(request) => self.acknowledgement(request.into_command()),
            Err(error) => {
                self.close(1007, &error.to_string()).await;
                return false;
            }
        };
        if let SemaphoreCommand::Acknowledge { events } = &events {
            events.iter().for_each(|event| self.window.acknowledged(*event));
        }
        match acknowledge(&self.app, events).await {
            Ok(SemaphoreReply::Acknowledged(count)) => {
                self.send(&SocketAnswer::Acknowledged(count)).await
            }
            Ok(_) => false,
            refusal => self.send_events(refusal).await,
        }
    }

    /// A user who may not use all semaphores acknowledges only events that were sent on this socket.
    fn acknowledgement(&self, command: SemaphoreCommand) -> SemaphoreCommand {
        let all = self.app.require(AccessVerb::UseSemaphore, AccessTarget::All).is_ok();
        match command {
            SemaphoreCommand::Acknowledge { mut events } if !all => {
                events.retain(|event| self.window.0.contains_key(event));
                SemaphoreCommand::Acknowledge { events }
            }
            command => command,
        }
    }

    /// Closes the socket with a reason, which must be short.
    async fn close(&mut self, code: u16, reason: &str) {
        let end =
            reason.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|at| *at <= 120);
        let reason = &reason[..end.last().unwrap_or(0)];
        let frame = CloseFrame { code, reason: Utf8Bytes::from(reason) };
        // Fails if the client is already gone.
        let _ = self.send_message(Message::Close(Some(frame))).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Only an acknowledgement on the same socket freed the window. A client that released each task
    // instead received nothing any more after a thousand events.
    #[test]
    fn unacknowledged_events_do_not_close_the_window_forever() {
        let (mut window, start) = (Window::default(), Instant::now());
        for number in 0..WINDOW as u64 {
            window.sent(EventId(number), start + Duration::from_millis(number));
        }
        assert_eq!(window.free(start + RESEND_AFTER - Duration::from_millis(1)), 0);
        assert_eq!(window.opens_at(), Some(start + RESEND_AFTER));
        assert_eq!(window.free(start + RESEND_AFTER), 1);
        assert_eq!(window.free(start + RESEND_AFTER * 2), 1, "cleaned up only when it is full");
        window.sent(EventId(5000), start + RESEND_AFTER);
        assert_eq!(window.free(start + RESEND_AFTER * 2 - Duration::from_millis(1)), WINDOW - 1);
        window.acknowledged(EventId(5000));
        assert_eq!(window.free(start + RESEND_AFTER), WINDOW);
    }

    /// Events were sent to a client that had vanished for as long as the network tried.
    #[test]
    fn a_client_that_does_not_respond_is_disconnected() {
        let mut unanswered_pings = UnansweredPings::default();
        assert!(unanswered_pings.ping() && unanswered_pings.ping());
        unanswered_pings.reset();
        assert!(unanswered_pings.ping() && unanswered_pings.ping() && !unanswered_pings.ping());
    }
}
