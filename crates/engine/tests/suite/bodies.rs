//! Bodies that are loaded from disk after the batch.

use std::sync::atomic::Ordering;

use taskyard_core::{Error, Execute, Span};

use crate::rig::{MINUTE, Rig, payloads, put, take, taken};

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
async fn a_body_that_cannot_be_loaded_is_an_error_and_its_task_goes_back() {
    let rig = Rig::new().await;
    rig.put("mail", &[1]).await;
    rig.control.unloads.store(true, Ordering::SeqCst);
    let error = Error::Store("the disk is gone".into());
    *rig.control.load_error.lock().unwrap() = Some(error.clone());
    assert_eq!(rig.run(take("mail", 1, Span::ZERO)).await, Err(error));
    *rig.control.load_error.lock().unwrap() = None;
    let tasks = rig.take("mail", 1).await;
    assert_eq!((payloads(&tasks), tasks[0].attempts), (vec![1], 0));
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
