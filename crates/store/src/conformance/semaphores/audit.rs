//! What must be true of semaphores after a storm, whoever took part in it.

use std::collections::BTreeSet;

use taskyard_core::{Command, SemaphoreInfo, Standing, Status, TaskId};
use taskyard_core::{Execute, Grant, Reply, SemaphoreCommand, SemaphoreKey, SemaphoreReply};

/// Panics unless the semaphore is as the rules want it: no place is held twice or leaked, nobody waits while a
/// place is free or behind somebody less important. `tasks` are all that may stand in it; answers those that hold a grant.
pub async fn check<E: Execute>(
    queue: &E,
    key: &SemaphoreKey,
    tasks: impl Iterator<Item = u64>,
) -> Vec<Standing> {
    let (info, standings) = look(queue, key, tasks).await;
    let count = |status| standings.iter().filter(|task| task.status == status).count() as u64;
    let counted = Status::ALL.map(count);
    let kept = [info.waiting, info.delayed, info.acquired, info.revoking];
    assert_eq!(counted, kept, "{key}: who stands there and what was counted");
    let held = info.acquired + info.revoking;
    let active = u64::from(info.options.active);
    assert!(held <= active, "{key}: {held} hold a grant, {active} may");
    assert!(held == active || info.waiting == 0, "{key}: a place is free and somebody waits");
    assert!(info.revoking <= info.waiting, "{key}: more are asked to release than wait");
    no_inversion(&info, &standings);
    let holders: Vec<Standing> =
        standings.iter().filter(|standing| standing.grant.is_some()).copied().collect();
    let grants: BTreeSet<Option<Grant>> = holders.iter().map(|holder| holder.grant).collect();
    assert_eq!(grants.len(), holders.len(), "{key}: a grant was given twice");
    holders
}

/// Where these tasks stand, of those that do.
pub async fn standings<E: Execute>(
    queue: &E,
    key: &SemaphoreKey,
    tasks: impl Iterator<Item = u64>,
) -> Vec<Standing> {
    look(queue, key, tasks).await.1
}

async fn look<E: Execute>(
    queue: &E,
    key: &SemaphoreKey,
    tasks: impl Iterator<Item = u64>,
) -> (SemaphoreInfo, Vec<Standing>) {
    let tasks: Vec<TaskId> = tasks.map(TaskId).collect();
    let commands = vec![
        Command::Semaphore(SemaphoreCommand::List { key: Some(key.clone()) }),
        Command::Semaphore(SemaphoreCommand::Look { key: key.clone(), tasks }),
    ];
    let mut replies = queue.execute(commands).await;
    match (replies.pop(), replies.pop()) {
        (
            Some(Ok(Reply::Semaphore(SemaphoreReply::Standings(standings)))),
            Some(Ok(Reply::Semaphore(SemaphoreReply::Semaphores(mut infos)))),
        ) => (infos.remove(0), standings),
        other => panic!("{other:?}"),
    }
}

/// Panics when one who waits beats a holder who should have been asked to release. Grants that must be left alone for a
/// while are not judged.
fn no_inversion(info: &SemaphoreInfo, standings: &[Standing]) {
    let options = &info.options;
    let of = |status: Status| standings.iter().filter(move |task| task.status == status);
    let mut waiting: Vec<f64> = of(Status::Wait).map(|task| task.priority.value()).collect();
    waiting.sort_by(|one, other| other.total_cmp(one));
    let unpinned = || of(Status::Acquired).filter(|task| !task.pinned);
    let worst = unpinned().map(|task| task.priority.value()).min_by(f64::total_cmp);
    let revoking = of(Status::TryRelease).count();
    let (Some(better), Some(worst)) = (waiting.get(revoking), worst) else { return };
    let excused = revoking >= options.revoking_limit()
        || unpinned().count() <= options.protected()
        || !options.min_hold.is_zero();
    let key = &info.key;
    assert!(
        excused || *better <= worst + options.margin.value(),
        "{key}: one of priority {better} waits behind a holder of priority {worst}"
    );
}
