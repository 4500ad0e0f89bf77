//! Decodes the rows of puts of which some tasks have a unique key or their own number of attempts.

use taskyard_core::{Error, Placed, Reply, State, TaskId, TubeName};
use tokio_postgres::Row;

use super::answers::{AnswerReader, Replies};
use super::codec::{self, DecodeError, count_from_sql, get};
use super::status::state;

impl AnswerReader<'_> {
    /// The replies to puts of these sizes into one tube, from the row of `put_keyed`.
    pub(super) fn put_keyed(
        &mut self,
        tube: &TubeName,
        sizes: &[usize],
        row: &Row,
    ) -> Result<Replies, DecodeError> {
        let accepted = get::<Option<Vec<bool>>>(row, 3)?;
        let ids = get::<Vec<Option<i64>>>(row, 4)?;
        // Without them all tasks are new and ready.
        let states = get::<Option<Vec<Option<i16>>>>(row, 5)?;
        let existing = get::<Option<Vec<bool>>>(row, 6)?;
        let states = states.unwrap_or_else(|| vec![Some(state::READY); ids.len()]);
        let existing = existing.unwrap_or_else(|| vec![false; ids.len()]);
        let mut tasks = ids.into_iter().zip(states).zip(existing);
        self.deltas.deadline(get(row, 7)?);
        self.deltas.best_put = get(row, 8)?;
        let (mut count, mut ready) = (0, 0);
        let mut replies = Vec::with_capacity(sizes.len());
        for (place, size) in sizes.iter().enumerate() {
            let own = tasks.by_ref().take(*size);
            if accepted.as_ref().is_some_and(|accepted| accepted.get(place) != Some(&true)) {
                let capacity = get::<Option<i64>>(row, 2)?.map_or(u64::MAX, count_from_sql);
                own.for_each(drop);
                replies.push(Err(Error::TubeFull { tube: tube.clone(), capacity }));
                continue;
            }
            let mut placed = Vec::with_capacity(*size);
            for ((id, stored), existing) in own {
                let (id, stored) = id.zip(stored).ok_or("a task without an id or a state")?;
                let state = match stored {
                    state::DONE => State::Done,
                    other => codec::state_from_sql(other)?,
                };
                count += u64::from(!existing);
                ready += u64::from(!existing && state == State::Ready);
                placed.push(Placed { id: TaskId(count_from_sql(id)), state, existing });
            }
            replies.push(Ok(Reply::Put(placed)));
        }
        let expired = count_from_sql(get(row, 10)?);
        let counted = self.deltas.of(codec::number(row, 1)?);
        counted.calls.put += count;
        counted.calls.delete += expired;
        counted.calls.ttl += expired;
        counted.done += expired;
        self.deltas.ready(tube, ready);
        let returned = count_from_sql(get(row, 9)?);
        if returned > 0 {
            self.deltas.back(tube, returned);
        }
        self.deltas.room(tube, get::<Option<i64>>(row, 11)?.map(count_from_sql));
        Ok(replies)
    }
}
