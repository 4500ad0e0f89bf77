//! Calls functions in Redis: one server, or the masters of a cluster.
//!
//! A call uses the keys of one hash tag, so one node can run it. A call that a node refuses because
//! another node has the key, or because it has not loaded the functions, was not executed and is
//! repeated.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_rustls::TlsConnector;

use crate::connection::{AnswerSlot, Client, Connection, Failure};
use crate::dialer::{RedisDialer, TcpDialer};
use crate::library::Library;
use crate::resp::{self, Value};
use crate::slots::{self, Slots};
use crate::url::{Address, RedisUrl};

/// How often a call is sent that was refused because another node has the key or the functions were
/// missing.
const TRIES: usize = 5;
/// The pause after a failed connection to a node: the first, and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How many keys are tried to find one on every master.
const KEYS_MAX: usize = 100_000;

/// What all connections have in common.
pub struct Connector {
    /// The URL of Redis.
    pub url: RedisUrl,
    library: Library,
    tls: Option<TlsConnector>,
    dialer: Arc<dyn RedisDialer>,
    /// The name of the connections.
    name: String,
}

impl Connector {
    /// Creates connections for this URL that have this name in Redis and load this library.
    pub fn new(url: RedisUrl, name: String, library: Library) -> Result<Self, String> {
        let advice = "name another with sslrootcert=FILE in the URL";
        let tls =
            url.tls.then(|| taskyard_tls::connector(url.root.as_deref(), advice)).transpose()?;
        Ok(Connector { url, library, tls, dialer: Arc::new(TcpDialer), name })
    }

    /// Opens connections with this dialer instead of TCP.
    pub fn with_dialer(self, dialer: Arc<dyn RedisDialer>) -> Self {
        Connector { dialer, ..self }
    }
}

/// One call of a function.
#[derive(Clone, Debug)]
pub struct Call {
    /// Which function of the library.
    pub function: &'static str,
    /// The hash tag with which all its keys begin; it determines the node.
    pub key: String,
    /// Its arguments.
    pub args: Vec<Vec<u8>>,
    /// Whether replicas must confirm the change before the call is answered.
    pub replicate: bool,
}

/// The result of a call.
pub type Answer = Result<Value, Failure>;

/// The connections of one caller to all nodes.
pub struct Link {
    connector: Arc<Connector>,
    nodes: HashMap<Address, Connection>,
    slots: Option<Slots>,
    unreachable: HashMap<Address, UnreachableNode>,
    /// Connections that were lost during a request, which Redis may still execute.
    lost: Vec<(Address, Client)>,
    /// Whether a node is used again only after requests on its lost connections have ended.
    ordered: bool,
}

/// A node that could not be reached.
struct UnreachableNode {
    why: String,
    pause: Duration,
    /// When the next attempt is allowed.
    until: Instant,
}

/// Calls that were sent.
pub struct SentCalls {
    nodes: Vec<NodeCalls>,
    answers: Vec<Option<Answer>>,
}

/// The calls that were sent to one node.
struct NodeCalls {
    node: Address,
    client: Client,
    answer_slot: AnswerSlot,
    /// The index of each call, and whether it waits for replicas.
    places: Vec<(usize, bool)>,
    /// How many replicas must confirm, if the number of those that did follows.
    replicas: Option<i64>,
}

/// A failure of a node.
pub struct NodeFailure {
    node: Address,
    /// The connection.
    client: Client,
    why: Failure,
}

impl SentCalls {
    /// Receives the answers: one for each call, and the failures for [`Link::handle_failures`].
    pub async fn receive(mut self) -> (Vec<Answer>, Vec<NodeFailure>) {
        let mut failures = Vec::new();
        for NodeCalls { node, client, answer_slot, places, replicas } in self.nodes {
            let count = places.len() + usize::from(replicas.is_some());
            let received = match answer_slot.receive(count).await {
                Ok(mut values) => {
                    let reached = if replicas.is_some() { values.pop() } else { None };
                    read_answers(values, &places, reached.and_then(|value| value.int()), replicas)
                }
                Err(failure) => vec![Err(failure); places.len()],
            };
            let why = received.iter().find_map(|answer| match answer {
                Err(why @ (Failure::Lost(_) | Failure::Moved(_) | Failure::Unloaded)) => Some(why),
                _ => None,
            });
            failures.extend(why.cloned().map(|why| NodeFailure { node, client, why }));
            for ((place, _), answer) in places.into_iter().zip(received) {
                self.answers[place] = Some(answer);
            }
        }
        let unasked = || Err(Failure::Unreachable("the call was not sent".into()));
        (self.answers.into_iter().map(|answer| answer.unwrap_or_else(unasked)).collect(), failures)
    }
}

/// The result of each call, given how many replicas confirmed and how many must.
fn read_answers(
    values: Vec<Value>,
    places: &[(usize, bool)],
    reached: Option<i64>,
    wanted: Option<i64>,
) -> Vec<Answer> {
    let short = match (reached, wanted) {
        (Some(reached), Some(wanted)) if reached < wanted => {
            Some(format!("only {reached} of {wanted} replicas confirmed it"))
        }
        _ => None,
    };
    let each = values.into_iter().zip(places).map(|(value, (_, waits))| match (value, &short) {
        (Value::Error(text), _) => Err(Failure::of(&text)),
        (value, Some(why)) if *waits => Err(Failure::Unreplicated(why.clone(), value)),
        (value, _) => Ok(value),
    });
    each.collect()
}

impl Link {
    /// A link without connections.
    pub fn new(connector: Arc<Connector>) -> Self {
        let (nodes, unreachable) = (HashMap::new(), HashMap::new());
        Link { connector, nodes, slots: None, unreachable, lost: Vec::new(), ordered: false }
    }

    /// A link that uses a node again only after the requests on its lost connections have ended:
    /// Redis may still read what was sent. Other nodes are used meanwhile.
    pub fn ordered(connector: Arc<Connector>) -> Self {
        Link { ordered: true, ..Self::new(connector) }
    }

    /// Runs calls that do not depend on each other, and returns the answer to each.
    pub async fn call(&mut self, calls: &[Call]) -> Vec<Answer> {
        let mut answers: Vec<Option<Answer>> = calls.iter().map(|_| None).collect();
        for tries in 1..=TRIES {
            let open: Vec<usize> = (0..calls.len()).filter(|at| answers[*at].is_none()).collect();
            if open.is_empty() {
                break;
            }
            self.round(calls, open, &mut answers).await;
            for answer in answers.iter_mut().filter(|_| tries < TRIES) {
                if matches!(answer, Some(Err(Failure::Moved(_) | Failure::Unloaded))) {
                    *answer = None;
                }
            }
        }
        let unasked = || Err(Failure::Unreachable("the call was not sent".into()));
        answers.into_iter().map(|answer| answer.unwrap_or_else(unasked)).collect()
    }

    /// Sends these calls once.
    async fn round(&mut self, calls: &[Call], open: Vec<usize>, answers: &mut [Option<Answer>]) {
        let places = open.clone();
        let (made, failures) = self.begin_some(calls, open).await.receive().await;
        self.handle_failures(failures);
        for (at, answer) in places.into_iter().zip(made) {
            answers[at] = Some(answer);
        }
    }

    /// Whether calls of these keys can be sent at once: their nodes are known and connected, and no
    /// lost connection must be ended there.
    pub fn is_ready<'a>(&self, mut keys: impl Iterator<Item = &'a str>) -> bool {
        keys.all(|key| {
            let node = self.known_node_of(key);
            let connection = node.and_then(|node| self.nodes.get(node));
            connection.is_some_and(|connection| !connection.has_ended())
                && !self.lost.iter().any(|(lost, _)| Some(lost) == node)
        })
    }

    /// Sends calls that do not depend on each other. Others may be sent before these are answered,
    /// and run after them on the same node. After receiving the answers, the caller passes the
    /// failures to [`Link::handle_failures`].
    pub async fn begin(&mut self, calls: &[Call]) -> SentCalls {
        self.begin_some(calls, (0..calls.len()).collect()).await
    }

    async fn begin_some(&mut self, calls: &[Call], open: Vec<usize>) -> SentCalls {
        let mut answers: Vec<Option<Answer>> = open.iter().map(|_| None).collect();
        let mut by_node: BTreeMap<Address, Vec<(usize, usize)>> = BTreeMap::new();
        for (place, at) in open.into_iter().enumerate() {
            match self.node_of(&calls[at].key).await {
                Ok(node) => by_node.entry(node).or_default().push((place, at)),
                Err(failure) => answers[place] = Some(Err(failure)),
            }
        }
        let mut nodes = Vec::new();
        for (node, places) in by_node {
            let sent: Vec<&Call> = places.iter().map(|(_, at)| &calls[*at]).collect();
            match self.send(&node, &sent).await {
                Ok((answer_slot, client, replicas)) => {
                    let waits = sent.iter().map(|call| replicas.is_some() && call.replicate);
                    let places = places.iter().map(|(place, _)| *place).zip(waits).collect();
                    nodes.push(NodeCalls { node, client, answer_slot, places, replicas });
                }
                Err(failure) => {
                    places.iter().for_each(|at| answers[at.0] = Some(Err(failure.clone())));
                }
            }
        }
        SentCalls { nodes, answers }
    }

    /// Sends calls to a node. Returns the right to read the answers, the connection, and how many
    /// replicas must confirm if the number of those that did follows.
    async fn send(
        &mut self,
        node: &Address,
        calls: &[&Call],
    ) -> Result<(AnswerSlot, Client, Option<i64>), Failure> {
        let mut bytes = Vec::new();
        let mut replicate = false;
        for call in calls {
            let name = self.connector.library.function(call.function);
            let words: Vec<&[u8]> = [&b"FCALL"[..], name.as_bytes(), b"1", call.key.as_bytes()]
                .into_iter()
                .chain(call.args.iter().map(Vec::as_slice))
                .collect();
            resp::pack(&mut bytes, &words);
            replicate |= call.replicate;
        }
        let url = &self.connector.url;
        let wanted = i64::from(url.replicas);
        replicate &= wanted > 0;
        if replicate {
            let (count, wait) = (url.replicas.to_string(), url.replicas_wait.as_millis());
            resp::pack(&mut bytes, &["WAIT", &count, &wait.to_string()]);
        }
        if self.nodes.get_mut(node).is_some_and(Connection::is_abandoned) {
            self.broken(node, &Failure::Lost("the receiver of an answer was dropped".into()));
        }
        if self.ordered {
            self.end_lost_at(node).await?;
        }
        let known = self.nodes.contains_key(node);
        let mut sent = self.connection(node).await?.send(&bytes).await;
        if known && matches!(sent, Err(Failure::Unreachable(_))) {
            let idle = self.nodes.get_mut(node).is_some_and(Connection::is_idle);
            if !idle {
                // The receivers of earlier answers see that these were lost; that is handled first.
                return Err(Failure::Unreachable("the connection has ended".into()));
            }
            // It ended while it was idle.
            self.nodes.remove(node);
            sent = self.connection(node).await?.send(&bytes).await;
        }
        if let Err(failure) = sent {
            self.broken(node, &failure);
            return Err(failure);
        }
        let connection = self.connection(node).await?;
        Ok((connection.answer_slot(), connection.client.clone(), replicate.then_some(wanted)))
    }

    /// Closes connections and drops the slot map as the failures require.
    pub fn handle_failures(&mut self, failures: Vec<NodeFailure>) {
        for NodeFailure { node, client, why } in failures {
            // An earlier failure may have closed the connection already.
            let same = self.nodes.get(&node).is_some_and(|connection| connection.client == client);
            match why {
                Failure::Lost(_) if same => self.broken(&node, &why),
                // The connection is not used any more, but Redis may still read what was sent.
                Failure::Lost(_) => self.record_lost(node, client),
                // The host name of a former master may belong to another server now, so the
                // connection is opened again.
                Failure::Moved(_) => {
                    self.slots = None;
                    self.forget(&node, same);
                }
                // Opening a connection loads the functions.
                _ => {
                    tracing::warn!(%node, "Redis has lost the functions; loading them again");
                    self.forget(&node, same);
                }
            }
        }
    }

    fn forget(&mut self, node: &Address, same: bool) {
        if same {
            self.nodes.remove(node);
        }
    }

    fn broken(&mut self, node: &Address, failure: &Failure) {
        self.slots = None;
        let Some(connection) = self.nodes.remove(node) else { return };
        if matches!(failure, Failure::Lost(_)) {
            tracing::warn!(%node, why = failure.text(), "a batch to Redis was lost: it may have been executed");
            self.record_lost(node.clone(), connection.client);
        }
    }

    fn record_lost(&mut self, node: Address, client: Client) {
        let one = (node, client);
        if !self.lost.contains(&one) {
            self.lost.push(one);
        }
    }

    /// Ends requests on lost connections, on all nodes that can be reached now.
    pub async fn end_lost(&mut self) {
        let nodes: BTreeSet<Address> = self.lost.iter().map(|(node, _)| node.clone()).collect();
        for node in nodes {
            let _ = self.end_lost_at(&node).await;
        }
    }

    /// Ends requests on lost connections to one node. If another node has taken over its slots,
    /// this one is not used any more, and its changes are discarded when it learns of that.
    async fn end_lost_at(&mut self, node: &Address) -> Result<(), Failure> {
        while let Some(place) = self.lost.iter().position(|(at, _)| at == node) {
            let client = self.lost[place].1.clone();
            self.end(node, &client).await.map_err(|failure| match failure {
                Failure::Lost(text) => Failure::Unreachable(text),
                other => other,
            })?;
            self.lost.remove(place);
        }
        Ok(())
    }

    async fn end(&mut self, node: &Address, client: &Client) -> Result<(), Failure> {
        let id = client.id.to_string();
        let listed = self.ask(node, &["CLIENT", "LIST", "ID", &id]).await?.text();
        let listed = listed.unwrap_or_default();
        if String::from_utf8_lossy(&listed).contains(&format!(" name={} ", client.name)) {
            self.ask(node, &["CLIENT", "KILL", "ID", &id]).await?;
        }
        Ok(())
    }

    /// Sends one command to a node. After a failure the connection is not used again.
    async fn ask(&mut self, node: &Address, words: &[&str]) -> Answer {
        let answer = self.connection(node).await?.ask(words).await;
        if answer.is_err() {
            self.nodes.remove(node);
        }
        answer
    }

    /// A separate connection to a node, for subscriptions.
    pub async fn listener(&mut self, node: &Address) -> Result<Connection, Failure> {
        self.connect(node).await
    }

    /// Sends the same command to every master.
    pub async fn ask_masters(&mut self, words: &[&str]) -> Result<Vec<Value>, Failure> {
        let mut answers = Vec::new();
        for node in self.masters().await? {
            answers.push(self.ask(&node, words).await?);
        }
        Ok(answers)
    }

    /// A key on every master. They differ from all keys that do not begin with `{prefix:check`.
    pub async fn keys_of_masters(&mut self, prefix: &str) -> Result<Vec<String>, Failure> {
        let mut masters = self.masters().await?;
        let mut keys = Vec::new();
        for number in 0..KEYS_MAX {
            let key = format!("{{{prefix}:check{number}}}");
            if masters.remove(&self.node_of(&key).await?) {
                keys.push(key);
            }
            if masters.is_empty() {
                return Ok(keys);
            }
        }
        Err(Failure::Unreachable("a master of the cluster has too few slots".into()))
    }

    async fn connection(&mut self, node: &Address) -> Result<&mut Connection, Failure> {
        if !self.nodes.contains_key(node) {
            let connection = self.connect(node).await?;
            self.nodes.insert(node.clone(), connection);
        }
        self.nodes
            .get_mut(node)
            .ok_or_else(|| Failure::Unreachable("the connection is closed".into()))
    }

    /// Connects. Fails at once if the last attempt was too recent, so that many callers do not
    /// cause as many attempts.
    async fn connect(&mut self, node: &Address) -> Result<Connection, Failure> {
        if let Some(unreachable) = self.unreachable.get(node)
            && unreachable.until > Instant::now()
        {
            return Err(Failure::Unreachable(unreachable.why.clone()));
        }
        let opened = self.try_connect(node).await;
        match &opened {
            Ok(_) => {
                if self.unreachable.remove(node).is_some() {
                    tracing::warn!(%node, "Redis is reachable again");
                }
            }
            Err(failure) => self.failed(node, failure),
        }
        opened
    }

    async fn try_connect(&self, node: &Address) -> Result<Connection, Failure> {
        let Connector { url, tls, dialer, name, library } = &*self.connector;
        let mut connection = Connection::open(url, &**dialer, tls.as_ref(), node, name).await?;
        match connection.load(library).await {
            // A replica gets the functions from its master.
            Ok(_) | Err(Failure::Moved(_)) => Ok(connection),
            Err(Failure::Lost(text)) => Err(Failure::Unreachable(text)),
            Err(other) => Err(other),
        }
    }

    fn failed(&mut self, node: &Address, failure: &Failure) {
        let why = failure.text();
        let before = self.unreachable.get(node).map(|unreachable| unreachable.pause);
        if before.is_none() {
            tracing::warn!(%node, why, "cannot reach Redis; retrying");
        }
        let pause = before.map_or(PAUSE_MIN, |pause| pause.saturating_mul(2).min(PAUSE_MAX));
        self.unreachable
            .insert(node.clone(), UnreachableNode { why, pause, until: Instant::now() + pause });
        self.slots = None;
    }

    /// How long to wait before the next attempt.
    pub fn pause(&self) -> Duration {
        self.unreachable.values().map(|unreachable| unreachable.pause).max().unwrap_or(PAUSE_MIN)
    }

    /// The node that has this key, if it is known.
    fn known_node_of(&self, key: &str) -> Option<&Address> {
        if !self.connector.url.cluster {
            return self.connector.url.nodes.first();
        }
        self.slots.as_ref().and_then(|slots| slots.node(slots::slot(key)))
    }

    /// The node that has this key.
    async fn node_of(&mut self, key: &str) -> Result<Address, Failure> {
        if self.connector.url.cluster && self.slots.is_none() {
            self.slots = Some(self.read_slots().await?);
        }
        self.known_node_of(key)
            .cloned()
            .ok_or_else(|| Failure::Unreachable("a slot of the cluster has no node".into()))
    }

    /// All masters.
    pub async fn masters(&mut self) -> Result<BTreeSet<Address>, Failure> {
        if !self.connector.url.cluster {
            return Ok(self.connector.url.nodes.iter().cloned().collect());
        }
        if self.slots.is_none() {
            self.slots = Some(self.read_slots().await?);
        }
        Ok(self.slots.as_ref().map(Slots::nodes).unwrap_or_default())
    }

    /// Asks the known nodes for the slot map, one after the other.
    async fn read_slots(&mut self) -> Result<Slots, Failure> {
        let mut nodes: Vec<Address> = self.nodes.keys().cloned().collect();
        nodes.extend(self.connector.url.nodes.iter().cloned());
        nodes.extend(self.unreachable.keys().cloned());
        let mut last = Failure::Unreachable("no node of the cluster is known".into());
        for node in nodes {
            let said = self.ask(&node, &["CLUSTER", "SLOTS"]).await;
            match said.map(|said| Slots::read(said, &node)) {
                Ok(Some(slots)) => return Ok(slots),
                Ok(None) => last = Failure::Refused("slots of the cluster are unreadable".into()),
                Err(failure) => last = failure,
            }
        }
        match last {
            Failure::Lost(text) => Err(Failure::Unreachable(text)),
            other => Err(other),
        }
    }
}
