//! What is said of a rescue.

use std::fmt::{self, Display, Formatter};

use taskyard_core::SemaphoreKey;

use super::super::seal::Sealed;
use super::{Old, Rescue};

/// What was saved and what was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Tasks in the new database.
    pub tasks: u64,
    /// Tubes in the new database.
    pub tubes: u64,
    /// Tasks that the newest commit found had and the new database has not; none if it is not known
    /// how many there were.
    pub lost: Option<u64>,
    /// Commits that are gone with everything they changed; none if that cannot be told.
    pub commits: Option<u64>,
    /// Tasks among the saved that may have been finished before.
    pub doubtful: u64,
    /// Semaphores in the new database, who stands there, and events.
    pub semaphores: [u64; 3],
    /// Semaphores that are lost themselves and let nobody in until they are set anew: those that tubes name, and, by a
    /// key made up for them, those in which somebody was found.
    pub lost_semaphores: Vec<SemaphoreKey>,
    /// How many pages were read for it.
    pub steps: u64,
}

impl Report {
    pub(super) fn new(rescue: &Rescue<'_>, old: &Old, sealed: &Sealed) -> Report {
        let newest = old.batches.last().map(|batch| batch.head);
        let (tasks, head) = (rescue.head.tasks, newest.or(old.head));
        Report {
            tasks,
            tubes: rescue.head.tubes,
            lost: head.map(|head| head.tasks.saturating_sub(tasks)),
            commits: match (head, sealed) {
                (Some(_), Sealed::Batch { newest, .. }) => Some(old.lost_commits(*newest)),
                _ => None,
            },
            doubtful: rescue.doubtful,
            semaphores: {
                let saved = &rescue.semaphores;
                [saved.semaphores, saved.tasks, saved.events]
            },
            lost_semaphores: rescue.gates.iter().cloned().collect(),
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
            None => f.write_str("unknown, as the number of tasks there were cannot be read")?,
        }
        match (self.lost, self.commits) {
            (_, Some(0)) | (None, None) => {}
            (_, Some(commits)) => {
                write!(f, ", and all that the newest {} changed", of(commits, "commit"))?;
            }
            (Some(_), None) => f.write_str(", and perhaps newer commits: the seal is lost")?,
        }
        if self.doubtful > 0 {
            write!(f, "; {} of the saved may have been finished before", self.doubtful)?;
        }
        let [semaphores, tasks, events] = self.semaphores;
        if semaphores > 0 {
            let (semaphores, tasks) = (of(semaphores, "semaphore"), of(tasks, "task"));
            write!(f, "; also saved: {semaphores} with {tasks} and {}", of(events, "event"))?;
        }
        if !self.lost_semaphores.is_empty() {
            let keys: Vec<&str> = self.lost_semaphores.iter().map(SemaphoreKey::as_str).collect();
            let keys = keys.join(", ");
            write!(f, "; lost semaphores, which let nobody in until they are set anew: {keys}")?;
        }
        Ok(())
    }
}
