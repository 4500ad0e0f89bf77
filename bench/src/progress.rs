//! Shows how far a long step is, on one line of a terminal that is cleared at its end.

use std::io::{IsTerminal, Write, stderr};

/// Cells of the bar.
const BAR: usize = 40;

/// A bar on the standard error; where that is no terminal, nothing is shown.
pub struct Progress {
    what: String,
    total: usize,
    is_shown: bool,
}

impl Progress {
    /// Nothing of this is done yet.
    pub fn new(what: &str, total: usize) -> Self {
        Progress { what: what.to_owned(), total, is_shown: stderr().is_terminal() }
    }

    /// Shows how much is done.
    pub fn show(&self, done: usize) {
        if self.is_shown {
            let filled = (done * BAR / self.total.max(1)).min(BAR);
            let bar = "█".repeat(filled) + &"░".repeat(BAR - filled);
            // The benchmark goes on if nothing can be shown.
            _ = write!(stderr(), "\r\u{1b}[K  {bar} {done} of {} {}", self.total, self.what);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_shown {
            _ = write!(stderr(), "\r\u{1b}[K");
        }
    }
}
