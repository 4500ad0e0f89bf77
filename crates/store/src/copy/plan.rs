//! Decides which tubes, semaphores and schedules to copy, and refuses what the target cannot hold.

use std::collections::{HashMap, HashSet};

use taskyard_core::limits::TUBES_MAX;
use taskyard_core::semaphore::QueueEntry;
use taskyard_core::transfer::{SemaphoreCopy, TubeCopy};
use taskyard_core::{Error, SemaphoreKey, StoredSchedule, TaskId, TubeName};

use super::{
    CopyError, has_same_tasks, schedules_of, semaphores_of, source, target, tasks_of, tubes_of,
};
use crate::{Capabilities, Store};

/// The tubes and semaphores to copy.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Tubes, by name.
    pub tubes: Vec<Planned>,
    /// Semaphores with all their entries.
    pub semaphores: Vec<SemaphoreCopy>,
    /// Schedules whose tubes are copied, or all of them.
    pub schedules: Vec<StoredSchedule>,
    /// Whether the target already has all of it, from an earlier copy.
    pub already: bool,
    pub(super) next_lease: u64,
}

/// A tube to copy.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The tube in the source.
    pub copy: TubeCopy,
    /// Its name in the target until everything is copied.
    pub staging: TubeName,
    /// The number of its staging tube, if an earlier copy was interrupted.
    pub staged: Option<u32>,
}

impl Plan {
    /// The number of tasks to copy.
    pub fn tasks(&self) -> u64 {
        self.tubes.iter().map(|tube| tube.copy.stats.tasks.total()).sum()
    }
}

/// Compares both stores and returns what a copy has to do; writes nothing. With `only`, these tubes and the
/// semaphores before them are copied, otherwise everything.
pub async fn plan(from: &dyn Store, to: &dyn Store, only: &[TubeName]) -> Result<Plan, CopyError> {
    refuse_stores(&from.capabilities(), &to.capabilities())?;
    let (tubes, next_lease) = tubes_of(from).await.map_err(source)?;
    let semaphores = semaphores_of(from).await.map_err(source)?;
    if let Some(missing) = only.iter().find(|name| !tubes.iter().any(|t| t.record.name == **name)) {
        return Err(CopyError::NoTube(Error::TubeNotFound(missing.clone())));
    }
    let wanted = |name: &TubeName| only.is_empty() || only.contains(name);
    // Staging tubes of an unfinished copy and tubes of worker managers are not content of the source.
    let (tubes, others): (Vec<_>, Vec<_>) = tubes
        .into_iter()
        .partition(|tube| wanted(&tube.record.name) && !is_internal(&tube.record.name));
    let gates: HashSet<SemaphoreKey> = keys(&tubes).cloned().collect();
    let semaphores: Vec<_> = semaphores
        .into_iter()
        .filter(|semaphore| only.is_empty() || gates.contains(&semaphore.record.key))
        .collect();
    let (there, _) = tubes_of(to).await.map_err(target)?;
    let target_semaphores = semaphores_of(to).await.map_err(target)?;
    let there_schedules = schedules_of(to).await.map_err(target)?;
    let mut schedules = schedules_of(from).await.map_err(source)?;
    schedules.retain(|one| wanted(&one.tube));
    let has_content = !(tubes.is_empty() && semaphores.is_empty() && schedules.is_empty());
    schedules.retain(|one| !there_schedules.contains(one));
    let same = same_tubes((from, &tubes), (to, &there)).await?;
    let (left, left_semaphores) = missing_in_target(&tubes, &same, &semaphores, &target_semaphores);
    let nothing_left = left.is_empty() && left_semaphores.is_empty() && schedules.is_empty();
    let already = nothing_left && has_content;
    // Tubes and semaphores that are there already stay, where a store cannot give all tubes their names at
    // once.
    let (tubes, semaphores) = if already { (tubes, semaphores) } else { (left, left_semaphores) };
    if !already {
        let mut why = Vec::new();
        refuse_tubes(&tubes, &there, &to.capabilities(), &mut why);
        refuse_semaphores(&semaphores, &target_semaphores, &to.capabilities(), &mut why);
        refuse_schedules(&schedules, &there_schedules, &to.capabilities(), &mut why);
        refuse_shared_semaphores(&gates, &others, &mut why);
        refuse_attempts(from, &tubes, &to.capabilities(), &mut why).await?;
        if !why.is_empty() {
            return Err(CopyError::Refused(why));
        }
    }
    let planned = tubes.into_iter().map(|copy| {
        let staging = staging(&copy.record.name);
        let staged = there.iter().find(|tube| tube.record.name == staging);
        let staged = staged.map(|tube| tube.number);
        Planned { copy, staging, staged }
    });
    Ok(Plan { tubes: planned.collect(), semaphores, schedules, already, next_lease })
}

/// The tubes that the target already has, with every task.
async fn same_tubes(
    (from, tubes): (&dyn Store, &[TubeCopy]),
    (to, there): (&dyn Store, &[TubeCopy]),
) -> Result<HashSet<TubeName>, CopyError> {
    let named: HashMap<&TubeName, &TubeCopy> =
        there.iter().map(|tube| (&tube.record.name, tube)).collect();
    let mut same = HashSet::new();
    for tube in tubes {
        let other = named.get(&tube.record.name).filter(|other| is_same(tube, other));
        if let Some(other) = other
            && has_same_tasks((from, tube.number), (to, other.number)).await?
        {
            same.insert(tube.record.name.clone());
        }
    }
    Ok(same)
}

/// The tubes and semaphores that the target does not have yet. A semaphore and the tubes behind it are copied
/// together.
fn missing_in_target(
    tubes: &[TubeCopy],
    same: &HashSet<TubeName>,
    semaphores: &[SemaphoreCopy],
    target_semaphores: &[SemaphoreCopy],
) -> (Vec<TubeCopy>, Vec<SemaphoreCopy>) {
    let is_there = |tube: &TubeCopy| same.contains(&tube.record.name);
    let keyed: HashMap<&SemaphoreKey, &SemaphoreCopy> =
        target_semaphores.iter().map(|other| (&other.record.key, other)).collect();
    let is_copied =
        |one: &&SemaphoreCopy| keyed.get(&one.record.key).is_some_and(|other| is_alike(one, other));
    let missing = tubes.iter().filter(|tube| !is_there(tube));
    let mut open: HashSet<&SemaphoreKey> =
        missing.filter_map(|tube| tube.record.options.semaphore.as_ref()).collect();
    open.extend(semaphores.iter().filter(|one| !is_copied(one)).map(|one| &one.record.key));
    let behind = |tube: &TubeCopy| {
        tube.record.options.semaphore.as_ref().is_some_and(|key| open.contains(key))
    };
    let left = tubes.iter().filter(|tube| !is_there(tube) || behind(tube)).cloned().collect();
    let left_semaphores =
        semaphores.iter().filter(|one| open.contains(&one.record.key)).cloned().collect();
    (left, left_semaphores)
}

fn keys(tubes: &[TubeCopy]) -> impl Iterator<Item = &SemaphoreKey> {
    tubes.iter().filter_map(|tube| tube.record.options.semaphore.as_ref())
}

const STAGING: &str = "taskyard.copy.";
/// The prefix of the tubes through which managers and workers communicate; their content is not permanent.
const MANAGER: &str = "taskyard.manager.";

/// The prefix of the tubes in which servers store which user created which tube. The target has its own.
const OWNERS: &str = "taskyard.owners.";

/// The staging name of a tube. Its own name may be too long to be a part of it.
fn staging(name: &TubeName) -> TubeName {
    let hash = name.as_str().bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    TubeName::new(&format!("{STAGING}{hash:016x}")).expect("letters and digits")
}

/// Whether the tube was created by a copy, by a manager of workers, or by a server for itself.
fn is_internal(name: &TubeName) -> bool {
    name.as_str().starts_with(MANAGER)
        || name.as_str().starts_with(OWNERS)
        || name.as_str().strip_prefix(STAGING).is_some_and(|rest| rest.len() == 16)
}

/// Whether a tube of the target may be a copy of this one, by its counts. A gate may have admitted other
/// tasks since.
fn is_same(tube: &TubeCopy, other: &TubeCopy) -> bool {
    let (mine, its) = (tube.stats.tasks, other.stats.tasks);
    tube.record == other.record && mine.total() == its.total() && mine.buried == its.buried
}

/// Whether a semaphore of the target is a copy of this one; sequence numbers differ between stores.
fn is_alike(semaphore: &SemaphoreCopy, other: &SemaphoreCopy) -> bool {
    let entries = |copy: &SemaphoreCopy| copy.entries.len();
    semaphore.record.key == other.record.key
        && semaphore.record.options == other.record.options
        && entries(semaphore) == entries(other)
        && semaphore.entries.iter().zip(&other.entries).all(|(mine, its)| {
            let alike = |place: &QueueEntry| (place.priority, place.enqueued);
            mine.task == its.task && alike(&mine.entry) == alike(&its.entry)
        })
}

fn refuse_stores(from: &Capabilities, to: &Capabilities) -> Result<(), CopyError> {
    let mut why = Vec::new();
    if !from.exports {
        why.push(format!("{} cannot be copied from", from.name));
    }
    if !to.imports {
        why.push(format!("{} cannot store tasks with their ids and attempts", to.name));
    }
    if why.is_empty() { Ok(()) } else { Err(CopyError::Refused(why)) }
}

fn refuse_tubes(tubes: &[TubeCopy], there: &[TubeCopy], to: &Capabilities, why: &mut Vec<String>) {
    for tube in tubes {
        let (name, options) = (&tube.record.name, &tube.record.options);
        if there.iter().any(|other| other.record.name == *name) {
            why.push(format!("the target already has a tube '{name}' with other content: drop it there, or name the tubes to copy with --tube"));
        }
        let numbered = there.iter().find(|other| {
            options.queue_num.is_some() && other.record.options.queue_num == options.queue_num
        });
        if let (Some(other), Some(number)) = (numbered, options.queue_num) {
            let other = &other.record.name;
            why.push(format!(
                "tube '{name}' has queue number {number}, which tube '{other}' of the target has"
            ));
        }
        if options.retry.is_some() && !to.retries {
            why.push(format!("tube '{name}' has a retry policy, which {} does not have", to.name));
        }
        if options.rate.is_some() && !to.rates {
            why.push(format!("tube '{name}' has a rate limit, which {} does not have", to.name));
        }
        let tasks = tube.stats.tasks.total();
        if options.semaphore.is_some() && to.semaphores && !to.gates {
            let to = to.name;
            why.push(format!(
                "tube '{name}' has a semaphore before it, which {to} does not support here"
            ));
        }
        // The tasks are deleted when the last server leaves, and that is the process that copies.
        if options.temporary && tasks > 0 {
            why.push(format!(
                "tube '{name}' is temporary, and its {tasks} tasks would not survive the copy"
            ));
        }
    }
    let used: HashSet<&TubeName> = there.iter().map(|tube| &tube.record.name).collect();
    let new = tubes.iter().filter(|tube| !used.contains(&staging(&tube.record.name))).count();
    if there.len() + new > TUBES_MAX {
        why.push(format!("the target would have more than {TUBES_MAX} tubes"));
    }
}

fn refuse_semaphores(
    semaphores: &[SemaphoreCopy],
    there: &[SemaphoreCopy],
    to: &Capabilities,
    why: &mut Vec<String>,
) {
    for semaphore in semaphores {
        let key = &semaphore.record.key;
        if !to.semaphores {
            why.push(format!("{} has no semaphores, but the source has '{key}'", to.name));
        } else if there.iter().any(|other| other.record.key == *key) {
            why.push(format!("the target already has a semaphore '{key}'"));
        }
    }
}

/// Refuses tubes with a task that has its own number of attempts, if the target would lose it.
async fn refuse_attempts(
    from: &dyn Store,
    tubes: &[TubeCopy],
    to: &Capabilities,
    why: &mut Vec<String>,
) -> Result<(), CopyError> {
    if to.retries || !from.capabilities().retries {
        return Ok(());
    }
    for tube in tubes {
        let mut next = TaskId(0);
        loop {
            let page = tasks_of(from, tube.number, next).await.map_err(source)?;
            if let Some(task) = page.iter().find(|task| task.attempts_max.is_some()) {
                let (id, name, to) = (task.id, &tube.record.name, to.name);
                why.push(format!(
                    "task {id} of tube '{name}' has its own attempts_max, which {to} does not have"
                ));
                break;
            }
            let Some(last) = page.last() else { break };
            next = TaskId(last.id.0 + 1);
        }
    }
    Ok(())
}

/// Refuses schedules that the target cannot hold.
fn refuse_schedules(
    schedules: &[StoredSchedule],
    there: &[StoredSchedule],
    to: &Capabilities,
    why: &mut Vec<String>,
) {
    for StoredSchedule { name, .. } in schedules {
        if !to.schedules {
            why.push(format!("{} has no schedules, but the source has '{name}'", to.name));
        } else if there.iter().any(|other| other.name == *name) {
            why.push(format!("the target has another schedule '{name}'"));
        }
    }
}

/// Refuses to copy only some of the tubes that share a semaphore.
fn refuse_shared_semaphores(
    gates: &HashSet<SemaphoreKey>,
    others: &[TubeCopy],
    why: &mut Vec<String>,
) {
    for other in others {
        if let Some(key) =
            other.record.options.semaphore.as_ref().filter(|key| gates.contains(*key))
        {
            let name = &other.record.name;
            why.push(format!("tube '{name}' shares semaphore '{key}': copy it too with --tube"));
        }
    }
}
