//! Actions on chosen tasks: kick, delete, bury, release, by ids or by the filter of a list.

use serde::{Deserialize, Serialize};
use taskyard_core::limits::{BATCH_TASKS_MAX, LIST_TASKS_MAX};
use taskyard_core::{
    Command, Error, Finish, FinishItem, Holder, Outcome, Result, Span, Task, TaskId, TubeName,
};

use super::is_false;
use super::list::TasksQuery;
use super::names::OutcomeWord;
use super::object;
use super::seconds::optional_span;
use super::whole;

/// What to do with the chosen tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskAction {
    /// Make buried tasks ready again.
    Kick,
    /// Remove tasks in any state.
    Delete,
    /// Set tasks aside, in any state.
    Bury,
    /// End the deliveries of taken tasks.
    Release,
}

/// Which tasks, and how: `ids`, or `filter`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct TaskActionRequest {
    /// The numbers of the tasks in the tube.
    #[serde(
        default,
        deserialize_with = "whole::maybe_list",
        skip_serializing_if = "Option::is_none"
    )]
    pub ids: Option<Vec<u64>>,
    /// Conditions that the tasks meet, as for a page of tasks.
    #[serde(default, deserialize_with = "object::maybe", skip_serializing_if = "Option::is_none")]
    pub filter: Option<TaskFilterRequest>,
    /// The `next` of the answer before, to continue with a filter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Maximum number of tasks that one request changes by a filter; 1000 when absent.
    #[serde(default, deserialize_with = "whole::maybe", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1000))]
    pub limit: Option<u64>,
    /// Only count the tasks that match, and change nothing.
    #[serde(default, skip_serializing_if = "is_false")]
    pub dry_run: bool,
    /// For `kick`: count the attempts from zero again.
    #[serde(default, skip_serializing_if = "is_false")]
    pub reset_attempts: bool,
    /// For `bury`: what went wrong, kept with the tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// For `release`: seconds before the tasks become ready again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<f64>,
}

/// Conditions for tasks. Those that are absent are met by every task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct TaskFilterRequest {
    /// States, separated by commas. Absent: those to which the action applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// The payload contains this text.
    #[serde(default, rename = "match", skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 128))]
    pub key: Option<String>,
    /// The sub-queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subqueue: Option<String>,
    /// The worker that holds the task, or failed for it last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// The error of a failure contains this text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// At least this many attempts.
    #[serde(default, deserialize_with = "whole::maybe", skip_serializing_if = "Option::is_none")]
    pub attempts_min: Option<u64>,
    /// Put at this second since the epoch or later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_from: Option<f64>,
    /// Put before this second since the epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_until: Option<f64>,
    /// Finished at this second since the epoch or later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_from: Option<f64>,
    /// Finished before this second since the epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_until: Option<f64>,
}

/// What an action did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TaskActionAnswer {
    /// How many tasks matched.
    pub matched: u64,
    /// How many of them were changed; others changed meanwhile.
    pub changed: u64,
    /// How many tasks were compared with the filter.
    pub scanned: u64,
    /// The value of `after` to continue; absent if no task follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The outcome of each of the `ids`, in their order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcomes: Option<Vec<OutcomeWord>>,
}

impl TaskAction {
    /// All actions.
    pub const ALL: [TaskAction; 4] =
        [TaskAction::Kick, TaskAction::Delete, TaskAction::Bury, TaskAction::Release];

    /// Its name in paths.
    pub const fn name(self) -> &'static str {
        match self {
            TaskAction::Kick => "kick",
            TaskAction::Delete => "delete",
            TaskAction::Bury => "bury",
            TaskAction::Release => "release",
        }
    }

    /// The states of tasks that it changes, separated by commas.
    pub const fn states(self) -> &'static str {
        match self {
            TaskAction::Kick => "buried",
            TaskAction::Delete => "ready,taken,delayed,buried",
            TaskAction::Bury => "ready,taken,delayed",
            TaskAction::Release => "taken",
        }
    }
}

impl TaskActionRequest {
    /// Kicks these tasks, on the client's side.
    pub fn kick(ids: &[TaskId], reset_attempts: bool) -> Self {
        let ids = Some(ids.iter().map(|id| id.0).collect());
        TaskActionRequest { ids, reset_attempts, ..TaskActionRequest::default() }
    }

    /// Refuses what the action does not have, on the server's side.
    pub fn check(&self, action: TaskAction) -> Result<()> {
        let only = |field: &str, other: TaskAction| {
            Err(Error::Invalid(format!(
                "'{field}' belongs to {}, not to {}; leave it out",
                other.name(),
                action.name()
            )))
        };
        if self.reset_attempts && action != TaskAction::Kick {
            return only("reset_attempts", TaskAction::Kick);
        }
        if self.error.is_some() && action != TaskAction::Bury {
            return only("error", TaskAction::Bury);
        }
        if self.delay.is_some() && action != TaskAction::Release {
            return only("delay", TaskAction::Release);
        }
        let filter = self.filter.as_ref();
        let is_empty = |text: &Option<String>| text.as_deref() == Some("");
        if filter.is_some_and(|filter| is_empty(&filter.text) || is_empty(&filter.error)) {
            // Every task would match, which is rarely meant.
            return Err(Error::Invalid(
                "a text of the filter is empty; leave it out if every task is meant".into(),
            ));
        }
        let count = self.ids.as_ref().map_or(0, Vec::len);
        if count > BATCH_TASKS_MAX {
            return Err(Error::TooLarge {
                what: "the number of tasks in one command",
                size: count,
                limit: BATCH_TASKS_MAX,
                advice: "use several requests",
            });
        }
        match (&self.ids, &self.filter) {
            (Some(_), None) if self.after.is_some() || self.limit.is_some() => Err(Error::Invalid(
                "'after' and 'limit' belong to 'filter'; leave them out with 'ids'".into(),
            )),
            (Some(_), None) | (None, Some(_)) => Ok(()),
            _ => Err(Error::Invalid(
                "give either 'ids' with a list of tasks or 'filter' with conditions, {} for all tasks"
                    .into(),
            )),
        }
    }

    /// The query for the tasks that the filter chooses, on the server's side.
    pub fn query(&self, action: TaskAction) -> TasksQuery {
        let filter = self.filter.clone().unwrap_or_default();
        // The other actions change no done tasks, so nothing matches.
        let is_of_done = filter.finished_from.or(filter.finished_until).is_some();
        let deletes_done = is_of_done && action == TaskAction::Delete;
        let states = if deletes_done { "done" } else { action.states() };
        TasksQuery {
            state: Some(filter.state.unwrap_or_else(|| states.into())),
            after: self.after.clone(),
            limit: Some(self.limit.unwrap_or(LIST_TASKS_MAX as u64).to_string()),
            text: filter.text,
            key: filter.key,
            subqueue: filter.subqueue,
            worker: filter.worker,
            error: filter.error,
            attempts_min: filter.attempts_min.map(|min| min.to_string()),
            created_from: filter.created_from,
            created_until: filter.created_until,
            finished_from: filter.finished_from,
            finished_until: filter.finished_until,
            ..TasksQuery::default()
        }
    }

    /// The command that changes tasks that were just compared, on the server's side. A delivery that was compared is ended only if
    /// it is still the current one.
    pub fn command_for(
        &self,
        action: TaskAction,
        tube: TubeName,
        tasks: &[Task],
    ) -> Result<Command> {
        let ids = tasks.iter().map(|task| task.id).collect();
        let mut command = self.command(action, tube, ids)?;
        if let Command::Finish { items, .. } = &mut command {
            for (item, task) in items.iter_mut().zip(tasks) {
                item.holder = task.lease.map_or(Holder::Any, Holder::Lease);
            }
        }
        Ok(command)
    }

    /// The command that changes these tasks, on the server's side.
    pub fn command(&self, action: TaskAction, tube: TubeName, ids: Vec<TaskId>) -> Result<Command> {
        let finish = match action {
            TaskAction::Kick => {
                let reset_attempts = self.reset_attempts;
                return Ok(Command::KickTasks { tube, ids, reset_attempts });
            }
            TaskAction::Delete => return Ok(Command::Delete { tube, ids, show: false }),
            TaskAction::Bury => match &self.error {
                Some(error) => Finish::fail(error, None),
                None => Finish::Bury,
            },
            TaskAction::Release => {
                let delay = optional_span("delay", self.delay)?.unwrap_or(Span::ZERO);
                Finish::Release { delay, counted: true }
            }
        };
        let item = |id| FinishItem { id, holder: Holder::Any, finish: finish.clone() };
        Ok(Command::Finish { tube, items: ids.into_iter().map(item).collect(), show: false })
    }
}

impl TaskActionAnswer {
    /// The answer for tasks that were named by their ids.
    pub fn of_ids(outcomes: &[Outcome]) -> Self {
        let words: Vec<OutcomeWord> = outcomes.iter().map(OutcomeWord::from).collect();
        let exist = |word: &&OutcomeWord| **word != OutcomeWord::Missing;
        TaskActionAnswer {
            matched: words.iter().filter(exist).count() as u64,
            changed: words.iter().filter(|word| **word == OutcomeWord::Done).count() as u64,
            scanned: words.len() as u64,
            next: None,
            outcomes: Some(words),
        }
    }

    /// The outcomes for the client's caller.
    pub fn into_outcomes(self) -> Result<Vec<Outcome>> {
        let lacking = || Error::Store("the server's answer has no outcomes".into());
        let outcome = |word| match word {
            OutcomeWord::Done => Outcome::Done(None),
            OutcomeWord::Stale => Outcome::Stale,
            OutcomeWord::Missing => Outcome::Missing,
        };
        Ok(self.outcomes.ok_or_else(lacking)?.into_iter().map(outcome).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_names_tasks_in_one_way() {
        let ids = TaskActionRequest { ids: Some(vec![1]), ..TaskActionRequest::default() };
        let filter = Some(TaskFilterRequest::default());
        assert_eq!(ids.check(TaskAction::Delete), Ok(()));
        let both = TaskActionRequest { filter: filter.clone(), ..ids.clone() };
        assert!(both.check(TaskAction::Delete).is_err());
        assert!(TaskActionRequest::default().check(TaskAction::Delete).is_err());
        let limited = TaskActionRequest { limit: Some(1), ..ids.clone() };
        assert!(limited.check(TaskAction::Delete).is_err());
        let all = TaskActionRequest { filter, limit: Some(1), ..TaskActionRequest::default() };
        assert_eq!(all.check(TaskAction::Delete), Ok(()));
        let too_many = Some(vec![0; BATCH_TASKS_MAX + 1]);
        let too_many = TaskActionRequest { ids: too_many, ..TaskActionRequest::default() };
        assert!(matches!(too_many.check(TaskAction::Delete), Err(Error::TooLarge { .. })));
    }

    /// Other actions do not change done tasks, but a dry run counted them.
    #[test]
    fn a_time_of_the_end_chooses_done_tasks_for_deletes() {
        let filter =
            TaskFilterRequest { finished_until: Some(1.0), ..TaskFilterRequest::default() };
        let request = TaskActionRequest { filter: Some(filter), ..TaskActionRequest::default() };
        let states = |action| request.query(action).state;
        assert_eq!(states(TaskAction::Delete).as_deref(), Some("done"));
        assert_eq!(states(TaskAction::Kick).as_deref(), Some("buried"));
        assert_eq!(states(TaskAction::Bury).as_deref(), Some("ready,taken,delayed"));
    }

    // A script with an empty variable removed every task of a tube.
    #[test]
    fn an_empty_text_is_not_a_filter() {
        let text = Some(String::new());
        for filter in [
            TaskFilterRequest { text: text.clone(), ..TaskFilterRequest::default() },
            TaskFilterRequest { error: text.clone(), ..TaskFilterRequest::default() },
        ] {
            let filter = Some(filter);
            let request = TaskActionRequest { filter, ..TaskActionRequest::default() };
            assert!(request.check(TaskAction::Delete).is_err());
        }
    }

    #[test]
    fn a_filter_is_an_object() {
        let read = |json: &str| serde_json::from_str::<TaskActionRequest>(json);
        let filter =
            read(r#"{"filter": {"state": "buried", "attempts_min": 2.0}}"#).unwrap().filter;
        assert_eq!(filter.unwrap().attempts_min, Some(2));
        for wrong in [r#"{"filter": [null]}"#, r#"{"filter": 1}"#, r#"{"filter": {"x": 1}}"#] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn options_of_other_actions_are_refused() {
        let ids = Some(vec![1]);
        let reset = TaskActionRequest { ids, reset_attempts: true, ..TaskActionRequest::default() };
        for action in TaskAction::ALL {
            assert_eq!(reset.check(action).is_ok(), action == TaskAction::Kick, "{action:?}");
        }
    }
}
