//! The way to Redis: one server, or the masters of a cluster.
//!
//! A call is about the keys of one hash tag, so one node can do it. What a node refuses because another has the key,
//! or because it does not have our functions, was not done and is asked again.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_rustls::TlsConnector;

use crate::connection::{Client, Connection, Failure, Turn};
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

/// Calls that were sent.
pub struct Sent {
    parts: Vec<Part>,
    answers: Vec<Option<Answer>>,
}

/// Those that were sent to one node.
struct Part {
    node: Address,
    client: Client,
    turn: Turn,
    /// Which calls, and whether each waits for replicas.
    places: Vec<(usize, bool)>,
    /// How many replicas are wanted, if the number of those that have it follows.
    replicas: Option<i64>,
}

/// What went wrong on the way to a node.
pub struct Trouble {
    node: Address,
    /// On which connection.
    client: Client,
    why: Failure,
}

impl Sent {
    /// Receives the answers: one for each call, and what the way there must know.
    pub async fn receive(mut self) -> (Vec<Answer>, Vec<Trouble>) {
        let mut troubles = Vec::new();
        for Part { node, client, turn, places, replicas } in self.parts {
            let count = places.len() + usize::from(replicas.is_some());
            let received = match turn.receive(count).await {
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
            troubles.extend(why.cloned().map(|why| Trouble { node, client, why }));
            for ((place, _), answer) in places.into_iter().zip(received) {
                self.answers[place] = Some(answer);
            }
        }
        let unasked = || Err(Failure::Unreachable("it was not asked".into()));
        (self.answers.into_iter().map(|answer| answer.unwrap_or_else(unasked)).collect(), troubles)
    }
}

/// What each call was answered, where so many replicas have it of so many that should.
fn read_answers(
    values: Vec<Value>,
    places: &[(usize, bool)],
    reached: Option<i64>,
    wanted: Option<i64>,
) -> Vec<Answer> {
    let short = match (reached, wanted) {
        (Some(reached), Some(wanted)) if reached < wanted => {
            Some(format!("only {reached} of {wanted} replicas have it"))
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
        let places = open.clone();
        let (made, troubles) = self.begin_some(calls, open).await.receive().await;
        self.heed(troubles);
        for (at, answer) in places.into_iter().zip(made) {
            answers[at] = Some(answer);
        }
    }

    /// Whether calls of these keys can leave at once: their nodes are known and connected, and nothing is to be put in order there.
    pub fn is_ready<'a>(&self, mut keys: impl Iterator<Item = &'a str>) -> bool {
        keys.all(|key| {
            let node = self.known_node_of(key);
            let connection = node.and_then(|node| self.nodes.get(node));
            connection.is_some_and(|connection| !connection.has_ended())
                && !self.lost.iter().any(|(lost, _)| Some(lost) == node)
        })
    }

    /// Sends calls, none of which needs another's effect. Others may be sent before these are answered, and are done after them where they
    /// go to the same node. Whoever has received the answers hands what went wrong to [`Link::heed`].
    pub async fn begin(&mut self, calls: &[Call]) -> Sent {
        self.begin_some(calls, (0..calls.len()).collect()).await
    }

    async fn begin_some(&mut self, calls: &[Call], open: Vec<usize>) -> Sent {
        let mut answers: Vec<Option<Answer>> = open.iter().map(|_| None).collect();
        let mut by_node: BTreeMap<Address, Vec<(usize, usize)>> = BTreeMap::new();
        for (place, at) in open.into_iter().enumerate() {
            match self.node_of(&calls[at].key).await {
                Ok(node) => by_node.entry(node).or_default().push((place, at)),
                Err(failure) => answers[place] = Some(Err(failure)),
            }
        }
        let mut parts = Vec::new();
        for (node, places) in by_node {
            let sent: Vec<&Call> = places.iter().map(|(_, at)| &calls[*at]).collect();
            match self.send(&node, &sent).await {
                Ok((turn, client, replicas)) => {
                    let waits = sent.iter().map(|call| replicas.is_some() && call.replicate);
                    let places = places.iter().map(|(place, _)| *place).zip(waits).collect();
                    parts.push(Part { node, client, turn, places, replicas });
                }
                Err(failure) => {
                    places.iter().for_each(|at| answers[at.0] = Some(Err(failure.clone())));
                }
            }
        }
        Sent { parts, answers }
    }

    /// Sends calls to a node. Answers whose turn it is to read the answers, by which connection, and how many replicas should have them if
    /// the number of those that do follows.
    async fn send(
        &mut self,
        node: &Address,
        calls: &[&Call],
    ) -> Result<(Turn, Client, Option<i64>), Failure> {
        let mut bytes = Vec::new();
        let mut replicate = false;
        for call in calls {
            let name = self.reach.library.function(call.function);
            let words: Vec<&[u8]> = [&b"FCALL"[..], name.as_bytes(), b"1", call.key.as_bytes()]
                .into_iter()
                .chain(call.args.iter().map(Vec::as_slice))
                .collect();
            resp::pack(&mut bytes, &words);
            replicate |= call.replicate;
        }
        let place = &self.reach.place;
        let wanted = i64::from(place.replicas);
        replicate &= wanted > 0;
        if replicate {
            let (count, wait) = (place.replicas.to_string(), place.replicas_wait.as_millis());
            resp::pack(&mut bytes, &["WAIT", &count, &wait.to_string()]);
        }
        if self.nodes.get_mut(node).is_some_and(Connection::is_abandoned) {
            self.broken(node, &Failure::Lost("whoever waited for an answer has gone".into()));
        }
        if self.orderly {
            self.end_lost_at(node).await?;
        }
        let known = self.nodes.contains_key(node);
        let mut sent = self.connection(node).await?.send(&bytes).await;
        if known && matches!(sent, Err(Failure::Unreachable(_))) {
            let idle = self.nodes.get_mut(node).is_some_and(Connection::is_idle);
            if !idle {
                // Those who wait for answers hear that it was lost, and put that in order first.
                return Err(Failure::Unreachable("the connection has ended".into()));
            }
            // It ended while nobody used it.
            self.nodes.remove(node);
            sent = self.connection(node).await?.send(&bytes).await;
        }
        if let Err(failure) = sent {
            self.broken(node, &failure);
            return Err(failure);
        }
        let connection = self.connection(node).await?;
        Ok((connection.turn(), connection.client.clone(), replicate.then_some(wanted)))
    }

    /// Does what went wrong asks for.
    pub fn heed(&mut self, troubles: Vec<Trouble>) {
        for Trouble { node, client, why } in troubles {
            // Others may have noticed before.
            let same = self.nodes.get(&node).is_some_and(|connection| connection.client == client);
            match why {
                Failure::Lost(_) if same => self.broken(&node, &why),
                // Nobody asks there any more, but what was sent may still be read.
                Failure::Lost(_) => self.note_lost(node, client),
                // A server that was a master is asked again by a new connection: its name may mean another now.
                Failure::Moved(_) => {
                    self.slots = None;
                    self.forget(&node, same);
                }
                // Opening a connection loads them.
                _ => {
                    tracing::warn!(%node, "Redis has lost our functions; loading them again");
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
            tracing::warn!(%node, why = failure.text(), "a batch was lost on the way to Redis");
            self.note_lost(node.clone(), connection.client);
        }
    }

    fn note_lost(&mut self, node: Address, client: Client) {
        let one = (node, client);
        if !self.lost.contains(&one) {
            self.lost.push(one);
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

    /// The node that has this key, as far as is known.
    fn known_node_of(&self, key: &str) -> Option<&Address> {
        if !self.reach.place.cluster {
            return self.reach.place.nodes.first();
        }
        self.slots.as_ref().and_then(|slots| slots.node(slots::slot(key)))
    }

    /// The node that has this key.
    async fn node_of(&mut self, key: &str) -> Result<Address, Failure> {
        if self.reach.place.cluster && self.slots.is_none() {
            self.slots = Some(self.read_slots().await?);
        }
        self.known_node_of(key)
            .cloned()
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
