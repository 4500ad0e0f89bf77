//! Names in a contract and what becomes of them in source code.

/// Fields that every task has anyway.
pub(crate) const SERVICE_FIELDS: [&str; 3] = ["task_id", "attempts", "prev_start_time"];

/// Rust words that cannot be a name even with `r#` before them.
const NEVER: [&str; 5] = ["self", "super", "crate", "Self", "_"];

/// Rust words that need `r#` before them to be a name.
const RAW: &[&str] = &[
    "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "do", "dyn",
    "else", "enum", "extern", "false", "final", "fn", "for", "gen", "if", "impl", "in", "let",
    "loop", "macro", "match", "mod", "move", "mut", "override", "priv", "pub", "ref", "return",
    "static", "struct", "trait", "true", "try", "type", "typeof", "unsafe", "unsized", "use",
    "virtual", "where", "while", "yield",
];

/// Python words that cannot be a name; they get a `_` at the end.
const PYTHON: &[&str] = &[
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
    // What the generated classes have themselves.
    "classmethod",
    "decode",
    "encode",
];

/// Longest name, so that a queue's name can be that of a tube and generated lines stay readable.
pub(crate) const NAME_BYTES_MAX: usize = 64;

/// Why a text cannot be the name of a queue or field.
pub(crate) fn fault(name: &str) -> Option<String> {
    if name.is_empty() {
        return Some("the name is empty".into());
    }
    if name.len() > NAME_BYTES_MAX {
        return Some(format!(
            "the name has {} characters, {NAME_BYTES_MAX} are allowed",
            name.len()
        ));
    }
    if name.contains("__") {
        // Compilers warn of what is made of it.
        return Some(format!("'{name}' has two '_' side by side"));
    }
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if !name.starts_with(|c: char| c.is_ascii_lowercase()) || !name.chars().all(good) {
        return Some(format!("invalid name '{name}'"));
    }
    NEVER.contains(&name).then(|| format!("'{name}' cannot be a name in Rust"))
}

/// A good name made of a bad one, for hints.
pub(crate) fn repaired(name: &str) -> String {
    let mut repaired = String::new();
    for c in name.chars().take(NAME_BYTES_MAX / 2) {
        if c.is_ascii_uppercase() && !repaired.is_empty() && !repaired.ends_with('_') {
            repaired.push('_');
        }
        let c = c.to_ascii_lowercase();
        let c = if c.is_ascii_alphanumeric() { c } else { '_' };
        if c != '_' || !repaired.ends_with('_') {
            repaired.push(c);
        }
    }
    let repaired = repaired.trim_matches('_');
    let digit = repaired.starts_with(|c: char| c.is_ascii_digit());
    match repaired {
        "" => "name".into(),
        _ if digit || NEVER.contains(&repaired) => {
            format!("my_{}", &repaired[..repaired.len().min(NAME_BYTES_MAX - 3)])
        }
        _ => repaired.into(),
    }
}

/// `user_id` as `UserId`.
pub(crate) fn pascal(name: &str) -> String {
    name.split('_')
        .flat_map(|word| {
            let mut chars = word.chars();
            chars.next().map(|first| first.to_ascii_uppercase().to_string() + chars.as_str())
        })
        .collect()
}

/// A name as a Rust field.
pub(crate) fn rust_field(name: &str) -> String {
    if RAW.contains(&name) { format!("r#{name}") } else { name.into() }
}

/// A name as a Python attribute.
pub(crate) fn python_field(name: &str) -> String {
    if PYTHON.contains(&name) { format!("{name}_") } else { name.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_types() {
        for (name, wanted) in [("emails", "Emails"), ("user_id", "UserId"), ("a_1", "A1")] {
            assert_eq!(pascal(name), wanted);
        }
    }

    #[test]
    fn a_hint_is_a_good_name() {
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
            assert!(fault(bad).is_some(), "{bad}");
            assert_eq!(fault(&repaired(bad)), None, "{bad}: {}", repaired(bad));
        }
    }

    #[test]
    fn words_of_a_language_are_escaped() {
        assert_eq!(rust_field("type"), "r#type");
        assert_eq!(python_field("from"), "from_");
    }
}
