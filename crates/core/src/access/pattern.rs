//! Patterns for the names of tubes, semaphores and schedules.

use std::fmt;

use crate::limits::NAME_PATTERN_BYTES_MAX;
use crate::names::unfit_char;

/// A name in which each `*` stands for any text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamePattern {
    /// The text between the stars: the first part begins a name, the last one ends it.
    parts: Vec<String>,
}

/// Why a text is not accepted as a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PatternError {
    /// It is empty, so that no name would match.
    Empty,
    /// It is longer than any name needs.
    Long(usize),
    /// No name may contain this character.
    Unfit(char),
}

impl NamePattern {
    /// Parses the text of a pattern.
    pub fn new(text: &str) -> Result<Self, PatternError> {
        match (text.len(), unfit_char(text)) {
            (0, _) => Err(PatternError::Empty),
            (length @ NAME_PATTERN_TOO_LONG.., _) => Err(PatternError::Long(length)),
            (_, Some(char)) => Err(PatternError::Unfit(char)),
            _ => Ok(NamePattern { parts: text.split('*').map(String::from).collect() }),
        }
    }

    /// The pattern that every name matches.
    pub fn all() -> Self {
        NamePattern { parts: vec![String::new(), String::new()] }
    }

    /// Whether every name matches.
    pub fn matches_all(&self) -> bool {
        self.parts.len() > 1 && self.parts.iter().all(String::is_empty)
    }

    /// Whether this name matches.
    pub fn matches(&self, name: &str) -> bool {
        let [first, middle @ .., last] = self.parts.as_slice() else {
            return self.parts.first().is_some_and(|only| only == name);
        };
        let Some(mut rest) = name.strip_prefix(first.as_str()) else { return false };
        for part in middle {
            // The earliest match leaves the most text for the following parts.
            let Some(at) = rest.find(part.as_str()) else { return false };
            rest = &rest[at + part.len()..];
        }
        rest.ends_with(last.as_str())
    }
}

const NAME_PATTERN_TOO_LONG: usize = NAME_PATTERN_BYTES_MAX + 1;

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.parts.join("*"))
    }
}

impl fmt::Display for PatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PatternError::Empty => f.write_str("a pattern is empty; '*' matches every name"),
            PatternError::Long(length) => {
                write!(f, "a pattern has {length} bytes; use at most {NAME_PATTERN_BYTES_MAX}")
            }
            PatternError::Unfit(char) => {
                write!(f, "a pattern must not contain {char:?}, because no name may")
            }
        }
    }
}

impl std::error::Error for PatternError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> NamePattern {
        NamePattern::new(text).unwrap()
    }

    #[test]
    fn a_star_is_any_text() {
        for (text, name, fits) in [
            ("mail", "mail", true),
            ("mail", "mails", false),
            ("mail*", "mail", true),
            ("mail*", "mails", true),
            ("mail.*", "mail.welcome", true),
            ("mail.*", "mailXwelcome", false),
            ("mail*", "email", false),
            ("*mail", "email", true),
            ("*", "", true),
            ("a*b*c", "aXbYc", true),
            ("a*b*c", "abc", true),
            ("a*b*c", "acb", false),
            ("a*a", "a", false),
            ("*ab*ab*", "abab", true),
            ("*ab*ab*", "aab", false),
            ("a?", "ab", false),
        ] {
            assert_eq!(pattern(text).matches(name), fits, "{text} {name}");
        }
        assert!(pattern("*").matches_all() && pattern("**").matches_all());
        assert!(!pattern("a*").matches_all());
        assert_eq!(NamePattern::all(), pattern("*"));
    }

    #[test]
    fn a_pattern_that_matches_no_name_is_refused() {
        assert_eq!(NamePattern::new(""), Err(PatternError::Empty));
        assert_eq!(NamePattern::new("a\nb"), Err(PatternError::Unfit('\n')));
        assert_eq!(NamePattern::new("a\u{202e}"), Err(PatternError::Unfit('\u{202e}')));
        let longest = "x".repeat(NAME_PATTERN_BYTES_MAX);
        assert_eq!(pattern(&longest).to_string(), longest);
        let long = NamePattern::new(&format!("{longest}*")).unwrap_err();
        assert_eq!(long, PatternError::Long(NAME_PATTERN_BYTES_MAX + 1));
        assert!(long.to_string().contains("at most"), "{long}");
    }
}
