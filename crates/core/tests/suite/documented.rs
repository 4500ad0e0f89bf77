//! The limits that the documents name are those of the code.

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
            "| commands before the writer | {}, or {} MiB;",
            thousands(PENDING_COMMANDS_MAX),
            PENDING_BYTES_MAX >> 20
        ),
    ];
    let missing: Vec<_> = rows.iter().filter(|row| !page.contains(row.as_str())).collect();
    assert!(missing.is_empty(), "docs/tubes.md does not say: {missing:#?}");
}

/// A number below a million as people write it.
fn thousands(number: usize) -> String {
    format!("{},{:03}", number / 1000, number % 1000)
}
