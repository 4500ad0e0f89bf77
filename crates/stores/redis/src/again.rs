//! Calls that can be made twice without harm are made again when their answer was lost.

use taskyard_redis::{Call, Failure, Value};

use super::execute::{Batch, Group, unasked};

/// How often such a call is made.
const TRIES: usize = 3;

impl Batch<'_> {
    /// What only looks is asked again when its answer was lost.
    pub async fn look_again(
        &mut self,
        groups: &[Group],
        calls: &[Call],
        answers: &mut [Result<Value, Failure>],
    ) {
        for ((group, call), answer) in groups.iter().zip(calls).zip(answers) {
            if matches!(answer, Err(Failure::Lost(_))) && group.only_looks() {
                *answer = self.call_again(call).await;
            }
        }
    }

    /// Makes a call that may be made twice.
    pub async fn call_again(&mut self, call: &Call) -> Result<Value, Failure> {
        let mut tries = 0;
        loop {
            let mut answers = self.link.call(std::slice::from_ref(call)).await;
            tries += 1;
            match answers.pop() {
                Some(Err(Failure::Lost(_))) if tries < TRIES => {}
                Some(answer) => return answer,
                None => return Err(unasked()),
            }
        }
    }

    /// The same for several, of which each is answered for itself.
    pub async fn call_each_again(&mut self, calls: &[Call]) -> Vec<Result<Value, Failure>> {
        let mut answers = self.link.call(calls).await;
        for (call, answer) in calls.iter().zip(&mut answers) {
            if matches!(answer, Err(Failure::Lost(_))) {
                *answer = self.call_again(call).await;
            }
        }
        answers
    }
}
