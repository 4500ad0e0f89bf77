//! Puts tasks in a transaction of the caller.

use taskyard_core::{Error, NewTask, Placed, Reply, TubeName};
use tokio_postgres::GenericClient;
use tokio_postgres::types::{ToSql, Type};

use super::answers::AnswerReader;
use super::calls::put_call;
use super::connection::describe;
use super::counters::Counters;
use super::limited_tubes::LimitedTubes;
use super::presence::notice;
use super::statements::{self as sql, Call, param};

/// Puts tasks in a transaction of the caller: they exist if and only if it commits, together with its other changes.
///
/// `client` is a transaction, or a client outside of one; then the put is a transaction of its own. The database must be one
/// that a [`PostgresStore`](super::PostgresStore) has opened before. All or none are put. A tube with a
/// capacity or with sub-queues is locked until the transaction ends, so it should be short.
pub async fn put_in<C: GenericClient + Sync>(
    client: &C,
    tube: &TubeName,
    tasks: Vec<NewTask>,
) -> Result<Vec<Placed>, Error> {
    if let Some(refusal) = super::plan::refuse_tasks(&tasks) {
        return Err(refusal);
    }
    let size = tasks.len();
    let call = put_call(tube, None, vec![size as i32], &tasks.iter().collect::<Vec<_>>());
    let rows = send(client, &call).await?;
    let counters = Counters::default();
    let mut limited = LimitedTubes::default();
    let mut reader = AnswerReader::new(&counters, &mut limited);
    let replies = reader.put(tube, &[size], &rows);
    let replies = replies.map_err(|error| Error::Store(error.to_string()))?;
    match replies.into_iter().next() {
        Some(Ok(Reply::Put(placed))) => {
            let notices = vec![notice(&[], tube)];
            send(client, &Call::new(&sql::NOTIFY, [param(notices)])).await?;
            Ok(placed)
        }
        Some(Err(error)) => Err(error),
        _ => Err(Error::Store("the database did not answer".into())),
    }
}

async fn send<C: GenericClient + Sync>(
    client: &C,
    call: &Call,
) -> Result<Vec<tokio_postgres::Row>, Error> {
    let types = call.statement.types.iter();
    let params: Vec<(&(dyn ToSql + Sync), Type)> = call
        .params
        .iter()
        .zip(types)
        .map(|(param, ty)| (&**param as &(dyn ToSql + Sync), ty.clone()))
        .collect();
    let sent = client.query_typed(call.statement.text, &params).await;
    sent.map_err(|error| Error::Store(describe(&error)))
}
