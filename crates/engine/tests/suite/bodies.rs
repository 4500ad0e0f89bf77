//! Bodies that are loaded from disk after the batch.

use std::sync::atomic::Ordering;

use taskyard_core::{Command, Error, Execute, Reply, Span};

use crate::rig::{MINUTE, Rig, damage, payloads, put, take, taken, tube};

#[tokio::test]
async fn bodies_come_with_the_replies_they_belong_to() {
    let rig = Rig::new().await;
    rig.control.unloads.store(true, Ordering::SeqCst);
    let waiting = rig.ask(vec![take("small", 1, MINUTE)]);
    rig.put("mail", &[1, 2, 3]).await;
    let job = vec![
        put("small", &[9], Span::ZERO),
        take("mail", 1, Span::ZERO),
        take("small", 1, Span::ZERO),
        take("mail", 2, Span::ZERO),
    ];
    let replies = rig.engine.execute(job).await;
    assert_eq!(payloads(&taken(replies[1].clone())), [1]);
    assert_eq!(taken(replies[2].clone()), []);
    assert_eq!(payloads(&taken(replies[3].clone())), [2, 3]);
    assert_eq!(waiting.payloads().await, [9]);
}

#[tokio::test]
async fn bodies_that_cannot_be_loaded_for_now_are_an_error_and_their_tasks_go_back() {
    let rig = Rig::new().await;
    rig.put("mail", &[1, 2]).await;
    rig.control.unloads.store(true, Ordering::SeqCst);
    let error = Error::Overloaded("the disk is busy");
    *rig.control.load_error.lock().unwrap() = Some(error.clone());
    assert_eq!(rig.run(take("mail", 2, Span::ZERO)).await, Err(error));
    *rig.control.load_error.lock().unwrap() = None;
    let tasks = rig.take("mail", 2).await;
    assert_eq!((payloads(&tasks), tasks[0].attempts), (vec![1, 2], 0));
}

// One damaged payload failed the whole reply, and its task went back to the front of the tube: every
// take met it again, and nobody got the tasks behind it any more.
#[tokio::test]
async fn a_damaged_payload_does_not_block_its_tube() {
    let rig = Rig::new().await;
    rig.put("mail", &[1, 2, 3]).await;
    rig.control.unloads.store(true, Ordering::SeqCst);
    *rig.control.damaged.lock().unwrap() = Some(1);
    assert_eq!(rig.run(take("mail", 1, Span::ZERO)).await, Err(damage()), "nothing good is left");
    assert_eq!(buried(&rig).await, 1);
    *rig.control.damaged.lock().unwrap() = Some(2);
    assert_eq!(payloads(&rig.take("mail", 2).await), [3], "the good one is delivered");
    assert_eq!(buried(&rig).await, 2);
    *rig.control.damaged.lock().unwrap() = None;
    rig.run(Command::Kick { tube: tube("mail"), count: 2 }).await.unwrap();
    assert_eq!(payloads(&rig.take("mail", 2).await), [1, 2], "nothing is thrown away");
}

#[tokio::test]
async fn a_damaged_payload_spoils_only_its_own_reply() {
    let rig = Rig::new().await;
    rig.put("mail", &[1, 2]).await;
    rig.put("small", &[1, 2]).await;
    rig.control.unloads.store(true, Ordering::SeqCst);
    *rig.control.damaged.lock().unwrap() = Some(1);
    let takes = vec![take("mail", 1, Span::ZERO), take("small", 2, Span::ZERO)];
    let replies = rig.engine.execute(takes).await;
    assert_eq!(replies[0], Err(damage()));
    assert_eq!(payloads(&taken(replies[1].clone())), [2]);
}

async fn buried(rig: &Rig) -> u64 {
    match rig.run(Command::Tubes { tube: Some(tube("mail")) }).await {
        Ok(Reply::Tubes(tubes)) => tubes[0].stats.tasks.buried,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn whoever_leaves_while_bodies_are_loaded_holds_nothing() {
    let rig = Rig::new().await;
    rig.put("mail", &[1]).await;
    rig.control.unloads.store(true, Ordering::SeqCst);
    rig.control.load_hangs.store(true, Ordering::SeqCst);
    let mut gone = rig.ask(vec![take("mail", 1, Span::ZERO)]);
    rig.settled().await;
    assert!(gone.is_pending(), "it waits for the body now");
    drop(gone);
    rig.control.load_hangs.store(false, Ordering::SeqCst);
    assert_eq!(payloads(&rig.take("mail", 1).await), [1]);
}
