//! What must be true of semaphores after a storm, whoever took part in it.

use std::collections::BTreeSet;

use taskyard_core::{Command, Standing, Status, TaskId};
use taskyard_core::{Execute, Grant, Reply, SemaphoreCommand, SemaphoreKey, SemaphoreReply};

/// Panics unless the semaphore is as the rules want it: no place is held twice or leaked, nobody waits while a
/// place is free. `tasks` are all that may stand in it; answers those that hold a grant.
pub async fn check<E: Execute>(
    queue: &E,
    key: &SemaphoreKey,
    tasks: impl Iterator<Item = u64>,
) -> Vec<Standing> {
    let tasks: Vec<TaskId> = tasks.map(TaskId).collect();
    let commands = vec![
        Command::Semaphore(SemaphoreCommand::List { key: Some(key.clone()) }),
        Command::Semaphore(SemaphoreCommand::Look { key: key.clone(), tasks }),
    ];
    let replies = queue.execute(commands).await;
    let [
        Ok(Reply::Semaphore(SemaphoreReply::Semaphores(infos))),
        Ok(Reply::Semaphore(SemaphoreReply::Standings(standings))),
    ] = &replies[..]
    else {
        panic!("{replies:?}");
    };
    let info = &infos[0];
    let count = |status| standings.iter().filter(|task| task.status == status).count() as u64;
    let counted = Status::ALL.map(count);
    let kept = [info.waiting, info.delayed, info.acquired, info.revoking];
    assert_eq!(counted, kept, "{key}: who stands there and what was counted");
    let held = info.acquired + info.revoking;
    let active = u64::from(info.options.active);
    assert!(held <= active, "{key}: {held} hold a grant, {active} may");
    assert!(held == active || info.waiting == 0, "{key}: a place is free and somebody waits");
    let holders: Vec<Standing> =
        standings.iter().filter(|standing| standing.grant.is_some()).copied().collect();
    let grants: BTreeSet<Option<Grant>> = holders.iter().map(|holder| holder.grant).collect();
    assert_eq!(grants.len(), holders.len(), "{key}: a grant was given twice");
    holders
}
