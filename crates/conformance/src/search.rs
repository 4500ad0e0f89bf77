//! Searches of payloads: which tasks a store finds for a text, and how many it compared.

use taskyard_core::limits::{BATCH_TASKS_MAX, SEARCH_RUN_BYTES_MAX, TASK_ID_MAX};
use taskyard_core::search::required_run;
use taskyard_core::{Body, Command, Error, Found, Kind, NewTask, Search, State, StateSet, Task};
use taskyard_core::{TaskId, TubeName, TubeOptions};

use super::Harness;
use super::commands::{QueueCommands, secs, task};

fn search(tube: &TubeName, first: u64, count: usize, states: StateSet, run: &[u8]) -> Search {
    Search { tube: tube.clone(), first: TaskId(first), count, states, run: run.into() }
}

/// The ids of the found tasks that have the bytes, with their ranks. A store may show others.
fn with_run(found: &Found, run: &[u8]) -> Vec<(u64, u64)> {
    assert_eq!(found.tasks.len(), found.ranks.len());
    let has_run = |task: &Task| {
        let payload = task.body.as_ref().expect("a found task has its payload").payload();
        payload.windows(run.len()).any(|bytes| bytes == run)
    };
    let found = found.tasks.iter().zip(&found.ranks);
    found.filter(|(task, _)| has_run(task)).map(|(task, rank)| (task.id.0, *rank)).collect()
}

async fn found_by<H: Harness>(
    queue: &H,
    tube: &TubeName,
    states: StateSet,
    run: &[u8],
) -> Vec<u64> {
    let found = queue.search(search(tube, 0, 100, states, run)).await;
    with_run(&found, run).into_iter().map(|(id, _)| id).collect()
}

/// Whatever bytes payloads and texts have, no payload is lost that contains a text, as it is or in its JSON.
pub async fn payloads_with_the_bytes_are_found<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    let long = [&[0xda, 0x80, 0x00][..], &[b'x'; 0x7ff0], b"the end of a row"].concat();
    let payloads: [&[u8]; 12] = [
        b"\xa5order",
        // {"name":"Zo\"e\\","n":-17,"list":[true,null,1.5]}
        b"\x83\xa4name\xa5Zo\"e\\\xa1n\xef\xa4list\x93\xc3\xc0\xcb\x3f\xf8\0\0\0\0\0\0",
        // A line feed, an escape of four digits, and a zero.
        b"\xacone\ntwo\x1f\0six",
        b"\xabgr\xc3\xb6\xc3\x9fe \xe2\x82\xac",
        b"\xa7gr\xc3\xb6\xc3\x9fe",
        // Nested: [[{"deep":{"key":["value 99"]}}]]
        b"\x91\x91\x81\xa4deep\x81\xa3key\x91\xa8value 99",
        // Binary, an extension and text that is not UTF-8.
        b"\xc4\x05\0\xff\\\"%",
        b"\xd4\x01_",
        b"\xa3\xff\xfe%",
        b"\xa4100%",
        b"\xa3a_b",
        &long,
    ];
    let payloads = payloads.map(|payload| NewTask::new(Body::new(payload)));
    queue.put_many(&tube, payloads.to_vec()).await;
    let texts: [(&str, &[u64]); 16] = [
        ("order", &[0]),
        ("Order", &[]),
        ("name", &[1]),
        (r#""name":"Zo\"e\\""#, &[1]),
        ("Zo\"e\\", &[1]),
        (r"one\ntwo", &[2]),
        (r"two\u001f\u0000six", &[2]),
        ("one\ntwo", &[2]),
        ("größe", &[3, 4]),
        ("value 99", &[5]),
        (r#"{"deep":{"key"#, &[5]),
        ("%", &[6, 8, 9]),
        ("100%", &[9]),
        ("_", &[7, 10]),
        ("the end of a row", &[11]),
        ("no payload contains this", &[]),
    ];
    for (text, ids) in texts {
        let run = required_run(text).expect("each of these texts requires bytes");
        let found = found_by(&queue, &tube, StateSet::UNFINISHED, run).await;
        assert!(ids.iter().all(|id| found.contains(id)), "{text}: {found:?}");
    }
    // Any bytes may be searched for.
    for (run, ids) in [(&b"\0"[..], &[1, 2, 6, 11][..]), (b"\xff", &[6, 8]), (b"'", &[])] {
        assert_eq!(found_by(&queue, &tube, StateSet::UNFINISHED, run).await, ids, "{run:?}");
    }
}

/// Only tasks in the given states that are not expired are compared.
pub async fn a_search_selects_states<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    queue.put_texts(&tube, &["same a", "same b", "same c", "same d", "other"]).await;
    queue.put(&tube, NewTask { delay: Some(secs(50)), ..task("same later") }).await;
    queue.put(&tube, NewTask { ttl: Some(secs(1)), ..task("same short") }).await;
    queue.take_many(&tube, 2).await;
    queue.bury(&tube, TaskId(3)).await;
    let only = |state| StateSet::EMPTY.with(state);
    for (states, ids) in [
        (only(State::Ready), &[2, 6][..]),
        (only(State::Taken), &[0, 1]),
        (only(State::Delayed), &[5]),
        (only(State::Buried), &[3]),
        (StateSet::UNFINISHED, &[0, 1, 2, 3, 5, 6]),
        (StateSet::ALL, &[0, 1, 2, 3, 5, 6]),
    ] {
        assert_eq!(found_by(&queue, &tube, states, b"same").await, ids, "{states:?}");
    }
    queue.advance_unticked(secs(1));
    assert_eq!(found_by(&queue, &tube, only(State::Ready), b"same").await, [2]);
    assert_eq!(found_by(&queue, &tube, StateSet::UNFINISHED, b"same").await, [0, 1, 2, 3, 5]);
    let found = queue.search(search(&tube, 0, 100, StateSet::UNFINISHED, b"same")).await;
    assert_eq!((found.compared, found.last), (6, Some(TaskId(5))));
    let taken = found.tasks.iter().find(|task| task.id == TaskId(1)).expect("it was found");
    assert_eq!(Some(taken.clone()), queue.peek(&tube, TaskId(1)).await, "as a peek shows it");
}

/// A search that finds nothing says how far it came, so that the next one goes on after it.
pub async fn a_search_counts_what_it_compares<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    queue.put_texts(&tube, &["a", "b", "c", "a", "e", "f", "a"]).await;
    queue.delete(&tube, TaskId(1)).await;
    queue.delete(&tube, TaskId(5)).await;
    let other = queue.tube_named("other", TubeOptions::new(Kind::Fifo)).await;
    queue.put_texts(&other, &["a", "a", "a", "a", "a", "a", "a", "a"]).await;
    let look = async |first, count, run: &[u8]| {
        let found = queue.search(search(&tube, first, count, StateSet::UNFINISHED, run)).await;
        (with_run(&found, run), found.compared, found.last.map(|id| id.0))
    };
    assert_eq!(look(0, 100, b"a").await, (vec![(0, 1), (3, 3), (6, 5)], 5, Some(6)));
    assert_eq!(look(1, 4, b"a").await, (vec![(3, 2)], 3, Some(4)));
    assert_eq!(look(0, 6, b"none").await, (vec![], 4, Some(4)));
    assert_eq!(look(5, 1, b"a").await, (vec![], 0, None));
    assert_eq!(look(7, BATCH_TASKS_MAX, b"a").await, (vec![], 0, None));
    assert_eq!(look(6, BATCH_TASKS_MAX, b"a").await, (vec![(6, 1)], 1, Some(6)));
}

/// A search needs ids, states and bytes, and not too many of them.
pub async fn a_search_is_checked<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::Fifo).await;
    let long = [b'x'; SEARCH_RUN_BYTES_MAX + 1];
    for refused in [
        search(&tube, 0, 1, StateSet::EMPTY, b"x"),
        search(&tube, 0, 0, StateSet::ALL, b"x"),
        search(&tube, 0, BATCH_TASKS_MAX + 1, StateSet::ALL, b"x"),
        search(&tube, 0, 1, StateSet::ALL, b""),
        search(&tube, 0, 1, StateSet::ALL, &long),
        search(&tube, TASK_ID_MAX + 1, 1, StateSet::ALL, b"x"),
    ] {
        let error = queue.refused(Command::Search(refused.clone())).await;
        assert!(matches!(error, Error::Invalid(_)), "{refused:?}: {error}");
    }
    for first in [0, TASK_ID_MAX] {
        let found = queue.search(search(&tube, first, 9, StateSet::ALL, &long[1..])).await;
        assert_eq!(found, Found::default());
    }
}
