//! Pairs of calls on one semaphore, in both orders.

use super::super::Harness;
use super::pair::PAIRS;

/// One call after the other, in both orders.
pub async fn two_calls_in_both_orders<H: Harness>(queue: H) {
    for (number, pair) in PAIRS.iter().enumerate() {
        for first in [0, 1] {
            let name = format!("pair {number} {first}");
            let calls = pair.prepare(&queue, &name).await;
            let mut answers = [Vec::new(), Vec::new()];
            for place in [first, 1 - first] {
                answers[place] = queue.execute(calls[place].clone()).await;
            }
            let observed = pair.observe(&queue, &name, answers).await;
            let expected = pair.serial(queue.now(), &name, first).await;
            assert_eq!(observed, expected, "{}, call {first} first", pair.name);
        }
    }
}

/// Both calls in one batch, as a server sends the concurrent commands of two clients.
pub async fn two_calls_in_one_batch<H: Harness>(queue: H) {
    for (number, pair) in PAIRS.iter().enumerate() {
        for first in [0, 1] {
            let name = format!("batch {number} {first}");
            let calls = pair.prepare(&queue, &name).await;
            let batch = [calls[first].clone(), calls[1 - first].clone()].concat();
            let mut replies = queue.execute(batch).await;
            let later = replies.split_off(calls[first].len());
            let answers = if first == 0 { [replies, later] } else { [later, replies] };
            let observed = pair.observe(&queue, &name, answers).await;
            let expected = pair.serial(queue.now(), &name, first).await;
            assert_eq!(observed, expected, "{}, call {first} first", pair.name);
        }
    }
}
