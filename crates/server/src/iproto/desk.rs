//! Where frames become commands and replies become answers; knows no socket.

use std::sync::Arc;

use taskyard_core::SessionId;
use taskyard_wire::iproto::{
    Fault, Operation, RecentTubes, Shape, faults, next_frame, parse_request, write_empty,
    write_fault, write_id,
};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;

use super::batch::Batch;
use super::counters::Verb;
use super::face::Face;
use super::flights::Flights;
use super::sessions::Sessions;
use super::users::{GUEST, Grants, NotKnown};

/// When this many bytes of answers are not sent yet, no more are made and nothing more is read.
pub(super) const UNSENT_BYTES_MAX: usize = 1 << 20;

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
    salt: [u8; 32],
    pub(super) user: String,
    pub(super) grants: Grants,
    introduced: bool,
    closing: bool,
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
    /// Whether an answer tells anything: an expression without `return` does not.
    pub returns: bool,
}

impl Desk {
    /// The desk of a new connection, which begins with the greeting.
    pub fn new(face: Arc<Face>, salt: [u8; 32], session: [u8; 16], greeting: &[u8]) -> Self {
        Desk {
            answers: greeting.to_vec(),
            sessions: Sessions::new(SessionId(session)),
            recent: RecentTubes::default(),
            batch: Batch::new(face.clone()),
            flights: Flights::default(),
            in_flight: 0,
            salt,
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

    /// Whether more frames are welcome now.
    pub fn may_eat(&self) -> bool {
        !self.flights.is_joining() && !self.closing && self.answers.len() < UNSENT_BYTES_MAX
    }

    /// Serves all whole frames at the start of the bytes; answers how many bytes they had.
    pub fn eat(&mut self, bytes: &[u8]) -> usize {
        let mut eaten = 0;
        while !self.flights.is_joining() && !self.closing {
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

    /// Refuses a frame for which there is no room, and with it the connection.
    pub fn refuse_arrival(&mut self) {
        self.refuse_frame(
            0,
            &faults::lua("overloaded: too many bytes of requests are on their way"),
        );
    }

    /// Refuses bytes after which nothing can be understood any more.
    fn refuse_frame(&mut self, sync: u64, fault: &Fault) {
        self.refuse(sync, Verb::of("frame"), fault);
        self.closing = true;
    }

    fn serve(&mut self, frame: &[u8]) {
        let request = match parse_request(frame) {
            Ok(request) => request,
            // Whoever sends this speaks another protocol, perhaps by the hand of somebody else.
            Err(bad) if bad.fault.code == 20 => return self.refuse_frame(bad.sync, &bad.fault),
            Err(bad) => return self.refuse(bad.sync, Verb::of("other"), &bad.fault),
        };
        let sync = request.sync;
        let caller =
            |verb| Caller { sync, shape: Shape::Call, verb: Verb::of(verb), returns: true };
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
        match self.face.users.authenticate(user, scramble, &self.salt) {
            Ok(grants) => {
                self.user = user.into();
                self.grants = grants;
                self.introduced = true;
                self.empty(caller);
            }
            Err(NotKnown::User) => self.deny(caller, &faults::no_user(user)),
            Err(NotKnown::Password) => self.deny(caller, &faults::incorrect_password(user)),
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
