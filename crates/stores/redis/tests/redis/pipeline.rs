//! Tests of pipelined batches.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use taskyard_core::{
    Command, Error, Finish, FinishItem, Holder, Kind, Outcome, Reply, SessionId, Span, Take,
    TubeName, TubeOptions,
};
use taskyard_store::Store;
use taskyard_store_redis::RedisStore;

use taskyard_testkit::calls::{NOW, ack, ask, make_tube, put, take};
use taskyard_testkit::redis::{RedisInstance, program};
use taskyard_testkit::redis::{instance, open, own, run};

/// A proxy that can hold back and lose answers, and counts calls.
struct Proxy {
    url: String,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    now: Mutex<Now>,
    moved: Condvar,
}

#[derive(Default)]
struct Now {
    /// The number of calls to tubes.
    asked: usize,
    /// The number of subscriptions.
    subscribed: usize,
    /// Whether answers of tubes are held back.
    shut: bool,
    /// Whether connections with held back answers are closed.
    cut: bool,
    /// Whether subscriptions receive nothing more.
    deaf: bool,
}

impl State {
    fn change(&self, change: impl FnOnce(&mut Now)) {
        change(&mut self.now.lock().expect("no thread failed"));
        self.moved.notify_all();
    }

    fn wait(&self, mut until: impl FnMut(&Now) -> bool) {
        let now = self.now.lock().expect("no thread failed");
        drop(self.moved.wait_while(now, |now| !until(now)).expect("no thread failed"));
    }

    /// Whether so many calls are in flight before long. A batch waits for the one before instead, if a heartbeat is due.
    fn becomes_in_flight(&self, calls: usize) -> bool {
        let now = self.now.lock().expect("no thread failed");
        let waited = self.moved.wait_timeout_while(now, IN_FLIGHT_MAX, |now| now.asked < calls);
        !waited.expect("no thread failed").1.timed_out()
    }
}

/// How long batches may take until they are in flight.
const IN_FLIGHT_MAX: Duration = Duration::from_secs(10);
/// How often a test tries to have batches in flight: a machine that is so busy that heartbeats are due each time is reported.
const TRIES: usize = 5;

impl Proxy {
    fn to(instance: &RedisInstance) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it has an address");
        let state = Arc::new(State::default());
        let (shared, port) = (state.clone(), instance.port());
        thread::spawn(move || {
            for server in listener.incoming().flatten() {
                let redis = TcpStream::connect(("127.0.0.1", port)).expect("Redis is there");
                let (asks, tells) = (server.try_clone(), redis.try_clone());
                let (asks, tells) = (asks.expect("a socket"), tells.expect("a socket"));
                let kind = Arc::new(Mutex::new(Usage::default()));
                let (states, kinds) = (shared.clone(), kind.clone());
                thread::spawn(move || forward_requests(asks, tells, &states, &kinds));
                let states = shared.clone();
                thread::spawn(move || forward_answers(redis, server, &states, &kind));
            }
        });
        Proxy { url: own(&format!("redis://{address}")), state }
    }
}

/// What a connection is used for.
#[derive(Clone, Copy, Default)]
struct Usage {
    asks_tubes: bool,
    listens: bool,
}

fn forward_requests(mut asks: TcpStream, mut tells: TcpStream, state: &State, kind: &Mutex<Usage>) {
    let mut bytes = vec![0; 65_536];
    while let Ok(count @ 1..) = asks.read(&mut bytes) {
        let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
        let asked = text.matches("_call\r\n").count() + text.matches("_grow\r\n").count();
        let subscribed = text.matches("SUBSCRIBE\r\n").count();
        {
            let mut kind = kind.lock().expect("no thread failed");
            kind.asks_tubes |= asked > 0;
            kind.listens |= subscribed > 0;
        }
        if tells.write_all(&bytes[..count]).is_err() {
            break;
        }
        state.change(|now| {
            now.asked += asked;
            now.subscribed += subscribed;
        });
    }
    let _ = tells.shutdown(Shutdown::Both);
}

fn forward_answers(
    mut redis: TcpStream,
    mut server: TcpStream,
    state: &State,
    kind: &Mutex<Usage>,
) {
    let mut bytes = vec![0; 65_536];
    while let Ok(count @ 1..) = redis.read(&mut bytes) {
        let kind = *kind.lock().expect("no thread failed");
        let mut cut = false;
        if kind.asks_tubes {
            state.wait(|now| {
                cut = now.cut;
                !now.shut || now.cut
            });
        }
        let mut deaf = false;
        state.change(|now| deaf = now.deaf && kind.listens);
        if deaf {
            continue;
        }
        if cut || server.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = server.shutdown(Shutdown::Both);
}

fn a_take(tube: &TubeName, session: Option<SessionId>) -> Command {
    Command::Take(Take {
        tube: tube.clone(),
        count: 1,
        session,
        lease: None,
        worker: None,
        wait: Span::ZERO,
    })
}

fn counts(store: &RedisStore, tube: &TubeName) -> (u64, u64) {
    match ask(store, Command::Tubes { tube: Some(tube.clone()) }) {
        Ok(Reply::Tubes(tubes)) => (tubes[0].stats.tasks.ready, tubes[0].stats.tasks.taken),
        other => panic!("a tube was expected, not {other:?}"),
    }
}

/// The only reply to each of these batches, and whether all were in flight before the first was answered.
async fn together(
    way: &Proxy,
    store: &RedisStore,
    batches: Vec<Command>,
) -> (Vec<Result<Reply, Error>>, bool) {
    let count = batches.len();
    way.state.change(|now| (now.asked, now.shut) = (0, true));
    let begun: Vec<_> =
        batches.into_iter().map(|command| store.execute(NOW, vec![command])).collect();
    let in_flight = way.state.becomes_in_flight(count);
    way.state.change(|now| now.shut = false);
    let mut replies = Vec::new();
    for batch in begun {
        replies.extend(batch.await.replies);
    }
    (replies, in_flight)
}

// On a busy machine a heartbeat was due in between, so that the second batch waited for the reply to the first, which the proxy held back
// until the second was sent: the test never ended.
#[test]
fn a_batch_is_sent_before_the_previous_one_is_answered() {
    run(async {
        for _ in 0..TRIES {
            if a_batch_is_sent_early().await {
                return;
            }
        }
        panic!("batches were never in flight together");
    });
}

/// Whether four batches were in flight at the same time.
async fn a_batch_is_sent_early() -> bool {
    let way = Proxy::to(instance());
    let store = open(&way.url);
    let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
    ask(&store, put(&tube, 1)).expect("it is put");
    let held = take(&store, &tube, 1).remove(0);
    let holder = Holder::Lease(held.lease.expect("a lease"));
    let items = vec![FinishItem { id: held.id, holder, finish: Finish::Ack }];
    let ack = Command::Finish { tube: tube.clone(), items, show: false };
    let batches = vec![put(&tube, 1), a_take(&tube, None), ack, a_take(&tube, None)];
    let (replies, in_flight) = together(&way, &store, batches).await;
    if !in_flight {
        return false;
    }
    let [Ok(Reply::Put(put)), Ok(Reply::Taken(first)), acked, Ok(Reply::Taken(none))] =
        &replies[..]
    else {
        panic!("{replies:?}")
    };
    assert_eq!(first[0].id, put[0].id, "each sees what was done before it");
    assert_eq!(*acked, Ok(Reply::Finished(vec![Outcome::Done(None)])));
    assert!(none.is_empty());
    assert!(first[0].lease > held.lease);
    true
}

// Only the first batch in flight was noted as lost; tasks that the second had taken stayed taken forever.
#[test]
fn deliveries_of_all_lost_batches_are_undone() {
    run(async {
        for _ in 0..TRIES {
            if lost_deliveries_are_undone().await {
                return;
            }
        }
        panic!("batches were never in flight together");
    });
}

/// Whether two batches were in flight when they were lost.
async fn lost_deliveries_are_undone() -> bool {
    let session = SessionId([7; 16]);
    let way = Proxy::to(instance());
    let store = open(&way.url);
    let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
    ask(&store, put(&tube, 5)).expect("they are put");
    ask(&store, Command::JoinSession { session, create: true }).expect("it joins");
    let held = ask(&store, a_take(&tube, Some(session)));
    let Ok(Reply::Taken(held)) = held else { panic!("{held:?}") };
    way.state.change(|now| (now.asked, now.shut) = (0, true));
    let take = || store.execute(NOW, vec![a_take(&tube, Some(session))]);
    let begun = [take(), take()];
    let in_flight = way.state.becomes_in_flight(2);
    way.state.change(|now| now.cut = true);
    if !in_flight {
        return false;
    }
    for batch in begun {
        let replies = batch.await.replies;
        assert!(matches!(replies[..], [Err(Error::OutcomeUnknown(_))]), "{replies:?}");
    }
    way.state.change(|now| (now.shut, now.cut) = (false, false));
    assert_eq!(counts(&store, &tube), (4, 1));
    assert_eq!(ack(&store, &tube, &held[0]), Outcome::Done(None));
    true
}

// Commands that Redis refused for a temporary reason were not done, and are sent again.
#[test]
fn a_refused_pipelined_batch_is_sent_again() {
    let Some(program) = program() else { return };
    run(async {
        let alone = RedisInstance::new(program);
        let way = Proxy::to(&alone);
        let store = open(&way.url);
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        ask(&store, put(&tube, 1)).expect("it is put");
        assert_eq!(alone.talk(&["FUNCTION", "FLUSH"]), "OK");
        let begun = [put(&tube, 1), put(&tube, 1)].map(|put| store.execute(NOW, vec![put]));
        for batch in begun {
            let replies = batch.await.replies;
            assert!(matches!(replies[..], [Ok(Reply::Put(_))]), "{replies:?}");
        }
        assert_eq!(counts(&store, &tube), (3, 0));
    });
}

// A take used up all lease numbers that it requested, and a range of numbers is a second of the clock that keeps them unique.
#[test]
fn empty_takes_use_no_lease_numbers() {
    run(async {
        let url = own(&instance().url());
        let store = open(&url);
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        let prefix = url.rsplit_once('=').expect("it has a prefix").1;
        let next = || instance().talk(&["GET", &format!("{{{prefix}}}:lease")]);
        assert!(take(&store, &tube, 1_000).is_empty());
        let before = next();
        for _ in 0..2_000 {
            assert!(take(&store, &tube, 1_000).is_empty());
        }
        assert_eq!(next(), before, "one range is enough");
        ask(&store, put(&tube, 3)).expect("they are put");
        let (two, one) = (take(&store, &tube, 2), take(&store, &tube, 1_000));
        assert_eq!(one[0].lease.map(|lease| lease.0 - 1), two[1].lease.map(|lease| lease.0));
    });
}

// An aborted function leaves its writes, but the reply said that nothing was done.
#[test]
fn an_aborted_function_is_an_unknown_outcome() {
    run(async {
        let url = own(&instance().url());
        let store = open(&url);
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        ask(&store, put(&tube, 1)).expect("it is put");
        let prefix = url.rsplit_once('=').expect("it has a prefix").1;
        let deliveries = format!("{{{prefix}:mail}}:x");
        assert_eq!(instance().talk(&["SET", &deliveries, "damage"]), "OK");
        let broken = ask(&store, a_take(&tube, None));
        assert!(matches!(broken, Err(Error::OutcomeUnknown(_))), "{broken:?}");
    });
}

// The connection for notices stopped answering, and this was not noticed before a restart of the server.
#[test]
fn a_silent_subscription_is_opened_again() {
    let Some(program) = program() else { return };
    let alone = RedisInstance::new(program);
    let way = Proxy::to(&alone);
    let _store = open(&way.url);
    way.state.wait(|now| now.subscribed == 1);
    way.state.change(|now| now.deaf = true);
    way.state.wait(|now| now.subscribed == 2);
}

// A server of an earlier version continued beside a later one, and misread its data.
#[test]
fn a_server_stops_when_a_later_version_has_taken_over() {
    run(async {
        let url = own(&instance().url());
        let store = open(&url);
        let tube = make_tube(&store, TubeOptions::new(Kind::Fifo));
        let prefix = url.rsplit_once('=').expect("it has a prefix").1;
        instance().talk(&["SET", &format!("{{{prefix}}}:format"), "99"]);
        let refused = loop {
            match ask(&store, put(&tube, 1)) {
                Ok(_) => thread::yield_now(),
                Err(refused) => break refused.to_string(),
            }
        };
        assert!(refused.contains("format 99"), "{refused}");
    });
}
