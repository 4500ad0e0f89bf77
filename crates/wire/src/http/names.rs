//! The JSON names of kinds, states, outcomes and ways to finish.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use taskyard_core::{Kind, OnConflict, Outcome, State};

/// The preset a tube is created from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum KindWord {
    /// In order of arrival, nothing else.
    Fifo,
    /// Order by priority, times.
    #[default]
    FifoTtl,
    /// The same with a capacity.
    LimFifoTtl,
    /// In order of arrival, one running task for each sub-queue.
    Utube,
    /// Sub-queues, priority and times.
    UtubeTtl,
}

impl From<KindWord> for Kind {
    fn from(word: KindWord) -> Self {
        match word {
            KindWord::Fifo => Kind::Fifo,
            KindWord::FifoTtl => Kind::FifoTtl,
            KindWord::LimFifoTtl => Kind::LimFifoTtl,
            KindWord::Utube => Kind::Utube,
            KindWord::UtubeTtl => Kind::UtubeTtl,
        }
    }
}

impl From<Kind> for KindWord {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Fifo => KindWord::Fifo,
            Kind::FifoTtl => KindWord::FifoTtl,
            Kind::LimFifoTtl => KindWord::LimFifoTtl,
            Kind::Utube => KindWord::Utube,
            Kind::UtubeTtl => KindWord::UtubeTtl,
        }
    }
}

/// The state of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum StateWord {
    /// Can be taken.
    Ready,
    /// Delivered and not finished yet.
    Taken,
    /// Waits for its time.
    Delayed,
    /// Put aside until it is kicked.
    Buried,
    /// Gone.
    Done,
}

impl From<StateWord> for State {
    fn from(word: StateWord) -> Self {
        match word {
            StateWord::Ready => State::Ready,
            StateWord::Taken => State::Taken,
            StateWord::Delayed => State::Delayed,
            StateWord::Buried => State::Buried,
            StateWord::Done => State::Done,
        }
    }
}

impl From<State> for StateWord {
    fn from(state: State) -> Self {
        match state {
            State::Ready => StateWord::Ready,
            State::Taken => StateWord::Taken,
            State::Delayed => StateWord::Delayed,
            State::Buried => StateWord::Buried,
            State::Done => StateWord::Done,
        }
    }
}

/// What a put does whose key is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum ConflictWord {
    /// Add nothing.
    #[default]
    Keep,
    /// Give a ready or delayed holder the payload, the priority and the times of the put.
    Replace,
}

impl ConflictWord {
    /// Reads the field `on_conflict`; the error names it.
    pub(super) fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Self>, D::Error> {
        Ok(match Option::<String>::deserialize(from)?.as_deref() {
            None => None,
            Some("keep") => Some(ConflictWord::Keep),
            Some("replace") => Some(ConflictWord::Replace),
            Some(other) => {
                let error = format_args!("'on_conflict' is '{other}'; use keep or replace");
                return Err(D::Error::custom(error));
            }
        })
    }
}

impl From<ConflictWord> for OnConflict {
    fn from(word: ConflictWord) -> Self {
        match word {
            ConflictWord::Keep => OnConflict::Keep,
            ConflictWord::Replace => OnConflict::Replace,
        }
    }
}

impl From<OnConflict> for ConflictWord {
    fn from(on_conflict: OnConflict) -> Self {
        match on_conflict {
            OnConflict::Keep => ConflictWord::Keep,
            OnConflict::Replace => ConflictWord::Replace,
        }
    }
}

/// The outcome of one item of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum OutcomeWord {
    /// It was done.
    Done,
    /// The task exists, but the claimed delivery is not the current one.
    Stale,
    /// No such task.
    Missing,
}

impl From<&Outcome> for OutcomeWord {
    fn from(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Done(_) => OutcomeWord::Done,
            Outcome::Stale => OutcomeWord::Stale,
            Outcome::Missing => OutcomeWord::Missing,
        }
    }
}

/// How a delivery ends or is extended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum FinishWord {
    /// Done: remove the task.
    Ack,
    /// Give it back.
    Release,
    /// Put it aside.
    Bury,
    /// Ask for more time.
    Touch,
    /// It failed: the error is stored.
    Fail,
}
