//! The fencing token of a delivery.

use std::fmt;

/// The number of one delivery of one task. It is never issued twice by a store, so whoever
/// shows it proves to hold that delivery and no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lease(pub u64);

impl fmt::Display for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
