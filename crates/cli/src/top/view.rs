//! Keeps the state of the screen and applies keys and replies to it.

use std::collections::VecDeque;
use std::time::Duration;

use taskyard::HttpError;
use taskyard_core::limits::TUBE_NAME_BYTES_MAX;

use super::columns::{Column, ColumnSet, Order, sort};
use super::keys::Key;
use super::sample::{Observation, Rates, Report, Row};
use super::text::shown;

/// How many intervals the bars show.
const HISTORY_MAX: usize = 60;

/// Which tubes are shown, and how they are ordered.
#[derive(Clone, Debug)]
pub struct Choice {
    pub order: Order,
    pub columns: ColumnSet,
    /// Part of the names, in any case; empty shows all.
    pub filter: String,
}

impl Choice {
    /// The chosen tubes of a report, in order.
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
    /// Whether keys are typed into the filter.
    pub typing: bool,
    /// How many tubes are above the screen.
    pub scroll: usize,
    /// How many tubes fit on the screen.
    page: usize,
    /// The newest reply, also while the server is unreachable.
    pub report: Option<Report>,
    /// The rates of all tubes together, oldest first.
    pub history: VecDeque<Rates>,
    /// Why the server is unreachable.
    pub unreachable: Option<String>,
    /// How long a reply is overdue.
    pub overdue: Option<Duration>,
}

/// The effect of a key on the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyEffect {
    Continue,
    Quit,
}

impl View {
    /// The view before the first reply.
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
            unreachable: None,
            overdue: None,
        }
    }

    /// Applies the result of a query.
    pub fn update(&mut self, observation: Observation) {
        self.overdue = None;
        match observation {
            Observation::Reachable(report) => {
                self.unreachable = None;
                self.history.extend(report.total.rates);
                let forgotten = self.history.len().saturating_sub(HISTORY_MAX);
                self.history.drain(..forgotten);
                self.report = Some(report);
            }
            // The address is on the screen already.
            Observation::Unreachable(HttpError::Unreachable { why, .. }) => {
                self.unreachable = Some(shown(&why))
            }
            Observation::Unreachable(error) => self.unreachable = Some(shown(&error.to_string())),
        }
    }

    /// The chosen tubes.
    pub fn rows(&self) -> Vec<&Row> {
        self.report.as_ref().map(|report| self.choice.of(report)).unwrap_or_default()
    }

    /// Limits the scroll position for a screen with space for so many tubes.
    pub fn limit_scroll(&mut self, page: usize) {
        let rows = self.rows().len();
        self.page = page.max(1);
        self.scroll = self.scroll.min(rows.saturating_sub(page));
    }

    /// Applies a key.
    pub fn press(&mut self, key: Key) -> KeyEffect {
        if key == Key::Control('c') {
            return KeyEffect::Quit;
        }
        if self.typing {
            self.type_into_filter(key);
            return KeyEffect::Continue;
        }
        match key {
            Key::Char('q') | Key::Esc => return KeyEffect::Quit,
            Key::Char('/') => self.typing = true,
            Key::Char('t') => self.choice.columns = self.choice.columns.other(),
            Key::Char('r') => self.choice.order.reversed ^= true,
            Key::Left | Key::Char('<') => self.order_beside(false),
            Key::Right | Key::Char('>') => self.order_beside(true),
            key => self.go(key),
        }
        KeyEffect::Continue
    }

    fn type_into_filter(&mut self, key: Key) {
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
            // The next drawing limits it to the last tube.
            Key::End => self.rows().len(),
            _ => self.scroll,
        };
        self.limit_scroll(self.page);
    }
}

impl Default for Choice {
    fn default() -> Self {
        let order = Order { column: Column::Tube, reversed: false };
        Choice { order, columns: ColumnSet::default(), filter: String::new() }
    }
}

#[cfg(test)]
pub mod tests {
    use super::super::sample::tests::{report, tube};
    use super::*;

    /// A view of some tubes after two samples.
    pub fn view(names: &[&str]) -> View {
        let at = |done: u64| {
            let tube = |(name, nth): (&&str, u64)| {
                tube(nth as u32, name, [done * 10 + nth, done * 5, done * 5])
            };
            names.iter().zip(0..).map(tube).collect::<Vec<_>>()
        };
        let url = "http://127.0.0.1:7070".to_owned();
        let mut view = View::new(url, Duration::from_secs(1), Choice::default());
        view.update(Observation::Reachable(report(1000, [at(1), at(3)])));
        view
    }

    /// Presses keys as a person does; `\n` is Enter.
    pub fn press(view: &mut View, keys: &str) {
        for key in keys.chars() {
            let key = if key == '\n' { Key::Enter } else { Key::Char(key) };
            assert_eq!(view.press(key), KeyEffect::Continue);
        }
    }

    fn names(view: &View) -> Vec<&str> {
        view.rows().iter().map(|row| row.name.as_str()).collect()
    }

    #[test]
    fn keys_that_quit() {
        let ctrl_c = Key::Control('c');
        for key in [Key::Char('q'), Key::Esc, ctrl_c] {
            assert_eq!(view(&[]).press(key), KeyEffect::Quit);
        }
        let mut typing = view(&[]);
        press(&mut typing, "/q");
        assert_eq!(typing.press(ctrl_c), KeyEffect::Quit);
    }

    #[test]
    fn a_filter_is_typed_kept_and_removed() {
        let mut view = view(&["mail", "Email", "sms"]);
        press(&mut view, "/MAIx");
        assert_eq!(view.press(Key::Backspace), KeyEffect::Continue);
        press(&mut view, "\n");
        assert_eq!((names(&view), view.typing), (vec!["Email", "mail"], false));
        press(&mut view, "/");
        assert_eq!(view.press(Key::Esc), KeyEffect::Continue, "Esc ends the filter only");
        assert_eq!(names(&view).len(), 3);
    }

    #[test]
    fn the_length_of_a_filter_is_limited() {
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
        assert!(!view.choice.order.reversed, "another column starts in its default order");
    }

    #[test]
    fn scrolling_ends_at_the_last_tube() {
        let mut view = view(&["a", "b", "c", "d", "e"]);
        view.limit_scroll(2);
        view.press(Key::End);
        assert_eq!(view.scroll, 3);
        press(&mut view, "jjj");
        assert_eq!(view.scroll, 3);
        view.press(Key::PageUp);
        press(&mut view, "kk");
        assert_eq!(view.scroll, 0);
    }

    #[test]
    fn the_last_report_stays_while_the_server_is_unreachable() {
        let mut view = view(&["a"]);
        let why = "refused\u{1b}".to_owned();
        view.update(Observation::Unreachable(HttpError::Unreachable {
            url: "http://x".into(),
            why,
        }));
        assert_eq!(view.unreachable.as_deref(), Some(r"refused\u{1b}"));
        assert_eq!(names(&view), ["a"]);
    }

    #[test]
    fn the_bars_have_a_limit() {
        let mut view = view(&["a"]);
        for _ in 0..2 * HISTORY_MAX {
            let again = view.report.clone().unwrap();
            view.update(Observation::Reachable(again));
        }
        assert_eq!(view.history.len(), HISTORY_MAX);
    }
}
