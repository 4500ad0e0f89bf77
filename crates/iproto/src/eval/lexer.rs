//! Splits a Lua expression into tokens.

/// One token of an expression.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token<'a> {
    /// A name or a keyword.
    Name(&'a str),
    /// Text; Lua's strings are bytes.
    Text(Vec<u8>),
    /// A number, never negative.
    Number(f64),
    /// A whole number, never negative.
    Integer(u64),
    /// A mark such as `(` or `~=`.
    Mark(&'static str),
    /// The end of the expression.
    End,
}

/// All marks; a longer one comes before its prefixes.
const MARKS: &[&str] =
    &["...", "~=", "==", "(", ")", "{", "}", "[", "]", ",", ";", ":", ".", "=", "-"];

/// The part of an expression that is not read yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lexer<'a> {
    rest: &'a str,
}

impl<'a> Lexer<'a> {
    pub const fn new(text: &'a str) -> Self {
        Lexer { rest: text }
    }

    /// The rest, from the next token on, for messages.
    pub fn rest(mut self) -> &'a str {
        self.skip_blanks();
        self.rest
    }

    /// The next token; `None` if the next characters are no known token.
    pub fn next(&mut self) -> Option<Token<'a>> {
        self.skip_blanks();
        let Some(first) = self.rest.chars().next() else { return Some(Token::End) };
        if first.is_ascii_alphabetic() || first == '_' {
            let is_more = |c: char| c.is_ascii_alphanumeric() || c == '_';
            return Some(Token::Name(self.take_while(is_more)));
        }
        let second = self.rest.as_bytes().get(1);
        if first.is_ascii_digit() || (first == '.' && second.is_some_and(u8::is_ascii_digit)) {
            return self.number();
        }
        match first {
            '\'' | '"' => self.quoted(first as u8),
            '[' if self.rest.starts_with("[[") => self.long_text(),
            _ => {
                let mark = MARKS.iter().find(|mark| self.rest.starts_with(**mark))?;
                self.rest = &self.rest[mark.len()..];
                Some(Token::Mark(mark))
            }
        }
    }

    /// Skips blanks and comments; a long comment without an end lasts to the end of the expression.
    fn skip_blanks(&mut self) {
        loop {
            self.rest = self.rest.trim_ascii_start();
            let Some(comment) = self.rest.strip_prefix("--") else { return };
            let (end, mark) = if comment.starts_with("[[") { ("]]", 2) } else { ("\n", 1) };
            let over = comment.find(end).map_or(comment.len(), |at| at + mark);
            self.rest = &comment[over..];
        }
    }

    fn take_while(&mut self, is_more: impl Fn(char) -> bool) -> &'a str {
        let end = self.rest.find(|c| !is_more(c)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }

    fn number(&mut self) -> Option<Token<'a>> {
        let mut before = '0';
        let is_more = |c: char, before: char| {
            let sign = matches!(c, '+' | '-') && matches!(before, 'e' | 'E');
            c.is_ascii_alphanumeric() || c == '.' || sign
        };
        let end = self.rest.find(|c| {
            let over = !is_more(c, before);
            before = c;
            over
        });
        let (digits, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest;
        let digits = digits.trim_end_matches("ULL").trim_end_matches("LL");
        if let Some(hex) = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
            return u64::from_str_radix(hex, 16).ok().map(Token::Integer);
        }
        match digits.parse() {
            Ok(whole) => Some(Token::Integer(whole)),
            Err(_) => digits.parse().ok().map(Token::Number),
        }
    }

    /// Text between `[[` and `]]`, without escapes; a line break right at its start does not count.
    fn long_text(&mut self) -> Option<Token<'a>> {
        let inside = &self.rest[2..];
        let end = inside.find("]]")?;
        self.rest = &inside[end + 2..];
        let text = &inside[..end];
        Some(Token::Text(text.strip_prefix('\n').unwrap_or(text).into()))
    }

    fn quoted(&mut self, quote: u8) -> Option<Token<'a>> {
        let bytes = self.rest.as_bytes();
        let mut text = Vec::new();
        let mut at = 1;
        loop {
            match *bytes.get(at)? {
                b'\n' => return None,
                b'\\' => at += escape(&bytes[at + 1..], &mut text)? + 1,
                byte if byte == quote => break,
                byte => {
                    text.push(byte);
                    at += 1;
                }
            }
        }
        // The quote is ASCII, so the next byte begins a character.
        self.rest = &self.rest[at + 1..];
        Some(Token::Text(text))
    }
}

/// Adds the character of the escape that follows a backslash; returns the length of the escape.
fn escape(bytes: &[u8], text: &mut Vec<u8>) -> Option<usize> {
    let plain = match *bytes.first()? {
        b'n' | b'\n' => b'\n',
        b't' => b'\t',
        b'r' => b'\r',
        b'a' => 0x07,
        b'b' => 0x08,
        b'f' => 0x0c,
        b'v' => 0x0b,
        mark @ (b'\\' | b'\'' | b'"') => mark,
        b'x' => {
            let digits = std::str::from_utf8(bytes.get(1..3)?).ok()?;
            text.push(u8::from_str_radix(digits, 16).ok()?);
            return Some(3);
        }
        b'0'..=b'9' => {
            let digits = bytes.iter().take(3).take_while(|byte| byte.is_ascii_digit()).count();
            let number = std::str::from_utf8(&bytes[..digits]).ok()?;
            text.push(number.parse().ok()?);
            return Some(digits);
        }
        _ => return None,
    };
    text.push(plain);
    Some(1)
}
