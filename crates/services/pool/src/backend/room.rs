//! What a task has for itself while it runs: a folder, and perhaps a user.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::runtime::Handle;
use tokio::task::spawn_blocking;

use super::folder::Folder;
use super::isolation::Site;
use super::lanes::Lane;
use super::sweep::{Mark, bury, sweep};
use super::{Host, Plan};

/// A folder and a user. Both are cleared when the last handle is dropped, on a thread that nobody waits for:
/// programs may leave a lot behind.
#[derive(Clone, Debug)]
pub(super) struct Room(Arc<Cleared>);

#[derive(Debug)]
struct Cleared(Option<Contents>);

/// Processes go first, then the folder, then the user is free.
#[derive(Debug)]
struct Contents {
    mark: Mark,
    /// Whether it is known that no process is left, so that nobody has to look at all there are.
    left: AtomicBool,
    folder: Folder,
    lane: Lane,
}

impl Drop for Contents {
    fn drop(&mut self) {
        let buried = || self.lane.uid.is_none_or(bury);
        if (!*self.left.get_mut() && !sweep(&self.mark)) || !buried() {
            tracing::error!(mark = ?self.mark, "processes of a task cannot be killed");
        }
    }
}

impl Room {
    /// A room with nothing in it.
    pub async fn open(host: Arc<Host>, lane: Lane) -> io::Result<Self> {
        off(move || {
            let folder = host.folders.make(lane.uid)?;
            let mark = match lane.uid {
                Some(uid) => Mark::Users(uid..uid + 1),
                None if host.isolation.has_bubblewrap() => Mark::Argument(folder.path().into()),
                None => Mark::Home(folder.path().into()),
            };
            let left = AtomicBool::new(false);
            Ok(Room(Arc::new(Cleared(Some(Contents { mark, left, folder, lane })))))
        })
        .await
    }

    /// Makes it the room of this task: its files are there then.
    pub async fn fill(&self, plan: Arc<Plan>) -> io::Result<()> {
        let this = self.clone();
        off(move || this.contents().folder.fill(&plan.files)).await
    }

    /// All processes are known to be gone from here.
    pub fn leave(&self) {
        self.contents().left.store(true, Ordering::Release);
    }

    fn contents(&self) -> &Contents {
        self.0.0.as_ref().expect("it is there until it is dropped")
    }

    pub fn site(&self) -> Site<'_> {
        Site { folder: self.contents().folder.path(), uid: self.uid() }
    }

    pub fn uid(&self) -> Option<u32> {
        self.contents().lane.uid
    }

    /// The result, if there is one.
    pub async fn read(&self, name: &str, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
        let (this, name) = (self.clone(), name.to_owned());
        off(move || this.contents().folder.read(&name, bytes_max)).await
    }
}

impl Drop for Cleared {
    fn drop(&mut self) {
        let contents = self.0.take();
        match Handle::try_current() {
            // Where the runtime is ending it drops them all the same.
            Ok(runtime) => drop(runtime.spawn_blocking(move || drop(contents))),
            Err(_) => drop(contents),
        }
    }
}

/// Does something that waits for the disk, away from the threads that serve clients.
async fn off<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}
