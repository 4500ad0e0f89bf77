//! Calls functions in Redis and receives published messages.

use std::sync::Arc;
use std::time::Duration;

use taskyard_redis::{Answer, Call, Connection, Failure, Link, Value, resp};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

use super::PoolAddress;

/// How many batches of calls go to Redis in one round trip.
const CALLS_PER_TRIP: usize = 64;
/// Batches that wait to be sent; further callers wait.
const CALLS_WAITING: usize = 1024;
/// Messages that wait to be read.
const MESSAGES_WAITING: usize = 4096;
/// How long a connection may be silent before it is tested, and how long the test may take. Together less than a
/// backend waits for a gateway that does not know of it yet.
const SILENCE_MAX: Duration = Duration::from_secs(2);
/// Delay before the next attempt to subscribe.
const RETRY_DELAY: Duration = Duration::from_millis(200);

/// The stage of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallStage {
    /// It was not sent yet.
    Before,
    /// Redis has answered, and the caller does not know it yet.
    After,
}

/// Called for each call with the name of its function.
pub type CallObserver = Arc<dyn Fn(&'static str, CallStage) + Send + Sync>;

/// Calls functions in Redis; calls of several callers share a connection.
#[derive(Clone, Debug)]
pub struct RedisClient {
    requests: mpsc::Sender<CallBatch>,
    base: String,
}

#[derive(Debug)]
struct CallBatch {
    calls: Vec<Call>,
    reply: oneshot::Sender<Vec<Answer>>,
}

/// A notification from Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Notification {
    /// A published message.
    Message(String),
    /// The subscription is active again; earlier messages may have been missed.
    Resubscribed,
}

impl RedisClient {
    /// Opens a client without connecting yet; it ends when its last handle is dropped.
    pub fn open(address: &PoolAddress) -> Self {
        let (requests, inbox) = mpsc::channel(CALLS_WAITING);
        tokio::spawn(run_calls(Link::new(address.reach.clone()), address.observer.clone(), inbox));
        RedisClient { requests, base: address.base.clone() }
    }

    /// Prepares a call, to be made with others.
    pub(super) fn prepare<T: Into<Vec<u8>>>(&self, function: &'static str, args: Vec<T>) -> Call {
        let args = args.into_iter().map(Into::into).collect();
        Call { function, key: self.base.clone(), args, replicate: false }
    }

    /// Makes calls in this order and returns their answers.
    pub(super) async fn call_all(&self, calls: Vec<Call>) -> Vec<Answer> {
        let count = calls.len();
        if count == 0 {
            return Vec::new();
        }
        let (reply, answers) = oneshot::channel();
        let gone =
            || vec![Err(Failure::Unreachable("the connection to Redis is closed".into())); count];
        if self.requests.send(CallBatch { calls, reply }).await.is_err() {
            return gone();
        }
        answers.await.unwrap_or_else(|_| gone())
    }

    /// Makes one call.
    pub(super) async fn call<T: Into<Vec<u8>>>(
        &self,
        function: &'static str,
        args: Vec<T>,
    ) -> Answer {
        let answer = self.call_all(vec![self.prepare(function, args)]).await.pop();
        answer.unwrap_or_else(|| Err(Failure::Lost("no answer".into())))
    }
}

async fn run_calls(
    mut link: Link,
    observer: Option<CallObserver>,
    mut inbox: mpsc::Receiver<CallBatch>,
) {
    let mut requests = Vec::new();
    while inbox.recv_many(&mut requests, CALLS_PER_TRIP).await > 0 {
        let mut calls = Vec::new();
        let mut waiting = Vec::new();
        for request in requests.drain(..) {
            waiting.push((request.calls.len(), request.reply));
            calls.extend(request.calls);
        }
        let answers = match &observer {
            None => link.call(&calls).await,
            Some(observer) => call_each(&mut link, observer, &calls).await,
        };
        let mut answers = answers.into_iter();
        if answers.as_slice().iter().any(|answer| matches!(answer, Err(Failure::Lost(_)))) {
            // A repeated call must not be overtaken by one that is still under way.
            link.end_lost().await;
        }
        for (count, reply) in waiting {
            let _ = reply.send(answers.by_ref().take(count).collect());
        }
    }
}

/// Makes calls one by one and reports each to the observer.
async fn call_each(link: &mut Link, observer: &CallObserver, calls: &[Call]) -> Vec<Answer> {
    let mut answers = Vec::new();
    for call in calls {
        observer(call.function, CallStage::Before);
        answers.extend(link.call(std::slice::from_ref(call)).await);
        observer(call.function, CallStage::After);
    }
    answers
}

/// Subscribes to a channel as long as the receiver exists.
pub(super) fn subscribe(address: &PoolAddress, channel: &str) -> mpsc::Receiver<Notification> {
    let (sender, received) = mpsc::channel(MESSAGES_WAITING);
    let (address, channel) = (address.clone(), format!("{}{channel}", address.base));
    tokio::spawn(async move {
        // One link for all attempts: it remembers which failures it has logged.
        let mut link = Link::new(address.reach.clone());
        while !sender.is_closed() {
            if let Err(failure) = receive(&mut link, &channel, &sender).await {
                tracing::debug!(why = failure.text(), "cannot subscribe to Redis");
            }
            sleep(RETRY_DELAY).await;
        }
    });
    received
}

async fn receive(
    link: &mut Link,
    channel: &str,
    sender: &mpsc::Sender<Notification>,
) -> Result<(), Failure> {
    let node = link.masters().await?.into_iter().next();
    let node = node.ok_or_else(|| Failure::Unreachable("no node is known".into()))?;
    let mut connection = link.listener(&node).await?;
    connection.ask(&["SUBSCRIBE", channel]).await?;
    if sender.send(Notification::Resubscribed).await.is_err() {
        return Ok(());
    }
    loop {
        let Some(text) = next_message(&mut connection).await? else { continue };
        if sender.send(Notification::Message(text)).await.is_err() {
            return Ok(());
        }
    }
}

/// The next message; `None` for other replies. A silent connection is tested, so that a dead one is noticed.
async fn next_message(connection: &mut Connection) -> Result<Option<String>, Failure> {
    let received = match timeout(SILENCE_MAX, connection.next_message()).await {
        Ok(received) => received?,
        Err(_) => {
            let mut ping = Vec::new();
            resp::pack(&mut ping, &["PING"]);
            connection.send(&ping).await?;
            let answer = timeout(SILENCE_MAX, connection.next_message()).await;
            answer.map_err(|_| Failure::Lost("the connection is silent".into()))??
        }
    };
    let parts = received.list().unwrap_or_default();
    match &parts[..] {
        [kind, _, Value::Text(text_bytes)] if *kind == Value::Text(b"message".into()) => {
            Ok(Some(String::from_utf8_lossy(text_bytes).into_owned()))
        }
        _ => Ok(None),
    }
}

/// The parts of a reply as texts; parts that are not text are empty.
pub(super) fn texts(answer: Value) -> Vec<String> {
    answer.list().unwrap_or_default().into_iter().map(text).collect()
}

/// A reply as text.
pub(super) fn text(answer: Value) -> String {
    match answer {
        Value::Text(text) => String::from_utf8_lossy(&text).into_owned(),
        Value::Int(number) => number.to_string(),
        _ => String::new(),
    }
}
