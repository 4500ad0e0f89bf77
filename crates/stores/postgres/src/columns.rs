//! The columns of the rows that functions return, by place and name.
//!
//! Rows are read by place, because a search for the name of a column in each row costs more than decoding it. Tests compare the name
//! with that of the row at each read, so a place that does not belong to its name cannot stay unnoticed.

use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

use super::codec::{DecodeError, get};

/// A column of a type of rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    place: usize,
    name: &'static str,
}

impl Column {
    const fn new(place: usize, name: &'static str) -> Self {
        Column { place, name }
    }

    /// The value of this column in a row.
    pub fn get<'a, T: FromSql<'a>>(self, row: &'a Row) -> Result<T, DecodeError> {
        self.get_after(row, 0)
    }

    /// The same, where the columns of the type come after `before` others.
    pub fn get_after<'a, T: FromSql<'a>>(
        self,
        row: &'a Row,
        before: usize,
    ) -> Result<T, DecodeError> {
        let place = before + self.place;
        debug_assert!(
            row.columns().get(place).is_none_or(|column| column.name() == self.name),
            "column {place} is not {self:?} but {:?}",
            row.columns()[place].name()
        );
        get(row, place)
    }

    /// The value, or none where rows of this function end before the column.
    pub fn get_if_there<'a, T: FromSql<'a>>(self, row: &'a Row) -> Result<Option<T>, DecodeError> {
        if row.len() > self.place { self.get(row) } else { Ok(None) }
    }
}

/// Numbers the columns of a type of rows, in their order.
macro_rules! columns {
    ($(#[$attribute:meta])* $module:ident: $($constant:ident = $name:literal),* $(,)?) => {
        $(#[$attribute])*
        pub(super) mod $module {
            use super::Column;

            #[expect(
                non_camel_case_types,
                clippy::upper_case_acronyms,
                reason = "their names are those of the constants"
            )]
            enum Place { $($constant),* }
            $(pub const $constant: Column = Column::new(Place::$constant as usize, $name);)*
        }
    };
}

columns! {
    /// A delivered task: a row of `deliver_with_rate`.
    #[expect(dead_code, reason = "every column has its place")]
    delivered:
    STATUS = "status", NUMBER = "number", ID = "id", PRI = "pri", CREATED = "created", EXPIRES = "expires", TTR = "ttr",
    ATTEMPTS = "attempts", PREVIOUS_START = "previous_start", SUBQUEUE = "subqueue", START = "start", LEASE = "lease",
    TIMER = "timer", META = "meta", PAYLOAD = "payload", LOCATION = "place", SINCE = "since", WORKER = "worker",
}

columns! {
    /// A task in an answer: a row of the type `shown`, or of `outcome`, which ends after the payload.
    #[expect(dead_code, reason = "every column has its place")]
    shown:
    ITEM = "item", OUTCOME = "outcome", EVENT = "event", ID = "id", STATE = "state", PRI = "pri", CREATED = "created",
    EXPIRES = "expires", TTR = "ttr", TIMER = "timer", ATTEMPTS = "attempts", PREVIOUS_START = "previous_start", LEASE = "lease",
    START = "start", SESSION = "session", SUBQUEUE = "subqueue", REASON = "reason", META = "meta", PAYLOAD = "payload",
    SEMAPHORE_PRIORITY = "semaphore_priority", SINCE = "since", WORKER = "worker", FAILURES = "failures", FINISHED = "finished",
    KEY = "key", ATTEMPTS_MAX = "attempts_max",
}

columns! {
    /// The position of a task: a row of `show_positions`.
    #[expect(dead_code, reason = "every column has its place")]
    position:
    ITEM = "item", STATUS = "status", ID = "id", PRI = "pri", DUE = "due", AHEAD = "ahead", IS_EXACT = "is_exact",
    SUBQUEUE_AHEAD = "subqueue_ahead", IS_BUSY = "is_busy", GATE_AHEAD = "gate_ahead", DELAYED_PRIS = "delayed_pris",
    DELAYED_IDS = "delayed_ids", DELAYED_DUES = "delayed_dues", IS_DELAYED = "is_delayed",
}

columns! {
    /// A tube with its counts: a row of the type `tube_info`.
    tube:
    NUMBER = "number", NAME = "name", KIND = "kind", TEMPORARY = "temporary", CAPACITY = "capacity", TTL = "ttl", TTR = "ttr",
    DELAY = "delay", PRI = "pri", ATTEMPTS_MAX = "attempts_max", TTL_KILLS_TAKEN = "ttl_kills_taken", PAUSED = "paused",
    READY = "ready", TAKEN = "taken", BURIED = "buried", DELAYED = "delayed", TAKEABLE = "takeable", NEXT_WAKEUP = "next_wakeup",
    SEMAPHORE = "semaphore", QUEUE_NUM = "queue_num", OLDEST_READY = "oldest_ready", KEEP_DONE = "keep_done",
    KEEP_DONE_MAX = "keep_done_max", KEPT = "kept", RETRY_DELAY = "retry_delay", RETRY_FACTOR = "retry_factor",
    RETRY_DELAY_MAX = "retry_delay_max", RETRY_JITTER = "retry_jitter", RETRY_LOST = "retry_lost", RATE_COUNT = "rate_count",
    RATE_PER = "rate_per", RATE_BURST = "rate_burst",
}
