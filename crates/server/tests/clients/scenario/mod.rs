//! The scenario that every client plays: cases made of steps, each with the answer that
//! tarantool/queue gives. Programs in other languages get it as JSON.

mod batches;
mod creating;
mod kinds;
mod life;
mod payloads;
mod refusals;
mod semaphores;
mod sessions;
mod spaces;
mod users;
mod waiting;
mod wrong;

use std::panic::Location;

use serde::Serialize;
use serde_json::{Value, json};

pub use users::{LIMITED_TUBE, LIMITED_USER, PASSWORD, USER};

/// The five kinds of tubes.
const KINDS: [&str; 5] = ["fifo", "fifottl", "limfifottl", "utube", "utubettl"];
/// Those that know priorities and times.
const TTL_KINDS: [&str; 3] = ["fifottl", "limfifottl", "utubettl"];

/// What not every client can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ability {
    /// Several requests under way on one connection.
    Pipelining,
    /// Strings that are no text: the names of sessions.
    Bytes,
    /// Reading a space by its name from a server that is not of the newest.
    Spaces,
    /// Telling the code of a refusal, beside its text.
    Codes,
}

/// An independent case with new connections and new tubes.
#[derive(Debug, Serialize)]
pub struct Case {
    pub name: String,
    pub steps: Vec<Step>,
    /// Whether strings may be no text.
    bytes: bool,
    #[serde(skip)]
    needs: Vec<Ability>,
    #[serde(skip)]
    tube: String,
}

/// One thing that a client does, and what has to come of it.
#[derive(Debug, Serialize)]
pub struct Step {
    #[serde(flatten)]
    pub action: Action,
    /// The whole answer, in the shape that CALL gives it. `{"kept": name}` stands for what an earlier
    /// step kept.
    pub gives: Option<Value>,
    /// The code of the refusal and a part of its text.
    pub fails: Option<(u32, String)>,
    /// The name under which later steps find the first value of the answer.
    pub keeps: Option<&'static str>,
    /// Where it stands in the scenario, for the message when it goes wrong.
    pub place: String,
}

/// What a client can do. A connection is made when it is first named.
#[derive(Debug, Serialize)]
#[serde(tag = "do", rename_all = "lowercase")]
pub enum Action {
    /// Connects as this user.
    Connect { on: &'static str, user: String, password: String },
    /// Ends a connection.
    Close { on: &'static str },
    /// Calls a function and waits for the answer.
    Call { on: &'static str, function: String, args: Value },
    /// Sends Lua and waits for the answer.
    Eval { on: &'static str, expression: String, args: Value },
    /// Counts the rows of a space.
    Select { on: &'static str, space: &'static str },
    /// Calls a function whose answer takes its time, and goes on once the server has the request.
    Start { on: &'static str, function: String, args: Value, label: &'static str },
    /// Waits for the answer to what was started.
    Await { label: &'static str },
}

/// All cases that a client with these inabilities can play.
pub fn cases(cannot: &[Ability]) -> Vec<Case> {
    let all = [
        spaces::cases(),
        life::cases(),
        kinds::cases(),
        waiting::cases(),
        sessions::cases(),
        batches::cases(),
        payloads::cases(),
        creating::cases(),
        refusals::cases(),
        semaphores::cases(),
        users::cases(),
    ];
    able(all.into_iter().flatten(), cannot)
}

/// Cases in which a client with these inabilities has to find a mistake.
pub fn wrong_cases(cannot: &[Ability]) -> Vec<Case> {
    able(wrong::cases(), cannot)
}

fn able(cases: impl IntoIterator<Item = Case>, cannot: &[Ability]) -> Vec<Case> {
    let able = |case: &Case| !case.needs.iter().any(|need| cannot.contains(need));
    cases.into_iter().filter(able).collect()
}

impl Case {
    fn new(name: impl Into<String>) -> Self {
        let (steps, needs) = (Vec::new(), Vec::new());
        Case { name: name.into(), steps, bytes: false, needs, tube: String::new() }
    }

    /// A case about one tube, which its first step creates.
    #[track_caller]
    fn with_tube(name: &str, tube: &str, kind: &str, options: &str) -> Self {
        let mut case = Case::new(format!("{name} ({kind})"));
        case.tube = format!("{tube}_{kind}");
        let create = format!("queue.create_tube('{}', '{kind}', {options})", case.tube);
        case.eval("a", create, json!([]));
        case
    }

    fn needs(mut self, ability: Ability) -> Self {
        self.bytes |= ability == Ability::Bytes;
        self.needs.push(ability);
        self
    }

    /// A method of the case's tube.
    #[track_caller]
    fn verb(&mut self, on: &'static str, verb: &str, args: Value) -> &mut Step {
        let function = self.function(verb);
        self.call(on, function, args)
    }

    /// A method of the case's tube whose answer is awaited later.
    #[track_caller]
    fn start(&mut self, on: &'static str, verb: &str, args: Value, label: &'static str) {
        let function = self.function(verb);
        self.step(Action::Start { on, function, args, label });
    }

    #[track_caller]
    fn awaits(&mut self, label: &'static str) -> &mut Step {
        self.step(Action::Await { label })
    }

    #[track_caller]
    fn call(&mut self, on: &'static str, function: impl Into<String>, args: Value) -> &mut Step {
        self.step(Action::Call { on, function: function.into(), args })
    }

    #[track_caller]
    fn eval(&mut self, on: &'static str, lua: impl Into<String>, args: Value) -> &mut Step {
        self.step(Action::Eval { on, expression: lua.into(), args })
    }

    #[track_caller]
    fn select(&mut self, on: &'static str, space: &'static str) -> &mut Step {
        self.step(Action::Select { on, space })
    }

    #[track_caller]
    fn connect(&mut self, on: &'static str, user: &str, password: &str) -> &mut Step {
        self.step(Action::Connect { on, user: user.into(), password: password.into() })
    }

    #[track_caller]
    fn close(&mut self, on: &'static str) {
        self.step(Action::Close { on });
    }

    /// Compares the counters of the case's tube; those that are not named are zero.
    #[track_caller]
    fn counts(&mut self, tasks: &[(&str, u64)], calls: &[(&str, u64)]) {
        let tube = json!([self.tube]);
        self.call("a", "queue.statistics", tube).gives(json!([statistics(tasks, calls)]));
    }

    fn function(&self, verb: &str) -> String {
        format!("queue.tube.{}:{verb}", self.tube)
    }

    #[track_caller]
    fn step(&mut self, action: Action) -> &mut Step {
        let caller = Location::caller();
        let file = caller.file().rsplit('/').next().unwrap_or_default();
        let place = format!("{file}:{}", caller.line());
        self.steps.push(Step { action, gives: None, fails: None, keeps: None, place });
        self.steps.last_mut().expect("one was pushed")
    }
}

impl Step {
    fn gives(&mut self, answer: Value) -> &mut Self {
        self.gives = Some(answer);
        self
    }

    /// The answer is this one task.
    fn gives_task(&mut self, id: u64, state: &str, data: impl Into<Value>) -> &mut Self {
        self.gives(json!([[id, state, data.into()]]))
    }

    fn fails(&mut self, code: u32, text: impl Into<String>) {
        self.fails = Some((code, text.into()));
    }

    fn keeps(&mut self, name: &'static str) {
        self.keeps = Some(name);
    }
}

/// The map of all seventeen counters.
fn statistics(tasks: &[(&str, u64)], calls: &[(&str, u64)]) -> Value {
    let all_tasks = ["ready", "taken", "buried", "delayed", "done", "total"];
    let all_calls =
        ["ack", "bury", "delete", "kick", "put", "release", "take", "touch", "ttl", "ttr", "delay"];
    json!({ "tasks": filled(&all_tasks, tasks), "calls": filled(&all_calls, calls) })
}

fn filled(names: &[&str], counts: &[(&str, u64)]) -> Value {
    let unknown = counts.iter().find(|(name, _)| !names.contains(name));
    assert_eq!(unknown, None, "a counter that does not exist");
    let count = |wanted| counts.iter().find(|(name, _)| *name == wanted).map_or(0, |(_, n)| *n);
    names.iter().map(|name| (name.to_string(), json!(count(*name)))).collect()
}
