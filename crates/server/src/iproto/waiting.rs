//! Takes that wait for a task, and go along when their connection changes its session.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use taskyard_core::{Command, Execute, Reply, Result as CoreResult, SessionId, Span, Take};
use tokio::time::Instant;

use super::batch::{Landed, Tag};
use super::face::{Face, Share};

/// A take that waits for a task.
pub(super) struct WaitingTake {
    asked: Asked,
    replies: Pin<Box<dyn Future<Output = Vec<CoreResult<Reply>>> + Send>>,
}

/// What such a take needs to be asked again.
pub(super) struct Asked {
    /// When it came, counted by its connection.
    pub number: u64,
    take: Take,
    /// When its time is over, if that is ever.
    until: Option<Instant>,
    /// How to answer it.
    answer: Option<(Tag, Share)>,
}

impl Asked {
    /// A take that begins to wait now.
    pub fn new(number: u64, take: Take, tag: Tag, share: Share) -> Self {
        let micros = (take.wait != Span::FOREVER).then(|| take.wait.as_micros());
        let wait = micros.map(|micros| Duration::from_micros(micros.max(0).unsigned_abs()));
        let until = wait.and_then(|wait| Instant::now().checked_add(wait));
        Asked { number, take, until, answer: Some((tag, share)) }
    }

    /// The same for another session and for the rest of its time.
    pub fn in_session(mut self, session: SessionId) -> Self {
        self.take.session = Some(session);
        if let Some(until) = self.until {
            let rest = until.saturating_duration_since(Instant::now());
            self.take.wait = Span::from_secs_f64(rest.as_secs_f64()).unwrap_or_default();
        }
        self
    }

    /// Asks the engine.
    pub fn fly(self, face: Arc<Face>) -> WaitingTake {
        let commands = vec![Command::Take(self.take.clone())];
        let replies = Box::pin(async move { face.engine.execute(commands).await });
        WaitingTake { asked: self, replies }
    }
}

impl WaitingTake {
    /// Gives up: what was taken meanwhile goes back to its tube.
    pub fn give_up(self) -> Asked {
        self.asked
    }
}

impl Future for WaitingTake {
    type Output = Landed;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Landed> {
        let replies = ready!(self.replies.as_mut().poll(cx)).into_iter();
        let (tag, share) = self.asked.answer.take().expect("a take lands once");
        Poll::Ready(Landed::Replies { tags: vec![tag].into_iter(), replies, share })
    }
}
