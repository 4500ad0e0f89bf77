//! Compatible and incompatible changes of a contract.

use taskyard_contract::{compare, parse};

use crate::REFERENCE;

/// The problems of a change of the reference contract.
fn problems_of(change: impl Fn(&str) -> String) -> String {
    let (before, after) = (parse(REFERENCE).unwrap(), parse(&change(REFERENCE)).unwrap());
    compare(&before, &after).err().map(|problems| problems.to_string()).unwrap_or_default()
}

#[test]
fn appended_and_renamed_parts_are_compatible() {
    let appended = |text: &str| format!("{text}      - {{name: more, type: int}}\n");
    assert_eq!(problems_of(appended), "");
    let queue = "  - id: 3\n    name: sms\n    fields:\n      - {name: a, type: int}\n";
    assert_eq!(problems_of(|text| format!("{text}{queue}")), "");
    let renamed = "name: letters\n    was: [emails]";
    assert_eq!(problems_of(|text| text.replace("name: emails", renamed)), "");
    assert_eq!(
        problems_of(|text| text.replace("name: emails", "name: letters\n    was: emails")),
        ""
    );
    assert_eq!(problems_of(|text| text.replace("name: to,", "name: receiver,")), "");
    assert_eq!(problems_of(|text| text.replace("user_id, type: int64", "user_id, type: int")), "");
}

#[test]
fn incompatible_changes_are_refused() {
    type Change = fn(&str) -> String;
    const LINE: &str = "      - {name: subject, type: string}\n";
    let cases: [(Change, &str); 6] = [
        (
            |text| text.replace("name: emails", "name: letters"),
            "queue 1 was named 'emails' and is now 'letters'; add 'emails' to its 'was: [...]'",
        ),
        (|text| text.replace(LINE, ""), "field 'body' moved from position 3 to 2"),
        (
            |text| text.replace("body, type: \"[]byte\"", "body, type: bool"),
            "was []byte and is now bool",
        ),
        (
            |text| text.replace("      - {name: is_urgent, type: bool}\n", ""),
            "'is_urgent' of queue",
        ),
        (|text| text.replace("id: 2", "id: 9"), "write 'id: 2'"),
        (
            |text| text.split("  - id: 2").next().unwrap().into(),
            "queue 2 'notifications' was removed",
        ),
    ];
    for (change, wanted) in cases {
        let problems = problems_of(change);
        assert!(problems.contains(wanted), "{wanted}: {problems}");
    }
}

#[test]
fn a_new_field_in_the_middle_is_reported_for_each_moved_field() {
    let first = "      - {name: to, type: string}\n";
    let problems = problems_of(|text| {
        text.replace(first, &format!("{first}      - {{name: cc, type: string}}\n"))
    });
    assert_eq!(problems.lines().count(), 3, "{problems}");
    assert!(problems.contains("field 'user_id' moved from position 4 to 5"), "{problems}");
}
