//! Patterns for tube names in grants.

use serde::Deserialize;

/// A tube name in which each `*` stands for any text.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "String")]
pub(crate) struct Pattern {
    /// The text between the stars: the first part begins a name, the last one ends it.
    parts: Vec<String>,
}

impl Pattern {
    /// Parses the text of a pattern.
    pub fn new(text: &str) -> Self {
        Pattern { parts: text.split('*').map(String::from).collect() }
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

/// Matches every name.
impl Default for Pattern {
    fn default() -> Self {
        Pattern::new("*")
    }
}

impl From<String> for Pattern {
    fn from(text: String) -> Self {
        Pattern::new(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_is_any_text() {
        for (pattern, name, fits) in [
            ("mail", "mail", true),
            ("mail", "mails", false),
            ("mail*", "mail", true),
            ("mail*", "mails", true),
            ("mail*", "email", false),
            ("*mail", "email", true),
            ("*", "", true),
            ("a*b*c", "aXbYc", true),
            ("a*b*c", "abc", true),
            ("a*b*c", "acb", false),
            ("a*a", "a", false),
            ("*ab*ab*", "abab", true),
            ("*ab*ab*", "aab", false),
            ("", "", true),
            ("", "a", false),
        ] {
            assert_eq!(Pattern::new(pattern).matches(name), fits, "{pattern} {name}");
        }
        assert!(Pattern::new("*").matches_all() && Pattern::new("**").matches_all());
        assert!(!Pattern::new("a*").matches_all() && !Pattern::new("").matches_all());
    }
}
