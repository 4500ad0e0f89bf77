//! Runs the view on the terminal: reads keys, samples the server and draws.

use std::time::{Duration, Instant};

use taskyard::Http;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

use super::sample::{Tracker, sample};
use super::screen::draw;
use super::stop::ViewSignals;
use super::terminal::{Terminal, keys};
use super::view::{KeyEffect, View};
use crate::internal_tubes::InternalArgs;

/// A reply that takes longer than this is shown as overdue.
const OVERDUE: Duration = Duration::from_secs(1);

/// Shows the server until a key or a signal ends it.
pub async fn run(http: Http, internal: InternalArgs, mut view: View) -> anyhow::Result<()> {
    let mut stop = ViewSignals::with_hangup()?;
    let mut ticks = super::ticks(view.interval);
    let mut resized = signal(SignalKind::window_change())?;
    let mut terminal = Terminal::open()?;
    let mut keys = keys()?;
    let mut tracker = Tracker::default();
    let mut requests = JoinSet::new();
    let mut requested = Instant::now();
    loop {
        terminal.draw(|width, height| draw(&mut view, width, height))?;
        tokio::select! {
            () = stop.requested() => return Ok(()),
            key = keys.recv() => match key {
                Some(key) => if view.press(key?) == KeyEffect::Quit { return Ok(()) },
                None => return Ok(()),
            },
            // A new size is only drawn.
            _ = resized.recv() => {}
            Some(reply) = requests.join_next() => view.update(tracker.note(reply?)?),
            _ = ticks.tick() => if requests.is_empty() {
                requested = Instant::now();
                requests.spawn(sample(http.clone(), internal));
            } else {
                view.overdue = Some(requested.elapsed()).filter(|time| *time > OVERDUE);
            },
        }
    }
}
