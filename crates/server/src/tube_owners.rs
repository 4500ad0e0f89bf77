//! Stores which user created which tube, in the store itself: one internal tube for each user, with
//! a task for each tube. So no store needs another format, and all servers of a store see the same.
//!
//! An entry is put after its tube was created, in the same batch. An entry whose tube does not exist
//! any more is therefore out of date; [`read`] finds and removes such entries.

use std::collections::{HashMap, HashSet};

use taskyard_core::access::RESERVED_PREFIX;
use taskyard_core::limits::{BATCH_TASKS_MAX, LIST_TASKS_MAX};
use taskyard_core::{
    Body, Command, Execute, Kind, List, ListOrder, NewTask, Reply, Span, StateSet, Task, TaskId,
    Timestamp, TubeName, TubeOptions,
};
use taskyard_wire::Payload;

/// Only an administrator may use these tubes: others could change their count.
const PREFIX: &str = RESERVED_PREFIX;

/// The tube that stores the tubes of a user.
pub(crate) fn owner_tube(user: &str) -> TubeName {
    TubeName::new(&format!("{PREFIX}{user}")).unwrap_or_else(|_| {
        // The name of a user may be longer, or contain a character that no tube may have.
        let hash = user.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        TubeName::new(&format!("{PREFIX}{hash:016x}")).expect("letters and digits")
    })
}

/// Creates the tube of a user.
pub(crate) fn create(owner: &TubeName) -> Command {
    let options = TubeOptions::new(Kind::Fifo);
    Command::CreateTube { tube: owner.clone(), options, if_not_exists: true }
}

/// Adds an entry.
pub(crate) fn put(owner: &TubeName, tube: &TubeName) -> Command {
    let text = serde_json::to_string(tube.as_str()).unwrap_or_default();
    let payload = Payload::from_json(&text).map(Payload::into_msgpack).unwrap_or_default();
    let tasks = vec![NewTask::new(Body::new(&payload))];
    Command::Put { tube: owner.clone(), tasks, wait: Span::ZERO }
}

/// Removes an entry.
pub(crate) fn delete((owner, entry): (TubeName, TaskId)) -> Command {
    Command::Delete { tube: owner, ids: vec![entry], show: false }
}

/// The id of the entry that a [`put`] added.
pub(crate) fn entry_of(reply: Option<&taskyard_core::Result<Reply>>) -> Option<TaskId> {
    match reply {
        Some(Ok(Reply::Put(placed))) => placed.first().map(|placed| placed.id),
        _ => None,
    }
}

/// What a store contains.
#[derive(Debug, Default)]
pub(crate) struct StoredOwners {
    /// The owners of tubes that exist: the tube of the owner, and the entry.
    pub owners: HashMap<TubeName, (TubeName, TaskId)>,
    /// The tubes of users, with the latest entry that was read.
    pub latest: HashMap<TubeName, Option<TaskId>>,
    /// The number of all tubes.
    pub total: usize,
}

/// Reads all owners, and removes entries that are out of date. `None` if the store does not answer.
pub(crate) async fn read(queue: &impl Execute) -> Option<StoredOwners> {
    let mut stored = StoredOwners::default();
    let mut entries = Vec::new();
    for owner in
        all_tubes(queue).await?.into_iter().filter(|tube| tube.as_str().starts_with(PREFIX))
    {
        let read = entries_of(queue, &owner).await?;
        stored.latest.insert(owner.clone(), read.last().map(|entry| entry.id));
        entries.extend(read.into_iter().map(|entry| (owner.clone(), entry)));
    }
    // The tubes are listed after the entries, so a missing one was dropped and is not just new.
    let tubes: HashSet<TubeName> = all_tubes(queue).await?.into_iter().collect();
    stored.total = tubes.len();
    // A tube that was dropped and created again may have several entries: the latest is right.
    entries.sort_by_key(|(_, entry)| (entry.created, entry.id));
    let mut stale: HashMap<TubeName, Vec<TaskId>> = HashMap::new();
    for (owner, entry) in entries {
        let before = match entry.tube.filter(|tube| tubes.contains(tube)) {
            Some(tube) => stored.owners.insert(tube, (owner, entry.id)),
            None => Some((owner, entry.id)),
        };
        if let Some((owner, id)) = before {
            stale.entry(owner).or_default().push(id);
        }
    }
    let deletes = stale.into_iter().flat_map(|(tube, ids)| {
        let pages: Vec<_> = ids.chunks(BATCH_TASKS_MAX).map(<[TaskId]>::to_vec).collect();
        pages.into_iter().map(move |ids| Command::Delete { tube: tube.clone(), ids, show: false })
    });
    let deletes: Vec<Command> = deletes.collect();
    if !deletes.is_empty() {
        queue.execute(deletes).await;
    }
    Some(stored)
}

async fn all_tubes(queue: &impl Execute) -> Option<Vec<TubeName>> {
    match queue.execute(vec![Command::Tubes { tube: None }]).await.pop()? {
        Ok(Reply::Tubes(tubes)) => Some(tubes.into_iter().map(|tube| tube.name).collect()),
        _ => None,
    }
}

struct Entry {
    id: TaskId,
    created: Timestamp,
    /// `None` if it is unreadable, because a client put it there.
    tube: Option<TubeName>,
}

impl Entry {
    fn of(task: &Task) -> Self {
        let body = task.body.as_ref();
        let name = body.and_then(|body| Payload::from_msgpack(body.payload()).ok());
        let name = name.and_then(|name| serde_json::to_string(&name).ok());
        let name = name.and_then(|name| serde_json::from_str::<String>(&name).ok());
        let tube = name.and_then(|name| TubeName::new(&name).ok());
        Entry { id: task.id, created: task.created, tube }
    }
}

/// The entries of one user, by id.
async fn entries_of(queue: &impl Execute, owner: &TubeName) -> Option<Vec<Entry>> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut after = None;
    loop {
        let order = ListOrder::Id { states: StateSet::ALL, after };
        let list = List { tube: owner.clone(), order, limit: LIST_TASKS_MAX, key: None };
        let ids: Vec<TaskId> = match queue.execute(vec![Command::List(list)]).await.pop()? {
            Ok(Reply::Listed(tasks)) => tasks.into_iter().map(|task| task.id).collect(),
            _ => return None,
        };
        let count = ids.len();
        after = ids.last().copied();
        let peek = Command::Peek { tube: owner.clone(), ids };
        match queue.execute(vec![peek]).await.pop()? {
            Ok(Reply::Tasks(tasks)) => entries.extend(tasks.iter().map(Entry::of)),
            _ => return None,
        }
        if count < LIST_TASKS_MAX {
            return Some(entries);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_user_has_a_tube() {
        assert_eq!(owner_tube("ann").as_str(), "taskyard.owners.ann");
        let names = ["a/b".to_owned(), "a:b".into(), "x".repeat(500), "y".repeat(500)];
        let tubes: HashSet<TubeName> = names.iter().map(|name| owner_tube(name)).collect();
        assert_eq!(tubes.len(), names.len());
        assert!(tubes.iter().all(|tube| tube.as_str().starts_with(PREFIX) && tube.is_internal()));
    }
}
