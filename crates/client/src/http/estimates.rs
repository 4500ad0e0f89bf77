//! Calls whose answers say when waiting tasks will start.

use taskyard_core::{NewTask, Span, TubeName};
use taskyard_wire::http::{PutAnswer, TubeAnswer};

use super::{Http, is_invalid};
use crate::error::HttpError;

impl Http {
    /// Adds tasks, at most 100, and shows when they will start: in the answer each task that waits has `queue`, with the
    /// number of tasks ahead and an estimate or the reason why there is none.
    ///
    /// A page of tasks has the same if [`estimate`](taskyard_wire::http::TasksQuery::estimate) is set in the query of
    /// [`Http::tasks`]. [`Client::positions`](crate::Client::positions) shows the positions of any tasks, over all
    /// transports.
    pub async fn put_estimated(
        &self,
        tube: &TubeName,
        tasks: &[NewTask],
        wait: Span,
    ) -> Result<PutAnswer, HttpError> {
        self.put(tube, tasks, wait, true).await
    }

    /// The same as [`Http::tubes`], with when all ready tasks of each tube will have started, and how many estimates held.
    /// A server of a version without estimates shows the tubes alone.
    pub async fn tubes_estimated(
        &self,
        tube: Option<&TubeName>,
    ) -> Result<Vec<TubeAnswer>, HttpError> {
        match self.tubes_of(tube, true).await {
            Err(error) if is_invalid(&error) => self.tubes_of(tube, false).await,
            tubes => tubes,
        }
    }
}
