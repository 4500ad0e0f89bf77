//! Which commands of a batch may share a call although others stand between them.
//!
//! Sixteen workers that ack one task and take the next send acks and takes in turns; as neighbours alone
//! they would be a call each. In a tube without sub-queues and capacity an ack by lease changes nothing that a
//! put or a take sees, and the other way round, so it may pass them. A put and a take never pass each
//! other, and nothing passes a command of another kind. What is asked of other tubes does not matter.

use std::collections::{HashMap, HashSet};

use taskyard_core::{Command, Finish, Holder, SemaphoreKey, TubeName};

use super::plan::Group;
use super::semaphores;

/// The groups that may still grow, by tube.
#[derive(Default)]
pub(super) struct OpenGroups {
    tubes: HashMap<TubeName, Open>,
    /// The latest groups that enqueue and that release, and the latest of either that names a semaphore.
    semaphores: [Option<usize>; 2],
    named: HashMap<SemaphoreKey, usize>,
}

/// The latest group of each kind in a tube.
#[derive(Default)]
struct Open {
    put: Option<usize>,
    take: Option<usize>,
    ack: Option<usize>,
}

/// What a command does to a tube, as far as passing is concerned.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Put,
    Take,
    /// Of deliveries that are named by their lease, so that none of this batch can be meant.
    Ack,
}

fn kind(command: &Command) -> Option<(&TubeName, Kind)> {
    match command {
        Command::Put { tube, .. } => Some((tube, Kind::Put)),
        Command::Take(take) => Some((&take.tube, Kind::Take)),
        Command::Finish { tube, items, .. } => {
            let acks = items
                .iter()
                .all(|item| item.finish == Finish::Ack && matches!(item.holder, Holder::Lease(_)));
            acks.then_some((tube, Kind::Ack))
        }
        _ => None,
    }
}

impl OpenGroups {
    /// The group that a command may join, if there is one; it counts as one of it then. Groups that what comes
    /// later must not join any more, because it would pass this command, are closed.
    pub fn admitting(
        &mut self,
        command: &Command,
        groups: &mut [Group],
        plain: &HashSet<TubeName>,
    ) -> Option<usize> {
        if let Some((kind, key)) = semaphores::shares(command) {
            // What is asked of different semaphores does not matter to each other; of one it stays in its order.
            let after = self.named.get(key).copied().unwrap_or(0);
            let group = self.semaphores[kind].filter(|group| *group >= after);
            let group = group.filter(|group| groups[*group].admits(command))?;
            self.named.insert(key.clone(), group);
            return Some(group);
        }
        let Some((tube, kind)) = kind(command) else { return self.neighbour(command, groups) };
        if !plain.contains(tube) {
            // It may have a semaphore before it.
            self.semaphores = [None; 2];
        }
        let open = self.tubes.entry(tube.clone()).or_default();
        let is_plain = plain.contains(tube);
        if !is_plain || kind == Kind::Put {
            open.take = open.take.filter(|_| kind == Kind::Take);
        }
        if !is_plain || kind == Kind::Take {
            open.put = open.put.filter(|_| kind == Kind::Put);
        }
        if !is_plain {
            open.ack = open.ack.filter(|_| kind == Kind::Ack);
        }
        let latest = *open.of(kind);
        latest.filter(|group| groups[*group].admits(command))
    }

    /// Acks in other ways are only joined with those right before them; anything else stands alone.
    fn neighbour(&mut self, command: &Command, groups: &mut [Group]) -> Option<usize> {
        self.tubes.clear();
        self.semaphores = [None; 2];
        let last = groups.len().checked_sub(1)?;
        groups[last].admits(command).then_some(last)
    }

    /// A command begins a group of its own, at this place.
    pub fn begin(&mut self, command: &Command, group: usize) {
        if let Some((kind, key)) = semaphores::shares(command) {
            self.semaphores[kind] = Some(group);
            self.named.insert(key.clone(), group);
        }
        if let Some((tube, kind)) = kind(command) {
            *self.tubes.entry(tube.clone()).or_default().of(kind) = Some(group);
        }
    }
}

impl Open {
    fn of(&mut self, kind: Kind) -> &mut Option<usize> {
        match kind {
            Kind::Put => &mut self.put,
            Kind::Take => &mut self.take,
            Kind::Ack => &mut self.ack,
        }
    }
}

#[cfg(test)]
mod tests {
    use taskyard_core::{
        Body, FinishItem, GrantFinish, GrantItem, Lease, NewTask, SemaphoreCommand, Span, Take,
        TaskId,
    };

    use super::*;
    use crate::heads::{Heads, Timers};
    use crate::places::Places;
    use crate::plan::{Context, plan};

    // Batches locked tubes as they came: two servers that put into two tubes with a capacity, in opposite order,
    // stood still until the database found out.
    #[test]
    fn tubes_are_asked_in_one_order() {
        let peek = |tube: &str| Command::Peek { tube: TubeName::new(tube).unwrap(), ids: vec![] };
        let commands = vec![peek("b"), peek("a"), peek("b"), Command::Tick { limit: 1 }, peek("a")];
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
        let (session, lease, wait) = (None, None, Span::ZERO);
        Command::Take(Take { tube: mail(), count: 1, session, lease, wait })
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
        let (heads, timers, places) = (&Heads::default(), &Timers::default(), &Places::default());
        let (now, server, moment, plain, may_split) = (None, &[], 0, &plain, false);
        let gated = &HashSet::new();
        let context =
            Context { now, server, heads, timers, moment, places, plain, gated, may_split };
        let places = plan(commands, &context).0.steps.into_iter().map(|step| step.places);
        // Without what nobody asked for.
        places.filter(|places| !places.is_empty()).collect()
    }

    /// Workers that ack and take in turns had a call for each ack and each take, sixteen of both in a batch
    /// where two do.
    #[test]
    fn acks_and_takes_in_turns_are_two_calls() {
        let turns = || vec![by_lease(1), take(), by_lease(2), take(), by_lease(3), take()];
        assert_eq!(calls(turns(), true), [[0, 2, 4], [1, 3, 5]]);
        assert_eq!(calls(turns(), false).len(), 6, "where an ack may let another run");
    }

    #[test]
    fn puts_and_takes_never_pass_each_other() {
        let commands = vec![put(), by_lease(1), put(), take(), put(), take()];
        assert_eq!(calls(commands, true), [vec![0, 2], vec![1], vec![3], vec![4], vec![5]]);
    }

    #[test]
    fn an_ack_that_may_mean_a_task_of_this_batch_passes_nothing() {
        let commands = vec![by_lease(1), take(), ack(2, Holder::Any), ack(3, Holder::Any), take()];
        assert_eq!(calls(commands, true), [vec![0], vec![1], vec![2, 3], vec![4]]);
    }

    #[test]
    fn nothing_passes_another_verb() {
        let commands = vec![take(), Command::ReleaseAll { tube: mail() }, take()];
        assert_eq!(calls(commands, true), [[0], [1], [2]]);
    }

    fn enqueue(key: &str) -> Command {
        let key = SemaphoreKey::new(key).unwrap();
        Command::Semaphore(SemaphoreCommand::Enqueue { key, wishes: vec![] })
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
    fn what_is_asked_of_one_semaphore_stays_in_its_order() {
        let commands = vec![enqueue("a"), release("a"), enqueue("a"), release("b"), enqueue("b")];
        assert_eq!(calls(commands, true), [vec![0], vec![1, 3], vec![2, 4]]);
        let list = || Command::Semaphore(SemaphoreCommand::List { key: None });
        let commands = vec![enqueue("a"), list(), enqueue("b"), take(), enqueue("c")];
        assert_eq!(calls(commands.clone(), true), [vec![0], vec![1], vec![2, 4], vec![3]]);
        assert_eq!(calls(commands, false).len(), 5, "a tube may have a semaphore before it");
    }

    #[test]
    fn the_same_task_twice_is_two_calls() {
        assert_eq!(calls(vec![by_lease(1), take(), by_lease(1)], true), [[0], [1], [2]]);
    }
}
