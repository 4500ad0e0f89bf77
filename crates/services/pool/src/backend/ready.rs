//! Walls that stand before their task comes: one for each backend that is free, for the program that ran last.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::Host;
use super::wall::{Shape, Wall};

/// Most walls that stand ready, however many backends are free: two small processes wait in each.
const READY_MAX: usize = 16;

/// The walls that are ready.
#[derive(Debug)]
pub(super) struct Ready {
    backends: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The oldest first: it has had the most time to stand.
    walls: VecDeque<Wall>,
    /// Those that are being put up.
    making: Vec<Making>,
    next: u64,
    /// Tasks that are here.
    busy: usize,
    /// Tasks that wait for a user.
    wanting: usize,
    used: u64,
    closed: bool,
}

#[derive(Debug)]
struct Making {
    number: u64,
    shape: Arc<Shape>,
    /// A task that waits for just this one.
    claimed: Option<oneshot::Sender<Wall>>,
}

/// A task that is here. When it goes, walls for the next one are put up.
#[derive(Debug)]
pub(super) struct Busy {
    host: Arc<Host>,
    pub shape: Arc<Shape>,
}

/// A task that waits for a user.
struct Wanting<'a>(&'a Ready);

impl Ready {
    pub fn new(backends: u32) -> Self {
        Ready { backends: backends as usize, state: Mutex::default() }
    }

    /// How many stand ready, or soon do.
    pub fn count(&self) -> usize {
        self.lock().walls.len()
    }

    /// How many tasks found their walls ready.
    pub fn used(&self) -> u64 {
        self.lock().used
    }

    /// Whether none is being put up just now.
    pub fn is_idle(&self) -> bool {
        self.lock().making.is_empty()
    }

    /// Lets all of them fall, and no more are put up.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        let walls = std::mem::take(&mut state.walls);
        drop(state);
        drop(walls);
    }

    /// Walls that stood before, or are about to; nothing if there are none such.
    pub async fn take(&self, shape: &Arc<Shape>) -> Option<Wall> {
        let soon = {
            let mut state = self.lock();
            if let Some(at) = state.walls.iter().position(|wall| wall.shape == *shape) {
                state.used += 1;
                return state.walls.remove(at);
            }
            let mut making = state.making.iter_mut();
            let making = making.find(|one| one.claimed.is_none() && one.shape == *shape)?;
            let (claim, soon) = oneshot::channel();
            making.claimed = Some(claim);
            soon
        };
        soon.await.ok()
    }

    /// Lets walls fall that wait for nothing, so that there is a user for a task that has none.
    fn give_way(&self) -> Wanting<'_> {
        let mut state = self.lock();
        state.wanting += 1;
        let wall = state.walls.pop_front();
        drop(state);
        drop(wall);
        Wanting(self)
    }

    /// What is to be put up now, after a task of this shape.
    fn plan(&self, shape: &Arc<Shape>) -> Vec<u64> {
        let mut state = self.lock();
        if state.closed {
            return Vec::new();
        }
        let most = self.backends.saturating_sub(state.busy).min(READY_MAX);
        let mut count = most.saturating_sub(state.walls.len() + state.making.len());
        let mut old = None;
        let known = state.walls.iter().any(|wall| wall.shape == *shape)
            || state.making.iter().any(|one| one.shape == *shape);
        if count == 0 && !known && most > 0 {
            // Programs that take turns keep one each, as far as there is room.
            old = state.walls.pop_front();
            count = usize::from(old.is_some());
        }
        let first = state.next;
        state.next += count as u64;
        let numbers: Vec<u64> = (first..state.next).collect();
        let making = numbers.iter().map(|number| Making {
            number: *number,
            shape: shape.clone(),
            claimed: None,
        });
        state.making.extend(making);
        drop(state);
        drop(old);
        numbers
    }

    /// They stand, or could not be put up: then whoever waits for them sees to it.
    fn made(&self, number: u64, wall: Option<Wall>) {
        let mut state = self.lock();
        let Some(at) = state.making.iter().position(|one| one.number == number) else { return };
        let claimed = state.making.swap_remove(at).claimed;
        let left = match (claimed, wall) {
            (Some(claim), Some(wall)) => claim.send(wall).err(),
            (_, wall) => wall,
        };
        match left {
            Some(wall) if !state.closed && state.wanting == 0 => state.walls.push_back(wall),
            left => {
                drop(state);
                drop(left);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Puts up what is missing, where nobody waits for it.
pub(super) fn refill(host: &Arc<Host>, shape: &Arc<Shape>) {
    let Ok(runtime) = Handle::try_current() else { return };
    if !host.isolation.has_bubblewrap() {
        return;
    }
    for number in host.ready.plan(shape) {
        let (host, shape) = (host.clone(), shape.clone());
        runtime.spawn(async move {
            let outcome = Outcome { host: host.clone(), number };
            let wall = match host.lanes.take_now() {
                Some(lane) => Wall::raise(&host, shape, lane).await.map(Some),
                None => Ok(None),
            };
            if let Err(error) = &wall {
                tracing::warn!(%error, "cannot put up walls ahead of a task");
            }
            outcome.host.ready.made(number, wall.ok().flatten());
        });
    }
}

/// Walls for a task of this shape that nobody has put up before; nothing when the pool is ending.
pub(super) async fn fresh(host: &Arc<Host>, shape: &Arc<Shape>) -> Option<io::Result<Wall>> {
    let lane = match host.lanes.take_now() {
        Some(lane) => lane,
        None => {
            let _wanting = host.ready.give_way();
            host.lanes.take().await?
        }
    };
    Some(Wall::raise(host, shape.clone(), lane).await)
}

/// Tells that walls are not being put up any more, also when that broke off.
struct Outcome {
    host: Arc<Host>,
    number: u64,
}

impl Drop for Outcome {
    fn drop(&mut self) {
        self.host.ready.made(self.number, None);
    }
}

impl Busy {
    pub fn new(host: Arc<Host>, shape: Shape) -> Self {
        host.ready.lock().busy += 1;
        Busy { host, shape: Arc::new(shape) }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.host.ready.lock().busy -= 1;
        refill(&self.host, &self.shape);
    }
}

impl Drop for Wanting<'_> {
    fn drop(&mut self) {
        self.0.lock().wanting -= 1;
    }
}
