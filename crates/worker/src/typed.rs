//! Typed tasks: the traits that generated code implements for a queue.

use taskyard_core::limits::TASK_ID_MAX;
use taskyard_core::{Execute, Placed, Result, TaskId, Timestamp};
use taskyard_iproto::fields::FieldError;

use crate::store::unexpected;
use crate::typed_put::{PutOptions, put_alike, put_all};

/// A queue of a contract: the tube with its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Its permanent number in the contract.
    pub num: u32,
    /// The name of its tube.
    pub name: &'static str,
    /// Earlier names: a tube with such a name is renamed.
    pub was: &'static [&'static str],
}

/// What the queue knows about a taken task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivery {
    /// The number of the task, unique in the store.
    pub task_id: u64,
    /// How often the task was returned to the queue before.
    pub attempts: u32,
    /// When the task became ready for the previous attempt.
    pub prev_start_time: Option<Timestamp>,
    /// When the task became ready for this attempt, if the queue reports it.
    pub due: Option<Timestamp>,
}

impl Delivery {
    /// The id of the task in its tube, which all other interfaces use.
    pub fn id(&self) -> TaskId {
        TaskId(self.task_id & TASK_ID_MAX)
    }
}

/// A task of one queue of a contract. Generated code implements this trait.
pub trait TypedTask: Send + Sized + 'static {
    /// The queue of such tasks.
    const QUEUE: Queue;

    /// Encodes the payload: one MessagePack list.
    fn encode(&self) -> Vec<u8>;

    /// Decodes a payload.
    fn decode(delivery: Delivery, payload: &[u8]) -> Result<Self, FieldError>;

    /// Puts the task into its queue; returns its id in the tube.
    fn put<E: Execute>(
        &self,
        queue: &E,
        options: PutOptions,
    ) -> impl Future<Output = Result<TaskId>> + Send
    where
        Self: Sync,
    {
        async move {
            let placed = put_all(queue, vec![(self, &options)]).await?;
            Ok(placed.first().ok_or_else(|| unexpected("put"))?.id)
        }
    }

    /// Puts tasks with the same options into their queue, all or none, in one request; returns their ids in the tube, in
    /// order. A key is refused, since only one task can have it.
    fn put_many<E: Execute>(
        queue: &E,
        tasks: &[Self],
        options: PutOptions,
    ) -> impl Future<Output = Result<Vec<TaskId>>> + Send
    where
        Self: Sync,
    {
        async move {
            let placed = put_alike(queue, tasks, options).await?;
            Ok(placed.iter().map(|placed| placed.id).collect())
        }
    }

    /// Puts tasks into their queue, each with its own options, all or none, in one request; returns the id and the state of
    /// each, in order, and whether it is that of an earlier task with the same key.
    fn put_each<E: Execute>(
        queue: &E,
        tasks: &[(Self, PutOptions)],
    ) -> impl Future<Output = Result<Vec<Placed>>> + Send
    where
        Self: Sync,
    {
        put_all(queue, tasks.iter().map(|(task, options)| (task, options)).collect())
    }
}
