//! Cuts texts of an audit entry, and replaces characters that would change how a line is shown.

use taskyard_core::limits::AUDIT_TEXT_BYTES_MAX;
use taskyard_core::names::is_bidi_control;

/// What stands for the removed end of a text.
const CUT: &str = "…";

/// The beginning of a text, within the limit. Control characters below 32 stay: JSON escapes them.
pub(crate) fn bounded(text: &str) -> String {
    let visible = |char: char| match char {
        '\u{7f}'.. if char.is_control() || is_bidi_control(char) => char::REPLACEMENT_CHARACTER,
        char => char,
    };
    // A replaced character is longer by at most two bytes, so a text of any length is read only as
    // far as it can be kept.
    let mut kept: String = text.chars().take(AUDIT_TEXT_BYTES_MAX + 1).map(visible).collect();
    if kept.len() > AUDIT_TEXT_BYTES_MAX {
        let mut end = AUDIT_TEXT_BYTES_MAX - CUT.len();
        while !kept.is_char_boundary(end) {
            end -= 1;
        }
        kept.truncate(end);
        kept.push_str(CUT);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_at_the_limit() {
        let longest = "x".repeat(AUDIT_TEXT_BYTES_MAX);
        assert_eq!(bounded(&longest), longest);
        let cut = bounded(&format!("{longest}y"));
        assert!(cut.len() <= AUDIT_TEXT_BYTES_MAX && cut.ends_with("x…"), "{cut}");
        for letter in ["é", "漢", "😀"] {
            let cut = bounded(&letter.repeat(AUDIT_TEXT_BYTES_MAX));
            assert!(cut.len() <= AUDIT_TEXT_BYTES_MAX && cut.ends_with(&format!("{letter}…")));
        }
    }

    #[test]
    fn a_text_cannot_change_how_its_line_is_shown() {
        assert_eq!(
            bounded("a\u{202e}b\u{9b}c\u{7f}d\u{2066}"),
            "a\u{fffd}b\u{fffd}c\u{fffd}d\u{fffd}"
        );
        assert_eq!(bounded("a\nb\u{1b}[2J"), "a\nb\u{1b}[2J", "escaped as JSON");
    }
}
