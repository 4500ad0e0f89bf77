//! Bodies that are loaded from disk after the batch.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use taskyard_core::{Command, Error, Execute, Reply, Search, Span, StateSet, TaskId};

use crate::fixture::{Fixture, MINUTE, damage, payloads, put, take, taken, tube};

#[tokio::test]
async fn bodies_come_with_the_replies_they_belong_to() {
    let fixture = Fixture::new().await;
    fixture.control.unloads.store(true, Ordering::SeqCst);
    let waiting = fixture.submit(vec![take("small", 1, MINUTE)]);
    fixture.put("mail", &[1, 2, 3]).await;
    let job = vec![
        put("small", &[9], Span::ZERO),
        take("mail", 1, Span::ZERO),
        take("small", 1, Span::ZERO),
        take("mail", 2, Span::ZERO),
    ];
    let replies = fixture.engine.execute(job).await;
    assert_eq!(payloads(&taken(replies[1].clone())), [1]);
    assert_eq!(taken(replies[2].clone()), []);
    assert_eq!(payloads(&taken(replies[3].clone())), [2, 3]);
    assert_eq!(waiting.payloads().await, [9]);
}

#[tokio::test]
async fn bodies_that_cannot_be_loaded_for_now_are_an_error_and_their_tasks_go_back() {
    let fixture = Fixture::new().await;
    fixture.put("mail", &[1, 2]).await;
    fixture.control.unloads.store(true, Ordering::SeqCst);
    let error = Error::Overloaded("the disk is busy");
    *fixture.control.load_error.lock().unwrap() = Some(error.clone());
    assert_eq!(fixture.run(take("mail", 2, Span::ZERO)).await, Err(error));
    *fixture.control.load_error.lock().unwrap() = None;
    let tasks = fixture.take("mail", 2).await;
    assert_eq!((payloads(&tasks), tasks[0].attempts), (vec![1, 2], 0));
}

// One damaged payload failed the whole reply, and its task went back to the front of the tube:
// every take met it again, and no consumer got the tasks behind it any more.
#[tokio::test]
async fn a_damaged_payload_does_not_block_its_tube() {
    let fixture = Fixture::new().await;
    fixture.put("mail", &[1, 2, 3]).await;
    fixture.control.unloads.store(true, Ordering::SeqCst);
    *fixture.control.damaged.lock().unwrap() = Some(1);
    assert_eq!(
        fixture.run(take("mail", 1, Span::ZERO)).await,
        Err(damage()),
        "no readable task is left"
    );
    assert_eq!(buried(&fixture).await, 1);
    *fixture.control.damaged.lock().unwrap() = Some(2);
    assert_eq!(payloads(&fixture.take("mail", 2).await), [3], "the readable task is delivered");
    assert_eq!(buried(&fixture).await, 2);
    *fixture.control.damaged.lock().unwrap() = None;
    fixture.run(Command::Kick { tube: tube("mail"), count: 2 }).await.unwrap();
    assert_eq!(payloads(&fixture.take("mail", 2).await), [1, 2], "nothing is lost");
}

#[tokio::test]
async fn a_damaged_payload_fails_only_its_own_reply() {
    let fixture = Fixture::new().await;
    fixture.put("mail", &[1, 2]).await;
    fixture.put("small", &[1, 2]).await;
    fixture.control.unloads.store(true, Ordering::SeqCst);
    *fixture.control.damaged.lock().unwrap() = Some(1);
    let takes = vec![take("mail", 1, Span::ZERO), take("small", 2, Span::ZERO)];
    let replies = fixture.engine.execute(takes).await;
    assert_eq!(replies[0], Err(damage()));
    assert_eq!(payloads(&taken(replies[1].clone())), [2]);
}

// A search whose only task was damaged answered that nothing was found.
#[tokio::test]
async fn a_damaged_payload_fails_a_search_that_finds_no_other() {
    let fixture = Fixture::new().await;
    fixture.put("mail", &[1, 2]).await;
    fixture.control.unloads.store(true, Ordering::SeqCst);
    *fixture.control.damaged.lock().unwrap() = Some(1);
    let search = |payload: u8| Search {
        tube: tube("mail"),
        first: TaskId(0),
        count: 2,
        states: StateSet::ALL,
        run: Arc::from([payload]),
    };
    assert_eq!(fixture.run(Command::Search(search(1))).await, Err(damage()));
    let found = fixture.run(Command::Search(search(2))).await.unwrap();
    assert_eq!(payloads(found.shown()), [2]);
}

async fn buried(fixture: &Fixture) -> u64 {
    match fixture.run(Command::Tubes { tube: Some(tube("mail")) }).await {
        Ok(Reply::Tubes(tubes)) => tubes[0].stats.tasks.buried,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_caller_that_leaves_while_bodies_are_loaded_holds_nothing() {
    let fixture = Fixture::new().await;
    fixture.put("mail", &[1]).await;
    fixture.control.unloads.store(true, Ordering::SeqCst);
    fixture.control.load_hangs.store(true, Ordering::SeqCst);
    let mut gone = fixture.submit(vec![take("mail", 1, Span::ZERO)]);
    fixture.idle().await;
    assert!(gone.is_pending(), "it waits for the body now");
    drop(gone);
    fixture.control.load_hangs.store(false, Ordering::SeqCst);
    assert_eq!(payloads(&fixture.take("mail", 1).await), [1]);
}
