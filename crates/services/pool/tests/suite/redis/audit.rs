//! Replays all changes of the allocations from the log of Redis, so that nothing between two polls is missed.

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long the last entries may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// The log of one server, of all its pools.
pub struct Audit {
    port: u16,
    pools: Arc<Mutex<HashMap<String, AllocationLog>>>,
}

/// What happened in one pool.
#[derive(Clone, Debug, Default)]
pub struct AllocationLog {
    /// Tasks that hold a backend: attempt and class.
    held: HashMap<String, (String, Option<usize>)>,
    /// Every run.
    pub attempts: HashSet<String>,
    /// The runs that are over.
    over: HashSet<String>,
    pub allocated: usize,
    pub released: usize,
    /// Registered backends, and those that the scheduler knows.
    backends: HashSet<String>,
    known: usize,
    /// Violations of a limit.
    pub wrong: Vec<String>,
    /// The last marker that was looked for.
    mark: String,
}

impl Audit {
    /// Follows the server at this port. At most `limits[k]` tasks of class `k > 0` may run; class 0 is limited by the
    /// backends.
    pub fn follow(port: u16, limits: &[usize]) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        (&stream).write_all(b"MONITOR\r\n").unwrap();
        let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
        assert_eq!(lines.next().as_deref(), Some("+OK"));
        let pools: Arc<Mutex<HashMap<String, AllocationLog>>> = Arc::default();
        let (written, limits) = (pools.clone(), limits.to_vec());
        std::thread::spawn(move || {
            for line in lines {
                let arguments = arguments(&line);
                let mut pools = written.lock().unwrap_or_else(PoisonError::into_inner);
                note(&mut pools, &arguments, &limits);
            }
        });
        Audit { port, pools }
    }

    /// Everything that had happened in a pool when this was called.
    pub fn log(&self, base: &str) -> AllocationLog {
        let mark = fastrand::u64(..).to_string();
        let submit_tasks = format!("GET {base}audit.{mark}\r\n");
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.write_all(submit_tasks.as_bytes()).unwrap();
        let given_up = Instant::now() + PATIENCE;
        loop {
            let pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(log) = pools.get(base).filter(|log| log.mark == mark) {
                return log.clone();
            }
            drop(pools);
            assert!(Instant::now() < given_up, "the server does not tell what it does");
            std::thread::yield_now();
        }
    }

    /// Panics unless everything allocated was released, and no limit was ever exceeded.
    #[track_caller]
    pub fn check(&self, base: &str) -> AllocationLog {
        let log = self.log(base);
        assert!(log.wrong.is_empty(), "{base}: {:#?}", log.wrong);
        assert!(log.held.is_empty(), "{base}: {:?}", log.held);
        assert_eq!(log.allocated, log.released, "{base}");
        log
    }
}

/// The quoted arguments of a log line, which begins with a time and a client.
fn arguments(line: &str) -> Vec<String> {
    let mut arguments = Vec::new();
    let mut rest = line.split_once("] ").map_or("", |(_, rest)| rest).chars();
    while let Some('"') = rest.find(|letter| *letter == '"') {
        let mut argument = String::new();
        while let Some(letter) = rest.next().filter(|letter| *letter != '"') {
            argument.extend(if letter == '\\' { rest.next() } else { Some(letter) });
        }
        arguments.push(argument);
    }
    arguments
}

fn note(pools: &mut HashMap<String, AllocationLog>, arguments: &[String], limits: &[usize]) {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [verb, rest @ ..] = &arguments[..] else { return };
    if verb.eq_ignore_ascii_case("FLUSHALL") {
        return pools.values_mut().for_each(AllocationLog::forget);
    }
    let [key, rest @ ..] = rest else { return };
    let names = ["queue.executing", "backend.set", "backend.updated", "audit."];
    let Some((at, name)) = names.iter().find_map(|name| Some((key.find(name)?, *name))) else {
        return;
    };
    let pool = pools.entry(key[..at].to_owned()).or_default();
    match (*verb, name, rest) {
        ("HSET", "queue.executing", [id, text]) => pool.allocate(id, text, limits),
        ("HDEL", "queue.executing", [id]) => {
            if let Some((attempt, _)) = pool.held.remove(*id) {
                pool.released += 1;
                pool.over.insert(attempt);
            }
        }
        ("UNLINK", "queue.executing", _) => pool.forget(),
        ("SADD", "backend.set", [id]) => _ = pool.backends.insert((*id).to_owned()),
        ("SREM", "backend.set", [id]) => _ = pool.backends.remove(*id),
        ("UNLINK", "backend.set", _) => pool.backends.clear(),
        // The scheduler has just counted the backends.
        ("DEL", "backend.updated", _) => pool.known = pool.backends.len(),
        ("GET", "audit.", _) => key[at + name.len()..].clone_into(&mut pool.mark),
        _ => {}
    }
}

impl AllocationLog {
    fn allocate(&mut self, id: &str, text: &str, limits: &[usize]) {
        let mut arguments = text.split(' ');
        let attempt = arguments.next().unwrap_or_default().to_owned();
        let class = arguments.next().and_then(|class| class.parse().ok());
        self.attempts.insert(attempt.clone());
        if self.over.contains(&attempt) {
            self.wrong.push(format!("{id}: {attempt} is the name of an earlier run"));
        }
        match self.held.insert(id.to_owned(), (attempt.clone(), class)) {
            Some((before, _)) if before == attempt => return,
            Some((before, _)) => self.wrong.push(format!("{id}: {attempt} in place of {before}")),
            None => self.allocated += 1,
        }
        for (level, limit) in limits.iter().enumerate() {
            let limit = if level == 0 { self.known.max(self.backends.len()) } else { *limit };
            let of_level = |(_, class): &&(String, Option<usize>)| {
                level == 0 || class.is_some_and(|class| class >= level)
            };
            let running = self.held.values().filter(of_level).count();
            if running > limit {
                self.wrong
                    .push(format!("{running} of class {level}, not {limit}: {:?}", self.held));
            }
        }
    }

    /// Redis lost its data.
    fn forget(&mut self) {
        self.released += self.held.len();
        self.held.clear();
        // A backend that reports again says which run it has.
        self.over.clear();
        self.backends.clear();
    }
}
