//! Gathering: many callers, one batch; and what is too much.

use taskyard_core::limits::{
    BATCH_BYTES_MAX, PAYLOAD_BYTES_DEFAULT, PENDING_COMMANDS_MAX, WAITERS_MAX,
};
use taskyard_core::{Body, Command, Error, Execute, NewTask, Reply, Span};

use crate::rig::{MINUTE, Rig, put, take, tube};

#[tokio::test]
async fn what_arrives_while_the_store_is_busy_becomes_one_batch() {
    let rig = Rig::new().await;
    rig.control.hold();
    let blocker = rig.ask(vec![put("mail", &[0], Span::ZERO)]);
    rig.control.held();
    let puts: Vec<_> = (1..=5).map(|n| rig.ask(vec![put("mail", &[n], Span::ZERO); 2])).collect();
    rig.control.let_go();
    assert!(blocker.reply().await.is_ok());
    for (n, put) in puts.into_iter().enumerate() {
        let ids: Vec<_> = put
            .replies()
            .await
            .into_iter()
            .map(|reply| match reply {
                Ok(Reply::Put(placed)) => placed[0].id.0,
                other => panic!("{other:?}"),
            })
            .collect();
        let first = 1 + 2 * n as u64;
        assert_eq!(ids, [first, first + 1], "each caller gets its own replies");
    }
    let sizes: Vec<_> = rig.control.verbs().iter().map(Vec::len).collect();
    assert_eq!(sizes, [1, 10]);
}

#[tokio::test]
async fn nothing_asked_is_nothing_answered() {
    let rig = Rig::new().await;
    assert_eq!(rig.engine.execute(Vec::new()).await, []);
}

#[tokio::test]
async fn too_much_before_the_store_is_overload() {
    let rig = Rig::new().await;
    rig.control.hold();
    let _blocker = rig.ask(vec![Command::Tubes { tube: None }]);
    rig.control.held();
    let read = Command::Peek { tube: tube("mail"), ids: Vec::new() };
    let full = rig.ask(vec![read.clone(); PENDING_COMMANDS_MAX]);
    let refused = rig.engine.execute(vec![read.clone(), read]).await;
    assert_eq!(refused.len(), 2);
    for reply in refused {
        assert!(matches!(reply, Err(Error::Overloaded(_))), "{reply:?}");
    }
    rig.control.let_go();
    assert_eq!(full.replies().await.len(), PENDING_COMMANDS_MAX);
}

#[tokio::test]
async fn too_many_who_wait_are_overload() {
    let rig = Rig::new().await;
    let waiting = rig.ask(vec![take("mail", 1, MINUTE); WAITERS_MAX]);
    assert_eq!(rig.settled().await, WAITERS_MAX);
    let refused = rig.run(take("mail", 1, MINUTE)).await;
    assert!(matches!(refused, Err(Error::Overloaded(_))), "{refused:?}");
    // A take that does not wait was overload too, though it needs no place among those who do.
    assert_eq!(rig.take("mail", 1).await, []);
    drop(waiting);
    assert_eq!(rig.settled().await, 0);
}

#[tokio::test]
async fn what_is_too_large_is_refused_alone() {
    let rig = Rig::new().await;
    let large = |bytes: usize| Command::Put {
        tube: tube("mail"),
        tasks: vec![NewTask::new(Body::new(&vec![0xc0; bytes]))],
        wait: Span::ZERO,
    };
    let commands = vec![
        large(PAYLOAD_BYTES_DEFAULT + 1),
        put("mail", &[1], Span::ZERO),
        large(PAYLOAD_BYTES_DEFAULT + 2),
        large(PAYLOAD_BYTES_DEFAULT),
    ];
    let replies = rig.engine.execute(commands).await;
    let limit = PAYLOAD_BYTES_DEFAULT;
    assert!(matches!(replies[0], Err(Error::TooLarge { size, .. }) if size == limit + 1));
    assert!(matches!(&replies[1], Ok(Reply::Put(placed)) if placed[0].id.0 == 0));
    assert!(matches!(replies[2], Err(Error::TooLarge { size, .. }) if size == limit + 2));
    assert!(matches!(&replies[3], Ok(Reply::Put(placed)) if placed[0].id.0 == 1));

    let body = Body::new(&vec![0xc0; PAYLOAD_BYTES_DEFAULT]);
    let count = BATCH_BYTES_MAX / PAYLOAD_BYTES_DEFAULT + 1;
    let tasks = vec![NewTask::new(body); count];
    let refused = rig.run(Command::Put { tube: tube("mail"), tasks, wait: Span::ZERO }).await;
    assert!(matches!(refused, Err(Error::TooLarge { .. })), "{refused:?}");
}
