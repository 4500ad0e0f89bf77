//! Semaphores: creating and showing them, enqueueing tasks, finishing grants.

use serde::{Deserialize, Serialize};
use taskyard_core::{
    EnqueueItem, Error, Grant, GrantFinish, GrantItem, GrantOutcome, Member, MemberInfo,
    MembersPage, Priority, Result, SemaphoreChange, SemaphoreCommand, SemaphoreInfo, SemaphoreKey,
    SemaphoreOptions, Status, TaskId, TubeName,
};

use super::seconds::{moment, moment_of, optional_moment, optional_span, seconds_of, span};
use super::{is_false, present, whole};

/// The options of a semaphore. An absent option stays as it is or, in a new semaphore, has its
/// default; `null` removes it. Times are seconds and may have a fraction.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SemaphoreRequest {
    /// How many tasks may hold a grant at the same time; 1000 in a new one, 0 admits none.
    #[serde(default, deserialize_with = "whole::maybe", skip_serializing_if = "Option::is_none")]
    pub active: Option<i64>,
    /// How many of the holders, from the worst on, may be asked to release for better ones; not more than
    /// `active`. 900 in a new one, or `active` if that is less.
    #[serde(default, deserialize_with = "whole::maybe", skip_serializing_if = "Option::is_none")]
    pub try_release: Option<i64>,
    /// How much better than a holder a task must be for that holder to be asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub margin: Option<f64>,
    /// Seconds for which a new grant is not asked to release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_hold: Option<f64>,
    /// Seconds after which a task that yielded waits again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cool_down: Option<f64>,
    /// How many may be asked to release at the same time; `null` is the smaller of 16 and `try_release`.
    #[serde(default, deserialize_with = "whole::present", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<i64>))]
    pub max_revoking: Option<Option<i64>>,
    /// Seconds after which a holder that was asked is asked again, or loses its grant (`force`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoke_grace: Option<f64>,
    /// Revoke the grant when the grace period is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub force: Option<bool>,
    /// Seconds a grant lasts unless it is extended; `null` is until it is released.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<f64>))]
    pub lease: Option<Option<f64>>,
    /// Seconds in which the event of a grant must be acknowledged; `null` is no limit.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<f64>))]
    pub ack_timeout: Option<Option<f64>>,
    /// When `active` was lowered: ask the excess holders to release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shed: Option<bool>,
    /// A task whose lease is over leaves, instead of waiting again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drop_expired: Option<bool>,
    /// Leave an existing semaphore as it is; refused if an option that is named here differs from
    /// it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub only_new: bool,
}

impl SemaphoreRequest {
    /// The request for this change, on the client's side.
    pub fn new(change: &SemaphoreChange, only_new: bool) -> Self {
        SemaphoreRequest {
            active: change.active,
            try_release: change.try_release,
            margin: change.margin,
            min_hold: change.min_hold.map(seconds_of),
            cool_down: change.cool_down.map(seconds_of),
            max_revoking: change.max_revoking,
            revoke_grace: change.revoke_grace.map(seconds_of),
            force: change.force,
            lease: change.lease.map(|lease| lease.map(seconds_of)),
            ack_timeout: change.ack_timeout.map(|timeout| timeout.map(seconds_of)),
            shed: change.shed,
            drop_expired: change.drop_expired,
            only_new,
        }
    }

    /// The command, on the server's side.
    pub fn into_command(self, key: SemaphoreKey) -> Result<SemaphoreCommand> {
        let settable = |name: &str, seconds: Option<Option<f64>>| {
            seconds.map(|seconds| optional_span(name, seconds)).transpose()
        };
        let change = SemaphoreChange {
            active: self.active,
            try_release: self.try_release,
            margin: self.margin,
            min_hold: optional_span("min_hold", self.min_hold)?,
            cool_down: optional_span("cool_down", self.cool_down)?,
            max_revoking: self.max_revoking,
            revoke_grace: optional_span("revoke_grace", self.revoke_grace)?,
            force: self.force,
            lease: settable("lease", self.lease)?,
            ack_timeout: settable("ack_timeout", self.ack_timeout)?,
            shed: self.shed,
            drop_expired: self.drop_expired,
        };
        let (change, only_new) = (Box::new(change), self.only_new);
        Ok(SemaphoreCommand::Configure { key, change, only_new })
    }
}

/// Semaphores with their options and counts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SemaphoresAnswer {
    /// By key.
    pub semaphores: Vec<SemaphoreAnswer>,
}

/// One semaphore with its options and counts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SemaphoreAnswer {
    /// Its key.
    pub key: String,
    /// How many may hold a grant.
    pub active: u32,
    /// How many of them may be asked to release; at most `active`.
    pub try_release: u32,
    /// How much better a task must be.
    pub margin: f64,
    /// Seconds for which a new grant is not asked to release.
    pub min_hold: f64,
    /// Seconds after which a task that yielded waits again.
    pub cool_down: f64,
    /// How many may be asked at the same time, if that was set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_revoking: Option<u32>,
    /// Seconds after which a holder that was asked is asked again.
    pub revoke_grace: f64,
    /// Whether it loses the grant then.
    pub force: bool,
    /// Seconds a grant lasts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<f64>,
    /// Seconds in which a grant must be acknowledged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ack_timeout: Option<f64>,
    /// Whether excess holders are asked to release.
    pub shed: bool,
    /// Whether a task whose lease is over leaves.
    pub drop_expired: bool,
    /// How many tasks wait.
    pub waiting: u64,
    /// How many tasks yielded and will wait again.
    pub delayed: u64,
    /// How many hold a grant and were not asked to release.
    pub acquired: u64,
    /// How many hold a grant and were asked to release.
    pub revoking: u64,
    /// How many events are not acknowledged.
    pub events: u64,
    /// When the next of them is delivered, or could have been, in seconds since the epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_event: Option<f64>,
}

impl SemaphoreAnswer {
    /// The semaphore as answers show it.
    pub fn new(info: &SemaphoreInfo) -> Self {
        let options = &info.options;
        SemaphoreAnswer {
            key: info.key.to_string(),
            active: options.active,
            try_release: options.try_release,
            margin: options.margin.value(),
            min_hold: seconds_of(options.min_hold),
            cool_down: seconds_of(options.cool_down),
            max_revoking: options.max_revoking,
            revoke_grace: seconds_of(options.revoke_grace),
            force: options.force,
            lease: options.lease.map(seconds_of),
            ack_timeout: options.ack_timeout.map(seconds_of),
            shed: options.shed,
            drop_expired: options.drop_expired,
            waiting: info.waiting,
            delayed: info.delayed,
            acquired: info.acquired,
            revoking: info.revoking,
            events: info.events,
            next_event: info.next_event.and_then(moment_of),
        }
    }

    /// The result for the client's caller.
    pub fn into_info(self) -> Result<SemaphoreInfo> {
        Ok(SemaphoreInfo {
            key: SemaphoreKey::new(&self.key)?,
            options: SemaphoreOptions {
                active: self.active,
                try_release: self.try_release,
                margin: Priority::new(self.margin)?,
                min_hold: span("min_hold", self.min_hold)?,
                cool_down: span("cool_down", self.cool_down)?,
                max_revoking: self.max_revoking,
                revoke_grace: span("revoke_grace", self.revoke_grace)?,
                force: self.force,
                lease: optional_span("lease", self.lease)?,
                ack_timeout: optional_span("ack_timeout", self.ack_timeout)?,
                shed: self.shed,
                drop_expired: self.drop_expired,
            },
            waiting: self.waiting,
            delayed: self.delayed,
            acquired: self.acquired,
            revoking: self.revoking,
            events: self.events,
            next_event: optional_moment("next_event", self.next_event)?,
        })
    }
}

/// Tasks to enqueue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct EnqueueRequest {
    /// The tasks, in the order of their arrival.
    pub tasks: Vec<EnqueueItemRequest>,
}

/// One task and its priority.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct EnqueueItemRequest {
    /// Any number that the caller gives its task.
    #[serde(deserialize_with = "whole::number")]
    pub task: u64,
    /// Larger goes first.
    pub priority: f64,
}

impl EnqueueRequest {
    /// The request for these entries, on the client's side.
    pub fn new(entries: &[EnqueueItem]) -> Self {
        let item =
            |item: &EnqueueItem| EnqueueItemRequest { task: item.task.0, priority: item.priority };
        EnqueueRequest { tasks: entries.iter().map(item).collect() }
    }

    /// The command, on the server's side.
    pub fn into_command(self, key: SemaphoreKey) -> SemaphoreCommand {
        let item = |item: EnqueueItemRequest| EnqueueItem {
            task: TaskId(item.task),
            priority: item.priority,
        };
        SemaphoreCommand::Enqueue { key, entries: self.tasks.into_iter().map(item).collect() }
    }
}

/// The tasks to show.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SemaphorePeekRequest {
    /// Their numbers.
    #[serde(deserialize_with = "whole::list")]
    pub tasks: Vec<u64>,
}

/// The status of tasks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MemberInfosAnswer {
    /// The tasks; those that do not exist are left out.
    pub tasks: Vec<MemberInfoAnswer>,
}

/// The status of a task in a semaphore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum StatusWord {
    /// Waits for a grant.
    Waiting,
    /// Yielded, and does not wait again yet.
    Delayed,
    /// Holds a grant, which may still be given to another task until the event `acquired` is
    /// delivered.
    Granted,
    /// Holds a grant and was asked to release it.
    TryRelease,
}

/// The status of one task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MemberInfoAnswer {
    /// Which task.
    pub task: u64,
    /// Whether it waits or holds a grant.
    pub status: StatusWord,
    /// Larger goes first.
    pub priority: f64,
    /// When it was enqueued.
    pub enqueued: f64,
    /// When it waits again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<f64>,
    /// The number of its grant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant: Option<u64>,
    /// Since when it holds the grant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub granted: Option<f64>,
    /// When the grant ends by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_until: Option<f64>,
    /// It declined to release, and is not asked again as long as the same request would be made.
    #[serde(default, skip_serializing_if = "is_false")]
    pub pinned: bool,
}

impl MemberInfoAnswer {
    /// The info as answers show it.
    pub fn new(info: &MemberInfo) -> Self {
        MemberInfoAnswer {
            task: info.task.0,
            status: match info.status {
                Status::Wait => StatusWord::Waiting,
                Status::Delayed => StatusWord::Delayed,
                Status::Acquired => StatusWord::Granted,
                Status::TryRelease => StatusWord::TryRelease,
            },
            priority: info.priority.value(),
            enqueued: info.enqueued.as_secs_f64(),
            not_before: info.not_before.and_then(moment_of),
            grant: info.grant.map(|grant| grant.0),
            granted: info.granted.and_then(moment_of),
            lease_until: info.lease_until.and_then(moment_of),
            pinned: info.pinned,
        }
    }

    /// The result for the client's caller.
    pub fn into_member_info(self) -> Result<MemberInfo> {
        Ok(MemberInfo {
            task: TaskId(self.task),
            status: match self.status {
                StatusWord::Waiting => Status::Wait,
                StatusWord::Delayed => Status::Delayed,
                StatusWord::Granted => Status::Acquired,
                StatusWord::TryRelease => Status::TryRelease,
            },
            priority: Priority::new(self.priority)?,
            enqueued: moment("enqueued", self.enqueued)?,
            not_before: optional_moment("not_before", self.not_before)?,
            grant: self.grant.map(Grant),
            granted: optional_moment("granted", self.granted)?,
            lease_until: optional_moment("lease_until", self.lease_until)?,
            pinned: self.pinned,
        })
    }
}

/// Tasks that hold grants of a semaphore or wait for them, the best first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MembersAnswer {
    /// The tasks.
    pub tasks: Vec<MemberAnswer>,
    /// The `after` of the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// One task of a semaphore.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MemberAnswer {
    /// The tube of the task, if the semaphore belongs to a tube.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tube: Option<String>,
    /// Its status.
    #[serde(flatten)]
    pub info: MemberInfoAnswer,
}

impl MembersAnswer {
    /// The page as answers show it.
    pub fn new(page: &MembersPage) -> Self {
        let member = |member: &Member| MemberAnswer {
            tube: member.tube.as_ref().map(TubeName::to_string),
            info: MemberInfoAnswer::new(&member.info),
        };
        let next = page.next.map(|next| next.to_string());
        MembersAnswer { tasks: page.members.iter().map(member).collect(), next }
    }

    /// The result for the client's caller.
    pub fn into_page(self) -> Result<MembersPage> {
        let member = |member: MemberAnswer| {
            let tube = member.tube.as_deref().map(TubeName::new).transpose()?;
            Ok(Member { tube, info: member.info.into_member_info()? })
        };
        let members = self.tasks.into_iter().map(member).collect::<Result<_>>()?;
        Ok(MembersPage { members, next: self.next.map(|next| next.parse()).transpose()? })
    }
}

/// What to do with grants.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct GrantsRequest {
    /// The items, in this order.
    pub items: Vec<GrantRequest>,
}

/// What to do with a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum GrantWord {
    /// Release it, or leave the queue.
    Release,
    /// Yield it to other tasks and wait again.
    Yield,
    /// Keep it although a release was requested. Not asked again as long as the same request would
    /// be made.
    Decline,
    /// Extend it.
    Extend,
}

/// What to do with one grant.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct GrantRequest {
    /// Which task.
    #[serde(deserialize_with = "whole::number")]
    pub task: u64,
    /// Which of its grants; when absent the current one, or its place in the queue.
    #[serde(default, deserialize_with = "whole::maybe", skip_serializing_if = "Option::is_none")]
    pub grant: Option<u64>,
    /// What to do.
    #[serde(default = "release")]
    pub finish: GrantWord,
    /// Seconds from now on, for `extend`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
}

const fn release() -> GrantWord {
    GrantWord::Release
}

impl GrantsRequest {
    /// The request for these items, on the client's side.
    pub fn new(items: &[GrantItem]) -> Self {
        let item = |item: &GrantItem| {
            let (finish, seconds) = match item.finish {
                GrantFinish::Release => (GrantWord::Release, None),
                GrantFinish::Yield => (GrantWord::Yield, None),
                GrantFinish::Decline => (GrantWord::Decline, None),
                GrantFinish::Extend(span) => (GrantWord::Extend, Some(seconds_of(span))),
            };
            GrantRequest { task: item.task.0, grant: item.grant.map(|g| g.0), finish, seconds }
        };
        GrantsRequest { items: items.iter().map(item).collect() }
    }

    /// The command, on the server's side.
    pub fn into_command(self, key: SemaphoreKey) -> Result<SemaphoreCommand> {
        let items: Result<_> = self.items.into_iter().map(GrantRequest::into_item).collect();
        Ok(SemaphoreCommand::Finish { key, items: items? })
    }
}

impl GrantRequest {
    fn into_item(self) -> Result<GrantItem> {
        let finish = match (self.finish, optional_span("seconds", self.seconds)?) {
            (GrantWord::Extend, Some(span)) => GrantFinish::Extend(span),
            (GrantWord::Extend, None) => {
                return Err(Error::Invalid("say by how many 'seconds' to extend the grant".into()));
            }
            (_, Some(_)) => {
                return Err(Error::Invalid("'seconds' goes with 'extend' only".into()));
            }
            (GrantWord::Release, None) => GrantFinish::Release,
            (GrantWord::Yield, None) => GrantFinish::Yield,
            (GrantWord::Decline, None) => GrantFinish::Decline,
        };
        Ok(GrantItem { task: TaskId(self.task), grant: self.grant.map(Grant), finish })
    }
}

/// The outcomes of grants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GrantsAnswer {
    /// In the order of the request.
    pub outcomes: Vec<GrantOutcomeWord>,
}

/// The outcome of one grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum GrantOutcomeWord {
    /// It was done.
    Done,
    /// The task exists, but the grant is not its current one.
    Stale,
    /// No such task in this semaphore.
    Missing,
    /// Nothing was declined: the holder was not asked to release.
    NotAsked,
}

impl GrantsAnswer {
    /// The answer with these outcomes.
    pub fn new(outcomes: &[GrantOutcome]) -> Self {
        let word = |outcome: &GrantOutcome| match outcome {
            GrantOutcome::Done => GrantOutcomeWord::Done,
            GrantOutcome::Stale => GrantOutcomeWord::Stale,
            GrantOutcome::Missing => GrantOutcomeWord::Missing,
            GrantOutcome::NotAsked => GrantOutcomeWord::NotAsked,
        };
        GrantsAnswer { outcomes: outcomes.iter().map(word).collect() }
    }

    /// The result for the client's caller.
    pub fn into_outcomes(self) -> Vec<GrantOutcome> {
        let outcome = |word| match word {
            GrantOutcomeWord::Done => GrantOutcome::Done,
            GrantOutcomeWord::Stale => GrantOutcome::Stale,
            GrantOutcomeWord::Missing => GrantOutcome::Missing,
            GrantOutcomeWord::NotAsked => GrantOutcome::NotAsked,
        };
        self.outcomes.into_iter().map(outcome).collect()
    }
}
