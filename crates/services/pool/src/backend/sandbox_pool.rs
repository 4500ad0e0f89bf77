//! Starts sandboxes ahead of tasks: one for each free backend, for the program that ran last.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::RunnerShared;
use super::sandbox::{Sandbox, SandboxSpec};

/// Most ready sandboxes, however many backends are free: each has two small waiting processes.
const READY_MAX: usize = 16;

/// The sandboxes that are started ahead of tasks.
#[derive(Debug)]
pub(super) struct SandboxPool {
    backends: usize,
    state: Mutex<SandboxPoolState>,
}

#[derive(Debug, Default)]
struct SandboxPoolState {
    /// Oldest first: it is most likely to be up.
    ready: VecDeque<Sandbox>,
    /// Sandboxes that are being started.
    starting: Vec<StartingSandbox>,
    next: u64,
    /// Number of running tasks.
    active: usize,
    /// Number of tasks that wait for a user id.
    waiting_for_user: usize,
    used: u64,
    closed: bool,
}

#[derive(Debug)]
struct StartingSandbox {
    number: u64,
    spec: Arc<SandboxSpec>,
    /// A task that waits for this sandbox.
    claim: Option<oneshot::Sender<Sandbox>>,
}

/// A running task. When it is dropped, sandboxes for the next one are started.
#[derive(Debug)]
pub(super) struct ActiveTask {
    shared: Arc<RunnerShared>,
    pub spec: Arc<SandboxSpec>,
}

/// A task that waits for a user id.
struct UserWait<'a>(&'a SandboxPool);

impl SandboxPool {
    pub fn new(backends: u32) -> Self {
        SandboxPool { backends: backends as usize, state: Mutex::default() }
    }

    /// Number of sandboxes that are ready, or nearly so.
    pub fn count(&self) -> usize {
        self.lock().ready.len()
    }

    /// Number of tasks that got a ready sandbox.
    pub fn used(&self) -> u64 {
        self.lock().used
    }

    /// Whether no sandbox is being started.
    pub fn is_idle(&self) -> bool {
        self.lock().starting.is_empty()
    }

    /// Removes all ready sandboxes and starts no more.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        let ready = std::mem::take(&mut state.ready);
        drop(state);
        drop(ready);
    }

    /// Takes a sandbox that is ready or being started; `None` if there is none with this specification.
    pub async fn take(&self, spec: &Arc<SandboxSpec>) -> Option<Sandbox> {
        let pending = {
            let mut state = self.lock();
            if let Some(at) = state.ready.iter().position(|sandbox| sandbox.spec == *spec) {
                state.used += 1;
                return state.ready.remove(at);
            }
            let mut starting = state.starting.iter_mut();
            let starting = starting.find(|one| one.claim.is_none() && one.spec == *spec)?;
            let (sender, pending) = oneshot::channel();
            starting.claim = Some(sender);
            pending
        };
        pending.await.ok()
    }

    /// Removes a ready sandbox to free its user id for a task.
    fn release_user(&self) -> UserWait<'_> {
        let mut state = self.lock();
        state.waiting_for_user += 1;
        let sandbox = state.ready.pop_front();
        drop(state);
        drop(sandbox);
        UserWait(self)
    }

    /// Plans which sandboxes to start after a task with this specification.
    fn plan_starts(&self, spec: &Arc<SandboxSpec>) -> Vec<u64> {
        let mut state = self.lock();
        if state.closed {
            return Vec::new();
        }
        let ready_max = self.backends.saturating_sub(state.active).min(READY_MAX);
        let mut count = ready_max.saturating_sub(state.ready.len() + state.starting.len());
        let mut old = None;
        let covered = state.ready.iter().any(|sandbox| sandbox.spec == *spec)
            || state.starting.iter().any(|one| one.spec == *spec);
        if count == 0 && !covered && ready_max > 0 {
            // Programs that alternate keep one each, as far as there is capacity.
            old = state.ready.pop_front();
            count = usize::from(old.is_some());
        }
        let first = state.next;
        state.next += count as u64;
        let numbers: Vec<u64> = (first..state.next).collect();
        let starting = numbers.iter().map(|number| StartingSandbox {
            number: *number,
            spec: spec.clone(),
            claim: None,
        });
        state.starting.extend(starting);
        drop(state);
        drop(old);
        numbers
    }

    /// A sandbox was started, or failed to start: then a task that waits for it starts its own.
    fn finish_start(&self, number: u64, sandbox: Option<Sandbox>) {
        let mut state = self.lock();
        let Some(at) = state.starting.iter().position(|one| one.number == number) else { return };
        let claim = state.starting.swap_remove(at).claim;
        let left = match (claim, sandbox) {
            (Some(sender), Some(sandbox)) => sender.send(sandbox).err(),
            (_, sandbox) => sandbox,
        };
        match left {
            Some(sandbox) if !state.closed && state.waiting_for_user == 0 => {
                state.ready.push_back(sandbox)
            }
            left => {
                drop(state);
                drop(left);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, SandboxPoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts missing sandboxes in the background.
pub(super) fn prestart(shared: &Arc<RunnerShared>, spec: &Arc<SandboxSpec>) {
    let Ok(runtime) = Handle::try_current() else { return };
    if !shared.isolation.has_bubblewrap() {
        return;
    }
    for number in shared.sandboxes.plan_starts(spec) {
        let (shared, spec) = (shared.clone(), spec.clone());
        runtime.spawn(async move {
            let guard = StartGuard { shared: shared.clone(), number };
            // The users of tasks that are ending are free soon, and nothing starts a sandbox then.
            let sandbox = match shared.users.take().await {
                Some(slot) => Sandbox::start(&shared, spec, slot).await.map(Some),
                None => Ok(None),
            };
            if let Err(error) = &sandbox {
                tracing::warn!(%error, "cannot start a sandbox ahead of a task");
            }
            guard.shared.sandboxes.finish_start(number, sandbox.ok().flatten());
        });
    }
}

/// Starts a new sandbox for a task; `None` if the pool is stopping.
pub(super) async fn start_new(
    shared: &Arc<RunnerShared>,
    spec: &Arc<SandboxSpec>,
) -> Option<io::Result<Sandbox>> {
    let slot = match shared.users.take_now() {
        Some(slot) => slot,
        None => {
            let _wait = shared.sandboxes.release_user();
            shared.users.take().await?
        }
    };
    Some(Sandbox::start(shared, spec.clone(), slot).await)
}

/// Ends the entry of a sandbox that is being started, also if starting it was cancelled.
struct StartGuard {
    shared: Arc<RunnerShared>,
    number: u64,
}

impl Drop for StartGuard {
    fn drop(&mut self) {
        self.shared.sandboxes.finish_start(self.number, None);
    }
}

impl ActiveTask {
    pub fn new(shared: Arc<RunnerShared>, spec: SandboxSpec) -> Self {
        shared.sandboxes.lock().active += 1;
        ActiveTask { shared, spec: Arc::new(spec) }
    }
}

impl Drop for ActiveTask {
    fn drop(&mut self) {
        self.shared.sandboxes.lock().active -= 1;
        prestart(&self.shared, &self.spec);
    }
}

impl Drop for UserWait<'_> {
    fn drop(&mut self) {
        self.0.lock().waiting_for_user -= 1;
    }
}
