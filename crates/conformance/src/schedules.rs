//! Schedules: stored rules, and the step that adds the tasks of a time exactly once.

use taskyard_core::limits::{
    SCHEDULE_PUTS_MAX, SCHEDULE_TEMPLATE_BYTES_MAX, SCHEDULE_TIMING_BYTES_MAX, SCHEDULES_LISTED_MAX,
};
use taskyard_core::{
    Body, CatchUp, Command, Error, Key, KeyRequest, Kind, NewTask, Overlap, Placed, Reply,
    ScheduleCommand, ScheduleReply, Span, State, StoredSchedule, TaskId, Timestamp, TubeOptions,
};

use super::Harness;
use super::commands::{QueueCommands, almost, message_pack, name, secs, task};
use super::schedule_commands::{
    ask, daily, fire, fired, get, jobs, named, names, schedule, set, shown,
};

/// Every part of a schedule is stored as it was given.
pub async fn every_part_is_kept<H: Harness>(queue: H) {
    let Some(tube) = jobs(&queue).await else { return };
    let now = queue.now();
    let template = NewTask {
        pri: Some(3),
        ttl: Some(secs(100)),
        ttr: Some(secs(9)),
        delay: Some(secs(1)),
        subqueue: Some("é".into()),
        ..NewTask::new(Body::with_meta(&message_pack("report"), &[0x81, 0xa1, b'k', 0xc0]))
    };
    let full = StoredSchedule {
        template,
        timing: "cron 0 9 * * 1-5 Europe/Berlin".into(),
        catch_up: CatchUp::All,
        overlap: Overlap::Skip,
        until: Some(now + secs(1_000)),
        paused: true,
        ..schedule("täglich 9:00", &tube, now + Span::from_micros(1))
    };
    let last = StoredSchedule {
        catch_up: CatchUp::Last,
        next: None,
        ..schedule(&"n".repeat(128), &tube, now)
    };
    for one in [full, last] {
        assert_eq!(ask(&queue, set(&one)).await, Ok(ScheduleReply::Set(true)));
        assert_eq!(get(&queue, one.name.as_str()).await, one);
    }
}

/// A schedule is replaced as a whole, but keeps what it counted; the counters of the command are ignored.
pub async fn a_replaced_schedule_keeps_its_counters<H: Harness>(queue: H) {
    let Some((tube, daily)) = daily(&queue).await else { return };
    let now = queue.now();
    let claim = StoredSchedule { last: Some(now), fired: 7, skipped: 8, ..daily.clone() };
    let new = StoredSchedule { name: named("new"), ..claim.clone() };
    assert_eq!(ask(&queue, set(&new)).await, Ok(ScheduleReply::Set(true)));
    assert_eq!(get(&queue, "new").await, StoredSchedule { name: named("new"), ..daily.clone() });
    let next = Some(now + secs(60));
    let puts = vec![task("x"); 2];
    let name = named("daily");
    fired(&queue, ScheduleCommand::Fire { name, expected: now, next, puts, skipped: 3 }).await;
    let other = queue.tube_named("other", TubeOptions::new(Kind::Fifo)).await;
    let changed = StoredSchedule {
        timing: "every 2 min".into(),
        catch_up: CatchUp::Last,
        next: Some(now + secs(120)),
        ..schedule("daily", &other, now)
    };
    assert_ne!(tube, other);
    assert_eq!(ask(&queue, set(&changed)).await, Ok(ScheduleReply::Set(false)));
    let expected = StoredSchedule { last: Some(now), fired: 2, skipped: 3, ..changed };
    assert_eq!(get(&queue, "daily").await, expected);
}

/// With `only_new` an existing schedule is not replaced.
pub async fn a_name_is_used_once<H: Harness>(queue: H) {
    let Some((_, daily)) = daily(&queue).await else { return };
    let changed = StoredSchedule { timing: "every 9 min".into(), ..daily.clone() };
    let again = ScheduleCommand::Set { schedule: changed, only_new: true, keep_paused: false };
    assert_eq!(ask(&queue, again).await, Err(Error::ScheduleExists(named("daily"))));
    assert_eq!(get(&queue, "daily").await, daily);
    let other = StoredSchedule { name: named("Daily"), ..daily };
    let new = ScheduleCommand::Set { schedule: other, only_new: true, keep_paused: false };
    assert_eq!(ask(&queue, new).await, Ok(ScheduleReply::Set(true)), "case matters");
}

/// A schedule for a missing tube and values out of bounds are refused, and nothing changes.
pub async fn schedules_are_checked<H: Harness>(queue: H) {
    let Some((_, daily)) = daily(&queue).await else { return };
    let missing = StoredSchedule { tube: name("nowhere"), ..daily.clone() };
    assert_eq!(ask(&queue, set(&missing)).await, Err(Error::TubeNotFound(name("nowhere"))));
    let timing = |bytes| StoredSchedule { timing: "x".repeat(bytes).into(), ..daily.clone() };
    let put = |template| StoredSchedule { template, ..daily.clone() };
    // One MessagePack value of this many bytes: a head of five, and zeros.
    let large = |bytes: usize| {
        let mut payload = vec![0; bytes];
        payload[0] = 0xc6;
        payload[1..5].copy_from_slice(&((bytes - 5) as u32).to_be_bytes());
        put(NewTask::new(Body::new(&payload)))
    };
    let bad = [
        timing(0),
        timing(SCHEDULE_TIMING_BYTES_MAX + 1),
        large(SCHEDULE_TEMPLATE_BYTES_MAX + 1),
        put(NewTask { delay: Some(secs(1)), at: Some(queue.now()), ..task("x") }),
        put(NewTask { attempts_max: Some(0), ..task("x") }),
    ];
    for schedule in bad {
        let refusal = ask(&queue, set(&schedule)).await;
        let refused = matches!(refusal, Err(Error::Invalid(_) | Error::TooLarge { .. }));
        assert!(refused, "{refusal:?}");
        assert_eq!(get(&queue, "daily").await, daily);
    }
    for schedule in [timing(SCHEDULE_TIMING_BYTES_MAX), large(SCHEDULE_TEMPLATE_BYTES_MAX)] {
        assert_eq!(ask(&queue, set(&schedule)).await, Ok(ScheduleReply::Set(false)));
        assert_eq!(get(&queue, "daily").await, schedule);
    }
}

/// Each command refuses a schedule that does not exist.
pub async fn every_command_refuses_an_unknown_schedule<H: Harness>(queue: H) {
    let Some(_) = jobs(&queue).await else { return };
    let name = || named("daily");
    let commands = [
        ScheduleCommand::Get { name: name() },
        ScheduleCommand::Remove { name: name() },
        ScheduleCommand::Pause { name: name(), paused: true },
        fire("daily", queue.now(), 1),
    ];
    for command in commands {
        let verb = command.verb();
        assert_eq!(ask(&queue, command).await, Err(Error::ScheduleNotFound(name())), "{verb}");
    }
}

/// Lists are by name, in pages.
pub async fn lists_are_by_name<H: Harness>(queue: H) {
    let Some(tube) = jobs(&queue).await else { return };
    let list =
        |after: Option<&str>, limit| ScheduleCommand::List { after: after.map(named), limit };
    assert_eq!(names(&queue, list(None, 9)).await, [""; 0]);
    for text in ["b", "a", "é", "B", "ab"] {
        ask(&queue, set(&schedule(text, &tube, queue.now()))).await.expect("it is set");
    }
    assert_eq!(names(&queue, list(None, 9)).await, ["B", "a", "ab", "b", "é"]);
    assert_eq!(names(&queue, list(None, 2)).await, ["B", "a"]);
    assert_eq!(names(&queue, list(Some("a"), 2)).await, ["ab", "b"]);
    assert_eq!(names(&queue, list(Some("aa"), 1)).await, ["ab"], "a name that does not exist");
    assert_eq!(names(&queue, list(Some("é"), 9)).await, [""; 0]);
    for limit in [0, SCHEDULES_LISTED_MAX + 1] {
        for command in [list(None, limit), ScheduleCommand::Due { skip: 0, limit }] {
            let refusal = ask(&queue, command).await;
            assert!(matches!(refusal, Err(Error::Invalid(_))), "{limit}: {refusal:?}");
        }
    }
}

/// Due schedules are shown by time and name; neither paused ones nor those that are over.
pub async fn due_schedules_are_by_time<H: Harness>(queue: H) {
    let Some(tube) = jobs(&queue).await else { return };
    let now = queue.now();
    let at = |text: &str, seconds| schedule(text, &tube, now + secs(seconds));
    let paused = StoredSchedule { paused: true, ..at("paused", 0) };
    let over = StoredSchedule { next: None, ..at("over", 0) };
    for one in [at("late", 9), at("z", 0), at("b", 5), at("a", 5), paused, over] {
        ask(&queue, set(&one)).await.expect("it is set");
    }
    let due = |limit| ScheduleCommand::Due { skip: 0, limit };
    assert_eq!(names(&queue, due(9)).await, ["z"]);
    queue.advance(almost(5));
    assert_eq!(names(&queue, due(9)).await, ["z"]);
    queue.advance(Span::from_micros(1));
    assert_eq!(names(&queue, due(9)).await, ["z", "a", "b"]);
    assert_eq!(names(&queue, due(2)).await, ["z", "a"]);
    fired(&queue, fire("z", now, 0)).await.expect("it fires");
    assert_eq!(names(&queue, due(9)).await, ["a", "b"]);
    let resume = ScheduleCommand::Pause { name: named("paused"), paused: false };
    ask(&queue, resume).await.expect("it is resumed");
    assert_eq!(names(&queue, due(9)).await, ["paused", "a", "b"]);
    ask(&queue, ScheduleCommand::Remove { name: named("a") }).await.expect("it is removed");
    assert_eq!(names(&queue, due(9)).await, ["paused", "b"]);
}

/// The store says by which clock schedules are due, and when the next one is; the first of them can be left out.
///
/// Servers decided by their own clocks how many times were due, and a page of schedules that none of them could fire hid all others.
pub async fn due_schedules_come_with_the_clock<H: Harness>(queue: H) {
    let Some(tube) = jobs(&queue).await else { return };
    let now = queue.now();
    for (text, seconds) in [("a", 0), ("b", 0), ("c", 3), ("d", 5), ("e", 9)] {
        let one = schedule(text, &tube, now + secs(seconds));
        ask(&queue, set(&one)).await.expect("it is set");
    }
    let paused = StoredSchedule { paused: true, ..schedule("paused", &tube, now + secs(6)) };
    ask(&queue, set(&paused)).await.expect("it is set");
    let due = async |skip, limit| match ask(&queue, ScheduleCommand::Due { skip, limit }).await {
        Ok(ScheduleReply::Due { now: clock, schedules, next }) => {
            assert_eq!(clock, queue.now());
            let names = schedules.iter().map(|schedule| schedule.name.to_string());
            (names.collect::<Vec<_>>().concat(), next)
        }
        other => panic!("unexpected reply: {other:?}"),
    };
    assert_eq!(due(0, 9).await, ("ab".into(), Some(now + secs(3))));
    queue.advance(secs(5));
    let next = Some(now + secs(9));
    for (skip, limit, expected) in
        [(0, 9, "abcd"), (1, 2, "bc"), (3, 9, "d"), (4, 9, ""), (9, 9, "")]
    {
        assert_eq!(due(skip, limit).await, (expected.into(), next), "{skip} {limit}");
    }
    queue.advance(secs(4));
    assert_eq!(due(2, 1).await, ("c".into(), None));
}

/// A schedule can be replaced without a change of whether it is paused; a new one is not paused then.
///
/// A server asked first whether the schedule was paused: one that another server paused meanwhile went on.
pub async fn a_replaced_schedule_may_stay_paused<H: Harness>(queue: H) {
    let Some((_, daily)) = daily(&queue).await else { return };
    let keep = |paused| ScheduleCommand::Set {
        schedule: StoredSchedule { paused, ..daily.clone() },
        only_new: false,
        keep_paused: true,
    };
    let pause = |paused| ScheduleCommand::Pause { name: named("daily"), paused };
    for is_paused in [true, false] {
        ask(&queue, pause(is_paused)).await.expect("it is changed");
        for paused in [true, false] {
            assert_eq!(ask(&queue, keep(paused)).await, Ok(ScheduleReply::Set(false)));
            assert_eq!(get(&queue, "daily").await.paused, is_paused);
        }
    }
    ask(&queue, ScheduleCommand::Remove { name: named("daily") }).await.expect("it is removed");
    assert_eq!(ask(&queue, keep(true)).await, Ok(ScheduleReply::Set(true)));
    assert!(!get(&queue, "daily").await.paused);
    let due = ScheduleCommand::Due { skip: 0, limit: 9 };
    assert_eq!(names(&queue, due).await, ["daily"]);
}

/// A fire adds its tasks, sets the next time and counts, in one step.
pub async fn a_fire_adds_its_tasks<H: Harness>(queue: H) {
    let Some((tube, daily)) = daily(&queue).await else { return };
    let due = queue.now();
    queue.advance(secs(7));
    let next = Some(due + secs(60));
    let puts = vec![task("first"), NewTask { delay: Some(secs(5)), ..task("second") }];
    let command = ScheduleCommand::Fire {
        name: named("daily"),
        expected: due,
        next,
        puts: puts.clone(),
        skipped: 4,
    };
    let placed = fired(&queue, command).await.expect("it fires");
    let states = [(TaskId(0), State::Ready), (TaskId(1), State::Delayed)];
    assert_eq!(placed, states.map(|(id, state)| Placed { id, state, existing: false }));
    for (put, placed) in puts.iter().zip(&placed) {
        assert_eq!(queue.peek_existing(&tube, placed.id).await.body, Some(put.body.clone()));
    }
    assert_eq!(queue.calls(&tube).await.put, 2);
    let expected = StoredSchedule { next, last: Some(queue.now()), fired: 2, skipped: 4, ..daily };
    assert_eq!(get(&queue, "daily").await, expected);
}

/// A time fires once, however many servers try: the same time again, an earlier and a later one do nothing.
pub async fn a_time_fires_once<H: Harness>(queue: H) {
    let Some((tube, _)) = daily(&queue).await else { return };
    let now = queue.now();
    let twice = vec![Command::Schedule(Box::new(fire("daily", now, 1))); 2];
    let answers: Vec<bool> = queue
        .execute(twice)
        .await
        .into_iter()
        .map(|reply| match reply {
            Ok(Reply::Schedule(ScheduleReply::Fired(placed))) => placed.is_some(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(answers, [true, false]);
    let after = get(&queue, "daily").await;
    assert_eq!(after.next, Some(now + secs(60)));
    for wrong in [now, now + secs(59), now + secs(61), now + secs(120)] {
        assert_eq!(fired(&queue, fire("daily", wrong, 1)).await, None);
    }
    assert_eq!(get(&queue, "daily").await, after);
    assert_eq!(queue.stats(&tube).await.tasks.ready, 1);
    // The store does not compare the time with its clock: a command may run a schedule before it is due.
    assert!(fired(&queue, fire("daily", now + secs(60), 1)).await.is_some());
    assert_eq!(queue.stats(&tube).await.tasks.ready, 2);
}

/// A fire without tasks moves on and counts the skipped times; one without a next time is the last.
pub async fn a_fire_may_skip_and_end<H: Harness>(queue: H) {
    let Some((tube, daily)) = daily(&queue).await else { return };
    let now = queue.now();
    let skip = |expected, next, skipped| ScheduleCommand::Fire {
        name: named("daily"),
        expected,
        next,
        puts: Vec::new(),
        skipped,
    };
    let next = now + secs(60);
    assert_eq!(fired(&queue, skip(now, Some(next), 5)).await, Some(Vec::new()));
    let skipped = StoredSchedule { next: Some(next), skipped: 5, ..daily };
    assert_eq!(get(&queue, "daily").await, skipped, "nothing was added, so `last` stays empty");
    assert_eq!(fired(&queue, skip(next, None, 1)).await, Some(Vec::new()));
    let over = StoredSchedule { next: None, skipped: 6, ..skipped };
    assert_eq!(get(&queue, "daily").await, over);
    assert_eq!(fired(&queue, fire("daily", next, 1)).await, None);
    assert_eq!(queue.stats(&tube).await.tasks.total(), 0);
}

/// A fire adds at most 1,000 tasks.
pub async fn the_tasks_of_a_fire_are_limited<H: Harness>(queue: H) {
    let Some((tube, daily)) = daily(&queue).await else { return };
    let now = queue.now();
    let refusal = ask(&queue, fire("daily", now, SCHEDULE_PUTS_MAX + 1)).await;
    assert!(matches!(refusal, Err(Error::TooLarge { .. })), "{refusal:?}");
    assert_eq!(get(&queue, "daily").await, daily);
    let placed = fired(&queue, fire("daily", now, SCHEDULE_PUTS_MAX)).await;
    assert_eq!(placed.map(|placed| placed.len()), Some(SCHEDULE_PUTS_MAX));
    assert_eq!(queue.stats(&tube).await.tasks.ready, SCHEDULE_PUTS_MAX as u64);
    assert_eq!(get(&queue, "daily").await.fired, SCHEDULE_PUTS_MAX as u64);
}

/// Fires with more tasks than are allowed, which is refused.
async fn fire_too_many<H: Harness>(queue: &H, expected: Timestamp) {
    let size_asked = SCHEDULE_PUTS_MAX + 1;
    let refusal = ask(queue, fire("daily", expected, size_asked)).await;
    let is_refused = matches!(refusal, Err(Error::TooLarge { size, .. }) if size == size_asked);
    assert!(is_refused, "{refusal:?}");
}

/// A fire with too many tasks is refused as such, also if its time is not next. Tarantool answered that another time was next, as if
/// another server had been first; PostgreSQL refused it even for a schedule that does not exist.
pub async fn too_many_tasks_are_refused_at_any_time<H: Harness>(queue: H) {
    let Some((tube, daily)) = daily(&queue).await else { return };
    let now = queue.now();
    let unknown = ask(&queue, fire("weekly", now, SCHEDULE_PUTS_MAX + 1)).await;
    assert_eq!(unknown, Err(Error::ScheduleNotFound(named("weekly"))));
    fire_too_many(&queue, now).await;
    fire_too_many(&queue, now + secs(1)).await;
    assert_eq!(get(&queue, "daily").await, daily);
    let pause = ScheduleCommand::Pause { name: named("daily"), paused: true };
    ask(&queue, pause).await.expect("it is paused");
    fire_too_many(&queue, now).await;
    queue.drop_tube(&tube).await;
    fire_too_many(&queue, now).await;
    // What is wrong with one of the tasks matters only if its time is next.
    let both = NewTask { delay: Some(secs(1)), at: Some(now), ..task("x") };
    let (name, expected) = (named("daily"), now + secs(1));
    let puts = vec![both];
    let bad = ScheduleCommand::Fire { name, expected, next: None, puts, skipped: 0 };
    assert_eq!(fired(&queue, bad).await, None);
}

/// A fire whose tasks are refused changes nothing: neither the schedule nor the tube.
pub async fn a_refused_fire_changes_nothing<H: Harness>(queue: H) {
    let Some((_, daily)) = daily(&queue).await else { return };
    let now = queue.now();
    let small = TubeOptions { capacity: Some(2), ..TubeOptions::new(Kind::Fifo) };
    let small = queue.tube_named("small", small).await;
    let changed = StoredSchedule { tube: small.clone(), ..daily };
    ask(&queue, set(&changed)).await.expect("it is set");
    let refusal = ask(&queue, fire("daily", now, 3)).await;
    assert!(matches!(refusal, Err(Error::TubeFull { .. })), "{refusal:?}");
    let both = NewTask { delay: Some(secs(1)), at: Some(now), ..task("x") };
    let bad = ScheduleCommand::Fire {
        name: named("daily"),
        expected: now,
        next: None,
        puts: vec![task("x"), both],
        skipped: 1,
    };
    let refusal = ask(&queue, bad).await;
    assert!(matches!(refusal, Err(Error::Invalid(_))), "{refusal:?}");
    assert_eq!(get(&queue, "daily").await, changed);
    assert_eq!(queue.stats(&small).await.tasks.total(), 0);
    assert!(fired(&queue, fire("daily", now, 2)).await.is_some());
}

/// With `skip`, a time adds nothing while the task of an earlier time has not ended, and counts as skipped.
///
/// Every store set `last`, the time of the last added task, also when a time added nothing.
pub async fn runs_do_not_overlap<H: Harness>(queue: H) {
    let Some((tube, daily)) = daily(&queue).await else { return };
    if !queue.capabilities().keys {
        return;
    }
    let now = queue.now();
    let alone = StoredSchedule { overlap: Overlap::Skip, ..daily };
    ask(&queue, set(&alone)).await.expect("it is set");
    let placed = fired(&queue, fire("daily", now, 2)).await.expect("it fires");
    assert_eq!(placed.iter().map(|task| task.existing).collect::<Vec<_>>(), [false, true]);
    let counted = async || {
        let shown = get(&queue, "daily").await;
        (shown.fired, shown.skipped, shown.last)
    };
    assert_eq!(counted().await, (1, 1, Some(now)), "one of the two was added");
    assert_eq!(queue.stats(&tube).await.tasks.total(), 1);
    queue.advance(secs(60));
    let placed = fired(&queue, fire("daily", now + secs(60), 2)).await.expect("it fires");
    assert!(placed.iter().all(|task| task.existing), "{placed:?}");
    assert_eq!(counted().await, (1, 3, Some(now)), "nothing was added");
    assert_eq!(queue.stats(&tube).await.tasks.total(), 1);
    queue.delete(&tube, TaskId(0)).await;
    queue.advance(secs(60));
    fired(&queue, fire("daily", now + secs(120), 2)).await.expect("it fires");
    assert_eq!(counted().await, (2, 4, Some(queue.now())), "the task had ended");
    let own = KeyRequest::new(Key::new("own").expect("a good key"));
    let keyed = NewTask { key: Some(Box::new(own)), ..task("x") };
    let refusal = ask(&queue, set(&StoredSchedule { template: keyed, ..alone })).await;
    assert!(matches!(refusal, Err(Error::Invalid(_))), "{refusal:?}");
}

/// With `skip`, the name leaves room for the rest of the key `schedule:NAME`.
pub async fn names_of_tasks_that_do_not_overlap_are_shorter<H: Harness>(queue: H) {
    let Some(tube) = jobs(&queue).await else { return };
    if !queue.capabilities().keys {
        return;
    }
    let now = queue.now();
    let alone = |bytes| StoredSchedule {
        overlap: Overlap::Skip,
        ..schedule(&"n".repeat(bytes), &tube, now)
    };
    let refusal = ask(&queue, set(&alone(120))).await;
    let is_clear = |why: &String| why.contains("at most 119 bytes") && why.contains("has 120");
    assert!(matches!(&refusal, Err(Error::Invalid(why)) if is_clear(why)), "{refusal:?}");
    let longest = alone(119);
    assert_eq!(ask(&queue, set(&longest)).await, Ok(ScheduleReply::Set(true)));
    let placed = fired(&queue, fire(longest.name.as_str(), now, 2)).await.expect("it fires");
    assert_eq!(placed.iter().map(|task| task.existing).collect::<Vec<_>>(), [false, true]);
    let key = queue.peek_existing(&tube, placed[0].id).await.key.expect("it has a key");
    assert_eq!(key.as_str(), format!("schedule:{}", longest.name));
}

/// A schedule stays when its tube is dropped or renamed: its tasks are refused until it moves on without them, or the tube
/// exists again.
pub async fn a_schedule_outlives_its_tube<H: Harness>(queue: H) {
    let Some((tube, daily)) = daily(&queue).await else { return };
    let now = queue.now();
    let rename = Command::NameTube { tube: tube.clone(), name: name("renamed"), queue_num: None };
    queue.must(rename).await;
    let missing = Err(Error::TubeNotFound(tube.clone()));
    assert_eq!(ask(&queue, fire("daily", now, 1)).await, missing);
    let puts = vec![NewTask { attempts_max: Some(0), ..task("x") }];
    let bad =
        ScheduleCommand::Fire { name: named("daily"), expected: now, next: None, puts, skipped: 0 };
    let refusal = ask(&queue, bad).await;
    assert!(matches!(refusal, Err(Error::Invalid(_))), "values are checked first: {refusal:?}");
    queue.drop_tube(&name("renamed")).await;
    assert_eq!(ask(&queue, fire("daily", now, 1)).await, missing);
    assert_eq!(get(&queue, "daily").await, daily);
    assert_eq!(fired(&queue, fire("daily", now, 0)).await, Some(Vec::new()));
    let pause = ScheduleCommand::Pause { name: named("daily"), paused: false };
    assert!(ask(&queue, pause).await.is_ok());
    queue.tube(Kind::Fifo).await;
    let placed = fired(&queue, fire("daily", now + secs(60), 1)).await;
    assert_eq!(placed.map(|placed| placed.len()), Some(1));
}

/// A paused schedule does not fire; its next time stays.
pub async fn a_paused_schedule_does_not_fire<H: Harness>(queue: H) {
    let Some((tube, daily)) = daily(&queue).await else { return };
    let pause = |paused| ScheduleCommand::Pause { name: named("daily"), paused };
    let paused = StoredSchedule { paused: true, ..daily.clone() };
    for _ in 0..2 {
        assert_eq!(shown(&queue, pause(true)).await, std::slice::from_ref(&paused));
    }
    assert_eq!(fired(&queue, fire("daily", queue.now(), 1)).await, None);
    assert_eq!(get(&queue, "daily").await, paused);
    let due = queue.now();
    queue.advance(secs(100));
    assert_eq!(shown(&queue, pause(false)).await, [daily]);
    assert!(fired(&queue, fire("daily", due, 1)).await.is_some());
    assert_eq!(queue.stats(&tube).await.tasks.ready, 1);
}

/// A removed schedule is gone, its tasks stay, and a new one of its name begins at zero.
pub async fn a_removed_schedule_leaves_its_tasks<H: Harness>(queue: H) {
    let Some((tube, daily)) = daily(&queue).await else { return };
    fired(&queue, fire("daily", queue.now(), 2)).await.expect("it fires");
    let remove = || ScheduleCommand::Remove { name: named("daily") };
    assert_eq!(ask(&queue, remove()).await, Ok(ScheduleReply::Removed));
    let missing = Err(Error::ScheduleNotFound(named("daily")));
    assert_eq!(ask(&queue, remove()).await, missing);
    assert_eq!(queue.stats(&tube).await.tasks.ready, 2);
    let new = ScheduleCommand::Set { schedule: daily.clone(), only_new: true, keep_paused: false };
    assert_eq!(ask(&queue, new).await, Ok(ScheduleReply::Set(true)));
    assert_eq!(get(&queue, "daily").await, daily);
}

/// Schedules with their counters survive a restart; removed ones stay removed, and no time fires again.
pub async fn schedules_survive_a_restart<H: Harness>(queue: H) {
    let Some((tube, daily)) = daily(&queue).await else { return };
    let now = queue.now();
    let full = StoredSchedule {
        template: NewTask { pri: Some(2), delay: Some(secs(3)), ..task("é") },
        catch_up: CatchUp::All,
        overlap: Overlap::Skip,
        until: Some(now + secs(99)),
        paused: true,
        ..schedule("full", &tube, now + secs(5))
    };
    for one in [full.clone(), StoredSchedule { name: named("gone"), ..daily.clone() }] {
        ask(&queue, set(&one)).await.expect("it is set");
    }
    ask(&queue, ScheduleCommand::Remove { name: named("gone") }).await.expect("it is removed");
    fired(&queue, fire("daily", now, 2)).await.expect("it fires");
    let durable = queue.capabilities().durable;
    let queue = queue.restart().await;
    let list = ScheduleCommand::List { after: None, limit: 9 };
    let all = shown(&queue, list).await;
    if !durable {
        assert_eq!(all, []);
        return;
    }
    let next = Some(now + secs(60));
    let fired_once = StoredSchedule { next, last: Some(now), fired: 2, ..daily };
    assert_eq!(all, [fired_once, full]);
    assert_eq!(fired(&queue, fire("daily", now, 2)).await, None);
    assert_eq!(queue.stats(&tube).await.tasks.ready, 2);
    queue.advance(secs(60));
    let due = ScheduleCommand::Due { skip: 0, limit: 9 };
    assert_eq!(names(&queue, due).await, ["daily"]);
    assert!(fired(&queue, fire("daily", now + secs(60), 1)).await.is_some());
}
