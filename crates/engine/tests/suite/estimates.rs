//! Estimates of an engine: when a waiting task will start.

use taskyard_core::command::TubeInfo;
use taskyard_core::estimate::Calibrated;
use taskyard_core::limits::PAYLOAD_BYTES_DEFAULT;
use taskyard_core::{
    Basis, Body, Command, Error, Estimate, Execute, Finish, Forecast, NewTask, NoEstimate,
    Position, RateLimit, Reply, Span, TaskId, TubeChange,
};

use crate::fixture::{Fixture, finish, tube};

const SECOND: Span = Span::from_secs(1);

async fn positions(fixture: &Fixture, ids: &[u64]) -> Vec<Position> {
    let ids = ids.iter().copied().map(TaskId).collect();
    match fixture.run(Command::Positions { tube: tube("mail"), ids }).await {
        Ok(Reply::Positions(positions)) => positions,
        other => panic!("positions were expected, not {other:?}"),
    }
}

async fn forecast(fixture: &Fixture, id: u64) -> Forecast {
    let positions = positions(fixture, &[id]).await;
    positions[0].estimate.expect("the engine adds an estimate")
}

async fn info(fixture: &Fixture) -> TubeInfo {
    match fixture.run(Command::Tubes { tube: Some(tube("mail")) }).await {
        Ok(Reply::Tubes(mut infos)) => infos.remove(0),
        other => panic!("a tube was expected, not {other:?}"),
    }
}

/// One consumer works for so many tasks, one second each.
async fn work(fixture: &Fixture, tasks: usize) {
    for _ in 0..tasks {
        let taken = fixture.take("mail", 1).await;
        fixture.clock.advance(SECOND);
        fixture.run(finish("mail", &taken, Finish::Ack)).await.unwrap();
    }
}

#[tokio::test]
async fn a_tube_without_consumers_has_a_reason_instead() {
    let fixture = Fixture::new().await;
    fixture.put("mail", &[1, 2]).await;
    assert_eq!(forecast(&fixture, 1).await, Err(NoEstimate::NoConsumer));
    let taken = fixture.take("mail", 1).await;
    assert_eq!(forecast(&fixture, 1).await, Err(NoEstimate::NoHistory));
    let change = TubeChange { paused: Some(true), ..TubeChange::default() };
    fixture.run(Command::AlterTube { tube: tube("mail"), change }).await.unwrap();
    assert_eq!(forecast(&fixture, 1).await, Err(NoEstimate::TubePaused));
    fixture.run(finish("mail", &taken, Finish::Ack)).await.unwrap();
    // A task that does not wait has no position.
    assert_eq!(positions(&fixture, &[0, 7]).await, []);
}

// A refused command of the same batch left the positions without estimate and without reason.
#[tokio::test]
async fn a_batch_with_a_refused_command_has_estimates() {
    let fixture = Fixture::new().await;
    fixture.put("mail", &[1]).await;
    let body = Body::new(&vec![0xc0; PAYLOAD_BYTES_DEFAULT + 1]);
    let tasks = vec![NewTask::new(body)];
    let refused = Command::Put { tube: tube("mail"), tasks, wait: Span::ZERO };
    let asked = Command::Positions { tube: tube("mail"), ids: vec![TaskId(0)] };
    let replies = fixture.engine.execute(vec![refused, asked]).await;
    assert!(matches!(replies[0], Err(Error::TooLarge { .. })), "{replies:?}");
    let Ok(Reply::Positions(positions)) = &replies[1] else { panic!("{replies:?}") };
    assert_eq!(positions[0].estimate, Some(Err(NoEstimate::NoConsumer)));
}

#[tokio::test]
async fn the_estimate_follows_the_rate_of_the_consumers() {
    let fixture = Fixture::new().await;
    fixture.put("mail", &[0; 100]).await;
    work(&fixture, 30).await;
    let taken = fixture.take("mail", 1).await;
    let Estimate { ahead, p50, p90, basis } = forecast(&fixture, 90).await.unwrap();
    assert_eq!((ahead, basis), (60, Basis::RunTimes));
    let seconds = p50.as_secs_f64();
    assert!((50.0..70.0).contains(&seconds) && p90 >= p50, "{seconds} {p90:?}");
    // When the last of those that are ready starts.
    let drain = fixture.engine.drains(&[info(&fixture).await]).await[0].unwrap();
    assert!((60.0..80.0).contains(&drain.p50.as_secs_f64()), "{drain:?}");
    // A second consumer takes half of the tasks.
    let second = fixture.take("mail", 1).await;
    let twice = forecast(&fixture, 90).await.unwrap().p50.as_secs_f64();
    assert!((25.0..35.0).contains(&twice), "{twice}");
    fixture.run(finish("mail", &taken, Finish::Ack)).await.unwrap();
    fixture.run(finish("mail", &second, Finish::Ack)).await.unwrap();
}

#[tokio::test]
async fn an_estimate_is_compared_when_its_task_starts() {
    let fixture = Fixture::new().await;
    fixture.put("mail", &[0; 60]).await;
    work(&fixture, 20).await;
    assert_eq!(fixture.engine.calibrated().await.get(&tube("mail")), None);
    for id in 20..30 {
        forecast(&fixture, id).await.unwrap();
    }
    // Asked again: the first estimate counts.
    forecast(&fixture, 29).await.unwrap();
    work(&fixture, 20).await;
    let counts = fixture.engine.calibrated().await[&tube("mail")];
    assert_eq!(counts.total(), 10, "{counts:?}");
    // A consumer that sleeps makes them late.
    forecast(&fixture, 41).await.unwrap();
    fixture.clock.advance(Span::from_secs(3_600));
    work(&fixture, 2).await;
    let late = Calibrated { late: counts.late + 1, ..counts };
    assert_eq!(fixture.engine.calibrated().await[&tube("mail")], late);
}

/// The estimate of a deleted task waited for its start, and disappeared without being counted when 4,096 others waited.
#[tokio::test]
async fn estimates_of_removed_tasks_are_counted_as_dropped() {
    let fixture = Fixture::new().await;
    fixture.put("mail", &[0; 60]).await;
    work(&fixture, 20).await;
    for id in 20..30 {
        forecast(&fixture, id).await.unwrap();
    }
    let mail = tube("mail");
    let dropped = async || fixture.engine.calibrated().await[&mail].dropped;
    assert_eq!(dropped().await, 0);
    let ids = [21, 22, 45, 999].map(TaskId).to_vec();
    fixture.run(Command::Delete { tube: mail.clone(), ids, show: false }).await.unwrap();
    assert_eq!(dropped().await, 2);
    work(&fixture, 1).await;
    fixture.run(Command::Truncate { tube: mail.clone() }).await.unwrap();
    assert_eq!(dropped().await, 9);
    assert_eq!(fixture.engine.calibrated().await[&mail].total(), 1);
}

/// A tube with saved tokens delivers that many tasks at once, but the estimate assumed an empty bucket.
#[tokio::test]
async fn an_estimate_uses_the_tokens_that_are_saved() {
    let fixture = Fixture::new().await;
    fixture.put("mail", &[0; 100]).await;
    work(&fixture, 20).await;
    let rate = RateLimit { count: 1, per: Span::from_secs(60), burst: 50 };
    let change = TubeChange { rate: Some(Some(Box::new(rate))), ..TubeChange::default() };
    fixture.run(Command::AlterTube { tube: tube("mail"), change }).await.unwrap();
    let taken = fixture.take("mail", 1).await;
    let near = forecast(&fixture, 60).await.unwrap();
    let seconds = near.p50.as_secs_f64();
    assert!(near.basis == Basis::RunTimes && (30.0..50.0).contains(&seconds), "{near:?}");
    let far = forecast(&fixture, 80).await.unwrap();
    assert_eq!((far.p50, far.basis), (Span::from_secs(11 * 60), Basis::RateLimit));
    fixture.run(finish("mail", &taken, Finish::Ack)).await.unwrap();
}
