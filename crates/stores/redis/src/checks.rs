//! Refuses commands that can be checked without a call to Redis.

use taskyard_core::limits::BATCH_TASKS_MAX;
use taskyard_core::names::check_names;
use taskyard_core::{
    Command, Error, TubeOptions, check_positions, check_queue_num, check_results, check_tasks,
};

use super::execute::tasks_in;

/// The reason that a command is refused independently of the state of Redis; a cluster refuses more commands.
pub(super) fn refusal(command: &Command, cluster: bool) -> Option<Error> {
    if let Err(refused) = check_names(command) {
        return Some(refused);
    }
    match command {
        Command::CreateTube { options, .. } => {
            options.check().err().or_else(|| refuse_gate(options, cluster))
        }
        Command::NameTube { queue_num, .. } => check_queue_num(*queue_num).err(),
        Command::AlterTube { change, .. } => change.check().err(),
        Command::Put { tasks, .. } => check_tasks(tasks).err(),
        Command::List(list) => list.check().err(),
        Command::Search(search) => search.check().err(),
        Command::Positions { ids, .. } => check_positions(ids).err(),
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
