//! A check of puts: what does not pass is refused, and the rest of the batch is executed.

use std::sync::Arc;

use taskyard_core::{
    Command, Error, Execute, NewTask, Reply, ScheduleCommand, ScheduleName, Span, Timestamp,
    TubeName,
};

use crate::fixture::{Fixture, payloads, put};

/// Refuses the payload 7 in every tube.
fn refuse_seven(tube: &TubeName, tasks: &[NewTask]) -> Result<(), Error> {
    match tasks.iter().any(|task| task.body.payload() == [7]) {
        true => Err(Error::Invalid(format!("no 7 in {tube}"))),
        false => Ok(()),
    }
}

#[tokio::test]
async fn a_put_that_does_not_pass_is_refused_as_a_whole() {
    let fixture = Fixture::new().await;
    let checking = fixture.engine.clone().with_put_check(Arc::new(refuse_seven));
    let batch = [&[1][..], &[2, 7, 3], &[4]].map(|tasks| put("mail", tasks, Span::ZERO));
    let replies = checking.execute(batch.into()).await;
    assert!(matches!(replies[0], Ok(Reply::Put(_))), "{replies:?}");
    assert_eq!(replies[1], Err(Error::Invalid("no 7 in mail".into())));
    assert!(matches!(replies[2], Ok(Reply::Put(_))), "{replies:?}");
    let other = checking.clone().execute(vec![put("mail", &[7], Span::ZERO)]).await;
    assert!(other[0].is_err(), "clones check too");
    fixture.put("mail", &[7]).await;
    assert_eq!(payloads(&fixture.take("mail", 10).await), [1, 4, 7], "the first handle does not");
}

/// A client could put anything by firing a schedule itself.
#[tokio::test]
async fn a_client_cannot_fire_schedules_around_the_check() {
    let fixture = Fixture::new().await;
    let fire = ScheduleCommand::Fire {
        name: ScheduleName::new("nightly").unwrap(),
        expected: Timestamp::EPOCH,
        next: None,
        puts: Vec::new(),
        skipped: 0,
    };
    let fire = Command::Schedule(Box::new(fire));
    let refused = |reply: &Result<Reply, Error>| matches!(reply, Err(Error::Invalid(_)));
    let replies = fixture.engine.execute(vec![fire.clone()]).await;
    assert!(!refused(&replies[0]), "{replies:?}");
    let checking = fixture.engine.clone().with_put_check(Arc::new(refuse_seven));
    let replies = checking.execute(vec![fire]).await;
    assert!(refused(&replies[0]), "{replies:?}");
}
