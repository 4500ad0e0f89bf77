//! Schedules: each time fires once, whatever happens to clocks, servers and tubes.

use std::sync::atomic::Ordering;

use taskyard_core::{
    Body, CatchUp, Command, Error, Execute, Kind, NewTask, Overlap, Reply, Result, ScheduleCommand,
    ScheduleName, ScheduleReply, Span, StoredSchedule, Timestamp, TubeOptions,
};
use taskyard_engine::{Engine, ScheduleCounts, SeriesRequest, SeriesStart, Step};

use crate::fixture::{Fixture, MINUTE, finish, take, tube};
use crate::several_engines::TwoEngines;

const HOUR: Span = Span::from_secs(3_600);

fn named(name: &str) -> ScheduleName {
    ScheduleName::new(name).unwrap()
}

/// A schedule that puts into "mail", with all defaults.
fn schedule(name: &str, timing: &str) -> StoredSchedule {
    StoredSchedule {
        name: named(name),
        tube: tube("mail"),
        template: NewTask::new(Body::new(&[7])),
        timing: timing.into(),
        catch_up: CatchUp::None,
        overlap: Overlap::Allow,
        until: None,
        paused: false,
        next: None,
        last: None,
        fired: 0,
        skipped: 0,
    }
}

async fn ask(engine: &Engine, command: ScheduleCommand) -> Result<ScheduleReply> {
    match engine.execute(vec![Command::Schedule(Box::new(command))]).await.remove(0)? {
        Reply::Schedule(reply) => Ok(reply),
        other => panic!("{other:?}"),
    }
}

async fn set(engine: &Engine, schedule: StoredSchedule) {
    let command = ScheduleCommand::Set { schedule, only_new: false, keep_paused: false };
    assert_eq!(ask(engine, command).await, Ok(ScheduleReply::Set(true)));
}

async fn get(engine: &Engine, name: &str) -> StoredSchedule {
    match ask(engine, ScheduleCommand::Get { name: named(name) }).await {
        Ok(ScheduleReply::Schedules(mut found)) => found.remove(0),
        other => panic!("{other:?}"),
    }
}

async fn pause(engine: &Engine, paused: bool) {
    ask(engine, ScheduleCommand::Pause { name: named("job"), paused }).await.unwrap();
}

async fn counts(fixture: &Fixture) -> ScheduleCounts {
    fixture.engine.schedule_notes(Vec::new()).await.counts
}

/// The number of tasks in "mail".
async fn tasks(engine: &Engine) -> u64 {
    let all = Command::Tubes { tube: Some(tube("mail")) };
    match engine.execute(vec![all]).await.remove(0) {
        Ok(Reply::Tubes(tubes)) => tubes[0].stats.tasks.total(),
        other => panic!("{other:?}"),
    }
}

impl Fixture {
    /// One with a schedule "job".
    async fn scheduled(schedule: StoredSchedule) -> Self {
        let fixture = Fixture::new().await;
        set(&fixture.engine, schedule).await;
        fixture
    }

    /// Moves the clock; returns when the engine has done what is due.
    async fn pass(&self, span: Span) {
        self.clock.advance(span);
        self.idle().await;
        self.idle().await;
    }

    /// Fired, skipped and the next time of "job", in minutes after the start of the clock.
    async fn state(&self) -> (u64, u64, Option<i64>) {
        let job = get(&self.engine, "job").await;
        let minutes = |next: Timestamp| (next.as_micros() - START.as_micros()) / MINUTE.as_micros();
        (job.fired, job.skipped, job.next.map(minutes))
    }
}

/// The clock of a fixture at its start; the first time of "every 60 start 1060" is a minute later.
const START: Timestamp = Timestamp::from_micros(1_000_000_000);
const MINUTELY: &str = "every 60 start 1060";

#[tokio::test]
async fn a_schedule_adds_a_task_at_its_time() {
    let fixture = Fixture::scheduled(schedule("job", MINUTELY)).await;
    assert_eq!(get(&fixture.engine, "job").await.next, Some(START + MINUTE));
    let mut waiting = fixture.submit(vec![take("mail", 1, HOUR)]);
    fixture.pass(Span::from_micros(MINUTE.as_micros() - 1)).await;
    assert!(waiting.is_pending());
    fixture.pass(Span::from_micros(1)).await;
    assert_eq!(waiting.payloads().await, [7]);
    assert_eq!(fixture.state().await, (1, 0, Some(2)));
    assert_eq!(get(&fixture.engine, "job").await.last, Some(START + MINUTE));
    for minutes in 2..10 {
        fixture.pass(MINUTE).await;
        assert_eq!(fixture.state().await, (minutes, 0, Some(minutes as i64 + 1)));
    }
    let counts = counts(&fixture).await;
    assert_eq!((counts.fired, counts.skipped, counts.late), (9, 0, Span::ZERO));
}

/// Idle schedules cost nothing: the store is asked when one is due, and not before.
#[tokio::test]
async fn the_store_is_asked_only_when_a_schedule_is_due() {
    let fixture = Fixture::scheduled(schedule("job", "every 3600 start 4600")).await;
    fixture.idle().await;
    fixture.control.forget_batches();
    for _ in 0..59 {
        fixture.pass(MINUTE).await;
    }
    let asked = |verbs: Vec<Vec<&str>>| verbs.concat().contains(&"schedule_due");
    assert!(!asked(fixture.control.verbs()));
    fixture.pass(MINUTE).await;
    assert!(asked(fixture.control.verbs()));
}

#[tokio::test]
async fn a_wrong_rule_is_refused() {
    let fixture = Fixture::new().await;
    for (timing, field) in [
        ("cron UTC 0 0 30 2 *", "cron"),
        ("cron Nowhere/Land 0 0 * * *", "zone"),
        ("every 0.5", "every"),
        ("every day", "timing"),
    ] {
        let schedule = schedule("job", timing);
        let set = ScheduleCommand::Set { schedule, only_new: false, keep_paused: false };
        let refusal = ask(&fixture.engine, set).await;
        let Err(Error::Invalid(message)) = refusal else { panic!("{timing}: {refusal:?}") };
        assert!(message.starts_with(&format!("'{field}' is refused: ")), "{message}");
    }
}

/// Ten minutes without a server, as the clock shows it; the last two times are at most a minute late.
#[tokio::test]
async fn missed_times_are_caught_up() {
    for (catch_up, expected) in [
        (CatchUp::None, (2, 8, Some(11))),
        (CatchUp::Last, (2, 8, Some(11))),
        (CatchUp::All, (10, 0, Some(11))),
    ] {
        let fixture =
            Fixture::scheduled(StoredSchedule { catch_up, ..schedule("job", MINUTELY) }).await;
        fixture.pass(Span::from_secs(600)).await;
        assert_eq!(fixture.state().await, expected, "{catch_up:?}");
        assert_eq!(tasks(&fixture.engine).await, expected.0);
    }
}

#[tokio::test]
async fn at_most_a_thousand_times_are_caught_up() {
    let all = StoredSchedule { catch_up: CatchUp::All, ..schedule("job", MINUTELY) };
    let fixture = Fixture::scheduled(all).await;
    fixture.pass(Span::from_secs(60 * 1_500)).await;
    assert_eq!(fixture.state().await, (1_000, 500, Some(1_501)));
    assert_eq!(counts(&fixture).await.skipped, 500);
}

/// A time that is an hour late fires only if it is caught up.
#[tokio::test]
async fn a_late_time_is_skipped_without_catch_up() {
    for (catch_up, expected) in [(CatchUp::None, (0, 1)), (CatchUp::Last, (1, 0))] {
        let daily = StoredSchedule { catch_up, ..schedule("job", "every 86400 start 1060") };
        let fixture = Fixture::scheduled(daily).await;
        fixture.pass(HOUR).await;
        let (fired, skipped, _) = fixture.state().await;
        assert_eq!((fired, skipped), expected, "{catch_up:?}");
    }
}

#[tokio::test]
async fn a_time_is_skipped_while_the_task_of_an_earlier_one_exists() {
    let alone = StoredSchedule { overlap: Overlap::Skip, ..schedule("job", MINUTELY) };
    let fixture = Fixture::scheduled(alone).await;
    fixture.pass(MINUTE).await;
    fixture.pass(MINUTE).await;
    assert_eq!(fixture.state().await, (1, 1, Some(3)));
    let task = fixture.take("mail", 1).await;
    fixture.pass(MINUTE).await;
    assert_eq!(fixture.state().await, (1, 2, Some(4)), "it is taken");
    fixture.run(finish("mail", &task, taskyard_core::Finish::Ack)).await.unwrap();
    fixture.pass(MINUTE).await;
    assert_eq!(fixture.state().await, (2, 2, Some(5)));
    assert_eq!(counts(&fixture).await.skipped, 2);
}

#[tokio::test]
async fn a_paused_schedule_catches_up_when_it_is_resumed() {
    for (catch_up, expected) in [(CatchUp::None, (2, 8)), (CatchUp::All, (10, 0))] {
        let job = StoredSchedule { catch_up, ..schedule("job", MINUTELY) };
        let fixture = Fixture::scheduled(job).await;
        pause(&fixture.engine, true).await;
        fixture.pass(Span::from_secs(600)).await;
        assert_eq!(fixture.state().await, (0, 0, Some(1)));
        pause(&fixture.engine, false).await;
        fixture.pass(Span::ZERO).await;
        let (fired, skipped, next) = fixture.state().await;
        assert_eq!(((fired, skipped), next), (expected, Some(11)), "{catch_up:?}");
    }
}

#[tokio::test]
async fn a_schedule_ends() {
    let until = Some(START + Span::from_secs(130));
    let fixture = Fixture::scheduled(StoredSchedule { until, ..schedule("job", MINUTELY) }).await;
    for expected in [(1, 0, Some(2)), (2, 0, None), (2, 0, None)] {
        fixture.pass(MINUTE).await;
        assert_eq!(fixture.state().await, expected);
    }
}

/// A step forward is like a stop of the server; after a step back no time fires again.
#[tokio::test]
async fn schedules_follow_the_wall_clock() {
    let all = StoredSchedule { catch_up: CatchUp::All, ..schedule("job", MINUTELY) };
    let fixture = Fixture::scheduled(all).await;
    fixture.clock.set_wall(HOUR, true);
    fixture.pass(Span::ZERO).await;
    assert_eq!(fixture.state().await, (60, 0, Some(61)));
    fixture.clock.set_wall(HOUR, false);
    fixture.pass(HOUR).await;
    assert_eq!(fixture.state().await, (60, 0, Some(61)));
    fixture.pass(MINUTE).await;
    assert_eq!(fixture.state().await, (61, 0, Some(62)));
}

/// 2026-03-28 and 2026-10-24 at noon in Berlin; the clocks are set in the next night.
#[tokio::test]
async fn schedules_follow_summer_time() {
    for (noon, expected) in [(1_774_695_600, 14 * 60), (1_792_836_000, 14 * 60 + 30)] {
        let fixture = Fixture::new().await;
        fixture.pass(Span::from_secs(noon - 1_000)).await;
        set(&fixture.engine, schedule("night", "cron Europe/Berlin 30 2 * * *")).await;
        set(&fixture.engine, schedule("half", "cron Europe/Berlin */30 * * * *")).await;
        let mut fired = Vec::new();
        for minute in (30..=24 * 60).step_by(30) {
            fixture.pass(Span::from_secs(1_800)).await;
            if get(&fixture.engine, "night").await.fired > fired.len() as u64 {
                fired.push(minute);
            }
        }
        assert_eq!(fired, [expected], "minutes after {noon}");
        assert_eq!(get(&fixture.engine, "half").await.fired, 48);
    }
}

/// The error is kept until a task is added again; the time is skipped.
#[tokio::test]
async fn a_full_or_missing_tube_is_reported() {
    let small = StoredSchedule { tube: tube("small"), ..schedule("job", MINUTELY) };
    let fixture = Fixture::scheduled(small).await;
    let error = async || {
        let notes = fixture.engine.schedule_notes(vec![named("job"), named("other")]).await;
        notes.errors.get(&named("job")).cloned()
    };
    fixture.put("small", &[1, 2]).await;
    fixture.pass(MINUTE).await;
    assert_eq!(fixture.state().await, (0, 1, Some(2)));
    assert!(error().await.unwrap().starts_with("tube 'small' is full"));
    let drop = |name: &str| Command::DropTube { tube: tube(name) };
    fixture.run(drop("small")).await.unwrap();
    fixture.pass(MINUTE).await;
    assert_eq!(fixture.state().await, (0, 2, Some(3)));
    assert!(error().await.unwrap().starts_with("tube 'small' does not exist"));
    let counted = counts(&fixture).await;
    assert_eq!((counted.skipped, counted.failed), (2, 2));
    let options = TubeOptions::new(Kind::Fifo);
    let create = Command::CreateTube { tube: tube("small"), options, if_not_exists: false };
    fixture.run(create).await.unwrap();
    fixture.pass(MINUTE).await;
    assert_eq!(fixture.state().await, (1, 2, Some(4)));
    assert_eq!(error().await, None);
}

/// The store fails between the look at due schedules and the fire: the time fires later, once.
#[tokio::test]
async fn a_time_that_could_not_be_fired_is_tried_again() {
    let all = StoredSchedule { catch_up: CatchUp::All, ..schedule("job", MINUTELY) };
    let fixture = Fixture::scheduled(all).await;
    fixture.control.failing_next.store(true, Ordering::SeqCst);
    fixture.pass(MINUTE).await;
    fixture.control.failing_next.store(false, Ordering::SeqCst);
    fixture.control.failing.store(false, Ordering::SeqCst);
    assert_eq!(fixture.state().await, (0, 0, Some(1)));
    fixture.pass(Span::from_secs(1)).await;
    assert_eq!(fixture.state().await, (1, 0, Some(2)));
    assert_eq!(tasks(&fixture.engine).await, 1);
}

/// The fire takes effect and its reply is lost: the time does not fire again.
#[tokio::test]
async fn a_lost_reply_does_not_fire_a_time_again() {
    let all = StoredSchedule { catch_up: CatchUp::All, ..schedule("job", MINUTELY) };
    let fixture = Fixture::scheduled(all).await;
    *fixture.control.loses_replies.lock().unwrap() = Some("schedule_fire");
    fixture.pass(MINUTE).await;
    assert_eq!(counts(&fixture).await.fired, 0, "the engine does not know it");
    *fixture.control.loses_replies.lock().unwrap() = None;
    fixture.pass(Span::from_secs(1)).await;
    fixture.pass(Span::from_secs(1)).await;
    assert_eq!(fixture.state().await, (1, 0, Some(2)));
    assert_eq!(tasks(&fixture.engine).await, 1);
}

// A thousand schedules fired in one turn. On PostgreSQL each is a transaction, and other commands waited for all of them.
#[tokio::test]
async fn many_schedules_fire_in_several_turns() {
    let fixture = Fixture::new().await;
    for number in 0..2_500 {
        set(&fixture.engine, schedule(&format!("job {number}"), MINUTELY)).await;
    }
    fixture.control.forget_batches();
    fixture.pass(MINUTE).await;
    while tasks(&fixture.engine).await < 2_500 {}
    let verbs = fixture.control.verbs();
    let fires = |batch: &Vec<&str>| batch.iter().filter(|verb| **verb == "schedule_fire").count();
    let sizes: Vec<usize> = verbs.iter().map(fires).filter(|size| *size > 0).collect();
    assert_eq!(sizes, [100; 25]);
}

// A schedule that stayed due although it did not fire was read and fired again without a pause.
#[tokio::test]
async fn a_schedule_that_does_not_fire_is_tried_once_in_a_second() {
    let fixture = Fixture::scheduled(schedule("job", MINUTELY)).await;
    fixture.control.never_fires.store(true, Ordering::SeqCst);
    fixture.pass(MINUTE).await;
    for tries in 1..4 {
        for _ in 0..10 {
            fixture.idle().await;
        }
        let verbs = fixture.control.verbs().concat();
        assert_eq!(verbs.iter().filter(|verb| **verb == "schedule_fire").count(), tries);
        fixture.pass(Span::from_secs(1)).await;
    }
    fixture.control.never_fires.store(false, Ordering::SeqCst);
    fixture.pass(Span::from_secs(1)).await;
    assert_eq!(fixture.state().await, (1, 0, Some(2)));
}

/// Sets schedules whose rule this program cannot read.
async fn set_unreadable(fixture: &Fixture, count: usize) {
    *fixture.control.other_rule.lock().unwrap() = Some("moon full");
    for number in 0..count {
        set(&fixture.engine, schedule(&format!("a{number}"), MINUTELY)).await;
    }
    *fixture.control.other_rule.lock().unwrap() = None;
}

// A server with older time zones could not read the rule of a schedule and ended it for all servers.
#[tokio::test]
async fn a_rule_that_cannot_be_read_is_left_to_other_servers() {
    let fixture = Fixture::scheduled(schedule("job", MINUTELY)).await;
    set_unreadable(&fixture, 1).await;
    let before = get(&fixture.engine, "a0").await;
    fixture.control.forget_batches();
    for minutes in 1..=10 {
        fixture.pass(MINUTE).await;
        assert_eq!(fixture.state().await, (minutes, 0, Some(minutes as i64 + 1)), "it is on time");
    }
    assert_eq!(counts(&fixture).await.late, Span::ZERO);
    assert_eq!(get(&fixture.engine, "a0").await, before);
    let error = async || {
        let notes = fixture.engine.schedule_notes(vec![named("a0")]).await;
        notes.errors.get(&named("a0")).cloned()
    };
    let unreadable = "'timing' is refused: 'moon full' is not the rule of a schedule";
    assert!(error().await.unwrap().contains(unreadable));
    let verbs = fixture.control.verbs().concat();
    let asked = verbs.iter().filter(|verb| **verb == "schedule_due").count();
    assert!(asked <= 40, "the store was asked {asked} times in 10 minutes");
    let readable = StoredSchedule { catch_up: CatchUp::All, ..schedule("a0", MINUTELY) };
    let again = ScheduleCommand::Set { schedule: readable, only_new: false, keep_paused: false };
    assert_eq!(ask(&fixture.engine, again).await, Ok(ScheduleReply::Set(false)));
    assert_eq!(error().await, None);
    fixture.pass(MINUTE).await;
    assert_eq!(get(&fixture.engine, "a0").await.fired, 1);
}

/// Schedules that cannot be read stay due before all others.
#[tokio::test]
async fn many_rules_that_cannot_be_read_do_not_delay_others() {
    let fixture = Fixture::scheduled(schedule("job", MINUTELY)).await;
    set_unreadable(&fixture, 1_000).await;
    for minutes in 1..=3 {
        fixture.clock.advance(MINUTE);
        while tasks(&fixture.engine).await < minutes {}
        assert_eq!(fixture.state().await, (minutes, 0, Some(minutes as i64 + 1)));
    }
    assert_eq!(get(&fixture.engine, "a999").await.skipped, 0);
}

/// Other commands run while schedules catch up a million times.
#[tokio::test]
async fn a_turn_is_bounded() {
    let fixture = Fixture::new().await;
    for number in 0..30 {
        let job = schedule(&format!("job {number}"), MINUTELY);
        set(&fixture.engine, StoredSchedule { catch_up: CatchUp::All, ..job }).await;
    }
    fixture.control.forget_batches();
    fixture.pass(Span::from_secs(60 * 1_000)).await;
    while tasks(&fixture.engine).await < 30_000 {}
    for batch in fixture.control.batches.lock().unwrap().iter() {
        let puts = batch.iter().map(|command| match command {
            Command::Schedule(command) => command.tasks().len(),
            _ => 0,
        });
        assert!(puts.sum::<usize>() <= 10_000);
    }
}

#[tokio::test]
async fn two_engines_fire_each_time_once() {
    let engines = TwoEngines::new().await;
    let all = StoredSchedule { catch_up: CatchUp::All, ..schedule("job", "every 60") };
    set(&engines.first, all).await;
    for minutes in 1..=200 {
        engines.clock.advance(MINUTE);
        while get(&engines.second, "job").await.fired < minutes {
            engines.first.waiting().await;
        }
    }
    engines.first.waiting().await;
    engines.second.waiting().await;
    let job = get(&engines.first, "job").await;
    assert_eq!((job.fired, job.skipped), (200, 0));
    assert_eq!(tasks(&engines.first).await, 200);
    let mut fired = 0;
    for engine in [&engines.first, &engines.second] {
        fired += engine.schedule_notes(Vec::new()).await.counts.fired;
    }
    assert_eq!(fired, 200);
}

/// One of two servers cannot reach the store: the other one fires, and the first one not again.
#[tokio::test]
async fn another_engine_takes_over() {
    let engines = TwoEngines::new().await;
    let all = StoredSchedule { catch_up: CatchUp::All, ..schedule("job", "every 60") };
    engines.unreachable.store(true, Ordering::SeqCst);
    set(&engines.first, all).await;
    engines.clock.advance(MINUTE);
    engines.first.waiting().await;
    engines.first.waiting().await;
    assert_eq!(get(&engines.first, "job").await.fired, 1);
    engines.unreachable.store(false, Ordering::SeqCst);
    for _ in 0..10 {
        engines.clock.advance(Span::from_secs(1));
        engines.second.waiting().await;
    }
    assert_eq!(get(&engines.second, "job").await.fired, 1);
    assert_eq!(tasks(&engines.first).await, 1);
}

/// A server learns of a schedule that another one set by polling.
#[tokio::test]
async fn schedules_of_other_servers_are_fired() {
    let engines = TwoEngines::new().await;
    set(&engines.first, schedule("job", "every 60 start 61")).await;
    engines.first.stop().await.unwrap();
    for _ in 0..60 {
        engines.clock.advance(Span::from_secs(1));
        engines.second.waiting().await;
    }
    engines.second.waiting().await;
    assert_eq!(get(&engines.second, "job").await.fired, 1);
    assert_eq!(tasks(&engines.second).await, 1);
}

// The store decided by its clock what is due, and the server by its own how many times there are: one that was three minutes ahead
// fired or skipped the times of the next three minutes.
#[tokio::test]
async fn the_clock_of_the_store_decides() {
    let engines = TwoEngines::behind(Span::from_secs(180)).await;
    set(&engines.first, schedule("job", "every 60")).await;
    let minute = |minutes: i64| Some(Timestamp::from_micros(minutes * MINUTE.as_micros()));
    assert_eq!(get(&engines.first, "job").await.next, minute(1), "it is 1 s past midnight");
    for minutes in 1..=5 {
        for _ in 0..12 {
            engines.clock.advance(Span::from_secs(5));
            engines.first.waiting().await;
            engines.second.waiting().await;
        }
        while get(&engines.first, "job").await.fired < minutes as u64 {
            engines.second.waiting().await;
        }
        let job = get(&engines.first, "job").await;
        let expected = (minutes as u64, 0, minute(minutes + 1));
        assert_eq!((job.fired, job.skipped, job.next), expected);
    }
}

/// Tasks that schedules added were missing in the time series.
#[tokio::test]
async fn tasks_of_schedules_are_puts_of_the_time_series() {
    let request =
        SeriesRequest { tube: Some(tube("mail")), from: SeriesStart::Oldest, step: Step::Minute };
    for (overlap, expected) in [(Overlap::Allow, [0, 1, 1]), (Overlap::Skip, [0, 1, 0])] {
        let fixture =
            Fixture::scheduled(StoredSchedule { overlap, ..schedule("job", MINUTELY) }).await;
        for _ in 0..2 {
            fixture.pass(MINUTE).await;
        }
        fixture.clock.advance(Span::from_secs(59));
        let points = fixture.engine.series(request.clone()).await.unwrap().points;
        let puts: Vec<_> = points.iter().map(|point| point.counts.puts).collect();
        assert_eq!(puts, expected, "{overlap:?}");
    }
}
