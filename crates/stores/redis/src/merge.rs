//! Merges single commands of many clients for one tube.
//!
//! A function in Redis takes longer for each command than for each task. So consecutive single puts become one put of
//! as many tasks, single takes one take, acks one ack, and each client gets its part of the answer. Single takes may have different
//! workers. This applies to tubes in which the result is the same: without sub-queues, semaphore and capacity.

use taskyard_core::{Command, Finish, FinishItem, Holder, NewTask, Take};

/// A command with its index in the batch.
pub(super) type IndexedCommand = (usize, Command);

/// How a command can be merged with its neighbours.
enum CommandKind<'a> {
    Put(&'a NewTask),
    Take(&'a Take),
    Ack,
    Other,
}

fn kind_of(command: &Command) -> CommandKind<'_> {
    match command {
        Command::Put { tasks, .. } if tasks.len() == 1 && tasks[0].semaphore_priority.is_none() => {
            CommandKind::Put(&tasks[0])
        }
        Command::Take(take) if take.count == 1 => CommandKind::Take(take),
        Command::Finish { items, show: false, .. } if items.iter().all(is_ack) => CommandKind::Ack,
        _ => CommandKind::Other,
    }
}

/// Whether this is an ack with a lease: its delivery was answered before, so a neighbouring take cannot deliver its task.
fn is_ack(item: &FinishItem) -> bool {
    matches!(
        (&item.holder, &item.finish),
        (Holder::Lease(_), Finish::Ack | Finish::AckWithResult(_))
    )
}

/// Moves acks before neighbouring takes. Nothing moves past any other command.
pub(super) fn move_acks_first(commands: &mut [IndexedCommand]) {
    let stays = |command: &IndexedCommand| {
        !matches!(kind_of(&command.1), CommandKind::Ack | CommandKind::Take(_))
    };
    for part in commands.split_mut(stays) {
        // The sort is stable.
        part.sort_by_key(|(_, command)| !matches!(kind_of(command), CommandKind::Ack));
    }
}

/// Consecutive commands that are sent as one, or a single one.
pub(super) fn runs(commands: &[IndexedCommand]) -> impl Iterator<Item = &[IndexedCommand]> {
    commands.chunk_by(|(_, one), (_, next)| match (kind_of(one), kind_of(next)) {
        (CommandKind::Put(_), CommandKind::Put(_)) | (CommandKind::Ack, CommandKind::Ack) => true,
        (CommandKind::Take(one), CommandKind::Take(next)) => {
            (one.lease, one.session) == (next.lease, next.session)
        }
        _ => false,
    })
}

/// A run as one command; `None` for a single one.
pub(super) fn merge(run: &[IndexedCommand]) -> Option<Command> {
    let [(_, first), _, ..] = run else { return None };
    let mut merged = first.clone();
    match &mut merged {
        Command::Put { tasks, .. } => {
            let all = run.iter().filter_map(|(_, command)| match kind_of(command) {
                CommandKind::Put(task) => Some(task.clone()),
                _ => None,
            });
            *tasks = all.collect();
        }
        Command::Take(take) => take.count = run.len(),
        Command::Finish { items, .. } => {
            let all = run.iter().flat_map(|(_, command)| match command {
                Command::Finish { items, .. } => items.as_slice(),
                _ => &[],
            });
            *items = all.cloned().collect();
        }
        _ => return None,
    }
    Some(merged)
}

#[cfg(test)]
mod tests {
    use taskyard_core::{Body, Lease, SessionId, Span, TaskId, TubeName};

    use super::*;

    fn tube() -> TubeName {
        TubeName::new("mail").unwrap()
    }

    fn put(count: usize) -> Command {
        let tasks = vec![NewTask::new(Body::new(&[0xc0])); count];
        Command::Put { tube: tube(), tasks, wait: Span::ZERO }
    }

    fn take(count: usize, session: Option<SessionId>) -> Command {
        take_by(None, count, session)
    }

    fn take_by(worker: Option<&str>, count: usize, session: Option<SessionId>) -> Command {
        Command::Take(Take {
            tube: tube(),
            count,
            session,
            lease: None,
            worker: worker.map(Into::into),
            wait: Span::ZERO,
        })
    }

    fn finish(id: u64, holder: Holder, finish: Finish) -> Command {
        let items = vec![FinishItem { id: TaskId(id), holder, finish }];
        Command::Finish { tube: tube(), items, show: false }
    }

    fn ack(id: u64) -> Command {
        finish(id, Holder::Lease(Lease(id)), Finish::Ack)
    }

    /// The indexes of the commands of each run.
    fn run_indexes(commands: Vec<Command>) -> Vec<Vec<usize>> {
        let mut commands: Vec<IndexedCommand> = commands.into_iter().enumerate().collect();
        move_acks_first(&mut commands);
        runs(&commands).map(|run| run.iter().map(|(place, _)| *place).collect()).collect()
    }

    #[test]
    fn acks_move_before_takes_and_all_others_keep_their_order() {
        let (put, take) = (put(1), take(1, None));
        let commands = [&take, &ack(1), &take, &ack(2), &put, &put, &take, &ack(3)];
        let commands = commands.into_iter().cloned().collect();
        assert_eq!(run_indexes(commands), [vec![1, 3], vec![0, 2], vec![4, 5], vec![7], vec![6]]);
    }

    // An ack that moves past a touch of the same task would make the touch fail; an ack past the put of its task would fail itself.
    #[test]
    fn nothing_moves_past_a_command_of_the_same_task() {
        let touch = finish(1, Holder::Lease(Lease(1)), Finish::Touch(Span::from_secs(1)));
        let by_session = finish(1, Holder::Session(SessionId([1; 16])), Finish::Ack);
        for other in [touch, by_session, Command::Kick { tube: tube(), count: 1 }] {
            let commands = vec![take(1, None), other, ack(1), take(1, None), ack(2)];
            assert_eq!(run_indexes(commands), [vec![0], vec![1], vec![2, 4], vec![3]]);
        }
    }

    #[test]
    fn only_equal_commands_are_merged() {
        let session = Some(SessionId([1; 16]));
        let commands = vec![take(1, None), take(1, session), take(1, session), take(2, session)];
        assert_eq!(run_indexes(commands), [vec![0], vec![1, 2], vec![3]]);
        assert_eq!(run_indexes(vec![put(1), put(2), put(1)]), [[0], [1], [2]]);
        let commands =
            vec![take_by(Some("a"), 1, None), take(1, None), take_by(Some("b"), 1, None)];
        assert_eq!(run_indexes(commands), [[0, 1, 2]], "each delivery has its own worker");
        assert_eq!(run_indexes(vec![put(1), put(0), ack(1)]), [[0], [1], [2]]);
        let with_result = finish(2, Holder::Lease(Lease(2)), Finish::ack_with(b"\xa2ok"));
        assert_eq!(run_indexes(vec![ack(1), with_result, ack(3)]), [[0, 1, 2]]);
    }

    #[test]
    fn a_run_becomes_one_command() {
        let run: Vec<IndexedCommand> = vec![(0, ack(1)), (4, ack(2))];
        let Some(Command::Finish { items, .. }) = merge(&run) else { panic!("a finish") };
        assert_eq!(items.iter().map(|item| item.id.0).collect::<Vec<_>>(), [1, 2]);
        let run: Vec<IndexedCommand> =
            vec![(0, take(1, None)), (1, take(1, None)), (2, take(1, None))];
        assert!(matches!(merge(&run), Some(Command::Take(Take { count: 3, .. }))));
        assert!(merge(&run[..1]).is_none());
    }
}
