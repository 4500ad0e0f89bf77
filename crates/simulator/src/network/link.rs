//! One connection: the bytes under way in each direction, and how it breaks.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fastrand::Rng;
use tokio::time::Instant;

use crate::effects::{FaultName, count_effect};
use crate::planted::PlantedFault;
use crate::workers::Freezer;

/// The most bytes under way in one direction.
const WINDOW: usize = 64 << 10;
/// The same while the reader is slow, and how many bytes arrive together then, and when the next do.
const SLOW_WINDOW: usize = 512;
const SLOW_BYTES: usize = 64;
const SLOW_PAUSE: Duration = Duration::from_millis(10);
/// Where a reply has the number of its request, and how long that is.
const SYNC: std::ops::Range<usize> = 14..22;
/// How a successful answer over HTTP begins.
const HTTP_OK: &[u8] = b"HTTP/1.1 200";
/// A planted fault happens to every n-th frame.
const EVERY: u64 = 5;

/// A connection.
#[derive(Debug)]
pub struct Link {
    state: Mutex<LinkState>,
    /// What freezes the process of the client.
    freezer: Option<Arc<Freezer>>,
}

#[derive(Debug)]
struct LinkState {
    rng: Rng,
    latency_max: Duration,
    planted: Option<PlantedFault>,
    is_slow: bool,
    /// Whether all that is sent is lost, to the client and to the server.
    silent: [bool; 2],
    /// Replies so far, for planted faults.
    frames: u64,
    /// The latest answer over HTTP, for a planted fault.
    answer: Vec<u8>,
    /// To the client and to the server.
    directions: [Direction; 2],
}

#[derive(Debug)]
struct Direction {
    parts: VecDeque<(Instant, VecDeque<u8>)>,
    bytes: usize,
    latest: Instant,
    /// After how many more bytes the connection is cut.
    cut_after: Option<usize>,
    end: Option<LinkEnd>,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// How the reader learns that nothing more comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkEnd {
    /// The other side has closed the connection.
    Closed,
    /// The connection is broken.
    Reset,
}

/// What a reader finds.
pub enum Arrival {
    /// Something can be read.
    Bytes,
    /// Something arrives at this time.
    Later(Instant),
    /// Nothing is under way.
    Nothing,
    /// The connection has ended.
    Ended(LinkEnd),
}

/// Which side reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The client.
    Client,
    /// The server.
    Server,
}

impl Side {
    const fn other(self) -> Side {
        match self {
            Side::Client => Side::Server,
            Side::Server => Side::Client,
        }
    }
}

impl Direction {
    fn new() -> Self {
        Direction {
            parts: VecDeque::new(),
            bytes: 0,
            latest: Instant::now(),
            cut_after: None,
            end: None,
            reader: None,
            writer: None,
        }
    }

    fn wake(&mut self) {
        self.reader.take().into_iter().chain(self.writer.take()).for_each(Waker::wake);
    }
}

impl Link {
    /// A connection that was just accepted.
    pub fn new(
        seed: u64,
        latency_max: Duration,
        planted: Option<PlantedFault>,
        freezer: Option<Arc<Freezer>>,
    ) -> Self {
        let state = Mutex::new(LinkState {
            rng: Rng::with_seed(seed),
            latency_max,
            planted,
            is_slow: false,
            silent: [false; 2],
            frames: 0,
            answer: Vec::new(),
            directions: [Direction::new(), Direction::new()],
        });
        Link { state, freezer }
    }

    fn state(&self) -> MutexGuard<'_, LinkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cuts the connection when so many more bytes have been written.
    pub fn cut_after(&self, to_server: bool, bytes: usize) {
        let side = if to_server { Side::Server } else { Side::Client };
        let state = &mut *self.state();
        let direction = state.to(side);
        let earlier = direction.cut_after.unwrap_or(usize::MAX);
        direction.cut_after = Some(bytes.min(earlier));
    }

    /// Cuts the connection if a cut was planned.
    pub fn finish_cut(&self) {
        let state = &mut *self.state();
        if state.directions.iter().any(|direction| direction.cut_after.is_some()) {
            count_effect(FaultName::CutConnections);
            state.reset();
        }
    }

    /// Loses everything from now on, to the client, to the server or to both, without a notice to either side.
    pub fn silence(&self, silent: [bool; 2]) {
        let state = &mut *self.state();
        state.silent = silent;
        for (direction, _) in state.directions.iter_mut().zip(silent).filter(|of| of.1) {
            direction.parts.clear();
            direction.bytes = 0;
        }
    }

    /// Breaks a connection that was silent.
    pub fn end_silence(&self) {
        let state = &mut *self.state();
        if state.silent.contains(&true) {
            state.reset();
        }
    }

    /// Lets the client read slowly, or as usual.
    pub fn set_slow(&self, is_slow: bool) {
        let state = &mut *self.state();
        state.is_slow = is_slow;
        state.directions.iter_mut().for_each(Direction::wake);
    }

    /// One side has closed its end.
    pub fn close(&self, by: Side, end: LinkEnd) {
        let state = &mut *self.state();
        if state.is_silent(by.other()) {
            return;
        }
        let direction = state.to(by.other());
        direction.end.get_or_insert(end);
        direction.wake();
        if end == LinkEnd::Reset {
            // What the other side still sends arrives nowhere.
            let back = state.to(by);
            back.end.get_or_insert(end);
            back.wake();
        }
    }

    /// Writes from one side as much as is accepted now.
    pub fn write(&self, by: Side, bytes: &[u8]) -> io::Result<usize> {
        let state = &mut *self.state();
        let window = if state.is_slow { SLOW_WINDOW } else { WINDOW };
        let is_silent = state.is_silent(by.other());
        let direction = state.to(by.other());
        if direction.end == Some(LinkEnd::Reset) {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let mut accepted = bytes.len().min(window.saturating_sub(direction.bytes));
        if accepted == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if is_silent {
            count_effect(FaultName::SilenceConnections);
            return Ok(accepted);
        }
        let is_cut = match &mut direction.cut_after {
            Some(left) => {
                accepted = accepted.min(*left);
                *left -= accepted;
                *left == 0
            }
            None => false,
        };
        state.send(by.other(), &bytes[..accepted]);
        if is_cut {
            count_effect(FaultName::CutConnections);
            state.reset();
        }
        match accepted {
            0 => Err(io::ErrorKind::ConnectionReset.into()),
            accepted => Ok(accepted),
        }
    }

    /// Ready when one side can write.
    pub fn poll_writable(&self, by: Side, cx: &mut Context<'_>) -> Poll<()> {
        let state = &mut *self.state();
        let window = if state.is_slow { SLOW_WINDOW } else { WINDOW };
        let direction = state.to(by.other());
        if direction.end.is_some() || direction.bytes < window {
            return Poll::Ready(());
        }
        direction.writer = Some(cx.waker().clone());
        Poll::Pending
    }

    /// What one side can read now. If there is nothing, it is woken when that changes.
    pub fn arrival(&self, to: Side, waker: Option<&Waker>) -> Arrival {
        let freezer = self.freezer.as_ref().filter(|_| to == Side::Client);
        if freezer.is_some_and(|freezer| freezer.holds(waker)) {
            return Arrival::Nothing;
        }
        let state = &mut *self.state();
        let direction = state.to(to);
        match (direction.parts.front(), direction.end) {
            (Some((at, _)), _) if *at <= Instant::now() => Arrival::Bytes,
            (Some((at, _)), _) => Arrival::Later(*at),
            (None, Some(end)) => Arrival::Ended(end),
            (None, None) => {
                if let Some(waker) = waker {
                    direction.reader = Some(waker.clone());
                }
                Arrival::Nothing
            }
        }
    }

    /// Reads what has arrived, sometimes only a part of it.
    pub fn read(&self, to: Side, bytes: &mut [u8]) -> usize {
        let state = &mut *self.state();
        let most = if state.rng.u8(0..4) == 0 { state.rng.usize(1..=64) } else { usize::MAX };
        let direction = state.to(to);
        let Some((_, part)) = direction.parts.front_mut() else { return 0 };
        let count = bytes.len().min(part.len()).min(most);
        for (target, byte) in bytes.iter_mut().zip(part.drain(..count)) {
            *target = byte;
        }
        if part.is_empty() {
            direction.parts.pop_front();
        }
        direction.bytes -= count;
        if let Some(writer) = direction.writer.take() {
            writer.wake();
        }
        count
    }
}

impl LinkState {
    /// The direction to one side.
    fn to(&mut self, side: Side) -> &mut Direction {
        &mut self.directions[usize::from(side == Side::Server)]
    }

    /// Whether what is sent to one side is lost.
    fn is_silent(&self, to: Side) -> bool {
        self.silent[usize::from(to == Side::Server)]
    }

    /// Breaks the connection; what was under way arrives before.
    fn reset(&mut self) {
        // As if the session of the server did not notice the end of its connection.
        let server_notices = self.planted != Some(PlantedFault::KeepCutSessions);
        self.silent = [!server_notices; 2];
        for side in [Side::Client, Side::Server] {
            if side == Side::Server && !server_notices {
                continue;
            }
            let direction = self.to(side);
            direction.end = Some(LinkEnd::Reset);
            direction.cut_after = None;
            direction.wake();
        }
    }

    /// Sends bytes on their way.
    fn send(&mut self, to: Side, bytes: &[u8]) {
        let mut bytes = bytes.to_vec();
        if to == Side::Client && self.planted.is_some() {
            self.plant(&mut bytes);
        }
        let most = self.latency_max.as_millis() as u64;
        let way = Duration::from_millis(self.rng.u64(0..=most));
        let (is_slow, length) = (self.is_slow, bytes.len());
        let direction = self.to(to);
        // Bytes of a connection never overtake each other.
        let mut at = direction.latest.max(Instant::now() + way);
        match is_slow {
            true => {
                count_effect(FaultName::SlowConnections);
                for part in bytes.chunks(SLOW_BYTES) {
                    direction.parts.push_back((at, part.iter().copied().collect()));
                    at += SLOW_PAUSE;
                }
            }
            false if length > 0 => direction.parts.push_back((at, bytes.into())),
            false => {}
        }
        direction.bytes += length;
        direction.latest = at;
        if let Some(reader) = direction.reader.take() {
            reader.wake();
        }
    }

    /// Does to replies what a wrong session would do.
    fn plant(&mut self, bytes: &mut Vec<u8>) {
        if self.planted == Some(PlantedFault::RepeatHttpAnswer) && bytes.starts_with(HTTP_OK) {
            self.frames += 1;
            let repeats = self.frames.is_multiple_of(EVERY);
            match repeats {
                true => bytes.clone_from(&self.answer),
                false => self.answer.clone_from(bytes),
            }
            return;
        }
        let mut start = 0;
        let mut previous: Option<usize> = None;
        while bytes.len() >= start + SYNC.end && bytes[start] == 0xce {
            let length = bytes[start + 1..start + 5]
                .iter()
                .fold(0, |all, byte| all << 8 | usize::from(*byte));
            let end = start + 5 + length;
            self.frames += 1;
            let happens = self.frames.is_multiple_of(EVERY);
            match self.planted {
                Some(PlantedFault::SwapAnswers) => {
                    if let Some(before) = previous.filter(|_| happens) {
                        for index in SYNC {
                            bytes.swap(before + index, start + index);
                        }
                    }
                }
                Some(PlantedFault::LoseAnswer) if happens && end <= bytes.len() => {
                    bytes.drain(start..end);
                    continue;
                }
                _ => {}
            }
            previous = Some(start);
            start = end;
        }
    }
}
