//! In which order a batch asks, so that two servers never wait for each other in a circle.
//!
//! A batch is one transaction and keeps what it locks: rows of tubes with a capacity, and of sub-queues. What is
//! asked of different tubes may stand in any order, so it stands in that of their names; where one
//! tube is asked more than one thing, all that will be locked there is locked first, in one order as well.

use std::collections::HashSet;

use taskyard_core::{Command, TubeName};

use super::codec::id_to_sql;
use super::plan::Group;
use super::statements::{self as sql, Call, param};

/// The tube that a command is about, if it may change places with those about others.
pub(super) fn tube_of(command: &Command) -> Option<&TubeName> {
    match command {
        Command::Put { tube, .. }
        | Command::Finish { tube, .. }
        | Command::Delete { tube, .. }
        | Command::Peek { tube, .. }
        | Command::Deliveries { tube, .. } => Some(tube),
        Command::Take(take) => Some(&take.tube),
        _ => None,
    }
}

/// Whether a command goes from tube to tube, or keeps others away from one: what it locks stands in no order with what
/// comes before and after it.
fn roams(command: &Command) -> bool {
    let looks = matches!(
        command,
        Command::Tubes { .. } | Command::Semaphore(_) | Command::ConfigureSessions { .. }
    );
    tube_of(command).is_none() && !looks
}

/// The parts of a batch that become transactions of their own, one after the other. Most batches are one part: where
/// all tubes are plain nothing is locked that others wait for.
pub(super) fn parts(commands: Vec<Command>, plain: &HashSet<TubeName>) -> Vec<Vec<Command>> {
    let locks = |command: &Command| tube_of(command).is_some_and(|tube| !plain.contains(tube));
    if !commands.iter().any(roams) || !commands.iter().any(locks) {
        return vec![commands];
    }
    let mut parts: Vec<Vec<Command>> = Vec::new();
    let mut ended = true;
    for command in commands {
        let alone = roams(&command);
        match parts.last_mut().filter(|_| !ended && !alone) {
            Some(part) => part.push(command),
            None => parts.push(vec![command]),
        }
        ended = alone;
    }
    parts
}

fn tube(group: &Group) -> Option<&TubeName> {
    tube_of(group.commands.first()?)
}

/// Puts groups into the order of their tubes, between those that nothing passes. In one tube they stay as they are.
pub(super) fn sort(groups: &mut [Group]) {
    for run in groups.chunk_by_mut(|a, b| tube(a).is_some() && tube(b).is_some()) {
        run.sort_by(|a, b| tube(a).cmp(&tube(b)));
    }
}

/// The call that has to come before each group, where one has to.
pub(super) fn locks(groups: &[Group], plain: &HashSet<TubeName>) -> Vec<Option<Call>> {
    let mut locks = Vec::with_capacity(groups.len());
    for run in groups.chunk_by(|a, b| tube(a).is_some() && tube(a) == tube(b)) {
        let several = tube(&run[0]).filter(|tube| run.len() > 1 && !plain.contains(*tube));
        locks.push(several.and_then(|tube| lock(tube, run)));
        locks.extend(run.iter().skip(1).map(|_| None));
    }
    locks
}

/// Locks whatever these will; nothing where they only take, which waits for nobody.
fn lock(tube: &TubeName, groups: &[Group]) -> Option<Call> {
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
            Command::Delete { ids: all, .. } => ids.extend(all.iter().copied().map(id_to_sql)),
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

    // A tick locked sub-queues of one tube, and what came after it in the batch those of an earlier one: two servers
    // waited for each other until the database found out.
    #[test]
    fn what_roams_is_a_transaction_of_its_own() {
        let tick = || Command::Tick { limit: 1 };
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
