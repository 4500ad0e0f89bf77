//! What of one connection is under way.

use std::task::{Context, Poll, Waker};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::batch::{Flight, Landed};
use super::desk::{Desk, UNSENT_BYTES_MAX};

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
    /// Sessions are being joined or left: nothing else begins until that is done, because what follows
    /// depends on it.
    joining: Option<Flight>,
}

/// Whether something may wait for a task or for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    /// It is answered as soon as the engine comes to it.
    None,
    /// It may wait.
    Waits,
}

/// How far the landings came.
pub(super) struct Landings {
    /// There may be more, but too many answers are not sent yet.
    pub interrupted: bool,
    /// What was held up may go on.
    pub resumed: bool,
}

impl Flights {
    /// Whether sessions are being joined or left.
    pub fn is_joining(&self) -> bool {
        self.joining.is_some()
    }

    /// Whether nothing is under way that is soon answered.
    pub fn is_calm(&self) -> bool {
        self.near.is_empty() && self.joining.is_none()
    }

    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.is_calm() && self.far.is_empty()
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
            let flight = self.batch.split().fly(self.face.clone());
            self.launch(flight, patience);
        }
    }

    /// Begins something. What it asks of the engine is asked before this returns, so that commands
    /// go down in the order in which they arrived.
    pub(super) fn launch(&mut self, mut flight: Flight, patience: Patience) {
        // Whoever lands later is asked again with the connection's own waker.
        match flight.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(landed) => self.land(landed),
            Poll::Pending if patience == Patience::None && self.flights.near.len() < NEAR_MAX => {
                self.flights.near.push(flight);
            }
            Poll::Pending => self.flights.far.push(flight),
        }
    }

    /// Sends down a batch by which sessions are joined or left.
    pub(super) fn launch_joining(&mut self) {
        let mut flight = self.batch.split().fly(self.face.clone());
        match flight.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(landed) => self.land(landed),
            Poll::Pending => self.flights.joining = Some(flight),
        }
    }

    /// Answers what has come back.
    pub fn poll_landings(&mut self, cx: &mut Context<'_>) -> Landings {
        let mut resumed = false;
        if let Some(joining) = &mut self.flights.joining
            && let Poll::Ready(landed) = joining.as_mut().poll(cx)
        {
            self.flights.joining = None;
            self.land(landed);
            resumed = true;
        }
        let mut place = 0;
        while place < self.flights.near.len() && self.answers.len() < UNSENT_BYTES_MAX {
            match self.flights.near[place].as_mut().poll(cx) {
                Poll::Ready(landed) => {
                    drop(self.flights.near.remove(place));
                    self.land(landed);
                }
                Poll::Pending => place += 1,
            }
        }
        while self.answers.len() < UNSENT_BYTES_MAX {
            match self.flights.far.poll_next_unpin(cx) {
                Poll::Ready(Some(landed)) => self.land(landed),
                _ => return Landings { interrupted: false, resumed },
            }
        }
        Landings { interrupted: true, resumed }
    }

    fn land(&mut self, landed: Landed) {
        match landed {
            Landed::Replies { tags, replies, share } => {
                self.in_flight -= share.amount();
                self.answer_all(tags, replies);
            }
            Landed::Rows { caller, rows, share } => {
                self.in_flight -= share.amount();
                self.answer_rows(caller, rows);
            }
        }
    }

    /// Ends it: what is under way is abandoned, what was taken for it and what its sessions hold goes
    /// back to the tubes.
    pub async fn leave(mut self) {
        self.flights.near.clear();
        drop(std::mem::take(&mut self.flights.far));
        if let Some(joining) = self.flights.joining.take() {
            // Whether a session was joined decides whether it must be left.
            let landed = joining.await;
            self.land(landed);
            // A switch of sessions leaves the old one behind it.
            for flight in std::mem::take(&mut self.flights.near) {
                self.land(flight.await);
            }
        }
        self.sessions.leave(&self.face.engine).await;
    }
}
