//! Serves SELECT: the schema, the tubes, waiting consumers and taken tasks.

use std::collections::HashMap;
use std::sync::Arc;

use taskyard_core::access::Permissions;
use taskyard_core::command::TubeInfo;
use taskyard_core::{Command, Error, Reply, State, Task, TubeName};
use taskyard_engine::Side;
use taskyard_iproto::{
    ConsumerRow, Fault, Query, Rows, Space, TakenKey, TakenRow, fault_of, faults, write_rows,
};

use super::batch::Completion;
use super::expected_replies::ReplySize;
use super::inflight::WaitMode;
use super::protocol_session::{ProtocolSession, ReplyTo};
use super::server::IprotoServer;

/// Most taken tasks that are read for one SELECT.
const TAKEN_MAX: usize = 100_000;

/// The parameters of a SELECT.
pub(super) struct SelectRequest {
    /// The index that the key belongs to.
    pub index: u64,
    /// At most how many rows.
    pub limit: u64,
    /// How many rows to skip first.
    pub offset: u64,
    /// The iterator type.
    pub iterator: u64,
    /// The key, a MessagePack list.
    pub key: Vec<u8>,
}

/// Whether rows show the identities of sessions. A client that knows one may join it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Identities {
    Visible,
    Hidden,
}

/// Rows of taken tasks.
struct TakenTasks {
    rows: Vec<TakenRow>,
    /// Whether these are all taken tasks.
    complete: bool,
}

impl ProtocolSession {
    /// Serves a SELECT.
    pub(super) fn select(&mut self, reply_to: ReplyTo, number: u64, request: SelectRequest) {
        let Some(space) = Space::from_id(number) else {
            return self.send_fault(reply_to, &faults::no_space(number));
        };
        let schema = matches!(space, Space::Collations | Space::Spaces | Space::Indexes);
        // Every client reads the schema first, some before they authenticate.
        let all_tubes = self.permissions().can_see_all();
        if !schema && !all_tubes {
            return self
                .send_fault(reply_to, &faults::read_denied(space.name(), self.principal.name()));
        }
        // The rows must reflect the requests before this one.
        self.submit();
        if !self.admit(reply_to) {
            return;
        }
        let all = *self.permissions() == Permissions::All;
        let identities = if all { Identities::Visible } else { Identities::Hidden };
        let charge = self.expected.add(if schema { ReplySize::Small } else { ReplySize::Rows });
        let (server, share) = (self.server.clone(), self.batch.share.split());
        let future = Box::pin(async move {
            let result = rows(&server, space, &request, identities, all_tubes).await;
            Completion::Encoded { reply_to, result, charge, share }
        });
        self.start(future, WaitMode::Immediate);
    }
}

async fn rows(
    server: &Arc<IprotoServer>,
    space: Space,
    request: &SelectRequest,
    identities: Identities,
    all_tubes: bool,
) -> Result<Vec<u8>, Fault> {
    let SelectRequest { index, limit, offset, iterator, ref key } = *request;
    let query = Query { index, limit, offset, iterator, key };
    let mut out = Vec::new();
    match space {
        Space::Collations | Space::Spaces | Space::Indexes => {
            write_rows(&mut out, space, &query, Rows::Schema { queue: all_tubes })?;
        }
        Space::Tubes => {
            let mut tubes = tubes(server).await?;
            if !names_rows(&query) {
                tubes.retain(|tube| !tube.name.is_internal());
            }
            write_rows(&mut out, space, &query, Rows::Tubes(&tubes))?;
        }
        Space::Consumers => {
            let consumers = consumers(server, identities).await?;
            write_rows(&mut out, space, &query, Rows::Consumers(&consumers))?;
        }
        Space::Taken => {
            let taken = taken(server, &query, identities).await?;
            let count = write_rows(&mut out, space, &query, Rows::Taken(&taken.rows))?;
            if !taken.complete && count < limit {
                return Err(too_many_taken());
            }
        }
    }
    Ok(out)
}

/// Whether the query names rows by a key, instead of listing them.
fn names_rows(query: &Query<'_>) -> bool {
    let is_empty = matches!(query.key, [] | [0x90] | [0xdc, 0, 0] | [0xdd, 0, 0, 0, 0]);
    query.iterator <= 1 && !is_empty
}

async fn tubes(server: &IprotoServer) -> Result<Vec<TubeInfo>, Fault> {
    match server.execute_one(Command::Tubes { tube: None }).await {
        Ok(Reply::Tubes(tubes)) => Ok(tubes),
        other => Err(refusal(other)),
    }
}

async fn consumers(
    server: &IprotoServer,
    identities: Identities,
) -> Result<Vec<ConsumerRow>, Fault> {
    let numbers: HashMap<TubeName, u32> =
        tubes(server).await?.into_iter().map(|tube| (tube.name, tube.number)).collect();
    let waiting = server.engine.waiting().await.into_iter();
    let waiting = waiting.filter(|waiting| waiting.side == Side::Take);
    let rows = waiting.zip(1..).filter_map(|(waiting, fid)| {
        Some(ConsumerRow {
            session: waiting.session.filter(|_| identities == Identities::Visible),
            fid,
            tube_id: *numbers.get(&waiting.tube)?,
            timeout: waiting.until,
            time: waiting.since,
        })
    });
    Ok(rows.collect())
}

/// The taken tasks that the query needs.
async fn taken(
    server: &IprotoServer,
    query: &Query<'_>,
    identities: Identities,
) -> Result<TakenTasks, Fault> {
    let key = TakenKey::of(query)?;
    let asked_for = usize::try_from(query.offset.saturating_add(query.limit)).unwrap_or(usize::MAX);
    // With a key the number of tasks to read is not known beforehand.
    let enough = if key.narrows { usize::MAX } else { asked_for };
    let mut taken = TakenTasks { rows: Vec::new(), complete: true };
    for tube in tubes(server).await? {
        let other_tube = key.tube_id.is_some_and(|wanted| wanted != u64::from(tube.number));
        let left = TAKEN_MAX.min(enough) - taken.rows.len();
        if other_tube || tube.stats.tasks.taken == 0 {
            continue;
        }
        if left == 0 {
            taken.complete = false;
            break;
        }
        let tasks = match key.task_id {
            Some(id) if key.tube_id.is_some() => {
                held(server, Command::Peek { tube: tube.name, ids: vec![id] }).await?
            }
            // One more than the limit shows whether these are all.
            _ => held(server, Command::Deliveries { tube: tube.name, count: left + 1 }).await?,
        };
        taken.complete &= tasks.len() <= left;
        taken.rows.extend(tasks.into_iter().take(left).filter_map(|task| {
            let session = task.session.filter(|_| identities == Identities::Visible);
            let (task_id, time) = (task.id, task.start?);
            Some(TakenRow { session, tube_id: tube.number, task_id, time })
        }));
    }
    Ok(taken)
}

/// The taken tasks among those in the reply to this command.
async fn held(server: &IprotoServer, command: Command) -> Result<Vec<Task>, Fault> {
    match server.execute_one(command).await {
        Ok(Reply::Tasks(mut tasks)) => {
            tasks.retain(|task| task.state == State::Taken);
            Ok(tasks)
        }
        // The tube was dropped meanwhile.
        Err(Error::TubeNotFound(_)) => Ok(Vec::new()),
        other => Err(refusal(other)),
    }
}

/// The fault for an error, or for a reply of another kind than the command has.
fn refusal(reply: Result<Reply, Error>) -> Fault {
    match reply {
        Err(error) => fault_of(&error, "select"),
        Ok(_) => faults::lua("the engine returned a reply of another kind"),
    }
}

fn too_many_taken() -> Fault {
    faults::lua(format!(
        "more than {TAKEN_MAX} tasks are taken, too many for one answer; use a limit, or the key \
         [tube_id, task_id] of index 1"
    ))
}
