//! Everything that ever happened to the allocations, as Redis itself tells it: nothing is missed between two looks.

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long the last words may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// The account of one server, of all pools that it has.
pub struct Audit {
    port: u16,
    pools: Arc<Mutex<HashMap<String, Account>>>,
}

/// What happened in one pool.
#[derive(Clone, Debug, Default)]
pub struct Account {
    /// Who holds a backend: attempt and class.
    held: HashMap<String, (String, Option<usize>)>,
    /// Every run that there was.
    pub attempts: HashSet<String>,
    /// Those that are over.
    over: HashSet<String>,
    pub allocated: usize,
    pub released: usize,
    /// Backends that are there, and those of them that the scheduler knows of.
    backends: HashSet<String>,
    known: usize,
    /// What went beyond a limit.
    pub wrong: Vec<String>,
    /// The last word that was looked for.
    mark: String,
}

impl Audit {
    /// Follows the server at this port. A class with number `k > 0` may have `limits[k]` that run; 0 is the backends.
    pub fn follow(port: u16, limits: &[usize]) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        (&stream).write_all(b"MONITOR\r\n").unwrap();
        let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
        assert_eq!(lines.next().as_deref(), Some("+OK"));
        let pools: Arc<Mutex<HashMap<String, Account>>> = Arc::default();
        let (written, limits) = (pools.clone(), limits.to_vec());
        std::thread::spawn(move || {
            for line in lines {
                let words = words(&line);
                let mut pools = written.lock().unwrap_or_else(PoisonError::into_inner);
                note(&mut pools, &words, &limits);
            }
        });
        Audit { port, pools }
    }

    /// Everything that had happened to a pool when this was asked.
    pub fn account(&self, base: &str) -> Account {
        let mark = fastrand::u64(..).to_string();
        let ask = format!("GET {base}audit.{mark}\r\n");
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.write_all(ask.as_bytes()).unwrap();
        let given_up = Instant::now() + PATIENCE;
        loop {
            let pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(account) = pools.get(base).filter(|account| account.mark == mark) {
                return account.clone();
            }
            drop(pools);
            assert!(Instant::now() < given_up, "the server does not tell what it does");
            std::thread::yield_now();
        }
    }

    /// Panics unless all that was allocated was released, and no limit was ever exceeded.
    #[track_caller]
    pub fn check(&self, base: &str) -> Account {
        let account = self.account(base);
        assert!(account.wrong.is_empty(), "{base}: {:#?}", account.wrong);
        assert!(account.held.is_empty(), "{base}: {:?}", account.held);
        assert_eq!(account.allocated, account.released, "{base}");
        account
    }
}

/// The quoted words of a line, which begins with a time and who it was.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = line.split_once("] ").map_or("", |(_, rest)| rest).chars();
    while let Some('"') = rest.find(|letter| *letter == '"') {
        let mut word = String::new();
        while let Some(letter) = rest.next().filter(|letter| *letter != '"') {
            word.extend(if letter == '\\' { rest.next() } else { Some(letter) });
        }
        words.push(word);
    }
    words
}

fn note(pools: &mut HashMap<String, Account>, words: &[String], limits: &[usize]) {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let [verb, rest @ ..] = &words[..] else { return };
    if verb.eq_ignore_ascii_case("FLUSHALL") {
        return pools.values_mut().for_each(Account::forget);
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

impl Account {
    fn allocate(&mut self, id: &str, text: &str, limits: &[usize]) {
        let mut words = text.split(' ');
        let attempt = words.next().unwrap_or_default().to_owned();
        let class = words.next().and_then(|class| class.parse().ok());
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

    /// Redis lost everything.
    fn forget(&mut self) {
        self.released += self.held.len();
        self.held.clear();
        // A backend that comes back says which run it has.
        self.over.clear();
        self.backends.clear();
    }
}
