//! What a person has chosen to see, and what each key changes about it.

use std::collections::VecDeque;
use std::time::Duration;

use taskyard::HttpError;
use taskyard_core::limits::TUBE_NAME_BYTES_MAX;

use super::columns::{Column, Order, sort};
use super::keys::Key;
use super::sample::{Rates, Report, Row, Seen};
use super::text::shown;

/// How many intervals the bars remember.
const HISTORY_MAX: usize = 60;

/// Which tubes are shown, and how they are ordered.
#[derive(Clone, Debug)]
pub struct Choice {
    pub order: Order,
    /// Part of the names, in any case; empty shows all.
    pub filter: String,
}

impl Choice {
    /// The tubes of a report that are asked for, in order.
    pub fn of<'a>(&self, report: &'a Report) -> Vec<&'a Row> {
        let part = self.filter.to_lowercase();
        let matches = |row: &&Row| shown(&row.name).to_lowercase().contains(&part);
        let mut rows: Vec<&Row> = report.tubes.iter().filter(matches).collect();
        sort(&mut rows, self.order);
        rows
    }
}

/// Everything that the screen shows.
#[derive(Debug)]
pub struct View {
    pub url: String,
    pub interval: Duration,
    pub choice: Choice,
    /// Whether keys are written into the filter.
    pub typing: bool,
    /// How many tubes are above the screen.
    pub scroll: usize,
    /// How many tubes the screen had room for.
    page: usize,
    /// The newest answer, also while the server is away.
    pub report: Option<Report>,
    /// The rates of all tubes together, oldest first.
    pub history: VecDeque<Rates>,
    /// Why there is no answer.
    pub away: Option<String>,
    /// How long an answer has been expected for longer than it should take.
    pub overdue: Option<Duration>,
}

/// What a key asks of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    Stay,
    Quit,
}

impl View {
    /// Before the first answer.
    pub fn new(url: String, interval: Duration, choice: Choice) -> Self {
        View {
            url,
            interval,
            choice,
            typing: false,
            scroll: 0,
            page: 1,
            report: None,
            history: VecDeque::new(),
            away: None,
            overdue: None,
        }
    }

    /// Takes in what came from the server.
    pub fn see(&mut self, seen: Seen) {
        self.overdue = None;
        match seen {
            Seen::Here(report) => {
                self.away = None;
                self.history.extend(report.total.rates);
                let forgotten = self.history.len().saturating_sub(HISTORY_MAX);
                self.history.drain(..forgotten);
                self.report = Some(report);
            }
            // The address stands on the screen already.
            Seen::Away(HttpError::Unreachable { why, .. }) => self.away = Some(shown(&why)),
            Seen::Away(error) => self.away = Some(shown(&error.to_string())),
        }
    }

    /// The tubes that are asked for.
    pub fn rows(&self) -> Vec<&Row> {
        self.report.as_ref().map(|report| self.choice.of(report)).unwrap_or_default()
    }

    /// Fits what is above the screen to one that has room for so many tubes.
    pub fn settle(&mut self, page: usize) {
        let rows = self.rows().len();
        self.page = page.max(1);
        self.scroll = self.scroll.min(rows.saturating_sub(page));
    }

    /// Does what a key asks for.
    pub fn press(&mut self, key: Key) -> Asked {
        if key == Key::Control('c') {
            return Asked::Quit;
        }
        if self.typing {
            self.write(key);
            return Asked::Stay;
        }
        match key {
            Key::Char('q') | Key::Esc => return Asked::Quit,
            Key::Char('/') => self.typing = true,
            Key::Char('r') => self.choice.order.reversed ^= true,
            Key::Left | Key::Char('<') => self.order_beside(false),
            Key::Right | Key::Char('>') => self.order_beside(true),
            key => self.go(key),
        }
        Asked::Stay
    }

    fn write(&mut self, key: Key) {
        let filter = &mut self.choice.filter;
        match key {
            Key::Enter => self.typing = false,
            Key::Esc => {
                filter.clear();
                self.typing = false;
            }
            Key::Backspace => {
                filter.pop();
            }
            Key::Char(char) if filter.len() + char.len_utf8() <= TUBE_NAME_BYTES_MAX => {
                filter.push(char);
            }
            _ => {}
        }
        self.scroll = 0;
    }

    fn order_beside(&mut self, right: bool) {
        let column = self.choice.order.column.beside(right);
        self.choice.order = Order { column, reversed: false };
        self.scroll = 0;
    }

    fn go(&mut self, key: Key) {
        self.scroll = match key {
            Key::Up | Key::Char('k') => self.scroll.saturating_sub(1),
            Key::Down | Key::Char('j') => self.scroll + 1,
            Key::PageUp => self.scroll.saturating_sub(self.page),
            Key::PageDown => self.scroll + self.page,
            Key::Home => 0,
            // The next drawing stops it at the last tube.
            Key::End => self.rows().len(),
            _ => self.scroll,
        };
        self.settle(self.page);
    }
}

impl Default for Choice {
    fn default() -> Self {
        Choice { order: Order { column: Column::Tube, reversed: false }, filter: String::new() }
    }
}

#[cfg(test)]
pub mod tests {
    use super::super::sample::tests::{report, tube};
    use super::*;

    /// A view of some tubes that were looked at twice.
    pub fn view(names: &[&str]) -> View {
        let at = |done: u64| {
            let tube = |(name, nth): (&&str, u64)| {
                tube(nth as u32, name, [done * 10 + nth, done * 5, done * 5])
            };
            names.iter().zip(0..).map(tube).collect::<Vec<_>>()
        };
        let url = "http://127.0.0.1:7070".to_owned();
        let mut view = View::new(url, Duration::from_secs(1), Choice::default());
        view.see(Seen::Here(report(1000, [at(1), at(3)])));
        view
    }

    /// Presses keys as a person does; `\n` is Enter.
    pub fn press(view: &mut View, keys: &str) {
        for key in keys.chars() {
            let key = if key == '\n' { Key::Enter } else { Key::Char(key) };
            assert_eq!(view.press(key), Asked::Stay);
        }
    }

    fn names(view: &View) -> Vec<&str> {
        view.rows().iter().map(|row| row.name.as_str()).collect()
    }

    #[test]
    fn keys_that_quit() {
        let ctrl_c = Key::Control('c');
        for key in [Key::Char('q'), Key::Esc, ctrl_c] {
            assert_eq!(view(&[]).press(key), Asked::Quit);
        }
        let mut typing = view(&[]);
        press(&mut typing, "/q");
        assert_eq!(typing.press(ctrl_c), Asked::Quit);
    }

    #[test]
    fn a_filter_is_written_kept_and_taken_away() {
        let mut view = view(&["mail", "Email", "sms"]);
        press(&mut view, "/MAIx");
        assert_eq!(view.press(Key::Backspace), Asked::Stay);
        press(&mut view, "\n");
        assert_eq!((names(&view), view.typing), (vec!["Email", "mail"], false));
        press(&mut view, "/");
        assert_eq!(view.press(Key::Esc), Asked::Stay, "it ends the filter only");
        assert_eq!(names(&view).len(), 3);
    }

    #[test]
    fn a_filter_does_not_grow_for_ever() {
        let mut view = view(&[]);
        press(&mut view, &format!("/{}", "é".repeat(1000)));
        assert_eq!(view.choice.filter.len(), TUBE_NAME_BYTES_MAX);
    }

    #[test]
    fn columns_are_chosen_and_reversed() {
        let mut view = view(&["a", "b"]);
        press(&mut view, ">>");
        assert_eq!(names(&view), ["b", "a"], "b has one more ready");
        press(&mut view, "r");
        assert_eq!(names(&view), ["a", "b"]);
        press(&mut view, "<");
        assert!(!view.choice.order.reversed, "another column begins in its own way");
    }

    #[test]
    fn one_can_walk_no_further_than_the_tubes_go() {
        let mut view = view(&["a", "b", "c", "d", "e"]);
        view.settle(2);
        view.press(Key::End);
        assert_eq!(view.scroll, 3);
        press(&mut view, "jjj");
        assert_eq!(view.scroll, 3);
        view.press(Key::PageUp);
        press(&mut view, "kk");
        assert_eq!(view.scroll, 0);
    }

    #[test]
    fn what_was_seen_stays_while_the_server_is_away() {
        let mut view = view(&["a"]);
        let why = "refused\u{1b}".to_owned();
        view.see(Seen::Away(HttpError::Unreachable { url: "http://x".into(), why }));
        assert_eq!(view.away.as_deref(), Some(r"refused\u{1b}"));
        assert_eq!(names(&view), ["a"]);
    }

    #[test]
    fn the_bars_forget() {
        let mut view = view(&["a"]);
        for _ in 0..2 * HISTORY_MAX {
            let again = view.report.clone().unwrap();
            view.see(Seen::Here(again));
        }
        assert_eq!(view.history.len(), HISTORY_MAX);
    }
}
