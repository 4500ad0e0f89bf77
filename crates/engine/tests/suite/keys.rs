//! Puts with unique keys: who is woken, who needs capacity, and what counts as a put.

use taskyard_core::{
    Body, Command, Error, Finish, Key, KeyRequest, NewTask, OnConflict, Placed, Reply, Span, State,
    TaskId,
};
use taskyard_engine::{SeriesRequest, SeriesStart, Step};

use crate::fixture::{Fixture, MINUTE, finish, payloads, put, take, tube};

fn keyed(payload: u8, key: &str) -> NewTask {
    let key = KeyRequest::new(Key::new(key).unwrap());
    NewTask { key: Some(Box::new(key)), ..NewTask::new(Body::new(&[payload])) }
}

fn replacing(payload: u8, key: &str) -> NewTask {
    let mut task = keyed(payload, key);
    task.key.as_mut().unwrap().on_conflict = OnConflict::Replace;
    task
}

fn put_tasks(name: &str, tasks: Vec<NewTask>, wait: Span) -> Command {
    Command::Put { tube: tube(name), tasks, wait }
}

fn existing(id: u64, state: State) -> Result<Reply, Error> {
    Ok(Reply::Put(vec![Placed { id: TaskId(id), state, existing: true }]))
}

#[tokio::test]
async fn a_replace_wakes_a_consumer_when_the_task_is_ready() {
    let fixture = Fixture::new().await;
    let later = NewTask { delay: Some(MINUTE), ..keyed(1, "a") };
    fixture.run(put_tasks("mail", vec![later], Span::ZERO)).await.unwrap();
    let mut first = fixture.submit(vec![take("mail", 1, MINUTE)]);
    assert_eq!(fixture.idle().await, 1);
    fixture.control.forget_batches();
    let kept = fixture.run(put_tasks("mail", vec![keyed(2, "a")], Span::ZERO)).await;
    assert_eq!(kept, existing(0, State::Delayed));
    assert_eq!(fixture.idle().await, 1);
    assert!(first.is_pending());
    assert_eq!(fixture.control.verbs(), [["put"]], "no consumer was tried");
    let replaced = fixture.run(put_tasks("mail", vec![replacing(3, "a")], Span::ZERO)).await;
    assert_eq!(replaced, existing(0, State::Ready));
    assert_eq!(first.payloads().await, [3]);
}

#[tokio::test]
async fn a_replace_with_a_shorter_delay_wakes_a_consumer_earlier() {
    let fixture = Fixture::new().await;
    let later = NewTask { delay: Some(MINUTE), ..keyed(1, "a") };
    fixture.run(put_tasks("mail", vec![later], Span::ZERO)).await.unwrap();
    let waiting = fixture.submit(vec![take("mail", 1, MINUTE)]);
    let sooner = NewTask { delay: Some(Span::from_secs(5)), ..replacing(2, "a") };
    fixture.run(put_tasks("mail", vec![sooner], Span::ZERO)).await.unwrap();
    assert_eq!(fixture.idle().await, 1);
    fixture.clock.advance(Span::from_secs(5));
    assert_eq!(waiting.payloads().await, [2]);
}

// A put that adds nothing was parked behind the puts that wait for capacity, and refused.
#[tokio::test]
async fn a_put_that_adds_nothing_does_not_wait_for_capacity() {
    let fixture = Fixture::new().await;
    let tasks = vec![keyed(1, "a"), keyed(2, "b")];
    fixture.run(put_tasks("small", tasks, Span::ZERO)).await.unwrap();
    let again = || put_tasks("small", vec![keyed(9, "a")], Span::ZERO);
    assert_eq!(fixture.run(again()).await, existing(0, State::Ready));
    let mut producer = fixture.submit(vec![put("small", &[3], MINUTE)]);
    assert_eq!(fixture.idle().await, 1);
    assert_eq!(fixture.run(again()).await, existing(0, State::Ready));
    let patient = fixture.submit(vec![put_tasks("small", vec![keyed(9, "b")], MINUTE)]);
    assert_eq!(patient.reply().await, existing(1, State::Ready));
    assert!(producer.is_pending());
    let full = Error::TubeFull { tube: tube("small"), capacity: 2 };
    let new = put_tasks("small", vec![keyed(4, "c")], Span::ZERO);
    assert_eq!(fixture.run(new).await, Err(full));
}

#[tokio::test]
async fn a_new_key_does_not_overtake_those_that_wait_for_capacity() {
    let fixture = Fixture::new().await;
    fixture.put("small", &[1, 2]).await;
    let held = fixture.take("small", 2).await;
    let first = fixture.submit(vec![put("small", &[3], MINUTE)]);
    assert_eq!(fixture.idle().await, 1);
    fixture.control.block();
    let _blocker = fixture.submit(vec![Command::Tubes { tube: None }]);
    fixture.control.wait_blocked();
    let ack = fixture.submit(vec![finish("small", &held[..1], Finish::Ack)]);
    let second = fixture.submit(vec![put_tasks("small", vec![keyed(4, "a")], MINUTE)]);
    fixture.control.unblock();
    assert!(ack.reply().await.is_ok() && first.reply().await.is_ok());
    assert_eq!(fixture.idle().await, 1, "the second waits");
    fixture.run(finish("small", &held[1..], Finish::Ack)).await.unwrap();
    assert!(second.reply().await.is_ok());
    assert_eq!(payloads(&fixture.take("small", 9).await), [3, 4]);
}

// A put of more tasks than the tube can hold was refused at once, and one that waited was not tried
// while the capacity was less than the number of its tasks.
#[tokio::test]
async fn only_tasks_that_are_added_need_capacity() {
    let fixture = Fixture::new().await;
    let tasks = vec![keyed(1, "a"), keyed(2, "b")];
    fixture.run(put_tasks("small", tasks, Span::ZERO)).await.unwrap();
    let tasks = vec![keyed(9, "b"), keyed(9, "b"), keyed(3, "c")];
    let mut waiting = fixture.submit(vec![put_tasks("small", tasks, MINUTE)]);
    let mut behind = fixture.submit(vec![put("small", &[4], MINUTE)]);
    assert_eq!(fixture.idle().await, 2);
    assert!(waiting.is_pending() && behind.is_pending());
    let held = fixture.take("small", 1).await;
    fixture.run(finish("small", &held, Finish::Ack)).await.unwrap();
    let Ok(Reply::Put(placed)) = waiting.reply().await else { panic!("a put") };
    let placed: Vec<_> = placed.iter().map(|placed| (placed.id.0, placed.existing)).collect();
    assert_eq!(placed, [(1, true), (1, true), (2, false)]);
    assert!(behind.is_pending());
}

#[tokio::test]
async fn a_put_that_adds_nothing_is_not_counted() {
    let fixture = Fixture::new().await;
    let tasks = || vec![keyed(1, "a"), keyed(2, "a"), keyed(3, "b")];
    for _ in 0..3 {
        fixture.run(put_tasks("mail", tasks(), Span::ZERO)).await.unwrap();
    }
    fixture.clock.advance(Span::from_secs(1));
    let (tube_name, from, step) = (Some(tube("mail")), SeriesStart::Oldest, Step::Second);
    let request = SeriesRequest { tube: tube_name, from, step };
    let series = fixture.engine.series(request).await.unwrap();
    let puts: u32 = series.points.iter().map(|point| point.counts.puts).sum();
    assert_eq!(puts, 2);
    let Ok(Reply::Tubes(tubes)) = fixture.run(Command::Tubes { tube: Some(tube("mail")) }).await
    else {
        panic!("a tube")
    };
    assert_eq!((tubes[0].stats.calls.put, tubes[0].stats.tasks.total()), (2, 2));
}
