//! Reads and writes the row that counts the rows of tubes with a pace and of schedules.

use rusqlite::{Connection, OptionalExtension, Row};
use taskyard_core::ScheduleName;

use super::super::codec::{RowChecksum, RowError, mix};

/// The one row of `pace_head`. A store that never had such a row has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct PaceHead {
    pub tubes: u64,
    tube_keys: u64,
    pub schedules: u64,
    schedule_keys: u64,
}

impl PaceHead {
    /// Number of columns of the row.
    pub const COLUMNS: usize = 6;

    pub fn add_tube(&mut self, number: u32) {
        self.tubes = self.tubes.wrapping_add(1);
        self.tube_keys = self.tube_keys.wrapping_add(mix(number.into()));
    }

    pub fn remove_tube(&mut self, number: u32) {
        self.tubes = self.tubes.wrapping_sub(1);
        self.tube_keys = self.tube_keys.wrapping_sub(mix(number.into()));
    }

    pub fn add_schedule(&mut self, name: &ScheduleName) {
        self.schedules = self.schedules.wrapping_add(1);
        self.schedule_keys = self.schedule_keys.wrapping_add(name_key(name));
    }

    pub fn remove_schedule(&mut self, name: &ScheduleName) {
        self.schedules = self.schedules.wrapping_sub(1);
        self.schedule_keys = self.schedule_keys.wrapping_sub(name_key(name));
    }

    fn numbers(&self) -> [i64; 4] {
        [self.tubes, self.tube_keys, self.schedules, self.schedule_keys].map(|number| number as i64)
    }

    fn sum(&self) -> i64 {
        self.numbers().into_iter().fold(RowChecksum::new(1), RowChecksum::number).finish()
    }

    pub fn write(&self, db: &Connection) -> rusqlite::Result<usize> {
        let [tubes, tube_keys, schedules, schedule_keys] = self.numbers();
        let sql = "INSERT OR REPLACE INTO pace_head VALUES (1,?,?,?,?,?)";
        let values = [tubes, tube_keys, schedules, schedule_keys, self.sum()];
        db.prepare_cached(sql)?.execute(values)
    }

    pub fn read(db: &Connection) -> Result<PaceHead, RowError> {
        let mut statement = db.prepare_cached("SELECT * FROM pace_head")?;
        let found = statement.query_row([], |row| Ok(PaceHead::read_row(row))).optional()?;
        found.unwrap_or(Ok(PaceHead::default()))
    }

    /// Reads the values of the row and verifies its checksum.
    pub fn read_row(row: &Row<'_>) -> Result<PaceHead, RowError> {
        let number = |column: usize| Ok::<_, rusqlite::Error>(row.get::<_, i64>(column)? as u64);
        let head = PaceHead {
            tubes: number(1)?,
            tube_keys: number(2)?,
            schedules: number(3)?,
            schedule_keys: number(4)?,
        };
        if row.get::<_, i64>(5)? != head.sum() {
            let what = "the checksum of the head row of its schedules is wrong";
            return Err(RowError::Damaged(what.into()));
        }
        Ok(head)
    }
}

fn name_key(name: &ScheduleName) -> u64 {
    mix(crc32fast::hash(name.as_str().as_bytes()).into())
}
