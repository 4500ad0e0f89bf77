//! Compares two versions of a contract: tasks of the previous version are still in the queues.

use crate::problem::Problems;
use crate::schema::{Contract, Queue};

/// Returns all changes in `current` that are incompatible with tasks or programs of `previous`. Fields may only be
/// appended; a queue keeps its number, and a renamed queue lists its earlier names.
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
            let message = format!("queue {} '{}' was removed", gone.id, gone.name);
            let hint =
                "keep it, so that its number is never used again; its handler may refuse tasks";
            let position = current.queues.last().map(|queue| queue.position).unwrap_or_default();
            problems.add(position, message, hint);
        }
    }
    problems.into_result(())
}

fn check_new(previous: &Contract, now: &Queue, problems: &mut Problems) {
    if let Some(before) = previous.queues.iter().find(|queue| queue.name == now.name) {
        let message =
            format!("queue '{}' had the id {} before, now {}", now.name, before.id, now.id);
        problems.add(
            now.position,
            message,
            format!("ids are permanent: write 'id: {}'", before.id),
        );
    }
}

/// Checks that a renamed queue lists its earlier names: only then its tube is renamed.
fn compare_names(before: &Queue, now: &Queue, problems: &mut Problems) {
    let known = |name: &String| *name == now.name || now.was.contains(name);
    for name in [&before.name].into_iter().chain(&before.was).filter(|name| !known(name)) {
        let message = format!("queue {} was named '{name}' and is now '{}'", now.id, now.name);
        let hint = format!("add '{name}' to its 'was: [...]', so that it keeps its tasks");
        problems.add(now.position, message, hint);
    }
}

fn compare_fields(before: &Queue, now: &Queue, problems: &mut Problems) {
    for (position, old) in before.fields.iter().enumerate() {
        let Some(new) = now.fields.get(position) else {
            let message = format!("field '{}' of queue '{}' was removed", old.name, now.name);
            let hint = "fields are identified by position: keep it at its position";
            problems.add(now.position, message, hint);
            continue;
        };
        // Another name with the same encoding at the same position is a renaming, unless the field moved.
        let moved = now.fields.iter().position(|field| field.name == old.name);
        if let Some(moved) = moved.filter(|moved| *moved != position) {
            let message = format!(
                "field '{}' moved from position {} to {}",
                old.name,
                position + 1,
                moved + 1
            );
            problems.add(
                new.position,
                message,
                "append new fields at the end and do not move the others",
            );
        } else if !old.kind.same_encoding(new.kind) {
            let (old, new_kind) = (old.kind.name(), new.kind.name());
            let message = format!("field '{}' was {old} and is now {new_kind}", new.name);
            problems.add(
                new.position,
                message,
                format!("keep '{old}' and append a field with another name"),
            );
        }
    }
}
