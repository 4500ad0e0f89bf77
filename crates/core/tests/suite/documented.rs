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
        format!("| sub-queue name | {SUBQUEUE_BYTES_MAX} bytes |"),
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
        format!("| tubes that one user creates | {},", thousands(TUBES_PER_USER_MAX)),
        format!("The last {TUBES_RESERVED} tubes"),
        format!("| tubes in `/metrics` | the {} busiest", thousands(METRICS_TUBES_MAX)),
        format!("At most {} rows", thousands(METRICS_ROWS_MAX)),
    ];
    let missing: Vec<_> = rows.iter().filter(|row| !page.contains(row.as_str())).collect();
    assert!(missing.is_empty(), "docs/http.md does not say: {missing:#?}");
    let page = include_str!("../../../../docs/operating.md");
    assert!(page.contains(&format!("{TOKEN_CHARS_MIN} to {TOKEN_CHARS_MAX} visible")));
    let page = include_str!("../../../../docs/security.md");
    let row =
        format!("| handshakes in progress, for each address | {} |", thousands(TLS_HANDSHAKES_MAX));
    assert!(page.contains(&row), "docs/security.md does not say: {row}");
}

/// A number below a million as people write it.
fn thousands(number: usize) -> String {
    format!("{},{:03}", number / 1000, number % 1000)
}
