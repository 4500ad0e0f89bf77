//! What a tube has and what was done to it.

/// How many tasks stand where. `done` counts since the store was opened, the rest is now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// May be taken (or would be, but for a pause or a busy sub-queue).
    pub ready: u64,
    /// Delivered.
    pub taken: u64,
    /// Put aside.
    pub buried: u64,
    /// Wait for their time.
    pub delayed: u64,
    /// Finished since the store was opened.
    pub done: u64,
}

impl Counts {
    /// Every task the tube holds now.
    pub const fn total(&self) -> u64 {
        self.ready + self.taken + self.buried + self.delayed
    }
}

/// How often each thing took effect since the store was opened. What changed nothing (an empty
/// take, a kick of nothing, a second bury) is not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// Tasks finished by their holder.
    pub ack: u64,
    /// Tasks put aside.
    pub bury: u64,
    /// Tasks removed, by somebody or by their ttl.
    pub delete: u64,
    /// Tasks brought back from the buried.
    pub kick: u64,
    /// Tasks put.
    pub put: u64,
    /// Tasks given back, also by the end of a session or by `release_all`.
    pub release: u64,
    /// Deliveries.
    pub take: u64,
    /// Deliveries prolonged.
    pub touch: u64,
    /// Tasks that died of their ttl.
    pub ttl: u64,
    /// Deliveries that ran out.
    pub ttr: u64,
    /// Delays that ended.
    pub delay: u64,
}

impl Calls {
    /// Each with its name on every face.
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

/// Both together, for one tube.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TubeStats {
    /// Tasks by state.
    pub tasks: Counts,
    /// What was done.
    pub calls: Calls,
}
