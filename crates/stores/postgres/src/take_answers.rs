//! Decodes the rows of takes that share a call, and gives each caller its tasks.

use std::collections::HashMap;

use taskyard_core::{Command, Error, Reply, Take, Task};
use tokio_postgres::Row;

use super::answers::{AnswerReader, Replies};
use super::calls::{task_count, worker};
use super::codec::{self, DecodeError, id_to_sql, pri_to_sql};
use super::columns::delivered;
use super::head_hints::TakeResult;
use super::status::{take, tube_status};

impl AnswerReader<'_> {
    /// The replies to takes that share a call, of which `take` is the first.
    pub(super) fn take(
        &mut self,
        take: &Take,
        commands: &[Command],
        rows: &[Row],
    ) -> Result<Replies, DecodeError> {
        let Take { tube, session, .. } = take;
        let session = *session;
        let counts: Vec<usize> = commands.iter().map(task_count).collect();
        let differ = commands.iter().any(|command| worker(command) != take.worker.as_deref());
        let mut tasks = Vec::with_capacity(rows.len());
        let mut names = HashMap::new();
        let (mut sweep, mut more, mut limited) = (None, false, false);
        for row in rows {
            match (delivered::STATUS.get::<i16>(row)?, session) {
                (take::DELIVERY, _) => {}
                (tube_status::SESSION_UNKNOWN, Some(session)) => {
                    return Ok(vec![Err(Error::SessionUnknown(session)); counts.len()]);
                }
                (take::MORE, _) => {
                    // For other callers that wait.
                    self.deltas.ready(tube, 1);
                    more = true;
                    continue;
                }
                (take::LIMITED, _) => {
                    self.limited.note(tube, delivered::TIMER.get(row)?);
                    limited = true;
                    continue;
                }
                (take::SWEPT, _) => {
                    sweep = Some((
                        delivered::CREATED.get(row)?,
                        (delivered::PRI.get(row)?, delivered::ID.get(row)?),
                    ));
                    continue;
                }
                _ => return Ok(vec![Err(Error::TubeNotFound(tube.clone())); counts.len()]),
            }
            self.deltas.of(codec::number(row, 1)?).calls.take += 1;
            self.deltas.deadline(delivered::TIMER.get(row)?);
            let task = codec::taken(row, session)?;
            if let Some(lease) = task.lease {
                self.row_locations.push((lease, task.id, delivered::LOCATION.get(row)?));
            }
            if differ {
                names.insert(task.id, delivered::WORKER.get::<Option<&str>>(row)?);
            }
            tasks.push(task);
        }
        tasks.sort_unstable_by_key(|task| (task.pri, task.id));
        let last = tasks.last().map(|task| (pri_to_sql(task.pri), id_to_sql(task.id)));
        let enough = more || limited || tasks.len() == counts.iter().sum::<usize>();
        self.found = TakeResult { last, enough, sweep };
        if differ {
            // Each take has one task: the first that was delivered to its worker.
            let first = |command: &Command| {
                let own = |task: &Task| names.get(&task.id) == Some(&worker(command));
                tasks.iter().position(own).map(|place| tasks.remove(place))
            };
            let share = |task: Option<Task>| Ok(Reply::Taken(task.into_iter().collect()));
            return Ok(commands.iter().map(first).map(share).collect());
        }
        let mut tasks = tasks.into_iter();
        let share = |count: &usize| Ok(Reply::Taken(tasks.by_ref().take(*count).collect()));
        Ok(counts.iter().map(share).collect())
    }
}
