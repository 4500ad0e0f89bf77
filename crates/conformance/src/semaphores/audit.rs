//! Checks the invariants of semaphores after concurrent use.

use std::collections::BTreeSet;
use std::ops::Range;

use taskyard_core::{Command, MemberInfo, SemaphoreInfo, Status, TaskId};
use taskyard_core::{Execute, Grant, Reply, SemaphoreCommand, SemaphoreKey, SemaphoreReply};

/// Panics unless the semaphore obeys the rules: no grant is held twice or leaked, no task waits while capacity is free
/// or behind a holder of lower priority. `members` are all of its tasks; returns those that hold a grant.
pub fn check(info: &SemaphoreInfo, members: &[MemberInfo]) -> Vec<MemberInfo> {
    let key = &info.key;
    let count = |status| members.iter().filter(|task| task.status == status).count() as u64;
    let counted = Status::ALL.map(count);
    let kept = [info.waiting, info.delayed, info.acquired, info.revoking];
    assert_eq!(counted, kept, "{key}: the tasks and the counters differ");
    let held = info.acquired + info.revoking;
    let active = u64::from(info.options.active);
    assert!(held <= active, "{key}: {held} hold a grant, the limit is {active}");
    assert!(held == active || info.waiting == 0, "{key}: capacity is free and a task waits");
    assert!(info.revoking <= info.waiting, "{key}: more are asked to release than wait");
    no_inversion(info, members);
    let holders: Vec<MemberInfo> =
        members.iter().filter(|member| member.grant.is_some()).copied().collect();
    let grants: BTreeSet<Option<Grant>> = holders.iter().map(|holder| holder.grant).collect();
    assert_eq!(grants.len(), holders.len(), "{key}: a grant was given twice");
    holders
}

/// Shows semaphores, and which of these tasks they contain.
pub async fn show<E: Execute>(
    queue: &E,
    keys: &[SemaphoreKey],
    tasks: Range<u64>,
) -> Vec<(SemaphoreInfo, Vec<MemberInfo>)> {
    let commands = |key: &SemaphoreKey| {
        let tasks = tasks.clone().map(TaskId).collect();
        [
            Command::Semaphore(SemaphoreCommand::List { key: Some(key.clone()) }),
            Command::Semaphore(SemaphoreCommand::Peek { key: key.clone(), tasks }),
        ]
    };
    let mut replies = queue.execute(keys.iter().flat_map(commands).collect()).await.into_iter();
    let mut next = || (replies.next(), replies.next());
    keys.iter()
        .map(|_| match next() {
            (
                Some(Ok(Reply::Semaphore(SemaphoreReply::Semaphores(mut infos)))),
                Some(Ok(Reply::Semaphore(SemaphoreReply::MemberInfos(members)))),
            ) => (infos.remove(0), members),
            other => panic!("{other:?}"),
        })
        .collect()
}

/// Panics if a waiting task has a higher priority than a holder that should have been asked to release. Grants with a minimum
/// hold time are not checked.
fn no_inversion(info: &SemaphoreInfo, members: &[MemberInfo]) {
    let options = &info.options;
    let of = |status: Status| members.iter().filter(move |task| task.status == status);
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
        "{key}: a task of priority {better} waits behind a holder of priority {worst}"
    );
}
