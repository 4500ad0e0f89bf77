//! Copies tubes, semaphores and schedules from one store to another.
//!
//! Tasks are imported in pages, by id, into staging tubes under reserved names: the tasks that are already
//! there are the point from which a killed copy resumes. One last step gives all tubes their names, so that a
//! copy is visible as a whole or not at all. `plan` decides what to copy and refuses what the target cannot
//! hold, before anything is written.

mod plan;

use taskyard_core::record::{Record, StoredState};
use taskyard_core::transfer::{ImportEnd, SemaphoreCopy, TubeCopy};
use taskyard_core::{
    Command, EndedKey, Error, Reply, StoredSchedule, TaskId, Timestamp, TubeName, TubeOptions,
};

use crate::{Export, Exported, Import, Store};

pub use plan::{Plan, Planned, plan};

/// Maximum number of tasks in one page.
const PAGE: usize = 5_000;
/// Maximum bytes of bodies in one page.
const PAGE_BYTES: usize = 8 << 20;

/// The reason that a copy was not made, or not completed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// The target cannot hold the content, or has other content under the same names. Nothing was written.
    #[error("nothing was copied: {}", .0.join("; "))]
    Refused(Vec<String>),
    /// The source has no such tube.
    #[error("{0}")]
    NoTube(Error),
    /// The source was used during the copy.
    #[error(
        "the source changed while it was copied ({0}): stop everything that uses it and copy again; the target \
         shows nothing of this copy"
    )]
    Changed(String),
    /// A store failed; the same copy resumes where it stopped.
    #[error("{side}: {error}; run the same copy again to go on")]
    Store {
        /// Which of the two stores.
        side: &'static str,
        /// Its error.
        error: Error,
    },
}

/// The progress of a copy.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// The tube that is being copied.
    pub tube: &'a TubeName,
    /// Tasks copied so far, of all tubes.
    pub done: u64,
    /// Tasks to copy, of all tubes.
    pub total: u64,
}

/// The result of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Tasks that are in the target.
    pub tasks: u64,
    /// Of these, tasks that an earlier, interrupted copy had brought.
    pub resumed: u64,
    /// Whether the target already had all of it.
    pub already: bool,
}

/// Executes a plan. `now` is the time at which the stores execute it; `report` is called after each page.
pub async fn copy(
    from: &dyn Store,
    to: &dyn Store,
    now: Timestamp,
    plan: &Plan,
    mut report: impl FnMut(Progress<'_>),
) -> Result<Copied, CopyError> {
    let total = plan.tasks();
    if plan.already {
        return Ok(Copied { tasks: total, resumed: 0, already: true });
    }
    let mut copied = Copied::default();
    for planned in &plan.tubes {
        let mut tube_copy = TubeTransfer { from, to, now, planned, copied, total };
        tube_copy.run(&mut report).await?;
        copied = tube_copy.copied;
    }
    check_unchanged(from, to, now, plan).await?;
    let tubes = plan.tubes.iter().map(|tube| (tube.staging.clone(), tube.copy.clone())).collect();
    let semaphores = plan.semaphores.clone();
    let ending = ImportEnd {
        tubes,
        semaphores,
        schedules: plan.schedules.clone(),
        next_lease: plan.next_lease,
    };
    to.import(now, Import::End(ending)).await.map_err(target)?;
    Ok(copied)
}

/// The copy of one tube.
struct TubeTransfer<'a> {
    from: &'a dyn Store,
    to: &'a dyn Store,
    now: Timestamp,
    planned: &'a Planned,
    copied: Copied,
    total: u64,
}

impl TubeTransfer<'_> {
    async fn run(&mut self, report: &mut impl FnMut(Progress<'_>)) -> Result<(), CopyError> {
        let mut from = TaskId(0);
        if let Some(number) = self.planned.staged {
            match self.resume(number, report).await? {
                Some(next) => from = next,
                None => {
                    drop_tube(self.to, self.now, &self.planned.staging).await?;
                    self.create_staging().await?;
                }
            }
        } else {
            self.create_staging().await?;
        }
        let mut page = self.page(self.from, self.planned.copy.number, from).await?;
        while let Some(last) = page.last() {
            let next = TaskId(last.id.0 + 1);
            let count = page.len() as u64;
            // A shared store imports this page while the next one is read.
            let import = Import::Tasks(self.planned.staging.clone(), page);
            let importing = self.to.import(self.now, import);
            let following = self.page(self.from, self.planned.copy.number, next).await;
            importing.await.map_err(target)?;
            self.copied.tasks += count;
            self.report_progress(report);
            page = following?;
        }
        self.copy_keys().await
    }

    /// Copies the keys of ended tasks.
    async fn copy_keys(&self) -> Result<(), CopyError> {
        let mut from = TaskId(0);
        loop {
            let keys = ended_keys_of(self.from, self.planned.copy.number, from).await;
            let keys = keys.map_err(source)?;
            let Some(last) = keys.last() else { return Ok(()) };
            from = TaskId(last.id.0 + 1);
            let import = Import::EndedKeys(self.planned.staging.clone(), keys);
            self.to.import(self.now, import).await.map_err(target)?;
        }
    }

    fn report_progress(&self, report: &mut impl FnMut(Progress<'_>)) {
        let (tube, done) = (&self.planned.copy.record.name, self.copied.tasks);
        report(Progress { tube, done, total: self.total });
    }

    /// Creates the staging tube. It is paused, so that no client can take from it, and has no limits.
    async fn create_staging(&self) -> Result<(), CopyError> {
        let create = Command::CreateTube {
            tube: self.planned.staging.clone(),
            options: staging_options(&self.planned.copy.record.options),
            if_not_exists: false,
        };
        execute(self.to, self.now, create).await.map(drop)
    }

    /// Compares the tasks of an earlier copy with the source. Returns the id from which to resume, or `None`
    /// if they differ. A copy that already has keys of ended tasks is not resumed: a task that the source got
    /// since may have such a key.
    async fn resume(
        &mut self,
        number: u32,
        report: &mut impl FnMut(Progress<'_>),
    ) -> Result<Option<TaskId>, CopyError> {
        let (before, mut next) = (self.copied, TaskId(0));
        if !ended_keys_of(self.to, number, next).await.map_err(target)?.is_empty() {
            return Ok(None);
        }
        loop {
            let there = self.page(self.to, number, next).await?;
            let Some(last) = there.last() else { return Ok(Some(next)) };
            let end = last.id;
            let mut wanted = self.page(self.from, self.planned.copy.number, next).await?;
            wanted.truncate(there.len());
            // Pages of two stores may end at different places.
            let both = there.len().min(wanted.len());
            if both == 0 || !are_alike(&there[..both], &wanted[..both]) {
                self.copied = before;
                return Ok(None);
            }
            let reached = if both == there.len() { end } else { there[both - 1].id };
            next = TaskId(reached.0 + 1);
            self.copied.tasks += both as u64;
            self.copied.resumed += both as u64;
            self.report_progress(report);
        }
    }

    async fn page(
        &self,
        store: &dyn Store,
        tube: u32,
        from: TaskId,
    ) -> Result<Vec<Record>, CopyError> {
        let side = if std::ptr::addr_eq(store, self.from) { source } else { target };
        tasks_of(store, tube, from).await.map_err(side)
    }
}

/// Whether both tubes have the same tasks.
async fn has_same_tasks(
    (from, tube): (&dyn Store, u32),
    (to, other): (&dyn Store, u32),
) -> Result<bool, CopyError> {
    let mut next = TaskId(0);
    loop {
        let wanted = tasks_of(from, tube, next).await.map_err(source)?;
        let there = tasks_of(to, other, next).await.map_err(target)?;
        // Pages of two stores may end at different places.
        let both = wanted.len().min(there.len());
        if !are_alike(&wanted[..both], &there[..both]) {
            return Ok(false);
        }
        let Some(last) = wanted[..both].last() else { return Ok(wanted.len() == there.len()) };
        next = TaskId(last.id.0 + 1);
    }
}

/// Whether these are the same tasks. Shared stores do not keep whether a start time was given or follows from
/// a delay.
fn are_alike(tasks: &[Record], others: &[Record]) -> bool {
    let delayed = |record: &Record| match record.state {
        StoredState::Scheduled(due) => StoredState::Delayed(due),
        state => state,
    };
    let alike = |(task, other): (&Record, &Record)| {
        delayed(task) == delayed(other) && *task == Record { state: task.state, ..other.clone() }
    };
    tasks.len() == others.len() && tasks.iter().zip(others).all(alike)
}

/// The options of a staging tube.
fn staging_options(options: &TubeOptions) -> TubeOptions {
    TubeOptions {
        temporary: false,
        capacity: None,
        paused: true,
        semaphore: None,
        queue_num: None,
        // The end of the import sets them.
        retry: None,
        rate: None,
        ..options.clone()
    }
}

/// Checks that the source did not change and that all of it was copied.
async fn check_unchanged(
    from: &dyn Store,
    to: &dyn Store,
    now: Timestamp,
    plan: &Plan,
) -> Result<(), CopyError> {
    let (tubes, _) = tubes_of(from).await.map_err(source)?;
    let (there, _) = tubes_of(to).await.map_err(target)?;
    let semaphores = semaphores_of(from).await.map_err(source)?;
    let mut changed = Vec::new();
    for planned in &plan.tubes {
        let name = &planned.copy.record.name;
        let staged = there.iter().find(|tube| tube.record.name == planned.staging);
        let staged = staged.map(|tube| tube.stats.tasks.total());
        let same = tubes.contains(&planned.copy);
        if !same || staged != Some(planned.copy.stats.tasks.total()) {
            changed.push(format!("tube '{name}'"));
            drop_tube(to, now, &planned.staging).await?;
        }
    }
    if !plan.schedules.is_empty() {
        let schedules = schedules_of(from).await.map_err(source)?;
        let lost = plan.schedules.iter().filter(|planned| !schedules.contains(planned));
        changed.extend(lost.map(|planned| format!("schedule '{}'", planned.name)));
    }
    for planned in &plan.semaphores {
        if !semaphores.contains(planned) {
            changed.push(format!("semaphore '{}'", planned.record.key));
        }
    }
    if changed.is_empty() { Ok(()) } else { Err(CopyError::Changed(changed.join(", "))) }
}

async fn drop_tube(to: &dyn Store, now: Timestamp, tube: &TubeName) -> Result<(), CopyError> {
    execute(to, now, Command::DropTube { tube: tube.clone() }).await.map(drop)
}

async fn execute(to: &dyn Store, now: Timestamp, command: Command) -> Result<Reply, CopyError> {
    let replies = to.execute(now, vec![command]).await.replies;
    let no_reply = || Err(Error::Store("the store returned no reply".into()));
    replies.into_iter().next().unwrap_or_else(no_reply).map_err(target)
}

async fn tasks_of(store: &dyn Store, tube: u32, from: TaskId) -> Result<Vec<Record>, Error> {
    match store.export(Export::Tasks { tube, from, count: PAGE, bytes: PAGE_BYTES }).await? {
        Exported::Tasks(tasks) => Ok(tasks),
        other => Err(unexpected(&other)),
    }
}

pub(crate) async fn tubes_of(store: &dyn Store) -> Result<(Vec<TubeCopy>, u64), Error> {
    match store.export(Export::Tubes).await? {
        Exported::Tubes(tubes, next_lease) => Ok((tubes, next_lease)),
        other => Err(unexpected(&other)),
    }
}

pub(crate) async fn semaphores_of(store: &dyn Store) -> Result<Vec<SemaphoreCopy>, Error> {
    match store.export(Export::Semaphores).await? {
        Exported::Semaphores(semaphores) => Ok(semaphores),
        other => Err(unexpected(&other)),
    }
}

/// The schedules of a store; none if it has no schedules.
pub(crate) async fn schedules_of(store: &dyn Store) -> Result<Vec<StoredSchedule>, Error> {
    if !store.capabilities().schedules {
        return Ok(Vec::new());
    }
    match store.export(Export::Schedules).await? {
        Exported::Schedules(schedules) => Ok(schedules),
        other => Err(unexpected(&other)),
    }
}

async fn ended_keys_of(store: &dyn Store, tube: u32, from: TaskId) -> Result<Vec<EndedKey>, Error> {
    match store.export(Export::EndedKeys { tube, from, count: PAGE }).await? {
        Exported::EndedKeys(keys) => Ok(keys),
        other => Err(unexpected(&other)),
    }
}

fn unexpected(answer: &Exported) -> Error {
    let what = match answer {
        Exported::Tubes(..) => "tubes",
        Exported::Tasks(_) => "tasks",
        Exported::EndedKeys(_) => "keys",
        Exported::Semaphores(_) => "semaphores",
        Exported::Schedules(_) => "schedules",
    };
    Error::Store(format!("the store exported {what}, which was not requested"))
}

fn source(error: Error) -> CopyError {
    CopyError::Store { side: "the source", error }
}

fn target(error: Error) -> CopyError {
    CopyError::Store { side: "the target", error }
}
