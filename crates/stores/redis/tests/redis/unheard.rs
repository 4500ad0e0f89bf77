//! Redis does what it is asked, and nobody hears its answer.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use taskyard_core::{
    Command, Error, Finish, FinishItem, Holder, Kind, Outcome, Reply, SessionId, Span, Take, Task,
    TubeName, TubeOptions,
};
use taskyard_store_redis::RedisStore;

use taskyard_testkit::calls::{ask, make_tube, put};
use taskyard_testkit::redis::{Instance, program};
use taskyard_testkit::redis::{instance, open, own, run};

const SESSION: SessionId = SessionId([7; 16]);

/// The next commands with this word in them break their connection.
#[derive(Clone, Copy)]
struct Armed {
    word: &'static str,
    times: usize,
    /// Whether Redis does them all the same.
    done: bool,
}

/// The way to Redis on which an answer can be kept back.
struct Way {
    url: String,
    armed: Arc<Mutex<Option<Armed>>>,
    /// Whether Redis does not hear that a connection broke.
    lingers: Arc<AtomicBool>,
}

impl Way {
    fn new() -> Self {
        Self::to(instance())
    }

    fn to(instance: &Instance) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it has an address");
        let (armed, lingers) = (Arc::new(Mutex::default()), Arc::new(AtomicBool::new(false)));
        let (arms, stays, port) = (armed.clone(), lingers.clone(), instance.port());
        thread::spawn(move || {
            for server in listener.incoming().flatten() {
                let redis = TcpStream::connect(("127.0.0.1", port)).expect("Redis is there");
                let deaf = Arc::new(AtomicBool::new(false));
                let (asks, tells) = (server.try_clone(), redis.try_clone());
                let (asks, tells) = (asks.expect("a socket"), tells.expect("a socket"));
                let (armed, hears, lingers) = (arms.clone(), deaf.clone(), stays.clone());
                thread::spawn(move || {
                    let tells = carry_questions(asks, tells, &armed, &hears);
                    if lingers.load(Ordering::SeqCst) {
                        std::mem::forget(tells);
                    } else {
                        let _ = tells.shutdown(Shutdown::Both);
                    }
                });
                thread::spawn(move || carry_answers(redis, server, &deaf));
            }
        });
        Way { url: own(&format!("redis://{address}")), armed, lingers }
    }

    /// What this does is done, and nobody hears of it.
    fn be_deaf(&self, word: &'static str) {
        self.arm(Armed { word, times: 1, done: true });
    }

    fn arm(&self, armed: Armed) {
        *self.armed.lock().expect("no thread failed") = Some(armed);
    }
}

fn carry_questions(
    mut asks: TcpStream,
    mut tells: TcpStream,
    armed: &Mutex<Option<Armed>>,
    deaf: &AtomicBool,
) -> TcpStream {
    let mut bytes = vec![0; 8192];
    while let Ok(count @ 1..) = asks.read(&mut bytes) {
        {
            let mut armed = armed.lock().expect("no thread failed");
            let has =
                |word: &str| bytes[..count].windows(word.len()).any(|part| part == word.as_bytes());
            if let Some(now) = armed.filter(|armed| has(armed.word)) {
                *armed = Some(Armed { times: now.times - 1, ..now }).filter(|left| left.times > 0);
                if !now.done {
                    break;
                }
                deaf.store(true, Ordering::SeqCst);
            }
        }
        if tells.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    tells
}

/// Carries answers until one is not to be heard: when it arrives the command was done.
fn carry_answers(mut redis: TcpStream, mut server: TcpStream, deaf: &AtomicBool) {
    let mut bytes = vec![0; 8192];
    while let Ok(count @ 1..) = redis.read(&mut bytes) {
        if deaf.load(Ordering::SeqCst) || server.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = server.shutdown(Shutdown::Both);
}

fn take(store: &RedisStore, tube: &TubeName) -> Result<Vec<Task>, Error> {
    let session = Some(SESSION);
    let take = Take { tube: tube.clone(), count: 1, session, lease: None, wait: Span::ZERO };
    match ask(store, Command::Take(take))? {
        Reply::Taken(tasks) => Ok(tasks),
        other => panic!("a take answers with tasks, not {other:?}"),
    }
}

fn is_unknown<T: std::fmt::Debug>(reply: Result<T, Error>) {
    assert!(matches!(reply, Err(Error::OutcomeUnknown(_))), "{reply:?}");
}

fn join() -> Command {
    Command::JoinSession { session: SESSION, create: true }
}

fn ready_and_taken(store: &RedisStore, tube: &TubeName) -> (u64, u64) {
    match ask(store, Command::Tubes { tube: Some(tube.clone()) }) {
        Ok(Reply::Tubes(tubes)) => (tubes[0].stats.tasks.ready, tubes[0].stats.tasks.taken),
        other => panic!("a tube was expected, not {other:?}"),
    }
}

#[test]
fn a_task_that_nobody_heard_of_goes_back() {
    run(async {
        let way = Way::new();
        let store = open(&way.url);
        let tube = make_tube(&store, TubeOptions::new(Kind::Utube));
        ask(&store, put(&tube, 2)).expect("they are put");
        ask(&store, join()).expect("it joins");
        let held = take(&store, &tube).expect("there is one").remove(0);
        let holder = Holder::Session(SESSION);
        let items = vec![FinishItem { id: held.id, holder, finish: Finish::Ack }];
        let ack = Command::Finish { tube: tube.clone(), items, show: false };
        assert_eq!(ask(&store, ack), Ok(Reply::Finished(vec![Outcome::Done(None)])));
        way.be_deaf("_free");
        is_unknown(take(&store, &tube));
        let again = take(&store, &tube).expect("Redis is there");
        assert_eq!(
            again.iter().map(|task| (task.id.0, task.attempts)).collect::<Vec<_>>(),
            [(1, 0)]
        );
    });
}

// What a session held before stays with it.
#[test]
fn a_loss_takes_nothing_from_anybody() {
    run(async {
        let way = Way::new();
        let store = open(&way.url);
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        ask(&store, put(&tube, 2)).expect("they are put");
        ask(&store, join()).expect("it joins");
        let held = take(&store, &tube).expect("there is one").remove(0);
        way.be_deaf("_free");
        is_unknown(take(&store, &tube));
        assert_eq!(ready_and_taken(&store, &tube), (1, 1));
        let holder = Holder::Lease(held.lease.expect("a lease"));
        let items = vec![FinishItem { id: held.id, holder, finish: Finish::Ack }];
        let ack = Command::Finish { tube, items, show: false };
        assert_eq!(ask(&store, ack), Ok(Reply::Finished(vec![Outcome::Done(None)])));
    });
}

#[test]
fn sessions_are_joined_and_left_once_however_often_it_is_said() {
    run(async {
        let way = Way::new();
        let store = open(&way.url);
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        ask(&store, put(&tube, 1)).expect("it is put");
        let leave = Command::LeaveSession { session: SESSION };
        ask(&store, join()).expect("it joins");
        way.be_deaf("\r\njoin\r\n");
        is_unknown(ask(&store, join()));
        ask(&store, join()).expect("it joins");
        take(&store, &tube).expect("there is one");
        way.be_deaf("\r\nleave\r\n");
        is_unknown(ask(&store, leave.clone()));
        ask(&store, leave.clone()).expect("it leaves");
        assert_eq!(ready_and_taken(&store, &tube), (0, 1), "one connection is left");
        ask(&store, leave).expect("it leaves");
        assert_eq!(ready_and_taken(&store, &tube), (1, 0));
    });
}

// A client went while Redis could not be asked for its tubes. Whoever said again that it leaves heard that there is no such session, and a
// server that was alone kept its task until it was started anew.
#[test]
fn a_session_that_could_not_be_ended_at_once_is_ended_by_a_tick() {
    run(async {
        let way = Way::new();
        let store = open(&way.url);
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        ask(&store, Command::Tick { limit: 9 }).expect("all is looked at in the beginning");
        ask(&store, put(&tube, 1)).expect("it is put");
        ask(&store, join()).expect("it joins");
        take(&store, &tube).expect("there is one");
        // What gives back what a session holds, however often it is tried.
        way.arm(Armed { word: "$17\r\nS", times: 4, done: false });
        let leave = Command::LeaveSession { session: SESSION };
        is_unknown(ask(&store, leave.clone()));
        assert_eq!(ask(&store, leave), Err(Error::SessionUnknown(SESSION)));
        assert_eq!(ready_and_taken(&store, &tube), (0, 1));
        assert_eq!(ask(&store, Command::Tick { limit: 9 }), Ok(Reply::Ticked(2)));
        assert_eq!(ready_and_taken(&store, &tube), (1, 0));
    });
}

// More sessions than values fit on the stack of a function: a server with five thousand connections could not tell
// Redis how things stand, and was of no use from then on.
#[test]
fn thousands_of_sessions_are_told_again() {
    run(async {
        const MANY: u16 = 5_000;
        let way = Way::new();
        let store = open(&way.url);
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        ask(&store, put(&tube, 1)).expect("it is put");
        let session = |number: u16| {
            let mut id = [0; 16];
            id[..2].copy_from_slice(&number.to_be_bytes());
            SessionId(id)
        };
        let join = |number| Command::JoinSession { session: session(number), create: true };
        let joined = taskyard_store::Store::execute(
            &store,
            taskyard_testkit::calls::NOW,
            (0..MANY).map(join).collect(),
        );
        assert!(joined.await.replies.iter().all(Result::is_ok));
        way.be_deaf("_ask");
        is_unknown(ask(&store, put(&tube, 1)));
        assert_eq!(ready_and_taken(&store, &tube), (2, 0));
        let known = Command::JoinSession { session: session(MANY - 1), create: false };
        assert_eq!(ask(&store, known), Ok(Reply::Session(session(MANY - 1))));
    });
}

#[test]
fn what_only_looks_is_asked_again() {
    run(async {
        let way = Way::new();
        let store = open(&way.url);
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        way.be_deaf("_free");
        assert_eq!(ready_and_taken(&store, &tube), (0, 0));
        way.be_deaf("\r\ntubes\r\n");
        let shown = ask(&store, Command::Tubes { tube: None });
        assert!(matches!(&shown, Ok(Reply::Tubes(tubes)) if tubes.len() == 1), "{shown:?}");
    });
}

#[test]
fn a_put_that_nobody_heard_of_is_said_to_be_unknown() {
    run(async {
        let way = Way::new();
        let store = open(&way.url);
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        way.be_deaf("_ask");
        is_unknown(ask(&store, put(&tube, 1)));
        assert_eq!(ready_and_taken(&store, &tube), (1, 0));
    });
}

/// Commands before and after the one that was lost: those before it were answered, those after it not asked.
#[test]
fn a_loss_in_the_middle_of_a_batch_concerns_what_was_under_way() {
    run(async {
        let way = Way::new();
        let store = open(&way.url);
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        way.be_deaf("\r\njoin\r\n");
        let commands = vec![put(&tube, 1), join(), put(&tube, 1)];
        let executed =
            taskyard_store::Store::execute(&store, taskyard_testkit::calls::NOW, commands).await;
        let [first, lost, last] = &executed.replies[..] else { panic!("three answers") };
        assert!(first.is_ok(), "{first:?}");
        assert!(matches!(lost, Err(Error::OutcomeUnknown(_))), "{lost:?}");
        assert!(matches!(last, Err(Error::StoreAway(_))), "{last:?}");
        assert_eq!(ready_and_taken(&store, &tube), (1, 0));
    });
}

// A Redis that has not noticed that a connection broke may still read what was sent on it, much later.
#[test]
fn a_lost_connection_is_ended_before_anything_else_is_asked() {
    let Some(program) = program() else { return };
    let alone = Instance::new(program);
    let way = Way::to(&alone);
    let store = open(&way.url);
    let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
    let served = || alone.talk(&["CLIENT", "LIST"]).matches("name=taskyard-").count();
    // One for batches, one for the heartbeat and one that listens.
    while served() != 3 {}
    way.lingers.store(true, Ordering::SeqCst);
    way.be_deaf("_ask");
    is_unknown(ask(&store, put(&tube, 1)));
    ask(&store, put(&tube, 1)).expect("it is put when all is in order");
    while served() != 3 {}
}

// To bring things in order Redis is asked which connection was lost. When the answer to that was lost as well, its connection was kept
// though it had ended, and the server was of no use from then on.
#[test]
fn a_connection_that_breaks_while_order_is_made_is_not_used_again() {
    run(async {
        let way = Way::new();
        let store = open(&way.url);
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        way.be_deaf("_ask");
        is_unknown(ask(&store, put(&tube, 1)));
        way.be_deaf("\r\nCLIENT\r\n");
        let refused = ask(&store, put(&tube, 1));
        assert!(matches!(refused, Err(Error::StoreAway(_))), "{refused:?}");
        ask(&store, put(&tube, 1)).expect("it is put by another connection");
        assert_eq!(ready_and_taken(&store, &tube), (2, 0));
    });
}
