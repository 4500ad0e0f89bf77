//! Invariants of semaphores, checked after every command.

use std::collections::BTreeMap;

use crate::semaphore::semaphores::{Semaphore, Semaphores};
use crate::semaphore::{EventKind, QueueEntry, Status};
use crate::task::TaskId;
use crate::time::Timestamp;

/// Panics if an invariant does not hold. `held_max` is the allowed number of holders: the capacity
/// or, after it was lowered, the number at that time.
pub(super) fn audit(all: &Semaphores, now: Timestamp, number: u32, held_max: usize) {
    let semaphore = all.semaphore(number);
    counters_are_counts(semaphore);
    let queue = &semaphore.queue;
    let options = &semaphore.record.options;
    assert!(queue.held() <= held_max, "I2: {} hold, {held_max} may", queue.held());
    let free = queue.held() < options.active as usize;
    assert!(!free || queue.waiting() == 0, "I3: a grant is free and a task waits");
    no_inversion(semaphore, now);
    // Holders that were asked under a higher limit stay asked.
    let for_waiters =
        queue.revoking().saturating_sub(queue.held().saturating_sub(options.active as usize));
    assert!(for_waiters <= queue.waiting(), "I5: more are asked than wait");
    for (task, entry) in queue.all() {
        if let Some(hold) = entry.hold() {
            assert!(hold.grant.0 <= semaphore.record.grant_seq, "I6: {task} holds a future grant");
        }
    }
    events_fit(all, number);
}

fn counters_are_counts(semaphore: &Semaphore) {
    let queue = &semaphore.queue;
    let count = |status| queue.all().filter(|(_, entry)| entry.status() == status).count();
    let counted = Status::ALL.map(count);
    let kept = [queue.waiting(), queue.delayed(), queue.acquired(), queue.revoking()];
    assert_eq!(counted, kept, "I1");
}

fn no_inversion(semaphore: &Semaphore, now: Timestamp) {
    let (queue, options) = (&semaphore.queue, &semaphore.record.options);
    let entry = |task: Option<TaskId>| task.and_then(|task| queue.get(task));
    let (waiter, holder) = (entry(queue.waiter(queue.revoking())), entry(queue.worst_acquired()));
    let (Some(waiter), Some(holder)) = (waiter, holder) else { return };
    let inverted = waiter.priority.value() > holder.priority.value() + options.margin.value();
    let ripe = |entry: &QueueEntry| {
        entry.hold().is_some_and(|hold| hold.granted + options.min_hold <= now)
    };
    let excused = queue.held() != options.active as usize
        || queue.revoking() >= options.revoking_limit()
        || holders_before(semaphore, holder) < options.protected();
    assert!(!inverted || !ripe(holder) || excused, "I4: {waiter:?} waits behind {holder:?}");
}

fn holders_before(semaphore: &Semaphore, holder: &QueueEntry) -> usize {
    let held = semaphore.queue.all().filter(|(_, entry)| entry.hold().is_some());
    held.filter(|(_, entry)| entry.rank() < holder.rank()).count()
}

fn events_fit(all: &Semaphores, number: u32) {
    let mut seen: BTreeMap<(TaskId, u64, EventKind), u32> = BTreeMap::new();
    for (id, event) in all.outbox.all().filter(|(_, event)| event.semaphore == number) {
        let count = seen.entry((event.task, event.grant.0, event.kind)).or_default();
        *count += 1;
        assert_eq!(*count, 1, "I7: event {id} is there twice");
        let current = all.queue(number).get(event.task).and_then(|entry| entry.hold());
        let live = current.is_some_and(|hold| hold.grant == event.grant);
        let about_the_dead = matches!(event.kind, EventKind::Expired | EventKind::Revoked);
        assert_ne!(live, about_the_dead, "I7: {event:?} fits no grant");
    }
}
