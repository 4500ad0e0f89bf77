//! A store that takes a second batch while the first is under way.

use std::future::poll_fn;
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Poll, Waker};

use taskyard_core::{Body, Command, Error, Finish, Kind, Reply, Span, Timestamp, TubeOptions};
use taskyard_engine::{Engine, HandClock, Settings};
use taskyard_store::{BodyKey, Capabilities, Executed, MemoryStore, Pending, Store};

use crate::rig::{Control, MINUTE, Rig, finish, payloads, put, take, taken, tube};

/// A memory store that does what it is asked at once and answers when it is told to.
struct Slow {
    memory: MemoryStore,
    line: Arc<Line>,
}

#[derive(Default)]
struct Line {
    now: Mutex<Now>,
    moved: Condvar,
}

#[derive(Default)]
struct Now {
    /// What the batches begun so far ask.
    begun: Vec<Vec<&'static str>>,
    /// How many of them may be answered.
    answered: usize,
    wakers: Vec<Waker>,
}

impl Line {
    /// From now on batches are answered when they are told to.
    fn hold(&self) {
        let mut now = self.now.lock().unwrap();
        now.begun.clear();
        now.answered = 0;
    }

    /// Lets this many be answered.
    fn answer(&self, count: usize) {
        let mut now = self.now.lock().unwrap();
        now.answered = count;
        now.wakers.drain(..).for_each(Waker::wake);
    }

    /// Returns when this many were begun; what they ask.
    fn begun(&self, count: usize) -> Vec<Vec<&'static str>> {
        let now = self.now.lock().unwrap();
        self.moved.wait_while(now, |now| now.begun.len() < count).unwrap().begun.clone()
    }
}

impl Store for Slow {
    fn execute(&self, now: Timestamp, commands: Vec<Command>) -> Pending<'_, Executed> {
        let mut line = self.line.now.lock().unwrap();
        line.begun.push(commands.iter().map(Command::verb).collect());
        let number = line.begun.len();
        self.line.moved.notify_all();
        drop(line);
        let mut executed = Some(self.memory.execute(now, commands));
        Box::pin(async move {
            poll_fn(|context| {
                let mut now = self.line.now.lock().unwrap();
                if now.answered >= number {
                    return Poll::Ready(());
                }
                now.wakers.push(context.waker().clone());
                Poll::Pending
            })
            .await;
            executed.take().expect("it is polled to its end once").await
        })
    }

    fn batches_max(&self) -> usize {
        2
    }

    fn load(&self, keys: Vec<BodyKey>) -> Pending<'_, Vec<Result<Option<Body>, Error>>> {
        self.memory.load(keys)
    }

    fn capabilities(&self) -> Capabilities {
        self.memory.capabilities()
    }

    fn close(&self) -> Pending<'_, Result<(), Error>> {
        self.memory.close()
    }
}

/// An engine with tubes "mail", and "other", on such a store.
async fn slow() -> (Rig, Arc<Line>) {
    let line = Arc::new(Line::default());
    line.answer(usize::MAX);
    let store = Slow { memory: MemoryStore::default(), line: line.clone() };
    let clock = Arc::new(HandClock::new(Timestamp::from_micros(1_000_000_000)));
    let engine = Engine::start(Box::new(store), clock.clone(), Settings::default());
    let rig = Rig { engine, clock, control: Arc::new(Control::default()) };
    for name in ["mail", "other"] {
        let (tube, options) = (tube(name), TubeOptions::new(Kind::FifoTtl));
        let create = Command::CreateTube { tube, options, if_not_exists: false };
        assert_eq!(rig.run(create).await, Ok(Reply::Created(true)));
    }
    (rig, line)
}

#[tokio::test]
async fn what_arrives_leaves_before_the_first_batch_is_answered() {
    let (rig, line) = slow().await;
    rig.put("mail", &[1, 2]).await;
    let held = rig.take("mail", 1).await;
    line.hold();
    let mut first = rig.ask(vec![put("mail", &[3], Span::ZERO)]);
    line.begun(1);
    let mut second = rig.ask(vec![
        take("mail", 9, Span::ZERO),
        finish("mail", &held, Finish::Ack),
        take("mail", 1, Span::ZERO),
    ]);
    assert_eq!(line.begun(2), [vec!["put"], vec!["take", "finish", "take"]]);
    let third = rig.ask(vec![put("mail", &[4], Span::ZERO); 2]);
    assert!(first.is_pending() && second.is_pending());
    line.answer(1);
    assert!(matches!(first.reply().await, Ok(Reply::Put(_))));
    assert_eq!(line.begun(3)[2], ["put", "put"], "there is room for one more");
    assert!(second.is_pending());
    line.answer(usize::MAX);
    let mut replies = second.replies().await;
    assert_eq!(replies.pop(), Some(Ok(Reply::Taken(Vec::new()))));
    assert_eq!(payloads(&taken(replies.swap_remove(0))), [2, 3]);
    assert!(third.replies().await.iter().all(Result::is_ok));
}

// A take that follows one which finds nothing, and will wait, would get what comes between them.
#[tokio::test]
async fn nobody_overtakes_one_who_may_have_to_wait() {
    let (rig, line) = slow().await;
    rig.put("other", &[9]).await;
    line.hold();
    let oldest = rig.ask(vec![take("mail", 1, MINUTE)]);
    line.begun(1);
    let producer = rig.ask(vec![put("mail", &[1], Span::ZERO)]);
    assert_eq!(line.begun(2)[1], ["put"], "those who are in nobody's way leave");
    let elsewhere = rig.ask(vec![take("other", 1, MINUTE)]);
    let newcomer = rig.ask(vec![take("mail", 1, Span::ZERO)]);
    line.answer(usize::MAX);
    assert_eq!(oldest.payloads().await, [1]);
    assert!(newcomer.payloads().await.is_empty());
    assert_eq!(elsewhere.payloads().await, [9]);
    assert!(matches!(producer.reply().await, Ok(Reply::Put(_))));
}

#[tokio::test]
async fn where_there_is_plenty_takes_that_would_wait_follow_each_other() {
    let (rig, line) = slow().await;
    rig.put("mail", &[1; 2_000]).await;
    line.hold();
    let first = rig.ask(vec![put("mail", &[2], Span::ZERO)]);
    line.begun(1);
    let second = rig.ask(vec![take("mail", 1, MINUTE)]);
    line.begun(2);
    line.answer(1);
    assert!(first.reply().await.is_ok());
    let third = rig.ask(vec![take("mail", 1, MINUTE)]);
    assert_eq!(line.begun(3)[2], ["take"]);
    line.answer(usize::MAX);
    assert_eq!((second.payloads().await, third.payloads().await), (vec![1], vec![1]));
}

#[tokio::test]
async fn whatever_is_not_plain_waits_until_nothing_is_under_way() {
    let (rig, line) = slow().await;
    line.hold();
    let first = rig.ask(vec![put("mail", &[1], Span::ZERO)]);
    line.begun(1);
    let drops = rig.ask(vec![Command::DropTube { tube: tube("other") }]);
    let behind = rig.ask(vec![put("mail", &[2], Span::ZERO)]);
    line.answer(1);
    assert!(first.reply().await.is_ok());
    assert_eq!(line.begun(2)[1], ["drop", "put"]);
    line.answer(usize::MAX);
    assert!(drops.reply().await.is_ok() && behind.reply().await.is_ok());
}

// Whoever waits is served by what is done beside others too.
#[tokio::test]
async fn those_who_wait_are_woken_by_a_batch_that_followed_another() {
    let (rig, line) = slow().await;
    let waiting = rig.ask(vec![take("mail", 1, MINUTE)]);
    assert_eq!(rig.settled().await, 1);
    line.hold();
    let first = rig.ask(vec![put("other", &[1], Span::ZERO)]);
    line.begun(1);
    let second = rig.ask(vec![put("mail", &[2], Span::ZERO)]);
    line.begun(2);
    line.answer(usize::MAX);
    assert_eq!(waiting.payloads().await, [2]);
    assert!(first.reply().await.is_ok() && second.reply().await.is_ok());
}
