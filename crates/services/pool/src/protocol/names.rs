//! Checks the names of input files.

/// Longest file name, in bytes.
const NAME_BYTES_MAX: usize = 100;

/// Why a file name is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// It is not a plain file name.
    #[error(
        "invalid file name {0:?}: use up to {NAME_BYTES_MAX} letters, digits, dots, - and _, \
         beginning with a letter, digit or _"
    )]
    Characters(String),
    /// It does not have the suffix that the program requires.
    #[error("the file name {name:?} must end in {ending:?}")]
    Ending {
        /// The name.
        name: String,
        /// The required suffix.
        ending: String,
    },
}

/// Accepts only a plain file name that ends in `ending`. A name is also an argument of a program, so it never
/// begins with a dash.
pub fn check_name(name: &str, ending: &str) -> Result<(), NameError> {
    let first = name.chars().next();
    let begins = first.is_some_and(|char| char.is_ascii_alphanumeric() || char == '_');
    let plain = |char: char| char.is_ascii_alphanumeric() || "._-".contains(char);
    if !begins || name.len() > NAME_BYTES_MAX || !name.chars().all(plain) {
        return Err(NameError::Characters(name.chars().take(NAME_BYTES_MAX).collect()));
    }
    if !name.ends_with(ending) || name.len() == ending.len() {
        return Err(NameError::Ending { name: name.into(), ending: ending.into() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_are_accepted() {
        for name in ["a.asy", "_x-1.asy", "a..asy", "A.b.asy"] {
            assert_eq!(check_name(name, ".asy"), Ok(()), "{name}");
        }
        let long = format!("{}.asy", "a".repeat(97));
        for name in [
            "", ".asy", "..asy", "../a.asy", "/a.asy", "a/b.asy", "-a.asy", "a b.asy", "a\0.asy",
            "ä.asy", "a\\b.asy", "~.asy", "$x.asy", "a\n.asy", &long,
        ] {
            assert!(matches!(check_name(name, ".asy"), Err(NameError::Characters(_))), "{name:?}");
        }
        for name in ["a", "a.asy.txt", "asy"] {
            assert!(matches!(check_name(name, ".asy"), Err(NameError::Ending { .. })), "{name:?}");
        }
    }
}
