//! Tests that a commit that fails at any of its steps changes nothing.

use std::path::Path;

use taskyard_core::{
    Body, Command, Error, Finish, FinishItem, Holder, Kind, NewTask, Reply, SessionId, Span, Take,
    Task, Timestamp, TubeChange, TubeOptions,
};
use taskyard_store::Store;
use taskyard_store_sqlite::{Fault, SqliteStore};

use crate::fixture::{
    NOW, TaskContent, block_on, close, content, create, delete, fast_folder, finish, finish_now,
    must, name, open, peek, put, put_now, run_at, take, take_now, tubes,
};

/// All ids of these tests are lower than this.
const IDS: u64 = 200;
const SESSION: SessionId = SessionId([7; 16]);

#[test]
fn a_batch_that_fails_at_any_step_changes_nothing() {
    let mut failures = 0;
    loop {
        let folder = fast_folder();
        let (store, held) = prepare(folder.path());
        let before = everything(&store);
        store.set_fault(Some(Fault::Step { after: failures }));
        let replies = execute(&store, every_change(&held));
        if replies.iter().all(Result::is_ok) {
            break;
        }
        for reply in &replies {
            assert!(matches!(reply, Err(Error::Store(_))), "step {failures}: {reply:?}");
        }
        assert_eq!(everything(&store), before, "step {failures} left something behind");
        store.set_fault(None);
        assert_eq!(
            continue_after_failure(store, folder.path(), &held),
            content_without_failure(),
            "after step {failures}"
        );
        failures += 1;
    }
    assert!(failures >= 7, "only {failures} steps could fail");
}

/// The same when it fails again and again on the same store, and then succeeds.
#[test]
fn a_batch_that_failed_can_be_repeated() {
    let folder = fast_folder();
    let (store, held) = prepare(folder.path());
    let before = everything(&store);
    for after in 0..5 {
        store.set_fault(Some(Fault::Step { after }));
        assert!(execute(&store, every_change(&held)).iter().all(Result::is_err));
        assert_eq!(everything(&store), before);
    }
    store.set_fault(None);
    let replies = execute(&store, every_change(&held));
    assert!(replies.iter().all(Result::is_ok), "{replies:?}");
    let after = content(&store, IDS).expect("payloads can be read");
    drop(store);
    assert_eq!(durable(content(&open(folder.path()), IDS).expect("readable")), durable(after));
}

/// After a truncate no row of the tube showed which ids had been used, and its own row was not written: after
/// a crash the ids were issued again.
#[test]
fn ids_are_not_reused_after_a_truncate() {
    let folder = fast_folder();
    let store = open(folder.path());
    must(&store, create("mail", TubeOptions::new(Kind::FifoTtl)));
    put_now(&store, "mail", vec![new_task(0); 10]);
    must(&store, Command::Truncate { tube: name("mail") });
    drop(store);
    let store = open(folder.path());
    assert_eq!(put_now(&store, "mail", vec![new_task(0)]), [10]);
}

/// The first command after opening reserved lease numbers on disk even if it only read, so a store with a
/// full disk could not be read.
#[test]
fn reading_needs_no_disk() {
    let folder = fast_folder();
    let (store, _) = prepare(folder.path());
    close(store);
    let store = open(folder.path());
    store.set_fault(Some(Fault::Step { after: 0 }));
    assert_eq!(tubes(&store).len(), 5);
    assert!(matches!(must(&store, peek("mail", 0..IDS)), Reply::Tasks(tasks) if !tasks.is_empty()));
    assert!(matches!(must(&store, take("empty", 1)), Reply::Taken(tasks) if tasks.is_empty()));
}

/// A take after opening needs a reservation of leases on disk: if that fails, nothing is taken.
#[test]
fn a_take_without_leases_takes_nothing() {
    let folder = fast_folder();
    let (store, _) = prepare(folder.path());
    close(store);
    let store = open(folder.path());
    let before = everything(&store);
    store.set_fault(Some(Fault::Step { after: 0 }));
    assert!(matches!(execute(&store, vec![take("mail", 3)])[..], [Err(Error::Store(_))]));
    assert_eq!(everything(&store), before);
    store.set_fault(None);
    assert_eq!(take_now(&store, "mail", 3).len(), 3);
}

/// A time at which delays, times to live and leases that began at `NOW` have ended.
fn later() -> Timestamp {
    NOW + Span::from_secs(60)
}

fn execute(store: &SqliteStore, commands: Vec<Command>) -> Vec<Result<Reply, Error>> {
    block_on(store.execute(later(), commands)).replies
}

fn new_task(number: u8) -> NewTask {
    NewTask::new(Body::with_meta(&[number; 50], &[0x80]))
}

/// Tasks that were taken before the failure.
struct TakenTasks {
    by_lease: Vec<Task>,
    by_session: Task,
}

/// Tubes of several kinds with tasks in every state.
fn prepare(folder: &Path) -> (SqliteStore, TakenTasks) {
    let store = open(folder);
    let temporary = TubeOptions { temporary: true, ..TubeOptions::new(Kind::FifoTtl) };
    for (tube, options) in [
        ("mail", TubeOptions::new(Kind::FifoTtl)),
        ("keys", TubeOptions::new(Kind::Utube)),
        ("full", TubeOptions::new(Kind::LimFifoTtl)),
        ("empty", TubeOptions::new(Kind::FifoTtl)),
        ("temporary", temporary),
    ] {
        must(&store, create(tube, options));
        if tube != "empty" {
            put_now(&store, tube, (0..30).map(new_task).collect());
        }
    }
    let second = Some(Span::from_secs(1));
    put_now(&store, "mail", vec![NewTask { delay: second, ..new_task(40) }]);
    put_now(&store, "mail", vec![NewTask { ttl: second, ..new_task(41) }]);
    must(&store, Command::JoinSession { session: SESSION, create: true });
    let by_lease = take_now(&store, "mail", 8);
    finish_now(&store, "mail", &by_lease[7], Finish::Bury);
    let by_session = Take {
        tube: name("mail"),
        count: 1,
        session: Some(SESSION),
        lease: Some(Span::from_secs(1000)),
        worker: None,
        wait: Span::ZERO,
    };
    let Reply::Taken(mut tasks) = must(&store, Command::Take(by_session)) else {
        panic!("a take answers tasks");
    };
    (store, TakenTasks { by_lease, by_session: tasks.remove(0) })
}

/// A batch with every kind of change, all of which succeed.
fn every_change(held: &TakenTasks) -> Vec<Command> {
    let release = Finish::Release { delay: Span::from_secs(9), counted: true };
    let change = TubeChange { attempts_max: Some(Some(3)), ..TubeChange::default() };
    vec![
        Command::Tick { limit: 1000, seed: 0 },
        create("fresh", TubeOptions::new(Kind::Fifo)),
        put("fresh", vec![new_task(90), new_task(91)]),
        put("mail", vec![new_task(92), new_task(93)]),
        put("temporary", vec![new_task(94)]),
        take("mail", 2),
        take("temporary", 2),
        finish("mail", &held.by_lease[0], Finish::Ack),
        finish("mail", &held.by_lease[1], release),
        finish("mail", &held.by_lease[2], Finish::Bury),
        finish("mail", &held.by_lease[3], Finish::Touch(Span::from_secs(5))),
        Command::Kick { tube: name("mail"), count: 1 },
        delete("mail", [20, 21, 22, held.by_lease[4].id.0]),
        Command::AlterTube { tube: name("mail"), change },
        Command::DropTube { tube: name("keys") },
        // It gets the number of the dropped tube.
        create("reused", TubeOptions::new(Kind::FifoTtl)),
        put("reused", vec![new_task(95)]),
        Command::Truncate { tube: name("full") },
        put("full", vec![new_task(96)]),
        Command::ConfigureSessions { ttr: Span::from_secs(5) },
        Command::LeaveSession { session: SESSION },
        Command::ReleaseAll { tube: name("mail") },
    ]
}

/// Everything that can be read without a change.
fn everything(store: &SqliteStore) -> Vec<Result<Reply, Error>> {
    let mut commands = vec![Command::Tubes { tube: None }];
    for tube in tubes(store) {
        commands.push(peek(tube.name.as_str(), 0..IDS));
        commands.push(Command::Deliveries { tube: tube.name, count: 1000 });
    }
    run_at(store, later(), commands).expect("payloads can be read")
}

/// Deliveries from before the failure are still valid, and new commands succeed. Returns the content after
/// the store was opened again.
fn continue_after_failure(store: SqliteStore, folder: &Path, held: &TakenTasks) -> TaskContent {
    finish_now(&store, "mail", &held.by_lease[0], Finish::Ack);
    finish_now(&store, "mail", &held.by_lease[1], Finish::Bury);
    let by_session = FinishItem {
        id: held.by_session.id,
        holder: Holder::Session(SESSION),
        finish: Finish::Ack,
    };
    must(&store, Command::Finish { tube: name("mail"), items: vec![by_session], show: true });
    let ids = put_now(&store, "mail", vec![new_task(99)]);
    must(&store, delete("mail", [25]));
    drop(store);
    let mut found = content(&open(folder), IDS).expect("payloads can be read");
    // Ids that a failed batch used are not issued again, so this one differs.
    let late = found.remove(&("mail".to_owned(), ids[0])).expect("the late task is there");
    assert_eq!(late.body, Some(new_task(99).body));
    found
}

/// The expected content without a failure.
fn content_without_failure() -> TaskContent {
    let folder = fast_folder();
    let (store, held) = prepare(folder.path());
    continue_after_failure(store, folder.path(), &held)
}

/// The part of the content that survives a crash.
fn durable(mut content: TaskContent) -> TaskContent {
    content.retain(|key, _| key.0 != "temporary");
    content
}
