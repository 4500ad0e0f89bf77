//! What the first process inside bubblewrap tells of its program.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as Pair;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::time::timeout;

/// The first word: the walls stand, and the program is about to begin.
const BEGUN: &[u8] = b"begun\n";
/// How long to wait for the end of what is told by those who have ended.
const HEAR_MAX: Duration = Duration::from_millis(200);
/// Most bytes that are told; a shell says less.
const BYTES_MAX: usize = 4096;

/// What is told of one program, as far as it has come. The way is the standard input of the first process; the program
/// itself has another one.
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
    /// It ended by itself with this status.
    Exited(i32),
    /// A signal ended it; the status has its number, and 128.
    Killed(i32),
    /// It began, and the one who was to tell was killed with it.
    Untold,
}

impl Account {
    /// An account, and what the first process gets as its standard input.
    pub fn open() -> io::Result<(Self, Stdio)> {
        let (own, other) = Pair::pair()?;
        own.set_nonblocking(true)?;
        let account = Account { socket: UnixStream::from_std(own)?, told: Vec::new() };
        Ok((account, Stdio::from(OwnedFd::from(other))))
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

fn fate(told: &[u8]) -> Fate {
    let Some(rest) = told.strip_prefix(BEGUN) else { return Fate::NotBegun };
    let text = String::from_utf8_lossy(rest);
    let (words, last) = match text.trim_end().rsplit_once('\n') {
        Some((words, last)) => (words, last),
        None => ("", text.trim_end()),
    };
    match last.parse() {
        // A shell has something to say of a child only if a signal ended it.
        Ok(status) if words.is_empty() => Fate::Exited(status),
        Ok(status) => Fate::Killed(status),
        Err(_) if last.is_empty() => Fate::Untold,
        // The shell itself could not go on.
        Err(_) => Fate::NotBegun,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_and_a_kill_with_the_same_number_are_told_apart() {
        let cases = [
            ("", Fate::NotBegun),
            ("beg", Fate::NotBegun),
            ("begun\n", Fate::Untold),
            ("begun\n0\n", Fate::Exited(0)),
            ("begun\n137\n", Fate::Exited(137)),
            ("begun\nKilled\n137\n", Fate::Killed(137)),
            ("begun\nsh: line 1: 2 Killed ( exec \"$@\" )\n137\n", Fate::Killed(137)),
            ("begun\nsh: 1: Cannot fork\n", Fate::NotBegun),
        ];
        for (told, wanted) in cases {
            assert_eq!(fate(told.as_bytes()), wanted, "{told:?}");
        }
    }
}
