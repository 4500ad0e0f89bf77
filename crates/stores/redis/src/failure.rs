//! Translates failures of Redis into errors of the queue.

use taskyard_core::Error;
use taskyard_redis::Failure;

/// The error that the caller gets.
pub(super) fn error(failure: &Failure) -> Error {
    match failure {
        Failure::Unreachable(text) | Failure::Moved(text) => Error::StoreUnavailable(format!(
            "cannot reach Redis ({text}); nothing was done, try again"
        )),
        Failure::Refused(text) if failure.may_be_done() => Error::OutcomeUnknown(format!(
            "Redis aborted the call ({text}): parts of it may be done; check before you \
             try again"
        )),
        Failure::Refused(text) => Error::Store(format!("Redis refused the call: {text}")),
        Failure::Unloaded => {
            Error::Store("Redis lost the function library again right after it was loaded".into())
        }
        Failure::Full => Error::Overloaded(
            "Redis has reached its memory limit (maxmemory), so nothing was put; take and ack tasks, or raise the limit",
        ),
        Failure::Lost(text) => Error::OutcomeUnknown(format!(
            "the connection to Redis was lost before it answered ({text}): the call was done or not; check before \
             you try again"
        )),
        Failure::Unreplicated(text, _) => {
            Error::OutcomeUnknown(format!("the call was done, but {text}: a failover may undo it"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_failures_can_be_tried_again() {
        for text in ["LOADING Redis is loading the dataset", "CLUSTERDOWN Hash slot not served"] {
            assert!(matches!(error(&Failure::of(text)), Error::StoreUnavailable(_)), "{text}");
        }
        let text = "MISCONF Errors writing to the AOF file: No space left on device";
        assert!(matches!(error(&Failure::of(text)), Error::Store(_)));
        let text = "WRONGTYPE Operation against a key script: f_call, on @user_function:7.";
        assert!(matches!(error(&Failure::of(text)), Error::OutcomeUnknown(_)));
    }
}
