//! Refuses commands that can be checked without a call to Redis.

use taskyard_core::limits::BATCH_TASKS_MAX;
use taskyard_core::names::check_names;
use taskyard_core::{
    Command, Error, RateLimit, RetryPolicy, TubeOptions, check_keep_done, check_results,
    check_tasks,
};

use super::execute::tasks_in;

/// The reason that a command is refused independently of the state of Redis; a cluster refuses more commands.
pub(super) fn refusal(command: &Command, cluster: bool) -> Option<Error> {
    if let Err(refused) = check_names(command) {
        return Some(refused);
    }
    match command {
        Command::CreateTube { options: o, .. } => refuse_attempts_max(o.attempts_max)
            .or_else(|| check_keep_done(o.keep_done, Some(o.keep_done_max)).err())
            .or_else(|| refuse_pace(o.retry.as_deref(), o.rate.as_deref()))
            .or_else(|| refuse_queue_num(o.queue_num))
            .or_else(|| refuse_gate(o, cluster)),
        Command::NameTube { queue_num, .. } => refuse_queue_num(*queue_num),
        Command::AlterTube { change, .. } => refuse_attempts_max(change.attempts_max.flatten())
            .or_else(|| check_keep_done(change.keep_done.flatten(), change.keep_done_max).err())
            .or_else(|| {
                let retry = change.retry.as_ref().and_then(Option::as_deref);
                refuse_pace(retry, change.rate.as_ref().and_then(Option::as_deref))
            }),
        Command::Put { tasks, .. } => check_tasks(tasks).err(),
        Command::List(list) => list.check().err(),
        Command::Semaphore(command) => command.check().err(),
        Command::Take(take) => refuse_count("the number of tasks in one take", take.count),
        Command::Finish { items, .. } => {
            refuse_count("the number of tasks in one command", items.len())
                .or_else(|| check_results(items).err())
        }
        Command::KickTasks { .. } | Command::Delete { .. } | Command::Peek { .. } => {
            refuse_count("the number of tasks in one command", tasks_in(command))
        }
        _ => None,
    }
}

fn refuse_attempts_max(attempts_max: Option<u32>) -> Option<Error> {
    let message = "attempts_max must be at least 1; leave it out to retry forever";
    (attempts_max == Some(0)).then(|| Error::Invalid(message.into()))
}

fn refuse_pace(retry: Option<&RetryPolicy>, rate: Option<&RateLimit>) -> Option<Error> {
    let retry = retry.and_then(|retry| retry.check().err());
    retry.or_else(|| rate.and_then(|rate| rate.check().err()))
}

fn refuse_queue_num(queue_num: Option<u32>) -> Option<Error> {
    let message = "a queue number must be at least 1";
    (queue_num == Some(0)).then(|| Error::Invalid(message.into()))
}

/// A function runs on one node, and a tube and its semaphore may be on two nodes of a cluster.
fn refuse_gate(options: &TubeOptions, cluster: bool) -> Option<Error> {
    let refusal =
        "a tube cannot have a semaphore on a cluster of Redis; use a single Redis, or PostgreSQL";
    (cluster && options.semaphore.is_some()).then(|| Error::Invalid(refusal.into()))
}

fn refuse_count(what: &'static str, size: usize) -> Option<Error> {
    let (limit, advice) = (BATCH_TASKS_MAX, "use several batches");
    (size > limit).then_some(Error::TooLarge { what, size, limit, advice })
}
