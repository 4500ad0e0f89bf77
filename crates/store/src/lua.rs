//! Lua code that the libraries inside Redis and Tarantool share, and the core's limits for them.

use taskyard_core::limits;

use crate::template::substitute;

/// Constants and pure functions: moments, states, attempts.
pub const VALUES: &str = include_str!("lua/values.lua");
/// The rules of semaphores over a storage interface, which its first lines describe.
pub const SEMAPHORE_RULES: &str = include_str!("lua/semaphore_rules.lua");

/// The limits that Lua code may name, as `{{NAME}}`.
pub fn limits() -> Vec<(&'static str, String)> {
    vec![
        ("BATCH_BYTES_MAX", limits::BATCH_BYTES_MAX.to_string()),
        ("BATCH_TASKS_MAX", limits::BATCH_TASKS_MAX.to_string()),
        ("OLDEST_LOOKED_MAX", limits::OLDEST_LOOKED_MAX.to_string()),
        ("SEMAPHORES_MAX", limits::SEMAPHORES_MAX.to_string()),
        ("SETTLE_STEPS_MAX", limits::SETTLE_STEPS_MAX.to_string()),
        ("SETTLE_STEP_PLACES", limits::SETTLE_STEP_PLACES.to_string()),
        ("TASK_ID_MAX", limits::TASK_ID_MAX.to_string()),
        ("TUBES_MAX", limits::TUBES_MAX.to_string()),
    ]
}

/// The text with its limits filled in.
pub fn with_limits(text: &str) -> String {
    substitute(text, &limits())
}

/// The limits whose number is typed by hand in a library, for the tests of the libraries.
pub fn typed_limits(source: &str) -> Vec<String> {
    let words = |line: &str| -> Vec<String> {
        let code = line.split("--").next().unwrap_or_default();
        let words = code.split(|char: char| !(char.is_ascii_alphanumeric() || char == '_'));
        words.filter(|word| !word.is_empty()).map(str::to_owned).collect()
    };
    let mut found = Vec::new();
    for line in source.lines() {
        let words = words(line);
        for (name, value) in limits() {
            // Short numbers are also those of bytes and bits, so they count only beside the name of their limit.
            let number = words.iter().any(|word| word.trim_end_matches("ULL") == value);
            let named =
                words.iter().any(|word| word == name) && !line.contains(&format!("{{{{{name}}}}}"));
            if number && (value.len() > 3 || named) {
                found.push(format!("{name}: {}", line.trim()));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typed_limit_is_found() {
        assert_eq!(
            typed_limits("local TUBES_MAX = {{TUBES_MAX}}\n-- 10000\n"),
            Vec::<String>::new()
        );
        assert_eq!(typed_limits("local most = 100000\n"), ["SEMAPHORES_MAX: local most = 100000"]);
        assert_eq!(typed_limits("local OLDEST_LOOKED_MAX = 256\n").len(), 1);
        assert_eq!(typed_limits("local byte = 256\n"), Vec::<String>::new());
    }
}
