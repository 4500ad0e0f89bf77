//! Orders the calls of a transaction so that two servers never deadlock, and divides a batch into transactions where no order can.
//!
//! A transaction keeps its locks until the end: rows of tubes with a capacity, of sub-queues and of unique
//! keys. Calls for different tubes are independent, so they are in the order of the tube names; where there is more than one
//! call for a tube, all its locks are taken first, in one order as well. Puts that may replace tasks wait for the locks of these,
//! so they share no transaction with other commands, and neither do commands that lock several tubes.

use std::collections::HashSet;

use taskyard_core::{Command, List, NewTask, OnConflict, Search, TubeName};

use super::call_grouping::has_key;
use super::codec::id_to_sql;
use super::plan::CallGroup;
use super::statements::{self as sql, Call, param};

/// The tube of a command that may be reordered with commands for other tubes.
pub(super) fn tube_of(command: &Command) -> Option<&TubeName> {
    match command {
        Command::Put { tube, .. }
        | Command::Finish { tube, .. }
        | Command::KickTasks { tube, .. }
        | Command::Delete { tube, .. }
        | Command::Peek { tube, .. }
        | Command::Deliveries { tube, .. }
        | Command::Positions { tube, .. }
        | Command::List(List { tube, .. })
        | Command::Search(Search { tube, .. }) => Some(tube),
        Command::Take(take) => Some(&take.tube),
        _ => None,
    }
}

/// Whether a command locks several tubes, or one exclusively: its locks are in no order with those of the commands before
/// and after it.
fn spans_tubes(command: &Command) -> bool {
    let looks = matches!(
        command,
        Command::Tubes { .. } | Command::Semaphore(_) | Command::ConfigureSessions { .. }
    );
    tube_of(command).is_none() && !looks
}

/// Whether a command may replace waiting tasks.
fn replaces(command: &Command) -> bool {
    let replaces = |task: &NewTask| {
        task.key.as_ref().is_some_and(|request| request.on_conflict == OnConflict::Replace)
    };
    matches!(command, Command::Put { tasks, .. } if tasks.iter().any(replaces))
}

/// The parts of a batch that become transactions of their own, one after the other. Most batches are one part: in plain
/// tubes no lock is taken that others wait for.
pub(super) fn parts(commands: Vec<Command>, plain: &HashSet<TubeName>) -> Vec<Vec<Command>> {
    let locks = |command: &Command| {
        let tube = tube_of(command);
        has_key(command)
            || matches!(command, Command::Schedule(_))
            || tube.is_some_and(|tube| !plain.contains(tube))
    };
    let spans = |command: &Command| spans_tubes(command) || replaces(command);
    if !commands.iter().any(spans) || !commands.iter().any(locks) {
        return vec![commands];
    }
    let mut parts: Vec<Vec<Command>> = Vec::new();
    for command in commands {
        let shares = |part: &&mut Vec<Command>| {
            let last = part.last();
            !spans_tubes(&command)
                && last
                    .is_some_and(|last| !spans_tubes(last) && replaces(last) == replaces(&command))
        };
        match parts.last_mut().filter(shares) {
            Some(part) => part.push(command),
            None => parts.push(vec![command]),
        }
    }
    parts
}

fn tube(group: &CallGroup) -> Option<&TubeName> {
    tube_of(group.commands.first()?)
}

/// Sorts groups by tube, between the commands that are not reordered. Groups of one tube keep their order.
pub(super) fn sort(groups: &mut [CallGroup]) {
    for run in groups.chunk_by_mut(|a, b| tube(a).is_some() && tube(b).is_some()) {
        run.sort_by(|a, b| tube(a).cmp(&tube(b)));
    }
}

/// The lock calls before each group, where some are needed.
pub(super) fn locks(
    groups: &[CallGroup],
    plain: &HashSet<TubeName>,
    now: Option<i64>,
) -> Vec<Vec<Call>> {
    let mut locks = Vec::with_capacity(groups.len());
    for run in groups.chunk_by(|a, b| tube(a).is_some() && tube(a) == tube(b)) {
        let several = tube(&run[0]).filter(|_| run.len() > 1);
        let mut first = Vec::new();
        first
            .extend(several.filter(|tube| !plain.contains(*tube)).and_then(|tube| lock(tube, run)));
        first.extend(several.and_then(|tube| lock_keys(tube, run, now)));
        locks.push(first);
        locks.extend(run.iter().skip(1).map(|_| Vec::new()));
    }
    locks
}

/// Locks the keys of these groups, if more than one of them puts tasks with keys.
fn lock_keys(tube: &TubeName, groups: &[CallGroup], now: Option<i64>) -> Option<Call> {
    let is_keyed = |group: &&CallGroup| group.commands.iter().any(has_key);
    if groups.iter().filter(is_keyed).count() < 2 {
        return None;
    }
    let mut keys = Vec::new();
    for command in groups.iter().flat_map(|group| &group.commands) {
        if let Command::Put { tasks, .. } = command {
            let requests = tasks.iter().filter_map(|task| task.key.as_ref());
            keys.extend(requests.map(|request| request.held.key.as_str().to_owned()));
        }
    }
    let name = tube.as_str().to_owned();
    Some(Call::new(&sql::LOCK_KEYS, [param(name), param(keys), param(now)]))
}

/// Takes all locks of these groups; `None` where they only take, which waits for no lock.
fn lock(tube: &TubeName, groups: &[CallGroup]) -> Option<Call> {
    let (mut keys, mut ids) = (None::<Vec<Option<String>>>, Vec::new());
    for command in groups.iter().flat_map(|group| &group.commands) {
        match command {
            Command::Put { tasks, .. } => {
                let named = tasks.iter().map(|task| task.subqueue.as_deref().map(str::to_owned));
                keys.get_or_insert_default().extend(named);
            }
            Command::Finish { items, .. } => {
                ids.extend(items.iter().map(|item| id_to_sql(item.id)))
            }
            Command::Delete { ids: all, .. } | Command::KickTasks { ids: all, .. } => {
                ids.extend(all.iter().copied().map(id_to_sql))
            }
            _ => {}
        }
    }
    let waits = keys.is_some() || !ids.is_empty();
    let name = tube.as_str().to_owned();
    waits.then(|| Call::new(&sql::LOCK_TUBE, [param(name), param(keys), param(ids)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peek(tube: &str) -> Command {
        Command::Peek { tube: TubeName::new(tube).unwrap(), ids: vec![] }
    }

    // A tick locked sub-queues of one tube, and a later command of the batch those of an earlier tube: two servers
    // deadlocked until the database noticed.
    #[test]
    fn a_command_that_spans_tubes_is_a_transaction_of_its_own() {
        let tick = || Command::Tick { limit: 1, seed: 0 };
        let batch = || vec![tick(), peek("b"), peek("a"), tick(), tick(), peek("b")];
        let sizes = |plain: &[&str]| {
            let plain = plain.iter().map(|tube| TubeName::new(tube).unwrap()).collect();
            parts(batch(), &plain).iter().map(Vec::len).collect::<Vec<_>>()
        };
        assert_eq!(sizes(&["a"]), [1, 2, 1, 1, 1]);
        assert_eq!(sizes(&["a", "b"]), [6], "where nothing is locked one transaction is enough");
        assert_eq!(parts(vec![peek("a"), peek("b")], &HashSet::new()).len(), 1);
        assert_eq!(parts(vec![tick(), tick()], &HashSet::new()).len(), 1);
    }
}
