//! Retry policies, rate limits and schedules of the machine.

use taskyard_core::limits::SCHEDULES_MAX;
use taskyard_core::{
    AfterFailure, Body, CatchUp, Command, Error, Fail, Finish, FinishItem, Holder, Kind, Machine,
    NewTask, Overlap, RateLimit, Reason, Reply, RetryPolicy, ScheduleCommand, ScheduleName,
    ScheduleReply, Span, State, StoredSchedule, Take, Task, TaskId, Timestamp, TubeChange,
    TubeName, TubeOptions,
};

const NOW: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);
const SECOND: Span = Span::from_secs(1);

fn tube() -> TubeName {
    TubeName::new("mail").unwrap()
}

fn machine(options: TubeOptions, tasks: usize) -> Machine {
    let mut machine = Machine::default();
    let create = Command::CreateTube { tube: tube(), options, if_not_exists: false };
    machine.apply(NOW, create).unwrap();
    put(&mut machine, vec![NewTask::new(Body::new(b"x")); tasks]);
    machine
}

fn put(machine: &mut Machine, tasks: Vec<NewTask>) {
    machine.apply(NOW, Command::Put { tube: tube(), tasks, wait: Span::ZERO }).unwrap();
}

fn take(machine: &mut Machine, now: Timestamp, count: usize) -> Vec<Task> {
    let (session, worker, wait) = (None, None, Span::ZERO);
    let take = Take { tube: tube(), count, session, lease: Some(SECOND), worker, wait };
    match machine.apply(now, Command::Take(take)) {
        Ok(Reply::Taken(tasks)) => tasks,
        other => panic!("{other:?}"),
    }
}

fn fail(machine: &mut Machine, now: Timestamp, id: TaskId, then: AfterFailure) {
    let finish = Finish::Fail(Box::new(Fail { error: "no route".into(), then }));
    let items = vec![FinishItem { id, holder: Holder::Any, finish }];
    machine.apply(now, Command::Finish { tube: tube(), items, show: false }).unwrap();
}

fn peek(machine: &mut Machine, now: Timestamp, id: u64) -> Task {
    match machine.apply(now, Command::Peek { tube: tube(), ids: vec![TaskId(id)] }) {
        Ok(Reply::Tasks(mut tasks)) => tasks.remove(0),
        other => panic!("{other:?}"),
    }
}

fn policy(retry_lost: bool) -> TubeOptions {
    let retry = RetryPolicy { retry_lost, ..RetryPolicy::DEFAULT };
    TubeOptions { retry: Some(Box::new(retry)), ..TubeOptions::new(Kind::FifoTtl) }
}

fn rated(count: u32, burst: u32) -> TubeOptions {
    let rate = RateLimit { count, per: SECOND, burst };
    TubeOptions { rate: Some(Box::new(rate)), ..TubeOptions::new(Kind::FifoTtl) }
}

#[test]
fn a_failure_waits_as_the_policy_says() {
    let mut machine = machine(policy(false), 1);
    let mut now = NOW;
    for attempt in 1..5 {
        assert_eq!(take(&mut machine, now, 1).len(), 1);
        fail(
            &mut machine,
            now,
            TaskId(0),
            AfterFailure::Policy { seed: attempt * 77, default_delay: SECOND },
        );
        let delay = RetryPolicy::DEFAULT.delay_after(attempt, attempt * 77, TaskId(0));
        let task = peek(&mut machine, now, 0);
        assert_eq!((task.state, task.due), (State::Delayed, Some(now + delay)));
        now = now + delay;
        machine.apply(now, Command::Tick { limit: 9, seed: 0 }).unwrap();
    }
    take(&mut machine, now, 1);
    fail(&mut machine, now, TaskId(0), AfterFailure::Retry(SECOND));
    assert_eq!(peek(&mut machine, now, 0).due, Some(now + SECOND), "an explicit delay is used");
}

// A policy that was removed between the look of a caller at the tube and the end of the delivery
// buried the task.
#[test]
fn a_failure_without_a_policy_waits_for_its_default_delay() {
    let mut machine = machine(policy(false), 1);
    take(&mut machine, NOW, 1);
    let change = TubeChange { retry: Some(None), ..TubeChange::default() };
    machine.apply(NOW, Command::AlterTube { tube: tube(), change }).unwrap();
    let by_policy = |default_delay| AfterFailure::Policy { seed: 3, default_delay };
    fail(&mut machine, NOW, TaskId(0), by_policy(SECOND));
    let task = peek(&mut machine, NOW, 0);
    assert_eq!((task.state, task.due, task.attempts), (State::Delayed, Some(NOW + SECOND), 1));
    let later = NOW + SECOND;
    machine.apply(later, Command::Tick { limit: 9, seed: 0 }).unwrap();
    take(&mut machine, later, 1);
    fail(&mut machine, later, TaskId(0), by_policy(Span::ZERO));
    let task = peek(&mut machine, later, 0);
    assert_eq!((task.state, task.attempts), (State::Ready, 2));
}

#[test]
fn a_lost_lease_waits_only_if_the_policy_says_so() {
    for (retry_lost, state) in [(false, State::Ready), (true, State::Delayed)] {
        let mut machine = machine(policy(retry_lost), 1);
        take(&mut machine, NOW, 1);
        machine.apply(NOW + SECOND, Command::Tick { limit: 9, seed: 5 }).unwrap();
        let task = peek(&mut machine, NOW + SECOND, 0);
        assert_eq!((task.state, task.attempts), (state, 1));
        if retry_lost {
            let delay = RetryPolicy::DEFAULT.delay_after(1, 5, TaskId(0));
            assert_eq!(task.due, Some(NOW + SECOND + delay));
        }
    }
}

#[test]
fn a_task_has_its_own_number_of_attempts() {
    let options = TubeOptions { attempts_max: Some(1), ..TubeOptions::new(Kind::FifoTtl) };
    let mut machine = machine(options, 1);
    put(&mut machine, vec![NewTask { attempts_max: Some(2), ..NewTask::new(Body::new(b"x")) }]);
    for task in take(&mut machine, NOW, 2) {
        fail(&mut machine, NOW, task.id, AfterFailure::Retry(Span::ZERO));
    }
    assert_eq!(peek(&mut machine, NOW, 0).reason, Reason::AttemptsUsedUp);
    let own = peek(&mut machine, NOW, 1);
    assert_eq!((own.state, own.attempts_max), (State::Ready, Some(2)));
    take(&mut machine, NOW, 1);
    fail(&mut machine, NOW, TaskId(1), AfterFailure::Retry(Span::ZERO));
    assert_eq!(peek(&mut machine, NOW, 1).reason, Reason::AttemptsUsedUp);
}

#[test]
fn a_take_delivers_as_many_tasks_as_there_are_tokens() {
    let mut machine = machine(rated(2, 3), 9);
    machine.take_effects();
    assert_eq!(take(&mut machine, NOW, 9).len(), 3);
    let next = NOW + Span::from_micros(500_000);
    assert_eq!(peek(&mut machine, NOW, 5).reason, Reason::RateLimited(next));
    assert_eq!(machine.next_wakeup(), Some(next));
    assert_eq!(take(&mut machine, NOW, 9).len(), 0);
    machine.take_effects();
    machine.apply(next, Command::Tick { limit: 9, seed: 0 }).unwrap();
    assert_eq!(machine.take_effects().ready, [(tube(), 1)], "waiting consumers are woken");
    assert_eq!(take(&mut machine, next, 9).len(), 1);
    fail(&mut machine, next, TaskId(0), AfterFailure::Retry(Span::ZERO));
    assert_eq!(take(&mut machine, next, 9).len(), 0, "a failure gives no token back");
    let change = TubeChange { rate: Some(None), ..TubeChange::default() };
    machine.apply(next, Command::AlterTube { tube: tube(), change }).unwrap();
    assert_eq!(take(&mut machine, next, 9).len(), 6);
}

#[test]
fn an_undone_take_gives_its_tokens_back() {
    let mut machine = machine(rated(1, 2), 9);
    machine.begin();
    assert_eq!(take(&mut machine, NOW, 9).len(), 2);
    assert_eq!(machine.changes().buckets.len(), 1);
    machine.undo();
    assert_eq!(take(&mut machine, NOW, 9).len(), 2);
}

fn name(text: &str) -> ScheduleName {
    ScheduleName::new(text).unwrap()
}

fn schedule(text: &str, next: Timestamp) -> StoredSchedule {
    StoredSchedule {
        name: name(text),
        tube: tube(),
        template: NewTask::new(Body::new(b"x")),
        timing: "every 1 s".into(),
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

fn ask(machine: &mut Machine, command: ScheduleCommand) -> Result<ScheduleReply, Error> {
    match machine.apply(NOW, Command::Schedule(Box::new(command)))? {
        Reply::Schedule(reply) => Ok(reply),
        other => panic!("{other:?}"),
    }
}

fn set(machine: &mut Machine, schedule: StoredSchedule) -> Result<ScheduleReply, Error> {
    ask(machine, ScheduleCommand::Set { schedule, only_new: false, keep_paused: false })
}

fn fire(expected: Timestamp, puts: usize) -> ScheduleCommand {
    let puts = vec![NewTask::new(Body::new(b"x")); puts];
    let next = Some(expected + SECOND);
    ScheduleCommand::Fire { name: name("daily"), expected, next, puts, skipped: 1 }
}

#[test]
fn a_time_fires_once_and_with_its_tasks() {
    let mut machine = machine(TubeOptions::new(Kind::FifoTtl), 0);
    assert_eq!(set(&mut machine, schedule("daily", NOW)), Ok(ScheduleReply::Set(true)));
    assert_eq!(machine.next_schedule(), Some(NOW));
    let Ok(ScheduleReply::Fired(Some(placed))) = ask(&mut machine, fire(NOW, 2)) else {
        panic!("it fires")
    };
    assert_eq!(placed.len(), 2);
    assert_eq!(ask(&mut machine, fire(NOW, 2)), Ok(ScheduleReply::Fired(None)));
    let get = ScheduleCommand::Get { name: name("daily") };
    let after = StoredSchedule {
        next: Some(NOW + SECOND),
        last: Some(NOW),
        fired: 2,
        skipped: 1,
        ..schedule("daily", NOW)
    };
    assert_eq!(ask(&mut machine, get.clone()), Ok(ScheduleReply::Schedules(vec![after])));
    assert_eq!(take(&mut machine, NOW, 9).len(), 2);
    machine.begin();
    ask(&mut machine, fire(NOW + SECOND, 1)).unwrap();
    assert_eq!(machine.changes().schedules.len(), 1);
    machine.undo();
    assert_eq!(machine.next_schedule(), Some(NOW + SECOND));
    let pause = ScheduleCommand::Pause { name: name("daily"), paused: true };
    ask(&mut machine, pause).unwrap();
    assert_eq!(machine.next_schedule(), None);
    assert_eq!(ask(&mut machine, fire(NOW + SECOND, 1)), Ok(ScheduleReply::Fired(None)));
    ask(&mut machine, ScheduleCommand::Remove { name: name("daily") }).unwrap();
    assert_eq!(ask(&mut machine, get), Err(Error::ScheduleNotFound(name("daily"))));
}

#[test]
fn a_schedule_without_its_tube_moves_on_without_puts() {
    let mut machine = machine(TubeOptions::new(Kind::FifoTtl), 0);
    set(&mut machine, schedule("daily", NOW)).unwrap();
    machine.apply(NOW, Command::DropTube { tube: tube() }).unwrap();
    assert_eq!(ask(&mut machine, fire(NOW, 1)), Err(Error::TubeNotFound(tube())));
    assert_eq!(machine.next_schedule(), Some(NOW), "a refused fire changes nothing");
    assert_eq!(ask(&mut machine, fire(NOW, 0)), Ok(ScheduleReply::Fired(Some(Vec::new()))));
    assert_eq!(set(&mut machine, schedule("new", NOW)), Err(Error::TubeNotFound(tube())));
}

#[test]
fn schedules_are_limited_and_found_by_time() {
    let mut machine = machine(TubeOptions::new(Kind::FifoTtl), 0);
    for number in 0..SCHEDULES_MAX as i64 {
        let next = NOW.moved(if number % 10 == 0 { -number } else { number + 1 });
        set(&mut machine, schedule(&number.to_string(), next)).unwrap();
    }
    let refused = Err(Error::TooManySchedules(SCHEDULES_MAX));
    assert_eq!(set(&mut machine, schedule("one more", NOW)), refused);
    assert_eq!(set(&mut machine, schedule("7", NOW)), Ok(ScheduleReply::Set(false)));
    let due = |skip| ScheduleCommand::Due { skip, limit: 5 };
    for (skip, expected) in [
        (0, ["99990", "99980", "99970", "99960", "99950"].as_slice()),
        (9_998, &["10", "0", "7"]),
        (10_001, &[]),
    ] {
        let Ok(ScheduleReply::Due { now, schedules, next }) = ask(&mut machine, due(skip)) else {
            panic!("a list")
        };
        let names: Vec<_> = schedules.iter().map(|schedule| schedule.name.as_str()).collect();
        assert_eq!((names.as_slice(), now, next), (expected, NOW, Some(NOW.moved(2))));
    }
    let list = ScheduleCommand::List { after: Some(name("9999")), limit: 2 };
    let Ok(ScheduleReply::Schedules(page)) = ask(&mut machine, list) else { panic!("a list") };
    assert_eq!(page[0].name.as_str(), "99990");
    assert!(ask(&mut machine, ScheduleCommand::Due { skip: 0, limit: 0 }).is_err());
}
