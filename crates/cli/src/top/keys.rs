//! Decodes the bytes that a terminal sends into keys.

/// A key that was pressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Char(char),
    /// A letter together with Control.
    Control(char),
    Enter,
    Esc,
    Backspace,
    Left,
    Right,
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
}

/// A sequence longer than this is none.
const SEQUENCE_BYTES_MAX: usize = 32;

/// Decodes what arrives; a sequence may arrive in pieces.
#[derive(Debug, Default)]
pub struct Decoder {
    rest: Vec<u8>,
}

impl Decoder {
    /// The keys of these bytes. An escape character that ends them is the key Esc.
    pub fn decode(&mut self, bytes: &[u8]) -> Vec<Key> {
        self.rest.extend_from_slice(bytes);
        let mut keys = Vec::new();
        while let Some((key, length)) = first(&self.rest) {
            keys.extend(key);
            self.rest.drain(..length);
        }
        if self.rest.len() > SEQUENCE_BYTES_MAX {
            self.rest.clear();
        }
        keys
    }
}

/// The first key and how many bytes it takes; `None` until all of it is there. Sequences that mean no key here give none.
fn first(bytes: &[u8]) -> Option<(Option<Key>, usize)> {
    match bytes {
        [] => None,
        [0x1b] | [0x1b, 0x1b, ..] => Some((Some(Key::Esc), 1)),
        [0x1b, b'[' | b'O', ..] => sequence(bytes),
        // Alt and a key: the key alone counts.
        [0x1b, ..] => Some((None, 1)),
        [b'\r' | b'\n', ..] => Some((Some(Key::Enter), 1)),
        [0x08 | 0x7f, ..] => Some((Some(Key::Backspace), 1)),
        [byte @ 0x01..=0x1a, ..] => Some((Some(Key::Control(char::from(byte - 1 + b'a'))), 1)),
        [0..=0x1f, ..] => Some((None, 1)),
        _ => character(bytes),
    }
}

/// The key of `ESC [ parameters final` or `ESC O final`.
fn sequence(bytes: &[u8]) -> Option<(Option<Key>, usize)> {
    let end = 2 + bytes[2..].iter().position(|byte| (0x40..=0x7e).contains(byte))?;
    let number = bytes[2..end].split(|byte| *byte == b';').next().unwrap_or_default();
    let key = match (bytes[end], number) {
        (b'A', _) => Some(Key::Up),
        (b'B', _) => Some(Key::Down),
        (b'C', _) => Some(Key::Right),
        (b'D', _) => Some(Key::Left),
        (b'H', _) | (b'~', b"1" | b"7") => Some(Key::Home),
        (b'F', _) | (b'~', b"4" | b"8") => Some(Key::End),
        (b'~', b"5") => Some(Key::PageUp),
        (b'~', b"6") => Some(Key::PageDown),
        _ => None,
    };
    Some((key, end + 1))
}

fn character(bytes: &[u8]) -> Option<(Option<Key>, usize)> {
    let valid = match str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) if error.valid_up_to() > 0 => {
            str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default()
        }
        // Bytes that are no text are passed over; those that may become text are waited for.
        Err(error) => return error.error_len().map(|length| (None, length)),
    };
    let char = valid.chars().next()?;
    Some((Some(Key::Char(char)), char.len_utf8()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(bytes: &str) -> Vec<Key> {
        Decoder::default().decode(bytes.as_bytes())
    }

    #[test]
    fn characters_and_controls() {
        assert_eq!(keys("q/é"), [Key::Char('q'), Key::Char('/'), Key::Char('é')]);
        assert_eq!(keys("\r\u{7f}\u{3}"), [Key::Enter, Key::Backspace, Key::Control('c')]);
    }

    #[test]
    fn escape_alone_is_a_key_and_with_a_letter_is_the_letter() {
        assert_eq!(keys("\u{1b}"), [Key::Esc]);
        assert_eq!(keys("\u{1b}\u{1b}"), [Key::Esc, Key::Esc]);
        assert_eq!(keys("\u{1b}x"), [Key::Char('x')]);
    }

    #[test]
    fn sequences() {
        let arrows = [Key::Up, Key::Down, Key::Right, Key::Left];
        assert_eq!(keys("\u{1b}[A\u{1b}[B\u{1b}OC\u{1b}[1;2D"), arrows);
        let ends = [Key::Home, Key::End, Key::Home, Key::End];
        assert_eq!(keys("\u{1b}[H\u{1b}OF\u{1b}[1~\u{1b}[4~"), ends);
        assert_eq!(keys("\u{1b}[5~\u{1b}[6~"), [Key::PageUp, Key::PageDown]);
        assert_eq!(keys("\u{1b}[15~a"), [Key::Char('a')], "a key without a meaning here");
    }

    #[test]
    fn a_key_in_pieces_is_one_key() {
        let mut decoder = Decoder::default();
        assert_eq!(decoder.decode(b"\x1b["), []);
        assert_eq!(decoder.decode(b"5"), []);
        assert_eq!(decoder.decode(b"~\xc3"), [Key::PageUp]);
        assert_eq!(decoder.decode(b"\xa9"), [Key::Char('é')]);
        assert_eq!(decoder.decode(b"\xffq"), [Key::Char('q')]);
    }

    #[test]
    fn a_sequence_without_an_end_is_forgotten() {
        let mut decoder = Decoder::default();
        assert_eq!(decoder.decode(format!("\u{1b}[{}", "1".repeat(100)).as_bytes()), []);
        assert_eq!(decoder.decode(b"q"), [Key::Char('q')]);
    }
}
