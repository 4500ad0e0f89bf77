//! Decodes what the functions say about tubes and sessions: created, absent, with a number that is taken.

use taskyard_core::limits::TUBES_MAX;
use taskyard_core::{Error, Reply, SessionId, TubeName, TubeOptions};
use tokio_postgres::Row;

use super::codec::{self, DecodeError, get};
use super::status::tube_status;

/// Refuses a tube that does not exist.
pub(super) fn found(tube: &TubeName, status: i16) -> Result<(), Error> {
    if status == tube_status::NO_TUBE { Err(Error::TubeNotFound(tube.clone())) } else { Ok(()) }
}

/// Refuses a session that is unknown.
pub(super) fn known(session: SessionId, status: i16) -> Result<(), Error> {
    if status == tube_status::SESSION_UNKNOWN {
        Err(Error::SessionUnknown(session))
    } else {
        Ok(())
    }
}

/// The reply to a command that creates a tube.
pub(super) fn created(
    tube: &TubeName,
    options: &TubeOptions,
    if_not_exists: bool,
    row: &Row,
) -> Result<Result<Reply, Error>, DecodeError> {
    Ok(match get::<i16>(row, 0)? {
        tube_status::DONE => Ok(Reply::Created(true)),
        tube_status::QUEUE_NUM_TAKEN => {
            Err(taken_num(codec::name(get(row, 2)?)?, options.queue_num)?)
        }
        tube_status::TOO_MANY_TUBES => Err(Error::TooManyTubes(TUBES_MAX)),
        tube_status::NO_SEMAPHORE => {
            let key = options.semaphore.clone();
            Err(Error::SemaphoreNotFound(key.ok_or("a semaphore that was not named is missing")?))
        }
        _ if if_not_exists => Ok(Reply::Created(false)),
        _ => Err(Error::TubeExists(tube.clone())),
    })
}

/// The error for a queue number that this tube has.
pub(super) fn taken_num(tube: TubeName, num: Option<u32>) -> Result<Error, DecodeError> {
    let num = num.ok_or("a queue number that was not named is taken")?;
    Ok(Error::QueueNumTaken { tube, num })
}
