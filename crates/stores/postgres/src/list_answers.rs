//! Decodes the rows of lists, searches and positions.

use taskyard_core::estimate::DelayedTasks;
use taskyard_core::{Error, Found, ListedTask, Reply, Search, State, TaskId, Timestamp, TubeName};
use tokio_postgres::Row;

use super::answers::{is_item, tasks};
use super::codec::{self, DecodeError, count_from_sql, get};
use super::tube_answers::found;

/// The tasks that a search found, with their ranks as items.
pub(super) fn searched(search: &Search, rows: &[Row]) -> Result<Result<Reply, Error>, DecodeError> {
    let tasks = match tasks(&search.tube, rows)? {
        Ok(Reply::Tasks(tasks)) => tasks,
        refused => return Ok(refused),
    };
    if search.states.contains(State::Done) {
        return Ok(Ok(Reply::Found(search.among(tasks))));
    }
    let head = rows.iter().find(|row| !is_item(row)).ok_or("an answer has no head")?;
    let rank = |row: &Row| Ok(u64::try_from(get::<i32>(row, 0)?)?);
    let ranks = rows.iter().filter(|row| is_item(row)).map(rank);
    let mut ranks = ranks.collect::<Result<Vec<_>, DecodeError>>()?;
    ranks.sort_unstable();
    Ok(Ok(Reply::Found(Found {
        tasks,
        ranks,
        compared: count_from_sql(get(head, 5)?),
        last: get::<Option<i64>>(head, 7)?.map(|id| TaskId(count_from_sql(id))),
        bytes: count_from_sql(get(head, 3)?),
    })))
}

/// A page of a list.
pub(super) fn listed(tube: &TubeName, row: &Row) -> Result<Result<Reply, Error>, DecodeError> {
    if let Err(error) = found(tube, get(row, 0)?) {
        return Ok(Err(error));
    }
    let column = |place| get::<Option<Vec<i64>>>(row, place).map(Option::unwrap_or_default);
    let task =
        |(id, pri)| ListedTask { id: TaskId(count_from_sql(id)), pri: codec::pri_from_sql(pri) };
    Ok(Ok(Reply::Listed(column(1)?.into_iter().zip(column(2)?).map(task).collect())))
}

/// Positions, with the delayed tasks in the row of item 0.
pub(super) fn positions(
    tube: &TubeName,
    rows: &[Row],
) -> Result<Result<Reply, Error>, DecodeError> {
    let head = rows.iter().find(|row| !is_item(row)).ok_or("an answer has no head")?;
    if let Err(error) = found(tube, get(head, 1)?) {
        return Ok(Err(error));
    }
    let column = |place| get::<Option<Vec<i64>>>(head, place).map(Option::unwrap_or_default);
    let delayed = column(10)?.into_iter().zip(column(11)?).zip(column(12)?);
    let delayed = delayed.map(|((pri, id), due)| {
        let id = TaskId(count_from_sql(id));
        (codec::pri_from_sql(pri), id, Timestamp::from_micros(due))
    });
    let delayed = DelayedTasks::new(Timestamp::from_micros(get(head, 2)?), delayed);
    let mut items: Vec<_> = rows.iter().filter(|row| is_item(row)).collect();
    items.sort_by_key(|row| row.try_get::<_, i32>(0).unwrap_or_default());
    let positions = items.into_iter().map(|row| codec::position(row, &delayed));
    Ok(Ok(Reply::Positions(positions.collect::<Result<_, _>>()?)))
}
