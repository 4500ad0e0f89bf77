//! One connection to one Redis. What was sent is answered in its order, so more may be sent before all of that is heard.
//!
//! It is written here because whoever asks must know whether what failed can have been done: a connection that was found
//! broken before anything left is another matter than one that broke on the way.

use std::io::ErrorKind;
use std::time::Duration;

use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, ReadHalf, WriteHalf, split,
};
use tokio::net::TcpStream;
use tokio::sync::oneshot::{self, error::TryRecvError};
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
    /// It said no. Nothing was done, unless [`Failure::may_be_done`].
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

    /// Whether it was done perhaps, or a part of it: nobody knows, or a function broke off, whose writes are not undone.
    pub fn may_be_done(&self) -> bool {
        match self {
            Failure::Lost(_) => true,
            // Redis names the place in the text of the function.
            Failure::Refused(text) => text.contains("user_function:"),
            _ => false,
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

type Reader = BufReader<ReadHalf<Box<dyn Stream>>>;

/// A connection, and who it is to Redis.
pub struct Connection {
    writer: WriteHalf<Box<dyn Stream>>,
    reader: Ear,
    /// The beginning of what Redis says without being asked.
    heard: Vec<u8>,
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

/// Where answers are read: here, or whoever reads before hands it on. When that one gives up, nobody gets it.
enum Ear {
    Here(Reader),
    RemoteChange(oneshot::Receiver<Reader>),
}

/// The place of one who asked among those who wait for their answers.
pub struct Turn {
    reader: Ear,
    next: oneshot::Sender<Reader>,
}

impl Turn {
    /// Reads this many answers, when those before have theirs.
    pub async fn receive(self, count: usize) -> Result<Vec<Value>, Failure> {
        let lost = |error: std::io::Error| Failure::Lost(error.to_string());
        // Those before have their own time.
        let mut reader = self.reader.get().await.map_err(lost)?;
        let receiving = async {
            let mut answers = Vec::with_capacity(count);
            for _ in 0..count {
                answers.push(resp::read(&mut reader).await?);
            }
            // The connection may be gone meanwhile.
            let _ = self.next.send(reader);
            Ok(answers)
        };
        match timeout(ANSWER_MAX, receiving).await {
            Ok(received) => received.map_err(lost),
            Err(_) => Err(Failure::Lost(silence())),
        }
    }
}

impl Ear {
    async fn get(self) -> std::io::Result<Reader> {
        match self {
            Ear::Here(reader) => Ok(reader),
            Ear::RemoteChange(reader) => reader.await.map_err(|_| ErrorKind::BrokenPipe.into()),
        }
    }

    /// Keeps it here, as soon as those who wait have their answers.
    async fn keep(&mut self) -> std::io::Result<&mut Reader> {
        if let Ear::RemoteChange(reader) = self {
            let reader = reader.await.map_err(|_| std::io::Error::from(ErrorKind::BrokenPipe))?;
            *self = Ear::Here(reader);
        }
        match self {
            Ear::Here(reader) => Ok(reader),
            Ear::RemoteChange(_) => Err(ErrorKind::BrokenPipe.into()),
        }
    }
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
        let (reader, writer) = split(stream);
        let reader = Ear::Here(BufReader::with_capacity(64 << 10, reader));
        let client = Client { id: 0, name: name.to_owned() };
        let mut connection = Connection { writer, reader, heard: Vec::new(), socket: twin, client };
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
            self.writer.write_all(bytes).await?;
            self.writer.flush().await
        };
        match timeout(ANSWER_MAX, sending).await {
            Ok(sent) => sent.map_err(|error| Failure::Lost(error.to_string())),
            Err(_) => Err(Failure::Lost(silence())),
        }
    }

    /// Reads this many answers to what was sent.
    pub async fn receive(&mut self, count: usize) -> Result<Vec<Value>, Failure> {
        self.turn().receive(count).await
    }

    /// The place of what was just sent: whoever has it must read the answers to that, before those to anything later.
    pub fn turn(&mut self) -> Turn {
        let (next, reader) = oneshot::channel();
        Turn { reader: std::mem::replace(&mut self.reader, Ear::RemoteChange(reader)), next }
    }

    /// Whether somebody has given up waiting for an answer: nobody can tell any more which one is whose.
    pub fn is_abandoned(&mut self) -> bool {
        let Ear::RemoteChange(reader) = &mut self.reader else { return false };
        match reader.try_recv() {
            Ok(reader) => {
                self.reader = Ear::Here(reader);
                false
            }
            Err(error) => error == TryRecvError::Closed,
        }
    }

    /// Whether nobody waits for an answer.
    pub fn is_idle(&mut self) -> bool {
        if let Ear::RemoteChange(reader) = &mut self.reader
            && let Ok(reader) = reader.try_recv()
        {
            self.reader = Ear::Here(reader);
        }
        matches!(self.reader, Ear::Here(_))
    }

    /// Waits for what Redis says without being asked: what others publish. Whoever gives up waiting loses nothing of it.
    pub async fn hear(&mut self) -> Result<Value, Failure> {
        let lost = |error: std::io::Error| Failure::Lost(error.to_string());
        let reader = self.reader.keep().await.map_err(lost)?;
        loop {
            let mut rest = &self.heard[..];
            match resp::read(&mut rest).await {
                Ok(value) => {
                    let used = self.heard.len() - rest.len();
                    self.heard.drain(..used);
                    return Ok(value);
                }
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => {}
                Err(error) => return Err(lost(error)),
            }
            if reader.read_buf(&mut self.heard).await.map_err(lost)? == 0 {
                return Err(lost(ErrorKind::UnexpectedEof.into()));
            }
        }
    }

    /// Whether the other side has closed it. The system is asked: the runtime may not have heard of it yet.
    pub fn has_ended(&self) -> bool {
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
        assert!(!Failure::of(text).may_be_done());
        let text = "ERR user_function:7: bad argument script: f, on @user_function:7.";
        assert!(Failure::of(text).may_be_done());
    }

    /// Two ends of a connection to nobody.
    async fn connection() -> (Connection, TcpStream) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let socket = socket.into_std().unwrap();
        let twin = socket.try_clone().unwrap();
        let stream: Box<dyn Stream> = Box::new(TcpStream::from_std(socket).unwrap());
        let (reader, writer) = split(stream);
        let reader = Ear::Here(BufReader::new(reader));
        let client = Client { id: 1, name: "test".into() };
        let connection = Connection { writer, reader, heard: Vec::new(), socket: twin, client };
        (connection, listener.accept().await.unwrap().0)
    }

    // Whoever gave up waiting took the only ear along: every later call was sent, done, and lost.
    #[tokio::test]
    async fn a_connection_on_which_somebody_gave_up_is_known() {
        let (mut connection, mut other) = connection().await;
        let turn = connection.turn();
        assert!(!connection.is_idle() && !connection.is_abandoned());
        other.write_all(b":1\r\n").await.unwrap();
        assert_eq!(turn.receive(1).await.unwrap(), [Value::Int(1)]);
        assert!(connection.is_idle() && !connection.is_abandoned());
        drop(connection.turn());
        assert!(connection.is_abandoned());
    }

    // A heartbeat that came in the middle of a notice lost its beginning, and with it the connection.
    #[tokio::test]
    async fn who_gives_up_listening_in_the_middle_of_a_message_hears_all_of_it_later() {
        let (mut connection, mut other) = connection().await;
        for part in ["*2\r", "\n$5\r\nhel", "lo"] {
            other.write_all(part.as_bytes()).await.unwrap();
            // It is heard, and the message is not complete.
            let size = connection.heard.len() + part.len();
            while connection.heard.len() < size {
                let heard = timeout(Duration::from_millis(1), connection.hear()).await;
                assert!(heard.is_err(), "{heard:?}");
            }
        }
        other.write_all(b"\r\n:7\r\n+next\r\n").await.unwrap();
        let whole = Value::List(vec![Value::Text(b"hello".into()), Value::Int(7)]);
        assert_eq!(connection.hear().await.unwrap(), whole);
        assert_eq!(connection.hear().await.unwrap(), Value::Text(b"next".into()));
    }

    #[tokio::test]
    async fn answers_are_read_in_the_order_of_what_was_sent() {
        let (mut connection, mut other) = connection().await;
        let (first, second) = (connection.turn(), connection.turn());
        assert!(!connection.is_idle());
        other.write_all(b":1\r\n:2\r\n:3\r\n").await.unwrap();
        let (second, first) = tokio::join!(second.receive(1), first.receive(2));
        assert_eq!(first.unwrap(), [Value::Int(1), Value::Int(2)]);
        assert_eq!(second.unwrap(), [Value::Int(3)]);
        assert!(connection.is_idle());
    }

    // Who came behind one that gave up would have read what that one was answered.
    #[tokio::test]
    async fn when_one_gives_up_those_behind_are_lost_too() {
        let (mut connection, mut other) = connection().await;
        let (first, second) = (connection.turn(), connection.turn());
        other.write_all(b":1\r\n:2\r\n").await.unwrap();
        drop(first);
        assert!(matches!(second.receive(1).await, Err(Failure::Lost(_))));
        assert!(matches!(connection.receive(1).await, Err(Failure::Lost(_))));
    }
}
