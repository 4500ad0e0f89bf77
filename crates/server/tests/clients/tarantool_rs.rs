//! The crate `tarantool-rs`.

use std::net::SocketAddr;

use ::tarantool_rs::{Connection, Error, ExecutorExt, Value};

use crate::play::{Client, ClientAnswer, ClientRefusal};

#[derive(Clone)]
pub struct TarantoolRs(Connection);

impl Client for TarantoolRs {
    async fn connect(address: SocketAddr, user: Option<(&str, &str)>) -> ClientAnswer<Self> {
        let mut builder = Connection::builder();
        if let Some((user, password)) = user {
            builder.auth(user, Some(password));
        }
        Ok(TarantoolRs(builder.build(address).await.map_err(refusal)?))
    }

    async fn call(&self, function: String, args: Value) -> ClientAnswer<Value> {
        let answer = self.0.call(function, list(args)).await.map_err(refusal)?;
        answer.decode_full().map_err(|error| refusal(error.into()))
    }

    async fn eval(&self, expression: &str, args: Value) -> ClientAnswer<Value> {
        let answer = self.0.eval(expression, list(args)).await.map_err(refusal)?;
        answer.decode_full().map_err(|error| refusal(error.into()))
    }

    async fn count(&self, space: &str) -> ClientAnswer<u64> {
        let space = self.0.space(space).await.map_err(refusal)?.expect("the space is there");
        let rows: Vec<Value> = space.select(None, None, None, ()).await.map_err(refusal)?;
        Ok(rows.len() as u64)
    }

    async fn close(self) {
        // The last one of its clones that goes ends the connection.
        drop(self);
    }
}

fn list(args: Value) -> Vec<Value> {
    match args {
        Value::Array(args) => args,
        other => panic!("arguments are a list, not {other}"),
    }
}

fn refusal(error: Error) -> ClientRefusal {
    match error {
        Error::Response(server) | Error::Auth(server) => {
            ClientRefusal { code: server.code, text: server.description }
        }
        other => panic!("the connection itself failed: {other}"),
    }
}
