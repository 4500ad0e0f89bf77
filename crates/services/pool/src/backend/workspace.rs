//! Owns what a task uses while it runs: a folder and possibly a user id.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::runtime::Handle;
use tokio::task::spawn_blocking;

use super::control_group::ControlGroup;
use super::isolation::ProgramContext;
use super::process_cleanup::{ProcessMark, kill_marked, reap_user};
use super::task_folder::TaskFolder;
use super::user_slots::UserSlot;
use super::{RunnerShared, TaskSpec};

/// A folder and a user id. Both are cleaned up when the last handle is dropped, on a background thread: programs may
/// leave many files.
#[derive(Clone, Debug)]
pub(super) struct Workspace(Arc<WorkspaceCleanup>);

#[derive(Debug)]
struct WorkspaceCleanup(Option<WorkspaceContents>);

/// Dropped in this order: processes are killed, the control group and the folder are removed, the user id is free.
#[derive(Debug)]
struct WorkspaceContents {
    mark: ProcessMark,
    /// Whether it is known that no process is left, so that the search for them can be skipped.
    processes_gone: AtomicBool,
    control_group: Option<ControlGroup>,
    folder: TaskFolder,
    slot: UserSlot,
}

impl Drop for WorkspaceContents {
    fn drop(&mut self) {
        let reaped = || self.slot.uid.is_none_or(reap_user);
        if (!*self.processes_gone.get_mut() && !kill_marked(&self.mark)) || !reaped() {
            tracing::error!(mark = ?self.mark, "processes of a task cannot be killed");
        }
    }
}

impl Workspace {
    /// An empty workspace.
    pub async fn open(shared: Arc<RunnerShared>, slot: UserSlot) -> io::Result<Self> {
        run_blocking(move || {
            let folder = shared.folders.create(slot.uid)?;
            let mark = match slot.uid {
                Some(uid) => ProcessMark::Users(uid..uid + 1),
                None if shared.isolation.has_bubblewrap() => {
                    ProcessMark::Argument(folder.path().into())
                }
                None => ProcessMark::Home(folder.path().into()),
            };
            let processes_gone = AtomicBool::new(false);
            let control_group = shared.isolation.new_control_group()?;
            Ok(Workspace(Arc::new(WorkspaceCleanup(Some(WorkspaceContents {
                mark,
                processes_gone,
                control_group,
                folder,
                slot,
            })))))
        })
        .await
    }

    /// Writes the files of the task.
    pub async fn fill(&self, spec: Arc<TaskSpec>) -> io::Result<()> {
        let this = self.clone();
        run_blocking(move || this.contents().folder.fill(&spec.files)).await
    }

    /// Notes that no process is left.
    pub fn note_processes_gone(&self) {
        self.contents().processes_gone.store(true, Ordering::Release);
    }

    fn contents(&self) -> &WorkspaceContents {
        self.0.0.as_ref().expect("present until dropped")
    }

    pub fn context(&self) -> ProgramContext<'_> {
        ProgramContext { folder: self.contents().folder.path(), uid: self.uid() }
    }

    /// The control group of the task, where there is one.
    pub fn control_group(&self) -> Option<&ControlGroup> {
        self.contents().control_group.as_ref()
    }

    pub fn uid(&self) -> Option<u32> {
        self.contents().slot.uid
    }

    /// Reads the result, if there is one.
    pub async fn read(&self, name: &str, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
        let (this, name) = (self.clone(), name.to_owned());
        run_blocking(move || this.contents().folder.read(&name, bytes_max)).await
    }
}

impl Drop for WorkspaceCleanup {
    fn drop(&mut self) {
        let contents = self.0.take();
        match Handle::try_current() {
            // A runtime that is shutting down drops the closure.
            Ok(runtime) => drop(runtime.spawn_blocking(move || drop(contents))),
            Err(_) => drop(contents),
        }
    }
}

/// Runs disk operations on a thread that does not serve clients.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}
