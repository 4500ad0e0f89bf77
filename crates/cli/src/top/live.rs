//! The terminal while the view lives: taken over, drawn, given back.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use ratatui::crossterm::terminal::is_raw_mode_enabled;
use taskyard::Http;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::sample::{Tracker, look};
use super::screen::draw;
use super::stop::Stop;
use super::view::{Asked, View};
use crate::internal::InternalArgs;

/// Keys that were pressed and not yet heeded.
const KEYS_MAX: usize = 64;
/// An answer that takes longer than this is told of.
const OVERDUE: Duration = Duration::from_secs(1);

/// Shows the server until a key or a signal ends it.
pub async fn run(http: Http, internal: InternalArgs, mut view: View) -> anyhow::Result<()> {
    let mut stop = Stop::with_hangup()?;
    let mut ticks = super::ticks(view.interval);
    let mut screen = Screen::open()?;
    let mut keys = keys();
    let mut tracker = Tracker::default();
    let mut asking = JoinSet::new();
    let mut asked = Instant::now();
    loop {
        screen.draw(&mut view)?;
        tokio::select! {
            () = stop.asked() => return Ok(()),
            event = keys.recv() => match event {
                // A new size needs no more than to be drawn.
                Some(event) => if pressed(&mut view, event?) == Asked::Quit { return Ok(()) },
                None => return Ok(()),
            },
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

fn pressed(view: &mut View, event: Event) -> Asked {
    match event {
        Event::Key(key) => view.press(key),
        _ => Asked::Stay,
    }
}

/// Everything that the terminal reports. Reading it blocks, so a thread does; it ends with the program.
fn keys() -> mpsc::Receiver<io::Result<Event>> {
    let (sender, receiver) = mpsc::channel(KEYS_MAX);
    thread::spawn(move || {
        loop {
            let event = event::read();
            let failed = event.is_err();
            if sender.blocking_send(event).is_err() || failed {
                return;
            }
        }
    });
    receiver
}

/// The terminal, taken over. However this goes away, the terminal is as it was before; a panic gives it
/// back before it says what happened.
struct Screen(DefaultTerminal);

impl Screen {
    fn open() -> io::Result<Self> {
        ratatui::try_init().map(Screen).inspect_err(|_| give_back())
    }

    fn draw(&mut self, view: &mut View) -> io::Result<()> {
        self.0.draw(|frame| draw(frame, view)).map(|_| ())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone shows no cursor.
        let _ = self.0.show_cursor();
        give_back();
    }
}

fn give_back() {
    // After a panic it was given back already; twice would put the cursor where it was at the start,
    // into the middle of what was said since.
    if is_raw_mode_enabled().unwrap_or(true) {
        // A terminal that is gone needs nothing back.
        let _ = ratatui::try_restore();
    }
}
