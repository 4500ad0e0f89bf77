//! The numbers with which the functions of the database say what happened.

/// The status of a function about tubes and sessions.
pub(super) mod tube_status {
    pub const DONE: i16 = 0;
    pub const NO_TUBE: i16 = 1;
    pub const SESSION_UNKNOWN: i16 = 2;
    pub const TUBE_EXISTS: i16 = 3;
    pub const TOO_MANY_TUBES: i16 = 4;
    pub const TUBE_HAS_TAKEN: i16 = 5;
    /// Another tube has the number of the queue.
    pub const QUEUE_NUM_TAKEN: i16 = 6;
    /// The tube has another number already.
    pub const OTHER_QUEUE_NUM: i16 = 7;
    pub const NO_SEMAPHORE: i16 = 8;
}

/// The status of a put, beside those of all functions about tubes.
pub(super) mod put {
    /// An open transaction holds what the put must lock.
    pub const LOCKED: i16 = 8;
    /// Tasks have priorities for a semaphore, and the tube has none.
    pub const UNGATED: i16 = 9;
    /// The columns of an answer about tasks without keys; that about others has more.
    pub const COLUMNS: usize = 8;
}

/// The status of a schedule that was to be set.
pub(super) mod schedule {
    pub const DONE: i16 = 0;
    pub const EXISTS: i16 = 2;
    pub const TOO_MANY: i16 = 3;
    /// The caller refuses it.
    pub const REFUSED: i16 = 4;
}

/// The outcome of a fire, beside that of its put.
pub(super) mod fire {
    pub const NOT_FOUND: i16 = 1;
    /// Another time is next, or the schedule is paused.
    pub const NOT_NEXT: i16 = 2;
    /// The caller refuses its tasks.
    pub const REFUSED: i16 = 3;
}

/// What a row of a take is, beside a refusal.
pub(super) mod take {
    pub const DELIVERY: i16 = 0;
    /// There is more than was asked for or fits into one answer.
    pub const MORE: i16 = 3;
    /// The whole tube was searched.
    pub const SWEPT: i16 = 4;
    /// The rate limit allows no more, although tasks are ready.
    pub const LIMITED: i16 = 5;
}

/// What item 0 of an answer about tasks says of the whole, beside the status of all functions about tubes.
pub(super) mod head {
    /// The tasks have more bytes than an answer may show.
    pub const TOO_LARGE: i16 = 6;
    /// The kind of the tube has no touch.
    pub const NO_TOUCH: i16 = 7;
}

/// What became of one item of a command.
pub(super) mod outcome {
    pub const DONE: i16 = 0;
    pub const STALE: i16 = 1;
    /// Of a grant: its holder was not asked to release.
    pub const NOT_ASKED: i16 = 3;
}

/// What is to be counted for an item that ended or prolonged a delivery.
pub(super) mod finished {
    pub const ACKED: i16 = 1;
    pub const RELEASED: i16 = 2;
    /// Released, which used up the attempts.
    pub const USED_UP: i16 = 3;
    pub const BURIED: i16 = 4;
    pub const TOUCHED: i16 = 5;
}

/// What happened to tasks of a tube without a command for them.
pub(super) mod event {
    /// Closes the answer.
    pub const END: i32 = 0;
    pub const DELAY_ENDED: i32 = 1;
    pub const LEASE_ENDED: i32 = 2;
    pub const ATTEMPTS_USED_UP: i32 = 3;
    pub const EXPIRED: i32 = 4;
    pub const RELEASED: i32 = 5;
    /// The clock of the database; with the numbers below, when the next schedule is due, or how many keys were freed before their
    /// time.
    pub const CLOCK: i32 = 6;
    pub const NEXT_SCHEDULE: i32 = -1;
    pub const KEYS_FREED_EARLY: i32 = -2;
    /// How much room a tube with a capacity has.
    pub const ROOM: i32 = 7;
    /// There are new events of semaphores.
    pub const SEMAPHORE_EVENTS: i32 = 8;
}

/// The code of a function about semaphores.
pub(super) mod semaphore {
    pub const DONE: i16 = 0;
    pub const NOT_FOUND: i16 = 1;
    /// Of a configuration: there are too many semaphores.
    pub const TOO_MANY: i16 = 2;
    /// Of a configuration: the tail is longer than the capacity.
    pub const TAIL_TOO_LONG: i16 = 3;
    /// Of a drop: tasks hold its grants or wait for them.
    pub const IN_USE: i16 = 2;
}

/// The state of a task in its table.
pub(super) mod state {
    pub const READY: i16 = 0;
    pub const TAKEN: i16 = 1;
    pub const DELAYED: i16 = 2;
    pub const BURIED: i16 = 3;
    /// Buried because its attempts are used up.
    pub const USED_UP: i16 = 4;
    /// Ready but expired, and passed over by a take.
    pub const PASSED: i16 = 5;
    /// Waits for the semaphore before its tube; shown as delayed.
    pub const GATED: i16 = 6;
    /// Done, and kept in a table of its own.
    pub const DONE: i16 = 7;
}
