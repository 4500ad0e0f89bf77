//! Gathering the commands of many callers into one batch, and the limits of that.

use taskyard_core::limits::{
    BATCH_BYTES_MAX, PAYLOAD_BYTES_DEFAULT, PENDING_COMMANDS_MAX, WAITERS_MAX,
};
use taskyard_core::{Body, Command, Error, Execute, NewTask, Reply, Span};

use crate::fixture::{Fixture, MINUTE, put, take, tube};

#[tokio::test]
async fn commands_that_arrive_while_the_store_is_busy_become_one_batch() {
    let fixture = Fixture::new().await;
    fixture.control.block();
    let blocker = fixture.submit(vec![put("mail", &[0], Span::ZERO)]);
    fixture.control.wait_blocked();
    let puts: Vec<_> =
        (1..=5).map(|n| fixture.submit(vec![put("mail", &[n], Span::ZERO); 2])).collect();
    fixture.control.unblock();
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
    let sizes: Vec<_> = fixture.control.verbs().iter().map(Vec::len).collect();
    assert_eq!(sizes, [1, 10]);
}

#[tokio::test]
async fn no_commands_give_no_replies() {
    let fixture = Fixture::new().await;
    assert_eq!(fixture.engine.execute(Vec::new()).await, []);
}

#[tokio::test]
async fn too_many_queued_commands_are_overload() {
    let fixture = Fixture::new().await;
    fixture.control.block();
    let _blocker = fixture.submit(vec![Command::Tubes { tube: None }]);
    fixture.control.wait_blocked();
    let read = Command::Peek { tube: tube("mail"), ids: Vec::new() };
    let full = fixture.submit(vec![read.clone(); PENDING_COMMANDS_MAX]);
    let refused = fixture.engine.execute(vec![read.clone(), read]).await;
    assert_eq!(refused.len(), 2);
    for reply in refused {
        assert!(matches!(reply, Err(Error::Overloaded(_))), "{reply:?}");
    }
    fixture.control.unblock();
    assert_eq!(full.replies().await.len(), PENDING_COMMANDS_MAX);
}

#[tokio::test]
async fn too_many_waiting_commands_are_overload() {
    let fixture = Fixture::new().await;
    let waiting = fixture.submit(vec![take("mail", 1, MINUTE); WAITERS_MAX]);
    assert_eq!(fixture.idle().await, WAITERS_MAX);
    let refused = fixture.run(take("mail", 1, MINUTE)).await;
    assert!(matches!(refused, Err(Error::Overloaded(_))), "{refused:?}");
    // A take that does not wait was refused too, though it does not count against the limit of
    // waiting commands.
    assert_eq!(fixture.take("mail", 1).await, []);
    drop(waiting);
    assert_eq!(fixture.idle().await, 0);
}

#[tokio::test]
async fn only_the_command_that_is_too_large_is_refused() {
    let fixture = Fixture::new().await;
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
    let replies = fixture.engine.execute(commands).await;
    let limit = PAYLOAD_BYTES_DEFAULT;
    assert!(matches!(replies[0], Err(Error::TooLarge { size, .. }) if size == limit + 1));
    assert!(matches!(&replies[1], Ok(Reply::Put(placed)) if placed[0].id.0 == 0));
    assert!(matches!(replies[2], Err(Error::TooLarge { size, .. }) if size == limit + 2));
    assert!(matches!(&replies[3], Ok(Reply::Put(placed)) if placed[0].id.0 == 1));

    let body = Body::new(&vec![0xc0; PAYLOAD_BYTES_DEFAULT]);
    let count = BATCH_BYTES_MAX / PAYLOAD_BYTES_DEFAULT + 1;
    let tasks = vec![NewTask::new(body); count];
    let refused = fixture.run(Command::Put { tube: tube("mail"), tasks, wait: Span::ZERO }).await;
    assert!(matches!(refused, Err(Error::TooLarge { .. })), "{refused:?}");
}
