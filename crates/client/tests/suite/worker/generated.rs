//! The generated sources that these tests are compiled with are those of the contracts.

use taskyard::worker::{Delivery, TypedTask};
use taskyard_contract::{parse, rust, rust_types};

use super::queues::EmailsTask;
use super::words::TypeTask;

#[test]
fn they_are_up_to_date() {
    let reference = parse(include_str!("../../../../contract/tests/reference.yaml")).unwrap();
    let words = parse(include_str!("../../../../contract/tests/every_type.yaml")).unwrap();
    let advice = "write it anew with `taskyard contract generate`";
    assert_eq!(rust(&reference), include_str!("queues.rs"), "{advice}");
    assert_eq!(rust_types(&words), include_str!("words.rs"), "{advice} --types");
}

#[test]
fn tasks_come_back_as_they_went() {
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
