//! Applies the retry policies of tubes to tasks that failed.

use std::collections::BTreeMap;

use taskyard_core::{AfterFailure, Finish, Span};
use taskyard_wire::after_failure;

use crate::store::Store;

impl Store {
    /// Failed tasks follow the retry policy of their tube, if it has one, instead of the given delays. A policy that
    /// cannot be read is ignored.
    pub(crate) async fn follow_policies(&self, finishes: &mut [(u64, Finish)]) {
        let held = self.held(finishes.iter().map(|finish| finish.0));
        let mut policies: BTreeMap<usize, AfterFailure> = BTreeMap::new();
        for ((_, finish), held) in finishes.iter_mut().zip(held) {
            let (Finish::Fail(fail), Some(held)) = (finish, held) else { continue };
            let AfterFailure::Retry(delay) = fail.then else { continue };
            let policy = match (policies.get(&held.queue), self.tubes().get(held.queue)) {
                (Some(policy), _) => *policy,
                (None, Some(tube)) => after_failure(self, tube, Span::ZERO).await,
                (None, None) => AfterFailure::Retry(delay),
            };
            policies.insert(held.queue, policy);
            if matches!(policy, AfterFailure::Policy(_)) {
                fail.then = policy;
            }
        }
    }
}
