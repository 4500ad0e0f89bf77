//! Reports which data of a damaged database was saved and lost.

use std::fmt::{self, Display, Formatter};

use taskyard_core::SemaphoreKey;

use super::super::pace::PaceReport;
use super::super::seal::Sealed;
use super::{DamagedDatabase, SalvageWriter};

/// The data that was saved and lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Tasks in the new database.
    pub tasks: u64,
    /// Tubes in the new database.
    pub tubes: u64,
    /// Tasks that existed at the newest known commit and are not in the new database; `None` if their number
    /// is unknown.
    pub lost: Option<u64>,
    /// Commits that are lost with all their changes; `None` if that is unknown.
    pub commits: Option<u64>,
    /// Saved tasks that may have been finished before.
    pub doubtful: u64,
    /// Semaphores in the new database, their entries and events.
    pub semaphores: [u64; 3],
    /// Lost semaphores, which admit no task until they are configured again: those that tubes refer to, and,
    /// under generated keys, those of which entries were found.
    pub lost_semaphores: Vec<SemaphoreKey>,
    /// Unique keys that are lost, so that they are free.
    pub lost_keys: u64,
    /// Schedules, retry policies and rate limits.
    pub pace: PaceReport,
    /// Number of pages that were read.
    pub steps: u64,
}

impl Report {
    pub(super) fn new(
        writer: &SalvageWriter<'_>,
        old: &DamagedDatabase,
        sealed: &Sealed,
    ) -> Report {
        let newest = old.batches.last().map(|batch| batch.head);
        let (tasks, head) = (writer.head.tasks, newest.or(old.head));
        Report {
            tasks,
            tubes: writer.head.tubes,
            lost: head.map(|head| head.tasks.saturating_sub(tasks)),
            commits: match (head, sealed) {
                (Some(_), Sealed::Batch { newest, .. }) => Some(old.lost_commits(*newest)),
                _ => None,
            },
            doubtful: writer.doubtful,
            semaphores: {
                let saved = &writer.semaphores;
                [saved.semaphores, saved.tasks, saved.events]
            },
            lost_semaphores: writer.gates.iter().cloned().collect(),
            lost_keys: writer.lost_keys,
            pace: writer.pace,
            steps: old.pages.steps(),
        }
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let of = |count: u64, noun: &str| match count {
            1 => format!("1 {noun}"),
            count => format!("{count} {noun}s"),
        };
        write!(f, "saved {} in {}; lost: ", of(self.tasks, "task"), of(self.tubes, "tube"))?;
        match self.lost {
            Some(lost) => f.write_str(&of(lost, "task"))?,
            None => f.write_str("unknown, because the number of tasks cannot be read")?,
        }
        match (self.lost, self.commits) {
            (_, Some(0)) | (None, None) => {}
            (_, Some(commits)) => {
                write!(f, ", and all changes of the newest {}", of(commits, "commit"))?;
            }
            (Some(_), None) => f.write_str(", and perhaps newer commits: the seal is lost")?,
        }
        if self.doubtful > 0 {
            write!(f, "; {} of the saved tasks may have been finished before", self.doubtful)?;
        }
        let [semaphores, tasks, events] = self.semaphores;
        if semaphores > 0 {
            let (semaphores, tasks) = (of(semaphores, "semaphore"), of(tasks, "task"));
            write!(f, "; also saved: {semaphores} with {tasks} and {}", of(events, "event"))?;
        }
        if self.lost_keys > 0 {
            write!(f, "; lost {}, which a put can use again", of(self.lost_keys, "unique key"))?;
        }
        if !self.lost_semaphores.is_empty() {
            let keys: Vec<&str> = self.lost_semaphores.iter().map(SemaphoreKey::as_str).collect();
            let keys = keys.join(", ");
            write!(
                f,
                "; lost semaphores, which admit no task until they are configured again: {keys}"
            )?;
        }
        let PaceReport { schedules, lost_schedules, lost_tubes } = self.pace;
        if schedules > 0 {
            write!(f, "; also saved: {}", of(schedules, "schedule"))?;
        }
        if lost_schedules > 0 {
            write!(f, "; lost schedules: {lost_schedules}")?;
        }
        if lost_tubes > 0 {
            let tubes = of(lost_tubes, "tube");
            write!(f, "; lost: the retry policy and rate limit of {tubes}")?;
        }
        Ok(())
    }
}
