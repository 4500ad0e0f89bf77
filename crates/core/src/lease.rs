//! The fencing token of a delivery.

use std::fmt;

/// The number of one delivery of one task. A store never issues it twice, so it proves that the
/// caller holds that delivery and no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lease(pub u64);

impl fmt::Display for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
