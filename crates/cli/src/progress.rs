//! Shows a person how far a long command is, on one line of the terminal that is cleared at the end.

use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::output::note;

/// How often the line changes.
const EVERY: Duration = Duration::from_millis(100);
/// How often it is shown as a line, where standard error is not a terminal.
pub const LINE_EVERY: Duration = Duration::from_secs(5);
/// Pictures of something that turns.
const TURNING: [char; 10] = ['⠋', '⠙', '⠹', '⠸', '⠼', '⠴', '⠦', '⠧', '⠇', '⠏'];
/// Cells of a bar.
const BAR: usize = 40;

/// A line on the standard error; where that is no terminal, nothing is shown.
pub struct Progress {
    shown: bool,
    started: Instant,
    drawn: Option<Instant>,
    turn: usize,
}

impl Progress {
    /// Nothing done yet.
    pub fn new() -> Self {
        let shown = io::stderr().is_terminal();
        Progress { shown, started: Instant::now(), drawn: None, turn: 0 }
    }

    /// Whether a person sees it.
    pub fn is_shown(&self) -> bool {
        self.shown
    }

    /// Shows that so many of what `what` names are done.
    pub fn count(&mut self, done: u64, what: &str) {
        if self.is_due() {
            let speed = self.per_second(done);
            let text = format!("{} {} {what}, {}/s", self.turning(), grouped(done), grouped(speed));
            self.draw(&text);
        }
    }

    /// Shows that so many tasks are done: with a bar if it is known of how many.
    pub fn of(&mut self, done: u64, total: Option<u64>, what: &str) {
        match total {
            // More tasks may have been put meanwhile.
            Some(total) => self.bar(done, total.max(done), what),
            None => self.count(done, &format!("tasks {what}")),
        }
    }

    /// Shows that so many of so many are done, with a bar and the time that is left.
    pub fn bar(&mut self, done: u64, total: u64, what: &str) {
        if self.is_due() {
            let speed = self.per_second(done);
            let left = total.saturating_sub(done).checked_div(speed);
            let left = left.map_or("?".into(), |seconds| format!("{seconds}s"));
            let filled = usize::try_from(done * BAR as u64 / total.max(1)).unwrap_or(BAR).min(BAR);
            let bar = "█".repeat(filled) + &"░".repeat(BAR - filled);
            let (done, total, speed) = (grouped(done), grouped(total), grouped(speed));
            self.draw(&format!("{bar} {done} of {total} tasks  {speed}/s  {left} left  {what}"));
        }
    }

    fn is_due(&self) -> bool {
        self.shown && self.drawn.is_none_or(|drawn| drawn.elapsed() >= EVERY)
    }

    fn per_second(&self, done: u64) -> u64 {
        (done as f64 / self.started.elapsed().as_secs_f64().max(0.001)) as u64
    }

    fn turning(&mut self) -> char {
        self.turn += 1;
        TURNING[self.turn % TURNING.len()]
    }

    fn draw(&mut self, text: &str) {
        self.drawn = Some(Instant::now());
        // Where not even this can be shown there is nothing left to do.
        let _ = write!(io::stderr().lock(), "\r\u{1b}[K{text}");
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.drawn.is_some() {
            let _ = write!(io::stderr().lock(), "\r\u{1b}[K");
        }
    }
}

/// The progress of a command with a known number of tasks: a bar on a terminal, lines otherwise.
pub struct TaskProgress {
    bar: Progress,
    last_line: Instant,
    /// What is done with the tasks.
    what: &'static str,
}

impl TaskProgress {
    /// Nothing done yet.
    pub fn new(what: &'static str) -> Self {
        TaskProgress { bar: Progress::new(), last_line: Instant::now(), what }
    }

    /// Shows that so many of so many are done.
    pub fn show(&mut self, done: u64, total: u64) {
        if self.bar.is_shown() {
            self.bar.bar(done, total, self.what);
        } else if self.last_line.elapsed() >= LINE_EVERY {
            self.last_line = Instant::now();
            note(format!("{} {done} of {total} tasks", self.what));
        }
    }
}

/// A line that turns while something blocks this thread; it ends when this is dropped.
pub struct Waiting {
    thread: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Waiting {
    /// Shows this text to a person.
    pub fn new(text: String) -> Self {
        let mut progress = Progress::new();
        if !progress.shown {
            return Waiting { thread: None };
        }
        let (stop, stopped) = channel();
        let thread = thread::spawn(move || {
            while stopped
                .recv_timeout(EVERY)
                .is_err_and(|error| error == std::sync::mpsc::RecvTimeoutError::Timeout)
            {
                let turning = progress.turning();
                progress.draw(&format!("{turning} {text}"));
            }
        });
        Waiting { thread: Some((stop, thread)) }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.thread.take() {
            drop(stop);
            let _ = thread.join();
        }
    }
}

/// A number with its digits in groups of three.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (nth, digit) in digits.chars().enumerate() {
        if nth > 0 && (digits.len() - nth).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_stand_in_groups() {
        let texts = [0, 999, 1000, 1_234_567].map(grouped);
        assert_eq!(texts, ["0", "999", "1,000", "1,234,567"]);
    }
}
