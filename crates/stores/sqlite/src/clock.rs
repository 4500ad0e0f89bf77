//! Reads and writes the row that stores how far wall time is ahead of the times in the database.

use rusqlite::{Connection, OptionalExtension, Row};

use super::codec::{RowChecksum, RowError};

/// Number of columns of the row.
pub(super) const COLUMNS: usize = 3;

/// Reads the row; 0 if there is none.
pub(super) fn read(db: &Connection) -> Result<i64, RowError> {
    let row = db.query_row("SELECT * FROM clock", [], |row| Ok(read_row(row))).optional()?;
    row.unwrap_or(Ok(0))
}

/// Reads the values of a row and verifies its checksum.
pub(super) fn read_row(row: &Row<'_>) -> Result<i64, RowError> {
    let (wall_ahead, found): (i64, i64) = (row.get(1)?, row.get(2)?);
    if found != sum(wall_ahead) {
        return Err(RowError::Damaged("the checksum of its clock row is wrong".into()));
    }
    Ok(wall_ahead)
}

pub(super) fn write(db: &Connection, wall_ahead: i64) -> rusqlite::Result<usize> {
    let sql = "INSERT OR REPLACE INTO clock VALUES (1,?,?)";
    db.prepare_cached(sql)?.execute([wall_ahead, sum(wall_ahead)])
}

fn sum(wall_ahead: i64) -> i64 {
    RowChecksum::new(1).number(wall_ahead).finish()
}
