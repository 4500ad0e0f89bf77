//! Copies of retry policies, rate limits, schedules and the numbers of attempts of tasks: complete, or refused.

use taskyard_conformance::block_on;
use taskyard_core::transfer::ImportEnd;
use taskyard_core::{
    Body, CatchUp, Command, Error, Finish, FinishItem, Holder, Kind, NewTask, Overlap, RateLimit,
    Reason, Reply, RetryPolicy, ScheduleCommand, ScheduleName, Span, StoredSchedule, Take, Task,
    TaskId, Timestamp, TubeName, TubeOptions,
};
use taskyard_store::copy::{Copied, CopyError, copy, plan};
use taskyard_store::{
    BodyKey, Capabilities, Executed, Export, Exported, Import, MemoryStore, Pending, Store,
};

const NOW: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);
const RATE: RateLimit = RateLimit { count: 2, per: Span::from_secs(1), burst: 5 };

/// Takes features away.
type Removal = fn(&mut Capabilities);

/// A memory store without some features. It refuses nothing by itself, so what a copy brings would be visible.
struct LimitedStore {
    store: MemoryStore,
    missing: Removal,
}

impl Store for LimitedStore {
    fn execute(&self, now: Timestamp, commands: Vec<Command>) -> Pending<'_, Executed> {
        self.store.execute(now, commands)
    }

    fn load(&self, keys: Vec<BodyKey>) -> Pending<'_, Vec<Result<Option<Body>, Error>>> {
        self.store.load(keys)
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities { name: "limited", ..self.store.capabilities() };
        (self.missing)(&mut capabilities);
        capabilities
    }

    fn export(&self, wanted: Export) -> Pending<'_, Result<Exported, Error>> {
        self.store.export(wanted)
    }

    fn import(&self, now: Timestamp, part: Import) -> Pending<'_, Result<(), Error>> {
        self.store.import(now, part)
    }

    fn close(&self) -> Pending<'_, Result<(), Error>> {
        self.store.close()
    }
}

fn name(text: &str) -> TubeName {
    TubeName::new(text).expect("a good name")
}

fn task(text: &str) -> NewTask {
    NewTask::new(Body::new(text.as_bytes()))
}

fn ask_at(store: &dyn Store, now: Timestamp, command: Command) -> Reply {
    block_on(store.execute(now, vec![command])).replies.remove(0).expect("it is done")
}

fn ask(store: &dyn Store, command: Command) -> Reply {
    ask_at(store, NOW, command)
}

fn create(store: &dyn Store, tube: &str, options: TubeOptions) {
    ask(store, Command::CreateTube { tube: name(tube), options, if_not_exists: false });
}

fn put(store: &dyn Store, tube: &str, tasks: Vec<NewTask>) {
    ask(store, Command::Put { tube: name(tube), tasks, wait: Span::ZERO });
}

fn take(store: &dyn Store, now: Timestamp, tube: &str, count: usize) -> Vec<Task> {
    let (session, lease, worker, wait) = (None, Some(Span::from_secs(60)), None, Span::ZERO);
    let take = Take { tube: name(tube), count, session, lease, worker, wait };
    match ask_at(store, now, Command::Take(take)) {
        Reply::Taken(tasks) => tasks,
        other => panic!("{other:?}"),
    }
}

fn finish(store: &dyn Store, now: Timestamp, tube: &str, id: TaskId, finish: Finish) {
    let items = vec![FinishItem { id, holder: Holder::Any, finish }];
    ask_at(store, now, Command::Finish { tube: name(tube), items, show: false });
}

fn peek(store: &dyn Store, now: Timestamp, tube: &str, id: u64) -> Task {
    match ask_at(store, now, Command::Peek { tube: name(tube), ids: vec![TaskId(id)] }) {
        Reply::Tasks(mut tasks) => tasks.remove(0),
        other => panic!("{other:?}"),
    }
}

fn schedule(text: &str, tube: &str) -> StoredSchedule {
    StoredSchedule {
        name: ScheduleName::new(text).expect("a good name"),
        tube: name(tube),
        template: NewTask { attempts_max: Some(4), ..task("x") },
        timing: "every 1 min".into(),
        catch_up: CatchUp::All,
        overlap: Overlap::Skip,
        until: Some(NOW + Span::from_secs(900)),
        paused: false,
        next: Some(NOW),
        last: None,
        fired: 0,
        skipped: 0,
    }
}

fn set(store: &dyn Store, schedule: StoredSchedule) {
    let set = ScheduleCommand::Set { schedule, only_new: true, keep_paused: false };
    ask(store, Command::Schedule(Box::new(set)));
}

fn fire(schedule: &StoredSchedule) -> Command {
    Command::Schedule(Box::new(ScheduleCommand::Fire {
        name: schedule.name.clone(),
        expected: NOW,
        next: Some(NOW + Span::from_secs(60)),
        puts: vec![task("fired")],
        skipped: 3,
    }))
}

/// A tube with a retry policy and one with a rate limit whose bucket is partly used; tasks with their own numbers of
/// attempts in every state; schedules, one of which has no tube any more.
fn source() -> MemoryStore {
    let store = MemoryStore::default();
    let retry = RetryPolicy { retry_lost: true, jitter_permille: 0, ..RetryPolicy::DEFAULT };
    let fresh = TubeOptions::new(Kind::FifoTtl);
    let keep_done = Some(Span::from_secs(3_600));
    let retrying = TubeOptions { retry: Some(Box::new(retry)), keep_done, ..fresh.clone() };
    create(&store, "retrying", retrying);
    let own = |most| NewTask { attempts_max: Some(most), ..task("own") };
    put(&store, "retrying", vec![own(1), own(2), own(3), task("plain"), own(5)]);
    for (taken, end) in take(&store, NOW, "retrying", 3).iter().zip([
        Finish::fail("dead letter", Some(Span::ZERO)),
        Finish::fail_by_policy("later", 7),
        Finish::Ack,
    ]) {
        finish(&store, NOW, "retrying", taken.id, end);
    }
    create(&store, "rated", TubeOptions { rate: Some(Box::new(RATE)), ..fresh.clone() });
    put(&store, "rated", vec![task("x"); 9]);
    assert_eq!(take(&store, NOW, "rated", 4).len(), 4);
    create(&store, "dropped", fresh);
    set(&store, StoredSchedule { paused: true, ..schedule("paused", "dropped") });
    ask(&store, Command::DropTube { tube: name("dropped") });
    let daily = schedule("daily", "retrying");
    set(&store, daily.clone());
    ask(&store, fire(&daily));
    store
}

fn copy_tubes(from: &dyn Store, to: &dyn Store, only: &[TubeName]) -> Result<Copied, CopyError> {
    block_on(async { copy(from, to, NOW, &plan(from, to, only).await?, |_| {}).await })
}

fn copy_all(from: &dyn Store, to: &dyn Store) -> Result<Copied, CopyError> {
    copy_tubes(from, to, &[])
}

fn schedules(store: &dyn Store) -> Vec<StoredSchedule> {
    match block_on(store.export(Export::Schedules)) {
        Ok(Exported::Schedules(schedules)) => schedules,
        other => panic!("{other:?}"),
    }
}

/// The records of all tubes and tasks.
fn content(store: &dyn Store) -> String {
    let Ok(Exported::Tubes(tubes, _)) = block_on(store.export(Export::Tubes)) else {
        panic!("tubes are exported")
    };
    let mut text = String::new();
    for tube in tubes {
        let all = (TaskId(0), usize::MAX);
        let tasks =
            Export::Tasks { tube: tube.number, from: all.0, count: all.1, bytes: usize::MAX };
        let tasks = block_on(store.export(tasks)).expect("tasks are exported");
        text += &format!("{:?}\n{tasks:?}\n", tube.record);
    }
    text
}

#[test]
fn everything_is_copied() {
    let (from, to) = (source(), MemoryStore::default());
    copy_all(&from, &to).expect("it is copied");
    assert_eq!(content(&to), content(&from));
    let found = schedules(&to);
    assert_eq!(found, schedules(&from));
    assert_eq!((found[0].fired, found[0].skipped, found[0].last), (1, 3, Some(NOW)));
    assert!(found[1].paused && found.len() == 2);
    let own = |store: &dyn Store, id| peek(store, NOW, "retrying", id).attempts_max;
    assert_eq!([0, 1, 2, 3, 4].map(|id| own(&to, id)), [Some(1), Some(2), Some(3), None, Some(5)]);
    assert!(copy_all(&from, &to).expect("nothing is to be done").already);
}

/// The tubes and schedules of the copy continue as those of the source would.
#[test]
fn a_copy_continues_where_its_source_was() {
    let (from, to) = (source(), MemoryStore::default());
    copy_all(&from, &to).expect("it is copied");
    for store in [&to as &dyn Store, &from] {
        assert_eq!(take(store, NOW, "rated", 9).len(), 1, "the fifth token");
        let next = NOW + Span::from_micros(500_000);
        assert_eq!(peek(store, NOW, "rated", 8).reason, Reason::RateLimited(next));
        let later = NOW + Span::from_secs(5);
        ask_at(store, later, Command::Tick { limit: 99, seed: 0 });
        let failed = peek(store, later, "retrying", 1);
        assert_eq!((failed.attempts, failed.reason), (1, Reason::WaitsForConsumer));
        assert_eq!(take(store, later, "retrying", 1)[0].id, failed.id);
        finish(store, later, "retrying", failed.id, Finish::fail_by_policy("again", 7));
        let dead = peek(store, later, "retrying", 1);
        assert_eq!(dead.reason, Reason::AttemptsUsedUp);
        // The time that fired before the copy does not fire again.
        let again = ask_at(store, later, fire(&schedule("daily", "retrying")));
        assert!(format!("{again:?}").contains("Fired(None)"), "{again:?}");
    }
}

#[test]
fn a_store_without_a_feature_is_refused() {
    let cases: [(Removal, &[&str]); 3] = [
        (
            |can| can.retries = false,
            &[
                "tube 'retrying' has a retry policy",
                "task 0 of tube 'retrying' has its own attempts_max",
            ],
        ),
        (|can| can.rates = false, &["tube 'rated' has a rate limit, which limited does not have"]),
        (
            |can| can.schedules = false,
            &["limited has no schedules, but the source has 'daily'", "'paused'"],
        ),
    ];
    let from = source();
    for (missing, expected) in cases {
        let to = LimitedStore { store: MemoryStore::default(), missing };
        match copy_all(&from, &to) {
            Err(CopyError::Refused(why)) => {
                let text = why.join("; ");
                assert!(expected.iter().all(|part| text.contains(part)), "{text}");
                assert_eq!(why.len(), expected.len(), "{text}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!((content(&to), schedules(&to.store)), (String::new(), Vec::new()));
    }
}

// The number of a task was lost: only the options of tubes were compared with the target.
#[test]
fn the_attempts_of_a_single_task_are_not_lost() {
    let from = MemoryStore::default();
    create(&from, "plain", TubeOptions::new(Kind::Fifo));
    // More than a page, so that the last page is examined too.
    put(&from, "plain", vec![task("x"); 6_000]);
    let missing = |can: &mut Capabilities| can.retries = false;
    let to = || LimitedStore { store: MemoryStore::default(), missing };
    copy_all(&from, &to()).expect("it needs no such feature");
    put(&from, "plain", vec![NewTask { attempts_max: Some(2), ..task("x") }]);
    let refused = copy_all(&from, &to());
    assert!(matches!(&refused, Err(CopyError::Refused(why)) if why.len() == 1), "{refused:?}");
    copy_all(&from, &MemoryStore::default()).expect("a store with the feature holds it");
}

/// Every part of an import that a store would store incompletely is refused by its capabilities.
#[test]
fn an_import_that_would_lose_something_is_refused() {
    let (from, none) = (source(), Capabilities::plain("limited"));
    let Ok(Exported::Tubes(tubes, next_lease)) = block_on(from.export(Export::Tubes)) else {
        panic!("tubes are exported")
    };
    let page = |tube| Export::Tasks { tube, from: TaskId(0), count: 99, bytes: usize::MAX };
    let missing = |feature| Err(Error::MissingFeature { store: "limited", feature });
    for copy in &tubes {
        let Ok(Exported::Tasks(tasks)) = block_on(from.export(page(copy.number))) else {
            panic!("tasks are exported")
        };
        let is_rated = copy.record.name == name("rated");
        let expected = if is_rated { Ok(()) } else { missing("attempts_max of a task") };
        let part = Import::Tasks(copy.record.name.clone(), tasks);
        assert_eq!(none.check_import(&part), expected);
        let end = ImportEnd {
            tubes: vec![(name("staging"), copy.clone())],
            semaphores: Vec::new(),
            schedules: Vec::new(),
            next_lease,
        };
        let feature = if is_rated { "rate limits" } else { "retry policies" };
        assert_eq!(none.check_import(&Import::End(end.clone())), missing(feature));
        let schedules = schedules(&from);
        let end = ImportEnd { tubes: Vec::new(), schedules, ..end };
        assert_eq!(none.check_import(&Import::End(end)), missing("schedules"));
    }
}

#[test]
fn another_schedule_of_the_same_name_is_refused() {
    let (from, to) = (source(), MemoryStore::default());
    create(&to, "other", TubeOptions::new(Kind::Fifo));
    set(&to, schedule("daily", "other"));
    let before = schedules(&to);
    match copy_all(&from, &to) {
        Err(CopyError::Refused(why)) => {
            assert_eq!(why, ["the target has another schedule 'daily'"]);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(schedules(&to), before);
}

#[test]
fn schedules_are_copied_with_their_tubes() {
    let (from, to) = (source(), MemoryStore::default());
    copy_tubes(&from, &to, &[name("rated")]).expect("it is copied");
    assert_eq!(schedules(&to), []);
    copy_tubes(&from, &to, &[name("retrying")]).expect("it is copied");
    assert_eq!(schedules(&to), schedules(&from)[..1]);
    copy_all(&from, &to).expect("the others are copied");
    assert_eq!(schedules(&to), schedules(&from));
}
