//! Adds estimates to positions: what the store knows of the queue, and what the engine has learned of its consumers.

use std::collections::BTreeMap;

use taskyard_core::command::TubeInfo;
use taskyard_core::estimate::{Calibrated, GateNow, QueueNow};
use taskyard_core::{
    Command, Forecast, NoEstimate, Position, Reply, Result, SemaphoreCommand, SemaphoreKey,
    SemaphoreReply, TaskId, TubeName,
};
use tokio::sync::oneshot;

use crate::engine::Engine;
use crate::event_loop::EventLoop;
use crate::reply::unanswered;
use crate::request::Query;
use crate::waiters::Side;

/// The most idle consumers that count in one tube.
const IDLE_MAX: u64 = 100_000;

/// A request for estimates.
#[derive(Debug)]
pub(crate) struct ForecastRequest {
    pub tube: TubeName,
    pub positions: Vec<Position>,
    pub queue: QueueNow,
}

impl Engine {
    /// Runs commands that ask for positions, and adds the estimates. The state of each tube is read in the
    /// same batch.
    pub(crate) async fn run_with_estimates(
        &self,
        mut commands: Vec<Command>,
        bytes: usize,
    ) -> Vec<Result<Reply>> {
        let count = commands.len();
        let asked = commands.iter().map(|command| match command {
            Command::Positions { tube, .. } => Some(tube.clone()),
            _ => None,
        });
        let asked: Vec<Option<TubeName>> = asked.collect();
        let shown = asked.iter().flatten().map(|tube| Command::Tubes { tube: Some(tube.clone()) });
        commands.extend(shown.collect::<Vec<_>>());
        let mut replies = self.run(commands, bytes).await;
        let mut infos = replies.split_off(count.min(replies.len())).into_iter();
        for (tube, reply) in asked.into_iter().zip(&mut replies) {
            let Some(tube) = tube else { continue };
            let info = match infos.next() {
                Some(Ok(Reply::Tubes(infos))) => infos.into_iter().next(),
                _ => None,
            };
            if let (Ok(Reply::Positions(positions)), Some(info)) = (reply, info) {
                self.add_estimates(tube, &info, positions).await;
            }
        }
        replies
    }

    /// Where those of these tasks are in the queue that wait, without estimates.
    pub async fn positions(&self, tube: TubeName, ids: Vec<TaskId>) -> Result<Vec<Position>> {
        match self.run(vec![Command::Positions { tube, ids }], 0).await.pop() {
            Some(Ok(Reply::Positions(positions))) => Ok(positions),
            Some(Err(error)) => Err(error),
            _ => Err(unanswered()),
        }
    }

    async fn add_estimates(&self, tube: TubeName, info: &TubeInfo, positions: &mut [Position]) {
        let queue = QueueNow { gate: self.gate(info).await, ..QueueNow::of(info) };
        let request = ForecastRequest { tube, positions: positions.to_vec(), queue };
        let (reply, receiver) = oneshot::channel();
        self.inner.inbox.query(Query::Forecast(request, reply));
        let forecasts = receiver.await.unwrap_or_default();
        for (position, forecast) in positions.iter_mut().zip(forecasts) {
            position.estimate = Some(forecast);
        }
    }

    /// The state of the semaphore of a tube.
    async fn gate(&self, info: &TubeInfo) -> Option<GateNow> {
        let key: SemaphoreKey = info.options.semaphore.clone()?;
        let list = Command::Semaphore(SemaphoreCommand::List { key: Some(key) });
        let Some(Ok(Reply::Semaphore(SemaphoreReply::Semaphores(found)))) =
            self.run(vec![list], 0).await.pop()
        else {
            return None;
        };
        let semaphore = found.first()?;
        let held = semaphore.acquired + semaphore.revoking;
        Some(GateNow { active: u64::from(semaphore.options.active), held })
    }

    /// When all ready tasks of these tubes will have started, in their order.
    pub async fn drains(&self, tubes: &[TubeInfo]) -> Vec<Forecast> {
        let queues = tubes.iter().map(|info| (info.name.clone(), QueueNow::of(info))).collect();
        let (reply, receiver) = oneshot::channel();
        self.inner.inbox.query(Query::Drains(queues, reply));
        receiver.await.unwrap_or_default()
    }

    /// How many estimates held, for each tube where estimates were asked for on this server.
    pub async fn calibrated(&self) -> BTreeMap<TubeName, Calibrated> {
        let (reply, receiver) = oneshot::channel();
        self.inner.inbox.query(Query::Calibrated(reply));
        receiver.await.unwrap_or_default()
    }
}

impl EventLoop {
    pub(crate) fn forecast(&mut self, request: &ForecastRequest) -> Vec<Forecast> {
        let ForecastRequest { tube, positions, queue } = request;
        let queue = QueueNow { idle: self.idle_consumers(tube), ..*queue };
        let moment = self.timeline.moment(self.now);
        match &mut self.series {
            Some(series) => series.forecast(moment, tube, positions, &queue),
            None => vec![Err(NoEstimate::NoHistory); positions.len()],
        }
    }

    pub(crate) fn forecast_drains(&mut self, tubes: &[(TubeName, QueueNow)]) -> Vec<Forecast> {
        let moment = self.timeline.moment(self.now);
        let drain = |(tube, queue): &(TubeName, QueueNow)| {
            let queue = QueueNow { idle: self.idle_consumers(tube), ..*queue };
            let series = self.series.as_mut().ok_or(NoEstimate::NoHistory)?;
            series.forecast_drain(moment, tube, &queue)
        };
        tubes.iter().map(drain).collect()
    }

    /// How many tasks the waiting takes of a tube would get.
    fn idle_consumers(&self, tube: &TubeName) -> u64 {
        let waiting = self.waiters.queue(Side::Take, tube);
        let takes = waiting.map(|(_, waiter)| match &waiter.command {
            Command::Take(take) => take.count as u64,
            _ => 0,
        });
        takes.sum::<u64>().min(IDLE_MAX)
    }
}
