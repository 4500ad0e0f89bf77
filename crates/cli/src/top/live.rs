//! The terminal while the view lives: taken over, drawn, given back.

use std::time::{Duration, Instant};

use taskyard::Http;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

use super::sample::{Tracker, look};
use super::screen::draw;
use super::stop::Stop;
use super::terminal::{Terminal, keys};
use super::view::{Asked, View};
use crate::internal_tubes::InternalArgs;

/// An answer that takes longer than this is told of.
const OVERDUE: Duration = Duration::from_secs(1);

/// Shows the server until a key or a signal ends it.
pub async fn run(http: Http, internal: InternalArgs, mut view: View) -> anyhow::Result<()> {
    let mut stop = Stop::with_hangup()?;
    let mut ticks = super::ticks(view.interval);
    let mut resized = signal(SignalKind::window_change())?;
    let mut terminal = Terminal::open()?;
    let mut keys = keys()?;
    let mut tracker = Tracker::default();
    let mut asking = JoinSet::new();
    let mut asked = Instant::now();
    loop {
        terminal.draw(|width, height| draw(&mut view, width, height))?;
        tokio::select! {
            () = stop.asked() => return Ok(()),
            key = keys.recv() => match key {
                Some(key) => if view.press(key?) == Asked::Quit { return Ok(()) },
                None => return Ok(()),
            },
            // A new size needs no more than to be drawn.
            _ = resized.recv() => {}
            Some(answer) = asking.join_next() => view.see(tracker.note(answer?)?),
            _ = ticks.tick() => if asking.is_empty() {
                asked = Instant::now();
                asking.spawn(look(http.clone(), internal));
            } else {
                view.overdue = Some(asked.elapsed()).filter(|time| *time > OVERDUE);
            },
        }
    }
}
