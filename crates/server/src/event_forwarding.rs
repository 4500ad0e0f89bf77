//! Forwards events of semaphores as tasks into a tube.

use std::time::Duration;

use taskyard_core::{
    Body, Command, Error, EventId, Kind, NewTask, Reply, SemaphoreCommand, SemaphoreEvent,
    SemaphoreReply, Span, TubeName, TubeOptions,
};
use taskyard_wire::Payload;
use taskyard_wire::http::EventAnswer;

use crate::app::App;

/// Maximum number of events in one put.
const EVENTS: usize = 100;
/// How long one fetch waits for events before it is repeated.
const LISTEN: Span = Span::from_secs(60);
/// The pause after a failure.
const PAUSE: Duration = Duration::from_secs(1);

/// Puts events into the tube as they occur, as long as it is polled. An event is acknowledged when
/// its task is stored, so each becomes at least one task.
pub(crate) async fn forward_events(app: &App, tube: Option<TubeName>) {
    let Some(tube) = tube else { return std::future::pending().await };
    loop {
        match fetch(app).await {
            Ok(events) if events.is_empty() => {}
            // Fetching more before these have arrived would only postpone them: each is sent again
            // later and later.
            Ok(events) => deliver_all(app, &tube, &events).await,
            Err(error) => pause(&tube, &error).await,
        }
    }
}

/// Tries until all events have arrived.
async fn deliver_all(app: &App, tube: &TubeName, mut events: &[SemaphoreEvent]) {
    let mut most = events.len();
    while !events.is_empty() {
        let (next, later) = events.split_at(most.min(events.len()));
        match deliver(app, tube, next).await {
            Ok(()) => events = later,
            // Never more at a time than the capacity of the tube.
            Err(Error::TubeFull { capacity, .. }) if next.len() as u64 > capacity.max(1) => {
                most = capacity.max(1) as usize;
            }
            Err(error) => pause(tube, &error).await,
        }
    }
}

async fn pause(tube: &TubeName, error: &Error) {
    tracing::warn!(%tube, %error, "cannot forward semaphore events to the tube; trying again in 1 s");
    tokio::time::sleep(PAUSE).await;
}

async fn fetch(app: &App) -> Result<Vec<SemaphoreEvent>, Error> {
    let fetch = SemaphoreCommand::Events { key: None, count: EVENTS, wait: LISTEN };
    match app.run(Command::Semaphore(fetch)).await? {
        Reply::Semaphore(SemaphoreReply::Events(events)) => Ok(events),
        _ => Err(Error::Store("unexpected reply of the engine to a fetch of events".into())),
    }
}

/// Puts events into the tube, waiting for capacity, and acknowledges them.
async fn deliver(app: &App, tube: &TubeName, events: &[SemaphoreEvent]) -> Result<(), Error> {
    let tasks: Result<Vec<NewTask>, Error> = events.iter().map(task).collect();
    let put = Command::Put { tube: tube.clone(), tasks: tasks?, wait: LISTEN };
    match app.run(put.clone()).await {
        Err(Error::TubeNotFound(_)) => {
            let options = TubeOptions::new(Kind::FifoTtl);
            let create = Command::CreateTube { tube: tube.clone(), options, if_not_exists: true };
            app.run(create).await?;
            app.run(put).await?;
        }
        put => _ = put?,
    }
    let events: Vec<EventId> = events.iter().map(|event| event.id).collect();
    app.run(Command::Semaphore(SemaphoreCommand::Acknowledge { events })).await?;
    Ok(())
}

/// The task of an event: the same JSON as over HTTP.
fn task(event: &SemaphoreEvent) -> Result<NewTask, Error> {
    let unwritable =
        |error: &dyn std::fmt::Display| Error::Store(format!("cannot encode an event: {error}"));
    let text = serde_json::to_string(&EventAnswer::new(event)).map_err(|e| unwritable(&e))?;
    let payload = Payload::from_json(&text).map_err(|error| unwritable(&error))?;
    Ok(NewTask::new(Body::new(payload.as_msgpack())))
}
