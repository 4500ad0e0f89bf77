//! What must be true of semaphores after a storm, whoever took part in it.

use std::collections::BTreeSet;
use std::ops::Range;

use taskyard_core::{Command, SemaphoreInfo, Standing, Status, TaskId};
use taskyard_core::{Execute, Grant, Reply, SemaphoreCommand, SemaphoreKey, SemaphoreReply};

/// Panics unless the semaphore is as the rules want it: no place is held twice or leaked, nobody waits while a
/// place is free or behind somebody less important. `standings` are all who stand in it; answers those that hold a grant.
pub fn check(info: &SemaphoreInfo, standings: &[Standing]) -> Vec<Standing> {
    let key = &info.key;
    let count = |status| standings.iter().filter(|task| task.status == status).count() as u64;
    let counted = Status::ALL.map(count);
    let kept = [info.waiting, info.delayed, info.acquired, info.revoking];
    assert_eq!(counted, kept, "{key}: who stands there and what was counted");
    let held = info.acquired + info.revoking;
    let active = u64::from(info.options.active);
    assert!(held <= active, "{key}: {held} hold a grant, {active} may");
    assert!(held == active || info.waiting == 0, "{key}: a place is free and somebody waits");
    assert!(info.revoking <= info.waiting, "{key}: more are asked to release than wait");
    no_inversion(info, standings);
    let holders: Vec<Standing> =
        standings.iter().filter(|standing| standing.grant.is_some()).copied().collect();
    let grants: BTreeSet<Option<Grant>> = holders.iter().map(|holder| holder.grant).collect();
    assert_eq!(grants.len(), holders.len(), "{key}: a grant was given twice");
    holders
}

/// Shows semaphores, and who of these tasks stands there.
pub async fn look<E: Execute>(
    queue: &E,
    keys: &[SemaphoreKey],
    tasks: Range<u64>,
) -> Vec<(SemaphoreInfo, Vec<Standing>)> {
    let show = |key: &SemaphoreKey| {
        let tasks = tasks.clone().map(TaskId).collect();
        [
            Command::Semaphore(SemaphoreCommand::List { key: Some(key.clone()) }),
            Command::Semaphore(SemaphoreCommand::Look { key: key.clone(), tasks }),
        ]
    };
    let mut replies = queue.execute(keys.iter().flat_map(show).collect()).await.into_iter();
    let mut next = || (replies.next(), replies.next());
    keys.iter()
        .map(|_| match next() {
            (
                Some(Ok(Reply::Semaphore(SemaphoreReply::Semaphores(mut infos)))),
                Some(Ok(Reply::Semaphore(SemaphoreReply::Standings(standings)))),
            ) => (infos.remove(0), standings),
            other => panic!("{other:?}"),
        })
        .collect()
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
