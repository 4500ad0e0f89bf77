//! The native call: any commands in one batch, with every field of them and of their replies.
//!
//! Each value is a list of its fields in a fixed order; enums begin with a number. Fields that are
//! missing at the end are nil, and unknown fields are skipped, so that older and newer programs
//! understand each other.

mod command;
mod error;
mod position;
mod reply;
mod row;
mod schedule;
mod semaphore;
mod task;
mod tube;

use taskyard_core::limits::BATCH_TASKS_MAX;
use taskyard_core::{Command, Error, Reply, ScheduleName};

use super::IprotoError;
use super::faults::lua;
use super::pack;
use super::reader::ValueReader;
use super::reply::Fault;
use super::request::write_call;
use row::{Budget, RowError, RowReader};

/// The function that runs a batch of commands.
pub const EXECUTE: &str = "taskyard.execute";

/// The function that puts the task of a schedule now. The client need not see the payload.
pub const RUN_SCHEDULE: &str = "taskyard.run_schedule";

/// Most commands and tasks in one batch together, so that a small message cannot use much memory.
const ITEMS_MAX: usize = 20 * BATCH_TASKS_MAX;

/// Writes a request that runs the commands as one batch.
pub fn encode_execute(out: &mut Vec<u8>, sync: u64, commands: &[Command]) {
    write_call(out, sync, EXECUTE, |out| {
        pack::array(out, 1);
        encode_commands(out, commands);
    });
}

/// Writes a request that puts the task of this schedule now. Its reply is that of a batch with one
/// command, the put.
pub fn encode_run_schedule(out: &mut Vec<u8>, sync: u64, name: &ScheduleName) {
    write_call(out, sync, RUN_SCHEDULE, |out| {
        pack::array(out, 1);
        pack::str(out, name.as_str());
    });
}

/// Writes commands as one MessagePack value.
pub fn encode_commands(out: &mut Vec<u8>, commands: &[Command]) {
    pack::array(out, commands.len());
    for command in commands {
        command::write(out, command);
    }
}

/// Decodes commands. Payloads are checked here, everything else by the store.
pub fn decode_commands(bytes: &[u8]) -> Result<Vec<Command>, Fault> {
    read_commands(bytes).map_err(|wrong| lua(format!("{EXECUTE}: {wrong}")))
}

fn read_commands(bytes: &[u8]) -> row::RowResult<Vec<Command>> {
    let mut budget = Budget::new(ITEMS_MAX);
    let mut reader = ValueReader::new(bytes);
    let commands = RowReader::begin(&mut reader, &mut budget)?.all(command::read)?;
    if reader.is_empty() { Ok(commands) } else { Err(RowError("bytes follow the commands")) }
}

/// Writes replies as one MessagePack value.
pub fn encode_replies(out: &mut Vec<u8>, replies: &[Result<Reply, Error>]) {
    pack::array(out, replies.len());
    for reply in replies {
        match reply {
            Ok(reply) => reply::write(out, reply),
            Err(error) => error::write(out, error),
        }
    }
}

/// Writes replies as the data of the reply to [`encode_execute`] or [`encode_run_schedule`].
pub fn encode_executed(out: &mut Vec<u8>, replies: &[Result<Reply, Error>]) {
    // A list of one result.
    pack::array(out, 1);
    encode_replies(out, replies);
}

/// Decodes replies.
pub fn decode_replies(bytes: &[u8]) -> Result<Vec<Result<Reply, Error>>, IprotoError> {
    // The length of the message limits the number of items.
    let mut budget = Budget::new(usize::MAX);
    let mut reader = ValueReader::new(bytes);
    let replies = RowReader::begin(&mut reader, &mut budget)?.all(reply::read)?;
    if reader.is_empty() { Ok(replies) } else { Err(IprotoError::Malformed("bytes follow it")) }
}

/// Decodes the replies of Taskyard's procedures in Tarantool; more values may follow.
pub(super) fn read_procedure_replies(
    reader: &mut ValueReader<'_>,
) -> Result<Vec<Result<Reply, Error>>, IprotoError> {
    let mut budget = Budget::new(usize::MAX);
    Ok(RowReader::begin(reader, &mut budget)?.all(reply::read_procedure_replies)?)
}

/// Decodes replies that [`encode_executed`] wrote.
pub fn decode_executed(data: &[u8]) -> Result<Vec<Result<Reply, Error>>, IprotoError> {
    let mut reader = ValueReader::new(data);
    match reader.array() {
        Ok(1) => decode_replies(reader.rest()),
        _ => Err(IprotoError::Malformed("not one result")),
    }
}

impl From<RowError> for IprotoError {
    fn from(wrong: RowError) -> Self {
        IprotoError::Malformed(wrong.0)
    }
}
