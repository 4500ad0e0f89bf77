//! Runs tasks in one session: connects, executes, collects the output, cancels.

use std::io;
use std::time::Duration;

use fallible_iterator::FallibleIterator;
use postgres_protocol::message::backend::{
    CommandCompleteBody, DataRowBody, ErrorResponseBody, Message,
};
use postgres_protocol::message::frontend;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::connection::{
    ConnectError, Connection, Incoming, LongMessage, SessionOptions, SqlError, connect,
};
use crate::encoding::Charset;
use crate::output::{Format, Output};
use taskyard_postgres::Conninfo;

/// How long to wait before a cancel request is repeated.
const CANCEL_RETRY: Duration = Duration::from_secs(1);
/// How many cancel requests are sent before the connection is closed.
const CANCELS_MAX: u32 = 10;
/// How many bytes a row has at most beside its values: the length of each of its columns.
const ROW_HEAD_BYTES: usize = 16 << 10;
/// Resets a session to its initial state.
const CLEAN: &str = "DISCARD ALL";

/// A task for a session.
#[derive(Debug)]
pub struct Job {
    /// The statements to run.
    pub input: String,
    /// How long all of them may take.
    pub timeout: Option<Duration>,
    /// The format of the output.
    pub format: Format,
    /// How many bytes of output are kept.
    pub output_bytes_max: usize,
    /// A statement that runs first and may fail.
    pub attempt: Option<String>,
    /// A statement that prepares the session.
    pub before: Option<String>,
    /// Whether the session is reset afterwards, because it may run another task.
    pub clean: bool,
}

/// A command to a session.
#[derive(Debug)]
pub enum SessionCommand {
    /// Run a task.
    Run(Box<Job>),
    /// Cancel the running task.
    Cancel,
    /// Close the session.
    Close,
}

/// An event of a session.
#[derive(Debug)]
pub enum SessionEvent {
    /// The session is open, with this server process.
    Opened(i32),
    /// The session could not be opened.
    Failed(ConnectError),
    /// The task has ended.
    TaskEnded(RunResult),
}

/// The result of running a task.
#[derive(Debug, Default)]
pub struct RunResult {
    /// The output of the task.
    pub output: Option<String>,
    /// The error of the task.
    pub error: Option<SqlError>,
    /// Whether the output was truncated.
    pub cut: bool,
    /// Whether the connection was lost.
    pub lost: bool,
    /// Whether the scheduler cancelled the task. The session is not used again: a cancel request that arrives late would
    /// hit the next task.
    pub cancelled: bool,
}

/// Sends the events of a session, with its number.
#[derive(Clone)]
pub struct EventSender {
    /// The number of the session.
    pub session: u64,
    /// The receiver of all sessions.
    pub events: mpsc::UnboundedSender<(u64, SessionEvent)>,
}

impl EventSender {
    fn send(&self, event: SessionEvent) {
        // A leader that is gone needs no events.
        let _ = self.events.send((self.session, event));
    }
}

/// Opens a session before `deadline`, and handles commands until it is closed or lost.
pub async fn serve(
    (conninfo, options): (Conninfo, SessionOptions),
    deadline: Option<Instant>,
    sender: EventSender,
    mut commands: mpsc::UnboundedReceiver<SessionCommand>,
) {
    let opened = tokio::select! {
        opened = connect(&conninfo, &options) => opened,
        () = expired(deadline) => Err(ConnectError::Unreachable("timeout expired".into())),
        () = closed(&mut commands) => return,
    };
    let mut connection = match opened {
        Ok(connection) => connection,
        Err(error) => return sender.send(SessionEvent::Failed(error)),
    };
    sender.send(SessionEvent::Opened(connection.pid));
    let mut unread = 0;
    while let Some(command) = commands.recv().await {
        match command {
            SessionCommand::Run(job) => {
                let cleaned = job.clean;
                let result = run(&mut connection, *job, unread, &mut commands).await;
                let unusable = result.lost || result.cancelled;
                sender.send(SessionEvent::TaskEnded(result));
                // Reset now, while the outcome of the task is written; the answer is read with the next task.
                if unusable || (cleaned && clean(&mut connection).await.is_err()) {
                    break;
                }
                unread = usize::from(cleaned);
            }
            SessionCommand::Cancel => {}
            SessionCommand::Close => break,
        }
    }
    frontend::terminate(&mut connection.out);
    // The connection may be lost already.
    let _ = connection.flush().await;
}

async fn clean(connection: &mut Connection) -> io::Result<()> {
    frontend::query(CLEAN, &mut connection.out)?;
    connection.flush().await
}

/// Ready at the deadline; never without one.
async fn expired(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Ready when the session is closed while it is being opened.
async fn closed(commands: &mut mpsc::UnboundedReceiver<SessionCommand>) {
    while !matches!(commands.recv().await, None | Some(SessionCommand::Close)) {}
}

/// A running task.
struct RunningJob {
    output: Output,
    error: Option<SqlError>,
    /// The error message as received, in the encoding of the session.
    raw_error: Option<ErrorResponseBody>,
    /// How many answers to statements before the task are still to come.
    before: usize,
    /// The value of `before` while the answer is read that may be an error.
    attempt: Option<usize>,
    /// Whether the running command returns rows.
    rows: bool,
    /// Whether a COMMIT or ROLLBACK was sent to end the transaction of the task.
    closing: bool,
    done: bool,
    /// Whether the server ended the session.
    session_ended: bool,
}

/// Runs a task. `unread` answers to earlier statements come before its own.
async fn run(
    connection: &mut Connection,
    job: Job,
    unread: usize,
    commands: &mut mpsc::UnboundedReceiver<SessionCommand>,
) -> RunResult {
    let started = Instant::now();
    connection.head_max = job.output_bytes_max + ROW_HEAD_BYTES;
    let mut run = RunningJob {
        output: Output::new(job.format, job.output_bytes_max),
        error: None,
        raw_error: None,
        before: unread + usize::from(job.attempt.is_some()) + usize::from(job.before.is_some()),
        attempt: job.attempt.as_ref().map(|_| 1 + usize::from(job.before.is_some())),
        rows: false,
        closing: false,
        done: false,
        session_ended: false,
    };
    let mut texts = job.attempt.iter().chain(&job.before).chain([&job.input]);
    if let Err(error) = texts.try_for_each(|text| frontend::query(text, &mut connection.out)) {
        let error = Some(SqlError::new(error.to_string()));
        return RunResult { error, lost: true, cancelled: true, ..RunResult::default() };
    }
    let mut deadline = job.timeout.map(|timeout| started + timeout);
    let mut timed_out = false;
    let mut cancels = 0;
    let lost = loop {
        if run.done {
            break None;
        }
        let wake = deadline.unwrap_or_else(|| started + Duration::from_secs(86_400 * 365));
        tokio::select! {
            incoming = connection.next() => match incoming.map(|incoming| run.handle(incoming, connection)) {
                Ok(Ok(())) => continue,
                // The server may complete the task, so it is not run again.
                Ok(Err(error)) if !run.session_ended => {
                    run.error.get_or_insert_with(|| SqlError::new(error.to_string()));
                    cancels += 1;
                    break None;
                }
                Ok(Err(error)) | Err(error) => break Some(error),
            },
            command = commands.recv() => if !matches!(command, None | Some(SessionCommand::Cancel | SessionCommand::Close)) {
                continue;
            },
            () = sleep_until(wake) => timed_out |= cancels == 0,
        }
        if cancels == CANCELS_MAX {
            break Some(io::Error::other("the task did not stop when it was cancelled"));
        }
        cancels += 1;
        deadline = Some(Instant::now() + CANCEL_RETRY);
        if let Some(cancel) = connection.cancel.clone() {
            // Repeated if it fails.
            tokio::spawn(async move { cancel.send().await });
        }
    };
    let charset = Charset::named(&connection.encoding).or_else(|| Charset::chosen_in(&job.input));
    run.into_result(lost, timed_out, cancels > 0, charset)
}

impl RunningJob {
    fn handle(&mut self, incoming: Incoming, connection: &mut Connection) -> io::Result<()> {
        let message = match incoming {
            Incoming::Message(message) => message,
            Incoming::Columns(columns) => {
                if self.before == 0 {
                    self.rows = true;
                    self.output.begin(columns);
                }
                return Ok(());
            }
            Incoming::Skipped(long) => {
                self.handle_long(&long);
                return Ok(());
            }
        };
        match message {
            Message::ReadyForQuery(_) if self.before > 0 => self.before -= 1,
            Message::ReadyForQuery(body) => self.ready(body.status(), connection)?,
            Message::ErrorResponse(body) => {
                let error = SqlError::read(&body);
                let fatal = error.is_fatal();
                if self.error.is_none() && (fatal || self.attempt != Some(self.before)) {
                    (self.error, self.raw_error) = (Some(error), Some(body));
                }
                if fatal {
                    self.session_ended = true;
                    return Err(io::Error::other("the server ended the session"));
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
                frontend::copy_fail("COPY FROM STDIN is not supported", &mut connection.out)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Handles a message that was too long to be kept.
    fn handle_long(&mut self, long: &LongMessage) {
        match long.kind {
            b'D' | b'd' if self.before > 0 => return,
            b'D' => self.output.row(long.values().into_iter()),
            b'd' => self.output.copied(&long.head),
            b'E' => {
                let text = "the error message of the database is too long";
                self.error.get_or_insert_with(|| SqlError::new(text));
                return;
            }
            // Notices are not kept.
            _ => return,
        }
        if !long.whole {
            self.output.too_long();
        }
    }

    fn complete(&mut self, body: &CommandCompleteBody) -> io::Result<()> {
        let rows = std::mem::take(&mut self.rows);
        // A command that ended with an error has no tag.
        if !rows && self.error.is_none() {
            self.output.tag(body.tag()?);
        }
        Ok(())
    }

    /// All statements are done; a transaction that was left open is ended.
    fn ready(&mut self, status: u8, connection: &mut Connection) -> io::Result<()> {
        self.done = self.closing || status == b'I';
        if !self.done {
            self.closing = true;
            let end = if status == b'T' { "COMMIT" } else { "ROLLBACK" };
            frontend::query(end, &mut connection.out)?;
        }
        Ok(())
    }

    fn into_result(
        self,
        lost: Option<io::Error>,
        timed_out: bool,
        cancelled: bool,
        charset: Option<Charset>,
    ) -> RunResult {
        let cut = self.output.is_cut();
        let mut error = match self.raw_error {
            Some(body) if charset.is_some() => Some(SqlError::read_in(&body, charset)),
            _ => self.error,
        };
        if let Some(error) = error.as_mut().filter(|error| error.code == "57014")
            && timed_out
        {
            error.message = "canceling statement due to statement timeout".into();
        }
        if let (Some(lost), None) = (&lost, &error) {
            error = Some(SqlError::with_detail("the connection was lost", lost.to_string()));
        }
        let output = self.output.into_text(charset);
        RunResult { output, error, cut, lost: lost.is_some(), cancelled }
    }
}

fn row(output: &mut Output, body: &DataRowBody) -> io::Result<()> {
    let buffer = body.buffer();
    let ranges: Vec<_> = body.ranges().collect()?;
    output.row(ranges.into_iter().map(|range| range.map(|range| &buffer[range])));
    Ok(())
}
