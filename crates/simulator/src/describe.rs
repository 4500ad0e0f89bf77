//! Writes calls and their replies in a few words, for the history of a failure.

use taskyard_core::{Command, Finish, FinishItem, Holder, NewTask, Outcome, Reply, Span, Task};

use crate::history::CallReply;
use crate::operations::read_payload;

/// A command in a few words.
pub fn command(command: &Command) -> String {
    match command {
        Command::Put { tube, tasks, wait } => {
            let tasks: Vec<_> = tasks.iter().map(new_task).collect();
            format!("put {} into {tube}{}", tasks.join(", "), span(" wait", *wait))
        }
        Command::Take(take) => {
            let lease = take.lease.map_or_else(String::new, |lease| span(" lease", lease));
            let session = take.session.map_or_else(String::new, |id| format!(" session {id}"));
            format!(
                "take {} of {}{lease}{session}{}",
                take.count,
                take.tube,
                span(" wait", take.wait)
            )
        }
        Command::Finish { tube, items, .. } => {
            let items: Vec<_> = items.iter().map(finish).collect();
            format!("{} of {tube}", items.join(", "))
        }
        Command::Delete { tube, ids, .. } => format!("delete {ids:?} of {tube}"),
        Command::CreateTube { tube, .. } => format!("create {tube}"),
        other => {
            let mut text = format!("{other:?}");
            shorten(&mut text);
            text
        }
    }
}

/// A reply in a few words.
pub fn reply(reply: &CallReply) -> String {
    match reply {
        CallReply::Unknown => "unknown".into(),
        CallReply::Refused(error) => format!("refused: {error}"),
        CallReply::Replied(Reply::Put(placed)) => {
            let placed = placed.iter().map(|placed| {
                let existing = if placed.existing { " existing" } else { "" };
                format!("{} {:?}{existing}", placed.id, placed.state)
            });
            placed.collect::<Vec<_>>().join(", ")
        }
        CallReply::Replied(Reply::Taken(tasks)) if tasks.is_empty() => "nothing".into(),
        CallReply::Replied(Reply::Taken(tasks)) => {
            tasks.iter().map(task).collect::<Vec<_>>().join(", ")
        }
        CallReply::Replied(Reply::Finished(outcomes)) => {
            let outcomes = outcomes.iter().map(|outcome| match outcome {
                Outcome::Done(_) => "done",
                Outcome::Stale => "stale",
                Outcome::Missing => "missing",
            });
            outcomes.collect::<Vec<_>>().join(", ")
        }
        CallReply::Replied(Reply::Tubes(tubes)) => {
            let counts = tubes.iter().map(|tube| format!("{} {:?}", tube.name, tube.stats.tasks));
            counts.collect::<Vec<_>>().join(", ")
        }
        CallReply::Replied(other) => {
            let mut text = format!("{other:?}");
            shorten(&mut text);
            text
        }
    }
}

fn new_task(task: &NewTask) -> String {
    let mut text = format!("{:x}", read_payload(&task.body).unwrap_or_default());
    if let Some(pri) = task.pri {
        text += &format!(" pri {pri}");
    }
    text += &task.delay.map_or_else(String::new, |delay| span(" delay", delay));
    text += &task.ttl.map_or_else(String::new, |ttl| span(" ttl", ttl));
    if let Some(subqueue) = &task.subqueue {
        text += &format!(" sub-queue {subqueue}");
    }
    if let Some(key) = &task.key {
        let (held, conflict) = (&key.held, key.on_conflict);
        text += &format!(" '{}' {conflict:?}{}", held.key, span(" unique for", held.unique_for));
    }
    format!("({text})")
}

fn task(task: &Task) -> String {
    let payload = task.body.as_ref().and_then(read_payload).unwrap_or_default();
    let lease = task.lease.map_or_else(String::new, |lease| format!(" lease {lease}"));
    format!("task {} ({payload:x}){lease} attempts {}", task.id, task.attempts)
}

fn finish(item: &FinishItem) -> String {
    let holder = match item.holder {
        Holder::Lease(lease) => format!("lease {lease}"),
        Holder::Session(session) => format!("session {session}"),
        Holder::Any => "any holder".into(),
    };
    let how = match &item.finish {
        Finish::Ack | Finish::AckWithResult(_) => "ack".into(),
        Finish::Release { delay, counted } => {
            let uncounted = if *counted { "" } else { " uncounted" };
            format!("release{uncounted}{}", span(" delay", *delay))
        }
        Finish::Bury => "bury".into(),
        Finish::Touch(more) => span("touch", *more),
        Finish::Fail(fail) => format!("fail then {:?}", fail.then),
    };
    format!("{how} task {} with {holder}", item.id)
}

fn span(name: &str, span: Span) -> String {
    if span.is_zero() { String::new() } else { format!("{name} {} s", span.as_secs_f64()) }
}

fn shorten(text: &mut String) {
    const CHARS_MAX: usize = 160;
    if let Some((at, _)) = text.char_indices().nth(CHARS_MAX) {
        text.truncate(at);
        text.push('…');
    }
}

#[cfg(test)]
mod tests {
    use taskyard_core::{Body, TubeName};

    use super::*;

    #[test]
    fn a_put_is_described_in_a_few_words() {
        let task = NewTask { pri: Some(3), ..NewTask::new(Body::new(&17_u64.to_be_bytes())) };
        let tube = TubeName::new("plain").unwrap();
        let put = Command::Put { tube, tasks: vec![task], wait: Span::from_secs(2) };
        assert_eq!(command(&put), "put (11 pri 3) into plain wait 2 s");
        assert_eq!(reply(&CallReply::Replied(Reply::Taken(Vec::new()))), "nothing");
    }
}
