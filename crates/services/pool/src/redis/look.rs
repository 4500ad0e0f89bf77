//! How a pool over Redis is, from any machine.

use serde_json::{Value, json};

use super::RedisError;
use super::wire::{Wire, text, texts};

/// Most tasks that are brought together.
const BROUGHT_AT_ONCE: usize = 500;

/// The status: what the scheduler that leads counted last, beside who leads, all backends, and who holds them.
pub async fn look(wire: &Wire) -> Result<Value, RedisError> {
    let mut said = wire.call("look", Vec::<String>::new()).await?.list().unwrap_or_default();
    let waiting = said.pop().and_then(|value| value.int()).unwrap_or_default();
    let running = said.pop().map(texts).unwrap_or_default();
    let backends = said.pop().map(texts).unwrap_or_default();
    let status = said.pop().and_then(|value| value.text()).unwrap_or_default();
    let leader = said.pop().and_then(|value| value.text()).unwrap_or_default();
    let life = said.pop().map(text).unwrap_or_default();
    let mut body: Value = serde_json::from_slice(&status).unwrap_or_else(|_| json!({}));
    let leader = String::from_utf8_lossy(&leader).into_owned();
    body["leader"] = match leader.split_once(' ') {
        Some((number, name)) => json!({ "number": number, "name": name }),
        None => Value::Null,
    };
    body["in_redis"] = json!({
        "life": life,
        "waiting": waiting,
        "backends": backends.iter().map(|text| backend(text)).collect::<Vec<_>>(),
        "allocations": running.iter().map(|text| allocation(text)).collect::<Vec<_>>(),
    });
    Ok(body)
}

/// Brings so many tasks that nobody follows and that wait for ten minutes: for measurements of long queues.
pub async fn bring(wire: &Wire, count: usize, program: &str) -> Result<(), RedisError> {
    let args = [
        "nobody", "600000", "", "1", "0", "0", "timed", "3000000", "10000000", program, "{}", "",
        "",
    ];
    let call = wire.prepare("arrive", args.map(String::from).to_vec());
    for left in (0..count).rev().step_by(BROUGHT_AT_ONCE) {
        let some = BROUGHT_AT_ONCE.min(left + 1);
        for answer in wire.make(vec![call.clone(); some]).await {
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
    let words: Vec<&str> = text.split_whitespace().collect();
    let word = |at: usize| words.get(at).copied().unwrap_or_default();
    let number = |at: usize| word(at).parse::<u64>().ok();
    json!({
        "task": word(0),
        "backend": Some(word(1)).filter(|word| *word != "-"),
        "attempt": word(2),
        "class": number(3),
        "kind": word(4),
        "limit_seconds": number(5).map(|micros| micros as f64 / 1e6),
        "started_ms": number(6),
    })
}
