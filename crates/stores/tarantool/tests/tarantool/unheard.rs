//! Tarantool does what it is asked, and nobody hears its answer.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use taskyard_core::{
    Command, Error, Finish, FinishItem, Holder, Kind, Outcome, Reply, SessionId, Span, Take, Task,
    TubeName, TubeOptions,
};
use taskyard_store::Store;
use taskyard_store_tarantool::TarantoolStore;
use taskyard_tarantool::Word;

use taskyard_testkit::calls::{NOW, ask, make_tube, put};
use taskyard_testkit::tarantool::{CALL, instance, open, own, run};
use taskyard_testkit::tarantool::{Instance, program};

const SESSION: SessionId = SessionId([7; 16]);

/// The way to Tarantool on which an answer can be kept back.
struct Way {
    url: String,
    /// The next command with this word in it, or each, is done and not answered: its connection breaks instead.
    armed: Arc<Mutex<Option<Deaf>>>,
}

#[derive(Clone, Copy)]
struct Deaf {
    word: &'static str,
    always: bool,
}

impl Way {
    fn new() -> Self {
        Self::to(instance())
    }

    fn to(instance: &Instance) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it has an address");
        let armed = Arc::new(Mutex::default());
        let (arms, port) = (armed.clone(), instance.port());
        thread::spawn(move || {
            for server in listener.incoming().flatten() {
                let Ok(tarantool) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                let deaf = Arc::new(AtomicBool::new(false));
                let (asks, tells) = (server.try_clone(), tarantool.try_clone());
                let (asks, tells) = (asks.expect("a socket"), tells.expect("a socket"));
                let (armed, hears) = (arms.clone(), deaf.clone());
                thread::spawn(move || {
                    let tells = carry_questions(asks, tells, &armed, &hears);
                    let _ = tells.shutdown(Shutdown::Both);
                });
                thread::spawn(move || carry_answers(tarantool, server, &deaf));
            }
        });
        Way { url: own(&format!("tarantool://taskyard:se%2Fcret@{address}")), armed }
    }

    /// What this does is done, and nobody hears of it.
    fn be_deaf(&self, word: &'static str) {
        *self.armed.lock().expect("no thread failed") = Some(Deaf { word, always: false });
    }

    /// Nobody ever hears of what this does.
    fn stay_deaf(&self, word: &'static str) {
        *self.armed.lock().expect("no thread failed") = Some(Deaf { word, always: true });
    }
}

fn carry_questions(
    mut asks: TcpStream,
    mut tells: TcpStream,
    armed: &Mutex<Option<Deaf>>,
    deaf: &AtomicBool,
) -> TcpStream {
    let mut bytes = vec![0; 8192];
    while let Ok(count @ 1..) = asks.read(&mut bytes) {
        {
            let mut armed = armed.lock().expect("no thread failed");
            let has =
                |word: &str| bytes[..count].windows(word.len()).any(|part| part == word.as_bytes());
            if armed.is_some_and(|deaf| has(deaf.word)) {
                *armed = armed.filter(|deaf| deaf.always);
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
fn carry_answers(mut tarantool: TcpStream, mut server: TcpStream, deaf: &AtomicBool) {
    let mut bytes = vec![0; 8192];
    while let Ok(count @ 1..) = tarantool.read(&mut bytes) {
        if deaf.load(Ordering::SeqCst) || server.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = server.shutdown(Shutdown::Both);
}

fn take(store: &TarantoolStore, tube: &TubeName) -> Result<Vec<Task>, Error> {
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

fn ready_and_taken(store: &TarantoolStore, tube: &TubeName) -> (u64, u64) {
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
        way.be_deaf("batch");
        is_unknown(take(&store, &tube));
        let again = take(&store, &tube).expect("Tarantool is there");
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
        way.be_deaf("batch");
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
        way.be_deaf("batch");
        is_unknown(ask(&store, join()));
        ask(&store, join()).expect("it joins");
        take(&store, &tube).expect("there is one");
        way.be_deaf("batch");
        is_unknown(ask(&store, leave.clone()));
        ask(&store, leave.clone()).expect("it leaves");
        assert_eq!(ready_and_taken(&store, &tube), (0, 1), "one connection is left");
        ask(&store, leave).expect("it leaves");
        assert_eq!(ready_and_taken(&store, &tube), (1, 0));
    });
}

fn take_many(tube: &TubeName, count: usize) -> Command {
    let (session, lease, wait) = (None, None, Span::ZERO);
    Command::Take(Take { tube: tube.clone(), count, session, lease, wait })
}

// Many consumers ask together and nobody hears the answer, beside much that is held; this kept Tarantool busy for so long that its
// answer was given up too. A tube that got another name meanwhile kept what nobody had heard of.
#[test]
fn what_many_takes_got_goes_back_and_nothing_else() {
    run(async {
        let way = Way::new();
        let (store, other) = (open(&way.url), open(&way.url));
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        ask(&store, put(&tube, 10_000)).expect("they are put");
        ask(&store, put(&tube, 1_000)).expect("they are put");
        ask(&store, take_many(&tube, 10_000)).expect("they are taken");
        way.be_deaf("batch");
        let lost = store.execute(NOW, vec![take_many(&tube, 1); 1_000]).await;
        lost.replies.into_iter().for_each(is_unknown);
        let name = TubeName::new("post").expect("a name");
        let rename = Command::NameTube { tube, name: name.clone(), queue_num: None };
        ask(&other, rename).expect("it has another name");
        assert_eq!(ready_and_taken(&other, &name), (0, 11_000));
        assert_eq!(ready_and_taken(&store, &name), (1_000, 10_000));
        instance().audit(way.url.rsplit_once('=').expect("it has a prefix").1);
    });
}

// As many connections as a busy server has.
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
        way.be_deaf("batch");
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
        way.be_deaf("batch");
        assert_eq!(ready_and_taken(&store, &tube), (0, 0));
        way.be_deaf("batch");
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
        way.be_deaf("batch");
        is_unknown(ask(&store, put(&tube, 1)));
        assert_eq!(ready_and_taken(&store, &tube), (1, 0));
    });
}

// The same said three times on three connections: the first may be held up on the way, and arrive when sessions were joined that it knows
// nothing of. It ended them.
#[test]
fn what_was_put_in_order_is_not_put_in_order_later() {
    let Some(program) = program() else { return };
    let alone = Instance::new(program);
    let store = open(&alone.url());
    let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
    ask(&store, put(&tube, 1)).expect("it is put");
    let settle = format!("{CALL} call('settle', server, nil, 9, {{}}, {{}})");
    alone.talk(&settle);
    alone.talk(&format!(
        "{CALL} call('batch', server, 10, nil, 7, {{{{13, ('s'):rep(16), true}}, {{5, 'mail', 1, 0, nil, ('s'):rep(16)}}}}, 0)"
    ));
    let held = "return box.space.taskyard_held:len()";
    assert_eq!(alone.talk(held), Word::Int(1));
    alone.talk(&settle);
    alone.talk(&format!("{CALL} call('batch', server, 11, nil, 8, {{{{16, 9}}}}, 0)"));
    assert_eq!(alone.talk(held), Word::Int(1));
}

// A connection that was lost while it was made had carried nothing yet: a put was said to be done or not, though it had not been sent.
#[test]
fn what_was_not_asked_is_not_said_to_be_unknown() {
    let Some(program) = program() else { return };
    let alone = Instance::new(program);
    let way = Way::to(&alone);
    let store = open(&way.url);
    let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
    alone.kill();
    alone.start();
    // This is in the first question on each connection.
    way.stay_deaf("box.info.ro");
    let away = ask(&store, put(&tube, 1));
    assert!(matches!(away, Err(Error::StoreAway(_))), "{away:?}");
}

// A call that was given up must not be done later: a Tarantool that is slow to read may still have it.
#[test]
fn what_was_given_up_is_not_done_later() {
    let Some(program) = program() else { return };
    let alone = Instance::new(program);
    let store = open(&alone.url());
    let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
    ask(&store, put(&tube, 1)).expect("it is put");
    let take = |call: u64| {
        format!(
            "{CALL}
            box.space.taskyard_server:update(server, {{{{'=', 3, 10}}}})
            return #call('batch', server, {call}, nil, 7, {{{{5, 'mail', 1}}}}, 0)"
        )
    };
    assert_eq!(alone.talk(&take(10)), Word::Int(0), "it says that it was not wanted");
    assert_eq!(ready_and_taken(&store, &tube), (1, 0));
    assert_eq!(alone.talk(&take(11)), Word::Int(6));
    assert_eq!(ready_and_taken(&store, &tube), (0, 1));
}
