//! One connection to one instance. Requests that are sent together may be answered in any order.

use std::fmt;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::time::Duration;

use socket2::SockRef;
use taskyard_wire::iproto::greeting::GREETING_BYTES;
use taskyard_wire::iproto::procedures::{Args, encode_args, encode_call};
use taskyard_wire::iproto::{
    Fault, Greeting, Operation, auth, encode_request, next_frame, parse_reply,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::place::Address;

/// How long to wait for an answer, beyond what the call itself may wait.
pub const ANSWER_MAX: Duration = Duration::from_secs(15);
/// How long connecting may take.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Largest answer. A take answers with at most 64 MiB of payloads.
const REPLY_BYTES_MAX: usize = 1 << 30;
/// How much is read at a time, at least.
const READ_BYTES: usize = 64 << 10;
/// What is kept of the memory for answers when none is on its way.
const IDLE_BYTES_MAX: usize = 1 << 20;

/// Why something was not done, or may not have been.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It was not asked.
    Unreachable(String),
    /// It was asked and did not answer: it may have been done.
    Lost(String),
    /// It was refused, and not done.
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
    /// What has arrived and was not read yet.
    arrived: Vec<u8>,
    next_sync: u64,
    /// What the instance calls its version.
    pub version: String,
}

/// Requests that leave together.
#[derive(Debug)]
pub struct Requests {
    bytes: Vec<u8>,
    syncs: Range<u64>,
}

impl Requests {
    /// One more call of a function.
    pub fn call(&mut self, name: &str, write: impl FnOnce(&mut Args<'_>)) {
        encode_call(&mut self.bytes, self.syncs.end, name, write);
        self.syncs.end += 1;
    }

    /// One more expression to be run.
    pub fn eval(&mut self, expression: &str, write: impl FnOnce(&mut Args<'_>)) {
        let mut args = Vec::new();
        encode_args(&mut args, write);
        self.push(&Operation::Eval { expression, args: &args });
    }

    /// How many there are.
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
    /// Connects and says who is there.
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

    /// Where requests are gathered.
    pub fn requests(&self) -> Requests {
        Requests { bytes: Vec::new(), syncs: self.next_sync..self.next_sync }
    }

    /// Sends one request and answers its results.
    pub async fn ask(&mut self, requests: Requests) -> Result<Vec<u8>, Failure> {
        let answer = self.exchange(requests, ANSWER_MAX).await?.pop();
        answer.unwrap_or_else(|| Ok(Vec::new())).map_err(Failure::Refused)
    }

    /// Sends requests and waits for all answers, each in the place of its request. A connection that had ended before is
    /// [`Failure::Unreachable`]; after any failure it must not be used again.
    pub async fn exchange(
        &mut self,
        requests: Requests,
        within: Duration,
    ) -> Result<Vec<Result<Vec<u8>, Fault>>, Failure> {
        if self.has_ended() {
            return Err(Failure::Unreachable("the connection has ended".into()));
        }
        self.next_sync = requests.syncs.end;
        let talking = async {
            self.stream.write_all(&requests.bytes).await.map_err(|error| error.to_string())?;
            self.receive(&requests.syncs).await
        };
        match timeout(within, talking).await {
            Ok(answers) => answers.map_err(Failure::Lost),
            Err(_) => Err(Failure::Lost(format!("it has not answered for {} s", within.as_secs()))),
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
                let place = reply.sync.checked_sub(syncs.start).map(|place| place as usize);
                let Some(answer) = place.and_then(|place| answers.get_mut(place)) else {
                    return Err("it answered what nobody asked".into());
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

    /// Whether the other side has closed it. The system is asked: the runtime may not have heard of it yet.
    fn has_ended(&self) -> bool {
        match SockRef::from(&self.stream).peek(&mut [MaybeUninit::uninit()]) {
            Ok(count) => count == 0,
            Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
        }
    }
}
