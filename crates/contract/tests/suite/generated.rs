//! The generated Rust source. The tests of taskyard-worker compile and run it.

use taskyard_contract::{build::BuildError, build::generate_into, parse, rust, rust_types};

use crate::REFERENCE;

#[test]
fn it_contains_types_handlers_and_setters() {
    let source = rust(&parse(REFERENCE).unwrap());
    for wanted in [
        "pub struct EmailsTask {",
        "pub user_id: i64,",
        "pub target_ids: ::std::vec::Vec<i64>,",
        "pub trait NotificationsHandler:",
        "num: 2, name: \"notifications\"",
        "pub fn on_emails(mut self, handler: impl EmailsHandler) -> Self {",
    ] {
        assert!(source.contains(wanted), "{wanted}");
    }
    assert!(!source.contains(['«', '»']), "a part of the template is not filled");
    let types = rust_types(&parse(REFERENCE).unwrap());
    assert!(types.contains("pub struct NotificationsTask {") && !types.contains("Handler"));
}

// The first line of each setter and each route was not indented.
#[test]
fn all_lines_are_indented() {
    let source = rust(&parse(REFERENCE).unwrap());
    for wanted in [
        "\n    /// Sets the handler of the queue `emails`.\n    pub fn on_emails(",
        "\n            (<EmailsTask as ::taskyard_worker::TypedTask>::QUEUE, handlers.on_emails),\n",
        "\n            (<NotificationsTask as ::taskyard_worker::TypedTask>::QUEUE,",
    ] {
        assert!(source.contains(wanted), "{wanted}\n{source}");
    }
}

#[test]
fn rust_keywords_are_escaped() {
    let source = rust(&parse(include_str!("../every_type.yaml")).unwrap());
    assert!(source.contains("pub r#match: i64,") && source.contains("pub struct TypeTask"));
}

#[test]
fn generating_twice_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let contract = folder.path().join("queues.yaml");
    std::fs::write(&contract, REFERENCE).unwrap();
    let target = generate_into(&contract, None, folder.path()).unwrap();
    assert_eq!(target, folder.path().join("queues.rs"));
    let written =
        || (std::fs::read(&target).unwrap(), target.metadata().unwrap().modified().unwrap());
    let first = written();
    generate_into(&contract, Some(&contract), folder.path()).unwrap();
    assert_eq!(written(), first, "the file is not written");
}

#[test]
fn a_build_error_lists_all_problems() {
    let folder = tempfile::tempdir().unwrap();
    let contract = folder.path().join("queues.yaml");
    let missing = generate_into(&contract, None, folder.path()).unwrap_err();
    assert!(matches!(missing, BuildError::File(..)), "{missing}");
    std::fs::write(&contract, "queues:\n  - id: 0\n    name: X\n").unwrap();
    let wrong = generate_into(&contract, None, folder.path()).unwrap_err().to_string();
    assert_eq!(wrong.lines().count(), 3, "{wrong}");
    assert!(wrong.contains("queues.yaml:2:9: invalid queue id: 0;"), "{wrong}");
    let previous = folder.path().join("previous.yaml");
    std::fs::write(&previous, REFERENCE).unwrap();
    std::fs::write(&contract, REFERENCE.replace("id: 2", "id: 3")).unwrap();
    let wrong = generate_into(&contract, Some(&previous), folder.path()).unwrap_err();
    assert!(wrong.to_string().contains("ids are permanent"), "{wrong}");
}
