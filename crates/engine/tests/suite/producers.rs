//! Producers that wait for room in a full tube.

use taskyard_core::{Command, Error, Finish, Reply, Span, TubeChange};

use crate::rig::{MINUTE, Rig, finish, put, tube};

fn full() -> Result<Reply, Error> {
    Err(Error::TubeFull { tube: tube("small"), capacity: 2 })
}

#[tokio::test]
async fn room_serves_the_oldest_producer_first() {
    let rig = Rig::new().await;
    rig.put("small", &[1, 2]).await;
    let first = rig.ask(vec![put("small", &[3], MINUTE)]);
    let mut second = rig.ask(vec![put("small", &[4], MINUTE)]);
    assert_eq!(rig.settled().await, 2);
    assert_eq!(rig.run(put("small", &[9], Span::ZERO)).await, full(), "nobody overtakes");
    let held = rig.take("small", 1).await;
    assert_eq!(rig.settled().await, 2, "a taken task keeps its room");
    rig.run(finish("small", &held, Finish::Ack)).await.unwrap();
    assert!(first.reply().await.is_ok());
    assert_eq!(rig.settled().await, 1);
    assert!(second.is_pending());
    rig.run(Command::Truncate { tube: tube("small") }).await.unwrap();
    assert!(second.reply().await.is_ok());
    assert_eq!(crate::rig::payloads(&rig.take("small", 9).await), [4]);
}

#[tokio::test]
async fn a_small_put_does_not_overtake_a_large_one() {
    let rig = Rig::new().await;
    rig.put("small", &[1, 2]).await;
    let mut large = rig.ask(vec![put("small", &[3, 4], Span::from_secs(5))]);
    let mut small = rig.ask(vec![put("small", &[5], MINUTE)]);
    let held = rig.take("small", 1).await;
    rig.run(finish("small", &held, Finish::Ack)).await.unwrap();
    assert_eq!(rig.settled().await, 2);
    assert!(large.is_pending() && small.is_pending());
    // When the large one gives up, the room is there for the small one.
    rig.clock.advance(Span::from_secs(5));
    assert_eq!(large.reply().await, full());
    assert!(small.reply().await.is_ok());
}

// The first who waited was tried at every crumb of room, with a copy of all its tasks each time.
#[tokio::test]
async fn a_put_is_tried_again_only_when_there_is_room_for_all_of_it() {
    let rig = Rig::new().await;
    rig.put("small", &[1, 2]).await;
    let held = rig.take("small", 2).await;
    let large = rig.ask(vec![put("small", &[3, 4], MINUTE)]);
    let small = rig.ask(vec![put("small", &[5], MINUTE)]);
    assert_eq!(rig.settled().await, 2);
    rig.control.forget_batches();
    rig.run(finish("small", &held[..1], Finish::Ack)).await.unwrap();
    assert_eq!(rig.settled().await, 2);
    assert_eq!(rig.control.verbs(), [["finish"]]);
    rig.run(finish("small", &held[1..], Finish::Ack)).await.unwrap();
    assert!(large.reply().await.is_ok());
    rig.run(Command::Truncate { tube: tube("small") }).await.unwrap();
    assert!(small.reply().await.is_ok());
}

#[tokio::test]
async fn within_one_batch_nobody_overtakes_either() {
    let rig = Rig::new().await;
    rig.put("small", &[1, 2]).await;
    let held = rig.take("small", 1).await;
    rig.control.hold();
    let _blocker = rig.ask(vec![Command::Tubes { tube: None }]);
    rig.control.held();
    let patient = rig.ask(vec![put("small", &[3], MINUTE)]);
    let ack = rig.ask(vec![finish("small", &held, Finish::Ack)]);
    let hasty = rig.ask(vec![put("small", &[4], Span::ZERO)]);
    rig.control.let_go();
    assert!(patient.reply().await.is_ok());
    assert_eq!(hasty.reply().await, full());
    assert!(ack.reply().await.is_ok());
}

#[tokio::test]
async fn time_ends_waiting_for_room() {
    let rig = Rig::new().await;
    rig.put("small", &[1, 2]).await;
    let waiting = rig.ask(vec![put("small", &[3], Span::from_secs(5))]);
    let behind = rig.ask(vec![put("small", &[4], Span::from_secs(5))]);
    assert_eq!(rig.settled().await, 2);
    rig.clock.advance(Span::from_secs(5));
    assert_eq!(waiting.reply().await, full());
    assert_eq!(behind.reply().await, full());
}

#[tokio::test]
async fn more_than_the_tube_can_hold_does_not_wait() {
    let rig = Rig::new().await;
    assert_eq!(rig.run(put("small", &[1, 2, 3], MINUTE)).await, full());
}

#[tokio::test]
async fn a_producer_served_with_room_serves_a_consumer_at_once() {
    let rig = Rig::new().await;
    rig.put("small", &[1, 2]).await;
    let held = rig.take("small", 2).await;
    let producer = rig.ask(vec![put("small", &[3], MINUTE)]);
    let consumer = rig.ask(vec![crate::rig::take("small", 1, MINUTE)]);
    assert_eq!(rig.settled().await, 2);
    rig.run(finish("small", &held[..1], Finish::Ack)).await.unwrap();
    assert!(producer.reply().await.is_ok());
    assert_eq!(consumer.payloads().await, [3]);
}

#[tokio::test]
async fn more_capacity_and_a_dropped_tube_wake_producers() {
    let rig = Rig::new().await;
    rig.put("small", &[1, 2]).await;
    let first = rig.ask(vec![put("small", &[3], MINUTE)]);
    let change = TubeChange { capacity: Some(Some(3)), ..TubeChange::default() };
    rig.run(Command::AlterTube { tube: tube("small"), change }).await.unwrap();
    assert!(first.reply().await.is_ok());
    let others = [4, 5].map(|payload| rig.ask(vec![put("small", &[payload], MINUTE)]));
    assert_eq!(rig.run(Command::DropTube { tube: tube("small") }).await, Ok(Reply::Nothing));
    for other in others {
        assert_eq!(other.reply().await, Err(Error::TubeNotFound(tube("small"))));
    }
}

// A tube without a limit told nobody of its room: who waited for room in it when the limit was taken
// away waited until their time was over.
#[tokio::test]
async fn a_tube_without_a_limit_any_more_wakes_all_producers() {
    let rig = Rig::new().await;
    rig.put("small", &[1, 2]).await;
    let waiting = [[3, 4], [5, 6]].map(|payloads| rig.ask(vec![put("small", &payloads, MINUTE)]));
    assert_eq!(rig.settled().await, 2);
    let change = TubeChange { capacity: Some(None), ..TubeChange::default() };
    rig.run(Command::AlterTube { tube: tube("small"), change }).await.unwrap();
    assert_eq!(rig.settled().await, 0);
    for put in waiting {
        assert!(put.reply().await.is_ok());
    }
    assert_eq!(crate::rig::payloads(&rig.take("small", 9).await), [1, 2, 3, 4, 5, 6]);
}

#[tokio::test]
async fn a_producer_who_left_puts_nothing() {
    let rig = Rig::new().await;
    rig.put("small", &[1, 2]).await;
    let gone = rig.ask(vec![put("small", &[3], MINUTE)]);
    assert_eq!(rig.settled().await, 1);
    drop(gone);
    rig.run(Command::Truncate { tube: tube("small") }).await.unwrap();
    assert_eq!(rig.take("small", 1).await, []);
}
