//! Decides which commands of a batch share a call although other commands are between them.
//!
//! Sixteen workers that ack one task and take the next produce acks and takes in turns; if only neighbours shared a call
//! there would be a call for each. In a tube without sub-queues and capacity an ack by lease changes nothing that a put or
//! a take sees, and the other way round, so they may be reordered. A put and a take of one tube are never reordered, and
//! nothing is moved across a command of another kind. Commands for other tubes do not matter. A put with a unique key sees which
//! tasks have ended, so it is not moved across an ack.

use std::collections::{HashMap, HashSet};

use taskyard_core::{Command, Holder, SemaphoreKey, TubeName};

use super::plan::{CallGroup, is_ack};
use super::semaphores;

/// The groups that may still grow, by tube.
#[derive(Default)]
pub(super) struct CallGrouping {
    tubes: HashMap<TubeName, TubeGroups>,
    /// The latest group of enqueues, the latest of releases, and for each semaphore the latest of either that names it.
    semaphores: [Option<usize>; 2],
    named: HashMap<SemaphoreKey, usize>,
}

/// The latest group of each kind in a tube.
#[derive(Default)]
struct TubeGroups {
    put: Option<usize>,
    /// Whether there was an ack since the group of puts began.
    acked: bool,
    take: Option<usize>,
    ack: Option<usize>,
}

/// What a command does to a tube, as far as reordering is concerned.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GroupKind {
    Put,
    Take,
    /// Of deliveries that are named by their lease: so none of this batch can be named.
    Ack,
}

fn kind(command: &Command) -> Option<(&TubeName, GroupKind)> {
    match command {
        Command::Put { tube, .. } => Some((tube, GroupKind::Put)),
        Command::Take(take) => Some((&take.tube, GroupKind::Take)),
        Command::Finish { tube, items, .. } => {
            let acks = items
                .iter()
                .all(|item| is_ack(&item.finish) && matches!(item.holder, Holder::Lease(_)));
            acks.then_some((tube, GroupKind::Ack))
        }
        _ => None,
    }
}

/// Whether a command puts a task with a unique key.
pub(super) fn has_key(command: &Command) -> bool {
    matches!(command, Command::Put { tasks, .. } if tasks.iter().any(|task| task.key.is_some()))
}

impl CallGrouping {
    /// The group that a command joins, if there is one. Closes the groups that later commands must not join, because that
    /// would move them across this command.
    pub fn admitting(
        &mut self,
        command: &Command,
        groups: &mut [CallGroup],
        plain: &HashSet<TubeName>,
    ) -> Option<usize> {
        if let Some((kind, key)) = semaphores::shares(command) {
            // Commands for different semaphores are independent; those for one keep their order.
            let after = self.named.get(key).copied().unwrap_or(0);
            let group = self.semaphores[kind].filter(|group| *group >= after);
            let group = group.filter(|group| groups[*group].admits(command))?;
            self.named.insert(key.clone(), group);
            return Some(group);
        }
        let Some((tube, kind)) = kind(command) else { return self.neighbour(command, groups) };
        if !plain.contains(tube) {
            // The tube may have a semaphore.
            self.semaphores = [None; 2];
        }
        let open = self.tubes.entry(tube.clone()).or_default();
        let is_keyed = has_key(command);
        let is_plain = plain.contains(tube) && !is_keyed;
        open.acked |= kind == GroupKind::Ack;
        if is_keyed && open.acked {
            open.put = None;
        }
        if !is_plain || kind == GroupKind::Put {
            open.take = open.take.filter(|_| kind == GroupKind::Take);
        }
        if !is_plain || kind == GroupKind::Take {
            open.put = open.put.filter(|_| kind == GroupKind::Put);
        }
        if !is_plain {
            open.ack = open.ack.filter(|_| kind == GroupKind::Ack);
        }
        let latest = *open.of(kind);
        latest.filter(|group| groups[*group].admits(command))
    }

    /// Acks that are not by lease join only the group right before them; all other commands have a call of their own.
    fn neighbour(&mut self, command: &Command, groups: &mut [CallGroup]) -> Option<usize> {
        self.tubes.clear();
        self.semaphores = [None; 2];
        let last = groups.len().checked_sub(1)?;
        groups[last].admits(command).then_some(last)
    }

    /// Notes that a command begins the group with this index.
    pub fn begin(&mut self, command: &Command, group: usize) {
        if let Some((kind, key)) = semaphores::shares(command) {
            self.semaphores[kind] = Some(group);
            self.named.insert(key.clone(), group);
        }
        if let Some((tube, kind)) = kind(command) {
            let open = self.tubes.entry(tube.clone()).or_default();
            open.acked &= kind != GroupKind::Put;
            *open.of(kind) = Some(group);
        }
    }
}

impl TubeGroups {
    fn of(&mut self, kind: GroupKind) -> &mut Option<usize> {
        match kind {
            GroupKind::Put => &mut self.put,
            GroupKind::Take => &mut self.take,
            GroupKind::Ack => &mut self.ack,
        }
    }
}

#[cfg(test)]
mod tests {
    use taskyard_core::{
        Body, Finish, FinishItem, GrantFinish, GrantItem, Lease, NewTask, SemaphoreCommand, Span,
        Take, TaskId,
    };

    use super::*;
    use crate::head_hints::{HeadHints, TimerHint};
    use crate::plan::{PlanContext, plan};
    use crate::row_locations::RowLocations;

    // Batches locked tubes in the order of their commands: two servers that put into two tubes with a capacity, in
    // opposite order, deadlocked until the database noticed.
    #[test]
    fn calls_are_in_the_order_of_tube_names() {
        let peek = |tube: &str| Command::Peek { tube: TubeName::new(tube).unwrap(), ids: vec![] };
        let commands =
            vec![peek("b"), peek("a"), peek("b"), Command::Tick { limit: 1, seed: 0 }, peek("a")];
        assert_eq!(calls(commands, false), [[1], [0], [2], [3], [4]]);
    }

    fn mail() -> TubeName {
        TubeName::new("mail").unwrap()
    }

    fn put() -> Command {
        let tasks = vec![NewTask::new(Body::new(&[0xc0]))];
        Command::Put { tube: mail(), tasks, wait: Span::ZERO }
    }

    fn take() -> Command {
        take_by(None)
    }

    fn take_by(worker: Option<&str>) -> Command {
        let (session, lease, worker) = (None, None, worker.map(Into::into));
        Command::Take(Take { tube: mail(), count: 1, session, lease, worker, wait: Span::ZERO })
    }

    fn ack(id: u64, holder: Holder) -> Command {
        let items = vec![FinishItem { id: TaskId(id), holder, finish: Finish::Ack }];
        Command::Finish { tube: mail(), items, show: false }
    }

    fn by_lease(id: u64) -> Command {
        ack(id, Holder::Lease(Lease(id)))
    }

    /// The places of the commands that share each call.
    fn calls(commands: Vec<Command>, is_plain: bool) -> Vec<Vec<usize>> {
        let plain = is_plain.then(mail).into_iter().collect();
        let (head_hints, timers, row_locations) =
            (&HeadHints::default(), &TimerHint::default(), &RowLocations::default());
        let (now, server, moment, plain, may_split) = (None, &[], 0, &plain, false);
        let gated = &HashSet::new();
        let context = PlanContext {
            now,
            server,
            head_hints,
            timers,
            moment,
            row_locations,
            plain,
            gated,
            may_split,
        };
        let places = plan(commands, &context).0.steps.into_iter().map(|step| step.places);
        // Without steps that have no command.
        places.filter(|places| !places.is_empty()).collect()
    }

    /// Workers that ack and take in turns had a call for each ack and each take: 32 calls in a batch where two are
    /// enough.
    #[test]
    fn acks_and_takes_in_turns_are_two_calls() {
        let turns = || vec![by_lease(1), take(), by_lease(2), take(), by_lease(3), take()];
        assert_eq!(calls(turns(), true), [[0, 2, 4], [1, 3, 5]]);
        assert_eq!(calls(turns(), false).len(), 6, "where an ack may make another task ready");
    }

    #[test]
    fn takes_of_different_workers_share_a_call() {
        assert_eq!(calls(vec![take_by(Some("a")), take(), take_by(Some("b"))], true), [[0, 1, 2]]);
        let same = (0..300).map(|_| take_by(Some("a"))).collect();
        assert_eq!(calls(same, true).len(), 1);
        let different = (0..300).map(|number| take_by(Some(&number.to_string()))).collect();
        let sizes: Vec<usize> = calls(different, true).iter().map(Vec::len).collect();
        assert_eq!(sizes, [128, 128, 44]);
    }

    #[test]
    fn puts_and_takes_are_never_reordered() {
        let commands = vec![put(), by_lease(1), put(), take(), put(), take()];
        assert_eq!(calls(commands, true), [vec![0, 2], vec![1], vec![3], vec![4], vec![5]]);
    }

    #[test]
    fn an_ack_that_may_name_a_task_of_this_batch_is_not_moved() {
        let commands = vec![by_lease(1), take(), ack(2, Holder::Any), ack(3, Holder::Any), take()];
        assert_eq!(calls(commands, true), [vec![0], vec![1], vec![2, 3], vec![4]]);
    }

    #[test]
    fn nothing_is_moved_across_another_command() {
        let commands = vec![take(), Command::ReleaseAll { tube: mail() }, take()];
        assert_eq!(calls(commands, true), [[0], [1], [2]]);
    }

    fn enqueue(key: &str) -> Command {
        let key = SemaphoreKey::new(key).unwrap();
        Command::Semaphore(SemaphoreCommand::Enqueue { key, entries: vec![] })
    }

    fn release(key: &str) -> Command {
        let key = SemaphoreKey::new(key).unwrap();
        let (task, grant, finish) = (TaskId(1), None, GrantFinish::Release);
        let items = vec![GrantItem { task, grant, finish }];
        Command::Semaphore(SemaphoreCommand::Finish { key, items })
    }

    /// Callers that enqueue and release in turns had a call for each.
    #[test]
    fn enqueues_and_releases_in_turns_are_two_calls() {
        let turns = vec![enqueue("a"), release("b"), enqueue("c"), release("d"), enqueue("a")];
        assert_eq!(calls(turns, true), [vec![0, 2, 4], vec![1, 3]]);
    }

    #[test]
    fn commands_for_one_semaphore_keep_their_order() {
        let commands = vec![enqueue("a"), release("a"), enqueue("a"), release("b"), enqueue("b")];
        assert_eq!(calls(commands, true), [vec![0], vec![1, 3], vec![2, 4]]);
        let list = || Command::Semaphore(SemaphoreCommand::List { key: None });
        let commands = vec![enqueue("a"), list(), enqueue("b"), take(), enqueue("c")];
        assert_eq!(calls(commands.clone(), true), [vec![0], vec![1], vec![2, 4], vec![3]]);
        assert_eq!(calls(commands, false).len(), 5, "the tube may have a semaphore");
    }

    #[test]
    fn the_same_task_twice_is_two_calls() {
        assert_eq!(calls(vec![by_lease(1), take(), by_lease(1)], true), [[0], [1], [2]]);
    }
}
