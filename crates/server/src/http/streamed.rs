//! Large responses: encodes tasks while the client reads them, and keeps the response permit of
//! bytes until they are in the socket.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::vec;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::response::{IntoResponse, Response};
use hyper::body::{Frame, SizeHint};
use taskyard_core::{
    Command, Execute, Finish, FinishItem, Holder, Reply, Span, Take, Task, TubeName,
};
use taskyard_engine::Engine;
use taskyard_wire::http::{Form, PeekRequest, TaskAnswer, TasksAnswer};

use super::estimates::QueuePositions;
use super::{Refusal, RequestApp, answer_sized};
use crate::app::{App, unexpected_reply};
use crate::response_budget::{ResponsePermit, bytes_of, is_small};

/// A piece of a response is sent from this size on.
const PIECE_BYTES: usize = 64 << 10;
/// How a delivery ends that no client received.
const RETURNED: Finish = Finish::Release { delay: Span::ZERO, counted: false };

/// Marks a response whose bytes already have their permit.
#[derive(Clone, Copy)]
struct AlreadyCounted;

/// Takes tasks if they fit in the response budget. Tasks that do not fit are returned uncounted.
pub(super) async fn take(app: &RequestApp, take: Take, form: Form) -> Result<Response, Refusal> {
    let tube = take.tube.clone();
    let (tasks, mut permit) = taken(app, take).await?;
    if let Err(refusal) = app.response_budget.resize_to_tasks(&mut permit, &tube, &tasks) {
        drop(permit);
        if let Some(back) = give_back(&tube, &tasks) {
            let engine = app.engine.clone();
            // It continues if the caller leaves.
            let _ = tokio::spawn(async move { engine.execute(vec![back]).await }).await;
        }
        return Err(refusal.into());
    }
    let taken_from = Some((app.engine.clone(), tube));
    let shown = ShownFields { form, with_reasons: false, positions: QueuePositions::default() };
    answer(TaskList { tasks: tasks.into_iter(), shown, taken_from }, permit)
}

/// The tasks, and the permit reserved for them. A take reserves nothing while it waits.
async fn taken(app: &RequestApp, take: Take) -> Result<(Vec<Task>, ResponsePermit), Refusal> {
    let expected = app.response_budget.expected(&take.tube, take.count);
    if !is_small(expected) {
        let permit = app.response_budget.reserve(expected).await?;
        let tasks = run(app, Take { wait: Span::ZERO, ..take.clone() }).await?;
        if !tasks.is_empty() || take.wait.is_zero() {
            return Ok((tasks, permit));
        }
    }
    Ok((run(app, take).await?, ResponsePermit::default()))
}

async fn run(app: &RequestApp, take: Take) -> Result<Vec<Task>, Refusal> {
    match app.run(Command::Take(take)).await? {
        Reply::Taken(tasks) => Ok(tasks),
        _ => Err(unexpected_reply()),
    }
}

/// Shows tasks with the reasons why they do not run.
pub(super) async fn peek(
    app: &RequestApp,
    tube: TubeName,
    request: PeekRequest,
) -> Result<Response, Refusal> {
    let (count, form, estimate) = (request.ids.len(), request.form(), request.estimate);
    let mut permit =
        app.response_budget.reserve(app.response_budget.expected(&tube, count)).await?;
    let command = request.into_command(tube.clone());
    let Reply::Tasks(tasks) = app.run(command).await? else { return Err(unexpected_reply()) };
    app.response_budget.resize_to_tasks(&mut permit, &tube, &tasks)?;
    let positions = match estimate {
        true => {
            let waiting = tasks.iter().map(|task| (task.id, task.state));
            QueuePositions::read(app, &tube, waiting).await?
        }
        false => QueuePositions::default(),
    };
    let shown = ShownFields { form, with_reasons: true, positions };
    answer(TaskList { tasks: tasks.into_iter(), shown, taken_from: None }, permit)
}

/// The command that returns tasks which no client received.
fn give_back(tube: &TubeName, tasks: &[Task]) -> Option<Command> {
    let item = |task: &Task| {
        let holder = Holder::Lease(task.lease?);
        Some(FinishItem { id: task.id, holder, finish: RETURNED })
    };
    let items: Vec<_> = tasks.iter().filter_map(item).collect();
    (!items.is_empty()).then(|| Command::Finish { tube: tube.clone(), items, show: false })
}

/// A response with tasks: a small one in one piece, a large one piece by piece.
fn answer(list: TaskList, permit: ResponsePermit) -> Result<Response, Refusal> {
    if permit.bytes() == 0 {
        return list.whole();
    }
    let body = StreamedTasks { list, permit, began: false };
    let mut response = Body::new(body).into_response();
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    Ok(response)
}

/// The tasks to encode.
struct TaskList {
    tasks: vec::IntoIter<Task>,
    shown: ShownFields,
    /// Where tasks that are never encoded are returned to.
    taken_from: Option<(Engine, TubeName)>,
}

impl TaskList {
    fn whole(mut self) -> Result<Response, Refusal> {
        let tasks = std::mem::take(&mut self.tasks);
        // A small response, so this is no large allocation.
        let bytes = tasks.as_slice().iter().map(bytes_of).sum();
        let tasks = tasks.as_slice().iter().map(|task| self.shown.of(task)).collect();
        answer_sized(StatusCode::OK, &TasksAnswer { tasks }, bytes)
    }
}

/// What a response shows of each task.
struct ShownFields {
    form: Form,
    with_reasons: bool,
    positions: QueuePositions,
}

impl ShownFields {
    fn of(&self, task: &Task) -> TaskAnswer {
        let mut answer = match self.with_reasons {
            true => TaskAnswer::with_reason(task, self.form),
            false => TaskAnswer::new(task, self.form),
        };
        answer.queue = self.positions.of(task.id);
        answer
    }
}

impl Drop for TaskList {
    fn drop(&mut self) {
        let Some((engine, tube)) = self.taken_from.take() else { return };
        // The response ended before these tasks, so the client does not know them.
        if let Some(back) = give_back(&tube, self.tasks.as_slice())
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(async move { engine.execute(vec![back]).await });
        }
    }
}

/// The body of a response with tasks: each is encoded when the client is ready for it.
struct StreamedTasks {
    list: TaskList,
    permit: ResponsePermit,
    began: bool,
}

impl HttpBody for StreamedTasks {
    type Data = Bytes;
    type Error = serde_json::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, serde_json::Error>>> {
        let this = self.get_mut();
        if this.is_end_stream() {
            return Poll::Ready(None);
        }
        let mut text = Vec::with_capacity(PIECE_BYTES * 2);
        let mut bytes = 0;
        while text.len() < PIECE_BYTES {
            let Some(task) = this.list.tasks.next() else { break };
            text.extend_from_slice(if this.began { b"," } else { b"{\"tasks\":[" });
            this.began = true;
            bytes += bytes_of(&task);
            if let Err(error) = serde_json::to_writer(&mut text, &this.list.shown.of(&task)) {
                return Poll::Ready(Some(Err(error)));
            }
        }
        if this.list.tasks.as_slice().is_empty() {
            text.extend_from_slice(b"]}");
            bytes = usize::MAX;
        }
        let permit = this.permit.split(bytes);
        Poll::Ready(Some(Ok(Frame::data(permit_bytes(text, permit)))))
    }

    fn is_end_stream(&self) -> bool {
        self.began && self.list.tasks.as_slice().is_empty()
    }
}

/// Bytes with their permit.
struct PermitBytes<T> {
    bytes: T,
    _permit: ResponsePermit,
}

impl<T: AsRef<[u8]>> AsRef<[u8]> for PermitBytes<T> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

/// Bytes that release their permit when they are sent.
fn permit_bytes(bytes: impl AsRef<[u8]> + Send + 'static, permit: ResponsePermit) -> Bytes {
    Bytes::from_owner(PermitBytes { bytes, _permit: permit })
}

/// A complete body, with its permit.
struct CompleteBody {
    body: Body,
    permit: ResponsePermit,
}

impl HttpBody for CompleteBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        let permit = &mut self.permit;
        polled.map_ok(|frame| frame.map_data(|bytes| permit_bytes(bytes, permit.split(usize::MAX))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A response whose budget was reserved before its command ran. A finished command is answered even
/// if that needs more than was expected.
pub(super) fn with_permit(
    app: &App,
    mut response: Response,
    mut permit: ResponsePermit,
) -> Response {
    let size = size_of(&response);
    let _ = app.response_budget.resize(&mut permit, size);
    // A small response is not counted at all.
    if !is_small(size) {
        response.extensions_mut().insert(AlreadyCounted);
    }
    attach(response, permit)
}

fn size_of(response: &Response) -> usize {
    let size = response.body().size_hint().exact().unwrap_or(0);
    usize::try_from(size).unwrap_or(usize::MAX)
}

fn attach(response: Response, permit: ResponsePermit) -> Response {
    if permit.bytes() == 0 {
        return response;
    }
    response.map(|body| Body::new(CompleteBody { body, permit }))
}

/// Counts a complete response; replaces it by an error if it does not fit in the budget.
pub(crate) fn count(app: &App, response: Response) -> Response {
    let size = size_of(&response);
    if is_small(size) || response.extensions().get::<AlreadyCounted>().is_some() {
        return response;
    }
    let mut permit = ResponsePermit::default();
    match app.response_budget.resize(&mut permit, size) {
        Ok(()) => attach(response, permit),
        Err(refusal) => Refusal::from(refusal).into_response(),
    }
}
