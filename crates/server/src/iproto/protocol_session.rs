//! The state of one connection: turns frames into commands and replies into answers, without a
//! socket.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use taskyard_core::SessionId;
use taskyard_core::access::Permissions;
use taskyard_iproto::eval::Returns;
use taskyard_iproto::{
    Fault, Operation, RecentTubes, Shape, faults, next_frame, parse_request, write_empty,
    write_fault, write_id,
};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;

use super::batch::Batch;
use super::counters::CountedVerb;
use super::expected_replies::ExpectedReplies;
use super::inflight::Inflight;
use super::server::{IprotoServer, LimitShare, SharedLimit};
use super::session_worker::SessionWorker;
use super::sessions::Sessions;
use crate::users::{GUEST, LoginFailed, Principal};

/// When this many bytes of answers are unsent, no more are written and nothing more is read.
pub(super) const UNSENT_BYTES_MAX: usize = 1 << 20;
/// The same limit while the unsent answers of all connections together are at their limit.
const UNSENT_BYTES_MIN: usize = 64 << 10;

/// How much of the memory for answers is kept while the connection is idle.
const IDLE_BYTES_MAX: usize = 32 << 10;
/// Largest frame of a client that must authenticate first, in bytes.
const UNAUTHENTICATED_BYTES_MAX: usize = 16 << 10;
/// From this size on a frame is parsed in blocking mode, so that it does not delay other
/// connections.
const BLOCKING_BYTES: usize = 512 << 10;

/// The state of one connection.
pub(super) struct ProtocolSession {
    pub(super) server: Arc<IprotoServer>,
    /// Bytes to send.
    pub answers: Vec<u8>,
    pub(super) sessions: Sessions,
    pub(super) recent: RecentTubes,
    /// The commands that are sent to the engine next.
    pub(super) batch: Batch,
    /// The requests that the engine works on.
    pub(super) inflight: Inflight,
    pub(super) in_flight: usize,
    /// The expected size of their replies.
    pub(super) expected: ExpectedReplies,
    /// Its part of the unsent answers of all connections.
    unsent: LimitShare,
    /// Whether frames are buffered that could not be served yet.
    has_unserved: bool,
    salt: [u8; 32],
    /// The address of the client, if it is known.
    pub(super) peer: Option<IpAddr>,
    /// The name under which it takes tasks.
    pub(super) worker: SessionWorker,
    /// The user, with the rights of the current list of users.
    pub(super) principal: Principal,
    authenticated: bool,
    closing: bool,
}

/// Random values of a new connection.
pub(super) struct ConnectionSecrets {
    /// The salt for passwords.
    pub salt: [u8; 32],
    /// The identity of the queue session that the first take joins.
    pub session: [u8; 16],
}

/// Which request is answered, and how.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplyTo {
    /// The number of the request, chosen by the client.
    pub sync: u64,
    /// How results are laid out.
    pub shape: Shape,
    /// The verb it is counted as.
    pub verb: CountedVerb,
    /// What part of an answer is sent: an expression without `return` sends nothing.
    pub returns: Returns,
}

impl ProtocolSession {
    /// The state of a new connection, whose first bytes are the greeting.
    pub fn new(
        server: Arc<IprotoServer>,
        peer: Option<SocketAddr>,
        random: ConnectionSecrets,
        greeting: &[u8],
    ) -> Self {
        let ConnectionSecrets { salt, session } = random;
        ProtocolSession {
            answers: greeting.to_vec(),
            sessions: Sessions::new(SessionId(session)),
            recent: RecentTubes::default(),
            batch: Batch::new(server.clone()),
            inflight: Inflight::default(),
            in_flight: 0,
            expected: ExpectedReplies::default(),
            unsent: LimitShare::new(server.clone(), SharedLimit::Unsent),
            has_unserved: false,
            salt,
            peer: peer.map(|peer| peer.ip()),
            worker: SessionWorker::new(peer),
            principal: server.users.guest(),
            authenticated: false,
            closing: false,
            server,
        }
    }

    /// Whether the connection is to be closed.
    pub fn is_closing(&self) -> bool {
        self.closing
    }

    /// Whether the client is authenticated as a user that may do something.
    pub fn is_authenticated(&self) -> bool {
        self.authenticated
    }

    /// Whether buffered frames that could not be served can be served now.
    pub fn can_resume(&mut self) -> bool {
        self.has_unserved && self.can_accept()
    }

    /// Whether more frames can be served: no session change is pending, and there are not too many
    /// answers.
    pub fn can_accept(&mut self) -> bool {
        !self.inflight.is_changing_session()
            && !self.closing
            && self.expected.has_capacity()
            && self.can_reply()
    }

    /// Whether more answers may be written. A few are always allowed, more while the answers of all
    /// connections are below their limit.
    pub(super) fn can_reply(&mut self) -> bool {
        match self.answers.len() {
            ..UNSENT_BYTES_MIN => true,
            UNSENT_BYTES_MIN..UNSENT_BYTES_MAX => {
                self.unsent.amount() > 0 || self.unsent.grow(UNSENT_BYTES_MAX)
            }
            _ => false,
        }
    }

    /// Clears the answers, which are all sent.
    pub fn clear_answers(&mut self) {
        self.answers.clear();
        self.answers.shrink_to(IDLE_BYTES_MAX);
        self.unsent.clear();
    }

    /// Serves the whole frames at the start of the bytes, as many as can be served now; returns how
    /// many bytes they had.
    pub fn feed(&mut self, bytes: &[u8]) -> usize {
        let mut consumed = 0;
        self.has_unserved = false;
        while !self.closing && consumed < bytes.len() {
            if !self.can_accept() {
                self.has_unserved = true;
                break;
            }
            match next_frame(&bytes[consumed..], self.frame_bytes_max()) {
                Ok(Some(frame)) => {
                    consumed += frame.consumed;
                    if frame.body.len() >= BLOCKING_BYTES && can_block_in_place() {
                        block_in_place(|| self.serve(frame.body));
                    } else {
                        self.serve(frame.body);
                    }
                }
                Ok(None) => break,
                Err(bad) => self.refuse_frame(0, &bad.fault()),
            }
        }
        self.submit();
        consumed
    }

    /// The rights of the user.
    pub(super) fn permissions(&self) -> &Permissions {
        self.principal.permissions()
    }

    /// A client without any right may only send small frames.
    fn frame_bytes_max(&self) -> usize {
        let most = self.server.frame_bytes_max;
        if self.permissions().allows_anything() {
            most
        } else {
            most.min(UNAUTHENTICATED_BYTES_MAX)
        }
    }

    /// Refuses buffered bytes and closes the connection.
    pub fn refuse_input(&mut self, why: &'static str) {
        self.refuse_frame(0, &faults::lua(why));
    }

    /// Refuses bytes after which no frame can be found.
    fn refuse_frame(&mut self, sync: u64, fault: &Fault) {
        self.send_fault_to(sync, CountedVerb::of("frame"), fault);
        self.closing = true;
    }

    fn serve(&mut self, frame: &[u8]) {
        self.server.users.refresh(&mut self.principal);
        let request = match parse_request(frame) {
            Ok(request) => request,
            Err(bad) if bad.broken => return self.refuse_frame(bad.sync, &bad.fault),
            Err(bad) => return self.send_fault_to(bad.sync, CountedVerb::of("other"), &bad.fault),
        };
        let sync = request.sync;
        let reply_to = |verb| {
            let (shape, returns) = (Shape::Call, Returns::Result);
            ReplyTo { sync, shape, verb: CountedVerb::of(verb), returns }
        };
        match request.operation {
            Operation::Ping => self.send_empty(reply_to("ping")),
            Operation::Id { .. } => {
                self.server.counters.answered(CountedVerb::of("id"));
                write_id(&mut self.answers, sync);
            }
            Operation::Auth { user, scramble } => {
                self.authenticate(reply_to("auth"), user, scramble.as_ref());
            }
            Operation::Select { space, index, limit, offset, iterator, key } => {
                let request = super::select::SelectRequest {
                    index,
                    limit,
                    offset,
                    iterator,
                    key: key.into(),
                };
                self.select(reply_to("select"), space, request);
            }
            Operation::Call { name, args, shape } => {
                self.call(ReplyTo { shape, ..reply_to("call") }, name, args);
            }
            Operation::Eval { expression, args } => self.eval(reply_to("eval"), expression, args),
            // No key that can be watched exists here, so none ever changes.
            Operation::Watch { .. } => self.server.counters.answered(CountedVerb::of("watch")),
            Operation::Unwatch { .. } => self.server.counters.answered(CountedVerb::of("unwatch")),
            Operation::Other(kind) => {
                self.send_fault_to(sync, CountedVerb::of("other"), &faults::unknown_type(kind));
            }
        }
    }

    fn authenticate(&mut self, reply_to: ReplyTo, user: &str, scramble: Option<&[u8; 20]>) {
        let (server, now) = (self.server.clone(), Instant::now());
        let throttle = &server.throttle;
        if let Some(peer) = self.peer
            && let Err(wait) = throttle.admit(peer, Some(user), now)
        {
            let failures = throttle.failures();
            tracing::debug!(%peer, user = ?faults::shortened(user), failures, "iproto login refused: too many failed attempts");
            return self.send_fault(reply_to, &faults::too_many_logins(wait.as_secs().max(1)));
        }
        match self.server.users.authenticate(user, scramble, &self.salt) {
            Ok(principal) => {
                if let Some(peer) = self.peer.filter(|_| user != GUEST) {
                    throttle.succeeded(peer, Some(user), now);
                }
                // A user without rights counts as not authenticated.
                self.authenticated = principal.permissions().allows_anything();
                self.principal = principal;
                self.send_empty(reply_to);
            }
            Err(LoginFailed) => {
                if let Some(peer) = self.peer {
                    tracing::debug!(%peer, user = ?faults::shortened(user), "iproto login failed");
                    throttle.failed(peer, Some(user), now);
                }
                self.send_fault(reply_to, &faults::login_failed());
            }
        }
    }

    /// Sends a reply without data.
    fn send_empty(&mut self, reply_to: ReplyTo) {
        self.server.counters.answered(reply_to.verb);
        write_empty(&mut self.answers, reply_to.sync);
    }

    /// Sends a fault.
    pub(super) fn send_fault(&mut self, reply_to: ReplyTo, fault: &Fault) {
        self.send_fault_to(reply_to.sync, reply_to.verb, fault);
    }

    pub(super) fn send_fault_to(&mut self, sync: u64, verb: CountedVerb, fault: &Fault) {
        self.server.counters.refused(verb, fault.code);
        write_fault(&mut self.answers, sync, fault);
    }

    /// Counts one more request in flight, or refuses it.
    pub(super) fn admit(&mut self, reply_to: ReplyTo) -> bool {
        if self.in_flight >= self.server.in_flight_max {
            let most = self.server.in_flight_max;
            let text = format!(
                "overloaded: {most} requests of this connection are unanswered, which is the limit; \
                 wait for answers first"
            );
            self.send_fault(reply_to, &faults::lua(text));
            return false;
        }
        if !self.batch.share.grow(1) {
            let text =
                "overloaded: too many unanswered requests on all connections; try again later";
            self.send_fault(reply_to, &faults::lua(text));
            return false;
        }
        self.in_flight += 1;
        true
    }
}

/// Whether the runtime has other threads for other connections.
fn can_block_in_place() -> bool {
    let flavor = Handle::try_current().map(|handle| handle.runtime_flavor());
    flavor.is_ok_and(|flavor| flavor == RuntimeFlavor::MultiThread)
}

#[cfg(test)]
mod tests {
    use taskyard_engine::{Engine, Settings, SystemClock};
    use taskyard_iproto::{encode_request, next_frame, parse_reply};
    use taskyard_store::MemoryStore;

    use super::*;
    use crate::auth_throttle::AuthThrottle;
    use crate::iproto::config::IprotoConfig;
    use crate::users::{Grants, User, Users};

    // A client could authenticate as the guest without grants and keep the connection for ever.
    #[test]
    fn a_user_without_grants_is_not_authenticated() {
        let store = Box::new(MemoryStore::default());
        let engine = Engine::start(store, Arc::new(SystemClock::new()), Settings::default());
        let mut config = IprotoConfig::new(([127, 0, 0, 1], 0).into());
        config.users = Users::new(vec![User::new("boss", "secret", Grants::All)]);
        let server =
            Arc::new(IprotoServer::new(config, engine, [0; 16], Arc::new(AuthThrottle::new())));
        let random = ConnectionSecrets { salt: [0; 32], session: [1; 16] };
        let mut protocol = ProtocolSession::new(server, None, random, &[]);
        let mut bytes = Vec::new();
        encode_request(&mut bytes, 1, &Operation::Auth { user: GUEST, scramble: None });
        protocol.feed(&bytes);
        let frame = next_frame(&protocol.answers, 1_000).unwrap().unwrap();
        assert_eq!(parse_reply(frame.body).unwrap().fault(), None);
        assert!(!protocol.is_authenticated());
    }
}
