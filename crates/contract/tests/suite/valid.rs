//! Valid contracts, and the problems of invalid ones.

use taskyard_contract::{FieldType, Problems, parse};

use crate::REFERENCE;

fn problems(text: &str) -> Problems {
    parse(text).expect_err("this is no contract")
}

/// One queue with these lines in it.
fn queue(lines: &str) -> String {
    format!("queues:\n  - id: 1\n    name: mail\n    fields:\n{lines}")
}

#[test]
fn the_reference_is_valid() {
    let contract = parse(REFERENCE).unwrap();
    let names: Vec<_> = contract.queues.iter().map(|queue| (queue.id, &*queue.name)).collect();
    assert_eq!(names, [(1, "emails"), (2, "notifications")]);
    let fields = &contract.queues[1].fields;
    assert_eq!(fields[1].name, "target_ids");
    assert_eq!(fields[1].kind, FieldType::Int64s);
    assert_eq!((fields[1].position.line, fields[1].position.column), (14, 9));
}

#[test]
fn every_type_is_known() {
    for kind in FieldType::ALL {
        let text = queue(&format!("      - name: x\n        type: \"{}\"\n", kind.name()));
        assert_eq!(parse(&text).unwrap().queues[0].fields[0].kind, kind);
    }
}

/// Each case has a position, a part of the message and a part of the hint.
#[test]
fn each_mistake_is_reported_at_its_position() {
    let field = "      - {name: a, type: int}\n";
    let cases = [
        (String::new(), 1, 1, "no queues defined", "queues:"),
        ("# nothing\n".into(), 1, 1, "no queues defined", "queues:"),
        ("queues: []\n".into(), 1, 9, "no queues defined", "id, name and fields"),
        ("queues:\n".into(), 1, 7, "no queues defined", "id, name and fields"),
        ("- a\n".into(), 1, 1, "must be a map, not a list", "'queues'"),
        ("queues: {a: 1}\n".into(), 1, 9, "must be a list, not a map", "'- '"),
        ("queues:\n  - id: 1\n    name: a\n".into(), 2, 5, "queue a has no fields", "fields:"),
        (queue("      []\n"), 5, 7, "queue mail has no fields", "at least one"),
        (queue(&format!("{field}    ttl: 5\n")), 6, 5, "unknown key 'ttl'", "'id', 'name'"),
        (queue(&format!("{field}    name: b\n")), 6, 5, "duplicate key 'name'", "remove one"),
        (queue("      - {name: a, type: float}\n"), 5, 25, "invalid type: float", "int64"),
        (queue("      - {name: a, type: []}\n"), 5, 25, "invalid type", "in quotes"),
        (queue("      - {name: a}\n"), 5, 9, "a field without type", "string"),
        (queue("      - {type: int}\n"), 5, 9, "a field without name", "lower-case letters"),
        (queue("      - {name: userId, type: int}\n"), 5, 16, "invalid name", "'user_id'"),
        (queue("      - {name: self, type: int}\n"), 5, 16, "cannot be a name", "my_self"),
        (queue("      - {name: '', type: int}\n"), 5, 16, "the name is empty", "such as"),
        (queue("      - {name: attempts, type: int}\n"), 5, 16, "is taken", "another name"),
        (queue(&format!("{field}{field}")), 6, 16, "duplicate field name: a", "line 5"),
        (queue("      - {name: [a], type: int}\n"), 5, 16, "must be a single value", "one word"),
    ];
    for (text, line, column, message, hint) in cases {
        let found = problems(&text);
        let first = found.iter().next().unwrap();
        assert!(first.message.contains(message), "{text:?}: {first}");
        assert!(first.hint.contains(hint), "{text:?}: {first}");
        assert_eq!(
            (first.position.line, first.position.column),
            (line, column),
            "{text:?}: {first}"
        );
        assert_eq!(found.len(), 1, "{found}");
    }
}

#[test]
fn ids_are_numbers_from_one() {
    for id in ["0", "-1", "x", "1.5", "4294967296", "01", "+1", "''"] {
        let text = queue("      - {name: a, type: int}\n").replace("id: 1", &format!("id: {id}"));
        let found = problems(&text);
        assert!(found.to_string().starts_with("2:9: invalid queue id: "), "{id}: {found}");
    }
    let missing = queue("      - {name: a, type: int}\n").replace("id: 1\n    name", "name");
    assert!(problems(&missing).to_string().contains("a queue without id"));
}

#[test]
fn two_queues_differ_in_id_name_and_type() {
    let other = |id: u32, name: &str| {
        let field = "      - {name: a, type: int}\n";
        problems(&format!("{}  - id: {id}\n    name: {name}\n    fields:\n{field}", queue(field)))
            .to_string()
    };
    assert!(other(1, "post").starts_with("6:9: duplicate queue id: 1"));
    assert!(other(2, "mail").starts_with("7:11: duplicate queue name: mail"));
    assert!(other(2, "mail_").contains("both become Mail"));
}

#[test]
fn all_problems_are_reported_in_the_order_of_the_file() {
    let text = "queues:\n  - id: 0\n    name: Mail\n    fields:\n      - {name: a, type: x}\n\
                \x20 - name: b\n    colour: red\n    fields: []\n";
    let lines: Vec<_> = problems(text).iter().map(|problem| problem.position.line).collect();
    assert_eq!(lines, [2, 3, 5, 6, 7, 8]);
}

#[test]
fn invalid_yaml_is_reported_with_its_position() {
    for text in
        ["queues: [", "queues:\n  - id: 1\n name: x\n", "a: *b\n", "{", "\t- x", "a: &b c\nd: *b\n"]
    {
        let found = problems(text);
        assert!(found.iter().all(|problem| problem.position.line >= 1), "{text:?}: {found}");
    }
    assert!(problems("queues: []\n---\nqueues: []\n").to_string().contains("second document"));
}

/// Deeply nested input must not exhaust the stack.
#[test]
fn depth_is_limited() {
    assert!(!problems(&"[".repeat(100_000)).is_empty());
    assert!(!problems(&"- ".repeat(100_000)).is_empty());
}
