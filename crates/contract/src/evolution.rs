//! What may change between two versions of a contract: tasks of the old one are still in the queues.

use crate::problem::Problems;
use crate::schema::{Contract, Queue};

/// Says everything in `current` that tasks or programs of `previous` would not survive. Fields may only be
/// appended; a queue keeps its number, and one with another name says what it was called before.
pub fn compare(previous: &Contract, current: &Contract) -> Result<(), Problems> {
    let mut problems = Problems::default();
    for now in &current.queues {
        let before = previous.queues.iter().find(|queue| queue.id == now.id);
        match before {
            Some(before) => {
                compare_names(before, now, &mut problems);
                compare_fields(before, now, &mut problems);
            }
            None => check_new(previous, now, &mut problems),
        }
    }
    for gone in &previous.queues {
        if current.queues.iter().all(|queue| queue.id != gone.id) {
            let wrong = format!("queue {} '{}' is gone", gone.id, gone.name);
            let hint =
                "keep it, so that its number is never given to another; its handler may refuse";
            let place = current.queues.last().map(|queue| queue.place).unwrap_or_default();
            problems.add(place, wrong, hint);
        }
    }
    problems.or(())
}

fn check_new(previous: &Contract, now: &Queue, problems: &mut Problems) {
    if let Some(before) = previous.queues.iter().find(|queue| queue.name == now.name) {
        let wrong = format!("queue '{}' had the id {} before, now {}", now.name, before.id, now.id);
        problems.add(now.place, wrong, format!("ids are permanent: write 'id: {}'", before.id));
    }
}

/// The tube of a queue gets its new name only when the contract says that it is the same queue.
fn compare_names(before: &Queue, now: &Queue, problems: &mut Problems) {
    let known = |name: &String| *name == now.name || now.was.contains(name);
    for name in [&before.name].into_iter().chain(&before.was).filter(|name| !known(name)) {
        let wrong = format!("queue {} was called '{name}' and is '{}'", now.id, now.name);
        let hint = format!("add '{name}' to its 'was: [...]', so that its tasks come along");
        problems.add(now.place, wrong, hint);
    }
}

fn compare_fields(before: &Queue, now: &Queue, problems: &mut Problems) {
    for (position, old) in before.fields.iter().enumerate() {
        let Some(new) = now.fields.get(position) else {
            let wrong = format!("field '{}' of queue '{}' is gone", old.name, now.name);
            let hint = "fields are known by their position: keep it where it was";
            problems.add(now.place, wrong, hint);
            continue;
        };
        // Another name with the same bytes at the same place is a renaming, unless the field moved.
        let moved = now.fields.iter().position(|field| field.name == old.name);
        if let Some(moved) = moved.filter(|moved| *moved != position) {
            let wrong = format!(
                "field '{}' moved from position {} to {}",
                old.name,
                position + 1,
                moved + 1
            );
            problems.add(new.place, wrong, "append new fields at the end and leave the rest");
        } else if !old.kind.same_bytes(new.kind) {
            let (old, new_kind) = (old.kind.name(), new.kind.name());
            let wrong = format!("field '{}' was {old} and is {new_kind}", new.name);
            problems.add(
                new.place,
                wrong,
                format!("keep '{old}' and append a field of another name"),
            );
        }
    }
}
