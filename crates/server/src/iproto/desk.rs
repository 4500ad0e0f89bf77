//! Where frames become commands and replies become answers; knows no socket.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use taskyard_core::SessionId;
use taskyard_wire::iproto::eval::Returns;
use taskyard_wire::iproto::{
    Fault, Operation, RecentTubes, Shape, faults, next_frame, parse_request, write_empty,
    write_fault, write_id,
};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;

use super::batch::Batch;
use super::counters::Verb;
use super::expected::Expected;
use super::face::{Face, Of, Share};
use super::flights::Flights;
use super::sessions::Sessions;
use super::users::{GUEST, Grants, LoginFailed};

/// When this many bytes of answers are not sent yet, no more are made and nothing more is read.
pub(super) const UNSENT_BYTES_MAX: usize = 1 << 20;
/// The same while other connections have so much that is not sent that there is no room for more.
const UNSENT_BYTES_MIN: usize = 64 << 10;

/// What is kept of the memory for answers while nothing is asked.
const IDLE_BYTES_MAX: usize = 32 << 10;
/// Largest frame of somebody who has not said who they are and must, in bytes.
const STRANGER_BYTES_MAX: usize = 16 << 10;
/// From this size on a frame is parsed aside, so that it does not hold up other connections.
const ASIDE_BYTES: usize = 512 << 10;

/// The state of one connection.
pub(super) struct Desk {
    pub(super) face: Arc<Face>,
    /// What is to be sent.
    pub answers: Vec<u8>,
    pub(super) sessions: Sessions,
    pub(super) recent: RecentTubes,
    /// What the next call of the engine is about.
    pub(super) batch: Batch,
    /// What is under way.
    pub(super) flights: Flights,
    pub(super) in_flight: usize,
    /// How large the answers to that will be.
    pub(super) expected: Expected,
    /// What of the answers of all connections are those of this one.
    unsent: Share,
    /// Whether frames have arrived that must wait.
    held: bool,
    salt: [u8; 32],
    /// Where the client is, as far as that is known.
    peer: Option<IpAddr>,
    pub(super) user: String,
    pub(super) grants: Grants,
    introduced: bool,
    closing: bool,
}

/// What is made anew for each connection.
pub(super) struct Random {
    /// What passwords are scrambled with.
    pub salt: [u8; 32],
    /// The identity of the session that begins with the first take.
    pub session: [u8; 16],
}

/// Who asks, and how to answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caller {
    /// Which request of the client.
    pub sync: u64,
    /// How results are laid out.
    pub shape: Shape,
    /// What it is counted as.
    pub verb: Verb,
    /// What of an answer is told: an expression without `return` tells nothing.
    pub returns: Returns,
}

impl Desk {
    /// The desk of a new connection, which begins with the greeting.
    pub fn new(face: Arc<Face>, peer: Option<IpAddr>, random: Random, greeting: &[u8]) -> Self {
        let Random { salt, session } = random;
        Desk {
            answers: greeting.to_vec(),
            sessions: Sessions::new(SessionId(session)),
            recent: RecentTubes::default(),
            batch: Batch::new(face.clone()),
            flights: Flights::default(),
            in_flight: 0,
            expected: Expected::default(),
            unsent: Share::new(face.clone(), Of::Unsent),
            held: false,
            salt,
            peer,
            user: GUEST.into(),
            grants: face.users.guest(),
            introduced: false,
            closing: false,
            face,
        }
    }

    /// Whether the connection is to be closed.
    pub fn is_closing(&self) -> bool {
        self.closing
    }

    /// Whether somebody has said who they are.
    pub fn is_introduced(&self) -> bool {
        self.introduced
    }

    /// Whether frames have arrived that could not be served, and now can.
    pub fn may_go_on(&mut self) -> bool {
        self.held && self.may_eat()
    }

    /// Whether more frames are welcome now: nothing decides what they mean, and the answers to those
    /// before them are not too many.
    pub fn may_eat(&mut self) -> bool {
        !self.flights.is_joining() && !self.closing && self.expected.has_room() && self.may_answer()
    }

    /// Whether more answers may be made. A few are always allowed, more as long as those of all
    /// connections have room.
    pub(super) fn may_answer(&mut self) -> bool {
        match self.answers.len() {
            ..UNSENT_BYTES_MIN => true,
            UNSENT_BYTES_MIN..UNSENT_BYTES_MAX => {
                self.unsent.amount() > 0 || self.unsent.grow(UNSENT_BYTES_MAX)
            }
            _ => false,
        }
    }

    /// Forgets the answers, which are all sent.
    pub fn forget_answers(&mut self) {
        self.answers.clear();
        self.answers.shrink_to(IDLE_BYTES_MAX);
        self.unsent.clear();
    }

    /// Serves the whole frames at the start of the bytes, as many as may be served now; answers how many
    /// bytes they had.
    pub fn eat(&mut self, bytes: &[u8]) -> usize {
        let mut eaten = 0;
        self.held = false;
        while !self.closing && eaten < bytes.len() {
            if !self.may_eat() {
                self.held = true;
                break;
            }
            match next_frame(&bytes[eaten..], self.frame_bytes_max()) {
                Ok(Some(frame)) => {
                    eaten += frame.consumed;
                    if frame.body.len() >= ASIDE_BYTES && may_step_aside() {
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
        eaten
    }

    /// Whoever may do nothing yet need not send much.
    fn frame_bytes_max(&self) -> usize {
        let most = self.face.frame_bytes_max;
        if self.grants.sees_something() { most } else { most.min(STRANGER_BYTES_MAX) }
    }

    /// Refuses a frame that cannot be waited for, and with it the connection.
    pub fn refuse_arrival(&mut self, why: &'static str) {
        self.refuse_frame(0, &faults::lua(why));
    }

    /// Refuses bytes after which nothing can be understood any more.
    fn refuse_frame(&mut self, sync: u64, fault: &Fault) {
        self.refuse(sync, Verb::of("frame"), fault);
        self.closing = true;
    }

    fn serve(&mut self, frame: &[u8]) {
        let request = match parse_request(frame) {
            Ok(request) => request,
            Err(bad) if bad.broken => return self.refuse_frame(bad.sync, &bad.fault),
            Err(bad) => return self.refuse(bad.sync, Verb::of("other"), &bad.fault),
        };
        let sync = request.sync;
        let caller = |verb| {
            let (shape, returns) = (Shape::Call, Returns::Result);
            Caller { sync, shape, verb: Verb::of(verb), returns }
        };
        match request.operation {
            Operation::Ping => self.empty(caller("ping")),
            Operation::Id { .. } => {
                self.face.counters.answered(Verb::of("id"));
                write_id(&mut self.answers, sync);
            }
            Operation::Auth { user, scramble } => {
                self.authenticate(caller("auth"), user, scramble.as_ref());
            }
            Operation::Select { space, index, limit, offset, iterator, key } => {
                let query = super::select::Wish { index, limit, offset, iterator, key: key.into() };
                self.select(caller("select"), space, query);
            }
            Operation::Call { name, args, shape } => {
                self.call(Caller { shape, ..caller("call") }, name, args);
            }
            Operation::Eval { expression, args } => self.eval(caller("eval"), expression, args),
            // Nothing of what can be watched is here, so that nothing ever changes.
            Operation::Watch { .. } => self.face.counters.answered(Verb::of("watch")),
            Operation::Unwatch { .. } => self.face.counters.answered(Verb::of("unwatch")),
            Operation::Other(kind) => {
                self.refuse(sync, Verb::of("other"), &faults::unknown_type(kind));
            }
        }
    }

    fn authenticate(&mut self, caller: Caller, user: &str, scramble: Option<&[u8; 20]>) {
        let (face, now) = (self.face.clone(), Instant::now());
        let throttle = &face.throttle;
        if let Some(peer) = self.peer
            && let Err(wait) = throttle.admit(peer, now)
        {
            let failures = throttle.failures();
            tracing::debug!(%peer, user = ?faults::shown(user), failures, "a login was not looked at");
            return self.deny(caller, &faults::too_many_logins(wait.as_secs().max(1)));
        }
        match self.face.users.authenticate(user, scramble, &self.salt) {
            Ok(grants) => {
                if let Some(peer) = self.peer.filter(|_| user != GUEST) {
                    throttle.succeeded(peer, now);
                }
                self.user = user.into();
                // Whoever may do nothing has not become anybody.
                self.introduced = grants.sees_something();
                self.grants = grants;
                self.empty(caller);
            }
            Err(LoginFailed) => {
                if let Some(peer) = self.peer {
                    tracing::debug!(%peer, user = ?faults::shown(user), "a login over iproto failed");
                    throttle.failed(peer, now);
                }
                self.deny(caller, &faults::login_failed());
            }
        }
    }

    /// Answers that it was done.
    fn empty(&mut self, caller: Caller) {
        self.face.counters.answered(caller.verb);
        write_empty(&mut self.answers, caller.sync);
    }

    /// Answers a fault.
    pub(super) fn deny(&mut self, caller: Caller, fault: &Fault) {
        self.refuse(caller.sync, caller.verb, fault);
    }

    pub(super) fn refuse(&mut self, sync: u64, verb: Verb, fault: &Fault) {
        self.face.counters.refused(verb, fault.code);
        write_fault(&mut self.answers, sync, fault);
    }

    /// Makes room for one more request under way, or refuses it.
    pub(super) fn admit(&mut self, caller: Caller) -> bool {
        if self.in_flight >= self.face.in_flight_max {
            let most = self.face.in_flight_max;
            let text = format!(
                "overloaded: {most} requests of this connection are not answered yet, the most \
                 there may be; wait for some answers first"
            );
            self.deny(caller, &faults::lua(text));
            return false;
        }
        if !self.batch.share.grow(1) {
            let text = "overloaded: too many requests of all connections are not answered yet; try \
                        again a little later";
            self.deny(caller, &faults::lua(text));
            return false;
        }
        self.in_flight += 1;
        true
    }
}

/// Whether other connections have threads that they can go on with.
fn may_step_aside() -> bool {
    let flavor = Handle::try_current().map(|handle| handle.runtime_flavor());
    flavor.is_ok_and(|flavor| flavor == RuntimeFlavor::MultiThread)
}

#[cfg(test)]
mod tests {
    use taskyard_engine::{Engine, Settings, SystemClock};
    use taskyard_store::MemoryStore;
    use taskyard_wire::iproto::{encode_request, next_frame, parse_reply};

    use super::*;
    use crate::auth_throttle::AuthThrottle;
    use crate::iproto::config::IprotoConfig;
    use crate::iproto::users::{User, Users};

    // A stranger could say to be the guest, who may do nothing, and keep the connection for ever.
    #[test]
    fn whoever_may_do_nothing_is_not_introduced() {
        let store = Box::new(MemoryStore::default());
        let engine = Engine::start(store, Arc::new(SystemClock::new()), Settings::default());
        let mut config = IprotoConfig::new(([127, 0, 0, 1], 0).into());
        config.users = Users::new(vec![User::new("boss", "secret", Grants::All)]);
        let face = Arc::new(Face::new(config, engine, [0; 16], Arc::new(AuthThrottle::new())));
        let random = Random { salt: [0; 32], session: [1; 16] };
        let mut desk = Desk::new(face, None, random, &[]);
        let mut bytes = Vec::new();
        encode_request(&mut bytes, 1, &Operation::Auth { user: GUEST, scramble: None });
        desk.eat(&bytes);
        let frame = next_frame(&desk.answers, 1_000).unwrap().unwrap();
        assert_eq!(parse_reply(frame.body).unwrap().fault(), None);
        assert!(!desk.is_introduced());
    }
}
