//! The error answer.

use serde::{Deserialize, Serialize};
use taskyard_core::{Error, Kind, ScheduleName, SemaphoreKey, TaskId, TubeName};
use taskyard_iproto::intern;

use crate::codes::Code;

/// The error answer to a request. Nothing was done, unless the code is `outcome_unknown`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ErrorAnswer {
    /// The error.
    pub error: ErrorDetail,
}

/// The error, for programs and for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ErrorDetail {
    /// One of the documented codes.
    pub code: String,
    /// What happened, and what to do.
    pub message: String,
    /// The tube it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tube: Option<String>,
    /// The task it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<u64>,
    /// The queue number that the tube has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_num: Option<u32>,
    /// The semaphore it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub semaphore: Option<String>,
    /// The schedule it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<String>,
    /// The limit that was exceeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// The size that exceeded the limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// The options of the existing tube or semaphore that differ from those in the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub differs: Option<String>,
    /// The kind of tube that does not have the verb.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The store that does not have the feature.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
    /// The feature that the store does not have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feature: Option<String>,
}

impl From<&Error> for ErrorAnswer {
    fn from(error: &Error) -> Self {
        let mut detail = ErrorDetail {
            code: Code::of(error).name().into(),
            message: error.to_string(),
            ..ErrorDetail::default()
        };
        match error {
            Error::TubeNotFound(tube)
            | Error::TubeExists(tube)
            | Error::TubeHasTaken(tube)
            | Error::NoSemaphore(tube)
            | Error::TubeHasConsumers(tube) => detail.tube = Some(tube.to_string()),
            Error::TubeDiffers { tube, differs } => {
                detail.tube = Some(tube.to_string());
                detail.differs = Some(differs.clone());
            }
            Error::QueueNumTaken { tube, num } => {
                detail.tube = Some(tube.to_string());
                detail.queue_num = Some(*num);
            }
            Error::TaskNotFound(tube, task) => {
                detail.tube = Some(tube.to_string());
                detail.task = Some(task.0);
            }
            Error::TubeFull { tube, capacity } => {
                detail.tube = Some(tube.to_string());
                detail.limit = Some(*capacity);
            }
            Error::ScheduleNotFound(name) | Error::ScheduleExists(name) => {
                detail.schedule = Some(name.to_string());
            }
            Error::TooManyTubes(limit)
            | Error::TooManySemaphores(limit)
            | Error::TooManySchedules(limit) => {
                detail.limit = Some(*limit as u64);
            }
            Error::SemaphoreNotFound(key) | Error::SemaphoreInUse(key) => {
                detail.semaphore = Some(key.to_string());
            }
            Error::SemaphoreExists { key, differs } => {
                detail.semaphore = Some(key.to_string());
                detail.differs = Some(differs.clone());
            }
            Error::SemaphoreHasTube { key, tube } => {
                detail.semaphore = Some(key.to_string());
                detail.tube = Some(tube.to_string());
            }
            Error::TooLarge { size, limit, .. } => {
                detail.size = Some(*size as u64);
                detail.limit = Some(*limit as u64);
            }
            Error::Unsupported { kind, .. } => detail.kind = Some((*kind).into()),
            Error::MissingFeature { store, feature } => {
                detail.store = Some((*store).into());
                detail.feature = Some((*feature).into());
            }
            _ => {}
        }
        ErrorAnswer { error: detail }
    }
}

impl ErrorAnswer {
    /// An error of the server itself, outside the queue: a wrong token, an unknown endpoint.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        let message = message.into();
        ErrorAnswer {
            error: ErrorDetail { code: code.name().into(), message, ..Default::default() },
        }
    }

    /// Its code; `None` for one that this version does not know.
    pub fn code(&self) -> Option<Code> {
        Code::from_name(&self.error.code)
    }

    /// The error for the client's caller; `verb` is the verb of the request. If the answer has too
    /// few fields to restore the error, its message is kept.
    pub fn into_error(self, verb: &'static str) -> Error {
        let code = self.code();
        if let Some(error) = self.error.rebuild(code, verb) {
            return error;
        }
        match code {
            Some(
                Code::Invalid
                | Code::SessionUnknown
                | Code::MissingFeature
                | Code::TooLarge
                | Code::Unsupported,
            ) => Error::Invalid(self.error.message),
            Some(Code::StoreUnavailable) => Error::StoreUnavailable(self.error.message),
            Some(Code::OutcomeUnknown) => Error::OutcomeUnknown(self.error.message),
            _ => Error::Store(self.error.message),
        }
    }
}

impl ErrorDetail {
    /// The error of the core, if the fields suffice.
    fn rebuild(&self, code: Option<Code>, verb: &'static str) -> Option<Error> {
        let tube = || self.tube.as_deref().and_then(|name| TubeName::new(name).ok());
        let key = || self.semaphore.as_deref().and_then(|key| SemaphoreKey::new(key).ok());
        let schedule = || self.schedule.as_deref().and_then(|name| ScheduleName::new(name).ok());
        let limit = || self.limit.and_then(|limit| usize::try_from(limit).ok());
        Some(match code? {
            Code::TubeNotFound => Error::TubeNotFound(tube()?),
            Code::TubeExists => match self.differs.clone() {
                Some(differs) => Error::TubeDiffers { tube: tube()?, differs },
                None => Error::TubeExists(tube()?),
            },
            Code::QueueNumTaken => Error::QueueNumTaken { tube: tube()?, num: self.queue_num? },
            Code::TubeHasTaken => Error::TubeHasTaken(tube()?),
            Code::TubeHasConsumers => Error::TubeHasConsumers(tube()?),
            Code::NoSemaphore => Error::NoSemaphore(tube()?),
            Code::TubeFull => Error::TubeFull { tube: tube()?, capacity: self.limit? },
            Code::TaskNotFound => Error::TaskNotFound(tube()?, TaskId(self.task?)),
            Code::TooManyTubes => Error::TooManyTubes(limit()?),
            Code::TooManySemaphores => Error::TooManySemaphores(limit()?),
            Code::ScheduleNotFound => Error::ScheduleNotFound(schedule()?),
            Code::ScheduleExists => Error::ScheduleExists(schedule()?),
            Code::TooManySchedules => Error::TooManySchedules(limit()?),
            Code::SemaphoreNotFound => Error::SemaphoreNotFound(key()?),
            Code::SemaphoreInUse => Error::SemaphoreInUse(key()?),
            Code::SemaphoreExists => {
                Error::SemaphoreExists { key: key()?, differs: self.differs.clone()? }
            }
            Code::SemaphoreHasTube => Error::SemaphoreHasTube { key: key()?, tube: tube()? },
            Code::Unsupported => {
                Error::Unsupported { kind: Kind::from_name(self.kind.as_deref()?)?.name(), verb }
            }
            Code::MissingFeature => Error::MissingFeature {
                store: intern(self.store.as_deref()?),
                feature: intern(self.feature.as_deref()?),
            },
            Code::TooLarge => Error::TooLarge {
                what: "the request or a part of it",
                size: usize::try_from(self.size?).ok()?,
                limit: limit()?,
                advice: "send less at once",
            },
            Code::Overloaded => Error::Overloaded("the server has too much to do"),
            Code::ShuttingDown => Error::ShuttingDown,
            _ => return None,
        })
    }
}
