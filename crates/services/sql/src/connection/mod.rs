//! Reads and writes the messages of the PostgreSQL protocol.
//!
//! A general driver hides details that the output of a task needs. The one of the PostgreSQL store, tokio-postgres (0.7),
//! returns the names of columns of a simple query without their types, the row count of a command without its tag, fails
//! at the answer to COPY, and keeps every message in memory regardless of its length. So the sessions of tasks read the
//! messages themselves, and the scheduler uses the same connection. Connection strings and certificates, which both
//! share, are read by `taskyard_postgres`.

mod connect;
mod error;
mod tls;

use std::collections::HashMap;
use std::io;

use bytes::{Buf, BytesMut};
use fallible_iterator::FallibleIterator;
use postgres_protocol::IsNull;
use postgres_protocol::message::backend::{DataRowBody, Message};
use postgres_protocol::message::frontend;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

pub use connect::{CancelHandle, ConnectError, SessionOptions, connect};
pub use error::SqlError;

use crate::output::Column;

/// The longest message that is kept in memory; of longer ones only the beginning is kept, if anything.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// A byte stream to the server.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// A connection to PostgreSQL.
pub struct Connection {
    stream: Box<dyn Stream>,
    received: BytesMut,
    /// A message too long to be kept, while it is received.
    partial: Option<PartialMessage>,
    /// How many bytes are kept of a row that is too long.
    pub head_max: usize,
    /// The encoding of the session, as last reported by the server.
    pub encoding: String,
    /// The bytes to send before the next message is read.
    pub out: BytesMut,
    /// The server process of this connection.
    pub pid: i32,
    /// Cancels the running query.
    pub cancel: Option<CancelHandle>,
    prepared: HashMap<u64, String>,
    /// How many answers to come are ignored.
    skip_ready: usize,
    /// The notifications that were received and not handled yet.
    pub notified: Vec<String>,
}

/// A message of the server.
pub enum Incoming {
    /// A message that was received completely.
    Message(Message),
    /// The columns of a result.
    Columns(Vec<Column>),
    /// A message that is too long to be kept.
    Skipped(LongMessage),
}

/// A message that is too long to be kept completely.
pub struct LongMessage {
    /// Its type: a row is `D`, a part of COPY is `d`.
    pub kind: u8,
    /// Its beginning; empty for most types.
    pub head: BytesMut,
    /// Whether `head` is the complete message.
    pub whole: bool,
}

/// A message too long to be kept, while it is received.
struct PartialMessage {
    left: usize,
    head_left: usize,
    long: LongMessage,
}

impl PartialMessage {
    /// Consumes received bytes; returns whether the message is complete.
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

impl LongMessage {
    /// The values of a row, as far as they were kept.
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

/// Why a query failed.
#[derive(Debug)]
pub enum QueryError {
    /// The connection was lost.
    Lost(String),
    /// The database refused the query; nothing of its transaction was done.
    Refused(Box<SqlError>),
}

impl QueryError {
    /// The error in one line.
    pub fn line(&self) -> String {
        match self {
            QueryError::Lost(why) => format!("the connection was lost: {why}"),
            QueryError::Refused(error) => error.line(),
        }
    }
}

impl std::fmt::Display for QueryError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.line())
    }
}

impl std::error::Error for QueryError {}

impl From<io::Error> for QueryError {
    fn from(error: io::Error) -> Self {
        QueryError::Lost(error.to_string())
    }
}

/// A row of a result, with its values as text.
pub struct Row {
    values: Vec<Option<String>>,
}

/// A statement and its parameters, as text.
pub struct Query<'a> {
    /// The statement.
    pub sql: &'a str,
    /// Its parameters.
    pub params: Vec<Option<String>>,
}

impl<'a> Query<'a> {
    /// A statement with these parameters.
    pub fn new<const N: usize>(sql: &'a str, params: [&str; N]) -> Self {
        Query { sql, params: params.into_iter().map(|param| Some(param.to_owned())).collect() }
    }
}

impl Row {
    /// The text of a column.
    pub fn text(&self, column: usize) -> Option<&str> {
        self.values.get(column)?.as_deref()
    }

    /// The text of a column, removed from the row.
    pub fn take(&mut self, column: usize) -> Option<String> {
        self.values.get_mut(column)?.take()
    }

    /// The parsed value of a column.
    pub fn parsed<T: std::str::FromStr>(&self, column: usize) -> Option<T> {
        self.text(column)?.parse().ok()
    }

    /// Whether a column is true.
    pub fn is_true(&self, column: usize) -> bool {
        self.text(column) == Some("t")
    }

    fn read(body: &DataRowBody) -> io::Result<Self> {
        let buffer = body.buffer();
        let text = |range: Option<std::ops::Range<usize>>| {
            Ok(range.map(|range| String::from_utf8_lossy(&buffer[range]).into_owned()))
        };
        Ok(Row { values: body.ranges().map(text).collect()? })
    }
}

impl Connection {
    fn new(stream: Box<dyn Stream>) -> Self {
        Connection {
            stream,
            received: BytesMut::with_capacity(8192),
            partial: None,
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

    /// Sends the bytes in `out`.
    pub async fn flush(&mut self) -> io::Result<()> {
        if !self.out.is_empty() {
            self.stream.write_all_buf(&mut self.out).await?;
            self.stream.flush().await?;
        }
        Ok(())
    }

    /// Receives the next message. The future may be dropped and called again.
    pub async fn next(&mut self) -> io::Result<Incoming> {
        self.flush().await?;
        loop {
            if let Some(incoming) = self.take_received()? {
                return Ok(incoming);
            }
            if self.stream.read_buf(&mut self.received).await? == 0 {
                let why = "server closed the connection unexpectedly";
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
            }
        }
    }

    fn take_received(&mut self) -> io::Result<Option<Incoming>> {
        if let Some(partial) = &mut self.partial {
            if !partial.take(&mut self.received) {
                return Ok(None);
            }
            return Ok(self.partial.take().map(|partial| Incoming::Skipped(partial.long)));
        }
        if let [kind, a, b, c, d, ..] = self.received[..] {
            let length = u32::from_be_bytes([a, b, c, d]) as usize;
            if length > MESSAGE_BYTES_MAX {
                self.received.advance(5);
                let (left, kept) = (length - 4, matches!(kind, b'D' | b'd'));
                let head_left = if kept { self.head_max } else { 0 };
                let long = LongMessage { kind, head: BytesMut::new(), whole: head_left >= left };
                self.partial = Some(PartialMessage { left, head_left, long });
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
        Ok(message.map(Incoming::Message))
    }

    /// The columns of a result. Their names need not be UTF-8: a task may choose another encoding.
    fn take_columns(&mut self, length: usize) -> io::Result<Option<Incoming>> {
        if self.received.len() <= length {
            self.received.reserve(length + 1 - self.received.len());
            return Ok(None);
        }
        let message = self.received.split_to(length + 1);
        let odd = || io::Error::other("the server sent a malformed row description");
        columns(message.get(7..).ok_or_else(odd)?).map(Incoming::Columns).map(Some).ok_or_else(odd)
    }

    /// Waits for a notification.
    pub async fn notification(&mut self) -> io::Result<()> {
        while self.notified.is_empty() {
            if let Incoming::Message(message) = self.next().await? {
                self.handle_unsolicited(message)?;
            }
        }
        Ok(())
    }

    /// Handles a message that belongs to no query.
    fn handle_unsolicited(&mut self, message: Message) -> io::Result<()> {
        match message {
            Message::NotificationResponse(body) => self.notified.push(body.message()?.to_owned()),
            // Only the end of the session is reported outside of a query.
            Message::ErrorResponse(body) => {
                return Err(io::Error::other(SqlError::read(&body).line()));
            }
            // The answer to an ignored query may arrive here.
            Message::ReadyForQuery(_) => self.skip_ready = self.skip_ready.saturating_sub(1),
            _ => {}
        }
        Ok(())
    }

    /// Runs statements without results, as one simple query.
    pub async fn run(&mut self, sql: &str) -> Result<(), QueryError> {
        frontend::query(sql, &mut self.out)?;
        self.answers(0).await.map(drop)
    }

    /// Runs one query.
    pub async fn query(&mut self, query: Query<'_>) -> Result<Vec<Row>, QueryError> {
        Ok(self.transact(&[query]).await?.pop().unwrap_or_default())
    }

    /// Runs several queries in one transaction and one round trip.
    pub async fn transact(&mut self, queries: &[Query<'_>]) -> Result<Vec<Vec<Row>>, QueryError> {
        for query in queries {
            let name = self.prepare(query.sql)?;
            let values = query.params.iter().map(|param| param.as_deref());
            let write = |value: Option<&str>, buffer: &mut BytesMut| {
                let Some(value) = value else { return Ok(IsNull::Yes) };
                buffer.extend_from_slice(value.as_bytes());
                Ok(IsNull::No)
            };
            let bound =
                frontend::bind("", &name, [0_i16; 0], values, write, [0_i16; 0], &mut self.out);
            bound.map_err(|_| QueryError::Lost("a parameter is too long".into()))?;
            frontend::execute("", 0, &mut self.out)?;
        }
        frontend::sync(&mut self.out);
        let answer = self.answers(queries.len()).await;
        if answer.is_err() {
            // The failed statements may not have been prepared.
            self.deallocate()?;
        }
        answer
    }

    /// Prepares a statement, if it is not prepared yet, and returns its name.
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

    fn deallocate(&mut self) -> io::Result<()> {
        self.prepared.clear();
        frontend::query("DEALLOCATE ALL", &mut self.out)?;
        self.skip_ready += 1;
        Ok(())
    }

    async fn answers(&mut self, count: usize) -> Result<Vec<Vec<Row>>, QueryError> {
        let mut answers: Vec<Vec<Row>> = Vec::with_capacity(count);
        let mut error = None;
        loop {
            let message = match self.next().await? {
                Incoming::Message(message) => message,
                Incoming::Skipped(LongMessage { kind: b'E', .. }) => {
                    error = Some(SqlError::new("the error message of the database is too long"));
                    continue;
                }
                Incoming::Skipped(_) | Incoming::Columns(_) => continue,
            };
            match message {
                Message::BindComplete => answers.push(Vec::new()),
                Message::DataRow(body) => {
                    if let Some(rows) = answers.last_mut() {
                        rows.push(Row::read(&body)?);
                    }
                }
                Message::ErrorResponse(body) => {
                    let read = SqlError::read(&body);
                    if read.is_fatal() {
                        return Err(QueryError::Lost(read.line()));
                    }
                    error = Some(read);
                }
                Message::ReadyForQuery(_) if self.skip_ready > 0 => self.skip_ready -= 1,
                Message::ReadyForQuery(_) => break,
                message @ Message::NotificationResponse(_) => self.handle_unsolicited(message)?,
                _ => {}
            }
        }
        match error {
            Some(error) => Err(QueryError::Refused(Box::new(error))),
            None => Ok(answers),
        }
    }
}

/// Reads the columns of a row description: each has a name and then numbers, of which the third is its type.
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
