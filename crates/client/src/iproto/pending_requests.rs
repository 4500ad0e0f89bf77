//! Matches replies to pending requests, and releases tasks whose caller was cancelled.

use std::collections::HashMap;

use taskyard_core::{Command, Finish, FinishItem, Holder, Reply, Span, TubeName};
use taskyard_iproto::{Fault, ReplyFrame, decode_executed};
use tokio::sync::oneshot;

/// The result of each request of a group, in order.
pub(super) type Results = Vec<Result<Vec<u8>, Fault>>;

/// The takes in a batch of commands: index and tube.
pub(super) type TakeCommands = Vec<(usize, TubeName)>;

/// The low bits of a request's number are its index in the group; the other bits are the group.
const INDEX_BITS: u32 = 20;
/// The largest number of requests in a group.
pub(super) const GROUP_MAX: usize = 1 << INDEX_BITS;
/// The number of a request whose reply is ignored: no group reaches it.
pub(super) const NO_CALLER: u64 = u64::MAX;

/// The requests of one connection that have no reply yet.
#[derive(Debug, Default)]
pub(super) struct PendingRequests {
    groups: HashMap<u64, RequestGroup>,
    next: u64,
}

/// Requests that were sent together.
#[derive(Debug)]
struct RequestGroup {
    results: Vec<Option<Result<Vec<u8>, Fault>>>,
    missing: usize,
    done: oneshot::Sender<Results>,
    takes: TakeCommands,
}

impl PendingRequests {
    /// Opens a group; returns the number of its first request.
    pub fn open(
        &mut self,
        count: usize,
        takes: TakeCommands,
        done: oneshot::Sender<Results>,
    ) -> u64 {
        // The server uses zero for messages that are not replies.
        self.next += 1;
        let results = (0..count).map(|_| None).collect();
        self.groups.insert(self.next, RequestGroup { results, missing: count, done, takes });
        self.next << INDEX_BITS
    }

    /// Whether only one group is pending.
    pub fn is_single(&self) -> bool {
        self.groups.len() == 1
    }

    /// Ends all requests without a reply, in the order in which they were sent: their callers are woken in this order.
    pub fn fail(self) {
        let mut groups: Vec<_> = self.groups.into_iter().collect();
        groups.sort_unstable_by_key(|(number, _)| *number);
        groups.into_iter().for_each(drop);
    }

    /// Records a reply. Returns the commands that release the tasks of a caller that was cancelled.
    pub fn complete(&mut self, reply: &ReplyFrame<'_>) -> Vec<Command> {
        let number = reply.sync >> INDEX_BITS;
        let index = (reply.sync & (GROUP_MAX as u64 - 1)) as usize;
        let Some(group) = self.groups.get_mut(&number) else { return Vec::new() };
        let Some(result @ None) = group.results.get_mut(index) else { return Vec::new() };
        *result = Some(match reply.fault() {
            Some(fault) => Err(fault),
            None => Ok(reply.data.unwrap_or(&[0x90]).to_vec()),
        });
        group.missing -= 1;
        if group.missing > 0 {
            return Vec::new();
        }
        self.groups.remove(&number).map_or_else(Vec::new, RequestGroup::end)
    }
}

impl RequestGroup {
    fn end(self) -> Vec<Command> {
        let results = self.results.into_iter().flatten().collect();
        match self.done.send(results) {
            Ok(()) => Vec::new(),
            Err(results) => releases(&self.takes, &results),
        }
    }
}

/// The takes among the commands, with their tubes.
pub(super) fn takes_in(commands: &[Command]) -> TakeCommands {
    let takes = commands.iter().enumerate().filter_map(|(index, command)| match command {
        Command::Take(take) => Some((index, take.tube.clone())),
        _ => None,
    });
    takes.collect()
}

/// The commands that release the tasks taken for a cancelled caller. Such a delivery does not count as an attempt.
fn releases(takes: &TakeCommands, results: &Results) -> Vec<Command> {
    let Some(Ok(data)) = results.first() else { return Vec::new() };
    let Ok(replies) = decode_executed(data) else { return Vec::new() };
    let finish = Finish::Release { delay: Span::ZERO, counted: false };
    let releases = takes.iter().filter_map(|(index, tube)| {
        let Some(Ok(Reply::Taken(tasks))) = replies.get(*index) else { return None };
        let items: Vec<FinishItem> = tasks
            .iter()
            .filter_map(|task| {
                let (holder, finish) = (Holder::Lease(task.lease?), finish.clone());
                Some(FinishItem { id: task.id, holder, finish })
            })
            .collect();
        let finish = Command::Finish { tube: tube.clone(), items, show: false };
        (!tasks.is_empty()).then_some(finish)
    });
    releases.collect()
}
