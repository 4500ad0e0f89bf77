//! Producers that wait for capacity in a full tube.

use taskyard_core::{Command, Error, Finish, Reply, Span, TubeChange};

use crate::fixture::{Fixture, MINUTE, finish, put, tube};

fn full() -> Result<Reply, Error> {
    Err(Error::TubeFull { tube: tube("small"), capacity: 2 })
}

#[tokio::test]
async fn free_capacity_serves_the_oldest_producer_first() {
    let fixture = Fixture::new().await;
    fixture.put("small", &[1, 2]).await;
    let first = fixture.submit(vec![put("small", &[3], MINUTE)]);
    let mut second = fixture.submit(vec![put("small", &[4], MINUTE)]);
    assert_eq!(fixture.idle().await, 2);
    assert_eq!(fixture.run(put("small", &[9], Span::ZERO)).await, full(), "no put overtakes");
    let held = fixture.take("small", 1).await;
    assert_eq!(fixture.idle().await, 2, "a taken task still counts against the capacity");
    fixture.run(finish("small", &held, Finish::Ack)).await.unwrap();
    assert!(first.reply().await.is_ok());
    assert_eq!(fixture.idle().await, 1);
    assert!(second.is_pending());
    fixture.run(Command::Truncate { tube: tube("small") }).await.unwrap();
    assert!(second.reply().await.is_ok());
    assert_eq!(crate::fixture::payloads(&fixture.take("small", 9).await), [4]);
}

#[tokio::test]
async fn a_small_put_does_not_overtake_a_large_one() {
    let fixture = Fixture::new().await;
    fixture.put("small", &[1, 2]).await;
    let mut large = fixture.submit(vec![put("small", &[3, 4], Span::from_secs(5))]);
    let mut small = fixture.submit(vec![put("small", &[5], MINUTE)]);
    let held = fixture.take("small", 1).await;
    fixture.run(finish("small", &held, Finish::Ack)).await.unwrap();
    assert_eq!(fixture.idle().await, 2);
    assert!(large.is_pending() && small.is_pending());
    // When the large one gives up, the capacity goes to the small one.
    fixture.clock.advance(Span::from_secs(5));
    assert_eq!(large.reply().await, full());
    assert!(small.reply().await.is_ok());
}

// The first waiting put was tried at every small change of the capacity, each time with a copy of
// all its tasks.
#[tokio::test]
async fn a_put_is_tried_again_only_when_all_of_it_fits() {
    let fixture = Fixture::new().await;
    fixture.put("small", &[1, 2]).await;
    let held = fixture.take("small", 2).await;
    let large = fixture.submit(vec![put("small", &[3, 4], MINUTE)]);
    let small = fixture.submit(vec![put("small", &[5], MINUTE)]);
    assert_eq!(fixture.idle().await, 2);
    fixture.control.forget_batches();
    fixture.run(finish("small", &held[..1], Finish::Ack)).await.unwrap();
    assert_eq!(fixture.idle().await, 2);
    assert_eq!(fixture.control.verbs(), [["finish"]]);
    fixture.run(finish("small", &held[1..], Finish::Ack)).await.unwrap();
    assert!(large.reply().await.is_ok());
    fixture.run(Command::Truncate { tube: tube("small") }).await.unwrap();
    assert!(small.reply().await.is_ok());
}

#[tokio::test]
async fn no_put_overtakes_within_one_batch() {
    let fixture = Fixture::new().await;
    fixture.put("small", &[1, 2]).await;
    let held = fixture.take("small", 1).await;
    fixture.control.block();
    let _blocker = fixture.submit(vec![Command::Tubes { tube: None }]);
    fixture.control.wait_blocked();
    let patient = fixture.submit(vec![put("small", &[3], MINUTE)]);
    let ack = fixture.submit(vec![finish("small", &held, Finish::Ack)]);
    let hasty = fixture.submit(vec![put("small", &[4], Span::ZERO)]);
    fixture.control.unblock();
    assert!(patient.reply().await.is_ok());
    assert_eq!(hasty.reply().await, full());
    assert!(ack.reply().await.is_ok());
}

#[tokio::test]
async fn a_wait_for_capacity_ends_in_time() {
    let fixture = Fixture::new().await;
    fixture.put("small", &[1, 2]).await;
    let waiting = fixture.submit(vec![put("small", &[3], Span::from_secs(5))]);
    let behind = fixture.submit(vec![put("small", &[4], Span::from_secs(5))]);
    assert_eq!(fixture.idle().await, 2);
    fixture.clock.advance(Span::from_secs(5));
    assert_eq!(waiting.reply().await, full());
    assert_eq!(behind.reply().await, full());
}

#[tokio::test]
async fn more_than_the_tube_can_hold_does_not_wait() {
    let fixture = Fixture::new().await;
    assert_eq!(fixture.run(put("small", &[1, 2, 3], MINUTE)).await, full());
}

#[tokio::test]
async fn a_put_that_waited_serves_a_waiting_take_at_once() {
    let fixture = Fixture::new().await;
    fixture.put("small", &[1, 2]).await;
    let held = fixture.take("small", 2).await;
    let producer = fixture.submit(vec![put("small", &[3], MINUTE)]);
    let consumer = fixture.submit(vec![crate::fixture::take("small", 1, MINUTE)]);
    assert_eq!(fixture.idle().await, 2);
    fixture.run(finish("small", &held[..1], Finish::Ack)).await.unwrap();
    assert!(producer.reply().await.is_ok());
    assert_eq!(consumer.payloads().await, [3]);
}

#[tokio::test]
async fn more_capacity_and_a_dropped_tube_wake_producers() {
    let fixture = Fixture::new().await;
    fixture.put("small", &[1, 2]).await;
    let first = fixture.submit(vec![put("small", &[3], MINUTE)]);
    let change = TubeChange { capacity: Some(Some(3)), ..TubeChange::default() };
    fixture.run(Command::AlterTube { tube: tube("small"), change }).await.unwrap();
    assert!(first.reply().await.is_ok());
    let others = [4, 5].map(|payload| fixture.submit(vec![put("small", &[payload], MINUTE)]));
    assert_eq!(fixture.run(Command::DropTube { tube: tube("small") }).await, Ok(Reply::Nothing));
    for other in others {
        assert_eq!(other.reply().await, Err(Error::TubeNotFound(tube("small"))));
    }
}

// A tube could not be closed for puts: a capacity of 0 was refused.
#[tokio::test]
async fn a_put_waits_while_the_capacity_is_zero() {
    let fixture = Fixture::new().await;
    let alter = |capacity| {
        let change = TubeChange { capacity: Some(Some(capacity)), ..TubeChange::default() };
        Command::AlterTube { tube: tube("small"), change }
    };
    fixture.run(alter(0)).await.unwrap();
    let closed = fixture.run(put("small", &[1], Span::ZERO)).await;
    assert_eq!(closed, Err(Error::TubeFull { tube: tube("small"), capacity: 0 }));
    let waiting = fixture.submit(vec![put("small", &[1, 2], MINUTE)]);
    assert_eq!(fixture.idle().await, 1);
    fixture.run(alter(2)).await.unwrap();
    assert!(waiting.reply().await.is_ok());
}

// A tube without a limit reported no capacity: puts that waited when the limit was removed kept
// waiting until their time was over.
#[tokio::test]
async fn removing_the_limit_of_a_tube_wakes_all_producers() {
    let fixture = Fixture::new().await;
    fixture.put("small", &[1, 2]).await;
    let waiting =
        [[3, 4], [5, 6]].map(|payloads| fixture.submit(vec![put("small", &payloads, MINUTE)]));
    assert_eq!(fixture.idle().await, 2);
    let change = TubeChange { capacity: Some(None), ..TubeChange::default() };
    fixture.run(Command::AlterTube { tube: tube("small"), change }).await.unwrap();
    assert_eq!(fixture.idle().await, 0);
    for put in waiting {
        assert!(put.reply().await.is_ok());
    }
    assert_eq!(crate::fixture::payloads(&fixture.take("small", 9).await), [1, 2, 3, 4, 5, 6]);
}

#[tokio::test]
async fn a_producer_that_left_puts_nothing() {
    let fixture = Fixture::new().await;
    fixture.put("small", &[1, 2]).await;
    let gone = fixture.submit(vec![put("small", &[3], MINUTE)]);
    assert_eq!(fixture.idle().await, 1);
    drop(gone);
    fixture.run(Command::Truncate { tube: tube("small") }).await.unwrap();
    assert_eq!(fixture.take("small", 1).await, []);
}
