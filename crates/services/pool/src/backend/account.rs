//! What the first process inside bubblewrap tells of its program.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as Pair;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::orders::{Orders, Streams};

/// The first word: the program has begun.
pub(super) const BEGUN: &[u8] = b"begun\n";
/// How long to wait for the end of what is told by those who have ended.
const HEAR_MAX: Duration = Duration::from_millis(200);
/// Most bytes that are told.
const BYTES_MAX: usize = 256;

/// The way to the first process, and what it has told of its program. The program itself has no end of it.
#[derive(Debug)]
pub(super) struct Account {
    socket: UnixStream,
    told: Vec<u8>,
}

/// How a program fared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It never began: the walls could not be put up, or it could not be started inside.
    NotBegun,
    /// It cannot be started at all.
    Refused,
    /// It ended by itself with this status.
    Exited(i32),
    /// This signal ended it.
    Killed(i32),
    /// It began, and the one who was to tell was killed with it.
    Untold,
}

impl Account {
    /// An account, and the other end of it for the first process.
    pub fn open() -> io::Result<(Self, Stdio)> {
        let (own, other) = Pair::pair()?;
        own.set_nonblocking(true)?;
        let account = Account { socket: UnixStream::from_std(own)?, told: Vec::new() };
        Ok((account, Stdio::from(OwnedFd::from(other))))
    }

    /// Says what to run.
    pub async fn order(&mut self, orders: &Orders, streams: Streams) -> io::Result<()> {
        orders.send(&mut self.socket, streams).await
    }

    /// Ready when the program begins; never for one that does not. It may be dropped and asked again.
    pub async fn begun(&mut self) {
        while !self.told.starts_with(BEGUN) {
            if !self.hear().await {
                return std::future::pending().await;
            }
        }
    }

    /// What is known when everybody who could tell has ended.
    pub async fn fate(mut self) -> Fate {
        let all = async { while self.hear().await {} };
        let _ = timeout(HEAR_MAX, all).await;
        fate(&self.told)
    }

    /// Waits for more; false when nothing comes any more.
    async fn hear(&mut self) -> bool {
        let mut piece = [0; 256];
        match self.socket.read(&mut piece).await {
            Ok(size) if size > 0 && self.told.len() < BYTES_MAX => {
                self.told.extend_from_slice(&piece[..size]);
                true
            }
            _ => false,
        }
    }
}

/// As the first process tells it.
impl fmt::Display for Fate {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fate::Exited(status) => write!(to, "exited {status}"),
            Fate::Killed(signal) => write!(to, "killed {signal}"),
            Fate::Refused => to.write_str("refused"),
            Fate::NotBegun | Fate::Untold => Ok(()),
        }
    }
}

fn fate(told: &[u8]) -> Fate {
    let Some(rest) = told.strip_prefix(BEGUN) else {
        return if told == b"refused\n" { Fate::Refused } else { Fate::NotBegun };
    };
    let text = String::from_utf8_lossy(rest);
    let words = text.strip_suffix('\n').and_then(|line| line.split_once(' '));
    match words.and_then(|(how, number)| Some((how, number.parse().ok()?))) {
        Some(("exited", status)) => Fate::Exited(status),
        Some(("killed", signal)) => Fate::Killed(signal),
        _ => Fate::Untold,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_and_a_kill_are_told_apart() {
        let cases = [
            ("", Fate::NotBegun),
            ("beg", Fate::NotBegun),
            ("exited 0\n", Fate::NotBegun),
            ("refused\n", Fate::Refused),
            ("begun\nrefused\n", Fate::Untold),
            ("begun\n", Fate::Untold),
            ("begun\nexited 13", Fate::Untold),
            ("begun\nexited x\n", Fate::Untold),
            ("begun\nexited 0\n", Fate::Exited(0)),
            ("begun\nexited 137\n", Fate::Exited(137)),
            ("begun\nkilled 9\n", Fate::Killed(9)),
        ];
        for (told, wanted) in cases {
            assert_eq!(fate(told.as_bytes()), wanted, "{told:?}");
            if wanted == Fate::Refused {
                assert_eq!(format!("{wanted}\n"), told);
            } else if !wanted.to_string().is_empty() {
                assert_eq!(format!("begun\n{wanted}\n"), told);
            }
        }
    }
}
