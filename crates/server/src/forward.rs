//! Events of semaphores as tasks in a tube.

use std::time::Duration;

use taskyard_core::{
    Body, Command, Error, EventId, Kind, NewTask, Reply, SemaphoreCommand, SemaphoreEvent,
    SemaphoreReply, Span, TubeName, TubeOptions,
};
use taskyard_wire::Payload;
use taskyard_wire::http::EventAnswer;

use crate::app::App;

/// Most events in one put.
const EVENTS: usize = 100;
/// How long one question for events waits; then it is asked again.
const LISTEN: Span = Span::from_secs(60);
/// How long to leave a store alone that failed.
const PAUSE: Duration = Duration::from_secs(1);

/// Puts events into the tube as they come, for as long as it is polled. An event is acknowledged when its task is
/// there, so each becomes at least one task.
pub(crate) async fn forward(app: &App, tube: Option<TubeName>) {
    let Some(tube) = tube else { return std::future::pending().await };
    loop {
        match fetch(app).await {
            Ok(events) if events.is_empty() => {}
            // Whoever fetches more before these have arrived only puts them off: each comes again later and later.
            Ok(events) => deliver_all(app, &tube, &events).await,
            Err(error) => pause(&tube, &error).await,
        }
    }
}

/// Tries until all have arrived.
async fn deliver_all(app: &App, tube: &TubeName, mut events: &[SemaphoreEvent]) {
    let mut most = events.len();
    while !events.is_empty() {
        let (next, later) = events.split_at(most.min(events.len()));
        match deliver(app, tube, next).await {
            Ok(()) => events = later,
            // Never more at a time than the tube can ever have.
            Err(Error::TubeFull { capacity, .. }) if next.len() as u64 > capacity.max(1) => {
                most = capacity.max(1) as usize;
            }
            Err(error) => pause(tube, &error).await,
        }
    }
}

async fn pause(tube: &TubeName, error: &Error) {
    tracing::warn!(%tube, %error, "cannot forward events; trying again in a second");
    tokio::time::sleep(PAUSE).await;
}

async fn fetch(app: &App) -> Result<Vec<SemaphoreEvent>, Error> {
    let fetch = SemaphoreCommand::Events { key: None, count: EVENTS, wait: LISTEN };
    match app.ask(Command::Semaphore(fetch)).await? {
        Reply::Semaphore(SemaphoreReply::Events(events)) => Ok(events),
        _ => Err(Error::Store("the engine answered something else than events".into())),
    }
}

/// Puts events into the tube, waiting for room, and acknowledges them.
async fn deliver(app: &App, tube: &TubeName, events: &[SemaphoreEvent]) -> Result<(), Error> {
    let tasks: Result<Vec<NewTask>, Error> = events.iter().map(task).collect();
    let put = Command::Put { tube: tube.clone(), tasks: tasks?, wait: LISTEN };
    match app.ask(put.clone()).await {
        Err(Error::TubeNotFound(_)) => {
            let options = TubeOptions::new(Kind::FifoTtl);
            let create = Command::CreateTube { tube: tube.clone(), options, if_not_exists: true };
            app.ask(create).await?;
            app.ask(put).await?;
        }
        put => _ = put?,
    }
    let events: Vec<EventId> = events.iter().map(|event| event.id).collect();
    app.ask(Command::Semaphore(SemaphoreCommand::Acknowledge { events })).await?;
    Ok(())
}

/// The event as it is over HTTP.
fn task(event: &SemaphoreEvent) -> Result<NewTask, Error> {
    let unwritable = |error: &dyn std::fmt::Display| {
        Error::Store(format!("an event cannot be written: {error}"))
    };
    let text = serde_json::to_string(&EventAnswer::new(event)).map_err(|e| unwritable(&e))?;
    let payload = Payload::from_json(&text).map_err(|error| unwritable(&error))?;
    Ok(NewTask::new(Body::new(payload.as_msgpack())))
}
