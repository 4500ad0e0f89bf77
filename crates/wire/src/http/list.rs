//! Pages of tasks: the query, its filter and the answer.

use serde::{Deserialize, Serialize};
use taskyard_core::limits::LIST_TASKS_MAX;
use taskyard_core::search::required_run;
use taskyard_core::{
    Body, Error, Finished, List, ListOrder, Result, State, StateSet, Task, TaskId, Timestamp,
    TubeName,
};

use super::is_false;
use super::put::checked_key;
use super::seconds::optional_moment;
use super::task::{Form, TaskAnswer};
use super::whole::parse_whole;
use crate::payload::{Payload, msgpack_to_json};

/// Longest payload in a page, in bytes of its JSON text; the rest is cut off.
pub const LIST_DATA_BYTES_MAX: usize = 1 << 10;
/// The number of tasks in a page unless the query says another one.
pub const LIST_TASKS_DEFAULT: usize = 100;

/// A query for a page of tasks. Everything is optional.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TasksQuery {
    /// States, separated by commas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// `id`, or `queue` for the order of delivery.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<String>,
    /// The `next` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Maximum number of tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// Only tasks whose payload contains this text.
    #[serde(default, rename = "match", skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Only tasks with this key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Only tasks of this sub-queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subqueue: Option<String>,
    /// Only tasks that the worker of this name holds, or for which it failed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// Only tasks with a failure whose error contains this text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Only tasks with at least this many attempts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts_min: Option<String>,
    /// Only tasks put at this moment or later, in seconds since the epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_from: Option<f64>,
    /// Only tasks put before this moment, in seconds since the epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_until: Option<f64>,
    /// Only tasks finished at this moment or later, in seconds since the epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_from: Option<f64>,
    /// Only tasks finished before this moment, in seconds since the epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_until: Option<f64>,
    /// Whether the answer says when the tasks will start.
    #[serde(default, skip_serializing_if = "is_false")]
    pub estimate: bool,
}

/// A page of tasks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TaskPageAnswer {
    /// The tasks, each with the reason why it does not run.
    pub tasks: Vec<TaskAnswer>,
    /// The value of `after` for the next page; absent if no task follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// How many tasks were compared with the query.
    pub scanned: u64,
}

/// Conditions that a listed task must meet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TaskFilter {
    text: Option<String>,
    subqueue: Option<String>,
    worker: Option<String>,
    error: Option<String>,
    attempts_min: u32,
    created_from: Option<Timestamp>,
    created_until: Option<Timestamp>,
    finished_from: Option<Timestamp>,
    finished_until: Option<Timestamp>,
}

impl TasksQuery {
    /// The query for this page, on the client's side.
    pub fn new(list: &List) -> Self {
        let (order, state) = match list.order {
            ListOrder::Id { states, .. } => {
                let names: Vec<_> = states.iter().map(State::name).collect();
                ("id", Some(names.join(",")))
            }
            ListOrder::Queue { .. } => ("queue", None),
        };
        TasksQuery {
            state,
            order: Some(order.into()),
            after: cursor(&list.order),
            limit: Some(list.limit.to_string()),
            key: list.key.as_ref().map(|key| key.as_str().to_owned()),
            ..TasksQuery::default()
        }
    }

    /// The names and values of the parameters that are set, on the client's side.
    pub fn parameters(&self) -> Vec<(&'static str, String)> {
        let texts = [
            ("state", &self.state),
            ("order", &self.order),
            ("after", &self.after),
            ("limit", &self.limit),
            ("match", &self.text),
            ("key", &self.key),
            ("subqueue", &self.subqueue),
            ("worker", &self.worker),
            ("error", &self.error),
            ("attempts_min", &self.attempts_min),
        ];
        let texts = texts.into_iter().filter_map(|(name, text)| Some((name, text.clone()?)));
        let moments = [
            ("created_from", self.created_from),
            ("created_until", self.created_until),
            ("finished_from", self.finished_from),
            ("finished_until", self.finished_until),
        ];
        let moments = moments.into_iter().filter_map(|(name, at)| Some((name, at?.to_string())));
        let estimate = self.estimate.then(|| ("estimate", true.to_string()));
        texts.chain(moments).chain(estimate).collect()
    }

    /// The page with its states and key, on the server's side.
    pub fn list(&self, tube: TubeName) -> Result<List> {
        let limit = match &self.limit {
            Some(limit) => whole("limit", limit)?,
            None => LIST_TASKS_DEFAULT as u64,
        };
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let key = self.key.as_deref().map(checked_key).transpose()?;
        let list = List { tube, order: self.order()?, limit, key };
        list.check()?;
        Ok(list)
    }

    /// The conditions beyond states and key, on the server's side.
    pub fn filter(&self) -> Result<TaskFilter> {
        let attempts_min = self.attempts_min.as_deref().map(attempts).transpose()?;
        Ok(TaskFilter {
            text: self.text.clone().filter(|text| !text.is_empty()),
            subqueue: self.subqueue.clone(),
            worker: self.worker.clone(),
            error: self.error.clone().filter(|text| !text.is_empty()),
            attempts_min: attempts_min.unwrap_or(0),
            created_from: optional_moment("created_from", self.created_from)?,
            created_until: optional_moment("created_until", self.created_until)?,
            finished_from: optional_moment("finished_from", self.finished_from)?,
            finished_until: optional_moment("finished_until", self.finished_until)?,
        })
    }

    fn order(&self) -> Result<ListOrder> {
        match self.order.as_deref() {
            None | Some("id") => {
                // Other tasks have not finished.
                let is_done = self.finished_from.or(self.finished_until).is_some();
                let default =
                    if is_done { StateSet::EMPTY.with(State::Done) } else { StateSet::UNFINISHED };
                let states = self.state.as_deref().map_or(Ok(default), states)?;
                let after = self.after.as_deref().map(id).transpose()?;
                Ok(ListOrder::Id { states, after })
            }
            Some("queue") if self.state.is_some() => {
                Err(invalid("order=queue lists what could be taken now; leave 'state' out".into()))
            }
            Some("queue") => {
                let after = self.after.as_deref().map(key).transpose()?;
                Ok(ListOrder::Queue { after })
            }
            Some(other) => Err(invalid(format!("'order' is '{other}'; use id or queue"))),
        }
    }
}

/// The value of `after` for a page that begins there; none for the first page.
pub fn cursor(order: &ListOrder) -> Option<String> {
    match order {
        ListOrder::Id { after, .. } => after.map(|id| id.0.to_string()),
        ListOrder::Queue { after } => after.map(|(pri, id)| format!("{pri}:{}", id.0)),
    }
}

impl TaskFilter {
    /// Whether every task meets it.
    pub fn is_empty(&self) -> bool {
        *self == TaskFilter::default()
    }

    /// Bytes that the payload of every task has that meets it, if that is certain.
    pub fn required_run(&self) -> Option<&[u8]> {
        required_run(self.text.as_deref()?)
    }

    /// Whether a task meets it.
    pub fn matches(&self, task: &Task) -> bool {
        let subqueue = self.subqueue.as_deref();
        let finished = task.finished.as_ref().map(Finished::at);
        task.attempts >= self.attempts_min
            && subqueue.is_none_or(|key| task.subqueue.as_deref() == Some(key))
            && self.created_from.is_none_or(|from| task.created >= from)
            && self.created_until.is_none_or(|until| task.created < until)
            && self.finished_from.is_none_or(|from| finished.is_some_and(|at| at >= from))
            && self.finished_until.is_none_or(|until| finished.is_some_and(|at| at < until))
            && self.worker.as_deref().is_none_or(|name| is_of_worker(task, name))
            && self.error.as_deref().is_none_or(|text| has_error(task, text))
            && self.text.as_deref().is_none_or(|text| contains(task.body.as_ref(), text))
    }
}

impl TaskPageAnswer {
    /// A task of a page: a long payload is cut.
    pub fn task(task: &Task) -> TaskAnswer {
        let mut answer = TaskAnswer::with_reason(task, Form::Json);
        answer.failures.clear();
        (answer.result, answer.result_base64) = (None, None);
        if let Some(error) = &mut answer.error {
            error.truncate(error.lines().next().map_or(0, str::len));
        }
        let Some(body) = &task.body else { return answer };
        let text = match msgpack_to_json(body.payload()) {
            Ok(text) if text.len() > LIST_DATA_BYTES_MAX => text,
            _ if body.payload().len() > LIST_DATA_BYTES_MAX => String::new(),
            _ => return answer,
        };
        let end = text.floor_char_boundary(LIST_DATA_BYTES_MAX);
        let data = serde_json::to_string(&text[..end]).ok();
        let data = data.and_then(|text| Payload::from_json(&text).ok());
        TaskAnswer { data, data_base64: None, cut: true, ..answer }
    }
}

/// Whether a payload contains a text: its bytes, or its JSON.
fn contains(body: Option<&Body>, text: &str) -> bool {
    let Some(body) = body else { return false };
    memchr::memmem::find(body.payload(), text.as_bytes()).is_some()
        || msgpack_to_json(body.payload()).is_ok_and(|json| json.contains(text))
}

/// Whether the worker holds the task or finished it, or failed for it last if it is in another state: another worker may hold
/// it without a name.
fn is_of_worker(task: &Task, name: &str) -> bool {
    if let Some(finished) = &task.finished {
        return finished.worker() == Some(name);
    }
    let latest = || task.failures.as_ref()?.last()?.worker;
    let worker = if task.state == State::Taken { task.worker.clone() } else { latest() };
    worker.as_deref() == Some(name)
}

fn has_error(task: &Task, text: &str) -> bool {
    let failures = task.failures.iter().flat_map(|failures| failures.iter());
    failures.into_iter().any(|failure| failure.error.contains(text))
}

fn states(text: &str) -> Result<StateSet> {
    if text.is_empty() {
        return Err(invalid("a list needs at least one state".into()));
    }
    text.split(',').try_fold(StateSet::EMPTY, |states, name| {
        let known = StateSet::STATES.into_iter().find(|state| state.name() == name);
        let unknown = || {
            invalid(format!(
                "'{name}' is no state of a task; use ready, taken, delayed, buried, done"
            ))
        };
        Ok(states.with(known.ok_or_else(unknown)?))
    })
}

fn attempts(text: &str) -> Result<u32> {
    match u32::try_from(whole("attempts_min", text)?) {
        Ok(min @ 1..) => Ok(min),
        _ => Err(invalid(format!("'attempts_min' is {text}; use 1 to {}", u32::MAX))),
    }
}

fn id(text: &str) -> Result<TaskId> {
    text.parse().map(TaskId).map_err(|_| bad_cursor(text))
}

fn key(text: &str) -> Result<(u64, TaskId)> {
    let (pri, id_text) = text.split_once(':').ok_or_else(|| bad_cursor(text))?;
    Ok((pri.parse().map_err(|_| bad_cursor(text))?, id(id_text)?))
}

fn bad_cursor(text: &str) -> Error {
    invalid(format!(
        "'after' is '{text}'; use the `next` of a page in the same order, or leave it out"
    ))
}

fn whole(name: &str, text: &str) -> Result<u64> {
    let allowed =
        if name == "limit" { format!("; use 1 to {LIST_TASKS_MAX}") } else { String::new() };
    parse_whole(text).map_err(|error| invalid(format!("'{name}' is '{text}': {error}{allowed}")))
}

fn invalid(message: String) -> Error {
    Error::Invalid(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(query: TasksQuery) -> Result<List> {
        query.list(TubeName::new("mail").unwrap())
    }

    fn after(order: &str, after: &str) -> TasksQuery {
        let after = Some(after.into());
        TasksQuery { order: Some(order.into()), after, ..TasksQuery::default() }
    }

    #[test]
    fn a_query_without_parameters_lists_all_states_by_id() {
        let first = list(TasksQuery::default()).unwrap();
        assert_eq!(first.order, ListOrder::Id { states: StateSet::UNFINISHED, after: None });
        assert_eq!(first.limit, LIST_TASKS_DEFAULT);
        assert!(TasksQuery::default().filter().unwrap().is_empty());
    }

    #[test]
    fn a_time_of_the_end_lists_done_tasks() {
        let query = |state: Option<&str>| TasksQuery {
            finished_until: Some(1.0),
            state: state.map(String::from),
            ..TasksQuery::default()
        };
        let listed = |state| list(query(state)).unwrap().order;
        let order = |states| ListOrder::Id { states, after: None };
        assert_eq!(listed(None), order(StateSet::EMPTY.with(State::Done)));
        assert_eq!(listed(Some("buried")), order(StateSet::EMPTY.with(State::Buried)));
    }

    #[test]
    fn a_page_survives_the_way_to_the_server() {
        let states = StateSet::EMPTY.with(State::Buried).with(State::Taken);
        let orders = [
            ListOrder::Id { states, after: Some(TaskId(u64::MAX)) },
            ListOrder::Id { states: StateSet::UNFINISHED, after: None },
            ListOrder::Queue { after: Some((u64::MAX, TaskId(0))) },
            ListOrder::Queue { after: None },
        ];
        for order in orders {
            let page = List { tube: TubeName::new("mail").unwrap(), order, limit: 7, key: None };
            assert_eq!(list(TasksQuery::new(&page)), Ok(page));
        }
        let order = ListOrder::Id { states, after: None };
        let key = Some(taskyard_core::Key::new("order:17 & 18").unwrap());
        let page = List { tube: TubeName::new("mail").unwrap(), order, limit: 7, key };
        assert_eq!(list(TasksQuery::new(&page)), Ok(page));
    }

    #[test]
    fn wrong_parameters_are_refused_with_the_allowed_values() {
        let state = TasksQuery { state: Some("dead".into()), ..TasksQuery::default() };
        assert!(list(state).unwrap_err().to_string().contains("use ready, taken"));
        let limit = TasksQuery { limit: Some("1001".into()), ..TasksQuery::default() };
        assert!(list(limit).unwrap_err().to_string().contains("between 1 and 1000"));
        let both = TasksQuery { state: Some("ready".into()), ..after("queue", "0:1") };
        assert!(list(both).is_err());
        for (order, cursor) in [("id", "x"), ("id", "1:2"), ("queue", "1"), ("queue", "1:x")] {
            let refused = list(after(order, cursor)).unwrap_err().to_string();
            assert!(refused.contains("`next` of a page"), "{refused}");
        }
        assert!(list(after("best", "1")).unwrap_err().to_string().contains("use id or queue"));
    }
}
