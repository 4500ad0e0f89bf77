//! Counters of a tube.

/// The number of tasks by state. `done` counts since the store was opened, the others are current.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Can be taken (or could, without a pause or a busy sub-queue).
    pub ready: u64,
    /// Delivered.
    pub taken: u64,
    /// Buried.
    pub buried: u64,
    /// Delayed.
    pub delayed: u64,
    /// Finished since the store was opened.
    pub done: u64,
    /// Done tasks that the tube keeps, also those that the next tick removes.
    pub kept: u64,
}

impl Counts {
    /// The number of tasks in the tube now, without done tasks.
    pub const fn total(&self) -> u64 {
        self.ready + self.taken + self.buried + self.delayed
    }
}

/// The number of calls that took effect since the store was opened. Calls that change nothing (an
/// empty take, a kick of nothing, a second bury) are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// Tasks finished by their holder.
    pub ack: u64,
    /// Tasks buried.
    pub bury: u64,
    /// Tasks removed, by a command or by their ttl.
    pub delete: u64,
    /// Tasks kicked.
    pub kick: u64,
    /// Tasks put.
    pub put: u64,
    /// Tasks released, also by the end of a session or by `release_all`.
    pub release: u64,
    /// Deliveries.
    pub take: u64,
    /// Deliveries extended.
    pub touch: u64,
    /// Tasks removed by their ttl.
    pub ttl: u64,
    /// Deliveries that expired.
    pub ttr: u64,
    /// Delays that ended.
    pub delay: u64,
}

impl Calls {
    /// Each counter with its name in all interfaces.
    pub const fn named(&self) -> [(&'static str, u64); 11] {
        [
            ("ack", self.ack),
            ("bury", self.bury),
            ("delete", self.delete),
            ("kick", self.kick),
            ("put", self.put),
            ("release", self.release),
            ("take", self.take),
            ("touch", self.touch),
            ("ttl", self.ttl),
            ("ttr", self.ttr),
            ("delay", self.delay),
        ]
    }
}

/// Both, for one tube.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TubeStats {
    /// Tasks by state.
    pub tasks: Counts,
    /// Calls.
    pub calls: Calls,
}
