//! What must be true of semaphores after every command.

use std::collections::BTreeMap;

use crate::semaphore::book::{Semaphore, Semaphores};
use crate::semaphore::{EventKind, Place, Status};
use crate::task::TaskId;
use crate::time::Timestamp;

/// Panics when an invariant does not hold. `held_max` is how many may hold a grant: the capacity or, after it
/// was lowered, as many as there were.
pub(super) fn audit(all: &Semaphores, now: Timestamp, number: u32, held_max: usize) {
    let semaphore = all.semaphore(number);
    counters_are_counts(semaphore);
    let line = &semaphore.line;
    let options = &semaphore.record.options;
    assert!(line.held() <= held_max, "I2: {} hold, {held_max} may", line.held());
    let free = line.held() < options.active as usize;
    assert!(!free || line.waiting() == 0, "I3: a place is free and somebody waits");
    no_inversion(semaphore, now);
    // Who was asked under a higher limit stays asked.
    let for_waiters =
        line.revoking().saturating_sub(line.held().saturating_sub(options.active as usize));
    assert!(for_waiters <= line.waiting(), "I5: more are asked than wait");
    for (task, place) in line.all() {
        if let Some(hold) = place.hold() {
            assert!(hold.grant.0 <= semaphore.record.grant_seq, "I6: {task} holds a future grant");
        }
    }
    events_fit(all, number);
}

fn counters_are_counts(semaphore: &Semaphore) {
    let line = &semaphore.line;
    let count = |status| line.all().filter(|(_, place)| place.status() == status).count();
    let counted = Status::ALL.map(count);
    let kept = [line.waiting(), line.delayed(), line.acquired(), line.revoking()];
    assert_eq!(counted, kept, "I1");
}

fn no_inversion(semaphore: &Semaphore, now: Timestamp) {
    let (line, options) = (&semaphore.line, &semaphore.record.options);
    let place = |task: Option<TaskId>| task.and_then(|task| line.get(task));
    let (waiter, holder) = (place(line.waiter(line.revoking())), place(line.worst_acquired()));
    let (Some(waiter), Some(holder)) = (waiter, holder) else { return };
    let inverted = waiter.priority.value() > holder.priority.value() + options.margin.value();
    let ripe =
        |place: &Place| place.hold().is_some_and(|hold| hold.granted + options.min_hold <= now);
    let excused = line.held() != options.active as usize
        || line.revoking() >= options.revoking_limit()
        || holders_before(semaphore, holder) < options.protected();
    assert!(!inverted || !ripe(holder) || excused, "I4: {waiter:?} waits behind {holder:?}");
}

fn holders_before(semaphore: &Semaphore, holder: &Place) -> usize {
    let held = semaphore.line.all().filter(|(_, place)| place.hold().is_some());
    held.filter(|(_, place)| place.rank() < holder.rank()).count()
}

fn events_fit(all: &Semaphores, number: u32) {
    let mut seen: BTreeMap<(TaskId, u64, EventKind), u32> = BTreeMap::new();
    for (id, event) in all.outbox.all().filter(|(_, event)| event.semaphore == number) {
        let count = seen.entry((event.task, event.grant.0, event.kind)).or_default();
        *count += 1;
        assert_eq!(*count, 1, "I7: event {id} is there twice");
        let current = all.line(number).get(event.task).and_then(|place| place.hold());
        let live = current.is_some_and(|hold| hold.grant == event.grant);
        let about_the_dead = matches!(event.kind, EventKind::Expired | EventKind::Revoked);
        assert_ne!(live, about_the_dead, "I7: {event:?} fits no grant");
    }
}
