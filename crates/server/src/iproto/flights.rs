//! What of one connection is under way.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use taskyard_core::{SessionId, Take};

use super::batch::{Flight, Landed, Tag};
use super::desk::Desk;
use super::waiting::{Asked, WaitingTake};
use crate::tube_quota::TubeQuota;

/// How many batches are asked whenever anything happens; those of a client that sends one request
/// after the other, or a window of requests at once, are no more.
const NEAR_MAX: usize = 4;

/// What of one connection is under way.
#[derive(Default)]
pub(super) struct Flights {
    /// What is under way and soon answered. These few are asked whenever anything happens.
    near: Vec<Flight>,
    /// What is under way and may take its time. Whoever lands among these says so.
    far: FuturesUnordered<Flight>,
    /// Takes that wait for a task in the session of the connection.
    waiting: FuturesUnordered<WaitingTake>,
    /// How many of these there were.
    waited: u64,
    /// Sessions are being joined or left: nothing else begins until that is done, because what follows
    /// depends on it.
    joining: Option<Flight>,
    /// What is back and not answered yet, because too many answers are not sent.
    landed: VecDeque<Landed>,
}

/// Whether something may wait for a task or for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    /// It is answered as soon as the engine comes to it.
    None,
    /// It may wait.
    Waits,
}

impl Flights {
    /// Whether sessions are being joined or left.
    pub fn is_joining(&self) -> bool {
        self.joining.is_some()
    }

    /// Whether nothing is under way that is soon answered.
    pub fn is_calm(&self) -> bool {
        self.near.is_empty() && self.joining.is_none() && self.landed.is_empty()
    }

    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.is_calm() && self.far.is_empty() && self.waiting.is_empty()
    }

    /// The next that is back, if any is.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Landed> {
        for place in 0..self.near.len() {
            if let Poll::Ready(landed) = self.near[place].as_mut().poll(cx) {
                drop(self.near.remove(place));
                return Poll::Ready(landed);
            }
        }
        if let Poll::Ready(Some(landed)) = self.far.poll_next_unpin(cx) {
            return Poll::Ready(landed);
        }
        match self.waiting.poll_next_unpin(cx) {
            Poll::Ready(Some(landed)) => Poll::Ready(landed),
            _ => Poll::Pending,
        }
    }
}

impl Desk {
    /// Sends down what has been gathered; it is answered soon.
    pub(super) fn submit(&mut self) {
        self.submit_as(Patience::None);
    }

    /// Sends down what has been gathered.
    pub(super) fn submit_as(&mut self, patience: Patience) {
        if !self.batch.tags.is_empty() {
            let batch = self.batch.split();
            let flight = match batch.commands.iter().any(TubeQuota::concerns) {
                true => batch.fly_for(self.face.clone(), &self.user, &self.grants),
                false => batch.fly(self.face.clone()),
            };
            self.launch(flight, patience);
        }
    }

    /// Begins something. What it asks of the engine is asked before this returns, so that commands
    /// go down in the order in which they arrived.
    pub(super) fn launch(&mut self, mut flight: Flight, patience: Patience) {
        // Whoever lands later is asked again with the connection's own waker.
        match flight.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(landed) => self.flights.landed.push_back(landed),
            Poll::Pending if patience == Patience::None && self.flights.near.len() < NEAR_MAX => {
                self.flights.near.push(flight);
            }
            Poll::Pending => self.flights.far.push(flight),
        }
    }

    /// Begins a take that waits.
    pub(super) fn launch_take(&mut self, take: Take, tag: Tag) {
        self.flights.waited += 1;
        let asked = Asked::new(self.flights.waited, take, tag, self.batch.share.split());
        self.wait_for(asked);
    }

    fn wait_for(&mut self, asked: Asked) {
        let mut waiting = asked.fly(self.face.clone());
        match Pin::new(&mut waiting).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(landed) => self.flights.landed.push_back(landed),
            Poll::Pending => self.flights.waiting.push(waiting),
        }
    }

    /// Lets the takes that wait go on in another session, in their order and for the rest of their time,
    /// so that their tasks belong to the session that will finish them.
    pub(super) fn take_along(&mut self, session: SessionId) {
        let waiting = std::mem::take(&mut self.flights.waiting);
        // All of them give up before the first waits again, or one might take what another gives back.
        let mut asked: Vec<_> = waiting.into_iter().map(WaitingTake::give_up).collect();
        asked.sort_unstable_by_key(|asked| asked.number);
        for asked in asked {
            self.wait_for(asked.in_session(session));
        }
    }

    /// Sends down a batch by which sessions are joined or left.
    pub(super) fn launch_joining(&mut self) {
        let mut flight = self.batch.split().fly(self.face.clone());
        let landed = flight.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        // What is back before it is answered before it, in the session before.
        self.flights.joining = Some(match landed {
            Poll::Ready(landed) => Box::pin(std::future::ready(landed)),
            Poll::Pending => flight,
        });
    }

    /// Answers what has come back. True when there may be more, but too many answers are not sent yet.
    pub fn poll_landings(&mut self, cx: &mut Context<'_>) -> bool {
        loop {
            while let Some(landed) = self.flights.landed.pop_front() {
                if let Some(rest) = self.answer_some(landed) {
                    self.flights.landed.push_front(rest);
                    return true;
                }
            }
            if !self.may_answer() {
                return true;
            }
            // What was back before belongs to the session before.
            if let Some(joining) = &mut self.flights.joining
                && let Poll::Ready(landed) = joining.as_mut().poll(cx)
            {
                self.flights.joining = None;
                self.answer_whole(landed);
                continue;
            }
            match self.flights.poll_next(cx) {
                Poll::Ready(landed) => self.flights.landed.push_back(landed),
                Poll::Pending => return false,
            }
        }
    }

    /// Ends it: what is under way is abandoned, what was taken for it and what its sessions hold goes
    /// back to the tubes.
    pub async fn leave(mut self) {
        let joining = self.flights.joining.take();
        drop(std::mem::take(&mut self.flights));
        if let Some(joining) = joining {
            // Whether a session was joined decides whether it must be left.
            let landed = joining.await;
            self.answer_whole(landed);
            // A switch of sessions leaves the old one behind it.
            for flight in std::mem::take(&mut self.flights.near) {
                let landed = flight.await;
                self.answer_whole(landed);
            }
        }
        self.sessions.leave(&self.face).await;
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::Arc;

    use taskyard_core::limits::PENDING_BYTES_MAX;
    use taskyard_engine::{Engine, Settings, SystemClock};
    use taskyard_store::MemoryStore;
    use taskyard_wire::iproto::{Operation, Shape, encode_request, next_frame, parse_reply};

    use super::*;
    use crate::auth_throttle::AuthThrottle;
    use crate::iproto::config::IprotoConfig;
    use crate::iproto::desk::{Random, UNSENT_BYTES_MAX};
    use crate::iproto::face::{Face, Of, Share};

    /// How large the data of the task is that is looked at.
    const DATA_BYTES: usize = 300_000;

    fn desk() -> Desk {
        let store = Box::new(MemoryStore::default());
        let engine = Engine::start(store, Arc::new(SystemClock::new()), Settings::default());
        let config = IprotoConfig::new(([127, 0, 0, 1], 0).into());
        let random = Random { salt: [0; 32], session: [1; 16] };
        Desk::new(
            Arc::new(Face::new(config, engine, [0; 16], Arc::new(AuthThrottle::new()))),
            None,
            random,
            &[],
        )
    }

    fn call(name: &str, args: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode_request(&mut bytes, 1, &Operation::Call { name, args, shape: Shape::Call });
        bytes
    }

    /// Serves requests until nothing more can be done before answers are sent. Answers how many bytes
    /// were served, and how many requests were under way at most.
    async fn serve(desk: &mut Desk, bytes: &[u8]) -> (usize, usize) {
        let (mut eaten, mut most) = (0, 0);
        poll_fn(|cx| {
            loop {
                if desk.poll_landings(cx) {
                    return Poll::Ready(());
                }
                if eaten == bytes.len() && desk.flights.is_idle() {
                    return Poll::Ready(());
                }
                if eaten == bytes.len() || !desk.may_eat() {
                    return Poll::Pending;
                }
                eaten += desk.eat(&bytes[eaten..]);
                most = most.max(desk.in_flight);
            }
        })
        .await;
        (eaten, most)
    }

    /// How many answers there are; none of them may be a fault.
    fn answers(desk: &Desk) -> usize {
        let (mut rest, mut count) = (&desk.answers[..], 0);
        while let Some(frame) = next_frame(rest, usize::MAX).unwrap() {
            assert_eq!(parse_reply(frame.body).unwrap().fault(), None);
            rest = &rest[frame.consumed..];
            count += 1;
        }
        count
    }

    /// A desk with a tube that has one large task.
    async fn with_task() -> Desk {
        let mut desk = desk();
        let mut data = vec![0x91, 0xc6];
        data.extend_from_slice(&(DATA_BYTES as u32).to_be_bytes());
        data.resize(data.len() + DATA_BYTES, 0);
        let mut bytes = call("queue.create_tube", b"\x92\xa1t\xa4fifo");
        bytes.extend(call("queue.tube.t:put", &data));
        serve(&mut desk, &bytes).await;
        assert_eq!(answers(&desk), 2);
        desk.forget_answers();
        desk
    }

    // One client asked 1,500 times for a task of a megabyte and read nothing: 51 KB of requests became
    // 3 GB of answers.
    #[tokio::test]
    async fn answers_that_nobody_reads_do_not_pile_up() {
        let mut desk = with_task().await;
        let bytes = call("queue.tube.t:peek", &[0x91, 0x00]).repeat(200);
        let (mut eaten, mut answered) = (0, 0);
        while answered < 200 {
            let (more, most) = serve(&mut desk, &bytes[eaten..]).await;
            assert!(most <= 20, "{most} are under way");
            assert!(desk.answers.len() < UNSENT_BYTES_MAX + DATA_BYTES + 100);
            eaten += more;
            answered += answers(&desk);
            desk.forget_answers();
        }
        assert_eq!((eaten, desk.in_flight), (bytes.len(), 0));
    }

    // What is small must not be slowed down by what might be large.
    #[tokio::test]
    async fn small_requests_are_under_way_together() {
        let mut desk = with_task().await;
        let bytes = call("queue.tube.t:take", &[0x91, 0x00]);
        serve(&mut desk, &bytes).await;
        desk.forget_answers();
        let bytes = call("queue.tube.t:take", &[0x91, 0x00]).repeat(1_000);
        serve(&mut desk, &bytes).await;
        let (eaten, most) = serve(&mut desk, &bytes).await;
        assert_eq!((eaten, answers(&desk)), (bytes.len(), 2_000));
        assert!(most >= 256, "{most} are under way");
        let bytes = call("queue.tube.t:put", &[0x91, 0x00]).repeat(1_000);
        assert_eq!(serve(&mut desk, &bytes).await.1, 1_000);
    }

    // Every connection might have a megabyte that is not sent, and ten thousand of them 10 GB.
    #[tokio::test]
    async fn everybody_gets_a_little_when_much_is_not_sent() {
        let mut desk = with_task().await;
        let mut others = Share::new(desk.face.clone(), Of::Unsent);
        assert!(others.grow(PENDING_BYTES_MAX));
        let bytes = call("queue.tube.t:peek", &[0x91, 0x00]).repeat(3);
        serve(&mut desk, &bytes).await;
        assert_eq!(answers(&desk), 1, "one is already more than a little");
        drop(others);
        serve(&mut desk, &[]).await;
        assert_eq!(answers(&desk), 3);
    }
}
