//! Encodes the payloads of typed tasks: one MessagePack list with a value for each field of the
//! contract, by position.
//!
//! Equal tasks give equal bytes. A list that is too short has zero values for the missing fields,
//! since its producer is older; additional values are skipped, since their producer is newer.

mod read;
mod write;

pub use read::{FieldError, FieldReader};
pub use write::FieldWriter;
