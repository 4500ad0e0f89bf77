//! Opens the embedded store on a simulated disk, and ends its process in the middle of its work.

use std::cell::{Cell, RefCell};
use std::future::{pending, ready};
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use taskyard_core::{Body, Command, Result, Timestamp};
use taskyard_store::{
    BodyKey, Capabilities, Executed, OpenError, OpenOptions, Pending, Store, StoreHealth, StoreTime,
};
use taskyard_store_sqlite::SqliteStore;
use tokio::time::Instant;

use crate::disk::{Disk, DiskFaults, MissingSync, ProcessEnd, SimulatedPlatform};
use crate::effects::{FaultName, count_effects};
use crate::faults::FaultKind;
use crate::plan::{CRASH_PAUSES, Plan, Scenario};
use crate::planted::PlantedFault;

/// How many crashes there are at most while one process starts.
const START_CRASHES_MAX: u32 = 2;
/// How long a process may do nothing before its crash comes nevertheless.
const IDLE_MAX: Duration = Duration::from_secs(2);
/// A crash happens within so many writes and syncs.
const OPERATIONS_MAX: u32 = 60;
/// The same where crashes follow each other.
const CRASH_OPERATIONS_MAX: u32 = 30;

/// The disk of a server with the embedded store.
pub struct EmbeddedStorage {
    disk: Disk,
    started: Instant,
    /// A crash happens within so many writes and syncs, or after so long.
    crash_max: (u32, Duration),
    /// The faults that are there all the time.
    planted: DiskFaults,
    /// How many processes crashed while they started.
    start_crashes: Cell<u64>,
    /// Until when the writer waits for the disk.
    busy: BlockedThread,
    /// How many bytes of payloads stay in memory.
    memory_bytes: usize,
    /// Whether a full disk also refuses to write over what it has.
    copies_on_write: bool,
    /// The faults of the disk that are active; in earlier seeds the latest one replaces the others.
    active: RefCell<Vec<(FaultKind, DiskFaults)>>,
    adds_faults: bool,
}

/// Until when a thread waits for the disk.
type BlockedThread = Arc<Mutex<Option<Instant>>>;

impl EmbeddedStorage {
    /// An empty disk.
    pub fn new(plan: &Plan, planted: Option<PlantedFault>) -> Self {
        let disk = Disk::new(plan.seed);
        let missing_sync = match planted {
            Some(PlantedFault::CrashLosesBatch) => Some(MissingSync::Latest(".journal-")),
            Some(PlantedFault::SkipJournalSync) => Some(MissingSync::File(".journal-")),
            Some(PlantedFault::SkipLogSync) => Some(MissingSync::File("-wal")),
            Some(PlantedFault::SkipFolderSync) => Some(MissingSync::Folder),
            Some(PlantedFault::IgnoreSyncErrors) => Some(MissingSync::Failed),
            Some(PlantedFault::SkipSlowSyncs) => Some(MissingSync::Slow),
            Some(PlantedFault::SwapWrites) => Some(MissingSync::Swapped(".journal-")),
            _ => None,
        };
        let drops_frame = planted == Some(PlantedFault::DropLastFrame);
        let change_read = drops_frame.then_some(drop_last_frame as fn(&Path, &mut [u8]));
        let planted = DiskFaults { missing_sync, change_read, ..DiskFaults::default() };
        disk.set_faults(planted);
        let crash_max = match plan.scenario {
            // Before the next crash is due.
            Scenario::Crashes => (CRASH_OPERATIONS_MAX, CRASH_PAUSES * plan.pause_max / 2),
            _ => (OPERATIONS_MAX, IDLE_MAX),
        };
        let (started, start_crashes) = (Instant::now(), Cell::new(0));
        let busy = BlockedThread::default();
        EmbeddedStorage {
            disk,
            started,
            crash_max,
            planted,
            start_crashes,
            busy,
            memory_bytes: plan.memory_bytes,
            copies_on_write: plan.copies_on_write,
            active: RefCell::default(),
            adds_faults: plan.has_later_features(),
        }
    }

    /// Starts a process on it. Some processes crash while they start, and the next one starts.
    pub fn open(&self) -> std::result::Result<Box<dyn Store>, OpenError> {
        for crash in 0.. {
            if crash < START_CRASHES_MAX && self.disk.random(4) == 0 {
                self.plan_crash();
            }
            let (started, process) = (self.started, self.disk.process());
            let elapsed = Arc::new(move || started.elapsed());
            let platform = Arc::new(SimulatedPlatform::new(self.disk.clone(), elapsed));
            let folder = platform.folder().to_owned();
            let options = OpenOptions { memory_bytes: self.memory_bytes, ..OpenOptions::default() };
            let store = SqliteStore::open_on(platform.clone(), &folder, &options);
            self.disk.cancel_planned_end();
            if self.disk.process() != process {
                self.start_crashes.set(self.start_crashes.get() + 1);
                continue;
            }
            let inner = store?;
            tokio::task::spawn_local(run_threads(platform, self.disk.clone(), process, started));
            let (disk, busy) = (self.disk.clone(), self.busy.clone());
            *lock(&busy) = None;
            return Ok(Box::new(EmbeddedStore { inner, disk, process, busy }));
        }
        unreachable!("the number of crashes is limited")
    }

    /// Until when the thread of the engine waits for the disk.
    pub fn busy_until(&self) -> impl Fn() -> Option<Instant> + use<> {
        let busy = self.busy.clone();
        move || *lock(&busy)
    }

    /// How many processes crashed while they started.
    pub fn start_crashes(&self) -> u64 {
        self.start_crashes.get()
    }

    /// Ends the process in the middle of its work, if it works at all within some seconds; false if the next one runs already, after
    /// another fault.
    pub async fn crash(&self, how: ProcessEnd) -> bool {
        let (process, lost_pages) = (self.disk.process(), self.disk.lost_pages());
        let (operations_max, idle_max) = self.crash_max;
        self.disk.end_process_after(self.disk.random(operations_max), how);
        let until = Instant::now() + idle_max;
        while self.disk.process() == process && Instant::now() < until {
            _ = tokio::time::timeout_at(until, self.disk.process_ended()).await;
        }
        if self.disk.process() == process {
            self.disk.end_process(how);
        }
        count_effects(FaultName::LosePower, self.disk.lost_pages() - lost_pages);
        !self.disk.is_running()
    }

    /// Ends the process between two batches.
    pub fn end_process(&self) {
        self.disk.end_process(ProcessEnd::Kill);
    }

    /// Ends a process that has stopped: what it has acknowledged is durable.
    pub fn end_stopped_process(&self) {
        self.disk.end_process(ProcessEnd::PowerFailure);
    }

    /// Lets a fault of the disk begin or end.
    pub fn apply_fault(&self, kind: FaultKind, begins: bool) {
        let none = DiskFaults::default();
        let fault = match kind {
            FaultKind::DiskErrors => {
                DiskFaults { write_error: 0.02, sync_error: 0.05, read_error: 0.02, ..none }
            }
            FaultKind::FullDisk if begins && self.copies_on_write => {
                let bytes_left = [0, 2_000, 10_000][self.disk.random(3) as usize];
                DiskFaults { bytes_left, ..none }
            }
            FaultKind::FullDisk => DiskFaults { bytes_max: self.disk.bytes() + 10_000, ..none },
            FaultKind::ReadOnlyDisk => DiskFaults { is_read_only: true, ..none },
            FaultKind::SlowDisk(delay_max) => DiskFaults { delay_max, ..none },
            _ => return,
        };
        let mut active = self.active.borrow_mut();
        if !self.adds_faults {
            active.clear();
        }
        if begins {
            active.push((kind, fault));
        } else if let Some(place) = active.iter().position(|(active, _)| *active == kind) {
            active.remove(place);
        }
        let sum = active.iter().fold(self.planted, |sum, (_, fault)| sum.with(fault));
        self.disk.set_faults(sum);
    }

    fn plan_crash(&self) {
        let how = match self.disk.random(2) {
            0 => ProcessEnd::Kill,
            _ => ProcessEnd::PowerFailure,
        };
        self.disk.end_process_after(self.disk.random(OPERATIONS_MAX), how);
    }
}

/// Hides the last batch of a journal file from its reader: each batch begins with the number that follows the first eight bytes.
fn drop_last_frame(path: &Path, bytes: &mut [u8]) {
    const SALT: Range<usize> = 8..16;
    const HEADER: usize = 24;
    if !path.to_string_lossy().contains(".journal-") || bytes.len() < HEADER {
        return;
    }
    let (header, records) = bytes.split_at_mut(HEADER);
    let mut chunks = records.chunks_exact_mut(SALT.len());
    if let Some(start) = chunks.rfind(|chunk| **chunk == header[SALT]) {
        start.fill(0);
    }
}

/// Runs the background threads of a process until it ends.
async fn run_threads(platform: Arc<SimulatedPlatform>, disk: Disk, process: u64, started: Instant) {
    while disk.process() == process {
        match platform.step_threads() {
            Some(due) => {
                _ = tokio::time::timeout_at(started + due, platform.thread_signaled()).await;
            }
            None => platform.thread_signaled().await,
        }
    }
    platform.end_threads();
}

/// The store of one process. After the end of the process it answers nothing.
struct EmbeddedStore {
    inner: SqliteStore,
    disk: Disk,
    process: u64,
    busy: BlockedThread,
}

impl EmbeddedStore {
    fn answer<'a, T: Send + 'a>(&self, answer: Pending<'a, T>) -> Pending<'a, T> {
        match self.disk.process() == self.process {
            true => answer,
            false => Box::pin(pending()),
        }
    }

    /// The answer of an operation, when a slow disk has done what the operation needed. The thread of the engine waits so long.
    fn answer_late<'a, T: Send + 'a>(
        &'a self,
        operations: u64,
        answer: Pending<'a, T>,
    ) -> Pending<'a, T> {
        let delay = match self.disk.operations() == operations {
            true => Duration::ZERO,
            false => self.disk.delay(),
        };
        let answer = self.answer(answer);
        if delay.is_zero() {
            return answer;
        }
        let until = Instant::now() + delay;
        *lock(&self.busy) = Some(until);
        Box::pin(async move {
            tokio::time::sleep_until(until).await;
            self.answer(answer).await
        })
    }
}

fn lock(busy: &Mutex<Option<Instant>>) -> MutexGuard<'_, Option<Instant>> {
    busy.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Store for EmbeddedStore {
    fn execute(&self, now: Timestamp, commands: Vec<Command>) -> Pending<'_, Executed> {
        // The embedded store works before it returns its future.
        let operations = self.disk.operations();
        let executed = self.inner.execute(now, commands);
        self.answer_late(operations, executed)
    }

    fn load(&self, keys: Vec<BodyKey>) -> Pending<'_, Vec<Result<Option<Body>>>> {
        let loaded = self.inner.load(keys);
        self.answer(loaded)
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn health(&self, now: Timestamp) -> Pending<'_, Result<StoreHealth>> {
        let health = self.inner.health(now);
        self.answer(health)
    }

    fn time(&self) -> Option<StoreTime> {
        self.inner.time()
    }

    fn set_wall_ahead(&self, now: Timestamp, micros: i64) -> Pending<'_, Result<()>> {
        let operations = self.disk.operations();
        let set = self.inner.set_wall_ahead(now, micros);
        self.answer_late(operations, set)
    }

    fn close(&self) -> Pending<'_, Result<()>> {
        match self.disk.process() == self.process {
            true => self.inner.close(),
            false => Box::pin(ready(Ok(()))),
        }
    }
}
