//! Time series of an engine.

use taskyard_core::{Command, Finish, Reply, SessionId, Span, Take};
use taskyard_engine::{CommandCounts, Series, SeriesRequest, SeriesStart, Step};

use crate::fixture::{Fixture, finish, put, taken, tube};

const SECOND: Span = Span::from_secs(1);

async fn series(fixture: &Fixture, name: &str) -> Option<Series> {
    let (tube, from, step) = (Some(tube(name)), SeriesStart::Oldest, Step::Second);
    fixture.engine.series(SeriesRequest { tube, from, step }).await
}

#[tokio::test]
async fn refused_commands_and_empty_takes_count_for_nothing() {
    let fixture = Fixture::new().await;
    fixture.run(put("small", &[1, 2, 3], Span::ZERO)).await.unwrap_err();
    assert_eq!(fixture.take("mail", 5).await, []);
    fixture.run(put("nowhere", &[1], Span::ZERO)).await.unwrap_err();
    fixture.clock.advance(SECOND);
    for name in ["small", "mail", "nowhere"] {
        assert_eq!(series(&fixture, name).await, None, "{name}");
    }
}

#[tokio::test]
async fn only_acknowledged_deliveries_have_a_run_time() {
    let fixture = Fixture::new().await;
    fixture.put("mail", &[1, 2, 3]).await;
    let tasks = fixture.take("mail", 3).await;
    fixture.clock.advance(SECOND);
    for end in [Finish::Bury, Finish::Release { delay: Span::ZERO, counted: true }] {
        let finished = fixture.run(finish("mail", &tasks[..1], end)).await;
        assert!(matches!(finished, Ok(Reply::Finished(_))));
    }
    fixture.clock.advance(SECOND);
    // A stale delivery does not end again.
    fixture.run(finish("mail", &tasks[..1], Finish::Ack)).await.unwrap();
    fixture.run(finish("mail", &tasks[1..2], Finish::Touch(SECOND))).await.unwrap();
    fixture.run(finish("mail", &tasks[1..], Finish::Ack)).await.unwrap();
    fixture.clock.advance(SECOND);
    let points = series(&fixture, "mail").await.unwrap().points;
    assert_eq!(points[1].counts, CommandCounts::default());
    assert_eq!((points[1].run(), points[1].depth.buried), (None, 1));
    assert_eq!(points[2].counts, CommandCounts { acks: 2, ..CommandCounts::default() });
    let [p50, ..] = points[2].run().unwrap();
    assert!((1.9..2.1).contains(&p50.as_secs_f64()), "{p50:?}");
}

#[tokio::test]
async fn a_step_of_the_wall_clock_leaves_no_gap() {
    let fixture = Fixture::new().await;
    fixture.put("mail", &[1]).await;
    fixture.clock.advance(SECOND);
    fixture.clock.set_wall(Span::from_secs(86_400), true);
    fixture.put("mail", &[2, 3]).await;
    fixture.clock.advance(SECOND);
    let found = series(&fixture, "mail").await.unwrap();
    let puts: Vec<_> = found.points.iter().map(|point| point.counts.puts).collect();
    assert_eq!((puts, found.from.as_secs_f64()), (vec![1, 2], 87_400.0));
}

#[tokio::test]
async fn a_dropped_tube_has_no_series() {
    let fixture = Fixture::new().await;
    fixture.put("mail", &[1]).await;
    fixture.clock.advance(SECOND);
    assert!(series(&fixture, "mail").await.is_some());
    fixture.run(Command::DropTube { tube: tube("mail") }).await.unwrap();
    assert_eq!(series(&fixture, "mail").await, None);
}

/// Only the failures that a worker reported were counted.
#[tokio::test]
async fn expired_leases_and_ended_sessions_are_failures() {
    let fixture = Fixture::new().await;
    let session = SessionId([7; 16]);
    fixture.run(Command::JoinSession { session, create: true }).await.unwrap();
    fixture.put("mail", &[1, 2, 3, 4, 5, 6, 7]).await;
    let take = |count, session, lease| {
        let (tube, worker, wait) = (tube("mail"), None, Span::ZERO);
        fixture.run(Command::Take(Take { tube, count, session, lease, worker, wait }))
    };
    assert_eq!(taken(take(2, None, Some(SECOND)).await).len(), 2);
    let held = taken(take(4, Some(session), None).await);
    assert_eq!(taken(take(1, None, None).await).len(), 1);
    fixture.clock.advance(SECOND);
    fixture.idle().await;
    fixture.clock.advance(SECOND);
    fixture.run(finish("mail", &held[..1], Finish::fail("no route", None))).await.unwrap();
    fixture.run(Command::LeaveSession { session }).await.unwrap();
    // What an operator releases did not fail.
    fixture.run(Command::ReleaseAll { tube: tube("mail") }).await.unwrap();
    assert_eq!(fixture.engine.tube_figures().await.unwrap()[&tube("mail")].failures, 6);
    fixture.clock.advance(SECOND);
    let points = series(&fixture, "mail").await.unwrap().points;
    let fails: Vec<_> = points.iter().map(|point| point.counts.fails).collect();
    assert_eq!(fails, [0, 2, 4]);
    let request = SeriesRequest { tube: None, from: SeriesStart::Oldest, step: Step::Second };
    let sum = fixture.engine.series(request).await.unwrap().points;
    assert_eq!(sum[2].counts, CommandCounts { fails: 4, ..CommandCounts::default() });
    assert_eq!(fixture.engine.tube_figures().await.unwrap()[&tube("mail")].failures, 6);
}
