//! Follows one task for its gateway: it waits, a backend claims it, its frames are forwarded, it ends exactly once.

use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use taskyard_core::Span;
use taskyard_core::classes::RunRequest;
use taskyard_redis::Failure;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_tungstenite::tungstenite::Message;

use super::backend_connection::BackendConnection;
use super::client::{text, texts};
use super::gateway::{GatewayShared, client_error};
use super::{NO_DURATION, millis};
use crate::backend::TaskSpec;
use crate::gateway::{BoxFuture, TaskHandle};
use crate::local_pool::LOST_ERROR;
use crate::protocol::{OutgoingFrame, QueuePosition};
use crate::scheduler::REQUEUES_MAX;

/// Frames that are buffered for a client before its backend has to wait.
const FRAMES: usize = 8;
/// Pieces of standard input that are buffered for the backend.
const INPUTS: usize = 4;
/// Delay between two attempts to call Redis.
const RETRY_DELAY: std::time::Duration = std::time::Duration::from_millis(200);

/// A message to a task.
#[derive(Clone, Debug)]
pub(super) enum TaskMessage {
    /// A backend has claimed it: the attempt and the address.
    Backend(String, String),
    /// Its position in the queue.
    Queue(QueuePosition),
    /// It does not run, or not again.
    End(OutgoingFrame),
    /// It was requeued: this attempt is over.
    Requeued(String),
    /// A check found that no backend has it, and none may still have to report it.
    Unclaimed,
    /// A check found that this attempt is over; its backend still has to send how it ended, if it exists.
    RunOver(String),
    /// A command for its program, in this attempt.
    Control(String, String),
    /// Redis does not know it any more.
    Gone,
    /// Redis lost its data and has this incarnation now.
    DataLost(String),
    /// The gateway stops.
    Stop,
}

/// The handle of a task. Requests are handled by a task of the runtime, so that the caller may cancel them at any
/// moment.
#[derive(Debug)]
pub(super) struct RedisTask {
    pub frames: mpsc::Receiver<OutgoingFrame>,
    pub input: mpsc::Sender<Vec<u8>>,
    pub duration_requests: mpsc::Sender<(Span, oneshot::Sender<Result<(), String>>)>,
    pub is_running: Arc<AtomicBool>,
}

impl TaskHandle for RedisTask {
    fn next_frame(&mut self) -> BoxFuture<'_, OutgoingFrame> {
        Box::pin(async move {
            let gone = || OutgoingFrame::Complete(Some("the gateway is stopping".into()));
            self.frames.recv().await.unwrap_or_else(gone)
        })
    }

    fn lower(&mut self, requested: Span) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            let (reply, answer) = oneshot::channel();
            let gone = || Err("the task has ended".to_owned());
            if self.duration_requests.send((requested, reply)).await.is_err() {
                return gone();
            }
            answer.await.unwrap_or_else(|_| gone())
        })
    }

    fn input(&self) -> Option<mpsc::Sender<Vec<u8>>> {
        self.is_running.load(Ordering::Acquire).then(|| self.input.clone())
    }
}

/// Drives the task behind the handle.
pub(super) struct RedisTaskDriver {
    pub shared: Arc<GatewayShared>,
    pub id: String,
    /// The incarnation of Redis that knows the task.
    pub incarnation: String,
    /// The last run that was followed.
    pub followed: Option<(u64, u64)>,
    pub spec: TaskSpec,
    pub messages: mpsc::UnboundedReceiver<TaskMessage>,
    pub frames: mpsc::Sender<OutgoingFrame>,
    pub input: mpsc::Receiver<Vec<u8>>,
    pub duration_requests: mpsc::Receiver<(Span, oneshot::Sender<Result<(), String>>)>,
    pub is_running: Arc<AtomicBool>,
    /// Whether the client has seen output of the program.
    pub seen: bool,
    /// The duration that the client asked for, in microseconds.
    pub requested: u64,
}

/// The result of waiting, or of a run.
enum TaskStep {
    /// The client has received the last frame.
    Finished,
    /// It waits for a message: another run or an end.
    Waiting,
    /// It runs on this backend.
    Backend(String, String),
    Last(OutgoingFrame),
    ClientLeft,
}

impl RedisTask {
    /// Creates the handle and the driver of a task.
    pub fn new(
        shared: Arc<GatewayShared>,
        id: String,
        incarnation: String,
        spec: TaskSpec,
        messages: mpsc::UnboundedReceiver<TaskMessage>,
    ) -> (Self, RedisTaskDriver) {
        let (frames_in, frames) = mpsc::channel(FRAMES);
        let (input, input_out) = mpsc::channel(INPUTS);
        let (duration_requests, wishes_out) = mpsc::channel(1);
        let is_running = Arc::new(AtomicBool::new(false));
        let requested = requested_micros(&spec.ask);
        let driver = RedisTaskDriver {
            shared,
            id,
            incarnation,
            followed: None,
            spec,
            messages,
            frames: frames_in,
            input: input_out,
            duration_requests: wishes_out,
            is_running: is_running.clone(),
            seen: false,
            requested,
        };
        (RedisTask { frames, input, duration_requests, is_running }, driver)
    }
}

/// The duration that a client asks for, in microseconds.
pub(super) fn requested_micros(ask: &RunRequest) -> u64 {
    match ask {
        RunRequest::Timed(requested) => requested.as_micros().unsigned_abs().min(NO_DURATION - 1),
        RunRequest::Default | RunRequest::Interactive => NO_DURATION,
    }
}

impl RedisTaskDriver {
    /// Follows the task to its end and removes it from Redis.
    pub async fn run(mut self) {
        let mut step = TaskStep::Waiting;
        loop {
            self.is_running.store(false, Ordering::Release);
            step = match step {
                TaskStep::Waiting => self.wait().await,
                TaskStep::Backend(attempt, address) => self.follow(&attempt, &address).await,
                TaskStep::Last(last) => {
                    let _ = self.frames.send(last).await;
                    break;
                }
                TaskStep::Finished | TaskStep::ClientLeft => break,
            };
        }
        self.shared.unregister(&self.id);
        self.remove().await;
    }

    async fn wait(&mut self) -> TaskStep {
        loop {
            tokio::select! {
                biased;
                () = self.frames.closed() => return TaskStep::ClientLeft,
                message = self.messages.recv() => match message {
                    Some(TaskMessage::Backend(attempt, address)) => {
                        if self.is_newer(&attempt) {
                            return TaskStep::Backend(attempt, address);
                        } else if self.followed == attempt_number(&attempt) {
                            // It is not followed any more.
                            return self.report_lost(&attempt).await;
                        }
                    }
                    Some(TaskMessage::Queue(position)) => {
                        // A client that does not read receives the next one.
                        let _ = self.frames.try_send(OutgoingFrame::Queue(position));
                    }
                    Some(TaskMessage::End(last)) => return TaskStep::Last(last),
                    Some(TaskMessage::Gone) => if self.is_gone().await {
                        return TaskStep::Last(lease_expired());
                    },
                    // It does not run any more, and must not run again.
                    Some(TaskMessage::DataLost(incarnation)) if incarnation != self.incarnation && self.seen => {
                        return TaskStep::Last(OutgoingFrame::Complete(Some(LOST_ERROR.into())));
                    }
                    Some(TaskMessage::DataLost(incarnation)) if incarnation != self.incarnation => {
                        if let Err(why) = self.resubmit(true).await {
                            return TaskStep::Last(OutgoingFrame::Complete(Some(why)));
                        }
                    }
                    // No run is followed that could end.
                    Some(TaskMessage::RunOver(attempt)) => return self.report_lost(&attempt).await,
                    Some(
                        TaskMessage::Requeued(_) | TaskMessage::Control(..) | TaskMessage::Unclaimed | TaskMessage::DataLost(_),
                    ) => {}
                    Some(TaskMessage::Stop) | None => return TaskStep::Last(stopping()),
                },
                requested = self.duration_requests.recv() => if let Some((requested, reply)) = requested {
                    let _ = reply.send(self.lower_duration(requested).await);
                },
            }
        }
    }

    /// Connects to the backend and forwards its frames. Messages are handled meanwhile: a backend that does not
    /// answer must not keep the client from another one.
    async fn follow(&mut self, attempt: &str, address: &str) -> TaskStep {
        self.followed = attempt_number(attempt);
        let shared = self.shared.clone();
        let mut connecting = pin!(shared.connect(address));
        let mut connection: Option<BackendConnection> = None;
        let mut to_backend: Option<mpsc::Sender<Message>> = None;
        // Whether this run is known to be the task's current one: then the client may see its output.
        let mut seen_marked = false;
        let mut control = ControlState::default();
        // When the last frames of a run that is over must have arrived.
        let mut give_up_at: Option<Instant> = None;
        loop {
            control.send_to(to_backend.as_ref());
            tokio::select! {
                biased;
                () = self.frames.closed() => return TaskStep::ClientLeft,
                message = self.messages.recv() => match message {
                    Some(TaskMessage::Control(of, text)) if of == attempt => control.wanted = text,
                    Some(TaskMessage::RunOver(over)) if over == attempt => {
                        let last = || Instant::now() + shared.end_report_max;
                        give_up_at.get_or_insert_with(last);
                    }
                    Some(message) => if let Some(step) = self.handle_message(message, attempt).await {
                        return step;
                    },
                    None => return TaskStep::Last(stopping()),
                },
                opened = &mut connecting, if connection.is_none() => match opened {
                    Some(opened) => {
                        to_backend = Some(opened.outgoing.clone());
                        give_up_at = give_up_at.map(|_| Instant::now() + shared.end_report_max);
                        connection = Some(opened);
                        self.is_running.store(true, Ordering::Release);
                    }
                    None => return self.report_lost(attempt).await,
                },
                frame = next_frame_of(&mut connection) => match frame {
                    Some(frame) => {
                        if let Some(step) = self.forward(frame, attempt, &mut seen_marked).await {
                            return step;
                        }
                        give_up_at = give_up_at.map(|_| Instant::now() + shared.end_report_max);
                    }
                    None => return self.report_lost(attempt).await,
                },
                () = input(&mut self.input, to_backend.as_ref()) => {}
                // Redis may be slow, and the backend does not wait long for the connection.
                requested = self.duration_requests.recv(), if connection.is_some() => if let Some((requested, reply)) = requested {
                    let _ = reply.send(self.lower_duration(requested).await);
                },
                () = at(give_up_at), if connection.is_some() => {
                    if connection.as_ref().is_some_and(BackendConnection::was_active) {
                        give_up_at = Some(Instant::now() + shared.end_report_max);
                        continue;
                    }
                    tracing::warn!(task = self.id, "a backend did not report the end of a run in time");
                    return self.report_lost(attempt).await;
                }
            }
        }
    }

    /// Handles a message while a backend is followed; returns the next step if it is not followed any more.
    async fn handle_message(&mut self, message: TaskMessage, attempt: &str) -> Option<TaskStep> {
        match message {
            TaskMessage::Requeued(lost) if lost == attempt => Some(TaskStep::Waiting),
            TaskMessage::Unclaimed => Some(self.report_lost(attempt).await),
            TaskMessage::End(last) => Some(TaskStep::Last(last)),
            TaskMessage::Gone if self.is_gone().await => Some(TaskStep::Last(lease_expired())),
            TaskMessage::DataLost(incarnation) if incarnation != self.incarnation => {
                // The program runs, whether Redis accepts its files or not.
                let _ = self.resubmit(false).await;
                None
            }
            TaskMessage::Stop => Some(TaskStep::Last(stopping())),
            // The address is checked in Redis before the current backend is given up.
            TaskMessage::Backend(newer, address)
                if self.is_newer(&newer) && self.is_recorded(&newer, &address).await =>
            {
                Some(TaskStep::Backend(newer, address))
            }
            TaskMessage::Backend(..)
            | TaskMessage::Queue(_)
            | TaskMessage::Requeued(_)
            | TaskMessage::Control(..)
            | TaskMessage::RunOver(_)
            | TaskMessage::Gone
            | TaskMessage::DataLost(_) => None,
        }
    }

    /// Whether this attempt is newer than every one that was followed: messages come late and more than once.
    fn is_newer(&self, attempt: &str) -> bool {
        attempt_number(attempt)
            .is_some_and(|next_frame_of| self.followed.is_none_or(|last| next_frame_of > last))
    }

    /// Whether the incarnation of Redis to which it was submitted does not know the task any more. After a data loss it may have been
    /// submitted again since it was missed, or has still to be.
    async fn is_gone(&self) -> bool {
        let args = vec![millis(self.shared.lease), self.incarnation.clone(), self.id.clone()];
        match self.shared.redis.call("refresh", args).await.map(texts).as_deref() {
            Ok([incarnation, expired @ ..]) => {
                *incarnation == self.incarnation && !expired.is_empty()
            }
            _ => false,
        }
    }

    /// Whether Redis has this address for the attempt.
    async fn is_recorded(&self, attempt: &str, address: &str) -> bool {
        let response = self.shared.redis.call("peek", vec![self.id.clone()]).await;
        let response = response.ok().and_then(|response| response.list()?.into_iter().next());
        response.map(texts).and_then(|parts| parts.into_iter().nth(1))
            == Some(format!("{attempt} {address}"))
    }

    /// Forwards a frame to the client; returns the next step if the run is over.
    async fn forward(
        &mut self,
        frame: OutgoingFrame,
        attempt: &str,
        seen_marked: &mut bool,
    ) -> Option<TaskStep> {
        // Any frame except the empty output at the start.
        let counts = !matches!(&frame, OutgoingFrame::Output(_, bytes) if bytes.is_empty());
        if counts && !*seen_marked && !self.mark_seen(attempt).await {
            // Another run is the task's current one by now, or will be.
            return Some(self.report_lost(attempt).await);
        }
        *seen_marked |= counts;
        let last = frame.is_last();
        if self.frames.send(frame).await.is_err() {
            return Some(TaskStep::ClientLeft);
        }
        last.then_some(TaskStep::Finished)
    }

    /// Marks the run as seen. Refused if it is not the task's current one; repeated until Redis answers.
    async fn mark_seen(&mut self, attempt: &str) -> bool {
        loop {
            match self.call_for_run("mark_seen", attempt).await {
                Ok(response) if response == "shown" => {
                    self.seen = true;
                    return true;
                }
                Ok(response) if response != "later" => return false,
                Err(Failure::Refused(_)) => return false,
                _ if self.frames.is_closed() => return false,
                _ => sleep(RETRY_DELAY).await,
            }
        }
    }

    /// The connection to the backend ended before the task, or its run is not the task's current one.
    async fn report_lost(&mut self, attempt: &str) -> TaskStep {
        loop {
            match self.call_for_run("report_lost", attempt).await {
                Ok(response) => match response.as_str() {
                    // It may run again or not: the scheduler decides.
                    "reported" | "waits" => return TaskStep::Waiting,
                    "later" => {}
                    _ => return TaskStep::Last(OutgoingFrame::Complete(Some(LOST_ERROR.into()))),
                },
                Err(failure @ Failure::Refused(_)) => {
                    return TaskStep::Last(OutgoingFrame::Complete(Some(
                        client_error(&failure).into(),
                    )));
                }
                Err(_) => {}
            }
            if self.frames.is_closed() {
                return TaskStep::ClientLeft;
            }
            sleep(RETRY_DELAY).await;
        }
    }

    /// Makes a call about a run. If Redis has a new incarnation, the task is submitted again first.
    async fn call_for_run(
        &mut self,
        function: &'static str,
        attempt: &str,
    ) -> Result<String, Failure> {
        loop {
            let args = vec![self.id.clone(), attempt.to_owned(), REQUEUES_MAX.to_string()];
            let response = texts(self.shared.redis.call(function, args).await?);
            let [response, incarnation] = &response[..] else {
                return Err(Failure::Refused("unexpected reply to a gateway".into()));
            };
            if *incarnation == self.incarnation || self.frames.is_closed() {
                return Ok(response.clone());
            }
            self.resubmit(false).await.map_err(Failure::Refused)?;
        }
    }

    /// Submits the task again after a data loss, under its old id. Returns why that is refused.
    async fn resubmit(&mut self, waits: bool) -> Result<(), String> {
        let args = self.shared.submit_args(&self.spec, &self.id, waits, self.seen, self.requested);
        while !self.frames.is_closed() {
            match self.shared.redis.call("submit", args.clone()).await {
                Ok(response) => {
                    let incarnation = texts(response).pop();
                    self.incarnation = incarnation.unwrap_or_default();
                    return Ok(());
                }
                Err(failure @ Failure::Refused(_)) => return Err(client_error(&failure).into()),
                Err(_) => sleep(RETRY_DELAY).await,
            }
        }
        Ok(())
    }

    async fn lower_duration(&mut self, requested: Span) -> Result<(), String> {
        let requested = requested.as_micros().unsigned_abs().min(NO_DURATION - 1);
        let args = vec![self.id.clone(), requested.to_string()];
        let response = self.shared.redis.call("lower_duration", args).await.map(text);
        match response.as_deref() {
            Ok("done") => {
                self.requested = self.requested.min(requested);
                Ok(())
            }
            Ok("raised") => Err("the duration can only be lowered".into()),
            Ok("interactive") => Err("an interactive task has no duration".into()),
            Ok(_) => Err("no such task".into()),
            Err(failure) => Err(client_error(failure).into()),
        }
    }

    /// Removes the task from Redis; a backend that runs it is informed by a connection that is closed at once.
    async fn remove(&self) {
        for _ in 0..3 {
            match self.shared.redis.call("withdraw", vec![self.id.clone()]).await {
                Ok(response) => {
                    let response = texts(response);
                    let address = response.first().and_then(|text| text.split_once(' '));
                    if let Some((_, address)) = address {
                        drop(self.shared.connect(address).await);
                    }
                    return;
                }
                Err(Failure::Refused(_)) => return,
                // Otherwise it expires with its lease.
                Err(_) => sleep(RETRY_DELAY).await,
            }
        }
    }
}

/// The command that a program should get, and the last one that was sent.
#[derive(Default)]
struct ControlState {
    wanted: String,
    sent: String,
}

impl ControlState {
    /// Sends the command if it has changed; if the channel is full, a later check repeats it.
    fn send_to(&mut self, backend: Option<&mpsc::Sender<Message>>) {
        let Some(backend) = backend.filter(|_| self.wanted != self.sent) else { return };
        if backend.try_send(Message::text(self.wanted.clone())).is_ok() {
            self.sent.clone_from(&self.wanted);
        }
    }
}

/// The next frame, once there is a connection.
async fn next_frame_of(connection: &mut Option<BackendConnection>) -> Option<OutgoingFrame> {
    match connection {
        Some(connection) => connection.next().await,
        None => pending().await,
    }
}

/// Forwards a piece of standard input when there is one and the backend accepts it.
async fn input(pieces: &mut mpsc::Receiver<Vec<u8>>, backend: Option<&mpsc::Sender<Message>>) {
    let Some(backend) = backend else { return pending().await };
    let Ok(permits) = backend.reserve_many(2).await else { return pending().await };
    let Some(bytes) = pieces.recv().await else { return pending().await };
    for (permit, message) in permits.zip([Message::text("input"), Message::binary(bytes)]) {
        permit.send(message);
    }
}

async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => pending().await,
    }
}

/// Parses `LEAD-NUMBER`; no attempt has the same as another.
fn attempt_number(attempt: &str) -> Option<(u64, u64)> {
    let (lead, number) = attempt.split_once('-')?;
    Some((lead.parse().ok()?, number.parse().ok()?))
}

fn lease_expired() -> OutgoingFrame {
    let why = "the task expired: its gateway did not renew it in time";
    OutgoingFrame::Complete(Some(why.into()))
}

fn stopping() -> OutgoingFrame {
    OutgoingFrame::Complete(Some("the pool is stopping".into()))
}
