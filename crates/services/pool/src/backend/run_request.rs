//! The request to the init process of a sandbox: what to run, with which limits and streams.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::cmsg_space;
use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::UnixStream;

use super::rlimits::Rlimits;

/// Longest request, in bytes: more than the kernel allows as arguments.
const BYTES_MAX: usize = 4 << 20;
/// Number of file descriptors that are passed.
const FDS_MAX: usize = 2;

/// The command and its limits. On the socket it is preceded by its length in four bytes.
#[derive(Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RunRequest {
    /// The program and its arguments.
    pub command: Vec<String>,
    pub limits: Rlimits,
}

/// The program's ends of its streams; they are passed with the first byte.
#[derive(Debug)]
pub(super) struct ProgramStreams {
    pub stdout: OwnedFd,
    /// None for a program without standard input.
    pub stdin: Option<OwnedFd>,
}

impl RunRequest {
    /// Sends the request. If the other end is gone this succeeds, and the end of the process is noticed by its
    /// process group.
    pub async fn send(&self, socket: &mut UnixStream, streams: ProgramStreams) -> io::Result<()> {
        let body = serde_json::to_vec(self)?;
        if body.len() > BYTES_MAX {
            return Err(io::Error::other("the command is too long"));
        }
        let head = (body.len() as u32).to_be_bytes();
        let sent = async {
            loop {
                socket.writable().await?;
                match socket.try_io(Interest::WRITABLE, || send_head(socket, &head, &streams)) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                    Ok(()) => break,
                }
            }
            socket.write_all(&body).await
        };
        match sent.await {
            Err(error) if is_gone(&error) => Ok(()),
            sent => sent,
        }
    }

    /// Reads a request.
    pub fn parse(body: &[u8]) -> io::Result<Self> {
        let request: RunRequest = serde_json::from_slice(body)?;
        match request.command.is_empty() {
            true => Err(io::Error::other("the request names no program")),
            false => Ok(request),
        }
    }

    /// Waits for a request; `None` if the other end was closed.
    pub fn receive(socket: BorrowedFd<'_>) -> io::Result<Option<(Self, ProgramStreams)>> {
        let mut head = [0; size_of::<u32>()];
        let (size, mut streams) = receive_head(socket, &mut head)?;
        if size == 0 {
            return Ok(None);
        }
        read_exact(socket, &mut head[size..])?;
        let size = u32::from_be_bytes(head) as usize;
        if size > BYTES_MAX {
            return Err(io::Error::other(format!("a request of {size} bytes is too long")));
        }
        let mut body = vec![0; size];
        read_exact(socket, &mut body)?;
        let request = RunRequest::parse(&body)?;
        let missing = || io::Error::other("the request came without a standard output");
        let stdout = streams.pop_front().ok_or_else(missing)?;
        Ok(Some((request, ProgramStreams { stdout, stdin: streams.pop_front() })))
    }
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

fn send_head(socket: &UnixStream, head: &[u8], streams: &ProgramStreams) -> io::Result<()> {
    let fds: Vec<BorrowedFd<'_>> = [Some(&streams.stdout), streams.stdin.as_ref()]
        .into_iter()
        .flatten()
        .map(AsFd::as_fd)
        .collect();
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fits = control.push(SendAncillaryMessage::ScmRights(&fds));
    debug_assert!(fits, "the buffer has space for both");
    let size = sendmsg(socket, &[IoSlice::new(head)], &mut control, SendFlags::NOSIGNAL)?;
    // A socket that is writable has space for four bytes.
    if size == head.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

fn receive_head(socket: BorrowedFd<'_>, head: &mut [u8]) -> io::Result<(usize, VecDeque<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = retry_on_intr(|| {
        recvmsg(socket, &mut [IoSliceMut::new(head)], &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let streams = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(streams) => Some(streams),
        _ => None,
    });
    Ok((got.bytes, streams.flatten().collect()))
}

/// Reads exactly this many bytes.
fn read_exact(socket: BorrowedFd<'_>, mut rest: &mut [u8]) -> io::Result<()> {
    while !rest.is_empty() {
        let size = retry_on_intr(|| rustix::io::read(socket, &mut *rest))?;
        if size == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        rest = &mut rest[size..];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream as Pair;

    use super::*;
    use crate::config::Limits;

    fn pair() -> (UnixStream, Pair) {
        let (own, other) = Pair::pair().unwrap();
        own.set_nonblocking(true).unwrap();
        (UnixStream::from_std(own).unwrap(), other)
    }

    fn request() -> RunRequest {
        let limits = Rlimits::new(&Limits::default(), Some(7), Some(30));
        RunRequest { command: vec!["/bin/echo".into(), "a b\n\"c\"".into()], limits }
    }

    #[tokio::test]
    async fn a_request_arrives_unchanged_with_its_streams() {
        let (mut own, other) = pair();
        let ((mut reader, stdout), (stdin, mut writer)) =
            (io::pipe().unwrap(), io::pipe().unwrap());
        let streams = ProgramStreams { stdout: stdout.into(), stdin: Some(stdin.into()) };
        request().send(&mut own, streams).await.unwrap();
        let (received, streams) = RunRequest::receive(other.as_fd()).unwrap().unwrap();
        assert_eq!(received, request());
        writer.write_all(b"in").unwrap();
        drop(writer);
        let mut text = String::new();
        std::fs::File::from(streams.stdin.unwrap()).read_to_string(&mut text).unwrap();
        std::fs::File::from(streams.stdout).write_all(b"out").unwrap();
        // No other copy of the descriptor is open.
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "inout");
        drop(own);
        assert!(RunRequest::receive(other.as_fd()).unwrap().is_none());
    }

    #[test]
    fn invalid_requests_are_refused() {
        let sized = |body: &[u8]| [&(body.len() as u32).to_be_bytes()[..], body].concat();
        let good = serde_json::to_vec(&request()).unwrap();
        let nothing = serde_json::to_vec(&RunRequest { command: Vec::new(), ..request() }).unwrap();
        let unknown = serde_json::to_string(&request()).unwrap().replacen('{', "{\"x\": 1,", 1);
        for (bytes, why) in [
            (b"\xff\xff\xff\xffrun".to_vec(), "too long"),
            (b"\x00".to_vec(), "unexpected end of file"),
            (b"\x00\x00\x00\x09{\"comm".to_vec(), "unexpected end of file"),
            (sized(b"rm -rf /"), "expected"),
            (sized(unknown.as_bytes()), "unknown field"),
            (sized(&nothing), "names no program"),
            (sized(&good), "without a standard output"),
        ] {
            let (own, other) = Pair::pair().unwrap();
            (&own).write_all(&bytes).unwrap();
            drop(own);
            let error = RunRequest::receive(other.as_fd()).unwrap_err().to_string();
            assert!(error.contains(why), "{error} instead of {why}");
        }
    }

    #[tokio::test]
    async fn a_closed_receiver_is_not_an_error() {
        let (mut own, other) = pair();
        drop(other);
        let (_reader, stdout) = io::pipe().unwrap();
        let streams = ProgramStreams { stdout: stdout.into(), stdin: None };
        request().send(&mut own, streams).await.unwrap();
    }
}
