//! One connection to one Redis server. Redis answers in the order of the requests, so more requests
//! may be sent before all answers are read.
//!
//! The connection is our own because a caller must know whether a failed request may have been
//! executed: a connection that was found broken before anything was sent differs from one that
//! broke afterwards.

use std::io::ErrorKind;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader, ReadHalf, WriteHalf, split};
use tokio::sync::oneshot::{self, error::TryRecvError};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::dialer::{ByteStream, DialedStream, RedisDialer};
use crate::library::Library;
use crate::resp::{self, Value};
use crate::url::{Address, RedisUrl};

/// How long opening a connection may take in all.
const OPEN_MAX: Duration = Duration::from_secs(5);
/// How long Redis may take for a batch. A Redis that hangs delays all other callers.
const ANSWER_MAX: Duration = Duration::from_secs(20);
/// Older versions have no functions.
const VERSION_MIN: u32 = 7;

/// Why a request was not executed, or may not have been.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Redis cannot be reached, or cannot answer for now. Nothing was done.
    Unreachable(String),
    /// Redis refused it. Nothing was done, unless [`Failure::may_be_done`].
    Refused(String),
    /// Redis has no memory left. Nothing was done.
    Full,
    /// Another node has the key. Nothing was done.
    Moved(String),
    /// Redis has not loaded the functions. Nothing was done.
    Unloaded,
    /// It was sent and not answered: it may or may not have been executed.
    Lost(String),
    /// It was executed, but too few replicas confirmed it: the reason, and the answer.
    Unreplicated(String, Value),
}

impl Failure {
    /// Classifies an error that Redis answered.
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

    /// Whether the request may have been executed, or a part of it: there was no answer, or a
    /// function failed, whose writes are not undone.
    pub fn may_be_done(&self) -> bool {
        match self {
            Failure::Lost(_) => true,
            // Redis names the line of the function.
            Failure::Refused(text) => text.contains("user_function:"),
            _ => false,
        }
    }

    /// The message.
    pub fn text(&self) -> String {
        match self {
            Failure::Unreachable(text)
            | Failure::Refused(text)
            | Failure::Moved(text)
            | Failure::Unreplicated(text, _)
            | Failure::Lost(text) => text.clone(),
            Failure::Full => "Redis has no memory left".into(),
            Failure::Unloaded => "Redis has not loaded the functions".into(),
        }
    }
}

type Reader = BufReader<ReadHalf<Box<dyn ByteStream>>>;

/// A connection and its identity in Redis.
pub struct Connection {
    writer: WriteHalf<Box<dyn ByteStream>>,
    reader: ReaderSlot,
    /// The beginning of a message that Redis pushes.
    buffered: Vec<u8>,
    /// Whether the other side has closed it.
    has_ended: Box<dyn Fn() -> bool + Send + Sync>,
    /// The identity of the connection in Redis.
    pub client: Client,
}

/// How Redis identifies a connection. Ids start again when Redis restarts; names are chosen by us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// Its number since Redis was started.
    pub id: i64,
    /// Its name.
    pub name: String,
}

/// The reading half of the connection: owned, or lent to the receiver of an earlier answer, which
/// passes it on. If that receiver is dropped, the reading half is lost.
enum ReaderSlot {
    Owned(Reader),
    Lent(oneshot::Receiver<Reader>),
}

/// The right to read the answers to one request, after those to all earlier requests.
pub struct AnswerSlot {
    reader: ReaderSlot,
    next: oneshot::Sender<Reader>,
}

impl AnswerSlot {
    /// Reads this many answers, after all earlier receivers have read theirs.
    pub async fn receive(self, count: usize) -> Result<Vec<Value>, Failure> {
        let lost = |error: std::io::Error| Failure::Lost(error.to_string());
        // Waiting for earlier receivers does not count for the timeout.
        let mut reader = self.reader.get().await.map_err(lost)?;
        let receiving = async {
            let mut answers = Vec::with_capacity(count);
            for _ in 0..count {
                answers.push(resp::read(&mut reader).await?);
            }
            // The connection may be closed meanwhile.
            let _ = self.next.send(reader);
            Ok(answers)
        };
        match timeout(ANSWER_MAX, receiving).await {
            Ok(received) => received.map_err(lost),
            Err(_) => Err(Failure::Lost(timeout_text())),
        }
    }
}

impl ReaderSlot {
    async fn get(self) -> std::io::Result<Reader> {
        match self {
            ReaderSlot::Owned(reader) => Ok(reader),
            ReaderSlot::Lent(reader) => reader.await.map_err(|_| ErrorKind::BrokenPipe.into()),
        }
    }

    /// Takes the reading half back, as soon as all receivers have their answers.
    async fn keep(&mut self) -> std::io::Result<&mut Reader> {
        if let ReaderSlot::Lent(reader) = self {
            let reader = reader.await.map_err(|_| std::io::Error::from(ErrorKind::BrokenPipe))?;
            *self = ReaderSlot::Owned(reader);
        }
        match self {
            ReaderSlot::Owned(reader) => Ok(reader),
            ReaderSlot::Lent(_) => Err(ErrorKind::BrokenPipe.into()),
        }
    }
}

impl Connection {
    /// Connects and authenticates.
    pub async fn open(
        url: &RedisUrl,
        dialer: &dyn RedisDialer,
        tls: Option<&TlsConnector>,
        address: &Address,
        name: &str,
    ) -> Result<Self, Failure> {
        match timeout(OPEN_MAX, Self::try_open(url, dialer, tls, address, name)).await {
            Ok(opened) => opened,
            Err(_) => {
                let seconds = OPEN_MAX.as_secs();
                Err(Failure::Unreachable(format!("{address} did not answer within {seconds} s")))
            }
        }
    }

    async fn try_open(
        url: &RedisUrl,
        dialer: &dyn RedisDialer,
        tls: Option<&TlsConnector>,
        address: &Address,
        name: &str,
    ) -> Result<Self, Failure> {
        let unreachable =
            |error: std::io::Error| Failure::Unreachable(format!("{address}: {error}"));
        let DialedStream { stream, has_ended } = dialer.dial(address).await.map_err(unreachable)?;
        let stream: Box<dyn ByteStream> =
            match tls {
                None => stream,
                Some(tls) => {
                    let host = ServerName::try_from(address.host.clone());
                    let host = host.map_err(|error| Failure::Refused(error.to_string()))?;
                    let handshake = tls.connect(host, stream).await;
                    // A wrong certificate is a permanent error.
                    Box::new(handshake.map_err(|error| {
                        Failure::Refused(format!("{address} over TLS: {error}"))
                    })?)
                }
            };
        let client = Client { id: 0, name: name.to_owned() };
        let mut connection = Connection::new(stream, has_ended, client);
        connection.handshake(url).await.map_err(|failure| match failure {
            Failure::Lost(text) => Failure::Unreachable(text),
            other => other,
        })?;
        Ok(connection)
    }

    fn new(
        stream: Box<dyn ByteStream>,
        has_ended: Box<dyn Fn() -> bool + Send + Sync>,
        client: Client,
    ) -> Self {
        let (reader, writer) = split(stream);
        let reader = ReaderSlot::Owned(BufReader::with_capacity(64 << 10, reader));
        Connection { writer, reader, buffered: Vec::new(), has_ended, client }
    }

    async fn handshake(&mut self, url: &RedisUrl) -> Result<(), Failure> {
        let mut hello = vec!["HELLO", "2"];
        let user = url.user.as_deref().unwrap_or("default");
        if let Some(password) = &url.password {
            hello.extend(["AUTH", user, password]);
        }
        let name = self.client.name.clone();
        hello.extend(["SETNAME", &name]);
        let said = self.ask(&hello).await?.list().unwrap_or_default();
        let find = |word: &str| {
            let index = said.iter().position(|part| *part == Value::Text(word.into()))?;
            said.get(index + 1).cloned()
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
        if mode == b"cluster" && !url.cluster {
            let why = "it is part of a cluster; begin its URL with redis+cluster://";
            return Err(Failure::Refused(why.into()));
        }
        if mode != b"cluster" && url.cluster {
            let why = "it is no cluster; begin its URL with redis://";
            return Err(Failure::Refused(why.into()));
        }
        if url.database != 0 {
            self.ask(&["SELECT", &url.database.to_string()]).await?;
        }
        Ok(())
    }

    /// Loads the functions if they are missing. Returns whether they were.
    pub async fn load(&mut self, library: &Library) -> Result<bool, Failure> {
        let there = self.ask(&["FUNCTION", "LIST", "LIBRARYNAME", library.name()]).await?;
        if there.list().is_some_and(|found| !found.is_empty()) {
            return Ok(false);
        }
        match self.ask(&["FUNCTION", "LOAD", library.text()]).await {
            // Another server has loaded them meanwhile.
            Err(Failure::Refused(text)) if text.contains("already exists") => Ok(false),
            other => other.map(|_| true),
        }
    }

    /// Sends one command and reads its answer. A refusal is a failure.
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
            self.writer.write_all(bytes).await?;
            self.writer.flush().await
        };
        match timeout(ANSWER_MAX, sending).await {
            Ok(sent) => sent.map_err(|error| Failure::Lost(error.to_string())),
            Err(_) => Err(Failure::Lost(timeout_text())),
        }
    }

    /// Reads this many answers to what was sent.
    pub async fn receive(&mut self, count: usize) -> Result<Vec<Value>, Failure> {
        self.answer_slot().receive(count).await
    }

    /// The right to read the answers to the last request. Its owner must read them before any later
    /// answers.
    pub fn answer_slot(&mut self) -> AnswerSlot {
        let (next, reader) = oneshot::channel();
        AnswerSlot { reader: std::mem::replace(&mut self.reader, ReaderSlot::Lent(reader)), next }
    }

    /// Whether a receiver was dropped before it had its answer: later answers cannot be assigned to
    /// requests any more.
    pub fn is_abandoned(&mut self) -> bool {
        let ReaderSlot::Lent(reader) = &mut self.reader else { return false };
        match reader.try_recv() {
            Ok(reader) => {
                self.reader = ReaderSlot::Owned(reader);
                false
            }
            Err(error) => error == TryRecvError::Closed,
        }
    }

    /// Whether no receiver waits for an answer.
    pub fn is_idle(&mut self) -> bool {
        if let ReaderSlot::Lent(reader) = &mut self.reader
            && let Ok(reader) = reader.try_recv()
        {
            self.reader = ReaderSlot::Owned(reader);
        }
        matches!(self.reader, ReaderSlot::Owned(_))
    }

    /// Waits for a message that Redis pushes, such as a published one. A cancelled wait loses
    /// nothing of it.
    pub async fn next_message(&mut self) -> Result<Value, Failure> {
        let lost = |error: std::io::Error| Failure::Lost(error.to_string());
        let reader = self.reader.keep().await.map_err(lost)?;
        loop {
            let mut rest = &self.buffered[..];
            match resp::read(&mut rest).await {
                Ok(value) => {
                    let used = self.buffered.len() - rest.len();
                    self.buffered.drain(..used);
                    return Ok(value);
                }
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => {}
                Err(error) => return Err(lost(error)),
            }
            if reader.read_buf(&mut self.buffered).await.map_err(lost)? == 0 {
                return Err(lost(ErrorKind::UnexpectedEof.into()));
            }
        }
    }

    /// Whether the other side has closed the connection.
    pub fn has_ended(&self) -> bool {
        (self.has_ended)()
    }
}

fn timeout_text() -> String {
    format!("no answer within {} s", ANSWER_MAX.as_secs())
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpStream;

    use super::*;
    use crate::dialer::dialed;

    #[test]
    fn errors_are_classified() {
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
        assert!(!Failure::of(text).may_be_done());
        let text = "ERR user_function:7: bad argument script: f, on @user_function:7.";
        assert!(Failure::of(text).may_be_done());
    }

    /// Two ends of a connection without a server.
    async fn connection() -> (Connection, TcpStream) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let DialedStream { stream, has_ended } = dialed(socket.into_std().unwrap()).unwrap();
        let client = Client { id: 1, name: "test".into() };
        let connection = Connection::new(stream, has_ended, client);
        (connection, listener.accept().await.unwrap().0)
    }

    // A receiver that was dropped took the reading half along: every later call was sent, executed
    // and lost.
    #[tokio::test]
    async fn an_abandoned_connection_is_detected() {
        let (mut connection, mut other) = connection().await;
        let answer_slot = connection.answer_slot();
        assert!(!connection.is_idle() && !connection.is_abandoned());
        other.write_all(b":1\r\n").await.unwrap();
        assert_eq!(answer_slot.receive(1).await.unwrap(), [Value::Int(1)]);
        assert!(connection.is_idle() && !connection.is_abandoned());
        drop(connection.answer_slot());
        assert!(connection.is_abandoned());
    }

    // A heartbeat that interrupted the read of a message lost its beginning, and with it the
    // connection.
    #[tokio::test]
    async fn a_message_is_complete_after_an_interrupted_read() {
        let (mut connection, mut other) = connection().await;
        for part in ["*2\r", "\n$5\r\nhel", "lo"] {
            other.write_all(part.as_bytes()).await.unwrap();
            // The part is buffered, and the message is not complete.
            let size = connection.buffered.len() + part.len();
            while connection.buffered.len() < size {
                let buffered = timeout(Duration::from_millis(1), connection.next_message()).await;
                assert!(buffered.is_err(), "{buffered:?}");
            }
        }
        other.write_all(b"\r\n:7\r\n+next\r\n").await.unwrap();
        let whole = Value::List(vec![Value::Text(b"hello".into()), Value::Int(7)]);
        assert_eq!(connection.next_message().await.unwrap(), whole);
        assert_eq!(connection.next_message().await.unwrap(), Value::Text(b"next".into()));
    }

    #[tokio::test]
    async fn answers_are_read_in_the_order_of_the_requests() {
        let (mut connection, mut other) = connection().await;
        let (first, second) = (connection.answer_slot(), connection.answer_slot());
        assert!(!connection.is_idle());
        other.write_all(b":1\r\n:2\r\n:3\r\n").await.unwrap();
        let (second, first) = tokio::join!(second.receive(1), first.receive(2));
        assert_eq!(first.unwrap(), [Value::Int(1), Value::Int(2)]);
        assert_eq!(second.unwrap(), [Value::Int(3)]);
        assert!(connection.is_idle());
    }

    // A receiver after a dropped one would have read the answer of that one.
    #[tokio::test]
    async fn answers_after_an_abandoned_one_are_lost() {
        let (mut connection, mut other) = connection().await;
        let (first, second) = (connection.answer_slot(), connection.answer_slot());
        other.write_all(b":1\r\n:2\r\n").await.unwrap();
        drop(first);
        assert!(matches!(second.receive(1).await, Err(Failure::Lost(_))));
        assert!(matches!(connection.receive(1).await, Err(Failure::Lost(_))));
    }
}
