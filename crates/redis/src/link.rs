//! The way to Redis: one server, or the masters of a cluster.
//!
//! A call is about the keys of one hash tag, so one node can do it. What a node refuses because another has the key,
//! or because it does not have our functions, was not done and is asked again.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_rustls::TlsConnector;

use crate::connection::{Client, Connection, Failure};
use crate::library::Library;
use crate::resp::{self, Value};
use crate::slots::{self, Slots};
use crate::tls;
use crate::url::{Address, Place};

/// How often a call is made that was not done because another node has the key, or for lack of functions.
const TRIES: usize = 5;
/// How long to leave a node alone that cannot be reached: at first, and at most.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// What all connections have in common.
pub struct Reach {
    /// Where it is.
    pub place: Place,
    library: Library,
    tls: Option<TlsConnector>,
    /// What connections are called.
    name: String,
}

impl Reach {
    /// Connections to this place, which have this name in Redis and find this library there.
    pub fn new(place: Place, name: String, library: Library) -> Result<Self, String> {
        let advice = "name another with sslrootcert=FILE in the URL";
        let tls = place.tls.then(|| tls::connector(place.root.as_deref(), advice)).transpose()?;
        Ok(Reach { place, library, tls, name })
    }
}

/// One call of a function.
#[derive(Clone, Debug)]
pub struct Call {
    /// Which function of the library.
    pub function: &'static str,
    /// The tag with what begins all keys, which is where the call goes.
    pub key: String,
    /// What it is told.
    pub args: Vec<Vec<u8>>,
    /// Whether replicas are to have what it did before it is answered.
    pub replicate: bool,
}

/// What came of a call.
pub type Answer = Result<Value, Failure>;

/// The connections of one who asks.
pub struct Link {
    reach: Arc<Reach>,
    nodes: HashMap<Address, Connection>,
    slots: Option<Slots>,
    away: HashMap<Address, Away>,
    /// Connections that were lost while something was under way on them, which may still be.
    lost: Vec<(Address, Client)>,
    /// Whether a node is asked only when nothing is under way there any more.
    orderly: bool,
}

/// A node that could not be reached.
struct Away {
    why: String,
    pause: Duration,
    /// Until then nobody tries.
    until: Instant,
}

impl Link {
    /// Nothing is connected yet.
    pub fn new(reach: Arc<Reach>) -> Self {
        let (nodes, away) = (HashMap::new(), HashMap::new());
        Link { reach, nodes, slots: None, away, lost: Vec::new(), orderly: false }
    }

    /// The same, but a node on the way to which something was lost is asked again only when that is ended: Redis may still read what had
    /// been sent. Other nodes are asked meanwhile.
    pub fn orderly(reach: Arc<Reach>) -> Self {
        Link { orderly: true, ..Self::new(reach) }
    }

    /// Makes calls, none of which needs another's effect, and answers for each.
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
        let unasked = || Err(Failure::Unreachable("it was not asked".into()));
        answers.into_iter().map(|answer| answer.unwrap_or_else(unasked)).collect()
    }

    /// Makes these calls once.
    async fn round(&mut self, calls: &[Call], open: Vec<usize>, answers: &mut [Option<Answer>]) {
        let mut by_node: BTreeMap<Address, Vec<usize>> = BTreeMap::new();
        for at in open {
            match self.node_of(&calls[at].key).await {
                Ok(node) => by_node.entry(node).or_default().push(at),
                Err(failure) => answers[at] = Some(Err(failure)),
            }
        }
        let mut sent = Vec::new();
        for (node, places) in by_node {
            match self.send(&node, calls, &places).await {
                Ok(replicas) => sent.push((node, places, replicas)),
                Err(failure) => {
                    places.iter().for_each(|at| answers[*at] = Some(Err(failure.clone())))
                }
            }
        }
        for (node, places, replicas) in sent {
            let waits: Vec<bool> =
                places.iter().map(|at| replicas && calls[*at].replicate).collect();
            let received = self.receive(&node, &waits, replicas).await;
            for (at, answer) in places.into_iter().zip(received) {
                answers[at] = Some(answer);
            }
        }
    }

    /// Sends calls to a node. Answers whether the number of replicas that have them follows.
    async fn send(
        &mut self,
        node: &Address,
        calls: &[Call],
        places: &[usize],
    ) -> Result<bool, Failure> {
        let mut bytes = Vec::new();
        let mut replicate = false;
        for call in places.iter().map(|at| &calls[*at]) {
            let name = self.reach.library.function(call.function);
            let words: Vec<&[u8]> = [&b"FCALL"[..], name.as_bytes(), b"1", call.key.as_bytes()]
                .into_iter()
                .chain(call.args.iter().map(Vec::as_slice))
                .collect();
            resp::pack(&mut bytes, &words);
            replicate |= call.replicate;
        }
        let place = &self.reach.place;
        replicate &= place.replicas > 0;
        if replicate {
            let (count, wait) = (place.replicas.to_string(), place.replicas_wait.as_millis());
            resp::pack(&mut bytes, &["WAIT", &count, &wait.to_string()]);
        }
        if self.orderly {
            self.end_lost_at(node).await?;
        }
        let known = self.nodes.contains_key(node);
        let mut sent = self.connection(node).await?.send(&bytes).await;
        if known && matches!(sent, Err(Failure::Unreachable(_))) {
            // It ended while nobody used it.
            self.nodes.remove(node);
            sent = self.connection(node).await?.send(&bytes).await;
        }
        if let Err(failure) = sent {
            self.broken(node, &failure);
            return Err(failure);
        }
        Ok(replicate)
    }

    /// Receives an answer for each of these, and if so the number of replicas, for which some of them wait.
    async fn receive(&mut self, node: &Address, waits: &[bool], replicas: bool) -> Vec<Answer> {
        let count = waits.len();
        let Some(connection) = self.nodes.get_mut(node) else {
            return vec![Err(Failure::Lost("the connection is gone".into())); count];
        };
        let mut values = match connection.receive(count + usize::from(replicas)).await {
            Ok(values) => values,
            Err(failure) => {
                self.broken(node, &failure);
                return vec![Err(failure); count];
            }
        };
        let wanted = i64::from(self.reach.place.replicas);
        let reached = if replicas { values.pop().and_then(|value| value.int()) } else { None };
        let answers: Vec<Answer> = values
            .into_iter()
            .zip(waits)
            .map(|(value, waits)| match value {
                Value::Error(text) => Err(Failure::of(&text)),
                value => match reached {
                    Some(reached) if *waits && reached < wanted => {
                        let why = format!("only {reached} of {wanted} replicas have it");
                        Err(Failure::Unreplicated(why, value))
                    }
                    _ => Ok(value),
                },
            })
            .collect();
        self.heed(node, &answers).await;
        answers
    }

    /// Does what refusals ask for.
    async fn heed(&mut self, node: &Address, answers: &[Answer]) {
        if answers.iter().any(|answer| matches!(answer, Err(Failure::Moved(_)))) {
            self.slots = None;
            // A server that was a master is asked again by a new connection: its name may mean another now.
            self.nodes.remove(node);
        } else if answers.iter().any(|answer| matches!(answer, Err(Failure::Unloaded))) {
            tracing::warn!(%node, "Redis has lost our functions; loading them again");
            // Opening a connection loads them.
            self.nodes.remove(node);
        }
    }

    fn broken(&mut self, node: &Address, failure: &Failure) {
        self.slots = None;
        let Some(connection) = self.nodes.remove(node) else { return };
        if matches!(failure, Failure::Lost(_)) {
            tracing::warn!(%node, why = failure.text(), "a batch was lost on the way to Redis");
            self.lost.push((node.clone(), connection.client));
        }
    }

    /// Sees to it that nothing is under way any more on connections that were lost, where that can be done now.
    pub async fn end_lost(&mut self) {
        let nodes: BTreeSet<Address> = self.lost.iter().map(|(node, _)| node.clone()).collect();
        for node in nodes {
            let _ = self.end_lost_at(&node).await;
        }
    }

    /// The same for one node. When another has its place nobody asks this one any more, and what it still does is thrown away when it learns of
    /// that.
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

    /// Asks a node one thing. A connection on which that fails is not used again.
    async fn ask(&mut self, node: &Address, words: &[&str]) -> Answer {
        let answer = self.connection(node).await?.ask(words).await;
        if answer.is_err() {
            self.nodes.remove(node);
        }
        answer
    }

    /// A connection to a node that is used for nothing else.
    pub async fn listener(&mut self, node: &Address) -> Result<Connection, Failure> {
        self.connect(node).await
    }

    /// Asks every master the same thing.
    pub async fn ask_masters(&mut self, words: &[&str]) -> Result<Vec<Value>, Failure> {
        let mut answers = Vec::new();
        for node in self.masters().await? {
            answers.push(self.ask(&node, words).await?);
        }
        Ok(answers)
    }

    async fn connection(&mut self, node: &Address) -> Result<&mut Connection, Failure> {
        if !self.nodes.contains_key(node) {
            let connection = self.connect(node).await?;
            self.nodes.insert(node.clone(), connection);
        }
        self.nodes.get_mut(node).ok_or_else(|| Failure::Unreachable("it is gone".into()))
    }

    /// Connects. While the last try is too short a time ago this fails at once, so that many callers do not
    /// become as many tries.
    async fn connect(&mut self, node: &Address) -> Result<Connection, Failure> {
        if let Some(away) = self.away.get(node)
            && away.until > Instant::now()
        {
            return Err(Failure::Unreachable(away.why.clone()));
        }
        let opened = self.try_connect(node).await;
        match &opened {
            Ok(_) => {
                if self.away.remove(node).is_some() {
                    tracing::warn!(%node, "Redis is back");
                }
            }
            Err(failure) => self.failed(node, failure),
        }
        opened
    }

    async fn try_connect(&self, node: &Address) -> Result<Connection, Failure> {
        let Reach { place, tls, name, library } = &*self.reach;
        let mut connection = Connection::open(place, tls.as_ref(), node, name).await?;
        match connection.load(library).await {
            // A replica gets them from its master.
            Ok(_) | Err(Failure::Moved(_)) => Ok(connection),
            Err(Failure::Lost(text)) => Err(Failure::Unreachable(text)),
            Err(other) => Err(other),
        }
    }

    fn failed(&mut self, node: &Address, failure: &Failure) {
        let why = failure.text();
        let before = self.away.get(node).map(|away| away.pause);
        if before.is_none() {
            tracing::warn!(%node, why, "Redis cannot be reached; trying again");
        }
        let pause = before.map_or(PAUSE_MIN, |pause| pause.saturating_mul(2).min(PAUSE_MAX));
        self.away.insert(node.clone(), Away { why, pause, until: Instant::now() + pause });
        self.slots = None;
    }

    /// How long to wait before the next try.
    pub fn pause(&self) -> Duration {
        self.away.values().map(|away| away.pause).max().unwrap_or(PAUSE_MIN)
    }

    /// The node that has this key.
    async fn node_of(&mut self, key: &str) -> Result<Address, Failure> {
        if !self.reach.place.cluster {
            return Ok(self.reach.place.nodes[0].clone());
        }
        if self.slots.is_none() {
            self.slots = Some(self.read_slots().await?);
        }
        let node = self.slots.as_ref().and_then(|slots| slots.node(slots::slot(key)));
        node.cloned()
            .ok_or_else(|| Failure::Unreachable("a slot of the cluster has no node".into()))
    }

    /// All that are masters now.
    pub async fn masters(&mut self) -> Result<BTreeSet<Address>, Failure> {
        if !self.reach.place.cluster {
            return Ok(self.reach.place.nodes.iter().cloned().collect());
        }
        if self.slots.is_none() {
            self.slots = Some(self.read_slots().await?);
        }
        Ok(self.slots.as_ref().map(Slots::nodes).unwrap_or_default())
    }

    /// Asks the nodes that are known, one after the other, who has what.
    async fn read_slots(&mut self) -> Result<Slots, Failure> {
        let mut nodes: Vec<Address> = self.nodes.keys().cloned().collect();
        nodes.extend(self.reach.place.nodes.iter().cloned());
        nodes.extend(self.away.keys().cloned());
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
