//! The limits in the documentation are those of the code.

use taskyard_core::limits::*;

#[test]
fn the_documented_limits_are_those_of_the_code() {
    let page = include_str!("../../../../docs/tubes.md");
    let rows = [
        format!("| tube name | 1 to {TUBE_NAME_BYTES_MAX} bytes"),
        format!("| tubes | {} |", thousands(TUBES_MAX)),
        format!(
            "| payload | {} MiB; an operator may allow up to {} MiB |",
            PAYLOAD_BYTES_DEFAULT >> 20,
            PAYLOAD_BYTES_MAX >> 20
        ),
        format!("| `meta` of a task | {} KiB |", META_BYTES_MAX >> 10),
        format!("| result of a task | {} KiB |", RESULT_BYTES_MAX >> 10),
        format!("| sub-queue name | {SUBQUEUE_BYTES_MAX} bytes |"),
        format!("| key of a task | 1 to {KEY_BYTES_MAX} bytes"),
        format!("| `unique_for` of a key | {} days |", UNIQUE_FOR_SECS_MAX / (24 * 3600)),
        format!("| keys of ended tasks in a tube | {} |", thousands(ENDED_KEYS_MAX)),
        format!(
            "| one command | {} tasks, {} MiB |",
            thousands(BATCH_TASKS_MAX),
            BATCH_BYTES_MAX >> 20
        ),
        format!("| nesting of a payload | {NESTING_MAX} |"),
        format!("| connections | {} |", thousands(CONNECTIONS_MAX)),
        format!("| waiting consumers and producers | {} |", thousands(WAITERS_MAX)),
        format!(
            "| queued commands | {}, or {} MiB;",
            thousands(PENDING_COMMANDS_MAX),
            PENDING_BYTES_MAX >> 20
        ),
    ];
    let missing: Vec<_> = rows.iter().filter(|row| !page.contains(row.as_str())).collect();
    assert!(missing.is_empty(), "docs/tubes.md does not say: {missing:#?}");
    // A limit that is only in the page is compared with nothing.
    let table = page.split("\n## Limits\n").nth(1).expect("a section").split("\n## ").next();
    let listed = table.into_iter().flat_map(str::lines).filter(|line| line.starts_with("| "));
    let is_compared = |line: &&str| rows.iter().any(|row| line.starts_with(row.as_str()));
    let others: Vec<_> = listed.skip(1).filter(|line| !is_compared(line)).collect();
    assert!(others.is_empty(), "this test compares all limits but: {others:#?}");
}

#[test]
fn the_limits_of_http_are_those_of_the_code() {
    let page = include_str!("../../../../docs/http.md");
    let small = SMALL_BYTES_MAX >> 10;
    let rows = [
        format!(
            "| all requests being received | {} MiB; {} MiB of it only for requests up to {small} KiB. A request \
             of more than {} MiB",
            REQUEST_BYTES_TOTAL_MAX >> 20,
            REQUEST_BYTES_TOTAL_MAX >> 23,
            REQUEST_BYTES_SHARE >> 20
        ),
        format!("| one response | {} MiB |", ANSWER_BYTES_MAX >> 20),
        format!(
            "| all unread responses | {} MiB, in addition to responses up to {small} KiB",
            ANSWER_BYTES_TOTAL_MAX >> 20
        ),
        format!(
            "| sessions of the page | {}, and {PAGE_SESSIONS_PER_USER_MAX} for one user;",
            thousands(PAGE_SESSIONS_MAX)
        ),
        format!("A session lasts {} hours at most", PAGE_SESSION_SECS_MAX / 3600),
        format!(
            "A request to sign in has {} KiB, all that are being received {} MiB",
            SIGN_IN_BYTES_MAX >> 10,
            SIGN_IN_BYTES_TOTAL_MAX >> 20
        ),
        format!("| tubes with time series | {},", thousands(SERIES_TUBES_MAX)),
        format!("| peers of a server | {PEERS_MAX} |"),
        format!("| tubes that one user creates | {},", thousands(TUBES_PER_USER_MAX)),
        format!("The last {TUBES_RESERVED} tubes"),
        format!("| tubes in `/metrics` | the {} busiest", thousands(METRICS_TUBES_MAX)),
        format!("At most {} rows", thousands(METRICS_ROWS_MAX)),
    ];
    let missing: Vec<_> = rows.iter().filter(|row| !page.contains(row.as_str())).collect();
    assert!(missing.is_empty(), "docs/http.md does not say: {missing:#?}");
    let page = include_str!("../../../../docs/operating.md");
    assert!(page.contains(&format!("{TOKEN_CHARS_MIN} to {TOKEN_CHARS_MAX} visible")));
}

#[test]
fn the_limits_of_other_pages_are_those_of_the_code() {
    let said = |path: &str, page: &str, texts: &[String]| {
        let missing: Vec<_> = texts.iter().filter(|text| !page.contains(text.as_str())).collect();
        assert!(missing.is_empty(), "{path} does not say: {missing:#?}");
    };
    let texts = [
        format!("| handshakes in progress, for each address | {} |", thousands(TLS_HANDSHAKES_MAX)),
        format!(
            "- At most {} users, {} MiB, {USER_PATTERNS_MAX} patterns for a user.",
            thousands(USERS_MAX),
            USERS_FILE_BYTES_MAX >> 20
        ),
        format!(
            "| at most | {} hours, {} sessions, {PAGE_SESSIONS_PER_USER_MAX} of one user.",
            PAGE_SESSION_SECS_MAX / 3600,
            thousands(PAGE_SESSIONS_MAX)
        ),
        format!("`GET /v1/audit` | {} |", thousands(AUDIT_ENTRIES_MAX)),
        format!("| {AUDIT_TEXT_BYTES_MAX} bytes, then it is cut |"),
        format!("| a line of the file | {} KiB;", AUDIT_LINE_BYTES_MAX >> 10),
        format!("| entries that wait to be written | {} |", thousands(AUDIT_WAITING_MAX)),
        format!("for each user | {AUDIT_REFUSED_PER_MINUTE_MAX} a minute;"),
    ];
    said("docs/security.md", include_str!("../../../../docs/security.md"), &texts);
    let texts = [
        format!("at most {} |", thousands(SEMAPHORE_REVOKING_MAX as usize)),
        format!("and at most {}; each page", thousands(BATCH_TASKS_MAX)),
    ];
    let page = include_str!("../../../../docs/semaphores.md");
    let texts = texts.map(|text| text.replace(" |", ""));
    said("docs/semaphores.md", page, &texts);
    let texts = [
        format!("| `name` | 1 to {SCHEDULE_NAME_BYTES_MAX} bytes"),
        format!("`all` (at most {})", thousands(SCHEDULE_PUTS_MAX)),
    ];
    said("docs/schedules.md", include_str!("../../../../docs/schedules.md"), &texts);
    let texts = [format!("| `queue_max` | {} |", thousands(POOL_QUEUE_MAX))];
    said("docs/pool.md", include_str!("../../../../docs/pool.md"), &texts);
    let texts = [
        format!("shows at most {POSITIONS_MAX} tasks"),
        format!("count up to {} tasks ahead exactly", thousands(AHEAD_COUNTED_MAX)),
    ];
    said("docs/estimates.md", include_str!("../../../../docs/estimates.md"), &texts);
    let page = include_str!("../../../../docs/operate/sizing.md");
    let texts = [format!(
        "{} tubes, {} connections, {} waiting consumers, {} tasks and {} MiB in one command",
        thousands(TUBES_MAX),
        thousands(CONNECTIONS_MAX),
        thousands(WAITERS_MAX),
        thousands(BATCH_TASKS_MAX),
        BATCH_BYTES_MAX >> 20
    )];
    said("docs/operate/sizing.md", page, &texts);
}

/// A number as people write it.
fn thousands(number: usize) -> String {
    match number / 1000 {
        0 => number.to_string(),
        more if more < 1000 => format!("{more},{:03}", number % 1000),
        more => format!("{},{:03}", thousands(more), number % 1000),
    }
}
