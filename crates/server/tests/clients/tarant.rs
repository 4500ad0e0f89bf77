//! The crate `tarant`.

use std::net::SocketAddr;

use ::tarant::{Client as Connection, ConnectOptions, Error, Reconnect, Value};

use crate::play::{Answer, Client, Refusal};

#[derive(Clone)]
pub struct Tarant(Connection);

impl Client for Tarant {
    async fn connect(address: SocketAddr, user: Option<(&str, &str)>) -> Answer<Self> {
        let mut options = ConnectOptions::new(address.to_string()).reconnect(Reconnect::Never);
        if let Some((user, password)) = user {
            options = options.user(user).password(password);
        }
        Ok(Tarant(Connection::with_options(options).await.map_err(refusal)?))
    }

    async fn call(&self, function: String, args: Value) -> Answer<Value> {
        self.0.call(&function, args).await.map_err(refusal)
    }

    async fn eval(&self, expression: &str, args: Value) -> Answer<Value> {
        self.0.eval(expression, args).await.map_err(refusal)
    }

    async fn count(&self, space: &str) -> Answer<u64> {
        panic!("this client names {space} in a way that Tarantool 3 brought")
    }

    async fn close(self) {
        self.0.close().await;
    }
}

fn refusal(error: Error) -> Refusal {
    match error.as_server() {
        Some(server) => Refusal { code: server.code.0, text: server.message.clone() },
        None => panic!("the connection itself failed: {error}"),
    }
}
