//! What to tell those who asked when Redis did not do it, or may not have.

use taskyard_core::Error;
use taskyard_redis::Failure;

/// The failure in the words of the queue.
pub(super) fn error(failure: &Failure) -> Error {
    match failure {
        Failure::Unreachable(text) | Failure::Moved(text) => Error::StoreAway(format!(
            "Redis cannot be reached for now ({text}); nothing was done, try again"
        )),
        Failure::Refused(text) if failure.may_be_done() => Error::OutcomeUnknown(format!(
            "Redis broke off in the middle of it ({text}): parts of it may be done; look before you \
             try again"
        )),
        Failure::Refused(text) => Error::Store(format!("Redis said no: {text}")),
        Failure::Unloaded => Error::Store("Redis does not keep our functions".into()),
        Failure::Full => Error::Overloaded(
            "Redis has used up its memory (maxmemory), so nothing was put; take and ack tasks, or raise the limit",
        ),
        Failure::Lost(text) => Error::OutcomeUnknown(format!(
            "Redis was lost before it answered ({text}): it was done or it was not; look before you \
             try again"
        )),
        Failure::Unreplicated(text, _) => {
            Error::OutcomeUnknown(format!("it was done, but {text}: a failover may undo it"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_can_be_tried_again() {
        for text in ["LOADING Redis is loading the dataset", "CLUSTERDOWN Hash slot not served"] {
            assert!(matches!(error(&Failure::of(text)), Error::StoreAway(_)), "{text}");
        }
        let text = "MISCONF Errors writing to the AOF file: No space left on device";
        assert!(matches!(error(&Failure::of(text)), Error::Store(_)));
        let text = "WRONGTYPE Operation against a key script: f_ask, on @user_function:7.";
        assert!(matches!(error(&Failure::of(text)), Error::OutcomeUnknown(_)));
    }
}
