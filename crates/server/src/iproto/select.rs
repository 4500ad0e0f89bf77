//! The spaces that can be read: the schema, the tubes, who waits, who holds what.

use std::collections::HashMap;
use std::sync::Arc;

use taskyard_core::command::TubeInfo;
use taskyard_core::limits::BATCH_TASKS_MAX;
use taskyard_core::{Command, Error, Execute, Reply, TubeName};
use taskyard_engine::Side;
use taskyard_wire::iproto::{
    ConsumerRow, Fault, Query, Rows, Space, TakenRow, fault_of, faults, write_rows,
};

use super::batch::Landed;
use super::desk::{Caller, Desk};
use super::face::Face;
use super::flights::Patience;

/// Most tasks that one answer shows of those that are held.
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

impl Desk {
    /// Serves a SELECT.
    pub(super) fn select(&mut self, caller: Caller, number: u64, wish: Wish) {
        let Some(space) = Space::from_id(number) else {
            return self.deny(caller, &faults::no_space(number));
        };
        let (name, schema) = named(space);
        let allowed =
            if schema { self.grants.sees_something() } else { self.grants.sees_everything() };
        if !allowed {
            return self.deny(caller, &faults::read_denied(name, &self.user));
        }
        // What came before must be seen in the rows.
        self.submit();
        if !self.admit(caller) {
            return;
        }
        let (face, share) = (self.face.clone(), self.batch.share.split());
        let flight = Box::pin(async move {
            let rows = rows(&face, space, &wish).await;
            Landed::Rows { caller, rows, share }
        });
        self.launch(flight, Patience::None);
    }
}

/// A space's name, and whether it only tells which spaces there are.
const fn named(space: Space) -> (&'static str, bool) {
    match space {
        Space::Collations => ("_vcollation", true),
        Space::Spaces => ("_vspace", true),
        Space::Indexes => ("_vindex", true),
        Space::Tubes => ("_queue", false),
        Space::Consumers => ("_queue_consumers", false),
        Space::Taken => ("_queue_taken", false),
    }
}

async fn rows(face: &Arc<Face>, space: Space, wish: &Wish) -> Result<Vec<u8>, Fault> {
    let Wish { index, limit, offset, iterator, ref key } = *wish;
    let query = Query { index, limit, offset, iterator, key };
    let mut out = Vec::new();
    match space {
        Space::Collations | Space::Spaces | Space::Indexes => {
            write_rows(&mut out, space, &query, Rows::Schema)?;
        }
        Space::Tubes => write_rows(&mut out, space, &query, Rows::Tubes(&tubes(face).await?))?,
        Space::Consumers => {
            let consumers = consumers(face).await?;
            write_rows(&mut out, space, &query, Rows::Consumers(&consumers))?;
        }
        Space::Taken => write_rows(&mut out, space, &query, Rows::Taken(&taken(face).await?))?,
    }
    Ok(out)
}

async fn tubes(face: &Face) -> Result<Vec<TubeInfo>, Fault> {
    match face.engine.execute(vec![Command::Tubes { tube: None }]).await.pop() {
        Some(Ok(Reply::Tubes(tubes))) => Ok(tubes),
        Some(Err(error)) => Err(fault_of(&error, "select")),
        _ => Err(faults::lua("the engine answered something else than was asked")),
    }
}

async fn consumers(face: &Face) -> Result<Vec<ConsumerRow>, Fault> {
    let numbers: HashMap<TubeName, u32> =
        tubes(face).await?.into_iter().map(|tube| (tube.name, tube.number)).collect();
    let waiting = face.engine.waiting().await.into_iter();
    let waiting = waiting.filter(|waiting| waiting.side == Side::Take);
    let rows = waiting.zip(1..).filter_map(|(waiting, fid)| {
        Some(ConsumerRow {
            session: waiting.session,
            fid,
            tube_id: *numbers.get(&waiting.tube)?,
            timeout: waiting.until,
            time: waiting.since,
        })
    });
    Ok(rows.collect())
}

async fn taken(face: &Face) -> Result<Vec<TakenRow>, Fault> {
    let mut rows = Vec::new();
    for tube in tubes(face).await? {
        let count = BATCH_TASKS_MAX.min(TAKEN_MAX - rows.len());
        if tube.stats.tasks.taken == 0 || count == 0 {
            continue;
        }
        let command = Command::Deliveries { tube: tube.name.clone(), count };
        let tasks = match face.engine.execute(vec![command]).await.pop() {
            Some(Ok(Reply::Tasks(tasks))) => tasks,
            // It was dropped meanwhile.
            Some(Err(Error::TubeNotFound(_))) => continue,
            Some(Err(error)) => return Err(fault_of(&error, "select")),
            _ => return Err(faults::lua("the engine answered something else than was asked")),
        };
        rows.extend(tasks.into_iter().filter_map(|task| {
            let (session, task_id, time) = (task.session, task.id, task.start?);
            Some(TakenRow { session, tube_id: tube.number, task_id, time })
        }));
    }
    Ok(rows)
}
