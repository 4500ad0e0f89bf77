//! What many clients ask of one tube at the same time, put together.
//!
//! A function in Redis takes longer for each command than for each task. So single puts that follow each other become one put of
//! as many tasks, single takes one take, acks one ack, and each client is answered its part. This is for tubes in which that
//! is the same: none with sub-queues, a semaphore or a capacity.

use taskyard_core::{Command, Finish, FinishItem, Holder, NewTask, Take};

/// A command with its place in the batch.
pub(super) type Placed = (usize, Command);

/// What a command is to others beside it.
enum Nature<'a> {
    Put(&'a NewTask),
    Take(&'a Take),
    Ack,
    Other,
}

fn nature(command: &Command) -> Nature<'_> {
    match command {
        Command::Put { tasks, .. } if tasks.len() == 1 && tasks[0].semaphore_priority.is_none() => {
            Nature::Put(&tasks[0])
        }
        Command::Take(take) if take.count == 1 => Nature::Take(take),
        Command::Finish { items, show: false, .. } if items.iter().all(is_ack) => Nature::Ack,
        _ => Nature::Other,
    }
}

/// Whether this is an ack by its lease: then its delivery was answered before, and a take beside it has nothing to do with its task.
fn is_ack(item: &FinishItem) -> bool {
    matches!((&item.holder, &item.finish), (Holder::Lease(_), Finish::Ack))
}

/// Brings acks before the takes beside them. Nothing passes any other command.
pub(super) fn arrange(commands: &mut [Placed]) {
    let stays = |command: &Placed| !matches!(nature(&command.1), Nature::Ack | Nature::Take(_));
    for part in commands.split_mut(stays) {
        // The order is kept otherwise.
        part.sort_by_key(|(_, command)| !matches!(nature(command), Nature::Ack));
    }
}

/// Commands that follow each other and are asked as one, or one alone.
pub(super) fn runs(commands: &[Placed]) -> impl Iterator<Item = &[Placed]> {
    commands.chunk_by(|(_, one), (_, next)| match (nature(one), nature(next)) {
        (Nature::Put(_), Nature::Put(_)) | (Nature::Ack, Nature::Ack) => true,
        (Nature::Take(one), Nature::Take(next)) => {
            (one.lease, one.session) == (next.lease, next.session)
        }
        _ => false,
    })
}

/// What a run is as one command, unless it is one already.
pub(super) fn merge(run: &[Placed]) -> Option<Command> {
    let [(_, first), _, ..] = run else { return None };
    let mut merged = first.clone();
    match &mut merged {
        Command::Put { tasks, .. } => {
            let all = run.iter().filter_map(|(_, command)| match nature(command) {
                Nature::Put(task) => Some(task.clone()),
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
        Command::Take(Take { tube: tube(), count, session, lease: None, wait: Span::ZERO })
    }

    fn finish(id: u64, holder: Holder, finish: Finish) -> Command {
        let items = vec![FinishItem { id: TaskId(id), holder, finish }];
        Command::Finish { tube: tube(), items, show: false }
    }

    fn ack(id: u64) -> Command {
        finish(id, Holder::Lease(Lease(id)), Finish::Ack)
    }

    /// The places of the commands of each run.
    fn arranged(commands: Vec<Command>) -> Vec<Vec<usize>> {
        let mut commands: Vec<Placed> = commands.into_iter().enumerate().collect();
        arrange(&mut commands);
        runs(&commands).map(|run| run.iter().map(|(place, _)| *place).collect()).collect()
    }

    #[test]
    fn acks_come_before_takes_and_all_else_keeps_its_order() {
        let (put, take) = (put(1), take(1, None));
        let commands = [&take, &ack(1), &take, &ack(2), &put, &put, &take, &ack(3)];
        let commands = commands.into_iter().cloned().collect();
        assert_eq!(arranged(commands), [vec![1, 3], vec![0, 2], vec![4, 5], vec![7], vec![6]]);
    }

    // An ack that passes a touch of the same task would make it miss; one of a task that is put beside it would miss itself.
    #[test]
    fn nothing_passes_what_may_be_about_the_same_task() {
        let touch = finish(1, Holder::Lease(Lease(1)), Finish::Touch(Span::from_secs(1)));
        let by_session = finish(1, Holder::Session(SessionId([1; 16])), Finish::Ack);
        for other in [touch, by_session, Command::Kick { tube: tube(), count: 1 }] {
            let commands = vec![take(1, None), other, ack(1), take(1, None), ack(2)];
            assert_eq!(arranged(commands), [vec![0], vec![1], vec![2, 4], vec![3]]);
        }
    }

    #[test]
    fn only_what_is_alike_is_put_together() {
        let session = Some(SessionId([1; 16]));
        let commands = vec![take(1, None), take(1, session), take(1, session), take(2, session)];
        assert_eq!(arranged(commands), [vec![0], vec![1, 2], vec![3]]);
        assert_eq!(arranged(vec![put(1), put(2), put(1)]), [[0], [1], [2]]);
        assert_eq!(arranged(vec![put(1), put(0), ack(1)]), [[0], [1], [2]]);
    }

    #[test]
    fn a_run_is_one_command_with_all_of_it() {
        let run: Vec<Placed> = vec![(0, ack(1)), (4, ack(2))];
        let Some(Command::Finish { items, .. }) = merge(&run) else { panic!("a finish") };
        assert_eq!(items.iter().map(|item| item.id.0).collect::<Vec<_>>(), [1, 2]);
        let run: Vec<Placed> = vec![(0, take(1, None)), (1, take(1, None)), (2, take(1, None))];
        assert!(matches!(merge(&run), Some(Command::Take(Take { count: 3, .. }))));
        assert!(merge(&run[..1]).is_none());
    }
}
