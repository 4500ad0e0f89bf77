//! Reads the status of a pool from Redis.

use serde_json::{Value, json};

use super::RedisError;
use super::client::{RedisClient, text, texts};

/// How many tasks are submitted at once.
const TASKS_PER_BATCH: usize = 500;

/// The status: the last status of the leading scheduler, the leader, all backends and their tasks.
pub async fn read_status(redis: &RedisClient) -> Result<Value, RedisError> {
    let mut response = redis.call("status", Vec::<String>::new()).await?.list().unwrap_or_default();
    let waiting = response.pop().and_then(|value| value.int()).unwrap_or_default();
    let running = response.pop().map(texts).unwrap_or_default();
    let backends = response.pop().map(texts).unwrap_or_default();
    let status = response.pop().and_then(|value| value.text()).unwrap_or_default();
    let leader = response.pop().and_then(|value| value.text()).unwrap_or_default();
    let incarnation = response.pop().map(text).unwrap_or_default();
    let mut body: Value = serde_json::from_slice(&status).unwrap_or_else(|_| json!({}));
    let leader = String::from_utf8_lossy(&leader).into_owned();
    body["leader"] = match leader.split_once(' ') {
        Some((number, name)) => json!({ "number": number, "name": name }),
        None => Value::Null,
    };
    body["in_redis"] = json!({
        "incarnation": incarnation,
        "waiting": waiting,
        "backends": backends.iter().map(|text| backend(text)).collect::<Vec<_>>(),
        "allocations": running.iter().map(|text| allocation(text)).collect::<Vec<_>>(),
    });
    Ok(body)
}

/// Submits `count` tasks without a gateway that wait for ten minutes: for benchmarks of long queues.
pub async fn enqueue_unattended(
    redis: &RedisClient,
    count: usize,
    program: &str,
) -> Result<(), RedisError> {
    let args = [
        "none", "600000", "", "1", "0", "0", "timed", "3000000", "10000000", program, "{}", "", "",
    ];
    let call = redis.prepare("submit", args.map(String::from).to_vec());
    for left in (0..count).rev().step_by(TASKS_PER_BATCH) {
        let some = TASKS_PER_BATCH.min(left + 1);
        for answer in redis.call_all(vec![call.clone(); some]).await {
            answer?;
        }
    }
    Ok(())
}

/// `ID ABOUT`
fn backend(text: &str) -> Value {
    let (id, about) = text.split_once(' ').unwrap_or((text, ""));
    let mut about: Value = serde_json::from_str(about).unwrap_or_else(|_| json!({}));
    about["backend"] = id.into();
    about
}

/// `ID BACKEND ATTEMPT CLASS KIND LIMIT STARTED AGAIN WISH`
fn allocation(text: &str) -> Value {
    let fields: Vec<&str> = text.split_whitespace().collect();
    let field = |at: usize| fields.get(at).copied().unwrap_or_default();
    let number = |at: usize| field(at).parse::<u64>().ok();
    json!({
        "task": field(0),
        "backend": Some(field(1)).filter(|field| *field != "-"),
        "attempt": field(2),
        "class": number(3),
        "kind": field(4),
        "limit_seconds": number(5).map(|micros| micros as f64 / 1e6),
        "started_ms": number(6),
    })
}
