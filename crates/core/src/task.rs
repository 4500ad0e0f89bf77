//! A task, as replies show it.

use std::fmt;
use std::sync::Arc;

use triomphe::ThinArc;

use crate::failure::Failures;
use crate::finished::Finished;
use crate::key::Key;
use crate::lease::Lease;
use crate::reason::Reason;
use crate::semaphore::Priority;
use crate::session::SessionId;
use crate::state::State;
use crate::time::{Span, Timestamp};

/// The id of a task in its tube: from 0, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub u64);

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Payload and optional `meta` map of a task, both MessagePack and both kept byte for byte. One
/// shared allocation, cheap to clone, and a pointer of one word, because millions are in memory.
#[derive(Clone, PartialEq, Eq)]
pub struct Body(ThinArc<MetaBytes, u8>);

/// How many of the last bytes are the meta map.
type MetaBytes = u32;

/// What the allocation has before the bytes: references, the length of the meta map and of all.
const HEADER: usize = 3 * size_of::<usize>();
/// Allocations are multiples of this.
const ALLOCATED: usize = 16;

impl Body {
    /// A body with this payload and no meta.
    pub fn new(payload: &[u8]) -> Self {
        Body(ThinArc::from_header_and_slice(0, payload))
    }

    /// A body with this payload and meta; an empty meta is none.
    pub fn with_meta(payload: &[u8], meta: &[u8]) -> Self {
        if meta.is_empty() {
            return Body::new(payload);
        }
        let meta_bytes = u32::try_from(meta.len()).expect("meta is limited to far less than 4 GiB");
        Body(ThinArc::from_header_and_slice(meta_bytes, &[payload, meta].concat()))
    }

    /// The payload: one MessagePack value.
    pub fn payload(&self) -> &[u8] {
        &self.0.slice[..self.payload_end()]
    }

    /// The meta map, if there is one.
    pub fn meta(&self) -> Option<&[u8]> {
        let meta = &self.0.slice[self.payload_end()..];
        (!meta.is_empty()).then_some(meta)
    }

    /// Whether both are the same allocation.
    pub(crate) fn is_same(&self, other: &Body) -> bool {
        std::ptr::eq(self.0.slice.as_ptr(), other.0.slice.as_ptr())
    }

    /// How many bytes payload and meta have together.
    pub fn bytes(&self) -> u32 {
        u32::try_from(self.0.slice.len()).unwrap_or(u32::MAX)
    }

    /// The memory used by the body, including its bookkeeping.
    pub fn footprint(&self) -> usize {
        (HEADER + self.0.slice.len()).next_multiple_of(ALLOCATED)
    }

    fn payload_end(&self) -> usize {
        self.0.slice.len() - self.0.header.header as usize
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Body({} bytes)", self.payload().len())
    }
}

/// A task, as replies show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Its id in the tube.
    pub id: TaskId,
    /// Its state after the command.
    pub state: State,
    /// Priority: a smaller number is delivered first.
    pub pri: u64,
    /// When it was put.
    pub created: Timestamp,
    /// When it becomes ready, for a delayed task. Since when it was ready, for a taken one; shown
    /// by a take, a peek and the list of deliveries.
    pub due: Option<Timestamp>,
    /// When it expires if it is not taken.
    pub expires: Timestamp,
    /// How long a delivery may last.
    pub ttr: Span,
    /// Earlier deliveries that ended without ack or bury.
    pub attempts: u32,
    /// When the current delivery began.
    pub start: Option<Timestamp>,
    /// When it had become ready for the latest earlier delivery that was released: by its put, at
    /// the end of its delay, by an earlier release, or by a kick.
    pub previous_start: Option<Timestamp>,
    /// The sub-queue it belongs to, in tubes that have them.
    pub subqueue: Option<Arc<str>>,
    /// Its priority in the semaphore of its tube, if its put gave one. Only shown by a peek.
    pub semaphore_priority: Option<Priority>,
    /// Its unique key. Only shown by a peek. Boxed because it is rare.
    pub key: Option<Box<Key>>,
    /// After how many failed deliveries it is buried, if its put said so. Only shown by a peek.
    pub attempts_max: Option<u32>,
    /// The session that holds it, if one took it.
    pub session: Option<SessionId>,
    /// The name of the worker that holds it, if it gave one. Only shown by a peek and the list of
    /// deliveries.
    pub worker: Option<Arc<str>>,
    /// Its latest failures. Only shown by a peek.
    pub failures: Option<Failures>,
    /// How it ended, for a done task that its tube keeps. Only shown by a peek, and when such a task
    /// is deleted.
    pub finished: Option<Finished>,
    /// The number of the current delivery.
    pub lease: Option<Lease>,
    /// When the current delivery expires.
    pub lease_until: Option<Timestamp>,
    /// Why it does not run now.
    pub reason: Reason,
    /// Payload and meta. `None` while the store still has to load them from disk; no store returns
    /// such a task.
    pub body: Option<Body>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_keeps_payload_and_meta_apart() {
        let body = Body::with_meta(b"payload", b"meta");
        assert_eq!(body.payload(), b"payload");
        assert_eq!(body.meta(), Some(&b"meta"[..]));
        assert_eq!(Body::new(b"").payload(), b"");
        assert_eq!(Body::new(b"x").meta(), None);
    }
}
