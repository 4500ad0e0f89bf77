//! Redis executes a request and its reply is lost.

use taskyard_core::{
    Command, Error, Kind, Reply, SessionId, Span, Take, Task, TubeName, TubeOptions,
};
use taskyard_store::Store;
use taskyard_store_redis::RedisStore;

use taskyard_testkit::SharedDatabase;
use taskyard_testkit::calls::{NOW, ask, make_tube, put};
use taskyard_testkit::faulty_proxy::Loss;
use taskyard_testkit::redis::{RedisInstance, SharedRedis, lossy_path_to, open, program, run};
use taskyard_testkit::suite::lost_replies::{is_unknown, ready_and_taken};

taskyard_testkit::lost_reply_suite!(taskyard_testkit::redis::SharedRedis);

const SESSION: SessionId = SessionId([7; 16]);

fn take(store: &RedisStore, tube: &TubeName) -> Result<Vec<Task>, Error> {
    let session = Some(SESSION);
    let take =
        Take { tube: tube.clone(), count: 1, session, lease: None, worker: None, wait: Span::ZERO };
    match ask(store, Command::Take(take))? {
        Reply::Taken(tasks) => Ok(tasks),
        other => panic!("a take answers with tasks, not {other:?}"),
    }
}

fn join() -> Command {
    Command::JoinSession { session: SESSION, create: true }
}

// A client disconnected while its tubes could not be reached. A repeated leave was answered that the session is unknown, and a
// single server kept its task taken until a restart.
#[test]
fn a_session_that_could_not_be_ended_at_once_is_ended_by_a_tick() {
    run(async {
        let path = SharedRedis::lossy_path();
        let store = open(&path.url);
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        ask(&store, Command::Tick { limit: 9, seed: 0 })
            .expect("all is looked at in the beginning");
        ask(&store, put(&tube, 1)).expect("it is put");
        ask(&store, join()).expect("it joins");
        take(&store, &tube).expect("there is one");
        // The command that gives back the tasks of a session, with all its repetitions.
        path.proxy.lose(Loss { word: b"$17\r\nS", times: 4, executed: false });
        let leave = Command::LeaveSession { session: SESSION };
        is_unknown(ask(&store, leave.clone()));
        assert_eq!(ask(&store, leave), Err(Error::SessionUnknown(SESSION)));
        assert_eq!(ready_and_taken(&store, &tube), (0, 1));
        assert_eq!(ask(&store, Command::Tick { limit: 9, seed: 0 }), Ok(Reply::Ticked(2)));
        assert_eq!(ready_and_taken(&store, &tube), (1, 0));
    });
}

/// Commands before and after the lost one: earlier ones were answered, later ones not sent.
#[test]
fn a_loss_during_a_batch_affects_the_command_in_flight() {
    run(async {
        let path = SharedRedis::lossy_path();
        let store = open(&path.url);
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        path.proxy.withhold_reply(b"\r\njoin\r\n");
        let commands = vec![put(&tube, 1), join(), put(&tube, 1)];
        let executed = store.execute(NOW, commands).await;
        let [first, lost, last] = &executed.replies[..] else { panic!("three answers") };
        assert!(first.is_ok(), "{first:?}");
        assert!(matches!(lost, Err(Error::OutcomeUnknown(_))), "{lost:?}");
        assert!(matches!(last, Err(Error::StoreUnavailable(_))), "{last:?}");
        assert_eq!(ready_and_taken(&store, &tube), (1, 0));
    });
}

// A Redis that has not noticed that a connection broke may still read its calls much later.
#[test]
fn a_lost_connection_is_closed_in_redis_before_the_next_call() {
    let Some(program) = program() else { return };
    let alone = RedisInstance::new(program);
    let path = lossy_path_to(&alone);
    let store = open(&path.url);
    let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
    let served = || alone.talk(&["CLIENT", "LIST"]).matches("name=taskyard-").count();
    // One for batches, one for heartbeats and one for notices.
    while served() != 3 {}
    path.proxy.linger();
    path.proxy.withhold_reply(b"_grow");
    is_unknown(ask(&store, put(&tube, 1)));
    ask(&store, put(&tube, 1)).expect("it is put when all is in order");
    while served() != 3 {}
}

// For the correction Redis is asked which connection was lost. When that answer was lost as well, the closed connection was kept, and the
// server could not continue.
#[test]
fn a_connection_that_breaks_during_a_resync_is_not_reused() {
    run(async {
        let path = SharedRedis::lossy_path();
        let store = open(&path.url);
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        path.proxy.withhold_reply(b"_grow");
        is_unknown(ask(&store, put(&tube, 1)));
        path.proxy.withhold_reply(b"\r\nCLIENT\r\n");
        let refused = ask(&store, put(&tube, 1));
        assert!(matches!(refused, Err(Error::StoreUnavailable(_))), "{refused:?}");
        ask(&store, put(&tube, 1)).expect("it is put by another connection");
        assert_eq!(ready_and_taken(&store, &tube), (2, 0));
    });
}
