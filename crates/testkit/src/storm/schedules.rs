//! Servers are killed while schedules fire every twentieth of a second: each time fires once, and none is missed.

use std::collections::HashMap;
use std::time::Duration;

use taskyard::{
    CatchUp, Client, Kind, Schedule, Span, Task, Timestamp, TimingRule, TubeOptions, new_task,
};
use taskyard_conformance::random::runs;

use super::faulty_servers::{KilledServers, all_tasks};
use crate::server_process::ServerProcess;

/// The tube of the storm.
pub const TUBE: &str = "fired";
/// How many schedules there are. Each fires once a second, all at different moments. With a hundred, servers on a busy machine
/// were occupied with firing, and everything else took minutes.
const SCHEDULES: i64 = 20;
/// A second, in microseconds.
const STEP: i64 = 1_000_000;
/// How often servers are killed.
const KILLS: usize = 5;
/// At most so many tasks are put between a start and the next kill.
const TASKS_MAX: usize = 20;
/// Longer than any time between two fires.
pub const WAIT: Duration = Duration::from_secs(30);

/// Runs the storm on these servers, and checks all times and tasks at its end.
pub async fn fire_each_time_once<S: Fn() -> ServerProcess>(mut servers: KilledServers<S>) {
    let client = servers.client();
    client.create(TUBE, TubeOptions::new(Kind::Fifo)).await.expect("the tube is created");
    let first = begin(&client).await;
    for _ in 0..KILLS * runs() {
        let tasks = servers.rng.usize(1..=TASKS_MAX);
        wait_for_tasks(&client, tasks).await;
        servers.kill();
    }
    // Each fires once more. It does not have to fire all times that are due: on a busy machine they come faster than they fire,
    // and this would take minutes.
    let before = list(&client).await;
    let has_fired = |(now, before): (&Schedule, &Schedule)| now.fired > before.fired;
    while !list(&client).await.iter().zip(&before).all(has_fired) {
        wait_for_tasks(&client, 1).await;
    }
    for schedule in list(&client).await {
        client.schedules().pause(schedule.name.as_str()).await.expect("it is paused");
    }
    check(&first, &list(&client).await, created(&all_tasks(&client, TUBE).await));
}

/// When the tasks of each schedule were put.
fn created(tasks: &[Task]) -> HashMap<String, Vec<Timestamp>> {
    let mut created: HashMap<String, Vec<Timestamp>> = HashMap::new();
    for task in tasks {
        let name = task.data().expect("the name of its schedule");
        created.entry(name).or_default().push(task.task.created);
    }
    created
}

async fn list(client: &Client) -> Vec<Schedule> {
    client.schedules().list().await.expect("schedules are listed")
}

/// Creates the schedules; returns their first times. They are paused until those are known.
async fn begin(client: &Client) -> HashMap<String, Timestamp> {
    for number in 0..SCHEDULES {
        let start = Some(Timestamp::from_micros(number * STEP / SCHEDULES));
        let rule = TimingRule::Every { every: Span::from_micros(STEP), start };
        let name = format!("schedule {number}");
        let task = new_task(&name).expect("a task");
        let new = Schedule::new(&name, TUBE, task, &rule).expect("a schedule");
        let schedule = Schedule { catch_up: CatchUp::All, paused: true, ..new };
        assert!(client.schedules().set(schedule).await.expect("it is set"));
    }
    let mut first = HashMap::new();
    for schedule in list(client).await {
        let name = schedule.name.as_str();
        client.schedules().resume(name).await.expect("it is resumed");
        first.insert(name.to_owned(), schedule.next.expect("it has a next time"));
    }
    first
}

/// Waits until so many more tasks are put. They stay taken: the killed servers may have taken others.
async fn wait_for_tasks(client: &Client, count: usize) {
    client.take_many(TUBE, 10_000, Duration::ZERO).await.expect("earlier ones are taken");
    for _ in 0..count {
        let task = client.take(TUBE, WAIT).await.expect("the tube can be used");
        task.expect("a schedule has fired");
    }
}

/// Panics unless each time from the first to the next one of each schedule has one task.
fn check(
    first: &HashMap<String, Timestamp>,
    schedules: &[Schedule],
    mut created: HashMap<String, Vec<Timestamp>>,
) {
    assert_eq!(schedules.len(), first.len());
    for schedule in schedules {
        let name = schedule.name.as_str();
        let (from, next) = (first[name], schedule.next.expect("it has a next time"));
        // Moments over HTTP are rounded.
        let times = (next.as_micros() - from.as_micros() + STEP / 2) / STEP;
        let counts = (schedule.fired as i64, schedule.skipped);
        assert_eq!(counts, (times, 0), "'{name}', {times} times: fired, skipped");
        let mut created = created.remove(name).unwrap_or_default();
        assert_eq!(created.len() as i64, times, "tasks of '{name}'");
        // A time that fired twice would make up for one that was missed, but before that one has come.
        created.sort_unstable();
        for (time, created) in (0..).zip(created) {
            let due = from.moved(time * STEP - STEP / 2);
            assert!(created >= due, "'{name}' has more tasks than times at {created:?}");
        }
    }
    assert!(created.is_empty(), "tasks of no schedule: {created:?}");
    let fired: u64 = schedules.iter().map(|schedule| schedule.fired).sum();
    println!("{} schedules have fired {fired} times", schedules.len());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks a schedule that began at second 100 and says that it has fired three times, at 100, 101 and 102.
    fn check_seconds(skipped: u64, created_at: &[i64]) {
        let at = |second: i64| Timestamp::from_micros(second * STEP);
        let rule = TimingRule::Every { every: Span::from_micros(STEP), start: None };
        let new = Schedule::new("daily", TUBE, new_task("daily").unwrap(), &rule).unwrap();
        let schedule = Schedule { next: Some(at(103)), fired: 3 - skipped, skipped, ..new };
        let created = created_at.iter().map(|second| at(*second)).collect();
        let name = || "daily".to_owned();
        check(&[(name(), at(100))].into(), &[schedule], [(name(), created)].into());
    }

    #[test]
    fn late_tasks_are_allowed() {
        check_seconds(0, &[105, 100, 105]);
    }

    #[test]
    #[should_panic(expected = "fired, skipped")]
    fn skipped_times_are_found() {
        check_seconds(1, &[100, 101]);
    }

    #[test]
    #[should_panic(expected = "tasks of 'daily'")]
    fn missing_tasks_are_found() {
        check_seconds(0, &[100, 101]);
    }

    #[test]
    #[should_panic(expected = "more tasks than times")]
    fn a_time_that_fired_twice_is_found() {
        check_seconds(0, &[100, 101, 101]);
    }
}
