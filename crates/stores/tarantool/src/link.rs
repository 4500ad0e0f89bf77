//! Connects to the writable instance and loads the procedures there.

use std::sync::Arc;
use std::time::Duration;

use taskyard_core::Error;
use taskyard_tarantool::{
    ANSWER_MAX, ArgumentWriter, Connection, Failure, Fault, LuaValue, Requests, TarantoolUrl,
    decode_value,
};
use tokio::time::Instant;

use super::library::{self, FORMAT, Library};

/// The pause between attempts to connect: at first, and at most.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// The oldest version with everything that the procedures use.
const VERSION_MIN: (u32, u32) = (2, 6);

/// Error codes of Tarantool.
mod code {
    pub const MEMORY: u32 = 2;
    pub const READ_ONLY: u32 = 7;
    pub const UNDEFINED: u32 = 33;
    pub const LOG: u32 = 40;
    pub const DENIED: u32 = 42;
    pub const NO_USER: u32 = 45;
    pub const PASSWORD: u32 = 47;
    pub const LOADING: u32 = 116;
    /// Ours: tarantool/queue is not running.
    pub const NOT_RUNNING: u32 = 20_116;
}

/// The settings of all connections.
pub(super) struct Connector {
    pub place: TarantoolUrl,
    /// The prefix of the names of all spaces.
    pub prefix: String,
    /// How many replicas must have a write before it is acknowledged.
    pub replicas: u64,
    /// Whether tubes are those of an existing tarantool/queue.
    pub is_adapter: bool,
    pub library: Library,
}

/// A connection that is opened again when it is lost.
pub(super) struct Link {
    connector: Arc<Connector>,
    connection: Option<Connection>,
    /// How many connections there were.
    count: u64,
    /// The instance that was writable last.
    which: usize,
    pause: Duration,
    /// Why it could not be reached, and until when no other attempt is made.
    away: Option<(Failure, Instant)>,
}

impl Link {
    pub fn new(connector: Arc<Connector>) -> Self {
        Link { connector, connection: None, count: 0, which: 0, pause: PAUSE_MIN, away: None }
    }

    /// How long to wait before the next try.
    pub fn pause(&self) -> Duration {
        self.pause
    }

    /// The connection, a new one if there is none.
    pub async fn connection(&mut self) -> Result<&mut Connection, Failure> {
        if self.connection.is_none() {
            if let Some((failure, until)) = &self.away
                && Instant::now() < *until
            {
                return Err(failure.clone());
            }
            match self.connect().await {
                Ok(connection) => {
                    (self.pause, self.away) = (PAUSE_MIN, None);
                    self.connection = Some(connection);
                    self.count += 1;
                }
                Err(failure) => {
                    self.away = Some((failure.clone(), Instant::now() + self.pause));
                    self.pause = (2 * self.pause).min(PAUSE_MAX);
                    return Err(failure);
                }
            }
        }
        self.connection.as_mut().ok_or_else(|| Failure::Unreachable("no connection".into()))
    }

    /// The number of the last connection.
    pub fn number(&self) -> u64 {
        self.count
    }

    /// Closes the connection.
    pub fn drop_connection(&mut self) {
        self.connection = None;
    }

    /// Connects to the first writable instance, beginning with the last one.
    async fn connect(&mut self) -> Result<Connection, Failure> {
        let count = self.connector.place.instances.len();
        let mut last = Failure::Unreachable("the URL names no instance".into());
        for turn in 0..count {
            let which = (self.which + turn) % count;
            match self.try_instance(which).await {
                Ok(connection) => {
                    self.which = which;
                    return Ok(connection);
                }
                // A permanent refusal is more informative than an unreachable instance.
                Err(Failure::Refused(fault)) => last = Failure::Refused(fault),
                Err(failure) if !matches!(last, Failure::Refused(_)) => last = failure,
                Err(_) => {}
            }
        }
        Err(last)
    }

    async fn try_instance(&self, which: usize) -> Result<Connection, Failure> {
        let connector = &self.connector;
        let address = &connector.place.instances[which];
        let mut connection = Connection::open(address, connector.place.user.as_ref()).await?;
        if !is_new_enough(&connection.version) {
            let (major, minor) = VERSION_MIN;
            return Err(Failure::Refused(Fault::new(
                0,
                format!(
                    "Tarantool {} is too old; use {major}.{minor} or later",
                    connection.version
                ),
            )));
        }
        let (name, prefix) = (&connector.library.name, &connector.prefix);
        let mut probe = connection.requests();
        probe.eval(library::probe(), |args| _ = args.text(name).text(prefix));
        let found = connection.ask(probe).await?;
        let found = decode_value(&found).map_err(|error| Failure::Lost(error.to_string()))?;
        let [loaded, read_only, format] = found.list() else {
            return Err(Failure::Lost("unexpected answer".into()));
        };
        if read_only.is_true() {
            return Err(Failure::Unreachable(format!("{address} is read-only")));
        }
        let format = format.uint().unwrap_or(0);
        if format > FORMAT.unsigned_abs() {
            return Err(Failure::Refused(Fault::new(0, newer(format))));
        }
        if !loaded.is_true() {
            let mut load = connection.requests();
            let (format, text) = (FORMAT.unsigned_abs(), &connector.library.text);
            load.eval(library::load(), |args| {
                _ = args.text(name).text(prefix).uint(format).text(text)
            });
            connection.ask(load).await?;
        }
        Ok(connection)
    }

    /// Calls an idempotent procedure and decodes its answer.
    pub async fn call_with_retry(
        &mut self,
        verb: &str,
        write: impl Fn(&mut ArgumentWriter<'_>),
    ) -> Result<LuaValue, Failure> {
        let data = self.call(verb, ANSWER_MAX, true, write).await?;
        decode_value(&data).map_err(|error| Failure::Lost(error.to_string()))
    }

    /// Calls a procedure and answers its results undecoded. It is called again if it was not done, and with `may_repeat` also if it
    /// may have been done.
    pub async fn call(
        &mut self,
        verb: &str,
        within: Duration,
        may_repeat: bool,
        write: impl Fn(&mut ArgumentWriter<'_>),
    ) -> Result<Vec<u8>, Failure> {
        let mut tries = 0;
        loop {
            tries += 1;
            let connector = Arc::clone(&self.connector);
            let connection = self.connection().await?;
            let mut requests = connection.requests();
            connector.call(&mut requests, verb, &write);
            let answer = match connection.exchange(requests, within).await {
                Ok(mut answers) => {
                    answers.pop().unwrap_or_else(|| Ok(Vec::new())).map_err(Failure::Refused)
                }
                Err(failure) => Err(failure),
            };
            let failure = match answer {
                Ok(data) => return Ok(data),
                Err(failure) => failure,
            };
            if needs_reconnect(&failure) {
                self.drop_connection();
            }
            let is_done = matches!(failure, Failure::Lost(_)) && !may_repeat;
            if tries >= 3 || is_done || !needs_reconnect(&failure) {
                return Err(failure);
            }
        }
    }
}

impl Connector {
    /// Adds a call of one of our procedures.
    pub fn call(
        &self,
        requests: &mut Requests,
        verb: &str,
        write: impl FnOnce(&mut ArgumentWriter<'_>),
    ) {
        requests.call(&self.library.function, |args| {
            write(args.text(&self.prefix).text(verb));
        });
    }
}

/// Whether another connection may succeed: this one is lost, or its instance is read-only, or has not our procedures.
pub(super) fn needs_reconnect(failure: &Failure) -> bool {
    match failure {
        Failure::Unreachable(_) | Failure::Lost(_) => true,
        Failure::Refused(fault) => {
            matches!(fault.code, code::READ_ONLY | code::UNDEFINED | code::LOADING)
        }
    }
}

/// Whether waiting may help: it is not up, still loading, or not writable yet.
pub(super) fn may_come_up(failure: &Failure) -> bool {
    let is_idle = matches!(failure, Failure::Refused(fault) if fault.code == code::NOT_RUNNING);
    needs_reconnect(failure) || is_idle
}

/// The error that the caller gets.
pub(super) fn error_of(failure: &Failure) -> Error {
    let fault = match failure {
        Failure::Unreachable(why) => {
            return Error::StoreUnavailable(format!(
                "cannot reach Tarantool ({why}); nothing was done, try again"
            ));
        }
        Failure::Lost(why) => {
            return Error::OutcomeUnknown(format!(
                "the connection to Tarantool was lost before it answered ({why}): the call was done or not; check before you try again"
            ));
        }
        Failure::Refused(fault) => fault,
    };
    match fault.code {
        code::READ_ONLY => Error::StoreUnavailable(
            "no writable Tarantool instance; nothing was done, try again".into(),
        ),
        code::LOADING => {
            Error::StoreUnavailable("Tarantool is starting; nothing was done, try again".into())
        }
        code::NOT_RUNNING => {
            Error::StoreUnavailable(format!("{}; nothing was done, try again", fault.text))
        }
        code::MEMORY => Error::Overloaded("Tarantool's memory is full (memtx_memory)"),
        code::LOG => Error::Store(format!(
            "Tarantool cannot write its log ({}); is its disk full?",
            fault.text
        )),
        code::DENIED => Error::Store(format!(
            "{}; the user needs read, write, execute and create on universe",
            fault.text
        )),
        code::NO_USER | code::PASSWORD => {
            Error::Store(format!("{}; check the user and the password in the URL", fault.text))
        }
        _ => Error::Store(fault.text.to_string()),
    }
}

/// The error for spaces that a newer version wrote.
fn newer(format: u64) -> String {
    format!("its spaces have format {format}, this version knows {FORMAT}; use a newer taskyard")
}

fn is_new_enough(version: &str) -> bool {
    let mut numbers = version.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    found >= VERSION_MIN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_versions_are_refused() {
        for (version, good) in
            [("2.6.0", true), ("2.11.5", true), ("3.0.0-alpha", true), ("2.5.9", false)]
        {
            assert_eq!(is_new_enough(version), good, "{version}");
        }
        assert!(!is_new_enough("1.10.15") && !is_new_enough("") && !is_new_enough("x"));
    }

    #[test]
    fn only_temporary_failures_are_waited_for() {
        let refused = |code| Failure::Refused(Fault::new(code, "text"));
        for code in [code::LOADING, code::READ_ONLY, code::NOT_RUNNING] {
            assert!(may_come_up(&refused(code)), "{code}");
        }
        for code in [0, code::PASSWORD, code::NO_USER, code::DENIED, code::MEMORY] {
            assert!(!may_come_up(&refused(code)), "{code}");
        }
        assert!(may_come_up(&Failure::Unreachable("x".into())));
    }

    #[test]
    fn errors_say_what_to_do() {
        let refused = |code| error_of(&Failure::Refused(Fault::new(code, "text")));
        assert!(matches!(refused(7), Error::StoreUnavailable(_)));
        assert!(matches!(refused(116), Error::StoreUnavailable(_)));
        assert!(refused(2).to_string().contains("memtx_memory"));
        assert!(refused(42).to_string().contains("execute"));
        assert!(matches!(error_of(&Failure::Lost("x".into())), Error::OutcomeUnknown(_)));
    }
}
