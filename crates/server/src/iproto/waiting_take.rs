//! Takes that wait for a task and move with their connection to another session.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use taskyard_core::{
    Command, Execute, Reply, Result as CoreResult, SessionId, Span, Take, TubeName,
};
use tokio::time::Instant;

use super::batch::{Completion, PendingRequest};
use super::server::{IprotoServer, LimitShare};

/// A take that waits for a task.
pub(super) struct WaitingTake {
    request: SentTake,
    replies: Pin<Box<dyn Future<Output = Vec<CoreResult<Reply>>> + Send>>,
}

/// What is needed to send the take again.
pub(super) struct SentTake {
    /// Its position among the waiting takes of the connection.
    pub number: u64,
    take: Take,
    /// When it stops waiting, if it does.
    until: Option<Instant>,
    /// The request that it answers.
    answer: Option<(PendingRequest, LimitShare)>,
}

impl SentTake {
    /// A take that starts to wait now.
    pub fn new(number: u64, take: Take, request: PendingRequest, share: LimitShare) -> Self {
        let micros = (take.wait != Span::FOREVER).then(|| take.wait.as_micros());
        let wait = micros.map(|micros| Duration::from_micros(micros.max(0).unsigned_abs()));
        let until = wait.and_then(|wait| Instant::now().checked_add(wait));
        SentTake { number, take, until, answer: Some((request, share)) }
    }

    /// The request that it would have answered.
    pub fn into_request(self) -> Option<(PendingRequest, LimitShare)> {
        self.answer
    }

    /// The same take for another session, with its remaining time.
    pub fn for_session(mut self, session: SessionId) -> Self {
        self.take.session = Some(session);
        if let Some(until) = self.until {
            let rest = until.saturating_duration_since(Instant::now());
            self.take.wait = Span::from_secs_f64(rest.as_secs_f64()).unwrap_or_default();
        }
        self
    }

    /// Sends it to the engine.
    pub fn execute(self, server: Arc<IprotoServer>) -> WaitingTake {
        let commands = vec![Command::Take(self.take.clone())];
        let replies = Box::pin(async move { server.engine.execute(commands).await });
        WaitingTake { request: self, replies }
    }
}

impl WaitingTake {
    /// Cancels the take; a task that was taken meanwhile returns to its tube.
    pub fn cancel(self) -> SentTake {
        self.request
    }

    /// The tube that it takes from.
    pub fn tube(&self) -> &TubeName {
        &self.request.take.tube
    }
}

impl Future for WaitingTake {
    type Output = Completion;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Completion> {
        let replies = ready!(self.replies.as_mut().poll(cx)).into_iter();
        let (request, share) = self.request.answer.take().expect("a take completes once");
        Poll::Ready(Completion::Replies { requests: vec![request].into_iter(), replies, share })
    }
}
