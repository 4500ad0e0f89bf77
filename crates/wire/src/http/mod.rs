//! The JSON requests and answers of each HTTP endpoint.
//!
//! Requests refuse unknown fields, so that a typing error is reported. Answers may gain fields.
//! Both directions are here, because the server and the Rust client use the same types:
//! `into_command` and `new` on the server's side, `new` and `into_…` on the client's. All times are
//! seconds, durations and timestamps alike; timestamps count from the Unix epoch.
//!
//! | verb | request | answer |
//! |---|---|---|
//! | create | [`CreateRequest`] | [`CreateAnswer`] |
//! | alter | [`AlterRequest`] | [`TubeAnswer`] |
//! | name | [`NameRequest`] | [`TubeAnswer`] |
//! | tubes, stats | | [`TubesAnswer`] |
//! | put | [`PutRequest`] | [`PutAnswer`] |
//! | take | [`TakeRequest`] | [`TasksAnswer`] |
//! | ack | [`AckRequest`] | [`FinishAnswer`] |
//! | bury | [`BuryRequest`] | [`FinishAnswer`] |
//! | fail | [`FailRequest`] | [`FinishAnswer`] |
//! | kick, delete, bury, release of chosen tasks | [`TaskActionRequest`] | [`TaskActionAnswer`] |
//! | release | [`ReleaseRequest`] | [`FinishAnswer`] |
//! | touch | [`TouchRequest`] | [`FinishAnswer`] |
//! | finish: several of these at once | [`FinishRequest`] | [`FinishAnswer`] |
//! | kick | [`KickRequest`] | [`KickAnswer`] |
//! | delete | [`DeleteRequest`] | [`FinishAnswer`] |
//! | peek at one | | [`TaskAnswer`] |
//! | peek at several | [`PeekRequest`] | [`TasksAnswer`] |
//! | positions | [`PositionsRequest`] | [`PositionsAnswer`] |
//! | list | [`TasksQuery`] | [`TaskPageAnswer`] |
//! | truncate, release-all, drop | | [`NothingAnswer`] |
//! | deliveries | | [`DeliveriesAnswer`] |
//! | consumers | | [`ConsumersAnswer`] |
//! | semaphore: make, change | [`SemaphoreRequest`] | [`SemaphoreAnswer`] |
//! | semaphore: enqueue | [`EnqueueRequest`] | [`MemberInfosAnswer`] |
//! | semaphore: peek | [`SemaphorePeekRequest`] | [`MemberInfosAnswer`] |
//! | semaphore: holders, waiting | | [`MembersAnswer`] |
//! | semaphore: drop | | [`NothingAnswer`] |
//! | semaphore: finish | [`GrantsRequest`] | [`GrantsAnswer`] |
//! | semaphore events | [`EventsRequest`] | [`EventsAnswer`] |
//! | semaphore events: ack | [`AcknowledgeRequest`] | [`AcknowledgedAnswer`] |
//! | schedule: set | [`ScheduleRequest`] | [`ScheduleAnswer`] |
//! | schedules | | [`SchedulesAnswer`] |
//! | schedule: next times | | [`NextTimesAnswer`] |
//! | schedule: run | | [`PutAnswer`] |
//! | manager | | [`ManagerAnswer`] |
//! | time series | [`SeriesQuery`] | [`SeriesAnswer`] |
//! | workers | | [`WorkersAnswer`] |
//! | audit | | [`AuditAnswer`] |
//! | a refusal | | [`ErrorAnswer`] |

mod action;
mod audit;
mod error;
mod events;
mod finish;
mod inspect;
mod list;
mod manager;
mod names;
mod object;
mod options;
mod pace;
mod position;
mod put;
mod put_request;
#[cfg(feature = "openapi")]
mod put_schema;
mod schedules;
mod seconds;
mod semaphores;
mod series;
mod take;
mod task;
mod tube_counts;
mod tubes;
mod whole;
mod workers;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use taskyard_core::{Error, Result};

pub use action::{TaskAction, TaskActionAnswer, TaskActionRequest, TaskFilterRequest};
pub use audit::{AuditAnswer, AuditEntry, AuditOutcome};
pub use error::{ErrorAnswer, ErrorDetail};
pub use events::{
    AcknowledgeRequest, AcknowledgedAnswer, EventAnswer, EventWord, EventsAnswer, EventsRequest,
    SocketAnswer,
};
pub use finish::{
    AckRequest, BuryRequest, Delivery, FailRequest, FinishAnswer, FinishPart, FinishRequest,
    ReleaseRequest, TouchRequest,
};
pub use inspect::{
    ConsumerAnswer, ConsumersAnswer, DeleteRequest, DeliveriesAnswer, DeliveryAnswer, KickAnswer,
    KickRequest, NothingAnswer, PeekRequest,
};
pub use list::{
    LIST_DATA_BYTES_MAX, LIST_TASKS_DEFAULT, TaskFilter, TaskPageAnswer, TasksQuery, cursor,
};
pub use manager::{
    LEADER_TUBE, ManagerAnswer, PLANS_TUBE, PlanMessage, QueueLoad, REPORTS_TUBE, Shares,
    WorkerAnswer, WorkerReport, decode_message, encode_message,
};
pub use names::{ConflictWord, FinishWord, KindWord, OutcomeWord, StateWord};
pub use options::check_options;
pub use pace::{RateAnswer, RateRequest, RetryAnswer, RetryRequest, changed_policy};
pub use position::{
    CalibrationAnswer, EstimateAnswer, NoEstimateAnswer, PositionAnswer, PositionsAnswer,
    PositionsRequest, QueueAnswer,
};
pub use put::{PlacedTask, PutAnswer, PutRequest, PutTask};
pub use schedules::{
    CatchUpWord, NextTimesAnswer, OverlapWord, ScheduleAnswer, ScheduleRequest, SchedulesAnswer,
};
pub use seconds::{moment_of, seconds_of};
pub use semaphores::{
    EnqueueItemRequest, EnqueueRequest, GrantOutcomeWord, GrantRequest, GrantWord, GrantsAnswer,
    GrantsRequest, MemberAnswer, MemberInfoAnswer, MemberInfosAnswer, MembersAnswer,
    SemaphoreAnswer, SemaphorePeekRequest, SemaphoreRequest, SemaphoresAnswer, StatusWord,
};
pub use series::{
    DurationsAnswer, MissingServer, PercentilesAnswer, SeriesAnswer, SeriesQuery, SeriesStep,
};
pub use take::{LEASE_SECONDS_DEFAULT, TakeRequest, TasksAnswer};
pub use task::{FailureAnswer, Form, ReasonAnswer, TaskAnswer};
pub use tube_counts::{CallCounts, TaskCounts};
pub use tubes::{AlterRequest, CreateAnswer, CreateRequest, NameRequest, TubeAnswer, TubesAnswer};
pub use whole::parse_whole;
pub use workers::{
    RunningTask, WORKER_RUNNING_MAX, WORKERS_PAGE_MAX, WorkerSummary, WorkersAnswer,
};

/// Parses a request. A missing body is an empty object, so that `take` needs none.
pub fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T> {
    let body = if body.trim_ascii().is_empty() { b"{}" } else { body };
    serde_json::from_slice(body).map_err(|error| Error::Invalid(unreadable(&error)))
}

/// Why a request cannot be read, without names of types.
fn unreadable(error: &serde_json::Error) -> String {
    let why = error.to_string();
    let why = why.replace("expected f64", "expected a number");
    let why = ["u64", "u32"].iter().fold(why, |why, name| {
        why.replace(&format!("expected {name}"), "expected a whole number from 0")
    });
    format!("the request cannot be read: {why}")
}

/// Parses a server's answer, on the client's side.
pub fn parse_answer<T: DeserializeOwned>(body: &[u8]) -> Result<T> {
    serde_json::from_slice(body)
        .map_err(|error| Error::Store(format!("the server's answer cannot be read: {error}")))
}

/// For fields in which `null` differs from an absent field.
fn present<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    T::deserialize(deserializer).map(Some)
}

/// For fields that are left out of an answer when they are false.
const fn is_false(value: &bool) -> bool {
    !*value
}

/// For numbers that are left out of an answer when they are zero.
const fn is_zero(value: &u64) -> bool {
    *value == 0
}
