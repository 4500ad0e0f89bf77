//! Calls to Redis and messages from it.

use std::sync::Arc;
use std::time::Duration;

use taskyard_redis::{Answer, Call, Connection, Failure, Link, Value, resp};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

use super::Site;

/// Most calls that go to Redis together.
const CALLS_AT_ONCE: usize = 64;
/// Calls that wait to be made; more wait with their callers.
const CALLS_WAITING: usize = 1024;
/// Messages that wait to be read.
const MESSAGES: usize = 4096;
/// How long nothing may come on a connection before it is tried, and how long the answer may take. Together less than a
/// backend waits for a gateway that has not heard of it.
const SILENCE_MAX: Duration = Duration::from_secs(2);
/// How long to wait before the next try to listen.
const PAUSE: Duration = Duration::from_millis(200);

/// Where a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Nothing of it has left yet.
    Before,
    /// Redis has answered, and nobody knows yet.
    After,
}

/// Who is told of each call, by the name of its function.
pub type Watch = Arc<dyn Fn(&'static str, Moment) + Send + Sync>;

/// Makes calls; those of several callers share the way.
#[derive(Clone, Debug)]
pub struct Wire {
    requests: mpsc::Sender<Request>,
    base: String,
}

#[derive(Debug)]
struct Request {
    calls: Vec<Call>,
    reply: oneshot::Sender<Vec<Answer>>,
}

/// What is heard from Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// Somebody said this.
    Said(String),
    /// From here on everything is heard; what was said before may have been missed.
    Again,
}

impl Wire {
    /// Nothing is connected yet; it ends when the last of its handles is gone.
    pub fn open(site: &Site) -> Self {
        let (requests, inbox) = mpsc::channel(CALLS_WAITING);
        tokio::spawn(carry(Link::new(site.reach.clone()), site.watch.clone(), inbox));
        Wire { requests, base: site.base.clone() }
    }

    /// A call of a function, to be made with others.
    pub(super) fn prepare<T: Into<Vec<u8>>>(&self, function: &'static str, args: Vec<T>) -> Call {
        let args = args.into_iter().map(Into::into).collect();
        Call { function, key: self.base.clone(), args, replicate: false }
    }

    /// Makes calls in this order, and answers for each.
    pub(super) async fn make(&self, calls: Vec<Call>) -> Vec<Answer> {
        let count = calls.len();
        if count == 0 {
            return Vec::new();
        }
        let (reply, answers) = oneshot::channel();
        let gone = || vec![Err(Failure::Unreachable("the way to Redis is closed".into())); count];
        if self.requests.send(Request { calls, reply }).await.is_err() {
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
        let answer = self.make(vec![self.prepare(function, args)]).await.pop();
        answer.unwrap_or_else(|| Err(Failure::Lost("no answer".into())))
    }
}

async fn carry(mut link: Link, watch: Option<Watch>, mut inbox: mpsc::Receiver<Request>) {
    let mut requests = Vec::new();
    while inbox.recv_many(&mut requests, CALLS_AT_ONCE).await > 0 {
        let mut calls = Vec::new();
        let mut waiting = Vec::new();
        for request in requests.drain(..) {
            waiting.push((request.calls.len(), request.reply));
            calls.extend(request.calls);
        }
        let answers = match &watch {
            None => link.call(&calls).await,
            Some(watch) => call_each(&mut link, watch, &calls).await,
        };
        let mut answers = answers.into_iter();
        if answers.as_slice().iter().any(|answer| matches!(answer, Err(Failure::Lost(_)))) {
            // Whoever asks again must not be overtaken by what is still under way.
            link.end_lost().await;
        }
        for (count, reply) in waiting {
            let _ = reply.send(answers.by_ref().take(count).collect());
        }
    }
}

/// Makes calls one after the other, and tells of each.
async fn call_each(link: &mut Link, watch: &Watch, calls: &[Call]) -> Vec<Answer> {
    let mut answers = Vec::new();
    for call in calls {
        watch(call.function, Moment::Before);
        answers.extend(link.call(std::slice::from_ref(call)).await);
        watch(call.function, Moment::After);
    }
    answers
}

/// Listens to this channel as long as anybody reads.
pub(super) fn listen(site: &Site, channel: &str) -> mpsc::Receiver<Heard> {
    let (sender, heard) = mpsc::channel(MESSAGES);
    let (site, channel) = (site.clone(), format!("{}{channel}", site.base));
    tokio::spawn(async move {
        // One for all tries: it remembers what it has said of a Redis that is away.
        let mut link = Link::new(site.reach.clone());
        while !sender.is_closed() {
            if let Err(failure) = hear(&mut link, &channel, &sender).await {
                tracing::debug!(why = failure.text(), "not listening to Redis");
            }
            sleep(PAUSE).await;
        }
    });
    heard
}

async fn hear(link: &mut Link, channel: &str, sender: &mpsc::Sender<Heard>) -> Result<(), Failure> {
    let node = link.masters().await?.into_iter().next();
    let node = node.ok_or_else(|| Failure::Unreachable("no node is known".into()))?;
    let mut connection = link.listener(&node).await?;
    connection.ask(&["SUBSCRIBE", channel]).await?;
    if sender.send(Heard::Again).await.is_err() {
        return Ok(());
    }
    loop {
        let Some(text) = next(&mut connection).await? else { continue };
        if sender.send(Heard::Said(text)).await.is_err() {
            return Ok(());
        }
    }
}

/// The next message; nothing for what is none. A connection that is silent is tried, so that a dead one is noticed.
async fn next(connection: &mut Connection) -> Result<Option<String>, Failure> {
    let heard = match timeout(SILENCE_MAX, connection.hear()).await {
        Ok(heard) => heard?,
        Err(_) => {
            let mut ping = Vec::new();
            resp::pack(&mut ping, &["PING"]);
            connection.send(&ping).await?;
            let answer = timeout(SILENCE_MAX, connection.hear()).await;
            answer.map_err(|_| Failure::Lost("it has gone silent".into()))??
        }
    };
    let parts = heard.list().unwrap_or_default();
    match &parts[..] {
        [kind, _, Value::Text(said)] if *kind == Value::Text(b"message".into()) => {
            Ok(Some(String::from_utf8_lossy(said).into_owned()))
        }
        _ => Ok(None),
    }
}

/// The parts of an answer as texts; what is no text is empty.
pub(super) fn texts(answer: Value) -> Vec<String> {
    answer.list().unwrap_or_default().into_iter().map(text).collect()
}

/// An answer as text.
pub(super) fn text(answer: Value) -> String {
    match answer {
        Value::Text(text) => String::from_utf8_lossy(&text).into_owned(),
        Value::Int(number) => number.to_string(),
        _ => String::new(),
    }
}
