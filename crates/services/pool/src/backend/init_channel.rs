//! The pool's end of the socket to the init process of a sandbox: sends the request and reads how the program ended.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as Pair;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::run_request::{ProgramStreams, RunRequest};

/// The first report: the program has started.
pub(super) const STARTED: &[u8] = b"started\n";
/// How long to wait for the rest of the report after the processes have ended.
const READ_MAX: Duration = Duration::from_millis(200);
/// Longest report, in bytes.
const BYTES_MAX: usize = 256;

/// The socket to the init process, and its report so far. The program itself has no access to the socket.
#[derive(Debug)]
pub(super) struct InitChannel {
    socket: UnixStream,
    report: Vec<u8>,
}

/// How a program ended, as reported by the init process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProgramExit {
    /// It never started: the sandbox could not be built, or the program could not be started inside.
    NotStarted,
    /// It can never be started.
    Refused,
    /// It exited with this status.
    Exited(i32),
    /// It was killed by this signal.
    Killed(i32),
    /// It started, and the init process was killed before it reported the end.
    Unknown,
}

impl InitChannel {
    /// Opens a channel; the second value is the end for the init process.
    pub fn open() -> io::Result<(Self, Stdio)> {
        let (own, other) = Pair::pair()?;
        own.set_nonblocking(true)?;
        let channel = InitChannel { socket: UnixStream::from_std(own)?, report: Vec::new() };
        Ok((channel, Stdio::from(OwnedFd::from(other))))
    }

    /// Sends the request to run a program.
    pub async fn send_request(
        &mut self,
        request: &RunRequest,
        streams: ProgramStreams,
    ) -> io::Result<()> {
        request.send(&mut self.socket, streams).await
    }

    /// Completes when the program starts, and never if it does not. Cancel-safe.
    pub async fn started(&mut self) {
        while !self.report.starts_with(STARTED) {
            if !self.read_more().await {
                return std::future::pending().await;
            }
        }
    }

    /// The exit of the program, once all processes of the sandbox have ended.
    pub async fn exit(mut self) -> ProgramExit {
        let all = async { while self.read_more().await {} };
        let _ = timeout(READ_MAX, all).await;
        parse_exit(&self.report)
    }

    /// Reads more of the report; false at its end.
    async fn read_more(&mut self) -> bool {
        let mut piece = [0; 256];
        match self.socket.read(&mut piece).await {
            Ok(size) if size > 0 && self.report.len() < BYTES_MAX => {
                self.report.extend_from_slice(&piece[..size]);
                true
            }
            _ => false,
        }
    }
}

/// The form in which the init process reports it.
impl fmt::Display for ProgramExit {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProgramExit::Exited(status) => write!(to, "exited {status}"),
            ProgramExit::Killed(signal) => write!(to, "killed {signal}"),
            ProgramExit::Refused => to.write_str("refused"),
            ProgramExit::NotStarted | ProgramExit::Unknown => Ok(()),
        }
    }
}

fn parse_exit(report: &[u8]) -> ProgramExit {
    let Some(rest) = report.strip_prefix(STARTED) else {
        return if report == b"refused\n" { ProgramExit::Refused } else { ProgramExit::NotStarted };
    };
    let text = String::from_utf8_lossy(rest);
    let fields = text.strip_suffix('\n').and_then(|line| line.split_once(' '));
    match fields.and_then(|(how, number)| Some((how, number.parse().ok()?))) {
        Some(("exited", status)) => ProgramExit::Exited(status),
        Some(("killed", signal)) => ProgramExit::Killed(signal),
        _ => ProgramExit::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_and_a_kill_are_distinguished() {
        let cases = [
            ("", ProgramExit::NotStarted),
            ("star", ProgramExit::NotStarted),
            ("exited 0\n", ProgramExit::NotStarted),
            ("refused\n", ProgramExit::Refused),
            ("started\nrefused\n", ProgramExit::Unknown),
            ("started\n", ProgramExit::Unknown),
            ("started\nexited 13", ProgramExit::Unknown),
            ("started\nexited x\n", ProgramExit::Unknown),
            ("started\nexited 0\n", ProgramExit::Exited(0)),
            ("started\nexited 137\n", ProgramExit::Exited(137)),
            ("started\nkilled 9\n", ProgramExit::Killed(9)),
        ];
        for (report, wanted) in cases {
            assert_eq!(parse_exit(report.as_bytes()), wanted, "{report:?}");
            if wanted == ProgramExit::Refused {
                assert_eq!(format!("{wanted}\n"), report);
            } else if !wanted.to_string().is_empty() {
                assert_eq!(format!("started\n{wanted}\n"), report);
            }
        }
    }
}
