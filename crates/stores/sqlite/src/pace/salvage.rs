//! Collects the intact rows of retry policies, rate limits and schedules of a damaged database, and writes them
//! into a new one.

use std::collections::BTreeMap;

use rusqlite::{Connection, Row};
use taskyard_core::{ScheduleName, StoredSchedule};

use super::super::codec::RowError;
use super::super::folder::as_row_error;
use super::{PaceHead, PaceRows, TubePace, schedule, tube};

/// An intact row.
pub(in super::super) enum SalvagedPaceRow {
    Tube(u32, TubePace),
    Schedule(Box<StoredSchedule>),
}

impl SalvagedPaceRow {
    /// The numbers of columns that such a row can have.
    pub const COLUMNS: [usize; 2] = [tube::COLUMNS, schedule::COLUMNS];

    /// Decodes a row with this number of columns, if it is intact.
    pub fn read(columns: usize, row: &Row<'_>) -> Option<SalvagedPaceRow> {
        if columns == tube::COLUMNS {
            let (number, pace) = tube::read_row(row).ok()?;
            return Some(SalvagedPaceRow::Tube(number, pace));
        }
        let schedule = schedule::read_row(row).ok()?;
        schedule.check().ok()?;
        Some(SalvagedPaceRow::Schedule(Box::new(schedule)))
    }
}

/// How many rows were saved and lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PaceReport {
    /// Schedules in the new database.
    pub schedules: u64,
    /// Schedules that the damaged database had lost.
    pub lost_schedules: u64,
    /// Tubes whose retry policy and rate limit it had lost.
    pub lost_tubes: u64,
}

/// All intact rows.
#[derive(Default)]
pub(in super::super) struct SalvagedPace {
    /// The head row of the damaged database; `None` if it is lost or there was none.
    pub expected: Option<PaceHead>,
    tubes: BTreeMap<u32, TubePace>,
    schedules: BTreeMap<ScheduleName, Box<StoredSchedule>>,
    report: PaceReport,
}

impl SalvagedPace {
    /// Adds a row, unless there is one of its tube or name.
    pub fn add(&mut self, row: SalvagedPaceRow) {
        match row {
            SalvagedPaceRow::Tube(number, pace) => _ = self.tubes.entry(number).or_insert(pace),
            SalvagedPaceRow::Schedule(schedule) => {
                _ = self.schedules.entry(schedule.name.clone()).or_insert(schedule);
            }
        }
    }

    /// Whether rows are missing, as far as known.
    pub fn is_incomplete(&self) -> bool {
        let Some(expected) = self.expected else { return true };
        (self.tubes.len() as u64) < expected.tubes
            || (self.schedules.len() as u64) < expected.schedules
    }

    /// Counts what is lost, when all pages were read.
    pub fn count_lost(&mut self) {
        let expected = self.expected.unwrap_or_default();
        self.report.lost_tubes = expected.tubes.saturating_sub(self.tubes.len() as u64);
        self.report.lost_schedules = expected.schedules.saturating_sub(self.schedules.len() as u64);
    }

    /// Applies a batch of the journal.
    pub fn apply(&mut self, rows: &PaceRows) {
        for (number, bucket) in &rows.buckets {
            if let Some(pace) = self.tubes.get_mut(number) {
                pace.bucket = Some(*bucket);
            }
        }
        for (name, data) in &rows.schedules {
            let decoded = data.as_ref().and_then(|data| schedule::decode(name.clone(), data));
            match decoded {
                Some(schedule) => _ = self.schedules.insert(name.clone(), Box::new(schedule)),
                None => _ = self.schedules.remove(name),
            }
        }
    }

    /// Writes the rows into a new database, of tubes that it has.
    pub fn write(
        mut self,
        db: &Connection,
        has_tube: impl Fn(u32) -> bool,
    ) -> Result<PaceReport, RowError> {
        for (number, pace) in self.tubes.iter().filter(|(number, _)| has_tube(**number)) {
            super::write_tube(db, *number, Some(pace)).map_err(as_row_error)?;
        }
        self.report.schedules = self.schedules.len() as u64;
        let schedules =
            self.schedules.into_iter().map(|(name, schedule)| (name, Some(*schedule))).collect();
        PaceRows::new(Vec::new(), schedules).write(db).map_err(as_row_error)?;
        Ok(self.report)
    }
}
