//! One executor: a session that runs a task, and perhaps others after it.

use std::io;
use std::time::Duration;

use fallible_iterator::FallibleIterator;
use postgres_protocol::message::backend::{
    CommandCompleteBody, DataRowBody, ErrorResponseBody, Message,
};
use postgres_protocol::message::frontend;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::encoding::Charset;
use crate::output::{Format, Output};
use crate::wire::{Arrived, ConnectError, Long, Opening, Refusal, Wire, connect};
use taskyard_postgres::Conninfo;

/// How often a task that was cancelled is told so.
const CANCEL_AGAIN: Duration = Duration::from_secs(1);
/// How often it is told before its connection is closed.
const CANCELS_MAX: u32 = 10;
/// How many bytes a row has beside its values at most: the length of each of its columns.
const ROW_HEAD_BYTES: usize = 16 << 10;
/// Makes a session as if it were new.
const CLEAN: &str = "DISCARD ALL";

/// What a session is to run.
#[derive(Debug)]
pub struct Job {
    /// What to run.
    pub input: String,
    /// How long it may take in all.
    pub timeout: Option<Duration>,
    /// How to write what it says.
    pub format: Format,
    /// The most of it that is kept.
    pub output_bytes_max: usize,
    /// What is tried before it; whether it goes well does not matter.
    pub attempt: Option<String>,
    /// What sets the session up for it.
    pub before: Option<String>,
    /// Whether the session is made as if it were new afterwards, because it may run another task.
    pub clean: bool,
}

/// What a session is told.
#[derive(Debug)]
pub enum Order {
    /// Run this.
    Run(Box<Job>),
    /// Stop what runs.
    Cancel,
    /// No more.
    Close,
}

/// What a session tells.
#[derive(Debug)]
pub enum Event {
    /// It is there, served by this process.
    Opened(i32),
    /// There is no connection.
    Failed(ConnectError),
    /// The task has ended.
    Ended(Outcome),
}

/// How a task ended.
#[derive(Debug, Default)]
pub struct Outcome {
    /// What it said.
    pub output: Option<String>,
    /// What went wrong.
    pub error: Option<Refusal>,
    /// Whether only the output is not whole.
    pub cut: bool,
    /// Whether the connection is gone.
    pub lost: bool,
    /// Whether it was cancelled from here, so that the session must not be used again: a cancel that came too late
    /// would hit the next task.
    pub cancelled: bool,
}

/// Where a session tells what happens, under its number.
#[derive(Clone)]
pub struct Teller {
    /// Its number.
    pub session: u64,
    /// To whom.
    pub events: mpsc::UnboundedSender<(u64, Event)>,
}

impl Teller {
    fn tell(&self, event: Event) {
        // Whoever listened may be gone; then nobody needs it.
        let _ = self.events.send((self.session, event));
    }
}

/// Opens a session, not after `deadline`, and runs what it is told until it is closed or lost.
pub async fn serve(
    (conninfo, opening): (Conninfo, Opening),
    deadline: Option<Instant>,
    teller: Teller,
    mut orders: mpsc::UnboundedReceiver<Order>,
) {
    let opened = tokio::select! {
        opened = connect(&conninfo, &opening) => opened,
        () = over(deadline) => Err(ConnectError::Unreachable("timeout expired".into())),
        () = closed(&mut orders) => return,
    };
    let mut wire = match opened {
        Ok(wire) => wire,
        Err(error) => return teller.tell(Event::Failed(error)),
    };
    teller.tell(Event::Opened(wire.pid));
    let mut unread = 0;
    while let Some(order) = orders.recv().await {
        match order {
            Order::Run(job) => {
                let cleaned = job.clean;
                let outcome = run(&mut wire, *job, unread, &mut orders).await;
                let over = outcome.lost || outcome.cancelled;
                teller.tell(Event::Ended(outcome));
                // Cleaned now, while the end of the task is written down; the answer is read with the next task.
                if over || (cleaned && clean(&mut wire).await.is_err()) {
                    break;
                }
                unread = usize::from(cleaned);
            }
            Order::Cancel => {}
            Order::Close => break,
        }
    }
    frontend::terminate(&mut wire.out);
    // It may be gone already.
    let _ = wire.flush().await;
}

async fn clean(wire: &mut Wire) -> io::Result<()> {
    frontend::query(CLEAN, &mut wire.out)?;
    wire.flush().await
}

/// Ready when the time is over; never where there is no end.
async fn over(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Ready when the session is no longer wanted before it was there.
async fn closed(orders: &mut mpsc::UnboundedReceiver<Order>) {
    while !matches!(orders.recv().await, None | Some(Order::Close)) {}
}

/// A task that runs.
struct Run {
    output: Output,
    error: Option<Refusal>,
    /// The error as it came, in whatever encoding.
    said: Option<ErrorResponseBody>,
    /// Answers to what came before the task.
    before: usize,
    /// How many of them are left while the one is read that may be a refusal.
    attempt: Option<usize>,
    /// Whether the command that runs now has rows.
    rows: bool,
    /// Whether it was ended with a COMMIT or ROLLBACK of ours.
    closing: bool,
    over: bool,
    /// Whether the server ended the session.
    ended: bool,
}

/// Runs a task. `unread` answers to something else come before its own.
async fn run(
    wire: &mut Wire,
    job: Job,
    unread: usize,
    orders: &mut mpsc::UnboundedReceiver<Order>,
) -> Outcome {
    let began = Instant::now();
    wire.head_max = job.output_bytes_max + ROW_HEAD_BYTES;
    let mut run = Run {
        output: Output::new(job.format, job.output_bytes_max),
        error: None,
        said: None,
        before: unread + usize::from(job.attempt.is_some()) + usize::from(job.before.is_some()),
        attempt: job.attempt.as_ref().map(|_| 1 + usize::from(job.before.is_some())),
        rows: false,
        closing: false,
        over: false,
        ended: false,
    };
    let mut texts = job.attempt.iter().chain(&job.before).chain([&job.input]);
    if let Err(error) = texts.try_for_each(|text| frontend::query(text, &mut wire.out)) {
        let error = Some(Refusal::own(error.to_string()));
        return Outcome { error, lost: true, cancelled: true, ..Outcome::default() };
    }
    let mut deadline = job.timeout.map(|timeout| began + timeout);
    let mut timed_out = false;
    let mut cancels = 0;
    let lost = loop {
        if run.over {
            break None;
        }
        let wake = deadline.unwrap_or_else(|| began + Duration::from_secs(86_400 * 365));
        tokio::select! {
            arrived = wire.next() => match arrived.map(|arrived| run.take(arrived, wire)) {
                Ok(Ok(())) => continue,
                // The server may go on with it and end it well, so it is not done again.
                Ok(Err(error)) if !run.ended => {
                    run.error.get_or_insert_with(|| Refusal::own(error.to_string()));
                    cancels += 1;
                    break None;
                }
                Ok(Err(error)) | Err(error) => break Some(error),
            },
            order = orders.recv() => if !matches!(order, None | Some(Order::Cancel | Order::Close)) {
                continue;
            },
            () = sleep_until(wake) => timed_out |= cancels == 0,
        }
        if cancels == CANCELS_MAX {
            break Some(io::Error::other("it did not stop when it was cancelled"));
        }
        cancels += 1;
        deadline = Some(Instant::now() + CANCEL_AGAIN);
        if let Some(cancel) = wire.cancel.clone() {
            // Asked again if it fails.
            tokio::spawn(async move { cancel.send().await });
        }
    };
    let charset = Charset::named(&wire.encoding).or_else(|| Charset::chosen_in(&job.input));
    run.outcome(lost, timed_out, cancels > 0, charset)
}

impl Run {
    fn take(&mut self, arrived: Arrived, wire: &mut Wire) -> io::Result<()> {
        let message = match arrived {
            Arrived::Message(message) => message,
            Arrived::Columns(columns) => {
                if self.before == 0 {
                    self.rows = true;
                    self.output.begin(columns);
                }
                return Ok(());
            }
            Arrived::Skipped(long) => {
                self.skipped(&long);
                return Ok(());
            }
        };
        match message {
            Message::ReadyForQuery(_) if self.before > 0 => self.before -= 1,
            Message::ReadyForQuery(body) => self.ready(body.status(), wire)?,
            Message::ErrorResponse(body) => {
                let refusal = Refusal::read(&body);
                let fatal = refusal.is_fatal();
                if self.error.is_none() && (fatal || self.attempt != Some(self.before)) {
                    (self.error, self.said) = (Some(refusal), Some(body));
                }
                if fatal {
                    self.ended = true;
                    return Err(io::Error::other("the session was ended"));
                }
            }
            Message::DataRow(body) if self.before == 0 => row(&mut self.output, &body)?,
            Message::CommandComplete(body) if self.before == 0 => self.complete(&body)?,
            Message::CopyOutResponse(_) => {
                self.rows = true;
                self.output.begin_copy();
            }
            Message::CopyData(body) => self.output.copied(body.data()),
            Message::CopyInResponse(_) => {
                frontend::copy_fail("COPY FROM STDIN is not supported", &mut wire.out)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// A message was too long to be kept whole.
    fn skipped(&mut self, long: &Long) {
        match long.kind {
            b'D' | b'd' if self.before > 0 => return,
            b'D' => self.output.row(long.values().into_iter()),
            b'd' => self.output.copied(&long.head),
            b'E' => {
                let said = "what the database says about an error is too long";
                self.error.get_or_insert_with(|| Refusal::own(said));
                return;
            }
            // A notice, which is kept nowhere.
            _ => return,
        }
        if !long.whole {
            self.output.too_long();
        }
    }

    fn complete(&mut self, body: &CommandCompleteBody) -> io::Result<()> {
        let rows = std::mem::take(&mut self.rows);
        // What ended with an error has nothing to add.
        if !rows && self.error.is_none() {
            self.output.tag(body.tag()?);
        }
        Ok(())
    }

    /// The texts are through; a transaction that was left open is closed.
    fn ready(&mut self, status: u8, wire: &mut Wire) -> io::Result<()> {
        self.over = self.closing || status == b'I';
        if !self.over {
            self.closing = true;
            let end = if status == b'T' { "COMMIT" } else { "ROLLBACK" };
            frontend::query(end, &mut wire.out)?;
        }
        Ok(())
    }

    fn outcome(
        self,
        lost: Option<io::Error>,
        timed_out: bool,
        cancelled: bool,
        charset: Option<Charset>,
    ) -> Outcome {
        let cut = self.output.is_cut();
        let mut error = match self.said {
            Some(body) if charset.is_some() => Some(Refusal::read_in(&body, charset)),
            _ => self.error,
        };
        if let Some(refusal) = error.as_mut().filter(|refusal| refusal.code == "57014")
            && timed_out
        {
            refusal.message = "canceling statement due to statement timeout".into();
        }
        if let (Some(lost), None) = (&lost, &error) {
            error = Some(Refusal::detailed("the connection was lost", lost.to_string()));
        }
        let output = self.output.into_text(charset);
        Outcome { output, error, cut, lost: lost.is_some(), cancelled }
    }
}

fn row(output: &mut Output, body: &DataRowBody) -> io::Result<()> {
    let buffer = body.buffer();
    let ranges: Vec<_> = body.ranges().collect()?;
    output.row(ranges.into_iter().map(|range| range.map(|range| &buffer[range])));
    Ok(())
}
