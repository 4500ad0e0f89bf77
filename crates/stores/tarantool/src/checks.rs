//! Refuses values that can be checked without a call to Tarantool.
//!
//! An unknown tube or schedule is refused before the values of a command, and only Tarantool knows it: such a command is sent without its
//! values, and Tarantool replies whether nothing else is wrong with it.

use taskyard_core::limits::{BATCH_TASKS_MAX, SCHEDULE_PUTS_MAX};
use taskyard_core::{
    Body, Command, Error, NewTask, Reply, ScheduleCommand, check_fire, check_positions,
    check_queue_num, check_results, check_tasks, checked_list_limit,
};

use super::execute::tasks_in;

/// Refuses values that can be checked without a call to Tarantool.
pub(super) fn refusal(command: &Command) -> Option<Error> {
    match command {
        Command::CreateTube { options, .. } => options.check().err(),
        Command::NameTube { queue_num, .. } => check_queue_num(*queue_num).err(),
        Command::AlterTube { change, .. } => change.check().err(),
        Command::Put { tasks, .. } => check_tasks(tasks).err(),
        Command::Take(take) => {
            let advice = "take them in several batches";
            refuse_count("the number of tasks in one take", take.count, advice)
        }
        Command::Finish { items, .. } => {
            refuse_items(command).or_else(|| check_results(items).err())
        }
        Command::KickTasks { .. } | Command::Delete { .. } | Command::Peek { .. } => {
            refuse_items(command)
        }
        Command::List(list) => list.check().err(),
        Command::Search(search) => search.check().err(),
        Command::Positions { ids, .. } => check_positions(ids).err(),
        Command::Semaphore(command) => command.check().err(),
        Command::Schedule(command) => refuse_schedule(command),
        _ => None,
    }
}

fn refuse_schedule(command: &ScheduleCommand) -> Option<Error> {
    match command {
        ScheduleCommand::Set { schedule, .. } => schedule.check().err(),
        ScheduleCommand::List { limit, .. } | ScheduleCommand::Due { limit, .. } => {
            checked_list_limit(*limit).err()
        }
        ScheduleCommand::Fire { puts, .. } => check_fire(puts).and(check_tasks(puts)).err(),
        _ => None,
    }
}

/// The command without its values, if other refusals come before those of its values.
pub(super) fn without_values(command: Command) -> Option<Command> {
    match command {
        Command::Schedule(command) => {
            without_tasks(*command).map(|command| Command::Schedule(Box::new(command)))
        }
        _ => None,
    }
}

/// The same for a command of schedules.
fn without_tasks(command: ScheduleCommand) -> Option<ScheduleCommand> {
    match command {
        ScheduleCommand::Set { mut schedule, only_new, keep_paused } => {
            schedule.template = NewTask::new(Body::new(&[]));
            schedule.timing = "".into();
            Some(ScheduleCommand::Set { schedule, only_new, keep_paused })
        }
        ScheduleCommand::Fire { name, expected, next, puts, skipped } => {
            // Too many are refused before the time is compared, so Tarantool has to see that.
            let count = if check_fire(&puts).is_err() { SCHEDULE_PUTS_MAX + 1 } else { 0 };
            let puts = vec![NewTask::new(Body::new(&[])); count];
            Some(ScheduleCommand::Fire { name, expected, next, puts, skipped })
        }
        _ => None,
    }
}

fn refuse_items(command: &Command) -> Option<Error> {
    let advice = "use several batches";
    refuse_count("the number of tasks in one command", tasks_in(command), advice)
}

fn refuse_count(what: &'static str, size: usize, advice: &'static str) -> Option<Error> {
    let limit = BATCH_TASKS_MAX;
    (size > limit).then_some(Error::TooLarge { what, size, limit, advice })
}

/// Whether this is the reply to a command with values that are refused (`INVALID` in `values.lua`).
pub(super) fn is_invalid(reply: &Result<Reply, Error>) -> bool {
    matches!(reply, Err(Error::Invalid(why)) if why.is_empty())
}
