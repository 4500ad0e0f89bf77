//! Large answers: tasks that are written while the client reads them, and bytes that keep their share of the
//! room for answers until they are in the socket.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::vec;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::response::{IntoResponse, Response};
use hyper::body::{Frame, SizeHint};
use taskyard_core::{
    Command, Execute, Finish, FinishItem, Holder, Reply, Span, Take, Task, TubeName,
};
use taskyard_engine::Engine;
use taskyard_wire::http::{Form, TaskAnswer, TasksAnswer};

use super::{Refusal, ok};
use crate::answers::{Share, bytes_of, is_small};
use crate::app::{App, misfit};

/// From this size on a piece of an answer is sent.
const PIECE_BYTES: usize = 64 << 10;
/// How a delivery ends that no client received.
const GIVEN_BACK: Finish = Finish::Release { delay: Span::ZERO, counted: false };

/// Marks an answer whose bytes have their share already.
#[derive(Clone, Copy)]
struct Counted;

/// Takes tasks if there is room for them in an answer. Tasks without room go back uncounted.
pub(super) async fn take(app: &App, take: Take, form: Form) -> Result<Response, Refusal> {
    let tube = take.tube.clone();
    let (tasks, mut share) = taken(app, take).await?;
    if let Err(refusal) = app.answers.resize_to_tasks(&mut share, &tube, &tasks) {
        drop(share);
        if let Some(back) = give_back(&tube, &tasks) {
            let engine = app.engine.clone();
            // It goes on although the caller leaves.
            let _ = tokio::spawn(async move { engine.execute(vec![back]).await }).await;
        }
        return Err(refusal.into());
    }
    let taken_from = Some((app.engine.clone(), tube));
    answer(TaskList { tasks: tasks.into_iter(), form, with_reasons: false, taken_from }, share)
}

/// The tasks, and the room that was reserved for them. A take that waits reserves nothing while it does.
async fn taken(app: &App, take: Take) -> Result<(Vec<Task>, Share), Refusal> {
    let expected = app.answers.expected(&take.tube, take.count);
    if !is_small(expected) {
        let share = app.answers.reserve(expected).await?;
        let tasks = ask(app, Take { wait: Span::ZERO, ..take.clone() }).await?;
        if !tasks.is_empty() || take.wait.is_zero() {
            return Ok((tasks, share));
        }
    }
    Ok((ask(app, take).await?, Share::default()))
}

async fn ask(app: &App, take: Take) -> Result<Vec<Task>, Refusal> {
    match app.ask(Command::Take(take)).await? {
        Reply::Taken(tasks) => Ok(tasks),
        _ => Err(misfit()),
    }
}

/// Shows tasks with the reasons why they do not run.
pub(super) async fn peek(
    app: &App,
    tube: TubeName,
    command: Command,
    (count, form): (usize, Form),
) -> Result<Response, Refusal> {
    let mut share = app.answers.reserve(app.answers.expected(&tube, count)).await?;
    let Reply::Tasks(tasks) = app.ask(command).await? else { return Err(misfit()) };
    app.answers.resize_to_tasks(&mut share, &tube, &tasks)?;
    let tasks = tasks.into_iter();
    answer(TaskList { tasks, form, with_reasons: true, taken_from: None }, share)
}

/// The command that gives back what no client received.
fn give_back(tube: &TubeName, tasks: &[Task]) -> Option<Command> {
    let item = |task: &Task| {
        let holder = Holder::Lease(task.lease?);
        Some(FinishItem { id: task.id, holder, finish: GIVEN_BACK })
    };
    let items: Vec<_> = tasks.iter().filter_map(item).collect();
    (!items.is_empty()).then(|| Command::Finish { tube: tube.clone(), items, show: false })
}

/// An answer with tasks: a small one in one piece, a large one piece by piece.
fn answer(list: TaskList, share: Share) -> Result<Response, Refusal> {
    if share.bytes() == 0 {
        return list.whole();
    }
    let body = Streamed { list, share, began: false };
    let mut response = Body::new(body).into_response();
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    Ok(response)
}

/// Tasks that are to be written.
struct TaskList {
    tasks: vec::IntoIter<Task>,
    form: Form,
    with_reasons: bool,
    /// Where the tasks go back that are never written.
    taken_from: Option<(Engine, TubeName)>,
}

impl TaskList {
    fn whole(mut self) -> Result<Response, Refusal> {
        let tasks = std::mem::take(&mut self.tasks);
        let tasks = tasks.as_slice();
        ok(&match self.with_reasons {
            true => TasksAnswer::with_reasons(tasks, self.form),
            false => TasksAnswer::new(tasks, self.form),
        })
    }

    fn write(&self, task: &Task, text: &mut Vec<u8>) -> serde_json::Result<()> {
        serde_json::to_writer(
            text,
            &match self.with_reasons {
                true => TaskAnswer::with_reason(task, self.form),
                false => TaskAnswer::new(task, self.form),
            },
        )
    }
}

impl Drop for TaskList {
    fn drop(&mut self) {
        let Some((engine, tube)) = self.taken_from.take() else { return };
        // The answer broke off before these, so the client cannot know them.
        if let Some(back) = give_back(&tube, self.tasks.as_slice())
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(async move { engine.execute(vec![back]).await });
        }
    }
}

/// The body of an answer with tasks: each is encoded when the client is ready for it.
struct Streamed {
    list: TaskList,
    share: Share,
    began: bool,
}

impl HttpBody for Streamed {
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
            if let Err(error) = this.list.write(&task, &mut text) {
                return Poll::Ready(Some(Err(error)));
            }
        }
        if this.list.tasks.as_slice().is_empty() {
            text.extend_from_slice(b"]}");
            bytes = usize::MAX;
        }
        let share = this.share.split(bytes);
        Poll::Ready(Some(Ok(Frame::data(held(text, share)))))
    }

    fn is_end_stream(&self) -> bool {
        self.began && self.list.tasks.as_slice().is_empty()
    }
}

/// Bytes with their share of the room.
struct Held<T> {
    bytes: T,
    _share: Share,
}

impl<T: AsRef<[u8]>> AsRef<[u8]> for Held<T> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

/// Bytes that give back their share when they are sent.
fn held(bytes: impl AsRef<[u8]> + Send + 'static, share: Share) -> Bytes {
    Bytes::from_owner(Held { bytes, _share: share })
}

/// A body that is there already, with its share.
struct Whole {
    body: Body,
    share: Share,
}

impl HttpBody for Whole {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        let share = &mut self.share;
        polled.map_ok(|frame| frame.map_data(|bytes| held(bytes, share.split(usize::MAX))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// An answer whose room was reserved before its command ran. What was done is told even if it needs more than
/// was expected.
pub(super) fn with_share(app: &App, mut response: Response, mut share: Share) -> Response {
    let _ = app.answers.resize(&mut share, size_of(&response));
    response.extensions_mut().insert(Counted);
    attach(response, share)
}

fn size_of(response: &Response) -> usize {
    let size = response.body().size_hint().exact().unwrap_or(0);
    usize::try_from(size).unwrap_or(usize::MAX)
}

fn attach(response: Response, share: Share) -> Response {
    if share.bytes() == 0 {
        return response;
    }
    response.map(|body| Body::new(Whole { body, share }))
}

/// Counts an answer that is there whole; without room for it, it is refused instead.
pub(crate) fn count(app: &App, response: Response) -> Response {
    let size = size_of(&response);
    if is_small(size) || response.extensions().get::<Counted>().is_some() {
        return response;
    }
    let mut share = Share::default();
    match app.answers.resize(&mut share, size) {
        Ok(()) => attach(response, share),
        Err(refusal) => Refusal::from(refusal).into_response(),
    }
}
