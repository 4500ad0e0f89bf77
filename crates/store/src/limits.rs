//! Fills the core's limits into SQL and Lua texts, and finds limits that are typed by hand there.

use taskyard_core::estimate::DELAYED_PERIODS;
use taskyard_core::{SemaphoreOptions, Span, limits};

use crate::template::substitute;

/// The limits that SQL and Lua code may name, as `{{NAME}}`: all limits of the core that rules inside a database can need.
pub fn limits() -> Vec<(&'static str, String)> {
    macro_rules! named {
        ($($name:ident),* $(,)?) => { vec![$((stringify!($name), limits::$name.to_string())),*] };
    }
    let mut values = named![
        ADMIT_STEPS_MAX,
        ADMIT_STEP_PLACES,
        AHEAD_COUNTED_MAX,
        BATCH_BYTES_MAX,
        BATCH_TASKS_MAX,
        DELAYED_LOOKED_MAX,
        ENDED_KEYS_MAX,
        FAILURES_MAX,
        GATE_LOOKED_MAX,
        KEEP_DONE_DEFAULT,
        KEY_BYTES_MAX,
        META_BYTES_MAX,
        NESTING_MAX,
        OLDEST_LOOKED_MAX,
        PAYLOAD_BYTES_MAX,
        RETRY_GROWTH_MAX,
        SCHEDULES_MAX,
        SCHEDULE_PUTS_MAX,
        SEMAPHORES_MAX,
        SEMAPHORE_ACTIVE_MAX,
        SEMAPHORE_KEY_BYTES_MAX,
        SEMAPHORE_REVOKING_MAX,
        SUBQUEUE_BYTES_MAX,
        SUBQUEUE_COUNTED_MAX,
        TASK_ID_MAX,
        TUBES_MAX,
        TUBE_NAME_BYTES_MAX,
        TUBE_NUMBERS_MAX,
        UNIQUE_FOR_SECS_MAX,
    ];
    values.push(("DELAYED_PERIODS", DELAYED_PERIODS.to_string()));
    values.push(("FOREVER", Span::FOREVER.as_micros().to_string()));
    values.push(("SEMAPHORE_ACTIVE_DEFAULT", SemaphoreOptions::default().active.to_string()));
    values
}

/// The text with its limits filled in.
pub fn with_limits(text: &str) -> String {
    substitute(text, &limits())
}

/// The factors between units of time, which are also limits.
const UNITS: &[&str] = &["1000", "1000000"];

/// The lines of SQL or Lua code that contain the number of a limit, each with the names of these limits, for the tests of
/// the libraries. Comments do not count, nor do lines that contain one of the `accepted` fragments, in which the number
/// has another meaning.
pub fn typed_limits(source: &str, accepted: &[&str]) -> Vec<String> {
    let limits = limits();
    let mut found = Vec::new();
    for line in source.lines().filter(|line| !accepted.iter().any(|part| line.contains(part))) {
        let code = line.split("--").next().unwrap_or_default();
        let typed = limits.iter().filter(|(name, value)| is_typed(code, name, value));
        let names: Vec<&str> = typed.map(|(name, _)| *name).collect();
        if !names.is_empty() {
            found.push(format!("{}: {}", names.join(", "), line.trim()));
        }
    }
    found
}

/// Whether a line contains the number of a limit. Short numbers are also those of bytes, bits and columns, so they count only
/// beside the name of their limit, or as the bound of a loop or a query.
fn is_typed(code: &str, name: &str, value: &str) -> bool {
    if !has_number(code, value) {
        return false;
    }
    let is_named = code.split(|char| !is_word(char)).any(|word| word == name);
    let is_filled = code.contains(&format!("{{{{{name}}}}}"));
    let bounds = [
        format!("LIMIT {value}"),
        format!(".. {value} LOOP"),
        format!(", {value} do"),
        format!("BETWEEN 1 AND {value}"),
    ];
    value.len() > 3
        || is_named && !is_filled
        || bounds.iter().any(|bound| code.contains(bound.as_str()))
}

/// Whether a line contains a number as a whole word, other than to convert or add times.
fn has_number(code: &str, number: &str) -> bool {
    code.match_indices(number).any(|(at, _)| {
        let (before, after) = (&code[..at], &code[at + number.len()..]);
        let is_whole = !before.ends_with(is_word)
            && !after.strip_prefix("ULL").unwrap_or(after).starts_with(is_word);
        let converts = UNITS.contains(&number) && before.trim_end().ends_with(['*', '/', '+']);
        is_whole && !converts
    })
}

fn is_word(char: char) -> bool {
    char.is_ascii_alphanumeric() || char == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Limits of servers, connections and files, and those that are checked before a command reaches a database: no rule inside a
    /// database needs them.
    const OUTSIDE_DATABASES: &[&str] = &[
        "ANSWER_BYTES_MAX",
        "ANSWER_BYTES_TOTAL_MAX",
        "AUDIT_ENTRIES_MAX",
        "AUDIT_LINE_BYTES_MAX",
        "AUDIT_REFUSED_PER_MINUTE_MAX",
        "AUDIT_TEXT_BYTES_MAX",
        "AUDIT_WAITING_MAX",
        "BACKUP_BLOCK_BYTES_MAX",
        "BACKUP_LOG_PART",
        "CLASSES_MAX",
        "CLIENT_VERSION_BYTES_MAX",
        "CONFIG_FILE_BYTES_MAX",
        "CONNECTIONS_MAX",
        "ERROR_BYTES_MAX",
        "KEEP_DONE_MAX",
        "LIST_TASKS_MAX",
        "LOGIN_PEERS_MAX",
        "LOGIN_USERS_PER_PEER_MAX",
        "LOG_BYTES_MAX",
        "METRICS_HISTOGRAMS_MAX",
        "METRICS_ROWS_MAX",
        "METRICS_TUBES_MAX",
        "NAME_PATTERN_BYTES_MAX",
        "PAGE_SESSIONS_MAX",
        "PAGE_SESSIONS_PER_USER_MAX",
        "PAGE_SESSION_SECS_MAX",
        "PAYLOAD_BYTES_DEFAULT",
        "PEERS_MAX",
        "PEER_ANSWER_BYTES_MAX",
        "PENDING_BYTES_MAX",
        "PENDING_COMMANDS_MAX",
        "PENDING_ITEMS_MAX",
        "POOL_QUEUE_MAX",
        "POSITIONS_MAX",
        "RATE_BURST_MAX",
        "RATE_COUNT_MAX",
        "RATE_PER_SECS_MAX",
        "REQUEST_BYTES_SHARE",
        "REQUEST_BYTES_TOTAL_MAX",
        "RESULT_BYTES_MAX",
        "RETRY_DELAY_SECS_MAX",
        "RETRY_FACTOR_PERMILLE_MAX",
        "RETRY_JITTER_PERMILLE_MAX",
        "SCHEDULES_LISTED_MAX",
        "SCHEDULE_EVERY_SECS_MIN",
        "SCHEDULE_NAME_BYTES_MAX",
        "SCHEDULE_TEMPLATE_BYTES_MAX",
        "SCHEDULE_TIMING_BYTES_MAX",
        "SEARCH_RUN_BYTES_MAX",
        "SERIES_TUBES_MAX",
        "SIGN_IN_BYTES_MAX",
        "SIGN_IN_BYTES_TOTAL_MAX",
        "SMALL_BYTES_MAX",
        "TLS_HANDSHAKES_MAX",
        "TOKEN_CHARS_MAX",
        "TOKEN_CHARS_MIN",
        "TRACE_BUFFER_BYTES",
        "TRACE_BYTES_DEFAULT",
        "TRACE_TASKS_MAX",
        "TUBES_PER_USER_MAX",
        "TUBES_RESERVED",
        "USERS_FILE_BYTES_MAX",
        "USERS_MAX",
        "USER_NAME_BYTES_MAX",
        "USER_PATTERNS_MAX",
        "WAITERS_MAX",
        "WORKER_BYTES_MAX",
    ];

    /// The search for typed limits knew only the limits that a library used already.
    #[test]
    fn every_limit_of_the_core_is_classified() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../core/src/limits.rs");
        let source = std::fs::read_to_string(path).expect("the limits of the core can be read");
        let limits = limits();
        let names =
            source.lines().filter_map(|line| line.strip_prefix("pub const ")?.split(':').next());
        for name in names {
            let is_inside = limits.iter().any(|limit| limit.0 == name);
            assert!(is_inside != OUTSIDE_DATABASES.contains(&name), "list {name} once");
        }
    }

    #[test]
    fn a_typed_limit_is_found() {
        let typed = |line: &str| !typed_limits(line, &[]).is_empty();
        assert!(!typed("local TUBES_MAX = {{TUBES_MAX}}\n-- 10000\n"));
        assert!(!typed("LIMIT 100001\n-- 20000\n"));
        assert_eq!(
            typed_limits("local most = 100000\n", &[]),
            ["GATE_LOOKED_MAX, SCHEDULES_MAX, SEMAPHORES_MAX: local most = 100000"]
        );
        assert!(typed("LIMIT 10000 -- 20000\n"));
        assert!(typed("local id_max = 562949953421311ULL"));
        assert_eq!(typed_limits("local page = 10000\n", &["page = 10000"]), Vec::<String>::new());
    }

    /// Limits of keys, retries and schedules were substituted, but not looked for.
    #[test]
    fn typed_limits_of_keys_retries_and_schedules_are_found() {
        let typed = |line: &str| !typed_limits(line, &[]).is_empty();
        for line in [
            "if tube.ended > 1000000 then",
            "octet_length(_key) NOT BETWEEN 1 AND 128 THEN",
            "FOR _n IN 2 .. least(_attempt, 1000 + 1) LOOP",
            "elseif S.schedule:len() >= 100000 then",
            "elseif #puts > 1000 then",
            "make_interval(secs => 604800)",
        ] {
            assert!(typed(line), "{line}");
        }
    }

    #[test]
    fn factors_between_units_of_time_are_no_limits() {
        let typed = |line: &str| !typed_limits(line, &[]).is_empty();
        assert!(!typed("_now + 1000000") && !typed("10 * 1000000") && !typed("factor / 1000.0"));
        assert!(typed("1000000 * n") && typed("n - 1000000") && typed("n + 10000000"));
    }

    #[test]
    fn a_short_number_counts_beside_its_name_and_as_a_bound() {
        let typed = |line: &str| !typed_limits(line, &[]).is_empty();
        assert!(typed("local OLDEST_LOOKED_MAX = 256\n"));
        assert!(
            typed("FOR i IN 1 .. 256 LOOP\n") && typed("LIMIT 64") && typed("for i = 1, 64 do")
        );
        assert!(!typed("local byte = 256\n") && !typed("_length < 256 AND _bits8\n"));
    }
}
