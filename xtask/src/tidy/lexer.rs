//! Splits a Rust text into code and comments, and blanks the insides of literals.

/// A text in two views of the same lines and columns.
pub struct Views {
    /// The code, with comments and the insides of literals blanked.
    pub code: String,
    /// The comments alone.
    pub comments: String,
}

/// Splits a Rust text.
pub fn split(text: &str) -> Views {
    let mut lexer = Lexer { chars: text.chars().collect(), at: 0, views: Views::empty() };
    while lexer.at < lexer.chars.len() {
        lexer.step();
    }
    lexer.views
}

impl Views {
    fn empty() -> Self {
        Self { code: String::new(), comments: String::new() }
    }
}

#[derive(Clone, Copy)]
enum Part {
    Code,
    Comment,
    Inside,
}

struct Lexer {
    chars: Vec<char>,
    at: usize,
    views: Views,
}

impl Lexer {
    fn step(&mut self) {
        match (self.peek(0), self.peek(1)) {
            ('/', '/') => {
                while self.at < self.chars.len() && self.peek(0) != '\n' {
                    self.take(Part::Comment);
                }
            }
            ('/', '*') => self.block_comment(),
            ('"', _) => self.string(),
            ('r', '"' | '#') if self.starts_literal() => self.raw_string(),
            ('\'', '\\') => self.character(),
            ('\'', _) if self.peek(2) == '\'' => self.character(),
            _ => self.take(Part::Code),
        }
    }

    fn peek(&self, ahead: usize) -> char {
        self.chars.get(self.at + ahead).copied().unwrap_or('\0')
    }

    /// Moves one character into its view, and a blank into the other.
    fn take(&mut self, part: Part) {
        let Some(&char) = self.chars.get(self.at) else { return };
        self.at += 1;
        let blank = if char == '\n' { '\n' } else { ' ' };
        let (code, comment) = match part {
            Part::Code => (char, blank),
            Part::Comment => (blank, char),
            Part::Inside => (blank, blank),
        };
        self.views.code.push(code);
        self.views.comments.push(comment);
    }

    fn block_comment(&mut self) {
        let mut depth = 0;
        while self.at < self.chars.len() {
            match (self.peek(0), self.peek(1)) {
                ('/', '*') => depth += 1,
                ('*', '/') => depth -= 1,
                _ => {
                    self.take(Part::Comment);
                    continue;
                }
            }
            self.take(Part::Comment);
            self.take(Part::Comment);
            if depth == 0 {
                return;
            }
        }
    }

    fn string(&mut self) {
        self.take(Part::Code);
        while self.at < self.chars.len() && self.peek(0) != '"' {
            if self.peek(0) == '\\' {
                self.take(Part::Inside);
            }
            self.take(Part::Inside);
        }
        self.take(Part::Code);
    }

    fn character(&mut self) {
        self.take(Part::Code);
        while self.at < self.chars.len() {
            if self.peek(0) == '\\' {
                self.take(Part::Inside);
            }
            self.take(Part::Inside);
            if self.peek(0) == '\'' {
                break;
            }
        }
        self.take(Part::Code);
    }

    /// Whether the `r` here begins a word, perhaps after the `b` or `c` of a byte or C string.
    fn starts_literal(&self) -> bool {
        let before = |back: usize| self.at.checked_sub(back).map(|at| self.chars[at]);
        match before(1) {
            Some('b' | 'c') => !before(2).is_some_and(is_word),
            other => !other.is_some_and(is_word),
        }
    }

    fn raw_string(&mut self) {
        let hashes = self.chars[self.at + 1..].iter().take_while(|char| **char == '#').count();
        if self.peek(1 + hashes) != '"' {
            // A raw identifier.
            return self.take(Part::Code);
        }
        for _ in 0..hashes + 2 {
            self.take(Part::Code);
        }
        let closes = |lexer: &Self| {
            lexer.peek(0) == '"' && (1..=hashes).all(|ahead| lexer.peek(ahead) == '#')
        };
        while self.at < self.chars.len() && !closes(self) {
            self.take(Part::Inside);
        }
        for _ in 0..=hashes {
            self.take(Part::Code);
        }
    }
}

/// Whether the character may be part of a name.
pub fn is_word(char: char) -> bool {
    char == '_' || char.is_alphanumeric()
}

/// Where `word` stands in `text` as a whole word: not as part of a longer name.
pub fn find_word(text: &str, word: &str) -> Option<usize> {
    let free = |char: Option<char>| !char.is_some_and(is_word);
    text.match_indices(word).map(|(at, _)| at).find(|at| {
        // A pattern that itself ends in punctuation is complete there.
        let ended = !word.ends_with(is_word) || free(text[at + word.len()..].chars().next());
        let begun = !word.starts_with(is_word) || free(text[..*at].chars().next_back());
        begun && ended
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        let code = split(text).code;
        assert_eq!(code.chars().count(), text.chars().count(), "{text}");
        code
    }

    #[test]
    fn comments_are_blanked() {
        assert_eq!(code("a // b\nc"), "a     \nc");
        assert_eq!(code("a /* b /* c */ d */ e"), "a                   e");
        assert_eq!(split("a // b").comments, "  // b");
    }

    #[test]
    fn literals_are_emptied() {
        assert_eq!(code(r#"f("a{\"b", '{', '\'', '\u{7f}')"#), "f(\"     \", ' ', '  ', '      ')");
        assert_eq!(code("r#\"{ \" }\"# {"), "r#\"     \"# {");
        assert_eq!(code("br\"{\" c\"{\" {"), "br\" \" c\" \" {");
    }

    #[test]
    fn names_and_lifetimes_are_code() {
        for text in ["r#type", "for\"\"", "fn f<'a>(x: &'a str) {}", "'outer: loop {}"] {
            assert_eq!(code(text), text);
        }
    }

    #[test]
    fn a_text_that_ends_early_ends() {
        for text in ["\"a", "'\\", "/* a", "r#\"a", "r#", "\"\\", "'"] {
            split(text);
        }
    }

    #[test]
    fn whole_words_only() {
        assert_eq!(find_word("instantly an Instant", "Instant"), Some(13));
        assert_eq!(find_word("Instants", "Instant"), None);
        assert_eq!(find_word("my_todo!() todo!()", "todo!"), Some(11));
    }
}
