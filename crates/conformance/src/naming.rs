//! Naming: a tube gets another name and keeps everything else; numbers of queues are permanent.

use taskyard_core::{Command, Error, Kind, NewTask, Outcome, Reply, TaskId, TubeName, TubeOptions};

use super::Harness;
use super::commands::{QueueCommands, ids, name, put, secs, task};

fn rename(tube: &TubeName, to: &str, queue_num: Option<u32>) -> Command {
    Command::NameTube { tube: tube.clone(), name: name(to), queue_num }
}

fn create(tube: &str, queue_num: Option<u32>) -> Command {
    let options = TubeOptions { queue_num, ..TubeOptions::new(Kind::FifoTtl) };
    Command::CreateTube { tube: name(tube), options, if_not_exists: false }
}

async fn renamed<H: Harness>(queue: &H, tube: &TubeName, to: &str) -> TubeName {
    let before = queue.info(tube).await;
    let Reply::Tubes(shown) = queue.must(rename(tube, to, None)).await else {
        panic!("a tube is shown")
    };
    assert_eq!(shown.len(), 1);
    assert_eq!(shown[0].name, name(to));
    assert_eq!((shown[0].number, &shown[0].options), (before.number, &before.options));
    assert_eq!((shown[0].stats, shown[0].takeable), (before.stats, before.takeable));
    assert_eq!(queue.info(&name(to)).await, shown[0]);
    name(to)
}

/// A renamed tube keeps its tasks in every state, and holders keep theirs.
pub async fn a_renamed_tube_keeps_its_tasks<H: Harness>(queue: H) {
    let tube = queue.tube_named("emails", TubeOptions::new(Kind::FifoTtl)).await;
    queue.put_texts(&tube, &["taken", "ready"]).await;
    queue.put(&tube, NewTask { delay: Some(secs(50)), ..task("delayed") }).await;
    let buried = queue.put(&tube, task("buried")).await;
    queue.bury(&tube, buried).await;
    let taken = queue.take(&tube).await;
    let letters = renamed(&queue, &tube, "letters").await;
    let gone = queue.refused(put(&tube, vec![task("x")])).await;
    assert_eq!(gone, Error::TubeNotFound(tube.clone()));
    assert!(matches!(queue.ack(&letters, &taken).await, Outcome::Done(_)));
    assert_eq!(queue.take(&letters).await.id, TaskId(1));
    assert_eq!(queue.peek_existing(&letters, TaskId(2)).await.body, task("delayed").body.into());
    assert_eq!(queue.put(&letters, task("new")).await, TaskId(4), "ids continue");
    let tasks = queue.info(&letters).await.stats.tasks;
    assert_eq!((tasks.ready, tasks.taken, tasks.delayed, tasks.buried), (1, 1, 1, 1));
}

/// The old name is free: a new tube of that name shares nothing with the renamed one.
pub async fn the_old_name_can_be_used_again<H: Harness>(queue: H) {
    let tube = queue.tube_named("emails", TubeOptions::new(Kind::FifoTtl)).await;
    queue.put_texts(&tube, &["a", "b"]).await;
    let letters = renamed(&queue, &tube, "letters").await;
    let tube = queue.tube_named("emails", TubeOptions::new(Kind::FifoTtl)).await;
    assert_eq!(queue.put(&tube, task("c")).await, TaskId(0));
    assert_eq!(ids(&queue.take_many(&letters, 10).await), [0, 1]);
    assert_eq!(ids(&queue.take_many(&tube, 10).await), [0]);
    let back = rename(&letters, "emails", None);
    assert_eq!(queue.refused(back).await, Error::TubeExists(tube));
}

/// A refused rename changes nothing.
pub async fn a_used_name_is_refused<H: Harness>(queue: H) {
    let tube = queue.tube_named("emails", TubeOptions::new(Kind::FifoTtl)).await;
    let other = queue.tube_named("letters", TubeOptions::new(Kind::Fifo)).await;
    let before = queue.tubes().await;
    let refusal = queue.refused(rename(&tube, "letters", Some(7))).await;
    assert_eq!(refusal, Error::TubeExists(other));
    let refusal = queue.refused(rename(&name("unknown"), "notes", None)).await;
    assert_eq!(refusal, Error::TubeNotFound(name("unknown")));
    assert_eq!(queue.tubes().await, before);
    renamed(&queue, &tube, "emails").await;
}

/// A queue number belongs to one tube permanently, also after a rename.
pub async fn a_queue_number_is_permanent<H: Harness>(queue: H) {
    queue.must(create("emails", Some(1))).await;
    queue.must(create("notes", None)).await;
    let taken = Error::QueueNumTaken { tube: name("emails"), num: 1 };
    assert_eq!(queue.refused(create("other", Some(1))).await, taken);
    assert_eq!(queue.refused(rename(&name("notes"), "notes", Some(1))).await, taken);
    assert_eq!(queue.tubes().await.len(), 2, "nothing was made");
    let zero = Error::Invalid("a queue number must be at least 1".into());
    assert_eq!(queue.refused(create("other", Some(0))).await, zero);
    assert_eq!(queue.refused(rename(&name("notes"), "notes", Some(0))).await, zero);
    assert_eq!(queue.refused(rename(&name("emails"), "emails", Some(2))).await, taken);
    queue.must(rename(&name("emails"), "letters", Some(1))).await;
    queue.must(rename(&name("notes"), "notes", Some(u32::MAX))).await;
    let numbers: Vec<_> = queue.tubes().await.iter().map(|tube| tube.options.queue_num).collect();
    assert_eq!(numbers, [Some(1), Some(u32::MAX)]);
}

/// A tube called "liam", a character that changes the direction of text, "x" looked like another one in lists and logs.
/// Create and rename refuse such a name; other tubes are unchanged.
pub async fn a_name_that_changes_text_direction_is_refused<H: Harness>(queue: H) {
    let tube = queue.tube_named("emails", TubeOptions::new(Kind::FifoTtl)).await;
    for bad in ["liam\u{202e}x", "\u{2066}emails", "emails\u{200f}", "a\u{61c}b"] {
        for command in [create(bad, None), rename(&tube, bad, None)] {
            let refused = queue.refused(command).await;
            let explained =
                matches!(&refused, Error::Invalid(text) if text.contains("direction of text"));
            assert!(explained, "{bad:?}: {refused}");
        }
        let gone = queue.refused(put(&name(bad), vec![task("x")])).await;
        assert_eq!(gone, Error::TubeNotFound(name(bad)));
    }
    assert_eq!(queue.put(&tube, task("x")).await, TaskId(0));
}
