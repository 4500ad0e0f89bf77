//! Commands over a limit are refused as a whole, and those at the limit are not.

use std::sync::Arc;

use taskyard_core::limits::*;
use taskyard_core::*;

const NOW: Timestamp = Timestamp::EPOCH;

#[test]
fn a_batch_has_a_maximum_size() {
    let (mut machine, tube) = machine();
    for (count, fits) in [(BATCH_TASKS_MAX, true), (BATCH_TASKS_MAX + 1, false)] {
        let task = NewTask::new(Body::new(b"x"));
        let ids: Vec<_> = (0..count as u64).map(TaskId).collect();
        let item = |id: &TaskId| FinishItem { id: *id, holder: Holder::Any, finish: Finish::Ack };
        let take = Take {
            tube: tube.clone(),
            count,
            session: None,
            lease: None,
            worker: None,
            wait: Span::ZERO,
        };
        let commands = [
            Command::Put { tube: tube.clone(), tasks: vec![task; count], wait: Span::ZERO },
            Command::Take(take),
            Command::Finish {
                tube: tube.clone(),
                items: ids.iter().map(item).collect(),
                show: true,
            },
            Command::Peek { tube: tube.clone(), ids: ids.clone() },
            Command::Delete { tube: tube.clone(), ids, show: true },
        ];
        for command in commands {
            let verb = command.verb();
            let answer = machine.apply(NOW, command);
            let refused = matches!(answer, Err(Error::TooLarge { .. }));
            assert_eq!(refused, !fits, "{verb} of {count}");
        }
    }
}

/// Ten thousand tasks of a megabyte were one reply once, which no server could build.
#[test]
fn a_reply_has_a_maximum_size() {
    let (mut machine, tube) = machine();
    let large = NewTask::new(Body::new(&vec![0; BATCH_BYTES_MAX / 2]));
    let in_its_own = |key: &str| NewTask { subqueue: Some(key.into()), ..large.clone() };
    let tasks = ["a", "b", "c"].map(in_its_own).to_vec();
    machine.apply(NOW, Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO }).unwrap();
    let peek = |ids: &[u64]| Command::Peek {
        tube: tube.clone(),
        ids: ids.iter().map(|id| TaskId(*id)).collect(),
    };
    assert!(machine.apply(NOW, peek(&[0, 1])).is_ok());
    assert!(matches!(machine.apply(NOW, peek(&[0, 0, 0])), Err(Error::TooLarge { .. })));
    for expected in [2, 1, 0] {
        let take = Take {
            tube: tube.clone(),
            count: 10,
            session: None,
            lease: None,
            worker: None,
            wait: Span::ZERO,
        };
        match machine.apply(NOW, Command::Take(take)) {
            Ok(Reply::Taken(tasks)) => assert_eq!(tasks.len(), expected),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn meta_and_subqueue_have_a_maximum_size() {
    let (mut machine, tube) = machine();
    let mut put = |change: fn(&mut NewTask, usize), size: usize| {
        let mut task = NewTask::new(Body::new(b"x"));
        change(&mut task, size);
        // A valid task beside it must not be added alone.
        let tasks = vec![NewTask::new(Body::new(b"x")), task];
        let put = Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO };
        machine.apply(NOW, put).is_ok()
    };
    let meta = |task: &mut NewTask, size: usize| task.body = Body::with_meta(b"x", &vec![0; size]);
    assert!(put(meta, META_BYTES_MAX));
    assert!(!put(meta, META_BYTES_MAX + 1));
    let subqueue =
        |task: &mut NewTask, size: usize| task.subqueue = Some(Arc::from("s".repeat(size)));
    assert!(put(subqueue, SUBQUEUE_BYTES_MAX));
    assert!(!put(subqueue, SUBQUEUE_BYTES_MAX + 1));
    let show = machine.apply(NOW, Command::Tubes { tube: None });
    let Ok(Reply::Tubes(tubes)) = show else { panic!("{show:?}") };
    assert_eq!(tubes[0].stats.tasks.total(), 4);
}

#[test]
fn the_number_of_tubes_is_limited() {
    let mut machine = Machine::default();
    let options = TubeOptions::new(Kind::Fifo);
    // Restored tubes count like created ones, and are quicker to make.
    for number in 0..TUBES_MAX - 1 {
        let name = TubeName::new(&number.to_string()).unwrap();
        let record = TubeRecord { name, options: options.clone(), next_id: 0, bucket: None };
        machine.restore_tube(number as u32, record);
    }
    let mut create = |name: &str| {
        let (tube, options) = (TubeName::new(name).unwrap(), options.clone());
        machine.apply(NOW, Command::CreateTube { tube, options, if_not_exists: false })
    };
    assert_eq!(create("the last"), Ok(Reply::Created(true)));
    assert_eq!(create("one more"), Err(Error::TooManyTubes(TUBES_MAX)));
}

#[test]
fn the_largest_id_is_not_exceeded() {
    let mut machine = Machine::default();
    let name = TubeName::new("old").unwrap();
    let options = TubeOptions::new(Kind::Fifo);
    let next_id = TASK_ID_MAX - 2;
    machine.restore_tube(0, TubeRecord { name: name.clone(), options, next_id, bucket: None });
    let mut put = |count: usize| {
        let tasks = vec![NewTask::new(Body::new(b"x")); count];
        machine.apply(NOW, Command::Put { tube: name.clone(), tasks, wait: Span::ZERO })
    };
    assert!(matches!(put(4), Err(Error::Invalid(_))));
    let Ok(Reply::Put(placed)) = put(2) else { panic!("two ids are left") };
    assert!(placed.iter().all(|placed| placed.id.0 <= TASK_ID_MAX));
    assert!(matches!(put(2), Err(Error::Invalid(_))));
}

fn machine() -> (Machine, TubeName) {
    let tube = TubeName::new("a").unwrap();
    let mut machine = Machine::default();
    let options = TubeOptions::new(Kind::Utube);
    let create = Command::CreateTube { tube: tube.clone(), options, if_not_exists: false };
    machine.apply(NOW, create).unwrap();
    (machine, tube)
}
