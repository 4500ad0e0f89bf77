//! Who waits for which reply.

use std::collections::HashMap;

use taskyard_core::{Command, Finish, FinishItem, Holder, Reply, Span, TubeName};
use taskyard_wire::iproto::{Fault, ReplyFrame, decode_executed};
use tokio::sync::oneshot;

/// What came of each request of a group, in their order.
pub(super) type Results = Vec<Result<Vec<u8>, Fault>>;

/// Which commands of a batch take from which tube.
pub(super) type Takes = Vec<(usize, TubeName)>;

/// Bits of a request's number that tell its place in its group; the others tell the group.
const PLACE_BITS: u32 = 20;
/// Most requests in a group.
pub(super) const GROUP_MAX: usize = 1 << PLACE_BITS;
/// The number of a request for whose reply nobody waits: no group comes that far.
pub(super) const NOBODY: u64 = u64::MAX;

/// Everybody who waits on one connection.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    groups: HashMap<u64, Group>,
    next: u64,
}

/// Requests that were sent in one go.
#[derive(Debug)]
struct Group {
    results: Vec<Option<Result<Vec<u8>, Fault>>>,
    missing: usize,
    done: oneshot::Sender<Results>,
    takes: Takes,
}

impl Waiting {
    /// Opens a group; answers the number of its first request.
    pub fn open(&mut self, count: usize, takes: Takes, done: oneshot::Sender<Results>) -> u64 {
        // Zero is the number of what answers no request.
        self.next += 1;
        let results = (0..count).map(|_| None).collect();
        self.groups.insert(self.next, Group { results, missing: count, done, takes });
        self.next << PLACE_BITS
    }

    /// Whether nobody but the latest waits.
    pub fn is_single(&self) -> bool {
        self.groups.len() == 1
    }

    /// Takes a reply in. Answers the commands that give back what nobody waits for any more.
    pub fn answer(&mut self, reply: &ReplyFrame<'_>) -> Vec<Command> {
        let number = reply.sync >> PLACE_BITS;
        let place = (reply.sync & (GROUP_MAX as u64 - 1)) as usize;
        let Some(group) = self.groups.get_mut(&number) else { return Vec::new() };
        let Some(result @ None) = group.results.get_mut(place) else { return Vec::new() };
        *result = Some(match reply.fault() {
            Some(fault) => Err(fault),
            None => Ok(reply.data.unwrap_or(&[0x90]).to_vec()),
        });
        group.missing -= 1;
        if group.missing > 0 {
            return Vec::new();
        }
        self.groups.remove(&number).map_or_else(Vec::new, Group::end)
    }
}

impl Group {
    fn end(self) -> Vec<Command> {
        let results = self.results.into_iter().flatten().collect();
        match self.done.send(results) {
            Ok(()) => Vec::new(),
            Err(results) => give_back(&self.takes, &results),
        }
    }
}

/// Which of the commands take from which tube.
pub(super) fn takes_of(commands: &[Command]) -> Takes {
    let takes = commands.iter().enumerate().filter_map(|(place, command)| match command {
        Command::Take(take) => Some((place, take.tube.clone())),
        _ => None,
    });
    takes.collect()
}

/// The commands that give back what was taken for a caller who is gone. Such a delivery is no attempt.
fn give_back(takes: &Takes, results: &Results) -> Vec<Command> {
    let Some(Ok(data)) = results.first() else { return Vec::new() };
    let Ok(replies) = decode_executed(data) else { return Vec::new() };
    let finish = Finish::Release { delay: Span::ZERO, counted: false };
    let returns = takes.iter().filter_map(|(place, tube)| {
        let Some(Ok(Reply::Taken(tasks))) = replies.get(*place) else { return None };
        let items: Vec<FinishItem> = tasks
            .iter()
            .filter_map(|task| {
                Some(FinishItem { id: task.id, holder: Holder::Lease(task.lease?), finish })
            })
            .collect();
        let finish = Command::Finish { tube: tube.clone(), items, show: false };
        (!tasks.is_empty()).then_some(finish)
    });
    returns.collect()
}
