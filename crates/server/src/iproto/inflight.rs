//! Requests of one connection that the engine works on.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use taskyard_core::access::{AccessTarget, AccessVerb, Denied};
use taskyard_core::{SessionId, Take, TubeName};
use taskyard_iproto::EXECUTE;

use super::batch::{Completion, CompletionFuture, PendingRequest};
use super::expected_replies::ReplyCharge;
use super::protocol_session::{ProtocolSession, ReplyTo};
use super::waiting_take::{SentTake, WaitingTake};
use crate::tube_quota::TubeQuota;

/// How many batches are polled whenever anything happens. A client that sends one request after the
/// other, or a window of requests at once, has no more.
const FAST_MAX: usize = 4;

/// The requests of one connection that the engine works on.
#[derive(Default)]
pub(super) struct Inflight {
    /// Batches that are answered soon. These few are polled whenever anything happens.
    fast: Vec<CompletionFuture>,
    /// Batches that may take longer; each wakes the connection when it is done.
    slow: FuturesUnordered<SlowBatch>,
    /// Takes that wait for a task in the session of the connection.
    waiting: FuturesUnordered<WaitingTake>,
    /// How many of these there were so far.
    waited: u64,
    /// A batch that joins or leaves sessions: nothing else is sent until it is done, because the
    /// meaning of later requests depends on it.
    session_change: Option<CompletionFuture>,
    /// Replies that are not written yet, because too many bytes are unsent.
    completed: VecDeque<Completion>,
}

/// A batch that may take longer.
struct SlowBatch {
    future: CompletionFuture,
    /// What it consists of, if that is one native take.
    take: Option<NativeTake>,
}

/// A native take that waits, alone in its batch.
pub(super) struct NativeTake {
    /// The tube that it takes from.
    pub tube: TubeName,
    /// The request that it answers.
    pub reply_to: ReplyTo,
    /// The expected size of the reply.
    pub charge: ReplyCharge,
}

/// Whether a command may wait for a task or for free capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitMode {
    /// The engine answers it at once.
    Immediate,
    /// It may wait.
    MayWait,
}

impl Inflight {
    /// Whether sessions are being joined or left.
    pub fn is_changing_session(&self) -> bool {
        self.session_change.is_some()
    }

    /// Whether no batch is left that is answered soon.
    pub fn has_only_waiting(&self) -> bool {
        self.fast.is_empty() && self.session_change.is_none() && self.completed.is_empty()
    }

    /// Whether the engine works on nothing for this connection.
    pub fn is_idle(&self) -> bool {
        self.has_only_waiting() && self.slow.is_empty() && self.waiting.is_empty()
    }

    /// The next completion, if there is one.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Completion> {
        for index in 0..self.fast.len() {
            if let Poll::Ready(completion) = self.fast[index].as_mut().poll(cx) {
                drop(self.fast.remove(index));
                return Poll::Ready(completion);
            }
        }
        if let Poll::Ready(Some(completion)) = self.slow.poll_next_unpin(cx) {
            return Poll::Ready(completion);
        }
        match self.waiting.poll_next_unpin(cx) {
            Poll::Ready(Some(completion)) => Poll::Ready(completion),
            _ => Poll::Pending,
        }
    }
}

impl ProtocolSession {
    /// Sends the current batch, which does not wait.
    pub(super) fn submit(&mut self) {
        self.submit_as(WaitMode::Immediate);
    }

    /// Sends the current batch.
    pub(super) fn submit_as(&mut self, mode: WaitMode) {
        if !self.batch.requests.is_empty() {
            let batch = self.batch.split();
            let future = match batch.commands.iter().any(TubeQuota::concerns) {
                true => batch.execute_as(self.server.clone(), self.principal.clone()),
                false => batch.execute(self.server.clone()),
            };
            self.start(future, mode);
        }
    }

    /// Starts a batch. Its commands reach the engine before this returns, so that commands are run
    /// in the order in which they arrived.
    pub(super) fn start(&mut self, mut future: CompletionFuture, mode: WaitMode) {
        // A pending future is polled again with the waker of the connection.
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(completion) => self.inflight.completed.push_back(completion),
            Poll::Pending if mode == WaitMode::Immediate && self.inflight.fast.len() < FAST_MAX => {
                self.inflight.fast.push(future);
            }
            Poll::Pending => self.inflight.slow.push(SlowBatch { future, take: None }),
        }
    }

    /// Sends the current batch, which is this take.
    pub(super) fn submit_native_take(&mut self, take: NativeTake) {
        let mut future = self.batch.split().execute(self.server.clone());
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(completion) => self.inflight.completed.push_back(completion),
            Poll::Pending => self.inflight.slow.push(SlowBatch { future, take: Some(take) }),
        }
    }

    /// Ends the waiting takes for which the user has no right any more, after a change of the users. Their answer is that of a
    /// request without the right; a task that was taken meanwhile returns to its tube.
    pub fn end_forbidden_takes(&mut self) {
        self.server.users.refresh(&mut self.principal);
        for waiting in std::mem::take(&mut self.inflight.waiting) {
            let Err(denied) = self.require_take(waiting.tube()) else {
                self.inflight.waiting.push(waiting);
                continue;
            };
            let function = format!("{}.tube.{}:take", self.server.prefix, waiting.tube());
            if let Some((request, share)) = waiting.cancel().into_request() {
                self.in_flight -= share.amount();
                self.expected.record(request.charge, 0);
                self.deny(request.reply_to, &function, &denied);
            }
        }
        for batch in std::mem::take(&mut self.inflight.slow) {
            let denied = batch.take.as_ref().and_then(|NativeTake { tube, reply_to, charge }| {
                Some((*reply_to, *charge, self.require_take(tube).err()?))
            });
            let Some((reply_to, charge, denied)) = denied else {
                self.inflight.slow.push(batch);
                continue;
            };
            drop(batch);
            self.in_flight -= 1;
            self.expected.record(charge, 0);
            self.deny(reply_to, EXECUTE, &denied);
        }
    }

    fn require_take(&self, tube: &TubeName) -> Result<(), Denied> {
        self.permissions().require(AccessVerb::Take, AccessTarget::Tube(tube.as_str()))
    }

    /// Starts a take that waits.
    pub(super) fn start_take(&mut self, take: Take, request: PendingRequest) {
        self.inflight.waited += 1;
        let share = self.batch.share.split();
        self.wait_for(SentTake::new(self.inflight.waited, take, request, share));
    }

    fn wait_for(&mut self, take: SentTake) {
        let mut waiting = take.execute(self.server.clone());
        match Pin::new(&mut waiting).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(completion) => self.inflight.completed.push_back(completion),
            Poll::Pending => self.inflight.waiting.push(waiting),
        }
    }

    /// Moves waiting takes to another session, in their order and with their remaining time, so
    /// that their tasks belong to the session that will finish them.
    pub(super) fn move_waiting_takes(&mut self, session: SessionId) {
        let waiting = std::mem::take(&mut self.inflight.waiting);
        // All of them are cancelled before the first waits again; otherwise one could take what
        // another gives back.
        let mut takes: Vec<_> = waiting.into_iter().map(WaitingTake::cancel).collect();
        takes.sort_unstable_by_key(|take| take.number);
        for take in takes {
            self.wait_for(take.for_session(session));
        }
    }

    /// Sends a batch that joins or leaves sessions.
    pub(super) fn start_session_change(&mut self) {
        let mut future = self.batch.split().execute(self.server.clone());
        let completion = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        // Earlier replies are written first, in the session before.
        self.inflight.session_change = Some(match completion {
            Poll::Ready(completion) => Box::pin(std::future::ready(completion)),
            Poll::Pending => future,
        });
    }

    /// Writes all replies that are there. True if there may be more, but too many bytes are unsent.
    pub fn poll_replies(&mut self, cx: &mut Context<'_>) -> bool {
        loop {
            while let Some(completion) = self.inflight.completed.pop_front() {
                if let Some(rest) = self.write_replies(completion) {
                    self.inflight.completed.push_front(rest);
                    return true;
                }
            }
            if !self.can_reply() {
                return true;
            }
            // Earlier replies belong to the session before.
            if let Some(change) = &mut self.inflight.session_change
                && let Poll::Ready(completion) = change.as_mut().poll(cx)
            {
                self.inflight.session_change = None;
                self.write_all_replies(completion);
                continue;
            }
            match self.inflight.poll_next(cx) {
                Poll::Ready(completion) => self.inflight.completed.push_back(completion),
                Poll::Pending => return false,
            }
        }
    }

    /// Ends the session: pending requests are cancelled, and tasks that were taken for them or are
    /// held by its queue sessions return to their tubes.
    pub async fn leave(mut self) {
        let change = self.inflight.session_change.take();
        drop(std::mem::take(&mut self.inflight));
        if let Some(change) = change {
            // A session that was joined meanwhile must be left.
            let completion = change.await;
            self.write_all_replies(completion);
            // A switch of sessions sends one more batch, which leaves the old session.
            for future in std::mem::take(&mut self.inflight.fast) {
                let completion = future.await;
                self.write_all_replies(completion);
            }
        }
        self.sessions.leave(&self.server).await;
    }
}

impl Future for SlowBatch {
    type Output = Completion;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Completion> {
        self.future.as_mut().poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::Arc;

    use taskyard_core::limits::PENDING_BYTES_MAX;
    use taskyard_engine::{Engine, Settings, SystemClock};
    use taskyard_iproto::{Operation, Shape, encode_request, next_frame, parse_reply};
    use taskyard_store::MemoryStore;

    use super::*;
    use crate::auth_throttle::AuthThrottle;
    use crate::iproto::config::IprotoConfig;
    use crate::iproto::protocol_session::{ConnectionSecrets, UNSENT_BYTES_MAX};
    use crate::iproto::server::{IprotoServer, LimitShare, SharedLimit};

    /// The size of the task that is peeked at.
    const DATA_BYTES: usize = 300_000;

    fn protocol() -> ProtocolSession {
        let store = Box::new(MemoryStore::default());
        let engine = Engine::start(store, Arc::new(SystemClock::new()), Settings::default());
        let config = IprotoConfig::new(([127, 0, 0, 1], 0).into());
        let random = ConnectionSecrets { salt: [0; 32], session: [1; 16] };
        ProtocolSession::new(
            Arc::new(IprotoServer::new(config, engine, [0; 16], Arc::new(AuthThrottle::new()))),
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

    /// Serves requests until replies must be sent first. Returns how many bytes were consumed, and
    /// the highest number of requests in flight.
    async fn serve(protocol: &mut ProtocolSession, bytes: &[u8]) -> (usize, usize) {
        let (mut consumed, mut most) = (0, 0);
        poll_fn(|cx| {
            loop {
                if protocol.poll_replies(cx) {
                    return Poll::Ready(());
                }
                if consumed == bytes.len() && protocol.inflight.is_idle() {
                    return Poll::Ready(());
                }
                if consumed == bytes.len() || !protocol.can_accept() {
                    return Poll::Pending;
                }
                consumed += protocol.feed(&bytes[consumed..]);
                most = most.max(protocol.in_flight);
            }
        })
        .await;
        (consumed, most)
    }

    /// The number of replies; none of them may be a fault.
    fn answers(protocol: &ProtocolSession) -> usize {
        let (mut rest, mut count) = (&protocol.answers[..], 0);
        while let Some(frame) = next_frame(rest, usize::MAX).unwrap() {
            assert_eq!(parse_reply(frame.body).unwrap().fault(), None);
            rest = &rest[frame.consumed..];
            count += 1;
        }
        count
    }

    /// A protocol session with a tube that has one large task.
    async fn with_task() -> ProtocolSession {
        let mut protocol = protocol();
        let mut data = vec![0x91, 0xc6];
        data.extend_from_slice(&(DATA_BYTES as u32).to_be_bytes());
        data.resize(data.len() + DATA_BYTES, 0);
        let mut bytes = call("queue.create_tube", b"\x92\xa1t\xa4fifo");
        bytes.extend(call("queue.tube.t:put", &data));
        serve(&mut protocol, &bytes).await;
        assert_eq!(answers(&protocol), 2);
        protocol.clear_answers();
        protocol
    }

    // One client asked 1,500 times for a task of a megabyte and read nothing: 51 KB of requests became
    // 3 GB of answers.
    #[tokio::test]
    async fn unread_answers_are_limited() {
        let mut protocol = with_task().await;
        let bytes = call("queue.tube.t:peek", &[0x91, 0x00]).repeat(200);
        let (mut consumed, mut answered) = (0, 0);
        while answered < 200 {
            let (more, most) = serve(&mut protocol, &bytes[consumed..]).await;
            assert!(most <= 20, "{most} in flight");
            assert!(protocol.answers.len() < UNSENT_BYTES_MAX + DATA_BYTES + 100);
            consumed += more;
            answered += answers(&protocol);
            protocol.clear_answers();
        }
        assert_eq!((consumed, protocol.in_flight), (bytes.len(), 0));
    }

    // Small requests must not be slowed down because replies might be large.
    #[tokio::test]
    async fn small_requests_are_in_flight_together() {
        let mut protocol = with_task().await;
        let bytes = call("queue.tube.t:take", &[0x91, 0x00]);
        serve(&mut protocol, &bytes).await;
        protocol.clear_answers();
        let bytes = call("queue.tube.t:take", &[0x91, 0x00]).repeat(1_000);
        serve(&mut protocol, &bytes).await;
        let (consumed, most) = serve(&mut protocol, &bytes).await;
        assert_eq!((consumed, answers(&protocol)), (bytes.len(), 2_000));
        assert!(most >= 256, "{most} in flight");
        let bytes = call("queue.tube.t:put", &[0x91, 0x00]).repeat(1_000);
        assert_eq!(serve(&mut protocol, &bytes).await.1, 1_000);
    }

    // Every connection may have a megabyte of unsent replies, so ten thousand of them could have 10
    // GB.
    #[tokio::test]
    async fn every_connection_may_have_a_few_unsent_answers() {
        let mut protocol = with_task().await;
        let mut others = LimitShare::new(protocol.server.clone(), SharedLimit::Unsent);
        assert!(others.grow(PENDING_BYTES_MAX));
        let bytes = call("queue.tube.t:peek", &[0x91, 0x00]).repeat(3);
        serve(&mut protocol, &bytes).await;
        assert_eq!(answers(&protocol), 1, "one exceeds the guaranteed minimum");
        drop(others);
        serve(&mut protocol, &[]).await;
        assert_eq!(answers(&protocol), 3);
    }
}
