//! What is to be copied, and why it cannot be.

use std::collections::{HashMap, HashSet};

use taskyard_core::limits::TUBES_MAX;
use taskyard_core::semaphore::QueueEntry;
use taskyard_core::transfer::{SemaphoreCopy, TubeCopy};
use taskyard_core::{Error, SemaphoreKey, TubeName};

use super::{CopyError, has_same_tasks, semaphores_of, source, target, tubes_of};
use crate::{Capabilities, Store};

/// What is to be copied.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Tubes, by name.
    pub tubes: Vec<Planned>,
    /// Semaphores with all who stand there.
    pub semaphores: Vec<SemaphoreCopy>,
    /// Whether all of it is in the target already, from an earlier copy.
    pub already: bool,
    pub(super) next_lease: u64,
}

/// One tube.
#[derive(Clone, Debug)]
pub struct Planned {
    /// What it is.
    pub copy: TubeCopy,
    /// What it is called in the target until all is there.
    pub staging: TubeName,
    /// Its number there, if an earlier copy did not come to its end.
    pub staged: Option<u32>,
}

impl Plan {
    /// How many tasks there are.
    pub fn tasks(&self) -> u64 {
        self.tubes.iter().map(|tube| tube.copy.stats.tasks.total()).sum()
    }
}

/// Looks at both stores, writes nothing, and says what a copy has to do. With `only` it is of these tubes and the semaphores
/// before them, otherwise of everything.
pub async fn plan(from: &dyn Store, to: &dyn Store, only: &[TubeName]) -> Result<Plan, CopyError> {
    refuse_stores(&from.capabilities(), &to.capabilities())?;
    let (tubes, next_lease) = tubes_of(from).await.map_err(source)?;
    let semaphores = semaphores_of(from).await.map_err(source)?;
    if let Some(missing) = only.iter().find(|name| !tubes.iter().any(|t| t.record.name == **name)) {
        return Err(CopyError::NoTube(Error::TubeNotFound(missing.clone())));
    }
    let wanted = |name: &TubeName| only.is_empty() || only.contains(name);
    // What an unfinished copy left in the source is none of its tubes, nor is what managers of workers keep there.
    let (tubes, others): (Vec<_>, Vec<_>) =
        tubes.into_iter().partition(|tube| wanted(&tube.record.name) && !is_own(&tube.record.name));
    let gates: HashSet<SemaphoreKey> = keys(&tubes).cloned().collect();
    let semaphores: Vec<_> = semaphores
        .into_iter()
        .filter(|semaphore| only.is_empty() || gates.contains(&semaphore.record.key))
        .collect();
    let (there, _) = tubes_of(to).await.map_err(target)?;
    let guards = semaphores_of(to).await.map_err(target)?;
    let same = same_tubes((from, &tubes), (to, &there)).await?;
    let (left, standing) = what_is_left(&tubes, &same, &semaphores, &guards);
    let nothing_left = left.is_empty() && standing.is_empty();
    let already = nothing_left && (!tubes.is_empty() || !semaphores.is_empty());
    // What came before stays as it is, where a store cannot give all tubes their names at once.
    let (tubes, semaphores) = if already { (tubes, semaphores) } else { (left, standing) };
    if !already {
        let mut why = Vec::new();
        refuse_tubes(&tubes, &there, &to.capabilities(), &mut why);
        refuse_semaphores(&semaphores, &guards, &to.capabilities(), &mut why);
        refuse_halves(&gates, &others, &mut why);
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
    Ok(Plan { tubes: planned.collect(), semaphores, already, next_lease })
}

/// The tubes that are in the target as they would become, with every task.
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

/// The tubes and semaphores that are not in the target as they would become. A semaphore and the tubes behind it are one.
fn what_is_left(
    tubes: &[TubeCopy],
    same: &HashSet<TubeName>,
    semaphores: &[SemaphoreCopy],
    guards: &[SemaphoreCopy],
) -> (Vec<TubeCopy>, Vec<SemaphoreCopy>) {
    let is_there = |tube: &TubeCopy| same.contains(&tube.record.name);
    let keyed: HashMap<&SemaphoreKey, &SemaphoreCopy> =
        guards.iter().map(|guard| (&guard.record.key, guard)).collect();
    let is_guard =
        |one: &&SemaphoreCopy| keyed.get(&one.record.key).is_some_and(|other| is_alike(one, other));
    let missing = tubes.iter().filter(|tube| !is_there(tube));
    let mut open: HashSet<&SemaphoreKey> =
        missing.filter_map(|tube| tube.record.options.semaphore.as_ref()).collect();
    open.extend(semaphores.iter().filter(|one| !is_guard(one)).map(|one| &one.record.key));
    let behind = |tube: &TubeCopy| {
        tube.record.options.semaphore.as_ref().is_some_and(|key| open.contains(key))
    };
    let left = tubes.iter().filter(|tube| !is_there(tube) || behind(tube)).cloned().collect();
    let standing =
        semaphores.iter().filter(|one| open.contains(&one.record.key)).cloned().collect();
    (left, standing)
}

fn keys(tubes: &[TubeCopy]) -> impl Iterator<Item = &SemaphoreKey> {
    tubes.iter().filter_map(|tube| tube.record.options.semaphore.as_ref())
}

const STAGING: &str = "taskyard.copy.";
/// How the tubes begin by which managers and workers speak: what is in them is of the moment.
const MANAGER: &str = "taskyard.manager.";

/// What a tube is called until all is there. Its own name may be too long to be a part of it.
fn staging(name: &TubeName) -> TubeName {
    let hash = name.as_str().bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    TubeName::new(&format!("{STAGING}{hash:016x}")).expect("letters and digits")
}

/// Whether it is a tube of ours, made by a copy or by a manager of workers.
fn is_own(name: &TubeName) -> bool {
    name.as_str().starts_with(MANAGER)
        || name.as_str().strip_prefix(STAGING).is_some_and(|rest| rest.len() == 16)
}

/// Whether a tube of the target may be what this one would become, by its numbers. A gate may have let other tasks in since.
fn is_same(tube: &TubeCopy, other: &TubeCopy) -> bool {
    let (mine, its) = (tube.stats.tasks, other.stats.tasks);
    tube.record == other.record && mine.total() == its.total() && mine.buried == its.buried
}

/// Whether a semaphore of the target is what this one would become; the numbers of arrival are each store's own.
fn is_alike(semaphore: &SemaphoreCopy, other: &SemaphoreCopy) -> bool {
    let stands = |copy: &SemaphoreCopy| copy.entries.len();
    semaphore.record.key == other.record.key
        && semaphore.record.options == other.record.options
        && stands(semaphore) == stands(other)
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
        why.push(format!("{} cannot take tasks with their ids and attempts", to.name));
    }
    if why.is_empty() { Ok(()) } else { Err(CopyError::Refused(why)) }
}

fn refuse_tubes(tubes: &[TubeCopy], there: &[TubeCopy], to: &Capabilities, why: &mut Vec<String>) {
    for tube in tubes {
        let (name, options) = (&tube.record.name, &tube.record.options);
        if there.iter().any(|other| other.record.name == *name) {
            why.push(format!("tube '{name}' is in the target already, with other content: drop it there, or name the tubes to copy with --tube"));
        }
        let numbered = there.iter().find(|other| {
            options.queue_num.is_some() && other.record.options.queue_num == options.queue_num
        });
        if let (Some(other), Some(number)) = (numbered, options.queue_num) {
            let other = &other.record.name;
            why.push(format!("tube '{name}' is queue {number}, as '{other}' is in the target"));
        }
        let tasks = tube.stats.tasks.total();
        if options.semaphore.is_some() && to.semaphores && !to.gates {
            let to = to.name;
            why.push(format!("tube '{name}' has a semaphore before it, which {to} cannot here"));
        }
        // When the last server leaves they are forgotten, and that is whoever copies.
        if options.temporary && tasks > 0 {
            why.push(format!(
                "tube '{name}' is temporary, and its {tasks} tasks would not outlive the copy"
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
            why.push(format!("{} has no semaphores, and there is '{key}'", to.name));
        } else if there.iter().any(|other| other.record.key == *key) {
            why.push(format!("semaphore '{key}' is in the target already"));
        }
    }
}

/// Tasks of several tubes may stand in one line.
fn refuse_halves(gates: &HashSet<SemaphoreKey>, others: &[TubeCopy], why: &mut Vec<String>) {
    for other in others {
        if let Some(key) =
            other.record.options.semaphore.as_ref().filter(|key| gates.contains(*key))
        {
            let name = &other.record.name;
            why.push(format!("tube '{name}' shares semaphore '{key}': name it too with --tube"));
        }
    }
}
