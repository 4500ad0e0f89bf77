//! Starts programs, all from one thread.

use std::io;
use std::sync::mpsc;
use std::thread;

use tokio::process::Command;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::group::Group;
use super::room::Room;

/// The way to the thread that starts programs. It is here as long as the pool is: a start takes its time, which the
/// threads that serve clients do not have, and some of those come and go, which a program that asks for a signal at the
/// end of its parent would take for the end of the pool.
#[derive(Debug)]
pub(super) struct Spawner(mpsc::Sender<Request>);

struct Request {
    command: Command,
    /// It is not cleared before the program is there, which can be killed then.
    room: Room,
    reply: oneshot::Sender<io::Result<Group>>,
}

impl Spawner {
    /// Starts the thread, on the runtime this is called on; it ends when this is dropped.
    /// `wrapped` says whether programs run inside bubblewrap.
    pub fn start(wrapped: bool) -> io::Result<Self> {
        let (sender, requests) = mpsc::channel::<Request>();
        let runtime = Handle::current();
        thread::Builder::new().name("pool-spawner".into()).spawn(move || {
            let _entered = runtime.enter();
            for Request { mut command, room, reply } in requests {
                let started = command.spawn().and_then(|child| Group::new(child, wrapped));
                // One that nobody waits for any more is killed by being dropped.
                drop(reply.send(started));
                drop(room);
            }
        })?;
        Ok(Spawner(sender))
    }

    /// Starts a program in this room.
    pub async fn spawn(&self, command: Command, room: Room) -> io::Result<Group> {
        let (reply, started) = oneshot::channel();
        let gone = || io::Error::other("the thread that starts programs is gone");
        self.0.send(Request { command, room, reply }).map_err(|_| gone())?;
        started.await.map_err(|_| gone())?
    }
}
