//! What may change while tasks of the old contract are in the queues.

use taskyard_contract::{compare, parse};

use crate::REFERENCE;

/// What is said when the reference becomes this.
fn said(change: impl Fn(&str) -> String) -> String {
    let (before, after) = (parse(REFERENCE).unwrap(), parse(&change(REFERENCE)).unwrap());
    compare(&before, &after).err().map(|problems| problems.to_string()).unwrap_or_default()
}

#[test]
fn what_is_appended_or_renamed_is_fine() {
    let appended = |text: &str| format!("{text}      - {{name: more, type: int}}\n");
    assert_eq!(said(appended), "");
    let queue = "  - id: 3\n    name: sms\n    fields:\n      - {name: a, type: int}\n";
    assert_eq!(said(|text| format!("{text}{queue}")), "");
    let renamed = "name: letters\n    was: [emails]";
    assert_eq!(said(|text| text.replace("name: emails", renamed)), "");
    assert_eq!(said(|text| text.replace("name: emails", "name: letters\n    was: emails")), "");
    assert_eq!(said(|text| text.replace("name: to,", "name: receiver,")), "");
    assert_eq!(said(|text| text.replace("user_id, type: int64", "user_id, type: int")), "");
}

#[test]
fn what_old_tasks_would_not_survive_is_refused() {
    type Change = fn(&str) -> String;
    const LINE: &str = "      - {name: subject, type: string}\n";
    let cases: [(Change, &str); 6] = [
        (
            |text| text.replace("name: emails", "name: letters"),
            "queue 1 was called 'emails' and is 'letters'; add 'emails' to its 'was: [...]'",
        ),
        (|text| text.replace(LINE, ""), "field 'body' moved from position 3 to 2"),
        (
            |text| text.replace("body, type: \"[]byte\"", "body, type: bool"),
            "was []byte and is bool",
        ),
        (
            |text| text.replace("      - {name: is_urgent, type: bool}\n", ""),
            "'is_urgent' of queue",
        ),
        (|text| text.replace("id: 2", "id: 9"), "write 'id: 2'"),
        (|text| text.split("  - id: 2").next().unwrap().into(), "queue 2 'notifications' is gone"),
    ];
    for (change, wanted) in cases {
        let said = said(change);
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
}

#[test]
fn a_new_field_in_the_middle_is_refused_for_each_that_moved() {
    let first = "      - {name: to, type: string}\n";
    let said =
        said(|text| text.replace(first, &format!("{first}      - {{name: cc, type: string}}\n")));
    assert_eq!(said.lines().count(), 3, "{said}");
    assert!(said.contains("field 'user_id' moved from position 4 to 5"), "{said}");
}
