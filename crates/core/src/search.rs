//! Searches payloads: the command, its reply, and which bytes a payload has if it contains a text.
//!
//! A search compares the bytes of payloads and, if they are MessagePack that JSON can represent, their JSON text. A store knows
//! neither, but it can leave out most payloads: [`required_run`] returns bytes that every payload has that contains the text.

use std::sync::Arc;

use memchr::memmem;

use crate::error::{Error, Result};
use crate::finished::Finished;
use crate::limits::{BATCH_BYTES_MAX, BATCH_TASKS_MAX, SEARCH_RUN_BYTES_MAX, TASK_ID_MAX};
use crate::reason::Reason;
use crate::state::StateSet;
use crate::task::{Task, TaskId};
use crate::tube::TubeName;

/// Shows those of the tasks with consecutive ids whose payloads may contain a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Search {
    /// The tube.
    pub tube: TubeName,
    /// The first id.
    pub first: TaskId,
    /// How many ids, at least one and at most [`BATCH_TASKS_MAX`].
    pub count: usize,
    /// Only tasks in these states.
    pub states: StateSet,
    /// Bytes that a payload must have, at least one and at most [`SEARCH_RUN_BYTES_MAX`].
    pub run: Arc<[u8]>,
}

/// The tasks that a search found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    /// The tasks whose payloads have the bytes, by id. A store may add others that it cannot compare cheaply.
    pub tasks: Vec<Task>,
    /// For each of them, how many tasks up to it were compared, with itself.
    pub ranks: Vec<u64>,
    /// How many tasks were compared: those that have one of the states and are not expired.
    pub compared: u64,
    /// The last of them.
    pub last: Option<TaskId>,
    /// The bytes of their payloads and results.
    pub bytes: u64,
}

impl Search {
    /// The ids.
    pub fn ids(&self) -> impl Iterator<Item = TaskId> + use<> {
        let end = self.first.0.saturating_add(self.count as u64);
        (self.first.0..end).map(TaskId)
    }

    /// Refuses a search without ids, states or bytes, or with too many of them. Stores whose rules run in the database call
    /// this first.
    pub fn check(&self) -> Result<()> {
        if self.states == StateSet::EMPTY {
            return Err(Error::Invalid("a search needs at least one state".into()));
        }
        if !(1..=SEARCH_RUN_BYTES_MAX).contains(&self.run.len()) {
            return Err(Error::Invalid(format!(
                "a search needs between 1 and {SEARCH_RUN_BYTES_MAX} bytes, not {}",
                self.run.len()
            )));
        }
        if self.first.0 > TASK_ID_MAX {
            return Err(Error::Invalid(format!(
                "a search begins at an id of at most {TASK_ID_MAX}"
            )));
        }
        if (1..=BATCH_TASKS_MAX).contains(&self.count) {
            return Ok(());
        }
        Err(Error::Invalid(format!(
            "the number of ids of a search must be between 1 and {BATCH_TASKS_MAX}, not {}",
            self.count
        )))
    }

    /// What is found by a store that compares no payloads and shows all tasks of the ids, in their order.
    pub fn among(&self, shown: Vec<Task>) -> Found {
        let mut found = Found::default();
        let is_listed =
            |task: &Task| self.states.contains(task.state) && task.reason != Reason::Expired;
        for task in shown.into_iter().filter(is_listed) {
            let body = task.body.as_ref().map_or(0, |body| body.bytes() as usize);
            let result = task.finished.as_ref().and_then(Finished::result).map_or(0, <[u8]>::len);
            found.count(task.id, (body + result) as u64);
            found.add(task);
        }
        found
    }
}

impl Found {
    /// Counts a task that is compared.
    pub(crate) fn count(&mut self, id: TaskId, bytes: u64) {
        self.compared += 1;
        self.last = Some(id);
        self.bytes += bytes;
    }

    /// Adds the task that was counted last.
    pub(crate) fn add(&mut self, task: Task) {
        self.tasks.push(task);
        self.ranks.push(self.compared);
    }

    /// Refuses to compare more bytes with one command than one may have.
    pub(crate) fn check_bytes(&self) -> Result<()> {
        let size = usize::try_from(self.bytes).unwrap_or(usize::MAX);
        if size <= BATCH_BYTES_MAX {
            return Ok(());
        }
        Err(shown_too_large(size))
    }

    /// Removes the tasks without a body.
    pub(crate) fn remove_unloaded(&mut self) {
        let mut loaded = self.tasks.iter().map(|task| task.body.is_some());
        self.ranks.retain(|_| loaded.next().unwrap_or(false));
        self.tasks.retain(|task| task.body.is_some());
    }
}

/// How many of these tasks have the bytes in their payloads.
pub fn count_with_run(tasks: &[Task], run: &[u8]) -> usize {
    let run = memmem::Finder::new(run);
    let bodies = tasks.iter().filter_map(|task| task.body.as_ref());
    bodies.filter(|body| run.find(body.payload()).is_some()).count()
}

/// The refusal to show tasks of so many bytes in one reply.
pub fn shown_too_large(size: usize) -> Error {
    Error::TooLarge {
        what: "the size of the tasks to show, in bytes,",
        size,
        limit: BATCH_BYTES_MAX,
        advice: "ask for fewer at a time",
    }
}

/// Bytes that every payload has that contains this text, as its bytes or in its JSON text; `None` if there are none that are
/// certain.
///
/// The JSON text of a payload differs from its bytes outside of strings (punctuation, numbers, `true`, `false`, `null`) and in
/// the escapes of `"`, `\` and control characters. So the result is a part of the text that has neither `"` nor `\`, does not
/// begin with what may be the end of an escape, and cannot be outside of a string: then it is inside of one, as it is stored.
pub fn required_run(text: &str) -> Option<&[u8]> {
    let parts = text.split('"').enumerate();
    let runs = parts.flat_map(|(quote, part)| {
        // What follows a quote is not the end of an escape.
        let is_whole = move |place| quote > 0 && place == 0;
        let runs = part.split('\\').enumerate();
        runs.map(move |(place, run)| if is_whole(place) { run } else { without_escape_end(run) })
    });
    let run = runs.filter(|run| is_of_string(run)).max_by_key(|run| run.len())?;
    Some(&run.as_bytes()[..run.len().min(SEARCH_RUN_BYTES_MAX)])
}

/// The text without the longest beginning that may be the end of an escape: `\n` and its like, or `\u001f`. What remains of a text
/// that is inside of an escape has at most `u` and digits, which may be outside of strings as well.
fn without_escape_end(text: &str) -> &str {
    let is_end = |length: &usize| {
        let Some(end) = text.as_bytes().get(..*length) else { return false };
        match end {
            [b'b' | b'f' | b'n' | b'r' | b't'] => true,
            end => {
                let begin = 5 - end.len();
                end.iter().zip(begin..).all(|(byte, place)| match place {
                    0 => *byte == b'u',
                    1 | 2 => *byte == b'0',
                    3 => matches!(byte, b'0' | b'1'),
                    _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
                })
            }
        }
    };
    let length = (1..=5).rev().find(is_end).unwrap_or(0);
    &text[length..]
}

/// Whether a text without quotes can only be inside of a string. Outside, words are `true`, `false`, `null` and the `e` of numbers.
fn is_of_string(text: &str) -> bool {
    let is_outside = |byte: u8| {
        matches!(byte, b'{' | b'}' | b'[' | b']' | b',' | b':' | b'0'..=b'9' | b'+' | b'-' | b'.')
    };
    let mut words = text.split(|char: char| u8::try_from(char).is_ok_and(is_outside));
    words.any(|word| !["true", "false", "null"].iter().any(|known| known.contains(word)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Command, NewTask, Reply};
    use crate::machine::Machine;
    use crate::task::Body;
    use crate::time::{Span, Timestamp};
    use crate::tube::{Kind, TubeOptions};

    /// All payloads were compared before a search of too many bytes was refused.
    #[test]
    fn a_search_of_too_many_bytes_is_refused_before_it_compares_them() {
        let (mut machine, at) = (Machine::default(), Timestamp::from_micros(1));
        let tube = TubeName::new("large").unwrap();
        let (options, if_not_exists) = (TubeOptions::new(Kind::Fifo), false);
        let create = Command::CreateTube { tube: tube.clone(), options, if_not_exists };
        machine.apply(at, create).unwrap();
        let payload = vec![b'x'; BATCH_BYTES_MAX / 4];
        for _ in 0..8 {
            let tasks = vec![NewTask::new(Body::new(&payload))];
            machine
                .apply(at, Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO })
                .unwrap();
        }
        let (first, states) = (TaskId(0), StateSet::ALL);
        let mut search = Search { tube, first, count: 8, states, run: Arc::from(*b"y") };
        let refused = machine.apply(at, Command::Search(search.clone())).unwrap_err();
        // It stops at the first task that is too many.
        let most = 5 * payload.len();
        assert!(matches!(refused, Error::TooLarge { size, .. } if size == most), "{refused:?}");
        search.count = 4;
        let found = machine.apply(at, Command::Search(search)).unwrap();
        assert!(matches!(found, Reply::Found(found) if found.compared == 4));
    }

    fn run(text: &str) -> Option<&str> {
        required_run(text).map(|run| std::str::from_utf8(run).unwrap())
    }

    #[test]
    fn a_text_of_a_string_is_required_as_it_is() {
        for text in ["order 17", "größe", "x", "me@b.example", "user", " 47", "\u{1}", "TRUE"] {
            assert_eq!(run(text), Some(text));
        }
    }

    #[test]
    fn what_may_be_outside_of_strings_is_not_required() {
        for text in ["", "17", "-1.5e-7", "true", "als", "},{", "[null,false]", "e", "1.", "ll,"] {
            assert_eq!(run(text), None, "{text}");
        }
    }

    #[test]
    fn the_longest_part_between_quotes_and_escapes_is_required() {
        assert_eq!(run(r#""name":"Ada","age":36"#), Some("name"));
        assert_eq!(run(r#"name":"Ed""#), Some("ame"));
        assert_eq!(run(r#"a \"quoted\" word"#), Some("quoted"));
        assert_eq!(run(r"one\nother"), Some("other"));
        assert_eq!(run(r"x\u001fother"), Some("other"));
        assert_eq!(run(r#":true,"x":"#), Some("x"));
    }

    #[test]
    fn the_end_of_an_escape_is_not_required() {
        for (text, required) in [
            ("nabc", "abc"),
            ("uvw", "uvw"),
            ("u001fw", "w"),
            ("u0020w", "u0020w"),
            ("001fw", "w"),
            ("1fw", "w"),
            ("fw", "w"),
            ("bbw", "bw"),
        ] {
            assert_eq!(run(text), Some(required), "{text}");
        }
        assert_eq!(run("n"), None);
        for text in ["u", "u0", "u00", "u001", "u001f", "001", "01", "1f"] {
            assert_eq!(run(text), None, "{text}");
        }
    }

    #[test]
    fn a_long_text_is_cut() {
        let text = "x".repeat(10 * SEARCH_RUN_BYTES_MAX);
        assert_eq!(required_run(&text).unwrap().len(), SEARCH_RUN_BYTES_MAX);
    }
}
