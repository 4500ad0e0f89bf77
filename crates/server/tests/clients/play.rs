//! Plays the scenario with a client that is a Rust crate.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::task::Poll;

use ::tarant::Value;
use serde_json::{Value as Json, json};
use tokio::task::JoinHandle;

use crate::scenario::{self, Ability, Action, Case, Step};
use crate::site::ScenarioServer;

/// How a client is called.
pub trait Client: Clone + Send + Sync + 'static {
    /// Connects, as a user if there is one.
    async fn connect(address: SocketAddr, user: Option<(&str, &str)>) -> ClientAnswer<Self>;
    /// Calls a function; the arguments are a list.
    fn call(
        &self,
        function: String,
        args: Value,
    ) -> impl Future<Output = ClientAnswer<Value>> + Send;
    /// Sends Lua.
    async fn eval(&self, expression: &str, args: Value) -> ClientAnswer<Value>;
    /// Counts the rows of a space.
    async fn count(&self, space: &str) -> ClientAnswer<u64>;
    /// Ends the connection.
    async fn close(self);
}

/// An answer, or the refusal.
pub type ClientAnswer<T> = Result<T, ClientRefusal>;

/// An error of the server.
#[derive(Debug)]
pub struct ClientRefusal {
    pub code: u32,
    pub text: String,
}

/// Plays the whole scenario against its own server. Then the player must notice wrong answers.
pub async fn play<C: Client>(cannot: &[Ability]) {
    let site = ScenarioServer::new().await;
    for case in scenario::cases(cannot) {
        play_case::<C>(&case, site.address()).await.unwrap_or_else(|wrong| panic!("{wrong}"));
    }
    for case in scenario::wrong_cases(cannot) {
        let played = play_case::<C>(&case, site.address()).await;
        assert!(played.is_err(), "goes on: {}", case.name);
    }
}

/// Plays a case up to the first answer that is not as it should be.
async fn play_case<C: Client>(case: &Case, address: SocketAddr) -> Result<(), String> {
    let (connections, started, kept) = (HashMap::new(), HashMap::new(), HashMap::new());
    let mut player = Player::<C> { address, connections, started, kept };
    for step in &case.steps {
        let answer = player.act(&step.action).await;
        player.compare(step, answer).map_err(|wrong| {
            format!("{} ({}): {:?}\n{wrong}", case.name, step.place, step.action)
        })?;
    }
    for connection in player.connections.into_values() {
        connection.close().await;
    }
    Ok(())
}

/// A call under way, and the connection that it is on.
struct Started {
    on: &'static str,
    call: JoinHandle<ClientAnswer<Value>>,
}

struct Player<C> {
    address: SocketAddr,
    connections: HashMap<&'static str, C>,
    started: HashMap<&'static str, Started>,
    kept: HashMap<&'static str, Value>,
}

impl<C: Client> Player<C> {
    async fn act(&mut self, action: &Action) -> ClientAnswer<Value> {
        match action {
            Action::Connect { on, user, password } => {
                let connection = C::connect(self.address, Some((user, password))).await?;
                self.connections.insert(on, connection);
            }
            Action::Close { on } => {
                let connection = self.connections.remove(on).expect("it was connected");
                // A call under way would keep the connection open.
                for (_, started) in self.started.extract_if(|_, started| started.on == *on) {
                    started.call.abort();
                    assert!(started.call.await.is_err_and(|error| error.is_cancelled()));
                }
                connection.close().await;
            }
            Action::Call { on, function, args } => {
                let args = self.packed(args);
                return self.connection(on).await?.call(function.clone(), args).await;
            }
            Action::Eval { on, expression, args } => {
                let args = self.packed(args);
                return self.connection(on).await?.eval(expression, args).await;
            }
            Action::Select { on, space } => {
                let count = self.connection(on).await?.count(space).await?;
                return Ok(Value::Array(vec![count.into()]));
            }
            Action::Start { on, function, args, label } => {
                let args = self.packed(args);
                let (connection, function) = (self.connection(on).await?, function.clone());
                let under_way = connection.clone();
                let mut call = Box::pin(async move { under_way.call(function, args).await });
                // The first poll sends the request, and the server takes those of a connection in
                // order.
                let first = poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await;
                let call = tokio::spawn(async move {
                    match first {
                        Poll::Ready(answer) => answer,
                        Poll::Pending => call.await,
                    }
                });
                self.started.insert(label, Started { on, call });
                return connection.call("queue.state".into(), Value::Array(Vec::new())).await;
            }
            Action::Await { label } => {
                let started = self.started.remove(label).expect("it was started");
                return started.call.await.expect("the call ends");
            }
        }
        Ok(Value::Nil)
    }

    async fn connection(&mut self, on: &'static str) -> ClientAnswer<C> {
        if !self.connections.contains_key(on) {
            self.connections.insert(on, C::connect(self.address, None).await?);
        }
        Ok(self.connections[on].clone())
    }

    fn compare(&mut self, step: &Step, answer: ClientAnswer<Value>) -> Result<(), String> {
        match (answer, &step.fails) {
            (Err(refusal), Some((code, text)))
                if refusal.code == *code && refusal.text.contains(text) => {}
            (Err(refusal), Some(wanted)) => {
                return Err(format!("should fail with {wanted:?}, but {refusal:?}"));
            }
            (Ok(answer), Some(wanted)) => {
                return Err(format!("should fail with {wanted:?}, but gives {answer}"));
            }
            (Err(refusal), None) => return Err(format!("{refusal:?}")),
            (Ok(answer), None) => {
                let wanted = step.gives.as_ref().map(|wanted| self.packed(wanted));
                if wanted.as_ref().is_some_and(|wanted| plain(wanted) != plain(&answer)) {
                    return Err(format!("should give {}\nbut gives   {answer}", wanted.unwrap()));
                }
                if let Some(name) = step.keeps {
                    self.kept.insert(name, answer[0].clone());
                }
            }
        }
        Ok(())
    }

    /// A value of the scenario as MessagePack has it.
    fn packed(&self, value: &Json) -> Value {
        match value {
            Json::Null => Value::Nil,
            Json::Bool(value) => Value::Boolean(*value),
            Json::Number(number) => match (number.as_u64(), number.as_i64()) {
                (Some(whole), _) => whole.into(),
                (_, Some(whole)) => whole.into(),
                _ => number.as_f64().expect("a number").into(),
            },
            Json::String(text) => text.as_str().into(),
            Json::Array(items) => {
                Value::Array(items.iter().map(|item| self.packed(item)).collect())
            }
            Json::Object(fields) => match fields.get("kept").and_then(Json::as_str) {
                Some(name) => self.kept[name].clone(),
                None => fields
                    .iter()
                    .map(|(key, v)| (key.as_str().into(), self.packed(v)))
                    .collect::<Vec<_>>()
                    .into(),
            },
        }
    }
}

/// A value in a form where the order of a map and the width of a number make no difference.
fn plain(value: &Value) -> Json {
    match value {
        Value::Nil => Json::Null,
        Value::Boolean(value) => json!(value),
        Value::Integer(whole) => json!(whole.as_f64()),
        Value::F32(number) => json!(number),
        Value::F64(number) => json!(number),
        Value::String(text) => json!({ "bytes": text.as_bytes() }),
        Value::Binary(bytes) => json!({ "binary": bytes }),
        Value::Array(items) => items.iter().map(plain).collect(),
        Value::Map(fields) => {
            fields.iter().map(|(key, value)| (key.to_string(), plain(value))).collect()
        }
        Value::Ext(kind, bytes) => json!({ "ext": kind, "bytes": bytes }),
    }
}
