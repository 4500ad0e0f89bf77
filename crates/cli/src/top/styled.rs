//! Lines of text with colours, cut to the width of a screen and written as escape sequences.

use std::fmt::Write as _;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// How many cells a text takes on the screen.
pub fn width(text: &str) -> usize {
    text.width()
}

/// The colours in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Color {
    Red,
    Yellow,
    Cyan,
}

impl Color {
    const fn code(self) -> u8 {
        match self {
            Color::Red => 31,
            Color::Yellow => 33,
            Color::Cyan => 36,
        }
    }
}

/// The style of a piece of text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    pub bold: bool,
    pub dim: bool,
    pub reversed: bool,
    pub color: Option<Color>,
}

impl Style {
    /// The default style, in this colour.
    pub fn of(color: Color) -> Self {
        Style { color: Some(color), ..Style::default() }
    }

    /// The same, bold.
    pub fn bold(self) -> Self {
        Style { bold: true, ..self }
    }

    /// The sequence that turns it on.
    fn sequence(self, colors: bool) -> String {
        let mut codes = String::from("0");
        for (on, code) in [(self.bold, 1), (self.dim, 2), (self.reversed, 7)] {
            if on {
                let _ = write!(codes, ";{code}");
            }
        }
        if let Some(color) = self.color.filter(|_| colors) {
            let _ = write!(codes, ";{}", color.code());
        }
        format!("\u{1b}[{codes}m")
    }
}

/// A line of pieces, each with its style.
#[derive(Clone, Debug, Default)]
pub struct Line(Vec<(String, Style)>);

impl Line {
    /// A line of one piece.
    pub fn of(text: impl Into<String>, style: Style) -> Self {
        Line::default().and(text, style)
    }

    /// A line in the default style.
    pub fn plain(text: impl Into<String>) -> Self {
        Line::of(text, Style::default())
    }

    /// The same line with another piece at its end.
    pub fn and(mut self, text: impl Into<String>, style: Style) -> Self {
        self.0.push((text.into(), style));
        self
    }

    /// The same line with every piece dimmed.
    pub fn dimmed(mut self) -> Self {
        self.0.iter_mut().for_each(|(_, style)| style.dim = true);
        self
    }

    /// The line as it is written to a terminal of this width.
    pub fn rendered(&self, width: usize, colors: bool) -> String {
        let mut out = String::new();
        for (text, style) in self.cut(width) {
            if *style == Style::default() {
                out.push_str(text);
            } else {
                out += &style.sequence(colors);
                out.push_str(text);
                out.push_str("\u{1b}[0m");
            }
        }
        out
    }

    /// The text alone, cut to this width.
    #[cfg(test)]
    pub fn text(&self, width: usize) -> String {
        self.cut(width).into_iter().map(|(text, _)| text).collect()
    }

    /// As much of the pieces as fits.
    fn cut(&self, width: usize) -> Vec<(&str, &Style)> {
        let mut room = width;
        let mut cut = Vec::with_capacity(self.0.len());
        for (text, style) in &self.0 {
            let mut end = 0;
            for (at, char) in text.char_indices() {
                let Some(left) = room.checked_sub(char.width().unwrap_or(0)) else {
                    cut.push((&text[..end], style));
                    return cut;
                };
                room = left;
                end = at + char.len_utf8();
            }
            cut.push((text.as_str(), style));
        }
        cut
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_by_cells() {
        let line = Line::plain("郵便").and("ab", Style::of(Color::Red));
        assert_eq!(line.text(6), "郵便ab");
        assert_eq!(line.text(5), "郵便a");
        assert_eq!(line.text(3), "郵");
        assert_eq!(line.text(0), "");
    }

    #[test]
    fn styles_are_turned_on_and_off() {
        let line = Line::plain("a").and("b", Style::of(Color::Red).bold());
        assert_eq!(line.rendered(9, true), "a\u{1b}[0;1;31mb\u{1b}[0m");
        assert_eq!(line.rendered(9, false), "a\u{1b}[0;1mb\u{1b}[0m");
        assert_eq!(Line::plain("a").dimmed().rendered(9, true), "\u{1b}[0;2ma\u{1b}[0m");
    }
}
