//! One connection between two processes of a pool: bytes with delays, held back, lost or cut.
//!
//! A write arrives as a whole, and delays do not depend on what is written: a run must not depend on the length of a process id or
//! on random tokens.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fastrand::Rng;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::effects::{FaultName, count_effect};

/// A connection.
#[derive(Debug)]
pub struct Pipe(Mutex<PipeState>);

#[derive(Debug)]
struct PipeState {
    rng: Rng,
    latency_max: Duration,
    /// Why nothing arrives now: how many of its processes are stalled.
    held: u32,
    is_silent: bool,
    /// To the side that dialed, and to the one that accepted.
    directions: [PipeDirection; 2],
}

#[derive(Debug)]
struct PipeDirection {
    parts: VecDeque<(Instant, VecDeque<u8>)>,
    latest: Instant,
    /// Nothing more is written.
    has_ended: bool,
    /// What is written arrives nowhere.
    is_broken: bool,
    reader: Option<Waker>,
}

/// One of its ends; the connection is closed when it is dropped.
#[derive(Debug)]
pub struct PipeEnd {
    pipe: Arc<Pipe>,
    side: usize,
    timer: Option<Pin<Box<Sleep>>>,
}

/// Creates a connection; returns the end that dialed and the end that accepts.
pub fn pipe(seed: u64, latency_max: Duration, held: u32) -> (PipeEnd, PipeEnd) {
    let direction = || PipeDirection {
        parts: VecDeque::new(),
        latest: Instant::now(),
        has_ended: false,
        is_broken: false,
        reader: None,
    };
    let state = PipeState {
        rng: Rng::with_seed(seed),
        latency_max,
        held,
        is_silent: false,
        directions: [direction(), direction()],
    };
    let pipe = Arc::new(Pipe(Mutex::new(state)));
    let end = |side| PipeEnd { pipe: pipe.clone(), side, timer: None };
    (end(0), end(1))
}

impl Pipe {
    fn state(&self) -> MutexGuard<'_, PipeState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds everything back, or less so.
    pub fn hold(&self, holds: bool) {
        let state = &mut *self.state();
        state.held = if holds { state.held + 1 } else { state.held.saturating_sub(1) };
        state.wake();
    }

    /// Breaks the connection and loses what is under way.
    pub fn cut(&self) {
        let state = &mut *self.state();
        for direction in &mut state.directions {
            direction.parts.clear();
            (direction.has_ended, direction.is_broken) = (true, true);
        }
        state.wake();
    }

    /// Loses everything from now on, and tells neither side.
    pub fn silence(&self) {
        let state = &mut *self.state();
        state.is_silent = true;
        state.directions.iter_mut().for_each(|direction| direction.parts.clear());
    }

    /// Cuts a connection that was silent.
    pub fn end_silence(&self) {
        if self.state().is_silent {
            self.cut();
        }
    }

    fn send(&self, from: usize, bytes: &[u8]) -> io::Result<()> {
        let state = &mut *self.state();
        let most = state.latency_max.as_micros() as u64;
        let way = Duration::from_micros(state.rng.u64(0..=most));
        let direction = &mut state.directions[1 - from];
        if direction.is_broken {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        if state.is_silent {
            count_effect(FaultName::SilenceBackends);
            return Ok(());
        }
        // Bytes of a connection never overtake each other.
        direction.latest = direction.latest.max(Instant::now() + way);
        direction.parts.push_back((direction.latest, bytes.iter().copied().collect()));
        direction.reader.take().into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// Whether a side finds the end and nothing before it.
    fn has_ended(&self, side: usize) -> bool {
        let state = self.state();
        let direction = &state.directions[side];
        state.held == 0 && direction.has_ended && direction.parts.is_empty()
    }
}

impl PipeState {
    fn wake(&mut self) {
        for direction in &mut self.directions {
            direction.reader.take().into_iter().for_each(Waker::wake);
        }
    }
}

impl PipeEnd {
    /// The connection, to break it.
    pub fn pipe(&self) -> Weak<Pipe> {
        Arc::downgrade(&self.pipe)
    }

    /// Whether the other side has closed the connection and nothing is left to read.
    pub fn end_probe(&self) -> impl Fn() -> bool + Send + Sync + use<> {
        let (pipe, side) = (self.pipe.clone(), self.side);
        move || pipe.has_ended(side)
    }

    /// A way to write that does not close the connection when it is dropped.
    pub fn writer(&self) -> PipeWriter {
        PipeWriter { pipe: self.pipe.clone(), side: self.side }
    }
}

/// Writes to a connection.
#[derive(Clone, Debug)]
pub struct PipeWriter {
    pipe: Arc<Pipe>,
    side: usize,
}

impl PipeWriter {
    /// Sends bytes; those for a connection that is gone are lost.
    pub fn send(&self, bytes: &[u8]) {
        let _ = self.pipe.send(self.side, bytes);
    }
}

impl Drop for PipeEnd {
    fn drop(&mut self) {
        let state = &mut *self.pipe.state();
        if state.is_silent {
            return;
        }
        state.directions[1 - self.side].has_ended = true;
        state.directions[self.side].is_broken = true;
        state.wake();
    }
}

impl AsyncRead for PipeEnd {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let PipeEnd { pipe, side, timer } = self.get_mut();
        loop {
            let later = {
                let state = &mut *pipe.state();
                let held = state.held > 0;
                let direction = &mut state.directions[*side];
                direction.reader = Some(cx.waker().clone());
                match direction.parts.front_mut() {
                    _ if held => {
                        count_effect(FaultName::StallProcess);
                        return Poll::Pending;
                    }
                    Some((at, part)) if *at <= Instant::now() => {
                        let count = buffer.remaining().min(part.len());
                        let bytes: Vec<u8> = part.drain(..count).collect();
                        buffer.put_slice(&bytes);
                        if part.is_empty() {
                            direction.parts.pop_front();
                        }
                        return Poll::Ready(Ok(()));
                    }
                    Some((at, _)) => *at,
                    None if direction.is_broken && direction.has_ended => {
                        return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
                    }
                    None if direction.has_ended => return Poll::Ready(Ok(())),
                    None => return Poll::Pending,
                }
            };
            let sleep = timer.get_or_insert_with(|| Box::pin(sleep_until(later)));
            if sleep.deadline() != later {
                sleep.as_mut().reset(later);
            }
            std::task::ready!(sleep.as_mut().poll(cx));
        }
    }
}

impl AsyncWrite for PipeEnd {
    fn poll_write(
        self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(self.pipe.send(self.side, bytes).map(|()| bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let state = &mut *self.pipe.state();
        if !state.is_silent {
            state.directions[1 - self.side].has_ended = true;
            state.wake();
        }
        Poll::Ready(Ok(()))
    }
}
