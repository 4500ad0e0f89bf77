//! Switches the terminal to full screen mode, draws lines on it, and restores it.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};
use std::{env, panic, thread};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::sync::mpsc;

use super::keys::{Decoder, Key};
use super::styled::Line;

/// The second screen, without a cursor; and back.
const ENTER_FULL_SCREEN: &str = "\u{1b}[?1049h\u{1b}[?25l\u{1b}[2J";
const LEAVE_FULL_SCREEN: &str = "\u{1b}[0m\u{1b}[?25h\u{1b}[?1049l";
/// Pressed keys that are not handled yet.
const KEYS_MAX: usize = 64;
/// A terminal that does not know its size.
const USUAL_SIZE: (usize, usize) = (80, 24);

/// The previous settings of the terminal; `None` outside of full screen mode.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// The terminal in full screen mode. When this is dropped, or the program panics, the terminal is restored.
pub struct Terminal {
    colors: bool,
    size: (usize, usize),
    /// The lines on the screen, as they were written.
    drawn: Vec<String>,
}

impl Terminal {
    /// Enters full screen mode.
    pub fn open() -> io::Result<Self> {
        let input = input()?;
        let before = tcgetattr(&input)?;
        let mut raw = before.clone();
        raw.make_raw();
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |panicked| {
            restore();
            usual(panicked);
        }));
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
        // From here on, dropping it restores the terminal.
        let colors = env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let terminal = Terminal { colors, size: (0, 0), drawn: Vec::new() };
        tcsetattr(&input, OptionalActions::Now, &raw)?;
        write(ENTER_FULL_SCREEN)?;
        Ok(terminal)
    }

    /// Draws what `lines` gives for this width and height; lines that have not changed are not written again.
    pub fn draw(&mut self, lines: impl FnOnce(usize, usize) -> Vec<Line>) -> io::Result<()> {
        let mut out = String::new();
        let (width, height) = size();
        if self.size != (width, height) {
            self.size = (width, height);
            self.drawn.clear();
            out.push_str("\u{1b}[2J");
        }
        self.drawn.resize(height, String::new());
        let mut lines = lines(width, height).into_iter();
        for (row, drawn) in self.drawn.iter_mut().enumerate() {
            let line = lines.next().map(|line| line.rendered(width, self.colors));
            let line = line.unwrap_or_default();
            if *drawn != line {
                // Erased first: at the right edge, erasing afterwards would take the last character.
                let _ = write!(out, "\u{1b}[{};1H\u{1b}[K{line}", row + 1);
                *drawn = line;
            }
        }
        write(&out)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        restore();
    }
}

/// The keys that are pressed from now on. Reading them blocks, so a thread does; it ends with the program.
pub fn keys() -> io::Result<mpsc::Receiver<io::Result<Key>>> {
    let mut input = input()?;
    let (sender, receiver) = mpsc::channel(KEYS_MAX);
    thread::spawn(move || {
        let mut decoder = Decoder::default();
        let mut bytes = [0; 1024];
        loop {
            let read = match input.read(&mut bytes) {
                Ok(0) => return,
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    let _ = sender.blocking_send(Err(error));
                    return;
                }
            };
            for key in decoder.decode(&bytes[..read]) {
                if sender.blocking_send(Ok(key)).is_err() {
                    return;
                }
            }
        }
    });
    Ok(receiver)
}

/// Where keys come from, also when the standard input is a file.
fn input() -> io::Result<File> {
    let stdin = io::stdin();
    if stdin.is_terminal() {
        return Ok(File::from(stdin.as_fd().try_clone_to_owned()?));
    }
    File::options().read(true).write(true).open("/dev/tty")
}

fn size() -> (usize, usize) {
    match tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
        _ => USUAL_SIZE,
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Restores the terminal, once.
fn restore() {
    let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(before) = before {
        // A closed terminal needs no restore.
        let _ = write(LEAVE_FULL_SCREEN);
        let _ = input().map(|input| tcsetattr(input, OptionalActions::Now, &before));
    }
}
