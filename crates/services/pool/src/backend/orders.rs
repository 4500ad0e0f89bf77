//! What the first process inside bubblewrap is told, and the way there.

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

/// Most bytes of orders: more than the system lets a program have as arguments.
const BYTES_MAX: usize = 4 << 20;
/// Most open files that come with them.
const STREAMS_MAX: usize = 2;

/// What to run, and within which limits. Their size comes before them, in four bytes.
#[derive(Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Orders {
    /// The program and its arguments.
    pub command: Vec<String>,
    pub limits: Rlimits,
}

/// The program's ends of its streams; they go with the first byte.
#[derive(Debug)]
pub(super) struct Streams {
    pub stdout: OwnedFd,
    /// Nothing if it has nobody to listen to.
    pub stdin: Option<OwnedFd>,
}

impl Orders {
    /// Tells the other end. One that is gone hears nothing, which is found out where its end is waited for.
    pub async fn send(&self, socket: &mut UnixStream, streams: Streams) -> io::Result<()> {
        let body = serde_json::to_vec(self)?;
        if body.len() > BYTES_MAX {
            return Err(io::Error::other("the command is too long"));
        }
        let head = (body.len() as u32).to_be_bytes();
        let told = async {
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
        match told.await {
            Err(error) if is_gone(&error) => Ok(()),
            told => told,
        }
    }

    /// Waits for orders; nothing if the other end has none.
    pub fn receive(socket: BorrowedFd<'_>) -> io::Result<Option<(Self, Streams)>> {
        let mut head = [0; size_of::<u32>()];
        let (size, mut streams) = receive_head(socket, &mut head)?;
        if size == 0 {
            return Ok(None);
        }
        fill(socket, &mut head[size..])?;
        let size = u32::from_be_bytes(head) as usize;
        if size > BYTES_MAX {
            return Err(io::Error::other(format!("orders of {size} bytes are too long")));
        }
        let mut body = vec![0; size];
        fill(socket, &mut body)?;
        let orders: Orders = serde_json::from_slice(&body)?;
        if orders.command.is_empty() {
            return Err(io::Error::other("no program is named"));
        }
        let missing = || io::Error::other("no standard output came with the orders");
        let stdout = streams.pop_front().ok_or_else(missing)?;
        Ok(Some((orders, Streams { stdout, stdin: streams.pop_front() })))
    }
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

fn send_head(socket: &UnixStream, head: &[u8], streams: &Streams) -> io::Result<()> {
    let given: Vec<BorrowedFd<'_>> = [Some(&streams.stdout), streams.stdin.as_ref()]
        .into_iter()
        .flatten()
        .map(AsFd::as_fd)
        .collect();
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(STREAMS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fits = control.push(SendAncillaryMessage::ScmRights(&given));
    debug_assert!(fits, "there is room for both");
    let size = sendmsg(socket, &[IoSlice::new(head)], &mut control, SendFlags::NOSIGNAL)?;
    // A socket with room for anything has room for four bytes.
    if size == head.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

fn receive_head(socket: BorrowedFd<'_>, head: &mut [u8]) -> io::Result<(usize, VecDeque<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(STREAMS_MAX))];
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

/// Reads so much, or fails.
fn fill(socket: BorrowedFd<'_>, mut rest: &mut [u8]) -> io::Result<()> {
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

    fn orders() -> Orders {
        let limits = Rlimits::new(&Limits::default(), Some(7), Some(30));
        Orders { command: vec!["/bin/echo".into(), "a b\n\"c\"".into()], limits }
    }

    #[tokio::test]
    async fn orders_arrive_as_they_were_with_their_streams() {
        let (mut own, other) = pair();
        let ((mut reader, stdout), (stdin, mut writer)) =
            (io::pipe().unwrap(), io::pipe().unwrap());
        let streams = Streams { stdout: stdout.into(), stdin: Some(stdin.into()) };
        orders().send(&mut own, streams).await.unwrap();
        let (heard, streams) = Orders::receive(other.as_fd()).unwrap().unwrap();
        assert_eq!(heard, orders());
        writer.write_all(b"in").unwrap();
        drop(writer);
        let mut text = String::new();
        std::fs::File::from(streams.stdin.unwrap()).read_to_string(&mut text).unwrap();
        std::fs::File::from(streams.stdout).write_all(b"out").unwrap();
        // Nobody has kept another end of it.
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "inout");
        drop(own);
        assert!(Orders::receive(other.as_fd()).unwrap().is_none());
    }

    #[test]
    fn rubbish_is_refused() {
        let sized = |body: &[u8]| [&(body.len() as u32).to_be_bytes()[..], body].concat();
        let good = serde_json::to_vec(&orders()).unwrap();
        let nothing = serde_json::to_vec(&Orders { command: Vec::new(), ..orders() }).unwrap();
        let unknown = serde_json::to_string(&orders()).unwrap().replacen('{', "{\"x\": 1,", 1);
        for (bytes, why) in [
            (b"\xff\xff\xff\xffrun".to_vec(), "too long"),
            (b"\x00".to_vec(), "unexpected end of file"),
            (b"\x00\x00\x00\x09{\"comm".to_vec(), "unexpected end of file"),
            (sized(b"rm -rf /"), "expected"),
            (sized(unknown.as_bytes()), "unknown field"),
            (sized(&nothing), "no program"),
            (sized(&good), "no standard output"),
        ] {
            let (own, other) = Pair::pair().unwrap();
            (&own).write_all(&bytes).unwrap();
            drop(own);
            let error = Orders::receive(other.as_fd()).unwrap_err().to_string();
            assert!(error.contains(why), "{error} instead of {why}");
        }
    }

    #[tokio::test]
    async fn one_that_is_gone_hears_nothing_and_harms_nobody() {
        let (mut own, other) = pair();
        drop(other);
        let (_reader, stdout) = io::pipe().unwrap();
        let streams = Streams { stdout: stdout.into(), stdin: None };
        orders().send(&mut own, streams).await.unwrap();
    }
}
