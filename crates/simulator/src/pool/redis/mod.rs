//! A simulated Redis: serves connections, runs the pool's own function library, crashes and loses data.

mod data;
mod library;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use taskyard_core::Timestamp;
use taskyard_redis::{Value, resp};
use tokio::io::BufReader;
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

use super::net::PoolNetwork;
use super::pipe::{PipeEnd, PipeWriter};
use crate::effects::{FaultName, count_effect};

pub use data::{Bytes, Data};
use library::{LoadedLibrary, Store};

/// How often data is written to disk.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);
/// How many calls a replica may miss.
const REPLICA_LAG_MAX: usize = 12;
/// The longest delay of a command of a slow Redis.
const SLOW_MAX: Duration = Duration::from_millis(300);

/// What a crash loses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Nothing: everything was on disk.
    Nothing,
    /// What was not synced.
    Tail,
    /// Everything.
    All,
}

/// Looks at the data after a call: the name of the function, and its error if it has failed.
pub type CallWatcher = Rc<dyn Fn(&str, &Data, i64, Option<&str>)>;

/// A Redis.
pub struct SimulatedRedis {
    network: PoolNetwork,
    rng: RefCell<Rng>,
    started: Instant,
    start: Timestamp,
    store: Rc<RefCell<Store>>,
    library: RefCell<Option<LoadedLibrary>>,
    /// Changes the text of a library before it is loaded, for planted faults.
    alter: fn(&str) -> String,
    /// The data on disk, and since when.
    synced: RefCell<(Instant, Data)>,
    /// Earlier data, the oldest first, if a replica may take over.
    recent: RefCell<Option<VecDeque<Data>>>,
    frozen: watch::Sender<u32>,
    connections: RefCell<BTreeMap<i64, ConnectedClient>>,
    accepting: RefCell<Option<AbortHandle>>,
    next_client: Cell<i64>,
    subscriptions: RefCell<BTreeMap<Bytes, BTreeMap<i64, PipeWriter>>>,
    /// How many faults lose replies, lose messages, and delay commands.
    pub losing_replies: Cell<u32>,
    pub losing_messages: Cell<u32>,
    pub slow: Cell<u32>,
    watcher: CallWatcher,
    /// Calls of functions so far.
    pub calls: Cell<u64>,
}

struct ConnectedClient {
    name: String,
    serving: Option<AbortHandle>,
}

impl SimulatedRedis {
    /// A Redis that does not run yet.
    pub fn new(
        network: PoolNetwork,
        rng: Rng,
        start: Timestamp,
        alter: fn(&str) -> String,
        keeps_recent: bool,
        watcher: CallWatcher,
    ) -> Rc<Self> {
        Rc::new(SimulatedRedis {
            network,
            rng: RefCell::new(rng),
            started: Instant::now(),
            start,
            store: Rc::default(),
            library: RefCell::default(),
            alter,
            synced: RefCell::new((Instant::now(), Data::default())),
            recent: RefCell::new(keeps_recent.then(VecDeque::new)),
            frozen: watch::channel(0).0,
            connections: RefCell::default(),
            accepting: RefCell::default(),
            next_client: Cell::new(1),
            subscriptions: RefCell::default(),
            losing_replies: Cell::new(0),
            losing_messages: Cell::new(0),
            slow: Cell::new(0),
            watcher,
            calls: Cell::new(0),
        })
    }

    /// Whether its process runs.
    pub fn is_up(&self) -> bool {
        self.accepting.borrow().is_some()
    }

    /// Starts its process.
    pub fn start(self: &Rc<Self>) {
        let run_id = format!("{:040x}", self.rng.borrow_mut().u128(..));
        self.store.borrow_mut().run_id = run_id;
        let loaded = self.library.take();
        let again = loaded.map(|library| library.reload(&self.store));
        *self.library.borrow_mut() = again.and_then(Result::ok);
        let (sender, mut accepted) = mpsc::unbounded_channel();
        self.network.set_redis(Some(sender));
        let redis = self.clone();
        let accepting = tokio::task::spawn_local(async move {
            while let Some(end) = accepted.recv().await {
                redis.accept(end);
            }
        });
        *self.accepting.borrow_mut() = Some(accepting.abort_handle());
    }

    /// Ends its process; returns how many connections that closes, or `None` if it does not run.
    pub fn crash(&self, loss: Loss) -> Option<usize> {
        let accepting = self.accepting.take()?;
        accepting.abort();
        self.network.set_redis(None);
        let closed = self.close_connections();
        match loss {
            Loss::Nothing => {}
            Loss::Tail => {
                let synced = self.synced.borrow().1.clone();
                self.store.borrow_mut().data = synced;
            }
            Loss::All => {
                self.flush();
                self.library.take();
            }
        }
        Some(closed)
    }

    /// A replica takes over that misses the latest calls; returns how many connections that closes, or `None` if none can.
    pub fn fail_over(self: &Rc<Self>) -> Option<usize> {
        let data = self.recent.borrow_mut().as_mut().and_then(VecDeque::pop_front)?;
        let closed = self.crash(Loss::Nothing)?;
        self.store.borrow_mut().data = data;
        self.start();
        Some(closed)
    }

    /// Removes all keys; returns how many there were.
    pub fn flush(&self) -> usize {
        std::mem::take(&mut self.store.borrow_mut().data).keys_with("", i64::MIN).len()
    }

    /// Executes nothing while it is frozen.
    pub fn freeze(&self, freezes: bool) {
        self.frozen.send_modify(|count| *count = if freezes { *count + 1 } else { *count - 1 });
    }

    /// The current data and its time in milliseconds.
    pub fn look<T>(&self, look: impl FnOnce(&Data, i64) -> T) -> T {
        look(&self.store.borrow().data, self.now_us() / 1_000)
    }

    fn now_us(&self) -> i64 {
        self.start.as_micros() + self.started.elapsed().as_micros() as i64
    }

    fn close_connections(&self) -> usize {
        self.subscriptions.borrow_mut().clear();
        let connections = self.connections.take();
        connections
            .values()
            .filter_map(|client| client.serving.as_ref())
            .for_each(AbortHandle::abort);
        connections.len()
    }

    fn accept(self: &Rc<Self>, end: PipeEnd) {
        let id = self.next_client.get();
        self.next_client.set(id + 1);
        let client = ConnectedClient { name: String::new(), serving: None };
        self.connections.borrow_mut().insert(id, client);
        let redis = self.clone();
        let serving = tokio::task::spawn_local(async move {
            redis.serve(id, end).await;
            redis.forget(id);
        });
        if let Some(client) = self.connections.borrow_mut().get_mut(&id) {
            client.serving = Some(serving.abort_handle());
        }
    }

    fn forget(&self, id: i64) {
        self.connections.borrow_mut().remove(&id);
        for clients in self.subscriptions.borrow_mut().values_mut() {
            clients.remove(&id);
        }
    }

    /// Executes the commands of a connection, also those that were sent before it was closed.
    async fn serve(&self, id: i64, end: PipeEnd) {
        let writer = end.writer();
        let mut reader = BufReader::new(end);
        let mut frozen = self.frozen.subscribe();
        while let Ok(command) = resp::read(&mut reader).await {
            if self.slow.get() > 0 {
                let most = SLOW_MAX.as_millis() as u64;
                let pause = self.rng.borrow_mut().u64(0..=most);
                count_effect(FaultName::SlowRedis);
                sleep(Duration::from_millis(pause)).await;
            }
            while *frozen.borrow_and_update() > 0 {
                count_effect(FaultName::FreezeRedis);
                if frozen.changed().await.is_err() {
                    return;
                }
            }
            let words: Vec<Bytes> =
                command.list().unwrap_or_default().into_iter().map(bytes).collect();
            let fate = match self.losing_replies.get() {
                0 => u8::MAX,
                _ => self.rng.borrow_mut().u8(0..20),
            };
            if fate <= 1 {
                count_effect(FaultName::LoseRedisReplies);
            }
            if fate == 0 {
                return;
            }
            let reply = self.execute(id, &words, &writer);
            if fate == 1 || !self.connections.borrow().contains_key(&id) {
                return;
            }
            let mut bytes = Vec::new();
            pack(&mut bytes, &reply);
            writer.send(&bytes);
        }
    }

    fn execute(&self, id: i64, words: &[Bytes], writer: &PipeWriter) -> Value {
        let texts: Vec<_> = words.iter().map(|word| String::from_utf8_lossy(word)).collect();
        let texts: Vec<&str> = texts.iter().map(|word| &**word).collect();
        match &texts[..] {
            ["FCALL", name, "1", _, ..] => self.call(name, &words[3], &words[4..]),
            ["HELLO", options @ ..] => {
                let name = options.iter().skip_while(|word| **word != "SETNAME").nth(1);
                if let Some(client) = self.connections.borrow_mut().get_mut(&id) {
                    client.name = name.copied().unwrap_or_default().to_owned();
                }
                let text = |text: &str| Value::Text(text.into());
                Value::List(vec![
                    text("version"),
                    text("7.2.0"),
                    text("id"),
                    Value::Int(id),
                    text("mode"),
                    text("standalone"),
                ])
            }
            ["FUNCTION", "LIST", "LIBRARYNAME", name] => {
                let library = self.library.borrow();
                let found = library.as_ref().filter(|library| library.name == *name);
                Value::List(
                    found
                        .map(|library| Value::Text(library.name.clone().into()))
                        .into_iter()
                        .collect(),
                )
            }
            ["FUNCTION", "LOAD", text] => {
                match LoadedLibrary::load(&(self.alter)(text), &self.store) {
                    Ok(library) => {
                        let name = library.name.clone();
                        *self.library.borrow_mut() = Some(library);
                        Value::Text(name.into())
                    }
                    Err(error) => Value::Error(error),
                }
            }
            ["SUBSCRIBE", channel] => {
                let mut subscriptions = self.subscriptions.borrow_mut();
                subscriptions.entry(words[1].clone()).or_default().insert(id, writer.clone());
                let parts = ["subscribe", channel].map(|text| Value::Text(text.into()));
                Value::List(parts.into_iter().chain([Value::Int(1)]).collect())
            }
            ["PING"] => Value::List(["pong", ""].map(|text| Value::Text(text.into())).into()),
            ["CLIENT", "LIST", "ID", other] => {
                let connections = self.connections.borrow();
                let found = other.parse().ok().and_then(|id: i64| connections.get(&id));
                let line = found.map(|client| format!("id={other} name={} db=0\n", client.name));
                Value::Text(line.unwrap_or_default().into())
            }
            ["CLIENT", "KILL", "ID", other] => {
                let client = other.parse().ok().and_then(|id: i64| {
                    let client = self.connections.borrow().get(&id)?.serving.clone();
                    self.forget(id);
                    client
                });
                client.iter().for_each(AbortHandle::abort);
                Value::Int(client.is_some().into())
            }
            _ => Value::Error("ERR unknown command".into()),
        }
    }

    /// Calls a function of the library and sends the messages that it publishes.
    fn call(&self, name: &str, key: &Bytes, args: &[Bytes]) -> Value {
        self.calls.set(self.calls.get() + 1);
        self.keep_copies();
        let now_us = self.now_us();
        self.store.borrow_mut().now_us = now_us;
        let (reply, function) = {
            let library = self.library.borrow();
            let Some(library) = library.as_ref() else {
                return Value::Error("ERR Function not found".into());
            };
            let function = name.strip_prefix(&library.name).unwrap_or(name).trim_start_matches('_');
            (library.call(name, key, args), function.to_owned())
        };
        let published = std::mem::take(&mut self.store.borrow_mut().published);
        let error = reply.as_ref().err().map(String::as_str);
        (self.watcher)(&function, &self.store.borrow().data, now_us / 1_000, error);
        for (channel, text) in published {
            self.publish(&channel, &text);
        }
        reply.unwrap_or_else(Value::Error)
    }

    /// Keeps what is on disk, and what replicas have.
    fn keep_copies(&self) {
        let store = self.store.borrow();
        let mut synced = self.synced.borrow_mut();
        if synced.0.elapsed() >= SYNC_INTERVAL {
            *synced = (Instant::now(), store.data.clone());
        }
        if let Some(recent) = &mut *self.recent.borrow_mut() {
            recent.push_back(store.data.clone());
            while recent.len() > REPLICA_LAG_MAX {
                recent.pop_front();
            }
        }
    }

    fn publish(&self, channel: &Bytes, text: &Bytes) {
        let subscriptions = self.subscriptions.borrow();
        let Some(clients) = subscriptions.get(channel) else { return };
        for writer in clients.values() {
            if self.losing_messages.get() > 0 && self.rng.borrow_mut().bool() {
                count_effect(FaultName::LoseMessages);
                continue;
            }
            let parts = [b"message", &channel[..], &text[..]];
            let mut bytes = Vec::new();
            resp::pack(&mut bytes, &parts);
            writer.send(&bytes);
        }
    }
}

fn bytes(value: Value) -> Bytes {
    value.text().unwrap_or_default()
}

/// Appends a reply.
fn pack(bytes: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Nil => bytes.extend_from_slice(b"$-1\r\n"),
        Value::Int(number) => bytes.extend_from_slice(format!(":{number}\r\n").as_bytes()),
        Value::Error(text) => {
            let line = text.replace(['\r', '\n'], " ");
            bytes.extend_from_slice(format!("-{line}\r\n").as_bytes());
        }
        Value::Text(text) => {
            bytes.extend_from_slice(format!("${}\r\n", text.len()).as_bytes());
            bytes.extend_from_slice(text);
            bytes.extend_from_slice(b"\r\n");
        }
        Value::List(values) => {
            bytes.extend_from_slice(format!("*{}\r\n", values.len()).as_bytes());
            values.iter().for_each(|value| pack(bytes, value));
        }
    }
}
