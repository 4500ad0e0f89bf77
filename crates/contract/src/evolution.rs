//! What may change between two versions of a contract: tasks of the old one are still in the queues.

use crate::problem::Problems;
use crate::schema::{Contract, Queue};

/// Says everything in `current` that tasks or programs of `previous` would not survive. Fields may only be
/// appended; a queue keeps its number, whatever its name becomes.
pub fn compare(previous: &Contract, current: &Contract) -> Result<(), Problems> {
    let mut problems = Problems::default();
    for now in &current.queues {
        let before = previous.queues.iter().find(|queue| queue.id == now.id);
        match before {
            Some(before) => compare_fields(before, now, &mut problems),
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
