//! One connection: callers leave requests in a buffer, one task writes it, another reads replies.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use taskyard_core::SessionId;
use taskyard_wire::iproto::greeting::GREETING_BYTES;
use taskyard_wire::iproto::{
    Greeting, Operation, Shape, auth, encode_execute, encode_request, faults, identify_args,
    next_frame, parse_reply,
};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpSocket, TcpStream, lookup_host};
use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::address::Address;
use super::unsent::Unsent;
use super::waiting::{GROUP_MAX, NOBODY, Results, Takes, Waiting};
use crate::error::IprotoError;

/// Largest reply. Servers limit what they answer by far less.
const REPLY_BYTES_MAX: usize = 1 << 30;
/// How much is read at a time, at least.
const READ_BYTES: usize = 64 << 10;
/// What is kept of the memory for replies when none is on its way.
const IDLE_BYTES_MAX: usize = 1 << 20;

/// After how much silence, how often and how many times a server is asked whether it is there.
const SILENCE_MAX: Duration = Duration::from_secs(60);
const QUESTION_EVERY: Duration = Duration::from_secs(10);
const QUESTIONS_MAX: u32 = 3;

/// A connection, closed when it is dropped.
#[derive(Debug)]
pub(super) struct Link {
    shared: Arc<Shared>,
    tasks: [AbortHandle; 2],
}

#[derive(Debug)]
struct Shared {
    address: String,
    state: Mutex<State>,
    /// There is something to write.
    bell: Notify,
    stream: TcpStream,
}

#[derive(Debug, Default)]
struct State {
    unsent: Unsent,
    waiting: Waiting,
    /// Why nothing can be asked any more.
    broken: Option<String>,
}

impl Link {
    /// Connects, says who is there, and joins the session, if it is still known: all that in the time
    /// that is given for it.
    pub async fn connect(
        address: &Address,
        prefix: &str,
        session: Option<SessionId>,
        within: Duration,
    ) -> Result<Arc<Link>, IprotoError> {
        let connected = timeout(within, Link::greet(address, prefix, session)).await;
        connected.unwrap_or_else(|_| Err(unreachable(address, "no answer in time".into())))
    }

    async fn greet(
        address: &Address,
        prefix: &str,
        session: Option<SessionId>,
    ) -> Result<Arc<Link>, IprotoError> {
        let opened = open(address).await;
        let (stream, greeting) = opened.map_err(|error| unreachable(address, error.to_string()))?;
        let greeting = Greeting::parse(&greeting).map_err(|error| IprotoError::NotTaskyard {
            address: address.to_string(),
            what: error.to_string(),
        })?;
        let link = Link::start(stream, address.to_string());
        if let Some((user, password)) = &address.user {
            let scramble = Some(auth::scramble(password, &greeting.salt));
            link.must(&Operation::Auth { user, scramble }).await?;
        }
        if session.is_some() {
            let (name, args) = identify(prefix, session);
            let call = Operation::Call { name: &name, args: &args, shape: Shape::Call };
            match link.must(&call).await {
                // The session is over: who names it from now on is told so by the queue.
                Ok(()) | Err(IprotoError::Refused(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(link)
    }

    fn start(stream: TcpStream, address: String) -> Arc<Link> {
        let state = Mutex::default();
        let shared = Arc::new(Shared { address, state, bell: Notify::new(), stream });
        let writing = tokio::spawn(write_all(shared.clone()));
        let reading = tokio::spawn(read_all(shared.clone()));
        let tasks = [writing.abort_handle(), reading.abort_handle()];
        Arc::new(Link { shared, tasks })
    }

    /// Whether anything can be asked.
    pub fn is_open(&self) -> bool {
        self.shared.lock().broken.is_none()
    }

    /// Sends `count` requests, which `encode` writes with growing numbers from the one it is told, and
    /// waits for all replies. When the caller goes away, what `takes` names is given back.
    pub async fn ask(
        &self,
        count: usize,
        takes: Takes,
        encode: impl FnOnce(&mut Vec<u8>, u64),
    ) -> Result<Results, IprotoError> {
        if count == 0 {
            return Ok(Vec::new());
        }
        if count > GROUP_MAX {
            let text = format!("{count} calls in one go, the limit is {GROUP_MAX}; send fewer");
            return Err(IprotoError::Refused(faults::lua(text)));
        }
        let (done, answered) = oneshot::channel();
        {
            let mut state = self.shared.lock();
            if let Some(why) = &state.broken {
                return Err(self.shared.unreachable(why));
            }
            let State { unsent, waiting, .. } = &mut *state;
            encode(unsent.end(), waiting.open(count, takes, done));
            if state.waiting.is_single() {
                // Nobody else is likely to have something to send along, so there is nothing to gather.
                self.shared.write_some(&mut state);
            }
            if !state.unsent.is_empty() {
                self.shared.bell.notify_one();
            }
        }
        match answered.await {
            Ok(results) => Ok(results),
            Err(_) => {
                let why = self.shared.lock().broken.clone();
                Err(self.shared.unreachable(why.as_deref().unwrap_or("the connection ended")))
            }
        }
    }

    async fn must(&self, operation: &Operation<'_>) -> Result<(), IprotoError> {
        let encode = |out: &mut Vec<u8>, sync| encode_request(out, sync, operation);
        let results = self.ask(1, Takes::new(), encode).await?;
        match results.into_iter().next() {
            Some(Err(fault)) => Err(IprotoError::Refused(fault)),
            _ => Ok(()),
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

/// The call that joins a session, or asks for that of the connection.
pub(super) fn identify(prefix: &str, session: Option<SessionId>) -> (String, Vec<u8>) {
    (format!("{prefix}.identify"), identify_args(session))
}

fn unreachable(address: &Address, why: String) -> IprotoError {
    IprotoError::Unreachable { address: address.to_string(), why }
}

async fn open(address: &Address) -> io::Result<(TcpStream, [u8; GREETING_BYTES])> {
    let mut stream = connect_to(address).await?;
    // Requests are gathered before they are written.
    stream.set_nodelay(true)?;
    let mut greeting = [0; GREETING_BYTES];
    stream.read_exact(&mut greeting).await?;
    Ok((stream, greeting))
}

/// Connects to the first that answers of those that have this name.
async fn connect_to(address: &Address) -> io::Result<TcpStream> {
    let mut refusal = io::Error::new(io::ErrorKind::NotFound, "nobody has this name");
    for to in lookup_host((address.host.as_str(), address.port)).await? {
        let socket = if to.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        // A take may wait for days; a server that is gone meanwhile must not be waited for.
        SockRef::from(&socket).set_tcp_keepalive(&questions())?;
        match socket.connect(to).await {
            Ok(stream) => return Ok(stream),
            Err(error) => refusal = error,
        }
    }
    Err(refusal)
}

/// After a minute of silence a server is asked whether it is there, three times in half a minute.
fn questions() -> TcpKeepalive {
    TcpKeepalive::new()
        .with_time(SILENCE_MAX)
        .with_interval(QUESTION_EVERY)
        .with_retries(QUESTIONS_MAX)
}

/// Writes what callers have left, and goes on where the connection was full.
async fn write_all(shared: Arc<Shared>) {
    loop {
        shared.bell.notified().await;
        while !shared.lock().unsent.is_empty() {
            if let Err(error) = shared.stream.writable().await {
                return shared.break_off(error.to_string());
            }
            shared.write_some(&mut shared.lock());
        }
    }
}

async fn read_all(shared: Arc<Shared>) {
    let mut bytes = Vec::new();
    loop {
        if let Err(error) = shared.stream.readable().await {
            return shared.break_off(error.to_string());
        }
        bytes.reserve(READ_BYTES);
        match shared.stream.try_read_buf(&mut bytes) {
            Ok(0) => return shared.break_off("the server closed the connection".into()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return shared.break_off(error.to_string()),
        }
        match shared.take_in(&bytes) {
            Ok(read) => drop(bytes.drain(..read)),
            Err(why) => return shared.break_off(why),
        }
        if bytes.len() < READ_BYTES {
            bytes.shrink_to(IDLE_BYTES_MAX);
        }
    }
}

impl Shared {
    /// Writes as much as the connection takes now.
    fn write_some(&self, state: &mut State) {
        match self.stream.try_write(state.unsent.rest()) {
            Ok(written) => state.unsent.advance(written),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                // The reading task finds out too, and tells everybody.
                state.unsent.clear();
                state.broken.get_or_insert(error.to_string());
            }
        }
    }

    /// Takes in every whole reply and answers how many bytes these were.
    fn take_in(&self, bytes: &[u8]) -> Result<usize, String> {
        let (mut read, mut returns) = (0, Vec::new());
        let mut state = self.lock();
        while let Some(frame) =
            next_frame(&bytes[read..], REPLY_BYTES_MAX).map_err(|error| error.to_string())?
        {
            let reply = parse_reply(frame.body).map_err(|error| error.to_string())?;
            if reply.sync == 0
                && let Some(fault) = reply.fault()
            {
                // This answers no request: it says why the connection ends.
                return Err(fault.text.into_owned());
            }
            returns.extend(state.waiting.answer(&reply));
            read += frame.consumed;
        }
        if !returns.is_empty() {
            encode_execute(state.unsent.end(), NOBODY, &returns);
            self.bell.notify_one();
        }
        Ok(read)
    }

    /// Ends the connection; everybody who waits is told.
    fn break_off(&self, why: String) {
        let mut state = self.lock();
        state.broken.get_or_insert(why);
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        drop(waiting);
    }

    fn unreachable(&self, why: &str) -> IprotoError {
        IprotoError::Unreachable { address: self.address.clone(), why: why.to_owned() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    // A take without end never ended when its server was gone without a word.
    #[tokio::test]
    async fn a_silent_server_is_asked_whether_it_is_there() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let stream = connect_to(&Address::parse(&address).unwrap()).await.unwrap();
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap());
        // Linux would first ask after two hours.
        assert_eq!(socket.tcp_keepalive_time().unwrap(), SILENCE_MAX);
    }
}
