//! Encodes and decodes positions of tasks.

use taskyard_core::{Basis, Estimate, Forecast, NoEstimate, Position, SubqueuePosition, TaskId};

use super::row::{RowError, RowReader, RowResult, RowWriter, write_time};
use crate::pack::{self, Out};

pub(super) fn write(out: &mut Out, position: &Position) {
    RowWriter::begin(out)
        .uint(position.id.0)
        .uint(position.pri)
        .uint(position.ahead)
        .bool(position.is_exact)
        .optional(position.due, write_time)
        .list(&position.delayed_ahead, |out, count| pack::uint(out, *count))
        .optional(position.subqueue, write_subqueue)
        .optional(position.gate_ahead, pack::uint)
        .optional(position.estimate, write_forecast)
        .end();
}

pub(super) fn read(row: &mut RowReader<'_, '_>) -> RowResult<Position> {
    Ok(Position {
        id: TaskId(row.uint()?),
        pri: row.uint()?,
        ahead: row.uint()?,
        is_exact: row.bool()?,
        due: row.optional_time()?,
        delayed_ahead: row.values(|row| row.uint())?,
        subqueue: row.optional_row(read_subqueue)?,
        gate_ahead: row.optional_uint()?,
        estimate: row.optional_row(read_forecast)?,
    })
}

fn write_subqueue(out: &mut Out, subqueue: SubqueuePosition) {
    RowWriter::begin(out).uint(subqueue.ahead).bool(subqueue.is_busy).end();
}

fn read_subqueue(row: &mut RowReader<'_, '_>) -> RowResult<SubqueuePosition> {
    Ok(SubqueuePosition { ahead: row.uint()?, is_busy: row.bool()? })
}

/// An estimate, or only the name of the reason.
fn write_forecast(out: &mut Out, forecast: Forecast) {
    let mut row = RowWriter::begin(out);
    match forecast {
        Ok(estimate) => row
            .text(estimate.basis.name())
            .uint(estimate.ahead)
            .span(estimate.p50)
            .span(estimate.p90),
        Err(reason) => row.text(reason.name()),
    };
    row.end();
}

fn read_forecast(row: &mut RowReader<'_, '_>) -> RowResult<Forecast> {
    let name = row.text()?;
    if let Some(reason) = NoEstimate::from_name(name) {
        return Ok(Err(reason));
    }
    let basis = Basis::from_name(name);
    Ok(Ok(Estimate {
        basis: basis.ok_or(RowError("an estimate that this version does not know"))?,
        ahead: row.uint()?,
        p50: row.span()?,
        p90: row.span()?,
    }))
}
