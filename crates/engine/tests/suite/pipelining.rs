//! A store that accepts a second batch while the first is in flight.

use std::future::poll_fn;
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Poll, Waker};

use taskyard_core::{Body, Command, Error, Finish, Kind, Reply, Span, Timestamp, TubeOptions};
use taskyard_engine::{
    CommandCounts, Engine, ManualClock, SeriesRequest, SeriesStart, Settings, Step,
};
use taskyard_store::{BodyKey, Capabilities, Executed, MemoryStore, Pending, Store};

use crate::fixture::{Control, Fixture, MINUTE, finish, payloads, put, take, taken, tube};

/// A memory store that executes at once and replies when the test allows it.
struct SlowStore {
    memory: MemoryStore,
    control: Arc<BatchControl>,
}

#[derive(Default)]
struct BatchControl {
    state: Mutex<BatchState>,
    moved: Condvar,
}

#[derive(Default)]
struct BatchState {
    /// The verbs of the batches started so far.
    begun: Vec<Vec<&'static str>>,
    /// How many of them may be answered.
    answered: usize,
    wakers: Vec<Waker>,
}

impl BatchControl {
    /// From now on batches are answered when the test allows it.
    fn block(&self) {
        let mut now = self.state.lock().unwrap();
        now.begun.clear();
        now.answered = 0;
    }

    /// Lets this many batches be answered.
    fn answer(&self, count: usize) {
        let mut now = self.state.lock().unwrap();
        now.answered = count;
        now.wakers.drain(..).for_each(Waker::wake);
    }

    /// Returns the verbs of the batches as soon as this many have started.
    fn begun(&self, count: usize) -> Vec<Vec<&'static str>> {
        let now = self.state.lock().unwrap();
        self.moved.wait_while(now, |now| now.begun.len() < count).unwrap().begun.clone()
    }
}

impl Store for SlowStore {
    fn execute(&self, now: Timestamp, commands: Vec<Command>) -> Pending<'_, Executed> {
        let mut state = self.control.state.lock().unwrap();
        state.begun.push(commands.iter().map(Command::verb).collect());
        let number = state.begun.len();
        self.control.moved.notify_all();
        drop(state);
        let mut executed = Some(self.memory.execute(now, commands));
        Box::pin(async move {
            poll_fn(|context| {
                let mut now = self.control.state.lock().unwrap();
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

/// An engine with the tubes "mail" and "other" on such a store.
async fn slow() -> (Fixture, Arc<BatchControl>) {
    let control = Arc::new(BatchControl::default());
    control.answer(usize::MAX);
    let store = SlowStore { memory: MemoryStore::default(), control: control.clone() };
    let clock = Arc::new(ManualClock::new(Timestamp::from_micros(1_000_000_000)));
    let engine = Engine::start(Box::new(store), clock.clone(), Settings::default());
    let fixture = Fixture { engine, clock, control: Arc::new(Control::default()) };
    for name in ["mail", "other"] {
        let (tube, options) = (tube(name), TubeOptions::new(Kind::FifoTtl));
        let create = Command::CreateTube { tube, options, if_not_exists: false };
        assert_eq!(fixture.run(create).await, Ok(Reply::Created(true)));
    }
    (fixture, control)
}

#[tokio::test]
async fn arriving_commands_are_dispatched_before_the_first_batch_is_answered() {
    let (fixture, control) = slow().await;
    fixture.put("mail", &[1, 2]).await;
    let held = fixture.take("mail", 1).await;
    control.block();
    let mut first = fixture.submit(vec![put("mail", &[3], Span::ZERO)]);
    control.begun(1);
    let mut second = fixture.submit(vec![
        take("mail", 9, Span::ZERO),
        finish("mail", &held, Finish::Ack),
        take("mail", 1, Span::ZERO),
    ]);
    assert_eq!(control.begun(2), [vec!["put"], vec!["take", "finish", "take"]]);
    let third = fixture.submit(vec![put("mail", &[4], Span::ZERO); 2]);
    assert!(first.is_pending() && second.is_pending());
    control.answer(1);
    assert!(matches!(first.reply().await, Ok(Reply::Put(_))));
    assert_eq!(control.begun(3)[2], ["put", "put"], "one more batch fits");
    assert!(second.is_pending());
    control.answer(usize::MAX);
    let mut replies = second.replies().await;
    assert_eq!(replies.pop(), Some(Ok(Reply::Taken(Vec::new()))));
    assert_eq!(payloads(&taken(replies.swap_remove(0))), [2, 3]);
    assert!(third.replies().await.iter().all(Result::is_ok));
}

// A take after one that finds nothing and will wait would get what arrives between them.
#[tokio::test]
async fn no_command_overtakes_one_that_may_have_to_wait() {
    let (fixture, control) = slow().await;
    fixture.put("other", &[9]).await;
    control.block();
    let oldest = fixture.submit(vec![take("mail", 1, MINUTE)]);
    control.begun(1);
    let producer = fixture.submit(vec![put("mail", &[1], Span::ZERO)]);
    assert_eq!(control.begun(2)[1], ["put"], "commands that overtake nothing are dispatched");
    let other = fixture.submit(vec![take("other", 1, MINUTE)]);
    let newcomer = fixture.submit(vec![take("mail", 1, Span::ZERO)]);
    control.answer(usize::MAX);
    assert_eq!(oldest.payloads().await, [1]);
    assert!(newcomer.payloads().await.is_empty());
    assert_eq!(other.payloads().await, [9]);
    assert!(matches!(producer.reply().await, Ok(Reply::Put(_))));
}

#[tokio::test]
async fn takes_of_a_tube_with_a_surplus_are_pipelined() {
    let (fixture, control) = slow().await;
    fixture.put("mail", &[1; 2_000]).await;
    control.block();
    let first = fixture.submit(vec![put("mail", &[2], Span::ZERO)]);
    control.begun(1);
    let second = fixture.submit(vec![take("mail", 1, MINUTE)]);
    control.begun(2);
    control.answer(1);
    assert!(first.reply().await.is_ok());
    let third = fixture.submit(vec![take("mail", 1, MINUTE)]);
    assert_eq!(control.begun(3)[2], ["take"]);
    control.answer(usize::MAX);
    assert_eq!((second.payloads().await, third.payloads().await), (vec![1], vec![1]));
}

#[tokio::test]
async fn other_commands_wait_until_nothing_is_in_flight() {
    let (fixture, control) = slow().await;
    control.block();
    let first = fixture.submit(vec![put("mail", &[1], Span::ZERO)]);
    control.begun(1);
    let drops = fixture.submit(vec![Command::DropTube { tube: tube("other") }]);
    let behind = fixture.submit(vec![put("mail", &[2], Span::ZERO)]);
    control.answer(1);
    assert!(first.reply().await.is_ok());
    assert_eq!(control.begun(2)[1], ["drop", "put"]);
    control.answer(usize::MAX);
    assert!(drops.reply().await.is_ok() && behind.reply().await.is_ok());
}

#[tokio::test]
async fn pipelined_batches_are_counted_in_time_series() {
    let (fixture, control) = slow().await;
    fixture.put("mail", &[1, 2]).await;
    let held = fixture.take("mail", 1).await;
    control.block();
    let first = fixture.submit(vec![put("mail", &[3], Span::ZERO), put("other", &[4], Span::ZERO)]);
    control.begun(1);
    let second =
        fixture.submit(vec![finish("mail", &held, Finish::Ack), take("other", 1, Span::ZERO)]);
    control.begun(2);
    control.answer(usize::MAX);
    assert!(first.replies().await.iter().all(Result::is_ok));
    assert!(second.replies().await.iter().all(Result::is_ok));
    fixture.clock.advance(Span::from_secs(1));
    for (name, puts, takes, acks, ready) in [("mail", 3, 1, 1, 2), ("other", 1, 1, 0, 0)] {
        let (tube, from, step) = (Some(tube(name)), SeriesStart::Oldest, Step::Second);
        let series = fixture.engine.series(SeriesRequest { tube, from, step }).await.unwrap();
        let expected = CommandCounts { puts, takes, acks, fails: 0 };
        assert_eq!((series.points.len(), series.points[0].counts), (1, expected), "{name}");
        assert_eq!(series.points[0].depth.ready, ready);
    }
}

// Waiting commands are served by pipelined batches, too.
#[tokio::test]
async fn waiting_commands_are_woken_by_a_pipelined_batch() {
    let (fixture, control) = slow().await;
    let waiting = fixture.submit(vec![take("mail", 1, MINUTE)]);
    assert_eq!(fixture.idle().await, 1);
    control.block();
    let first = fixture.submit(vec![put("other", &[1], Span::ZERO)]);
    control.begun(1);
    let second = fixture.submit(vec![put("mail", &[2], Span::ZERO)]);
    control.begun(2);
    control.answer(usize::MAX);
    assert_eq!(waiting.payloads().await, [2]);
    assert!(first.reply().await.is_ok() && second.reply().await.is_ok());
}
