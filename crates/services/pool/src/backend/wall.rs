//! The walls around a task: a folder, a user, and bubblewrap with a first process that waits to be told what to run.
//! They take most of the time from a task's arrival to its start, so they are put up ahead where possible.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

use tokio::net::unix::pipe;
use tokio::process::Command;

use super::account::Account;
use super::group::Group;
use super::isolation::{Seen, seen};
use super::lanes::Lane;
use super::orders::{Orders, Streams};
use super::room::Room;
use super::{Host, Plan};
use crate::config::Program;

/// What walls depend on before it is known which task they are for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// What can be read inside beside `/usr`.
    pub read: Vec<PathBuf>,
    /// What is in the environment beside what always is.
    pub environment: BTreeMap<String, String>,
}

impl Shape {
    pub fn of(program: &Program) -> Self {
        Shape { read: program.read.clone(), environment: program.environment.clone() }
    }
}

/// Walls that stand, or soon do, for one task and never for another. What is told to them before they stand is heard
/// then. They fall when this is dropped.
#[derive(Debug)]
pub(super) struct Wall {
    pub shape: Arc<Shape>,
    /// What it shows of this machine.
    seen: Vec<Seen>,
    group: Group,
    account: Account,
    stderr: pipe::Receiver,
    /// The last, so that processes are killed before what they have is cleared.
    room: Room,
}

/// A program that was started, or is about to be.
#[derive(Debug)]
pub(super) struct Started {
    pub group: Group,
    /// What is told of the program inside bubblewrap.
    pub account: Option<Account>,
    pub stdin: Option<pipe::Sender>,
    pub stdout: pipe::Receiver,
    pub stderr: pipe::Receiver,
    pub room: Room,
}

impl Wall {
    /// Puts them up for the user of this lane.
    pub async fn raise(host: &Arc<Host>, shape: Arc<Shape>, lane: Lane) -> io::Result<Self> {
        let room = Room::open(host.clone(), lane).await?;
        let seen = seen(&shape.read);
        let (account, socket) = Account::open()?;
        let (stderr, errors) = io::pipe()?;
        let mut command = Command::from(host.isolation.wall(&shape, room.site())?);
        command.stdout(socket).stderr(errors).kill_on_drop(true);
        let group = host.spawner.spawn(command, room.clone()).await?;
        let stderr = pipe::Receiver::from_owned_fd(stderr.into())?;
        Ok(Wall { shape, seen, group, account, stderr, room })
    }

    /// Whether the machine is still as it was when they were put up.
    pub fn is_current(&self) -> bool {
        seen(&self.shape.read) == self.seen
    }

    /// Brings the task in and says what to run. Whether that is heard is told by the account.
    pub async fn begin(
        mut self,
        host: &Host,
        plan: &Arc<Plan>,
        seconds_max: Option<u64>,
    ) -> io::Result<Started> {
        self.room.fill(plan.clone()).await?;
        let limits = host.isolation.limits(self.room.uid(), seconds_max, &host.limits);
        let orders = Orders { command: plan.command.clone(), limits };
        let (stdout, output) = io::pipe()?;
        let (input, stdin) = plan.interactive.then(io::pipe).transpose()?.unzip();
        let streams = Streams { stdout: output.into(), stdin: input.map(OwnedFd::from) };
        // Whatever may fail comes before the program can begin.
        let stdin = stdin.map(|end| pipe::Sender::from_owned_fd(end.into())).transpose()?;
        let stdout = pipe::Receiver::from_owned_fd(stdout.into())?;
        self.account.order(&orders, streams).await?;
        Ok(Started {
            group: self.group,
            account: Some(self.account),
            stdin,
            stdout,
            stderr: self.stderr,
            room: self.room,
        })
    }
}

impl Started {
    /// Starts the program of a task where there are no walls to be had.
    pub async fn bare(
        host: &Arc<Host>,
        plan: &Arc<Plan>,
        seconds_max: Option<u64>,
        lane: Lane,
    ) -> io::Result<Self> {
        let room = Room::open(host.clone(), lane).await?;
        room.fill(plan.clone()).await?;
        let limits = host.isolation.limits(room.uid(), seconds_max, &host.limits);
        let mut command = Command::from(host.isolation.bare(plan, room.site(), limits));
        let [(stdout, output), (stderr, errors)] = [io::pipe()?, io::pipe()?];
        let (input, stdin) = plan.interactive.then(io::pipe).transpose()?.unzip();
        command.stdin(input.map_or_else(Stdio::null, Stdio::from));
        command.stdout(output).stderr(errors).kill_on_drop(true);
        let group = host.spawner.spawn(command, room.clone()).await?;
        Ok(Started {
            group,
            account: None,
            stdin: stdin.map(|end| pipe::Sender::from_owned_fd(end.into())).transpose()?,
            stdout: pipe::Receiver::from_owned_fd(stdout.into())?,
            stderr: pipe::Receiver::from_owned_fd(stderr.into())?,
            room,
        })
    }
}
