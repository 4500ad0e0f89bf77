//! Tasks as the client returns them, and new tasks with typed data.

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use taskyard_core::{Body, FinishItem, Finished, Holder, NewTask, TaskId, TubeName};

use crate::error::Result;

/// A task that was taken or shown, and its tube.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// The tube of the task.
    pub tube: TubeName,
    /// All fields that the queue reports.
    pub task: taskyard_core::Task,
}

impl Task {
    /// The id of the task in its tube.
    pub fn id(&self) -> TaskId {
        self.task.id
    }

    /// The number of earlier deliveries that ended without ack or bury.
    pub fn attempts(&self) -> u32 {
        self.task.attempts
    }

    /// The data of the task, decoded as a `T`.
    pub fn data<T: DeserializeOwned>(&self) -> Result<T> {
        Ok(rmp_serde::from_slice(self.payload())?)
    }

    /// The metadata map of the task, decoded as a `T`; `None` when it has none.
    pub fn meta<T: DeserializeOwned>(&self) -> Result<Option<T>> {
        let meta = self.task.body.as_ref().and_then(Body::meta);
        Ok(meta.map(rmp_serde::from_slice).transpose()?)
    }

    /// The result of a done task that its tube keeps, decoded as a `T`; `None` when it has none.
    pub fn result<T: DeserializeOwned>(&self) -> Result<Option<T>> {
        let result = self.task.finished.as_ref().and_then(Finished::result);
        Ok(result.map(rmp_serde::from_slice).transpose()?)
    }

    /// The bytes of a task that was put by [`Client::put_bytes`]; `None` for any other value.
    ///
    /// [`Client::put_bytes`]: crate::Client::put_bytes
    pub fn bytes(&self) -> Option<&[u8]> {
        let (header, size) = match *self.payload() {
            [0xc4, a, ..] => (2, usize::from(a)),
            [0xc5, a, b, ..] => (3, usize::from(u16::from_be_bytes([a, b]))),
            [0xc6, a, b, c, d, ..] => (5, u32::from_be_bytes([a, b, c, d]) as usize),
            _ => return None,
        };
        self.payload().get(header..).filter(|rest| rest.len() == size)
    }

    /// The payload as it is stored: one MessagePack value.
    pub fn payload(&self) -> &[u8] {
        self.task.body.as_ref().map_or(&[], Body::payload)
    }

    /// The item that finishes this delivery.
    pub(crate) fn item(&self, finish: taskyard_core::Finish) -> FinishItem {
        let holder = self.task.lease.map_or(Holder::Any, Holder::Lease);
        FinishItem { id: self.task.id, holder, finish }
    }
}

/// A task to put, with this data and the defaults of the tube. Its fields set further options:
///
/// ```
/// # fn main() -> Result<(), taskyard::Error> {
/// use taskyard::{HeldKey, Key, KeyRequest, NewTask, OnConflict, Span, new_task};
///
/// let urgent = NewTask { pri: Some(0), ..new_task(&"fire")? };
/// let later = NewTask { delay: Some(Span::from_secs(60)), ..new_task(&("remind", 7))? };
/// let held = HeldKey { key: Key::new("report:7")?, unique_for: Span::from_secs(3600) };
/// let key = Some(Box::new(KeyRequest { held, on_conflict: OnConflict::Replace }));
/// let once = NewTask { key, ..new_task(&("report", 7))? };
/// # drop((urgent, later, once));
/// # Ok(())
/// # }
/// ```
pub fn new_task<T: Serialize + ?Sized>(data: &T) -> Result<NewTask> {
    // Field names are kept, so that the data reads well as JSON too.
    Ok(NewTask::new(Body::new(&rmp_serde::to_vec_named(data)?)))
}

/// A task to put, with these bytes.
pub fn bytes_task(bytes: &[u8]) -> Result<NewTask> {
    let data = rmp_serde::to_vec(&Bytes(bytes))?;
    Ok(NewTask::new(Body::new(&data)))
}

/// Serialized as binary data, not as a list of numbers.
struct Bytes<'a>(&'a [u8]);

impl Serialize for Bytes<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

/// Sets the sub-queue of a new task.
pub(crate) fn in_subqueue(task: NewTask, subqueue: &str) -> NewTask {
    NewTask { subqueue: Some(Arc::from(subqueue)), ..task }
}
