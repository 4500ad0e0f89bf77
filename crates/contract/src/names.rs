//! Validates names in a contract and converts them to names in source code.

/// Fields that every task has.
pub(crate) const SERVICE_FIELDS: [&str; 3] = ["task_id", "attempts", "prev_start_time"];

/// Rust keywords that cannot be raw identifiers.
const RUST_FORBIDDEN: [&str; 5] = ["self", "super", "crate", "Self", "_"];

/// Rust keywords that must be written as raw identifiers.
const RUST_KEYWORDS: &[&str] = &[
    "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "do", "dyn",
    "else", "enum", "extern", "false", "final", "fn", "for", "gen", "if", "impl", "in", "let",
    "loop", "macro", "match", "mod", "move", "mut", "override", "priv", "pub", "ref", "return",
    "static", "struct", "trait", "true", "try", "type", "typeof", "unsafe", "unsized", "use",
    "virtual", "where", "while", "yield",
];

/// Python keywords; they get the suffix `_`.
const PYTHON_KEYWORDS: &[&str] = &[
    "and",
    "as",
    "assert",
    "async",
    "await",
    "break",
    "class",
    "continue",
    "def",
    "del",
    "elif",
    "else",
    "except",
    "finally",
    "for",
    "from",
    "global",
    "if",
    "import",
    "in",
    "is",
    "lambda",
    "nonlocal",
    "not",
    "or",
    "pass",
    "raise",
    "return",
    "try",
    "while",
    "with",
    "yield",
    // Names that the generated classes use themselves.
    "classmethod",
    "decode",
    "encode",
];

/// Names that the generated TypeScript classes use themselves; they get the suffix `_`.
const TYPESCRIPT_OWN: [&str; 2] = ["constructor", "values"];

/// The longest name, so that a queue's name is a valid tube name and generated lines stay readable.
pub(crate) const NAME_BYTES_MAX: usize = 64;

/// Why a text cannot be the name of a queue or field; `None` if it can.
pub(crate) fn name_error(name: &str) -> Option<String> {
    if name.is_empty() {
        return Some("the name is empty".into());
    }
    if name.len() > NAME_BYTES_MAX {
        return Some(format!(
            "the name has {} characters, the limit is {NAME_BYTES_MAX}",
            name.len()
        ));
    }
    if name.contains("__") {
        // Compilers warn about names made from it.
        return Some(format!("'{name}' contains '__'"));
    }
    let valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if !name.starts_with(|c: char| c.is_ascii_lowercase()) || !name.chars().all(valid) {
        return Some(format!("invalid name '{name}'"));
    }
    RUST_FORBIDDEN.contains(&name).then(|| format!("'{name}' cannot be a name in Rust"))
}

/// A valid name made from an invalid one, for hints.
pub(crate) fn suggested_name(name: &str) -> String {
    let mut suggested = String::new();
    for c in name.chars().take(NAME_BYTES_MAX / 2) {
        if c.is_ascii_uppercase() && !suggested.is_empty() && !suggested.ends_with('_') {
            suggested.push('_');
        }
        let c = c.to_ascii_lowercase();
        let c = if c.is_ascii_alphanumeric() { c } else { '_' };
        if c != '_' || !suggested.ends_with('_') {
            suggested.push(c);
        }
    }
    let suggested = suggested.trim_matches('_');
    let digit = suggested.starts_with(|c: char| c.is_ascii_digit());
    match suggested {
        "" => "name".into(),
        _ if digit || RUST_FORBIDDEN.contains(&suggested) => {
            format!("my_{}", &suggested[..suggested.len().min(NAME_BYTES_MAX - 3)])
        }
        _ => suggested.into(),
    }
}

/// Converts `user_id` to `UserId`.
pub(crate) fn pascal_case(name: &str) -> String {
    name.split('_')
        .flat_map(|word| {
            let mut chars = word.chars();
            chars.next().map(|first| first.to_ascii_uppercase().to_string() + chars.as_str())
        })
        .collect()
}

/// A name as a Rust field.
pub(crate) fn rust_field(name: &str) -> String {
    if RUST_KEYWORDS.contains(&name) { format!("r#{name}") } else { name.into() }
}

/// A name as a Python attribute.
pub(crate) fn python_field(name: &str) -> String {
    if PYTHON_KEYWORDS.contains(&name) { format!("{name}_") } else { name.into() }
}

/// A name as a TypeScript property.
pub(crate) fn typescript_field(name: &str) -> String {
    if TYPESCRIPT_OWN.contains(&name) { format!("{name}_") } else { name.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_converted_to_type_names() {
        for (name, wanted) in [("emails", "Emails"), ("user_id", "UserId"), ("a_1", "A1")] {
            assert_eq!(pascal_case(name), wanted);
        }
    }

    #[test]
    fn a_suggested_name_is_valid() {
        for bad in [
            "userId",
            "user-id",
            "9lives",
            "",
            "self",
            "Emails",
            "ü",
            "__x",
            "a__b",
            "a-_-b",
            &"A".repeat(99),
        ] {
            assert!(name_error(bad).is_some(), "{bad}");
            assert_eq!(name_error(&suggested_name(bad)), None, "{bad}: {}", suggested_name(bad));
        }
    }

    #[test]
    fn keywords_are_escaped() {
        assert_eq!(rust_field("type"), "r#type");
        assert_eq!(python_field("from"), "from_");
        assert_eq!(typescript_field("constructor"), "constructor_");
        assert_eq!(typescript_field("class"), "class");
    }
}
