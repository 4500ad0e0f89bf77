//! Commands of schedules in their shortest form, and the tube and schedule that most cases begin with.

use taskyard_core::{
    CatchUp, Command, Kind, Overlap, Placed, Reply, Result, ScheduleCommand, ScheduleName,
    ScheduleReply, StoredSchedule, Timestamp, TubeName,
};

use super::Harness;
use super::commands::{QueueCommands, secs, task};

pub(super) fn named(text: &str) -> ScheduleName {
    ScheduleName::new(text).expect("names of cases are valid")
}

pub(super) fn schedule(text: &str, tube: &TubeName, next: Timestamp) -> StoredSchedule {
    StoredSchedule {
        name: named(text),
        tube: tube.clone(),
        template: task("x"),
        timing: "every 1 min".into(),
        catch_up: CatchUp::None,
        overlap: Overlap::Allow,
        until: None,
        paused: false,
        next: Some(next),
        last: None,
        fired: 0,
        skipped: 0,
    }
}

pub(super) fn fire(text: &str, expected: Timestamp, puts: usize) -> ScheduleCommand {
    let (puts, next) = (vec![task("x"); puts], Some(expected + secs(60)));
    ScheduleCommand::Fire { name: named(text), expected, next, puts, skipped: 0 }
}

pub(super) fn set(schedule: &StoredSchedule) -> ScheduleCommand {
    ScheduleCommand::Set { schedule: schedule.clone(), only_new: false, keep_paused: false }
}

pub(super) async fn ask<H: Harness>(queue: &H, command: ScheduleCommand) -> Result<ScheduleReply> {
    match queue.run(Command::Schedule(Box::new(command))).await? {
        Reply::Schedule(reply) => Ok(reply),
        other => panic!("unexpected reply: {other:?}"),
    }
}

/// Fires; the added tasks, or `None` if another time is next.
pub(super) async fn fired<H: Harness>(queue: &H, command: ScheduleCommand) -> Option<Vec<Placed>> {
    match ask(queue, command).await {
        Ok(ScheduleReply::Fired(placed)) => placed,
        other => panic!("unexpected reply: {other:?}"),
    }
}

/// The schedules that a command shows.
pub(super) async fn shown<H: Harness>(queue: &H, command: ScheduleCommand) -> Vec<StoredSchedule> {
    match ask(queue, command).await {
        Ok(ScheduleReply::Schedules(schedules) | ScheduleReply::Due { schedules, .. }) => schedules,
        other => panic!("unexpected reply: {other:?}"),
    }
}

pub(super) async fn get<H: Harness>(queue: &H, text: &str) -> StoredSchedule {
    shown(queue, ScheduleCommand::Get { name: named(text) }).await.remove(0)
}

/// The names of the schedules that a command shows.
pub(super) async fn names<H: Harness>(queue: &H, command: ScheduleCommand) -> Vec<String> {
    let schedules = shown(queue, command).await;
    schedules.iter().map(|schedule| schedule.name.to_string()).collect()
}

/// The tube `jobs`; `None` if the store has no schedules and refused one.
pub(super) async fn jobs<H: Harness>(queue: &H) -> Option<TubeName> {
    let tube = queue.tube(Kind::FifoTtl).await;
    let command = Command::Schedule(Box::new(set(&schedule("daily", &tube, queue.now()))));
    let has = queue.capabilities().schedules;
    queue.supports(has, "schedules", command).await.then_some(tube)
}

/// The tube `jobs` with the schedule `daily`, which is due now.
pub(super) async fn daily<H: Harness>(queue: &H) -> Option<(TubeName, StoredSchedule)> {
    let tube = jobs(queue).await?;
    let daily = schedule("daily", &tube, queue.now());
    assert_eq!(ask(queue, set(&daily)).await, Ok(ScheduleReply::Set(true)));
    Some((tube, daily))
}
