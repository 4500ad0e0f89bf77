//! A connection to PostgreSQL, message by message.
//!
//! A driver for programs would hide what a task's output is made of. The one that tubes use, tokio-postgres (0.7), gives
//! of a simple query the names of columns without their types, of a command the number of its rows without its tag,
//! ends with an error at the answer to COPY, and keeps every message in memory however long it is. So the sessions of
//! tasks read the messages themselves, and the scheduler uses the same connection. What both share, how a database is
//! reached and whom to believe there, is in `taskyard_postgres`.

mod connect;
mod refusal;
mod tls;

use std::collections::HashMap;
use std::io;

use bytes::{Buf, BytesMut};
use fallible_iterator::FallibleIterator;
use postgres_protocol::IsNull;
use postgres_protocol::message::backend::{DataRowBody, Message};
use postgres_protocol::message::frontend;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

pub use connect::{Cancel, ConnectError, Opening, connect};
pub use refusal::Refusal;

use crate::output::Column;

/// Longest message that is kept in memory; of longer ones only the fact is known.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// What bytes travel on.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// A connection to PostgreSQL.
pub struct Wire {
    stream: Box<dyn Stream>,
    received: BytesMut,
    /// A message too long to be kept, while it comes.
    skipping: Option<Skipping>,
    /// How many bytes are kept of a row that is too long.
    pub head_max: usize,
    /// The encoding of what the server sends, as it last said.
    pub encoding: String,
    /// What is to be sent before the next message is read.
    pub out: BytesMut,
    /// The process that serves this connection.
    pub pid: i32,
    /// How to cancel what runs.
    pub cancel: Option<Cancel>,
    prepared: HashMap<u64, String>,
    /// Answers to come that nobody waits for.
    skip_ready: usize,
    /// What was notified since it was last looked at.
    pub notified: Vec<String>,
}

/// What arrived.
pub enum Arrived {
    /// A message.
    Message(Message),
    /// The columns of a result.
    Columns(Vec<Column>),
    /// A message that is too long.
    Skipped(Long),
}

/// A message that is too long to be kept whole.
pub struct Long {
    /// Its kind: a row is `D`, a piece of COPY is `d`.
    pub kind: u8,
    /// How it begins; of most kinds nothing is kept.
    pub head: BytesMut,
    /// Whether that is all of it.
    pub whole: bool,
}

/// A message too long to be kept, while it comes.
struct Skipping {
    left: usize,
    head_left: usize,
    long: Long,
}

impl Skipping {
    /// Takes what has come; whether the message is through.
    fn take(&mut self, received: &mut BytesMut) -> bool {
        let head = self.head_left.min(self.left).min(received.len());
        self.long.head.extend_from_slice(&received.split_to(head));
        self.head_left -= head;
        let rest = (self.left - head).min(received.len());
        received.advance(rest);
        self.left -= head + rest;
        received.reserve(8192);
        self.left == 0
    }
}

impl Long {
    /// The values of a row, as far as they are kept.
    pub fn values(&self) -> Vec<Option<&[u8]>> {
        let mut values = Vec::new();
        let mut rest = self.head.get(2..).unwrap_or_default();
        while let Some((length, after)) = rest.split_first_chunk::<4>() {
            let length = i32::from_be_bytes(*length);
            let Ok(length) = usize::try_from(length) else {
                values.push(None);
                rest = after;
                continue;
            };
            let (value, after) = after.split_at(length.min(after.len()));
            values.push(Some(value));
            rest = after;
        }
        values
    }
}

/// Why a question has no answer.
#[derive(Debug)]
pub enum AskError {
    /// The connection is gone.
    Lost(String),
    /// The database refused; nothing of what was asked together was done.
    Refused(Box<Refusal>),
}

impl AskError {
    /// In one line.
    pub fn line(&self) -> String {
        match self {
            AskError::Lost(why) => format!("the connection was lost: {why}"),
            AskError::Refused(refusal) => refusal.line(),
        }
    }
}

impl std::fmt::Display for AskError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.line())
    }
}

impl std::error::Error for AskError {}

impl From<io::Error> for AskError {
    fn from(error: io::Error) -> Self {
        AskError::Lost(error.to_string())
    }
}

/// A row of an answer: each value as text.
pub struct Row {
    values: Vec<Option<String>>,
}

/// Something to ask: a statement and its parameters, as text.
pub struct Ask<'a> {
    /// The statement.
    pub sql: &'a str,
    /// Its parameters.
    pub params: Vec<Option<String>>,
}

impl<'a> Ask<'a> {
    /// A statement with these parameters.
    pub fn new<const N: usize>(sql: &'a str, params: [&str; N]) -> Self {
        Ask { sql, params: params.into_iter().map(|param| Some(param.to_owned())).collect() }
    }
}

impl Row {
    /// The text in this place.
    pub fn text(&self, place: usize) -> Option<&str> {
        self.values.get(place)?.as_deref()
    }

    /// The text in this place, taken out of the row.
    pub fn take(&mut self, place: usize) -> Option<String> {
        self.values.get_mut(place)?.take()
    }

    /// The number, or whatever else can be read, in this place.
    pub fn parsed<T: std::str::FromStr>(&self, place: usize) -> Option<T> {
        self.text(place)?.parse().ok()
    }

    /// Whether it says yes.
    pub fn is_true(&self, place: usize) -> bool {
        self.text(place) == Some("t")
    }

    fn read(body: &DataRowBody) -> io::Result<Self> {
        let buffer = body.buffer();
        let text = |range: Option<std::ops::Range<usize>>| {
            Ok(range.map(|range| String::from_utf8_lossy(&buffer[range]).into_owned()))
        };
        Ok(Row { values: body.ranges().map(text).collect()? })
    }
}

impl Wire {
    fn new(stream: Box<dyn Stream>) -> Self {
        Wire {
            stream,
            received: BytesMut::with_capacity(8192),
            skipping: None,
            head_max: 0,
            encoding: String::new(),
            out: BytesMut::new(),
            pid: 0,
            cancel: None,
            prepared: HashMap::new(),
            skip_ready: 0,
            notified: Vec::new(),
        }
    }

    /// Sends what is waiting.
    pub async fn flush(&mut self) -> io::Result<()> {
        if !self.out.is_empty() {
            self.stream.write_all_buf(&mut self.out).await?;
            self.stream.flush().await?;
        }
        Ok(())
    }

    /// The next message. May be dropped and called again.
    pub async fn next(&mut self) -> io::Result<Arrived> {
        self.flush().await?;
        loop {
            if let Some(arrived) = self.take_received()? {
                return Ok(arrived);
            }
            if self.stream.read_buf(&mut self.received).await? == 0 {
                let why = "server closed the connection unexpectedly";
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
            }
        }
    }

    fn take_received(&mut self) -> io::Result<Option<Arrived>> {
        if let Some(skipping) = &mut self.skipping {
            if !skipping.take(&mut self.received) {
                return Ok(None);
            }
            return Ok(self.skipping.take().map(|skipping| Arrived::Skipped(skipping.long)));
        }
        if let [kind, a, b, c, d, ..] = self.received[..] {
            let length = u32::from_be_bytes([a, b, c, d]) as usize;
            if length > MESSAGE_BYTES_MAX {
                self.received.advance(5);
                let (left, kept) = (length - 4, matches!(kind, b'D' | b'd'));
                let head_left = if kept { self.head_max } else { 0 };
                let long = Long { kind, head: BytesMut::new(), whole: head_left >= left };
                self.skipping = Some(Skipping { left, head_left, long });
                return self.take_received();
            }
            if kind == b'T' {
                return self.take_columns(length);
            }
        }
        let message = Message::parse(&mut self.received)?;
        if let Some(Message::ParameterStatus(body)) = &message
            && body.name()? == "client_encoding"
        {
            self.encoding = body.value()?.to_owned();
        }
        Ok(message.map(Arrived::Message))
    }

    /// The columns of a result. Their names need not be UTF-8: a task may choose another encoding.
    fn take_columns(&mut self, length: usize) -> io::Result<Option<Arrived>> {
        if self.received.len() <= length {
            self.received.reserve(length + 1 - self.received.len());
            return Ok(None);
        }
        let message = self.received.split_to(length + 1);
        let odd = || io::Error::other("columns that cannot be read");
        columns(message.get(7..).ok_or_else(odd)?).map(Arrived::Columns).map(Some).ok_or_else(odd)
    }

    /// Waits until the database notifies of something.
    pub async fn notification(&mut self) -> io::Result<()> {
        while self.notified.is_empty() {
            if let Arrived::Message(message) = self.next().await? {
                self.aside(message)?;
            }
        }
        Ok(())
    }

    /// What belongs to no question.
    fn aside(&mut self, message: Message) -> io::Result<()> {
        match message {
            Message::NotificationResponse(body) => self.notified.push(body.message()?.to_owned()),
            // Only the end of the session comes unasked.
            Message::ErrorResponse(body) => {
                return Err(io::Error::other(Refusal::read(&body).line()));
            }
            // Of what nobody waits for, it may come here as well.
            Message::ReadyForQuery(_) => self.skip_ready = self.skip_ready.saturating_sub(1),
            _ => {}
        }
        Ok(())
    }

    /// Runs statements without answers, as one text.
    pub async fn run(&mut self, sql: &str) -> Result<(), AskError> {
        frontend::query(sql, &mut self.out)?;
        self.answers(0).await.map(drop)
    }

    /// Asks one thing.
    pub async fn ask(&mut self, ask: Ask<'_>) -> Result<Vec<Row>, AskError> {
        Ok(self.transact(&[ask]).await?.pop().unwrap_or_default())
    }

    /// Asks several things in one transaction and one round trip.
    pub async fn transact(&mut self, asks: &[Ask<'_>]) -> Result<Vec<Vec<Row>>, AskError> {
        for ask in asks {
            let name = self.prepare(ask.sql)?;
            let values = ask.params.iter().map(|param| param.as_deref());
            let write = |value: Option<&str>, buffer: &mut BytesMut| {
                let Some(value) = value else { return Ok(IsNull::Yes) };
                buffer.extend_from_slice(value.as_bytes());
                Ok(IsNull::No)
            };
            let bound =
                frontend::bind("", &name, [0_i16; 0], values, write, [0_i16; 0], &mut self.out);
            bound.map_err(|_| AskError::Lost("a parameter is too long".into()))?;
            frontend::execute("", 0, &mut self.out)?;
        }
        frontend::sync(&mut self.out);
        let answer = self.answers(asks.len()).await;
        if answer.is_err() {
            // What was to be prepared may not have been.
            self.forget()?;
        }
        answer
    }

    /// The name under which a statement is prepared here.
    fn prepare(&mut self, sql: &str) -> io::Result<String> {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        sql.hash(&mut hasher);
        if let Some(name) = self.prepared.get(&hasher.finish()) {
            return Ok(name.clone());
        }
        let name = format!("s{}", self.prepared.len());
        frontend::parse(&name, sql, [], &mut self.out)?;
        self.prepared.insert(hasher.finish(), name.clone());
        Ok(name)
    }

    fn forget(&mut self) -> io::Result<()> {
        self.prepared.clear();
        frontend::query("DEALLOCATE ALL", &mut self.out)?;
        self.skip_ready += 1;
        Ok(())
    }

    async fn answers(&mut self, count: usize) -> Result<Vec<Vec<Row>>, AskError> {
        let mut answers: Vec<Vec<Row>> = Vec::with_capacity(count);
        let mut refusal = None;
        loop {
            let message = match self.next().await? {
                Arrived::Message(message) => message,
                Arrived::Skipped(Long { kind: b'E', .. }) => {
                    refusal = Some(Refusal::own("what the database says is too long"));
                    continue;
                }
                Arrived::Skipped(_) | Arrived::Columns(_) => continue,
            };
            match message {
                Message::BindComplete => answers.push(Vec::new()),
                Message::DataRow(body) => {
                    if let Some(rows) = answers.last_mut() {
                        rows.push(Row::read(&body)?);
                    }
                }
                Message::ErrorResponse(body) => {
                    let read = Refusal::read(&body);
                    if read.is_fatal() {
                        return Err(AskError::Lost(read.line()));
                    }
                    refusal = Some(read);
                }
                Message::ReadyForQuery(_) if self.skip_ready > 0 => self.skip_ready -= 1,
                Message::ReadyForQuery(_) => break,
                message @ Message::NotificationResponse(_) => self.aside(message)?,
                _ => {}
            }
        }
        match refusal {
            Some(refusal) => Err(AskError::Refused(Box::new(refusal))),
            None => Ok(answers),
        }
    }
}

/// Reads the columns of a result: of each its name, then numbers of which the third is its type.
fn columns(mut text: &[u8]) -> Option<Vec<Column>> {
    let mut columns = Vec::new();
    while !text.is_empty() {
        let end = text.iter().position(|byte| *byte == 0)?;
        let numbers = text.get(end + 1..end + 19)?;
        let type_oid = u32::from_be_bytes(numbers[6..10].try_into().ok()?);
        columns.push(Column { name: text[..end].to_owned(), type_oid });
        text = &text[end + 19..];
    }
    Some(columns)
}
