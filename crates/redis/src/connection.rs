//! One connection to one Redis, with one batch under way at a time.
//!
//! It is written here because whoever asks must know whether what failed can have been done: a connection that was found
//! broken before anything left is another matter than one that broke on the way.

use std::io::ErrorKind;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::library::Library;
use crate::resp::{self, Value};
use crate::url::{Address, Place};

/// How long opening a connection may take in all.
const OPEN_MAX: Duration = Duration::from_secs(5);
/// How long Redis may take for a batch. One that hangs keeps everybody else waiting.
const ANSWER_MAX: Duration = Duration::from_secs(20);
/// What an older one lacks are functions.
const VERSION_MIN: u32 = 7;

/// Why something was not done, or may not have been.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Redis cannot be reached, or cannot answer for now. Nothing was done.
    Unreachable(String),
    /// It said no. Nothing was done.
    Refused(String),
    /// It has no memory left for more. Nothing was done.
    Full,
    /// Another node has it. Nothing was done.
    Moved(String),
    /// It does not have our functions. Nothing was done.
    Unloaded,
    /// It was asked and did not answer: it was done or it was not.
    Lost(String),
    /// It was answered, but what it did is not on as many replicas as wanted: why, and what was answered.
    Unreplicated(String, Value),
}

impl Failure {
    /// What an error that Redis answered means.
    pub fn of(text: &str) -> Self {
        let text = || text.to_owned();
        match text().split(' ').next().unwrap_or_default() {
            "OOM" => Failure::Full,
            "MOVED" | "ASK" | "READONLY" => Failure::Moved(text()),
            "LOADING" | "BUSY" | "CLUSTERDOWN" | "MASTERDOWN" | "TRYAGAIN" | "NOREPLICAS" => {
                Failure::Unreachable(text())
            }
            _ if text().contains("Function not found") => Failure::Unloaded,
            _ => Failure::Refused(text()),
        }
    }

    /// In words.
    pub fn text(&self) -> String {
        match self {
            Failure::Unreachable(text)
            | Failure::Refused(text)
            | Failure::Moved(text)
            | Failure::Unreplicated(text, _)
            | Failure::Lost(text) => text.clone(),
            Failure::Full => "it has no memory left".into(),
            Failure::Unloaded => "it does not keep our functions".into(),
        }
    }
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send + Sync {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send + Sync> Stream for T {}

/// A connection, and who it is to Redis.
pub struct Connection {
    stream: BufReader<Box<dyn Stream>>,
    /// The same socket, to be looked at.
    socket: std::net::TcpStream,
    /// Who we are to Redis on it.
    pub client: Client,
}

/// How Redis tells connections apart. Numbers begin again when it starts, names are ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// Its number since Redis started.
    pub id: i64,
    /// What we called it.
    pub name: String,
}

impl Connection {
    /// Connects and says who we are.
    pub async fn open(
        place: &Place,
        tls: Option<&TlsConnector>,
        address: &Address,
        name: &str,
    ) -> Result<Self, Failure> {
        match timeout(OPEN_MAX, Self::try_open(place, tls, address, name)).await {
            Ok(opened) => opened,
            Err(_) => {
                let seconds = OPEN_MAX.as_secs();
                Err(Failure::Unreachable(format!("{address} says nothing for {seconds} s")))
            }
        }
    }

    async fn try_open(
        place: &Place,
        tls: Option<&TlsConnector>,
        address: &Address,
        name: &str,
    ) -> Result<Self, Failure> {
        let away = |error: std::io::Error| Failure::Unreachable(format!("{address}: {error}"));
        let socket = TcpStream::connect((address.host.as_str(), address.port)).await;
        let socket = socket.and_then(TcpStream::into_std).map_err(away)?;
        socket.set_nodelay(true).map_err(away)?;
        let twin = socket.try_clone().map_err(away)?;
        let socket = TcpStream::from_std(socket).map_err(away)?;
        let stream: Box<dyn Stream> =
            match tls {
                None => Box::new(socket),
                Some(tls) => {
                    let host = ServerName::try_from(address.host.clone());
                    let host = host.map_err(|error| Failure::Refused(error.to_string()))?;
                    let handshake = tls.connect(host, socket).await;
                    // What is wrong with a certificate stays wrong.
                    Box::new(handshake.map_err(|error| {
                        Failure::Refused(format!("{address} over TLS: {error}"))
                    })?)
                }
            };
        let stream = BufReader::with_capacity(64 << 10, stream);
        let client = Client { id: 0, name: name.to_owned() };
        let mut connection = Connection { stream, socket: twin, client };
        connection.introduce(place).await.map_err(|failure| match failure {
            Failure::Lost(text) => Failure::Unreachable(text),
            other => other,
        })?;
        Ok(connection)
    }

    async fn introduce(&mut self, place: &Place) -> Result<(), Failure> {
        let mut hello = vec!["HELLO", "2"];
        let user = place.user.as_deref().unwrap_or("default");
        if let Some(password) = &place.password {
            hello.extend(["AUTH", user, password]);
        }
        let name = self.client.name.clone();
        hello.extend(["SETNAME", &name]);
        let said = self.ask(&hello).await?.list().unwrap_or_default();
        let find = |word: &str| {
            let place = said.iter().position(|part| *part == Value::Text(word.into()))?;
            said.get(place + 1).cloned()
        };
        let version = find("version").and_then(Value::text).unwrap_or_default();
        let version = String::from_utf8_lossy(&version).into_owned();
        let major = version.split('.').next().and_then(|major| major.parse().ok());
        if major.is_none_or(|major: u32| major < VERSION_MIN) {
            let why = format!("it is Redis {version}; version {VERSION_MIN} or later is needed");
            return Err(Failure::Refused(why));
        }
        self.client.id = find("id").and_then(|id| id.int()).unwrap_or_default();
        let mode = find("mode").and_then(Value::text).unwrap_or_default();
        if mode == b"cluster" && !place.cluster {
            let why = "it is part of a cluster; begin its URL with redis+cluster://";
            return Err(Failure::Refused(why.into()));
        }
        if mode != b"cluster" && place.cluster {
            let why = "it is no cluster; begin its URL with redis://";
            return Err(Failure::Refused(why.into()));
        }
        if place.database != 0 {
            self.ask(&["SELECT", &place.database.to_string()]).await?;
        }
        Ok(())
    }

    /// Sees to it that our functions are there. Answers whether they were not.
    pub async fn load(&mut self, library: &Library) -> Result<bool, Failure> {
        let there = self.ask(&["FUNCTION", "LIST", "LIBRARYNAME", library.name()]).await?;
        if there.list().is_some_and(|found| !found.is_empty()) {
            return Ok(false);
        }
        match self.ask(&["FUNCTION", "LOAD", library.text()]).await {
            // Another server was quicker.
            Err(Failure::Refused(text)) if text.contains("already exists") => Ok(false),
            other => other.map(|_| true),
        }
    }

    /// Asks one thing. What Redis refuses is a failure.
    pub async fn ask<T: AsRef<[u8]>>(&mut self, words: &[T]) -> Result<Value, Failure> {
        let mut bytes = Vec::new();
        resp::pack(&mut bytes, words);
        let answer = self.exchange(&bytes, 1).await?.pop();
        match answer {
            Some(Value::Error(text)) => Err(Failure::of(&text)),
            Some(answer) => Ok(answer),
            None => Err(Failure::Lost("no answer".into())),
        }
    }

    /// Sends commands and reads as many answers.
    pub async fn exchange(&mut self, bytes: &[u8], count: usize) -> Result<Vec<Value>, Failure> {
        self.send(bytes).await?;
        self.receive(count).await
    }

    /// Sends commands. A connection that has ended before is [`Failure::Unreachable`].
    pub async fn send(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        if self.has_ended() {
            return Err(Failure::Unreachable("the connection has ended".into()));
        }
        let sending = async {
            self.stream.write_all(bytes).await?;
            self.stream.flush().await
        };
        match timeout(ANSWER_MAX, sending).await {
            Ok(sent) => sent.map_err(|error| Failure::Lost(error.to_string())),
            Err(_) => Err(Failure::Lost(silence())),
        }
    }

    /// Reads this many answers to what was sent.
    pub async fn receive(&mut self, count: usize) -> Result<Vec<Value>, Failure> {
        let receiving = async {
            let mut answers = Vec::with_capacity(count);
            for _ in 0..count {
                answers.push(resp::read(&mut self.stream).await?);
            }
            Ok(answers)
        };
        match timeout(ANSWER_MAX, receiving).await {
            Ok(received) => {
                received.map_err(|error: std::io::Error| Failure::Lost(error.to_string()))
            }
            Err(_) => Err(Failure::Lost(silence())),
        }
    }

    /// Waits for what Redis says without being asked: what others publish.
    pub async fn hear(&mut self) -> Result<Value, Failure> {
        let heard = resp::read(&mut self.stream).await;
        heard.map_err(|error| Failure::Lost(error.to_string()))
    }

    /// Whether the other side has closed it. The system is asked: the runtime may not have heard of it yet.
    fn has_ended(&self) -> bool {
        match self.socket.peek(&mut [0]) {
            Ok(count) => count == 0,
            Err(error) => error.kind() != ErrorKind::WouldBlock,
        }
    }
}

fn silence() -> String {
    format!("it has not answered for {} s", ANSWER_MAX.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_understood() {
        for (text, wanted) in [
            ("OOM command not allowed when used memory > 'maxmemory'.", Failure::Full),
            ("ERR Function not found", Failure::Unloaded),
        ] {
            assert_eq!(Failure::of(text), wanted);
        }
        for text in ["MOVED 3999 127.0.0.1:6381", "READONLY You can't write against a replica."] {
            assert_eq!(Failure::of(text), Failure::Moved(text.into()));
        }
        for text in ["LOADING Redis is loading the dataset", "CLUSTERDOWN Hash slot not served"] {
            assert_eq!(Failure::of(text), Failure::Unreachable(text.into()));
        }
        let text = "MISCONF Errors writing to the AOF file: No space left on device";
        assert_eq!(Failure::of(text), Failure::Refused(text.into()));
    }
}
