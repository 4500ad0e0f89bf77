//! The crate `tarant`.

use std::net::SocketAddr;

use ::tarant::{Client as Connection, ConnectOptions, Error, Reconnect, Value};

use crate::play::{Client, ClientAnswer, ClientRefusal};

#[derive(Clone)]
pub struct Tarant(Connection);

impl Client for Tarant {
    async fn connect(address: SocketAddr, user: Option<(&str, &str)>) -> ClientAnswer<Self> {
        let mut options = ConnectOptions::new(address.to_string()).reconnect(Reconnect::Never);
        if let Some((user, password)) = user {
            options = options.user(user).password(password);
        }
        Ok(Tarant(Connection::with_options(options).await.map_err(refusal)?))
    }

    async fn call(&self, function: String, args: Value) -> ClientAnswer<Value> {
        self.0.call(&function, args).await.map_err(refusal)
    }

    async fn eval(&self, expression: &str, args: Value) -> ClientAnswer<Value> {
        self.0.eval(expression, args).await.map_err(refusal)
    }

    async fn count(&self, space: &str) -> ClientAnswer<u64> {
        panic!("this client names {space} in a way that Tarantool 3 brought")
    }

    async fn close(self) {
        self.0.close().await;
    }
}

fn refusal(error: Error) -> ClientRefusal {
    match error.as_server() {
        Some(server) => ClientRefusal { code: server.code.0, text: server.message.clone() },
        None => panic!("the connection itself failed: {error}"),
    }
}
