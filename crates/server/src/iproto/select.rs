//! The spaces that can be read: the schema, the tubes, who waits, who holds what.

use std::collections::HashMap;
use std::sync::Arc;

use taskyard_core::command::TubeInfo;
use taskyard_core::{Command, Error, Execute, Reply, State, Task, TubeName};
use taskyard_engine::Side;
use taskyard_wire::iproto::{
    ConsumerRow, Fault, Query, Rows, Space, TakenKey, TakenRow, fault_of, faults, write_rows,
};

use super::batch::Landed;
use super::desk::{Caller, Desk};
use super::expected::Size;
use super::face::Face;
use super::flights::Patience;
use super::users::Grants;

/// Most tasks that are looked at for one answer about those that are held.
const TAKEN_MAX: usize = 100_000;

/// Which rows are wanted.
pub(super) struct Wish {
    /// The index that the key belongs to.
    pub index: u64,
    /// At most how many rows.
    pub limit: u64,
    /// How many to leave out first.
    pub offset: u64,
    /// Which way to walk.
    pub iterator: u64,
    /// The key, a MessagePack list.
    pub key: Vec<u8>,
}

/// Whether the identities of sessions are told. Whoever knows one may join it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Identities {
    Told,
    Hidden,
}

/// The tasks that are held.
struct Taken {
    rows: Vec<TakenRow>,
    /// Whether these are all.
    complete: bool,
}

impl Desk {
    /// Serves a SELECT.
    pub(super) fn select(&mut self, caller: Caller, number: u64, wish: Wish) {
        let Some(space) = Space::from_id(number) else {
            return self.deny(caller, &faults::no_space(number));
        };
        let schema = matches!(space, Space::Collations | Space::Spaces | Space::Indexes);
        // Every client reads the schema before anything else, some before they say who they are.
        let all_tubes = self.grants.sees_everything();
        if !schema && !all_tubes {
            return self.deny(caller, &faults::read_denied(space.name(), &self.user));
        }
        // What came before must be seen in the rows.
        self.submit();
        if !self.admit(caller) {
            return;
        }
        let all = self.grants == Grants::All;
        let identities = if all { Identities::Told } else { Identities::Hidden };
        let charge = self.expected.add(if schema { Size::Small } else { Size::Rows });
        let (face, share) = (self.face.clone(), self.batch.share.split());
        let flight = Box::pin(async move {
            let rows = rows(&face, space, &wish, identities, all_tubes).await;
            Landed::Rows { caller, rows, charge, share }
        });
        self.launch(flight, Patience::None);
    }
}

async fn rows(
    face: &Arc<Face>,
    space: Space,
    wish: &Wish,
    identities: Identities,
    all_tubes: bool,
) -> Result<Vec<u8>, Fault> {
    let Wish { index, limit, offset, iterator, ref key } = *wish;
    let query = Query { index, limit, offset, iterator, key };
    let mut out = Vec::new();
    match space {
        Space::Collations | Space::Spaces | Space::Indexes => {
            write_rows(&mut out, space, &query, Rows::Schema { queue: all_tubes })?;
        }
        Space::Tubes => {
            write_rows(&mut out, space, &query, Rows::Tubes(&tubes(face).await?))?;
        }
        Space::Consumers => {
            let consumers = consumers(face, identities).await?;
            write_rows(&mut out, space, &query, Rows::Consumers(&consumers))?;
        }
        Space::Taken => {
            let taken = taken(face, &query, identities).await?;
            let count = write_rows(&mut out, space, &query, Rows::Taken(&taken.rows))?;
            if !taken.complete && count < limit {
                return Err(too_many_taken());
            }
        }
    }
    Ok(out)
}

async fn tubes(face: &Face) -> Result<Vec<TubeInfo>, Fault> {
    match ask(face, Command::Tubes { tube: None }).await {
        Ok(Reply::Tubes(tubes)) => Ok(tubes),
        other => Err(refusal(other)),
    }
}

async fn consumers(face: &Face, identities: Identities) -> Result<Vec<ConsumerRow>, Fault> {
    let numbers: HashMap<TubeName, u32> =
        tubes(face).await?.into_iter().map(|tube| (tube.name, tube.number)).collect();
    let waiting = face.engine.waiting().await.into_iter();
    let waiting = waiting.filter(|waiting| waiting.side == Side::Take);
    let rows = waiting.zip(1..).filter_map(|(waiting, fid)| {
        Some(ConsumerRow {
            session: waiting.session.filter(|_| identities == Identities::Told),
            fid,
            tube_id: *numbers.get(&waiting.tube)?,
            timeout: waiting.until,
            time: waiting.since,
        })
    });
    Ok(rows.collect())
}

/// The tasks that are held, as far as the query needs them.
async fn taken(face: &Face, query: &Query<'_>, identities: Identities) -> Result<Taken, Fault> {
    let key = TakenKey::of(query)?;
    let asked_for = usize::try_from(query.offset.saturating_add(query.limit)).unwrap_or(usize::MAX);
    // With a key nobody knows beforehand how many must be looked at.
    let enough = if key.narrows { usize::MAX } else { asked_for };
    let mut taken = Taken { rows: Vec::new(), complete: true };
    for tube in tubes(face).await? {
        let elsewhere = key.tube_id.is_some_and(|wanted| wanted != u64::from(tube.number));
        let left = TAKEN_MAX.min(enough) - taken.rows.len();
        if elsewhere || tube.stats.tasks.taken == 0 {
            continue;
        }
        if left == 0 {
            taken.complete = false;
            break;
        }
        let tasks = match key.task_id {
            Some(id) if key.tube_id.is_some() => {
                held(face, Command::Peek { tube: tube.name, ids: vec![id] }).await?
            }
            // One more than may be shown tells whether these are all.
            _ => held(face, Command::Deliveries { tube: tube.name, count: left + 1 }).await?,
        };
        taken.complete &= tasks.len() <= left;
        taken.rows.extend(tasks.into_iter().take(left).filter_map(|task| {
            let session = task.session.filter(|_| identities == Identities::Told);
            let (task_id, time) = (task.id, task.start?);
            Some(TakenRow { session, tube_id: tube.number, task_id, time })
        }));
    }
    Ok(taken)
}

/// Those of the tasks in the answer to this command that somebody holds.
async fn held(face: &Face, command: Command) -> Result<Vec<Task>, Fault> {
    match ask(face, command).await {
        Ok(Reply::Tasks(mut tasks)) => {
            tasks.retain(|task| task.state == State::Taken);
            Ok(tasks)
        }
        // It was dropped meanwhile.
        Err(Error::TubeNotFound(_)) => Ok(Vec::new()),
        other => Err(refusal(other)),
    }
}

async fn ask(face: &Face, command: Command) -> Result<Reply, Error> {
    let reply = face.engine.execute(vec![command]).await.pop();
    reply.unwrap_or_else(|| Err(Error::Store("the engine did not answer".into())))
}

/// What to say of a reply that is none, or of another kind than was asked for.
fn refusal(reply: Result<Reply, Error>) -> Fault {
    match reply {
        Err(error) => fault_of(&error, "select"),
        Ok(_) => faults::lua("the engine answered something else than was asked"),
    }
}

fn too_many_taken() -> Fault {
    faults::lua(format!(
        "more than {TAKEN_MAX} tasks are taken, too many to look at all of them; select some with a \
         limit, or one by the key [tube_id, task_id] of index 1"
    ))
}
