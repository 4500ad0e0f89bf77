//! Repeats idempotent calls whose answer was lost.

use taskyard_redis::{Call, Failure, Value};

use super::execute::{Batch, TubeGroup, not_sent};

/// How often a call is tried.
const TRIES: usize = 3;

impl Batch<'_> {
    /// Repeats read-only calls whose answer was lost.
    pub async fn retry_reads(
        &mut self,
        groups: &[TubeGroup],
        calls: &[Call],
        answers: &mut [Result<Value, Failure>],
    ) {
        for ((group, call), answer) in groups.iter().zip(calls).zip(answers) {
            if matches!(answer, Err(Failure::Lost(_))) && group.is_read_only() {
                *answer = self.call_with_retry(call).await;
            }
        }
    }

    /// Makes an idempotent call.
    pub async fn call_with_retry(&mut self, call: &Call) -> Result<Value, Failure> {
        let mut tries = 0;
        loop {
            let mut answers = self.link.call(std::slice::from_ref(call)).await;
            tries += 1;
            match answers.pop() {
                Some(Err(Failure::Lost(_))) if tries < TRIES => {}
                Some(answer) => return answer,
                None => return Err(not_sent()),
            }
        }
    }

    /// Makes several idempotent calls, each with an answer of its own.
    pub async fn call_each_with_retry(&mut self, calls: &[Call]) -> Vec<Result<Value, Failure>> {
        let mut answers = self.link.call(calls).await;
        for (call, answer) in calls.iter().zip(&mut answers) {
            if matches!(answer, Err(Failure::Lost(_))) {
                *answer = self.call_with_retry(call).await;
            }
        }
        answers
    }
}
