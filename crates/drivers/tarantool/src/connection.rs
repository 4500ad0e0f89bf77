//! One connection to one Tarantool instance. Requests that are sent together may be answered in any
//! order.

use std::fmt;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::time::Duration;

use socket2::SockRef;
use taskyard_iproto::greeting::GREETING_BYTES;
use taskyard_iproto::procedures::{ArgumentWriter, encode_args, encode_call};
use taskyard_iproto::{Fault, Greeting, Operation, auth, encode_request, next_frame, parse_reply};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::url::Address;

/// How long to wait for an answer, in addition to what the call itself may wait.
pub const ANSWER_MAX: Duration = Duration::from_secs(15);
/// How long connecting may take.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Largest answer. A take has at most 64 MiB of payloads.
const REPLY_BYTES_MAX: usize = 1 << 30;
/// How many bytes are read at a time, at least.
const READ_BYTES: usize = 64 << 10;
/// How much of the memory for answers is kept while the connection is idle.
const IDLE_BYTES_MAX: usize = 1 << 20;

/// Why a request was not executed, or may not have been.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It was not sent.
    Unreachable(String),
    /// It was sent and not answered: it may have been executed.
    Lost(String),
    /// It was refused and not executed.
    Refused(Fault),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Unreachable(why) | Failure::Lost(why) => f.write_str(why),
            Failure::Refused(fault) => write!(f, "{} (code {})", fault.text, fault.code),
        }
    }
}

/// A connection.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    /// Bytes that were received and not parsed yet.
    arrived: Vec<u8>,
    next_sync: u64,
    /// The version of the instance.
    pub version: String,
}

/// Requests that are sent together.
#[derive(Debug)]
pub struct Requests {
    bytes: Vec<u8>,
    syncs: Range<u64>,
}

impl Requests {
    /// Adds a call of a function.
    pub fn call(&mut self, name: &str, write: impl FnOnce(&mut ArgumentWriter<'_>)) {
        encode_call(&mut self.bytes, self.syncs.end, name, write);
        self.syncs.end += 1;
    }

    /// Adds an expression to run.
    pub fn eval(&mut self, expression: &str, write: impl FnOnce(&mut ArgumentWriter<'_>)) {
        let mut args = Vec::new();
        encode_args(&mut args, write);
        self.push(&Operation::Eval { expression, args: &args });
    }

    /// The number of requests.
    pub fn len(&self) -> usize {
        (self.syncs.end - self.syncs.start) as usize
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.syncs.is_empty()
    }

    fn push(&mut self, operation: &Operation<'_>) {
        encode_request(&mut self.bytes, self.syncs.end, operation);
        self.syncs.end += 1;
    }
}

impl Connection {
    /// Connects and authenticates.
    pub async fn open(address: &Address, user: Option<&(String, String)>) -> Result<Self, Failure> {
        match timeout(CONNECT_MAX, Self::greet(address, user)).await {
            Ok(Err(Failure::Lost(why))) => Err(Failure::Unreachable(format!("{address}: {why}"))),
            Ok(done) => done,
            Err(_) => Err(Failure::Unreachable(format!("{address} does not answer"))),
        }
    }

    async fn greet(address: &Address, user: Option<&(String, String)>) -> Result<Self, Failure> {
        let unreachable =
            |error: std::io::Error| Failure::Unreachable(format!("{address}: {error}"));
        let to = (address.host.as_str(), address.port);
        let mut stream = TcpStream::connect(to).await.map_err(unreachable)?;
        stream.set_nodelay(true).map_err(unreachable)?;
        let mut greeting = [0; GREETING_BYTES];
        stream.read_exact(&mut greeting).await.map_err(unreachable)?;
        let greeting = Greeting::parse(&greeting);
        let greeting =
            greeting.map_err(|error| Failure::Unreachable(format!("{address}: {error}")))?;
        let version = greeting.version.clone();
        let mut connection = Connection { stream, arrived: Vec::new(), next_sync: 1, version };
        if let Some((user, password)) = user {
            let scramble = Some(auth::scramble(password, &greeting.salt));
            let mut requests = connection.requests();
            requests.push(&Operation::Auth { user, scramble });
            connection.ask(requests).await?;
        }
        Ok(connection)
    }

    /// An empty list of requests.
    pub fn requests(&self) -> Requests {
        Requests { bytes: Vec::new(), syncs: self.next_sync..self.next_sync }
    }

    /// Sends one request and returns its results.
    pub async fn ask(&mut self, requests: Requests) -> Result<Vec<u8>, Failure> {
        let answer = self.exchange(requests, ANSWER_MAX).await?.pop();
        answer.unwrap_or_else(|| Ok(Vec::new())).map_err(Failure::Refused)
    }

    /// Sends requests and waits for all answers, in the order of the requests. A connection that
    /// had ended before is [`Failure::Unreachable`]; after any failure it must not be used again.
    pub async fn exchange(
        &mut self,
        requests: Requests,
        within: Duration,
    ) -> Result<Vec<Result<Vec<u8>, Fault>>, Failure> {
        if self.has_ended() {
            return Err(Failure::Unreachable("the connection has ended".into()));
        }
        self.next_sync = requests.syncs.end;
        let exchanging = async {
            self.stream.write_all(&requests.bytes).await.map_err(|error| error.to_string())?;
            self.receive(&requests.syncs).await
        };
        match timeout(within, exchanging).await {
            Ok(answers) => answers.map_err(Failure::Lost),
            Err(_) => Err(Failure::Lost(format!("no answer within {} s", within.as_secs()))),
        }
    }

    async fn receive(&mut self, syncs: &Range<u64>) -> Result<Vec<Result<Vec<u8>, Fault>>, String> {
        let count = (syncs.end - syncs.start) as usize;
        let mut answers: Vec<Option<Result<Vec<u8>, Fault>>> = vec![None; count];
        let mut open = count;
        while open > 0 {
            let mut used = 0;
            while let Some(frame) = next_frame(&self.arrived[used..], REPLY_BYTES_MAX)
                .map_err(|error| error.to_string())?
            {
                let reply = parse_reply(frame.body).map_err(|error| error.to_string())?;
                used += frame.consumed;
                let index = reply.sync.checked_sub(syncs.start).map(|index| index as usize);
                let Some(answer) = index.and_then(|index| answers.get_mut(index)) else {
                    return Err("it answered an unknown request".into());
                };
                let data = reply.data.unwrap_or(&[0x90]).to_vec();
                *answer = Some(reply.fault().map_or(Ok(data), Err));
                open -= 1;
            }
            self.arrived.drain(..used);
            if open > 0 {
                self.read_some().await?;
            }
        }
        if self.arrived.capacity() > IDLE_BYTES_MAX {
            self.arrived.shrink_to(IDLE_BYTES_MAX);
        }
        Ok(answers.into_iter().flatten().collect())
    }

    async fn read_some(&mut self) -> Result<(), String> {
        self.arrived.reserve(READ_BYTES);
        match self.stream.read_buf(&mut self.arrived).await {
            Ok(0) => Err("it closed the connection".into()),
            Ok(_) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Whether the other side has closed the connection. The operating system is asked, because the
    /// runtime may not know it yet.
    fn has_ended(&self) -> bool {
        match SockRef::from(&self.stream).peek(&mut [MaybeUninit::uninit()]) {
            Ok(count) => count == 0,
            Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
        }
    }
}
