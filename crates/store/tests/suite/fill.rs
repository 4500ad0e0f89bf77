//! Tests that loaded bodies are inserted into their replies.

use taskyard_conformance::block_on;
use taskyard_core::{Body, Command, Kind, NewTask, Reply, Span, Take, TaskId, Timestamp};
use taskyard_core::{TubeName, TubeOptions};
use taskyard_store::{BodyKey, MemoryStore, Store, Unloaded, fill};

// A reply was searched for missing tasks once for each of its bodies: with ten thousand bodies a hundred
// million steps.
#[test]
fn missing_tasks_are_removed_from_each_reply() {
    let tube = TubeName::new("mail").unwrap();
    let options = TubeOptions::new(Kind::Fifo);
    let tasks = (0..6).map(|n| NewTask::new(Body::new(&[n]))).collect();
    let take = Take {
        tube: tube.clone(),
        count: 3,
        session: None,
        lease: None,
        worker: None,
        wait: Span::ZERO,
    };
    let commands = vec![
        Command::CreateTube { tube: tube.clone(), options, if_not_exists: false },
        Command::Put { tube, tasks, wait: Span::ZERO },
        Command::Take(take.clone()),
        Command::Take(take),
    ];
    let store = MemoryStore::default();
    let mut replies = block_on(store.execute(Timestamp::EPOCH, commands)).replies;
    let (mut unloaded, mut bodies) = (Vec::new(), Vec::new());
    for (reply, answer) in replies.iter_mut().enumerate() {
        let Ok(Reply::Taken(tasks)) = answer else { continue };
        for (item, task) in tasks.iter_mut().enumerate() {
            unloaded.push(Unloaded { reply, item, key: BodyKey { tube: 0, id: task.id } });
            bodies.push(task.body.take().filter(|_| task.id.0 % 3 != 1));
        }
    }
    fill(&mut replies, &unloaded, bodies);
    for (reply, expected) in [(2, [0, 2]), (3, [3, 5])] {
        let Ok(Reply::Taken(tasks)) = &replies[reply] else { panic!("{:?}", replies[reply]) };
        let ids: Vec<_> = tasks.iter().map(|task| task.id).collect();
        assert_eq!(ids, expected.map(TaskId));
        assert!(tasks.iter().all(|task| task.body == Some(Body::new(&[task.id.0 as u8]))));
    }
}
