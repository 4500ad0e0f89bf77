//! Payloads of typed tasks: one MessagePack list, a value for each field of the contract, by position.
//!
//! Equal tasks give equal bytes. A list that is shorter than expected has zero values for what is
//! missing, since its producer is older; what is longer is passed over, since its producer is newer.

mod read;
mod write;

pub use read::{FieldError, FieldReader};
pub use write::FieldWriter;
