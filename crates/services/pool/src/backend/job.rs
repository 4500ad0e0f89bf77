//! One task: makes its folder, runs its program, watches it, reads its result.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until, timeout};

use super::account::{Account, Fate};
use super::group::Group;
use super::output::Output;
use super::ready::{Busy, fresh};
use super::room::Room;
use super::stopwatch::Stopwatch;
use super::wall::{Shape, Started};
use super::warden::{Place, Watching};
use super::{Host, Plan};
use crate::protocol::{Outgoing, Stream};
use crate::scheduler::{Allocation, Control, Ended};
use crate::units::seconds;

/// How long a killed program may take to be gone; then its backend is given up and does not come back. A machine that has
/// no time for us for a while is not to cost one.
const KILL_MAX: Duration = Duration::from_secs(15);
/// How long output may still come from a program that has ended.
const DRAIN_MAX: Duration = Duration::from_millis(200);
/// The signals that somebody else than the pool may have sent to end a program.
const KILLED: [i32; 2] = [9, 15];
/// What bubblewrap adds to the number of the signal that ended a program.
const BY_SIGNAL: i32 = 128;
/// The signal that the processor time of a process is used up.
const CPU_USED_UP: i32 = 24;

/// What the client of a program is told that never began.
const NOT_STARTED: &str = "the program could not be started";

/// Why a program was stopped.
#[derive(Clone, Debug, PartialEq)]
enum Stop {
    Time(Duration),
    /// It has not begun for too long.
    Start,
    Halt(String),
    /// It used more than it may.
    Limit(String),
    ClientLeft,
}

/// How a program ended.
struct End {
    /// The status of the process that was started: the program, or bubblewrap around it.
    status: io::Result<ExitStatus>,
    /// What is known of the program inside bubblewrap.
    fate: Option<Fate>,
    stop: Option<Stop>,
    output_exceeded: bool,
    /// Output that the client has not got yet.
    rest: Vec<Outgoing>,
}

/// Runs a task to its end. The backend is free before the client has read everything.
pub(super) async fn run(
    host: Arc<Host>,
    plan: Arc<Plan>,
    mut allocation: Allocation,
    frames: mpsc::Sender<Outgoing>,
    mut stdin: mpsc::Receiver<Vec<u8>>,
) {
    let busy = Busy::new(host.clone(), Shape::of(&plan.program));
    let mut walls = Wanted::Any;
    // When its client or the pool lowered its time.
    let mut lowered = None;
    let (mut end, room) = loop {
        let start = match start(&busy, &host, &plan, allocation.limit, walls).await {
            Some(Ok(start)) => start,
            Some(Err(error)) => {
                return fail(allocation, &frames, "cannot start the program", &error).await;
            }
            None => return,
        };
        let ready = start.ready;
        let mut watch = Watch::new(&host, &plan, start.program, stdin, frames.clone());
        let Some(end) = watch.run(&mut allocation, &mut lowered).await else {
            return allocation.end(Ended::Stuck);
        };
        let (room, unheard) = (watch.room.clone(), watch.unheard());
        match unheard {
            // Walls may die while they wait, which is nobody's fault and no news for the client.
            Some(words) if ready && end.never_began() => (stdin, walls) = (words, Wanted::Fresh),
            _ => break (end, room),
        }
    };
    let rest = std::mem::take(&mut end.rest);
    // Once nothing more can be done about it, the client is told how it ended, with what there is.
    if end.is_worth_another_try() && allocation.may_run_again() {
        return allocation.end(Ended::Lost);
    }
    let last = last_frames(&host, &plan, &room, &end).await;
    drop(room);
    drop(busy);
    allocation.end(Ended::Done);
    for frame in rest.into_iter().chain(last) {
        if frames.send(frame).await.is_err() {
            return;
        }
    }
}

/// Which walls a task gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    /// Those that stand, if there are some.
    Any,
    /// Those that nobody has put up before.
    Fresh,
}

/// A start, and whether its walls had been put up before.
struct Start {
    program: Started,
    ready: bool,
}

/// Starts the program of a task, or is about to; nothing when the pool is ending.
async fn start(
    busy: &Busy,
    host: &Arc<Host>,
    plan: &Arc<Plan>,
    limit: Option<Duration>,
    walls: Wanted,
) -> Option<io::Result<Start>> {
    let seconds_max = limit.map(|limit| limit.as_secs() + 1);
    if !host.isolation.has_bubblewrap() {
        let lane = host.lanes.take().await?;
        let program = Started::bare(host, plan, seconds_max, lane).await;
        return Some(program.map(|program| Start { program, ready: false }));
    }
    if walls == Wanted::Any
        && let Some(wall) = host.ready.take(&busy.shape).await
        && wall.is_current()
    {
        match wall.begin(host, plan, seconds_max).await {
            Ok(program) => return Some(Ok(Start { program, ready: true })),
            Err(error) => tracing::debug!(%error, "walls that stood ready cannot be used"),
        }
    }
    let program = match fresh(host, &busy.shape).await? {
        Ok(wall) => wall.begin(host, plan, seconds_max).await,
        Err(error) => Err(error),
    };
    Some(program.map(|program| Start { program, ready: false }))
}

async fn fail(
    allocation: Allocation,
    frames: &mpsc::Sender<Outgoing>,
    what: &str,
    error: &io::Error,
) {
    tracing::error!(%error, "{what}");
    allocation.end(Ended::Done);
    let _ = frames.send(Outgoing::Complete(Some(format!("{what}: {error}")))).await;
}

/// A program that is watched.
struct Watch {
    group: Group,
    /// What is told of the program inside bubblewrap.
    account: Option<Account>,
    /// Since when the program runs, as far as that can be known.
    time: Stopwatch,
    stdout: Output<pipe::Receiver>,
    stderr: Output<pipe::Receiver>,
    /// A frame that the client has not taken yet; until then nothing more is read.
    pending: Option<Outgoing>,
    frames: mpsc::Sender<Outgoing>,
    /// What the client says, until somebody passes it on.
    words: Option<mpsc::Receiver<Vec<u8>>>,
    /// What it said before the start, and the way to the program, until it has begun.
    input: Option<(Vec<u8>, pipe::Sender)>,
    feeding: Option<AbortHandle>,
    kill_after: Duration,
    watching: Watching,
    room: Room,
}

impl Watch {
    fn new(
        host: &Host,
        plan: &Plan,
        program: Started,
        words: mpsc::Receiver<Vec<u8>>,
        frames: mpsc::Sender<Outgoing>,
    ) -> Self {
        let Started { group, account, stdin, stdout, stderr, room } = program;
        let site = room.site();
        let place = Place { folder: site.folder.into(), uid: site.uid, leader: group.id() };
        let bytes_max = host.limits.output_bytes_max;
        let errors = if plan.stderr_redir { Stream::Stdout } else { Stream::Stderr };
        let mut time = Stopwatch::new(Instant::now());
        if account.is_none() {
            time.begin(Instant::now());
        }
        Watch {
            stdout: Output::new(Some(stdout), Stream::Stdout, bytes_max),
            stderr: Output::new(Some(stderr), errors, bytes_max),
            time,
            pending: account.is_none().then(runs),
            words: Some(words),
            input: stdin.map(|pipe| (plan.words.clone(), pipe)),
            kill_after: host.kill_after,
            watching: host.warden.watch(place),
            feeding: None,
            account,
            group,
            frames,
            room,
        }
    }

    /// Lets a session hear its client. Before it has begun nothing is taken that another one would have to hear.
    fn listen(&mut self) {
        if let Some((first, pipe)) = self.input.take()
            && let Some(words) = self.words.take()
        {
            self.feeding = Some(tokio::spawn(feed(pipe, first, words)).abort_handle());
        }
    }

    /// What the client says, if nobody has heard any of it.
    fn unheard(mut self) -> Option<mpsc::Receiver<Vec<u8>>> {
        self.words.take()
    }

    /// Watches the program to its end; nothing when it cannot be killed.
    async fn run(
        &mut self,
        allocation: &mut Allocation,
        lowered: &mut Option<Instant>,
    ) -> Option<End> {
        let stop = self.until_end_or_stop(allocation, lowered).await;
        if stop.is_some() {
            match self.time.has_begun() {
                true => self.group.terminate(),
                // The first process hears no such signal, and would start the program all the same.
                false => self.group.kill(),
            }
            if timeout(self.kill_after, self.group.ended()).await.is_err() {
                self.group.kill();
                if timeout(KILL_MAX, self.group.ended()).await.is_err() {
                    return None;
                }
            }
        }
        let status = self.group.reap().await;
        let fate = match self.account.take() {
            Some(account) => Some(account.fate().await),
            None => None,
        };
        if !self.time.has_begun()
            && fate.is_some_and(|fate| !matches!(fate, Fate::NotBegun | Fate::Refused))
        {
            self.pending = Some(runs());
        }
        // Bubblewrap ends by itself when it has waited for its first process, with which all others inside end.
        let told = matches!(fate, Some(Fate::Exited(_) | Fate::Killed(_)));
        if told && status.as_ref().is_ok_and(|status| status.code().is_some()) {
            self.room.leave();
        }
        let rest = self.drain().await;
        let output_exceeded = self.stdout.exceeded() || self.stderr.exceeded();
        // What never began is told as such.
        let stop = stop.filter(|stop| *stop != Stop::Start);
        Some(End { status, fate, stop, output_exceeded, rest })
    }

    /// Passes output on until the program ends by itself or has to be stopped.
    async fn until_end_or_stop(
        &mut self,
        allocation: &mut Allocation,
        lowered: &mut Option<Instant>,
    ) -> Option<Stop> {
        loop {
            allocation.note_standstill(self.time.look(Instant::now()));
            let begun = self.time.has_begun();
            if begun {
                self.listen();
            }
            if self.pending.is_none() {
                self.pending = self.stdout.take_full().or_else(|| self.stderr.take_full());
            }
            let due = [self.stdout.due(), self.stderr.due()].into_iter().flatten().min();
            // What is written before the program begins is not the program's: it waits for the end.
            let idle = begun && self.pending.is_none();
            let (end, start_end) = (self.time.end(allocation.limit), self.time.start_end());
            tokio::select! {
                biased;
                () = self.frames.closed() => return Some(Stop::ClientLeft),
                control = allocation.control.recv() => match control {
                    Some(Control::Limit(lower)) => {
                        // In other walls too, should these be dead.
                        allocation.limit = Some(lower);
                        *lowered = Some(Instant::now());
                    }
                    Some(Control::Halt(why)) => return Some(Stop::Halt(why)),
                    None => return Some(Stop::Halt("the pool is stopping".into())),
                },
                // Before the time: a program that has ended was not stopped, however late that is seen.
                _ = self.group.ended() => {
                    allocation.note_standstill(self.time.look(Instant::now()));
                    return None;
                }
                // Before the time, too: it does not count while the pool stands still.
                () = sleep_until(self.time.next_look()) => {}
                () = at(end) => {
                    let limit = allocation.limit.unwrap_or_default();
                    allocation.over(limit, *lowered);
                    return Some(Stop::Time(limit));
                }
                () = at(start_end) => return Some(Stop::Start),
                why = self.watching.verdict() => return Some(Stop::Limit(why)),
                () = begins(&mut self.account), if !begun => {
                    self.time.begin(Instant::now());
                    self.pending = Some(runs());
                }
                permit = self.frames.reserve(), if self.pending.is_some() => {
                    if let (Ok(permit), Some(frame)) = (permit, self.pending.take()) {
                        if frame.is_visible() {
                            allocation.show();
                        }
                        permit.send(frame);
                    }
                }
                () = at(due), if idle => {
                    let now = Instant::now();
                    self.pending = self.stdout.take_due(now).or_else(|| self.stderr.take_due(now));
                }
                () = self.stdout.read(), if idle => {}
                () = self.stderr.read(), if idle => {}
            }
        }
    }

    /// What a program wrote before it ended still goes to the client.
    async fn drain(&mut self) -> Vec<Outgoing> {
        let reading = async {
            while !(self.stdout.is_closed() && self.stderr.is_closed()) {
                tokio::select! {
                    () = self.stdout.read() => {}
                    () = self.stderr.read() => {}
                }
            }
        };
        // A process that got away may hold the pipe open for ever.
        let _ = timeout(DRAIN_MAX, reading).await;
        let rest = [self.pending.take(), self.stdout.take(), self.stderr.take()];
        rest.into_iter().flatten().collect()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(feeding) = &self.feeding {
            feeding.abort();
        }
    }
}

impl End {
    /// Whether nothing has happened that anybody could have seen.
    fn never_began(&self) -> bool {
        self.stop.is_none() && self.fate == Some(Fate::NotBegun)
    }

    /// Whether the program never began, or somebody else than the pool killed it.
    fn is_worth_another_try(&self) -> bool {
        let killed = |signal| KILLED.contains(&signal);
        self.stop.is_none()
            && match (&self.status, self.fate) {
                (Err(_), _) => false,
                (_, Some(Fate::NotBegun)) => true,
                (_, Some(Fate::Exited(_) | Fate::Refused)) => false,
                (_, Some(Fate::Killed(signal))) => killed(signal),
                (Ok(status), Some(Fate::Untold)) => status
                    .signal()
                    .or(status.code().map(|code| code - BY_SIGNAL))
                    .is_some_and(killed),
                (Ok(status), None) => status.signal().is_some_and(killed),
            }
    }

    /// What went wrong, if anything did.
    fn error(&self) -> Option<String> {
        match &self.stop {
            Some(Stop::Time(limit)) => return Some(format!("time limit ({})", seconds(*limit))),
            Some(Stop::Start) => return Some(NOT_STARTED.into()),
            Some(Stop::Halt(why) | Stop::Limit(why)) => return Some(why.clone()),
            Some(Stop::ClientLeft) => return Some("the client left".into()),
            None => {}
        }
        let status = match &self.status {
            Ok(status) => status,
            Err(error) => return Some(format!("cannot tell how the program ended: {error}")),
        };
        if self.output_exceeded {
            return Some("output limit".into());
        }
        let (signal, code) = match self.fate {
            Some(Fate::NotBegun | Fate::Refused) => {
                return Some(NOT_STARTED.into());
            }
            Some(Fate::Exited(code)) => (None, Some(code)),
            Some(Fate::Killed(signal)) => (Some(signal), None),
            // Without bubblewrap, or where its first process is gone, the system tells.
            Some(Fate::Untold) | None => (status.signal(), status.code()),
        };
        match (signal, code) {
            (Some(CPU_USED_UP), _) => Some("processor time limit".into()),
            (Some(signal), _) => Some(format!("the program was ended by signal {signal}")),
            (None, Some(0)) => None,
            (None, Some(code)) => Some(format!("the program ended with status {code}")),
            (None, None) => Some("the program ended in an unknown way".into()),
        }
    }
}

/// An empty output says that the program runs.
fn runs() -> Outgoing {
    Outgoing::Output(Stream::Stdout, Vec::new())
}

/// Ready when the program begins.
async fn begins(account: &mut Option<Account>) {
    match account {
        Some(account) => account.begun().await,
        None => std::future::pending().await,
    }
}

/// The result and the end, as the client sees them. A partial result is sent too.
async fn last_frames(host: &Host, plan: &Plan, room: &Room, end: &End) -> Vec<Outgoing> {
    let mut frames = Vec::new();
    let mut error = end.error();
    if let Some((file, format, media)) = &plan.result {
        match room.read(file, host.limits.result_bytes_max).await {
            Ok(Some(bytes)) => {
                let (format, media) = (format.clone(), media.clone());
                frames.push(Outgoing::Result { format, media, bytes });
            }
            Ok(None) => error = error.or_else(|| Some("there is no result".into())),
            Err(why) => error = error.or_else(|| Some(format!("cannot read the result: {why}"))),
        }
    }
    frames.push(Outgoing::Complete(error));
    frames
}

/// Passes a client's words on to the program, those first that it said before the start.
async fn feed(mut pipe: pipe::Sender, first: Vec<u8>, mut stdin: mpsc::Receiver<Vec<u8>>) {
    if pipe.write_all(&first).await.is_err() {
        return;
    }
    while let Some(bytes) = stdin.recv().await {
        if pipe.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

/// Ready at this moment, or never.
async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(raw: i32, fate: Option<Fate>) -> End {
        let status = Ok(ExitStatus::from_raw(raw));
        End { status, fate, stop: None, output_exceeded: false, rest: Vec::new() }
    }

    #[test]
    fn used_up_processor_time_is_told_and_no_kill() {
        let told = BY_SIGNAL + CPU_USED_UP;
        for end in [end(CPU_USED_UP, None), end(told << 8, Some(Fate::Killed(CPU_USED_UP)))] {
            assert!(!end.is_worth_another_try());
            assert_eq!(end.error().as_deref(), Some("processor time limit"));
        }
    }

    #[test]
    fn what_never_began_or_was_killed_is_tried_again_and_an_exit_is_not() {
        let again = [
            end(9, None),
            end(1 << 8, Some(Fate::NotBegun)),
            end(137 << 8, Some(Fate::Killed(9))),
            end(137 << 8, Some(Fate::Untold)),
            end(9, Some(Fate::Untold)),
        ];
        assert!(again.iter().all(End::is_worth_another_try));
        let refused = end(2 << 8, Some(Fate::Refused));
        let not =
            [end(137 << 8, None), end(137 << 8, Some(Fate::Exited(137))), end(0, None), refused];
        assert!(!not.iter().any(End::is_worth_another_try));
        assert_eq!(not[1].error().as_deref(), Some("the program ended with status 137"));
        assert_eq!(again[1].error().as_deref(), Some("the program could not be started"));
    }
}
