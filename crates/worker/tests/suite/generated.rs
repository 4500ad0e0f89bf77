//! The generated sources of these tests match their contracts.

use taskyard_contract::{parse, rust, rust_types};
use taskyard_worker::{Delivery, TypedTask};

use crate::every_type::TypeTask;
use crate::queues::EmailsTask;

#[test]
fn generated_sources_are_up_to_date() {
    let reference = parse(include_str!("../../../contract/tests/reference.yaml")).unwrap();
    let every_type = parse(include_str!("../../../contract/tests/every_type.yaml")).unwrap();
    let advice = "generate it again with `taskyard contract generate`";
    assert_eq!(rust(&reference), include_str!("queues.rs"), "{advice}");
    assert_eq!(rust_types(&every_type), include_str!("every_type.rs"), "{advice} --types");
}

#[test]
fn tasks_are_encoded_and_decoded() {
    let task = TypeTask {
        int: -1,
        r#match: i64::MAX,
        list: "почта".into(),
        from: true,
        field: vec![0, 255],
        encode: vec![1, -33],
        numbers: vec![i64::MIN],
        ..TypeTask::default()
    };
    assert_eq!(TypeTask::decode(Delivery::default(), &task.encode()), Ok(task));
    let delivery = Delivery { task_id: 7, attempts: 2, ..Delivery::default() };
    let mail = EmailsTask::decode(delivery, &[0x91, 0xa1, b'a']).unwrap();
    assert_eq!((mail.task_id, mail.attempts, &*mail.to, &*mail.subject), (7, 2, "a", ""));
}
