//! Encodes and decodes errors with all their fields.

use taskyard_core::{Error, TaskId};

use super::reply::REFUSED;
use super::row::{RowError, RowReader, RowResult, RowWriter};
use super::{schedule, semaphore};
use crate::intern::intern;
use crate::pack::Out;

const TUBE_NOT_FOUND: u64 = 0;
const TUBE_EXISTS: u64 = 1;
const TUBE_HAS_TAKEN: u64 = 2;
const TUBE_HAS_CONSUMERS: u64 = 3;
const TUBE_FULL: u64 = 4;
const TOO_MANY_TUBES: u64 = 5;
const TASK_NOT_FOUND: u64 = 6;
const UNSUPPORTED: u64 = 7;
const INVALID: u64 = 8;
const TOO_LARGE: u64 = 9;
const SESSION_UNKNOWN: u64 = 10;
const OVERLOADED: u64 = 11;
const STORE: u64 = 12;
const SHUTTING_DOWN: u64 = 13;
const STORE_AWAY: u64 = 14;
const OUTCOME_UNKNOWN: u64 = 15;
const SEMAPHORE_NOT_FOUND: u64 = 16;
const TOO_MANY_SEMAPHORES: u64 = 17;
const NO_SEMAPHORE: u64 = 18;
const QUEUE_NUM_TAKEN: u64 = 19;
const SEMAPHORE_EXISTS: u64 = 20;
const SEMAPHORE_IN_USE: u64 = 21;
const SEMAPHORE_HAS_TUBE: u64 = 22;
const TUBE_DIFFERS: u64 = 23;
const SCHEDULE_NOT_FOUND: u64 = 24;
const SCHEDULE_EXISTS: u64 = 25;
const TOO_MANY_SCHEDULES: u64 = 26;
const MISSING_FEATURE: u64 = 27;

pub(super) fn write(out: &mut Out, error: &Error) {
    let mut row = RowWriter::variant(out, REFUSED);
    match error {
        Error::TubeNotFound(tube) => row.uint(TUBE_NOT_FOUND).tube(tube),
        Error::TubeExists(tube) => row.uint(TUBE_EXISTS).tube(tube),
        Error::TubeDiffers { tube, differs } => row.uint(TUBE_DIFFERS).tube(tube).text(differs),
        Error::QueueNumTaken { tube, num } => {
            row.uint(QUEUE_NUM_TAKEN).tube(tube).uint(u64::from(*num))
        }
        Error::TubeHasTaken(tube) => row.uint(TUBE_HAS_TAKEN).tube(tube),
        Error::NoSemaphore(tube) => row.uint(NO_SEMAPHORE).tube(tube),
        Error::TubeHasConsumers(tube) => row.uint(TUBE_HAS_CONSUMERS).tube(tube),
        Error::TubeFull { tube, capacity } => row.uint(TUBE_FULL).tube(tube).uint(*capacity),
        Error::TooManyTubes(limit) => row.uint(TOO_MANY_TUBES).uint(*limit as u64),
        Error::TaskNotFound(tube, id) => row.uint(TASK_NOT_FOUND).tube(tube).uint(id.0),
        Error::Unsupported { kind, verb } => row.uint(UNSUPPORTED).text(kind).text(verb),
        Error::Invalid(text) => row.uint(INVALID).text(text),
        Error::TooLarge { what, size, limit, advice } => {
            row.uint(TOO_LARGE).text(what).uint(*size as u64).uint(*limit as u64).text(advice)
        }
        Error::SessionUnknown(session) => row.uint(SESSION_UNKNOWN).session(*session),
        Error::Overloaded(what) => row.uint(OVERLOADED).text(what),
        Error::Store(text) => row.uint(STORE).text(text),
        Error::ShuttingDown => row.uint(SHUTTING_DOWN),
        Error::StoreUnavailable(text) => row.uint(STORE_AWAY).text(text),
        Error::OutcomeUnknown(text) => row.uint(OUTCOME_UNKNOWN).text(text),
        Error::SemaphoreNotFound(key) => row.uint(SEMAPHORE_NOT_FOUND).text(key.as_str()),
        Error::TooManySemaphores(limit) => row.uint(TOO_MANY_SEMAPHORES).uint(*limit as u64),
        Error::SemaphoreExists { key, differs } => {
            row.uint(SEMAPHORE_EXISTS).text(key.as_str()).text(differs)
        }
        Error::SemaphoreInUse(key) => row.uint(SEMAPHORE_IN_USE).text(key.as_str()),
        Error::SemaphoreHasTube { key, tube } => {
            row.uint(SEMAPHORE_HAS_TUBE).text(key.as_str()).tube(tube)
        }
        Error::ScheduleNotFound(name) => row.uint(SCHEDULE_NOT_FOUND).text(name.as_str()),
        Error::ScheduleExists(name) => row.uint(SCHEDULE_EXISTS).text(name.as_str()),
        Error::TooManySchedules(limit) => row.uint(TOO_MANY_SCHEDULES).uint(*limit as u64),
        Error::MissingFeature { store, feature } => {
            row.uint(MISSING_FEATURE).text(store).text(feature)
        }
        // The core's list may grow before this one does.
        other => row.uint(STORE).text(&other.to_string()),
    };
    row.end();
}

pub(super) fn read(row: &mut RowReader<'_, '_>) -> RowResult<Error> {
    Ok(match row.uint()? {
        TUBE_NOT_FOUND => Error::TubeNotFound(row.tube()?),
        TUBE_EXISTS => Error::TubeExists(row.tube()?),
        TUBE_DIFFERS => Error::TubeDiffers { tube: row.tube()?, differs: row.text()?.into() },
        QUEUE_NUM_TAKEN => Error::QueueNumTaken { tube: row.tube()?, num: row.u32()? },
        TUBE_HAS_TAKEN => Error::TubeHasTaken(row.tube()?),
        NO_SEMAPHORE => Error::NoSemaphore(row.tube()?),
        TUBE_HAS_CONSUMERS => Error::TubeHasConsumers(row.tube()?),
        TUBE_FULL => Error::TubeFull { tube: row.tube()?, capacity: row.uint()? },
        TOO_MANY_TUBES => Error::TooManyTubes(row.usize()?),
        TASK_NOT_FOUND => Error::TaskNotFound(row.tube()?, TaskId(row.uint()?)),
        UNSUPPORTED => Error::Unsupported { kind: intern(row.text()?), verb: intern(row.text()?) },
        INVALID => Error::Invalid(row.text()?.into()),
        TOO_LARGE => Error::TooLarge {
            what: intern(row.text()?),
            size: row.usize()?,
            limit: row.usize()?,
            advice: intern(row.text()?),
        },
        SESSION_UNKNOWN => Error::SessionUnknown(row.session()?),
        OVERLOADED => Error::Overloaded(intern(row.text()?)),
        STORE => Error::Store(row.text()?.into()),
        SHUTTING_DOWN => Error::ShuttingDown,
        STORE_AWAY => Error::StoreUnavailable(row.text()?.into()),
        OUTCOME_UNKNOWN => Error::OutcomeUnknown(row.text()?.into()),
        SEMAPHORE_NOT_FOUND => Error::SemaphoreNotFound(semaphore::read_key(row)?),
        TOO_MANY_SEMAPHORES => Error::TooManySemaphores(row.usize()?),
        SEMAPHORE_EXISTS => {
            Error::SemaphoreExists { key: semaphore::read_key(row)?, differs: row.text()?.into() }
        }
        SEMAPHORE_IN_USE => Error::SemaphoreInUse(semaphore::read_key(row)?),
        SEMAPHORE_HAS_TUBE => {
            Error::SemaphoreHasTube { key: semaphore::read_key(row)?, tube: row.tube()? }
        }
        SCHEDULE_NOT_FOUND => Error::ScheduleNotFound(schedule::read_name(row)?),
        SCHEDULE_EXISTS => Error::ScheduleExists(schedule::read_name(row)?),
        TOO_MANY_SCHEDULES => Error::TooManySchedules(row.usize()?),
        MISSING_FEATURE => {
            Error::MissingFeature { store: intern(row.text()?), feature: intern(row.text()?) }
        }
        _ => return Err(RowError("a refusal that this version does not know")),
    })
}
