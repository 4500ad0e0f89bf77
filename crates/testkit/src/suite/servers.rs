//! Several servers share one database: sessions, notices, deadlines and counters reach all of them.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use taskyard_conformance::model::{amount, seeds};
use taskyard_core::failure::SERVER_LOST;
use taskyard_core::{
    Command, Finish, FinishItem, Holder, Kind, Outcome, Reply, SessionId, Span, Take, Task,
    Timestamp, TubeName, TubeOptions,
};
use taskyard_store::remote::{Clock, RemoteStore};
use taskyard_store::{OpenError, RemoteChange, Store};

use crate::SharedDatabase;
use crate::calls::{NOW, ack, ask, make_tube, put, take};
use crate::same_keys::SameKeys;

const SESSION: SessionId = SessionId([7; 16]);
/// A time after that of every clock, in microseconds since 1970; doubles can hold it.
const FAR: Timestamp = Timestamp::from_micros(1 << 52);

/// Joins a session.
pub fn join(store: &impl Store, create: bool) {
    let join = Command::JoinSession { session: SESSION, create };
    assert_eq!(ask(store, join), Ok(Reply::Session(SESSION)));
}

/// Takes one task for that session.
pub fn take_as(store: &impl Store, tube: &TubeName) -> Task {
    let session = Some(SESSION);
    let take =
        Take { tube: tube.clone(), count: 1, session, lease: None, worker: None, wait: Span::ZERO };
    match ask(store, Command::Take(take)) {
        Ok(Reply::Taken(mut tasks)) if tasks.len() == 1 => tasks.remove(0),
        other => panic!("expected one task, got {other:?}"),
    }
}

pub fn a_session_is_known_to_every_server<D: SharedDatabase>() {
    D::run(async {
        let part = D::part();
        let (here, there) = (D::open(&part), D::open(&part));
        let tube = make_tube(&here, TubeOptions::new(Kind::Fifo));
        ask(&here, put(&tube, 2)).expect("they are put");
        join(&here, true);
        let task = take_as(&here, &tube);
        join(&there, false);
        let leave = Command::LeaveSession { session: SESSION };
        assert_eq!(ask(&here, leave.clone()), Ok(Reply::Nothing));
        let holder = Holder::Session(SESSION);
        let items = vec![FinishItem { id: task.id, holder, finish: Finish::Ack }];
        let finish = Command::Finish { tube: tube.clone(), items, show: false };
        // At the server where it is connected, and at the one where it was.
        assert_eq!(ask(&there, finish.clone()), Ok(Reply::Finished(vec![Outcome::Done(None)])));
        assert_eq!(ask(&here, finish), Ok(Reply::Finished(vec![Outcome::Missing])));
        take_as(&here, &tube);
        assert_eq!(ask(&there, leave), Ok(Reply::Nothing));
        assert_eq!(take(&here, &tube, 1).len(), 1, "what it took at either server is released");
    });
}

pub fn the_last_server_that_closes_releases_everything<D: SharedDatabase>() {
    D::run(async {
        let part = D::part();
        let (here, there) = (D::open(&part), D::open(&part));
        let tube = make_tube(&here, TubeOptions::new(Kind::Fifo));
        ask(&here, put(&tube, 1)).expect("it is put");
        let task = take(&here, &tube, 1).remove(0);
        here.close().await.expect("it closes");
        assert_eq!(take(&there, &tube, 1), [], "its holder can still finish it at another server");
        there.close().await.expect("it closes");
        let again = D::open(&part);
        assert_eq!(ack(&again, &tube, &task), Outcome::Stale);
        assert_eq!(take(&again, &tube, 1).len(), 1);
    });
}

/// Heartbeats use real time, so this case waits until the dead server has missed its own.
pub fn tasks_of_a_dead_server_are_given_back<D: SharedDatabase>() {
    D::run(async {
        let part = D::part();
        let (store, dead) = (D::open(&part), D::open(&part));
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        ask(&store, put(&tube, 1)).expect("it is put");
        join(&dead, true);
        let task = take_as(&dead, &tube);
        // Like a killed server: it sends no heartbeats.
        drop(dead);
        let (sender, noticed) = mpsc::channel();
        store.watch(Arc::new(move |change| drop(sender.send(change))));
        assert_eq!(D::server_count(&part), 2);
        // The other server reports a change when it has declared this one dead.
        while D::server_count(&part) != 1 {
            let _ = noticed.recv_timeout(Duration::from_millis(100));
        }
        // Its session ends by the clock of the database, which is far beyond that of the caller.
        let ticked = store.execute(FAR, vec![Command::Tick { limit: 10, seed: 0 }]).await.replies;
        // How many steps that takes is for the store to decide.
        assert!(matches!(ticked[..], [Ok(Reply::Ticked(1..))]), "{ticked:?}");
        assert_eq!(ack(&store, &tube, &task), Outcome::Stale, "the lease is worth nothing now");
        let again = take(&store, &tube, 1);
        assert_eq!(again.iter().map(|task| task.attempts).collect::<Vec<_>>(), [1]);
        let peek = Command::Peek { tube: tube.clone(), ids: vec![task.id] };
        let Ok(Reply::Tasks(tasks)) = ask(&store, peek) else { panic!("a peek shows tasks") };
        let failures = tasks[0].failures.iter().flat_map(|failures| failures.iter());
        let errors: Vec<_> = failures.map(|failure| failure.error.to_string()).collect();
        assert_eq!(errors, [SERVER_LOST]);
    });
}

pub fn a_newer_format_is_refused<D: SharedDatabase>() {
    D::run(async {
        let part = D::part();
        drop(D::open(&part));
        D::write_format(&part, 99);
        let refusal = RemoteStore::<D::Backend>::open(&D::url(&part), Clock::Database).err();
        let refusal = refusal.expect("it is refused");
        let text = refusal.to_string();
        assert!(text.contains("99") && text.contains("newer taskyard"), "{text}");
        assert!(matches!(refusal, OpenError::TooNew { .. } | OpenError::Unavailable { .. }));
    });
}

pub fn a_put_of_another_server_is_noticed<D: SharedDatabase>() {
    D::run(async {
        let part = D::part();
        let (store, other) = (D::open(&part), D::open(&part));
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        let (sender, noticed) = mpsc::channel();
        store.watch(Arc::new(move |change| drop(sender.send(change))));
        // It may not listen yet when the first ones come, and the other server may not know of it.
        let noticed = (0..600).find_map(|_| {
            ask(&other, put(&tube, 1)).expect("it is put");
            let change = noticed.recv_timeout(Duration::from_millis(100)).ok();
            change.filter(|change| *change != RemoteChange::Anything)
        });
        assert_eq!(noticed, Some(RemoteChange::Tube(tube)));
    });
}

pub fn counters_are_those_of_all_servers<D: SharedDatabase>() {
    D::run(async {
        let part = D::part();
        let (here, there) = (D::open(&part), D::open(&part));
        let tube = make_tube(&here, TubeOptions::new(Kind::Fifo));
        ask(&here, put(&tube, 3)).expect("they are put");
        let task = take(&there, &tube, 1).remove(0);
        assert_eq!(ack(&there, &tube, &task), Outcome::Done(None));
        // A store may add what it counted once a second, with the next call.
        let later = NOW + Span::from_secs(1);
        let tubes = || vec![Command::Tubes { tube: None }];
        there.execute(later, tubes()).await;
        here.execute(later, tubes()).await;
        for store in [&here, &there] {
            let shown = store.execute(later, tubes()).await.replies.remove(0);
            let Ok(Reply::Tubes(tubes)) = shown else { panic!("{shown:?}") };
            let calls = tubes[0].stats.calls;
            assert_eq!((calls.put, calls.take, calls.ack), (3, 1, 1));
        }
    });
}

/// Each server reports the deliveries whose failure it noticed itself: only those are no replies of a command.
pub fn failures_are_reported_by_the_server_that_noticed_them<D: SharedDatabase>() {
    D::run(async {
        let part = D::part();
        let (here, there) = (D::open(&part), D::open(&part));
        let tube = make_tube(&here, TubeOptions::new(Kind::FifoTtl));
        ask(&here, put(&tube, 6)).expect("they are put");
        let lease = Some(Span::from_secs(5));
        let (session, worker, wait) = (None, None, Span::ZERO);
        let take = Take { tube: tube.clone(), count: 2, session, lease, worker, wait };
        ask(&here, Command::Take(take)).expect("it takes");
        join(&here, true);
        for _ in 0..3 {
            take_as(&here, &tube);
        }
        let failed = async |store: &RemoteStore<D::Backend>, command| {
            let executed = store.execute(NOW + Span::from_secs(6), vec![command]).await;
            assert!(executed.replies[0].is_ok(), "{:?}", executed.replies);
            executed.effects.failed
        };
        let tick = || Command::Tick { limit: 100, seed: 0 };
        let leave = Command::LeaveSession { session: SESSION };
        assert_eq!(failed(&here, leave).await, [(tube.clone(), 3)]);
        assert_eq!(failed(&there, tick()).await, [(tube.clone(), 2)]);
        assert_eq!(failed(&here, tick()).await, []);
        assert_eq!(failed(&there, Command::ReleaseAll { tube: tube.clone() }).await, []);
    });
}

/// A deadline that another server set is met, even if that server is gone and its notice was lost.
pub fn deadlines_of_other_servers_are_met<D: SharedDatabase>() {
    D::run(async {
        let part = D::part();
        let (here, there) = (D::open(&part), D::open(&part));
        let tube = make_tube(&here, TubeOptions::new(Kind::FifoTtl));
        let (sender, noticed) = mpsc::channel();
        here.watch(Arc::new(move |change| drop(sender.send(change))));
        here.execute(NOW, vec![Command::Tick { limit: 1, seed: 0 }]).await;
        ask(&there, put(&tube, 1)).expect("it is put");
        let lease = Some(Span::from_secs(5));
        let take = Take {
            tube: tube.clone(),
            count: 1,
            session: None,
            lease,
            worker: None,
            wait: Span::ZERO,
        };
        ask(&there, Command::Take(take)).expect("it is taken");
        drop(there);
        // When servers start, come or go, every deadline is looked at.
        let later = NOW + Span::from_secs(10);
        let mut ticked = Vec::new();
        for _ in 0..600 {
            ticked = here.execute(later, vec![Command::Tick { limit: 9, seed: 0 }]).await.replies;
            if ticked == [Ok(Reply::Ticked(1))] {
                return;
            }
            let _ = noticed.recv_timeout(Duration::from_millis(20));
        }
        panic!("the lease never ended: {ticked:?}");
    });
}

/// The number of servers, and of clients that put the same keys through them.
const KEY_SERVERS: usize = 4;
const KEY_CLIENTS: u64 = 16;
/// How often each client puts all keys in a usual run.
const KEY_ROUNDS: usize = 2;

/// Clients of several servers put the same thousand keys in different orders: there are a thousand tasks.
pub fn a_storm_of_the_same_keys_adds_each_once<D: SharedDatabase>() {
    D::run(async {
        let (seed, rounds) = (seeds(1)[0], amount(KEY_ROUNDS, SameKeys::ROUNDS_OF_A_RUN));
        let part = D::part();
        let stores: Vec<_> = (0..KEY_SERVERS).map(|_| D::open(&part)).collect();
        if !stores[0].capabilities().keys {
            return;
        }
        let tube = make_tube(&stores[0], TubeOptions::new(Kind::Fifo));
        let added = std::thread::scope(|scope| {
            let clients = stores.iter().cycle().zip(0..KEY_CLIENTS).map(|(store, client)| {
                let keys = SameKeys::new(seed * KEY_CLIENTS + client, rounds);
                let tube = &tube;
                scope.spawn(move || added_by(store, tube, keys))
            });
            let clients: Vec<_> = clients.collect();
            clients.into_iter().map(|client| client.join().expect("it puts all")).sum::<usize>()
        });
        assert_eq!(added, SameKeys::KEYS, "seed {seed}, {rounds} rounds");
        assert_eq!(take(&stores[1], &tube, 2 * SameKeys::KEYS).len(), SameKeys::KEYS);
    });
}

/// Puts these batches; returns how many tasks they added.
fn added_by(store: &impl Store, tube: &TubeName, batches: SameKeys) -> usize {
    let mut added = 0;
    for tasks in batches {
        match ask(store, Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO }) {
            Ok(Reply::Put(placed)) => {
                added += placed.iter().filter(|placed| !placed.existing).count();
            }
            other => panic!("unexpected reply to a put: {other:?}"),
        }
    }
    added
}

crate::suite::suite! {
    /// Runs the cases about several servers on a [`SharedDatabase`].
    server_suite, servers, $:
    a_session_is_known_to_every_server
    the_last_server_that_closes_releases_everything
    tasks_of_a_dead_server_are_given_back
    a_newer_format_is_refused
    a_put_of_another_server_is_noticed
    counters_are_those_of_all_servers
    failures_are_reported_by_the_server_that_noticed_them
    deadlines_of_other_servers_are_met
    a_storm_of_the_same_keys_adds_each_once
}
