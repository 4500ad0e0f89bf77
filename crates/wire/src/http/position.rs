//! Positions of waiting tasks, and when they will start.

use serde::{Deserialize, Deserializer, Serialize};
use taskyard_core::estimate::Calibrated;
use taskyard_core::{
    Basis, Command, Error, Estimate, Forecast, NoEstimate, Position, Result, SubqueuePosition,
    TaskId, TubeName,
};

use super::seconds::{moment_of, optional_moment, seconds_of, span};
use super::{is_false, whole};

/// Tasks whose positions are asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PositionsRequest {
    /// Their numbers in the tube, at most 100. Tasks that do not wait are left out of the answer.
    #[serde(deserialize_with = "whole::list")]
    pub ids: Vec<u64>,
}

/// Where tasks are in the queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PositionsAnswer {
    /// The tasks that wait, in the order of the request.
    pub tasks: Vec<PositionAnswer>,
}

/// Where a task is in the queue, and when it will start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PositionAnswer {
    /// Its number in the tube.
    pub id: u64,
    /// Its priority: smaller goes first.
    pub pri: u64,
    /// Ready tasks that go first.
    pub ahead: u64,
    /// Whether the numbers are estimates themselves, within 5 %: databases do not count many tasks one by one.
    #[serde(default, skip_serializing_if = "is_false")]
    pub approximate: bool,
    /// When it will be ready, if it is delayed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<f64>,
    /// Delayed tasks that go first and will be ready within 1, 2, 4, … seconds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub delayed_ahead: Vec<u64>,
    /// Ready tasks of its sub-queue that go first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subqueue_ahead: Option<u64>,
    /// Whether a task of its sub-queue runs.
    #[serde(default, skip_serializing_if = "is_false")]
    pub subqueue_busy: bool,
    /// Waiting members of the semaphore of the tube that get a grant first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub semaphore_ahead: Option<u64>,
    /// When it will start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate: Option<EstimateAnswer>,
    /// Why there is no estimate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_estimate: Option<NoEstimateAnswer>,
}

/// Where a waiting task is in the queue, and when it will start: the fields that an answer adds to those of a task if its
/// request asks for estimates. A task that does not wait has none of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct QueueAnswer {
    /// Ready tasks that go first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ahead: Option<u64>,
    /// Whether the position is an estimate itself, within 5 %: databases do not count many tasks one by one.
    #[serde(default, skip_serializing_if = "is_false")]
    pub approximate: bool,
    /// When it will start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate: Option<EstimateAnswer>,
    /// Why there is no estimate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_estimate: Option<NoEstimateAnswer>,
}

/// How many estimates of a tube held, of those that this server gave and whose tasks started on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CalibrationAnswer {
    /// Tasks that had an estimate and started.
    pub checked: u64,
    /// Those that started within p50.
    pub within_p50: u64,
    /// Those that started within p90; the ones within p50 count as well.
    pub within_p90: u64,
}

/// When a task will start, in seconds from now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EstimateAnswer {
    /// Tasks that go first: ready ones and those that run.
    pub ahead: u64,
    /// Half of such tasks start within this time.
    pub p50: f64,
    /// Nine of ten such tasks start within this time.
    pub p90: f64,
    /// What decides it: `idle_consumer`, `run_times`, `subqueue`, `rate_limit`, `semaphore` or `delay`.
    pub basis: String,
}

/// Why there is no estimate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NoEstimateAnswer {
    /// The reason, for programs: `no_consumer`, `tube_paused` or `no_history`.
    pub name: String,
    /// The reason, for people.
    pub text: String,
}

impl PositionsRequest {
    /// The request for these tasks, on the client's side.
    pub fn new(ids: &[TaskId]) -> Self {
        PositionsRequest { ids: ids.iter().map(|id| id.0).collect() }
    }

    /// The command, on the server's side.
    pub fn into_command(self, tube: TubeName) -> Command {
        Command::Positions { tube, ids: self.ids.into_iter().map(TaskId).collect() }
    }
}

impl PositionsAnswer {
    /// The answer for these positions, on the server's side.
    pub fn new(positions: &[Position]) -> Self {
        PositionsAnswer { tasks: positions.iter().map(PositionAnswer::new).collect() }
    }

    /// The positions, on the client's side.
    pub fn into_positions(self) -> Result<Vec<Position>> {
        self.tasks.into_iter().map(PositionAnswer::into_position).collect()
    }
}

impl PositionAnswer {
    /// The position of one task.
    pub fn new(position: &Position) -> Self {
        PositionAnswer {
            id: position.id.0,
            pri: position.pri,
            ahead: position.ahead,
            approximate: !position.is_exact,
            due: position.due.and_then(moment_of),
            delayed_ahead: position.delayed_ahead.clone(),
            subqueue_ahead: position.subqueue.map(|own| own.ahead),
            subqueue_busy: position.subqueue.is_some_and(|own| own.is_busy),
            semaphore_ahead: position.gate_ahead,
            estimate: position.estimate.and_then(Result::ok).map(EstimateAnswer::new),
            no_estimate: position.estimate.and_then(Result::err).map(NoEstimateAnswer::new),
        }
    }

    fn into_position(self) -> Result<Position> {
        let estimate = self.estimate.map(EstimateAnswer::into_estimate).transpose()?;
        let reason = self.no_estimate.map(NoEstimateAnswer::into_reason).transpose()?;
        let is_busy = self.subqueue_busy;
        Ok(Position {
            id: TaskId(self.id),
            pri: self.pri,
            due: optional_moment("due", self.due)?,
            ahead: self.ahead,
            delayed_ahead: self.delayed_ahead,
            subqueue: self.subqueue_ahead.map(|ahead| SubqueuePosition { ahead, is_busy }),
            gate_ahead: self.semaphore_ahead,
            is_exact: !self.approximate,
            estimate: estimate.map(Forecast::Ok).or(reason.map(Forecast::Err)),
        })
    }
}

impl QueueAnswer {
    /// The fields for a task with this position.
    pub fn new(position: &Position) -> Self {
        let PositionAnswer { ahead, approximate, estimate, no_estimate, .. } =
            PositionAnswer::new(position);
        QueueAnswer { ahead: Some(ahead), approximate, estimate, no_estimate }
    }

    /// Reads the fields of an answer that has them or not.
    pub(super) fn read<'de, D>(from: D) -> Result<Option<Box<Self>>, D::Error>
    where
        D: Deserializer<'de>,
    {
        let fields = QueueAnswer::deserialize(from)?;
        Ok((fields != QueueAnswer::default()).then(|| Box::new(fields)))
    }
}

impl CalibrationAnswer {
    /// The comparisons as answers show them; `None` if there was none.
    pub fn new(counts: &Calibrated) -> Option<Self> {
        let checked = counts.total();
        let (within_p50, within_p90) = (counts.p50, counts.p50 + counts.p90);
        (checked > 0).then_some(CalibrationAnswer { checked, within_p50, within_p90 })
    }
}

impl EstimateAnswer {
    /// The estimate as answers show it.
    pub fn new(estimate: Estimate) -> Self {
        EstimateAnswer {
            ahead: estimate.ahead,
            p50: seconds_of(estimate.p50),
            p90: seconds_of(estimate.p90),
            basis: estimate.basis.name().into(),
        }
    }

    fn into_estimate(self) -> Result<Estimate> {
        let basis = Basis::from_name(&self.basis);
        let unknown = || Error::Invalid("an estimate with an unknown basis".into());
        Ok(Estimate {
            ahead: self.ahead,
            p50: span("p50", self.p50)?,
            p90: span("p90", self.p90)?,
            basis: basis.ok_or_else(unknown)?,
        })
    }
}

impl NoEstimateAnswer {
    /// The reason as answers show it.
    pub fn new(reason: NoEstimate) -> Self {
        NoEstimateAnswer { name: reason.name().into(), text: reason.to_string() }
    }

    fn into_reason(self) -> Result<NoEstimate> {
        let unknown = || Error::Invalid("an unknown reason why there is no estimate".into());
        NoEstimate::from_name(&self.name).ok_or_else(unknown)
    }
}

#[cfg(test)]
mod tests {
    use taskyard_core::{Span, Timestamp};

    use super::*;

    #[test]
    fn a_position_arrives_as_it_was_sent() {
        let estimate = Estimate {
            ahead: 9,
            p50: Span::from_secs(3),
            p90: Span::from_secs(5),
            basis: Basis::Subqueue,
        };
        let position = Position {
            id: TaskId(4),
            pri: 7,
            due: Some(Timestamp::from_micros(1_700_000_000_000_000)),
            ahead: 8,
            delayed_ahead: vec![1, 2],
            subqueue: Some(SubqueuePosition { ahead: 3, is_busy: true }),
            gate_ahead: Some(2),
            is_exact: false,
            estimate: Some(Ok(estimate)),
        };
        let reasons = NoEstimate::ALL
            .map(|reason| Position { estimate: Some(Err(reason)), ..Position::behind(3) });
        let mut all = vec![position, Position::behind(0)];
        all.extend(reasons);
        let sent = serde_json::to_string(&PositionsAnswer::new(&all)).unwrap();
        let got: PositionsAnswer = serde_json::from_str(&sent).unwrap();
        assert_eq!(got.into_positions().unwrap(), all);
    }
}
