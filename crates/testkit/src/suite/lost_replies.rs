//! The database executes a request and its reply is lost: the outcome is unknown, nothing is done twice, and the store goes on.

use taskyard_core::{
    Command, Error, Finish, FinishItem, Holder, Kind, Outcome, Reply, SessionId, Span, Take, Task,
    TubeName, TubeOptions,
};
use taskyard_store::Store;
use taskyard_store::remote::{Clock, RemoteStore};

use crate::calls::{NOW, ask, make_tube, put};
use crate::{LossyPath, Request, SharedDatabase};

const SESSION: SessionId = SessionId([7; 16]);

fn open<D: SharedDatabase>(path: &LossyPath<D::Part>) -> RemoteStore<D::Backend> {
    RemoteStore::open(&path.url, Clock::Caller).expect("the store opens")
}

fn take(store: &impl Store, tube: &TubeName) -> Result<Vec<Task>, Error> {
    let session = Some(SESSION);
    let take =
        Take { tube: tube.clone(), count: 1, session, lease: None, worker: None, wait: Span::ZERO };
    match ask(store, Command::Take(take))? {
        Reply::Taken(tasks) => Ok(tasks),
        other => panic!("a take answers with tasks, not {other:?}"),
    }
}

/// Panics unless the outcome is unknown.
pub fn is_unknown<T: std::fmt::Debug>(reply: Result<T, Error>) {
    assert!(matches!(reply, Err(Error::OutcomeUnknown(_))), "{reply:?}");
}

fn join() -> Command {
    Command::JoinSession { session: SESSION, create: true }
}

/// How many tasks of a tube are ready and taken.
pub fn ready_and_taken(store: &impl Store, tube: &TubeName) -> (u64, u64) {
    match ask(store, Command::Tubes { tube: Some(tube.clone()) }) {
        Ok(Reply::Tubes(tubes)) => (tubes[0].stats.tasks.ready, tubes[0].stats.tasks.taken),
        other => panic!("a tube was expected, not {other:?}"),
    }
}

// A take whose reply was lost left its task with a session that lived on and did not know of it: no other session got it before that
// session ended.
pub fn a_task_of_a_lost_delivery_is_released<D: SharedDatabase>() {
    D::run(async {
        let path = D::lossy_path();
        let store = open::<D>(&path);
        let tube = make_tube(&store, TubeOptions::new(Kind::Utube));
        ask(&store, put(&tube, 2)).expect("they are put");
        ask(&store, join()).expect("it joins");
        let held = take(&store, &tube).expect("there is one").remove(0);
        let holder = Holder::Session(SESSION);
        let items = vec![FinishItem { id: held.id, holder, finish: Finish::Ack }];
        let ack = Command::Finish { tube: tube.clone(), items, show: false };
        assert_eq!(ask(&store, ack), Ok(Reply::Finished(vec![Outcome::Done(None)])));
        path.proxy.withhold_reply(D::word_of(Request::Take));
        is_unknown(take(&store, &tube));
        let again = take(&store, &tube).expect("the database is there");
        let seen: Vec<_> = again.iter().map(|task| (task.id.0, task.attempts)).collect();
        assert_eq!(seen, [(1, 0)]);
        D::audit(&path.part);
    });
}

// What a session held before stays with it.
pub fn a_lost_reply_releases_nothing_that_was_held_before<D: SharedDatabase>() {
    D::run(async {
        let path = D::lossy_path();
        let store = open::<D>(&path);
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        ask(&store, put(&tube, 2)).expect("they are put");
        ask(&store, join()).expect("it joins");
        let held = take(&store, &tube).expect("there is one").remove(0);
        path.proxy.withhold_reply(D::word_of(Request::Take));
        is_unknown(take(&store, &tube));
        assert_eq!(ready_and_taken(&store, &tube), (1, 1));
        let holder = Holder::Lease(held.lease.expect("a lease"));
        let items = vec![FinishItem { id: held.id, holder, finish: Finish::Ack }];
        let ack = Command::Finish { tube, items, show: false };
        assert_eq!(ask(&store, ack), Ok(Reply::Finished(vec![Outcome::Done(None)])));
    });
}

// Connections were counted by adding and subtracting: a join that was repeated counted twice and its session never ended, a
// repeated leave ended a session that another connection was still in.
pub fn repeated_joins_and_leaves_count_once<D: SharedDatabase>() {
    D::run(async {
        let path = D::lossy_path();
        let store = open::<D>(&path);
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        ask(&store, put(&tube, 1)).expect("it is put");
        let leave = Command::LeaveSession { session: SESSION };
        ask(&store, join()).expect("it joins");
        path.proxy.withhold_reply(D::word_of(Request::Join));
        is_unknown(ask(&store, join()));
        ask(&store, join()).expect("it joins");
        take(&store, &tube).expect("there is one");
        path.proxy.withhold_reply(D::word_of(Request::Leave));
        is_unknown(ask(&store, leave.clone()));
        ask(&store, leave.clone()).expect("it leaves");
        assert_eq!(ready_and_taken(&store, &tube), (0, 1), "one connection is left");
        ask(&store, leave).expect("it leaves");
        assert_eq!(ready_and_taken(&store, &tube), (1, 0));
    });
}

// More sessions than values fit on the stack of a function in Redis: a server with five thousand connections could not register
// them again after a lost reply, and was of no use from then on.
pub fn thousands_of_sessions_survive_a_lost_reply<D: SharedDatabase>() {
    D::run(async {
        const MANY: u16 = 5_000;
        let path = D::lossy_path();
        let store = open::<D>(&path);
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        ask(&store, put(&tube, 1)).expect("it is put");
        let session = |number: u16| {
            let mut id = [0; 16];
            id[..2].copy_from_slice(&number.to_be_bytes());
            SessionId(id)
        };
        let join = |number| Command::JoinSession { session: session(number), create: true };
        let joined = store.execute(NOW, (0..MANY).map(join).collect()).await;
        assert!(joined.replies.iter().all(Result::is_ok));
        path.proxy.withhold_reply(D::word_of(Request::Put));
        is_unknown(ask(&store, put(&tube, 1)));
        assert_eq!(ready_and_taken(&store, &tube), (2, 0));
        let known = Command::JoinSession { session: session(MANY - 1), create: false };
        assert_eq!(ask(&store, known), Ok(Reply::Session(session(MANY - 1))));
    });
}

pub fn reads_are_repeated<D: SharedDatabase>() {
    D::run(async {
        let path = D::lossy_path();
        let store = open::<D>(&path);
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        path.proxy.withhold_reply(D::word_of(Request::ShowTube));
        assert_eq!(ready_and_taken(&store, &tube), (0, 0));
        path.proxy.withhold_reply(D::word_of(Request::ListTubes));
        let shown = ask(&store, Command::Tubes { tube: None });
        assert!(matches!(&shown, Ok(Reply::Tubes(tubes)) if tubes.len() == 1), "{shown:?}");
    });
}

pub fn the_outcome_of_a_put_is_unknown<D: SharedDatabase>() {
    D::run(async {
        let path = D::lossy_path();
        let store = open::<D>(&path);
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        path.proxy.withhold_reply(D::word_of(Request::Put));
        is_unknown(ask(&store, put(&tube, 1)));
        assert_eq!(ready_and_taken(&store, &tube), (1, 0));
    });
}

// Of the stores only Redis reported them: the others ended such sessions without counting what they held.
pub fn failures_of_sessions_that_ended_unnoticed_are_reported<D: SharedDatabase>() {
    D::run(async {
        let path = D::lossy_path();
        let store = open::<D>(&path);
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        ask(&store, put(&tube, 3)).expect("they are put");
        ask(&store, Command::ConfigureSessions { ttr: Span::from_secs(5) }).expect("it is set");
        ask(&store, join()).expect("it joins");
        for _ in 0..2 {
            take(&store, &tube).expect("there is one");
        }
        path.proxy.withhold_reply(D::word_of(Request::Leave));
        is_unknown(ask(&store, Command::LeaveSession { session: SESSION }));
        // The database has ended its connection, and its time is over.
        let later = NOW + Span::from_secs(6);
        let tubes = || vec![Command::Tubes { tube: Some(tube.clone()) }];
        let mut executed = store.execute(later, tubes()).await;
        assert_eq!(executed.effects.failed, [(tube.clone(), 2)]);
        let Ok(Reply::Tubes(shown)) = executed.replies.remove(0) else { panic!("it is shown") };
        let stats = &shown[0].stats;
        assert_eq!((stats.tasks.ready, stats.tasks.taken, stats.calls.release), (3, 0, 2));
        assert_eq!(store.execute(later, tubes()).await.effects.failed, [], "only once");
    });
}

crate::suite::suite! {
    /// Runs the cases about lost replies on a [`SharedDatabase`].
    lost_reply_suite, lost_replies, $:
    a_task_of_a_lost_delivery_is_released
    a_lost_reply_releases_nothing_that_was_held_before
    repeated_joins_and_leaves_count_once
    thousands_of_sessions_survive_a_lost_reply
    reads_are_repeated
    the_outcome_of_a_put_is_unknown
    failures_of_sessions_that_ended_unnoticed_are_reported
}
