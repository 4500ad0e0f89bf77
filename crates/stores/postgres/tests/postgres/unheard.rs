//! The database does what it is asked, and nobody hears its answer.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use taskyard_conformance::block_on;
use taskyard_core::{
    Command, Error, Finish, FinishItem, Holder, Kind, Outcome, Reply, SessionId, Span, Take, Task,
    TubeName, TubeOptions,
};
use taskyard_store::Store;
use taskyard_store_postgres::{Clock, PostgresStore};

use taskyard_testkit::calls::{NOW, ask, make_tube, put};
use taskyard_testkit::postgres::{Database, check_counts, cluster, run, sql};
use taskyard_testkit::postgres::{Pooler, is_there};

const SESSION: SessionId = SessionId([7; 16]);

/// The way to a database on which an answer can be kept back.
struct Way {
    url: String,
    port: u16,
    /// Whether the next batch is not to be answered.
    armed: Arc<AtomicBool>,
    /// Whether the database does not hear that a connection broke.
    lingers: Arc<AtomicBool>,
}

impl Way {
    fn new(database: &Database) -> Self {
        Self::keeping(database, b"COMMIT\0")
    }

    /// One on which the batch that is not answered is the next that has this word in it.
    fn keeping(database: &Database, word: &'static [u8]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it has an address");
        let armed = Arc::new(AtomicBool::new(false));
        let name = database.url().rsplit('/').next().expect("it has a name").to_owned();
        let lingers = Arc::new(AtomicBool::new(false));
        let (socket, arms, stays) = (cluster().socket(), armed.clone(), lingers.clone());
        thread::spawn(move || {
            for server in listener.incoming().flatten() {
                let database = UnixStream::connect(&socket).expect("the database is there");
                let deaf = Arc::new(AtomicBool::new(false));
                let (asks, tells) = (server.try_clone(), database.try_clone());
                let (asks, tells) = (asks.expect("a socket"), tells.expect("a socket"));
                let (armed, hears, lingers) = (arms.clone(), deaf.clone(), stays.clone());
                thread::spawn(move || {
                    let tells = carry_questions(asks, tells, word, (&armed, &hears));
                    if lingers.load(Ordering::SeqCst) {
                        std::mem::forget(tells);
                    } else {
                        let _ = tells.shutdown(Shutdown::Both);
                    }
                });
                thread::spawn(move || carry_answers(database, server, &deaf));
            }
        });
        let url = format!("postgres://postgres@{address}/{name}");
        Way { url, port: address.port(), armed, lingers }
    }

    /// The next batch is done and not answered: its connection breaks instead.
    fn be_deaf(&self) {
        self.armed.store(true, Ordering::SeqCst);
    }
}

fn has(bytes: &[u8], word: &[u8]) -> bool {
    bytes.windows(word.len()).any(|part| part == word)
}

fn carry_questions(
    mut asks: TcpStream,
    mut tells: UnixStream,
    word: &[u8],
    (armed, deaf): (&AtomicBool, &AtomicBool),
) -> UnixStream {
    let mut bytes = vec![0; 8192];
    let mut listens = false;
    while let Ok(count @ 1..) = asks.read(&mut bytes) {
        // The connection with the heartbeat is left alone.
        listens |= has(&bytes[..count], b"LISTEN");
        if !listens && has(&bytes[..count], word) && armed.swap(false, Ordering::SeqCst) {
            deaf.store(true, Ordering::SeqCst);
        }
        if tells.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    tells
}

fn carry_answers(mut database: UnixStream, mut server: TcpStream, deaf: &AtomicBool) {
    let (mut bytes, mut kept) = (vec![0; 8192], Vec::new());
    while let Ok(count @ 1..) = database.read(&mut bytes) {
        if deaf.load(Ordering::SeqCst) {
            kept.extend_from_slice(&bytes[..count]);
            if has(&kept, b"COMMIT\0") {
                break;
            }
        } else if server.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = server.shutdown(Shutdown::Both);
}

fn take(store: &PostgresStore, tube: &TubeName) -> Result<Vec<Task>, Error> {
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

fn connections(database: &Database) -> Option<String> {
    sql(&database.url(), "SELECT sum(count) FROM taskyard.connection")
}

fn opened(way: &Way) -> PostgresStore {
    PostgresStore::open(&way.url, Clock::Caller).expect("the store opens")
}

// A take whose answer was lost left its task with a session that lived on and did not know of it: nobody got it
// before that session ended.
#[test]
fn a_task_that_nobody_heard_of_goes_back() {
    run(async {
        let database = Database::new();
        let way = Way::new(&database);
        let store = opened(&way);
        let tube = make_tube(&store, TubeOptions::new(Kind::Utube));
        ask(&store, put(&tube, 2)).expect("they are put");
        ask(&store, Command::JoinSession { session: SESSION, create: true }).expect("it joins");
        let held = take(&store, &tube).expect("there is one").remove(0);
        let holder = Holder::Session(SESSION);
        let items = vec![FinishItem { id: held.id, holder, finish: Finish::Ack }];
        let ack = Command::Finish { tube: tube.clone(), items, show: false };
        assert_eq!(ask(&store, ack), Ok(Reply::Finished(vec![Outcome::Done(None)])));
        way.be_deaf();
        is_unknown(take(&store, &tube));
        let again = take(&store, &tube).expect("the database is there");
        assert_eq!(
            again.iter().map(|task| (task.id.0, task.attempts)).collect::<Vec<_>>(),
            [(1, 0)]
        );
        check_counts(&database.url());
    });
}

// What a session held before stays with it.
#[test]
fn a_loss_takes_nothing_from_anybody() {
    run(async {
        let database = Database::new();
        let way = Way::new(&database);
        let store = opened(&way);
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        ask(&store, put(&tube, 1)).expect("it is put");
        ask(&store, Command::JoinSession { session: SESSION, create: true }).expect("it joins");
        let held = take(&store, &tube).expect("there is one").remove(0);
        way.be_deaf();
        is_unknown(take(&store, &tube));
        let holder = Holder::Lease(held.lease.expect("a lease"));
        let items = vec![FinishItem { id: held.id, holder, finish: Finish::Ack }];
        let ack = Command::Finish { tube, items, show: false };
        assert_eq!(ask(&store, ack), Ok(Reply::Finished(vec![Outcome::Done(None)])));
    });
}

// Connections were counted by adding and taking away: a join that was repeated counted twice and its session
// never ended, a repeated leave ended a session that another connection was still in.
#[test]
fn sessions_are_joined_and_left_once_however_often_it_is_said() {
    run(async {
        let database = Database::new();
        let way = Way::new(&database);
        let store = opened(&way);
        let join = Command::JoinSession { session: SESSION, create: true };
        let leave = Command::LeaveSession { session: SESSION };
        ask(&store, join.clone()).expect("it joins");
        way.be_deaf();
        is_unknown(ask(&store, join.clone()));
        ask(&store, join).expect("it joins");
        assert_eq!(connections(&database).as_deref(), Some("2"));
        way.be_deaf();
        is_unknown(ask(&store, leave.clone()));
        ask(&store, leave.clone()).expect("it leaves");
        assert_eq!(connections(&database).as_deref(), Some("1"));
        ask(&store, leave).expect("it leaves");
        assert_eq!(connections(&database), None);
    });
}

#[test]
fn what_only_looks_is_asked_again() {
    run(async {
        let database = Database::new();
        let way = Way::new(&database);
        let store = opened(&way);
        make_tube(&store, TubeOptions::new(Kind::Fifo));
        way.be_deaf();
        let shown = ask(&store, Command::Tubes { tube: None });
        assert!(matches!(&shown, Ok(Reply::Tubes(tubes)) if tubes.len() == 1), "{shown:?}");
    });
}

#[test]
fn a_put_that_nobody_heard_of_is_said_to_be_unknown() {
    run(async {
        let database = Database::new();
        let way = Way::new(&database);
        let store = opened(&way);
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        way.be_deaf();
        is_unknown(ask(&store, put(&tube, 1)));
        let there = sql(&database.url(), "SELECT count(*) FROM taskyard.task");
        assert_eq!(there.as_deref(), Some("1"));
    });
}

// A pooler that lost its own connection says so with an error, which passed for the word of the database that
// nothing was done: the put was sent again and was there twice.
#[test]
fn what_a_pooler_did_not_hear_is_unknown() {
    run(async {
        if !is_there() {
            return;
        }
        let database = Database::new();
        // Servers behind a pooler share connections, so the heartbeat must be told from the put.
        let way = Way::keeping(&database, b"put_tasks");
        let pooler = Pooler::before(&format!("host=127.0.0.1 port={}", way.port));
        let url = pooler.url(&database.url());
        let store = PostgresStore::open(&url, Clock::Caller).expect("the store opens");
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        way.be_deaf();
        is_unknown(ask(&store, put(&tube, 1)));
        let there = sql(&database.url(), "SELECT count(*) FROM taskyard.task");
        assert_eq!(there.as_deref(), Some("1"));
    });
}

// Where the word about a lost batch was lost as well, what served that connection was left to itself and could
// still do, later, what it had been told.
#[test]
fn whoever_served_a_lost_connection_is_ended() {
    run(async {
        let database = Database::new();
        let way = Way::new(&database);
        let store = opened(&way);
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        let served = || {
            let count = "SELECT count(*) FROM pg_stat_activity
                WHERE datname = current_database() AND application_name = 'taskyard'";
            sql(&database.url(), count).expect("it counts")
        };
        // One for batches and one for the heartbeat.
        while served() != "2" {}
        way.lingers.store(true, Ordering::SeqCst);
        way.be_deaf();
        is_unknown(ask(&store, put(&tube, 1)));
        way.be_deaf();
        ask(&store, put(&tube, 1)).expect("it is put when all is in order");
        assert_eq!(served(), "2");
    });
}

#[test]
fn of_a_batch_that_went_by_two_connections_only_the_lost_half_is_unknown() {
    run(async {
        let database = Database::new();
        let way = Way::new(&database);
        let store = opened(&way);
        let tube = make_tube(&store, TubeOptions::new(Kind::FifoTtl));
        assert!(ask(&store, put(&tube, 2_001)).is_ok());
        let first = taskyard_testkit::calls::take(&store, &tube, 1).remove(0);
        assert!(matches!(taskyard_testkit::calls::ack(&store, &tube, &first), Outcome::Done(_)));
        let (session, lease, wait) = (None, None, Span::ZERO);
        let take = Command::Take(Take { tube: tube.clone(), count: 1_000, session, lease, wait });
        way.be_deaf();
        let replies = block_on(store.execute(NOW, vec![take.clone(), take.clone()])).replies;
        let (unknown, taken): (Vec<_>, Vec<_>) = replies.into_iter().partition(Result::is_err);
        is_unknown(unknown.into_iter().next().expect("one half is lost"));
        assert!(matches!(&taken[..], [Ok(Reply::Taken(tasks))] if tasks.len() == 1_000));
        // What was lost was done, and the store goes on.
        assert_eq!(ask(&store, take), Ok(Reply::Taken(Vec::new())));
        check_counts(&database.url());
    });
}
