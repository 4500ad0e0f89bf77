//! Reads and writes retry policies, rate limits with their buckets, and schedules.
//!
//! They are in tables of their own, so that tubes and tasks without them have the same rows as before.

mod head;
mod salvage;
pub(super) mod schedule;
mod tube;

use std::collections::BTreeMap;

use rusqlite::{Connection, Row};
use taskyard_core::{Bucket, Machine, ScheduleName, StoredSchedule};

use super::codec::RowError;
use super::write_error::WriteError;

pub(super) use head::PaceHead;
pub(super) use salvage::{PaceReport, SalvagedPace, SalvagedPaceRow};
pub(super) use tube::TubePace;

/// The changes of a batch to buckets and schedules.
#[derive(Debug, Default, PartialEq)]
pub(super) struct PaceRows {
    /// The buckets of tubes whose own rows do not change.
    pub buckets: Vec<(u32, Bucket)>,
    /// Schedules as they are encoded; `None` is removed.
    pub schedules: Vec<(ScheduleName, Option<Box<[u8]>>)>,
}

impl PaceRows {
    pub fn new(
        buckets: Vec<(u32, Bucket)>,
        schedules: Vec<(ScheduleName, Option<StoredSchedule>)>,
    ) -> Self {
        let encoded = |(name, schedule): (ScheduleName, Option<StoredSchedule>)| {
            (name, schedule.as_ref().map(schedule::encode))
        };
        PaceRows { buckets, schedules: schedules.into_iter().map(encoded).collect() }
    }

    pub fn is_empty(&self) -> bool {
        self.buckets.is_empty() && self.schedules.is_empty()
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.buckets.len() + self.schedules.len()
    }

    /// Bytes of names and encoded schedules.
    pub fn bytes(&self) -> usize {
        let schedules = self.schedules.iter();
        schedules
            .map(|(name, data)| name.as_str().len() + data.as_ref().map_or(0, |d| d.len()))
            .sum()
    }

    /// Writes all rows.
    pub fn write(&self, db: &Connection) -> Result<(), WriteError> {
        for (number, bucket) in &self.buckets {
            let what = || format!("tube number {number}: its rate limit is missing");
            let mut pace = tube::read(db, *number)?.ok_or_else(|| WriteError::Damaged(what()))?;
            pace.bucket = Some(*bucket);
            tube::write(db, *number, &pace)?;
        }
        if self.schedules.is_empty() {
            return Ok(());
        }
        let before = PaceHead::read(db)?;
        let mut head = before;
        for (name, data) in &self.schedules {
            match data {
                Some(data) if schedule::write(db, name, data)? => head.add_schedule(name),
                None if schedule::remove(db, name)? => head.remove_schedule(name),
                _ => {}
            }
        }
        if head != before {
            head.write(db)?;
        }
        Ok(())
    }
}

/// Writes or, with `None`, removes the pace of a tube.
pub(super) fn write_tube(
    db: &Connection,
    number: u32,
    pace: Option<&TubePace>,
) -> Result<(), WriteError> {
    let sql = "DELETE FROM tube_pace WHERE number = ?";
    let had_one = db.prepare_cached(sql)?.execute([number])? > 0;
    if let Some(pace) = pace {
        tube::write(db, number, pace)?;
    }
    if had_one == pace.is_some() {
        return Ok(());
    }
    let mut head = PaceHead::read(db)?;
    if had_one {
        head.remove_tube(number);
    } else {
        head.add_tube(number);
    }
    head.write(db)?;
    Ok(())
}

/// Verifies a row of a table of this module and counts it.
pub(super) fn verify(table: &str, row: &Row<'_>, found: &mut PaceHead) -> Result<(), RowError> {
    match table {
        "tube_pace" => found.add_tube(tube::read_row(row)?.0),
        "schedule" => found.add_schedule(&schedule::read_row(row)?.name),
        _ => {}
    }
    Ok(())
}

/// Restores the schedules, and returns the pace of each tube that has one.
pub(super) fn read(
    db: &Connection,
    machine: &mut Machine,
) -> Result<BTreeMap<u32, TubePace>, RowError> {
    let mut found = PaceHead::default();
    let mut tubes = BTreeMap::new();
    let mut statement = db.prepare("SELECT * FROM tube_pace ORDER BY number")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (number, pace) = tube::read_row(row)?;
        found.add_tube(number);
        tubes.insert(number, pace);
    }
    let mut statement = db.prepare("SELECT * FROM schedule ORDER BY number")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let schedule = schedule::read_row(row)?;
        let name = schedule.name.clone();
        found.add_schedule(&name);
        if !machine.restore_schedule(schedule) {
            return Err(RowError::Damaged(format!("schedule '{name}' is invalid")));
        }
    }
    let head = PaceHead::read(db)?;
    if found == head {
        return Ok(tubes);
    }
    let (written, left) = ((head.tubes, head.schedules), (found.tubes, found.schedules));
    Err(RowError::Damaged(format!(
        "it should have {written:?} tubes with a retry policy or rate limit, and schedules, and has {left:?}"
    )))
}
