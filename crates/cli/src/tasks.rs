//! `tasks` and `task`: find the tasks of a tube, and show everything about one of them.

use clap::{Args, ValueEnum};
use taskyard::{Http, HttpError};
use taskyard_core::limits::LIST_TASKS_MAX;
use taskyard_core::{Command, Failure, Finished, Reply, Span, State, Task, TaskId, TubeName};
use taskyard_wire::Exit;
use taskyard_wire::http::{Form, ReasonAnswer, TaskAction, TaskAnswer, TasksQuery, moment_of};

use crate::connect::{ConnectArgs, block_on, unexpected_reply};
use crate::filter::{self, FilterArgs};
use crate::progress::Progress;
use crate::{estimate, output, payload, peek, units};

/// The column that `--estimate` adds.
const STARTS_COLUMN: usize = 5;

/// Where the values of one task begin.
const INDENT: usize = 14;

/// The arguments of `tasks`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard tasks mail                          the first 100 tasks, by id
  taskyard tasks mail --state buried           what was set aside
  taskyard tasks mail --order queue            in the order in which they will be taken
  taskyard tasks mail --order queue --estimate with the times until they start
  taskyard tasks mail --match ann --json       tasks whose payload contains this text
  taskyard tasks mail --error-match timeout    tasks that failed with this text
  taskyard tasks mail --key report:2030-01     the task with this key
  taskyard tasks mail --worker web1:4711:mailer
  taskyard tasks mail --state taken --limit 5000
  taskyard tasks mail --state done             of a tube with keep_done
  taskyard tasks mail --created-until 2030-01-31T08:00:00Z")]
pub struct TasksArgs {
    /// The tube.
    tube: String,
    #[command(flatten)]
    filter: FilterArgs,
    /// By id, or in the order in which tasks will be taken.
    #[arg(long, value_enum, default_value = "id", conflicts_with_all = ["state", "key"])]
    order: OrderName,
    /// Begin after this task: an id, or the value printed at the end of a list.
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
    /// Show at most this many tasks.
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: usize,
    /// Show when waiting tasks will start.
    #[arg(long)]
    estimate: bool,
    /// Print one JSON object per line.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OrderName {
    Id,
    Queue,
}

/// The arguments of `task`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard task mail 17
  taskyard task mail 17 --json")]
pub struct ShowTaskArgs {
    /// The tube.
    tube: String,
    /// The task.
    id: u64,
    /// Print a JSON object with all fields.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

impl TasksArgs {
    fn query(&self) -> TasksQuery {
        let filter = self.filter.request();
        TasksQuery {
            state: filter.state,
            order: matches!(self.order, OrderName::Queue).then(|| "queue".into()),
            after: self.after.clone(),
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
            estimate: self.estimate,
            ..TasksQuery::default()
        }
    }
}

/// Lists tasks; prints where the list goes on if there are more.
pub fn list(args: TasksArgs) -> anyhow::Result<Exit> {
    let tube = TubeName::new(&args.tube)?;
    anyhow::ensure!(args.limit > 0, "--limit must be at least 1");
    let http = args.connect.http()?;
    let (tasks, next) = block_on(async { Ok(read(&http, &tube, &args).await?) })?;
    if args.json {
        output::json_lines(tasks.iter())?;
    } else if tasks.is_empty() {
        output::note(format!("no such task in {tube}"));
    } else {
        show_table(&tasks, args.estimate)?;
    }
    if let Some(next) = next {
        output::note(format!("more tasks follow: add --after {next}"));
    }
    Ok(Exit::Ok)
}

/// Reads pages until there are enough tasks or no more.
async fn read(
    http: &Http,
    tube: &TubeName,
    args: &TasksArgs,
) -> Result<(Vec<TaskAnswer>, Option<String>), HttpError> {
    let mut query = args.query();
    let (mut tasks, mut scanned) = (Vec::new(), 0);
    let mut progress = Progress::new();
    let states = query.state.as_deref().unwrap_or(TaskAction::Delete.states());
    let compared = filter::compared(http, tube, states, &progress).await;
    loop {
        query.limit = Some((args.limit - tasks.len()).min(LIST_TASKS_MAX).to_string());
        let page = http.tasks(tube, &query).await?;
        scanned += page.scanned;
        progress.of(scanned, compared, "compared");
        tasks.extend(page.tasks);
        if page.next.is_none() || tasks.len() >= args.limit {
            return Ok((tasks, page.next));
        }
        query.after = page.next;
    }
}

fn show_table(tasks: &[TaskAnswer], estimate: bool) -> anyhow::Result<()> {
    let mut head = vec!["id", "state", "pri", "attempts", "age", "worker", "why", "error", "data"];
    if estimate {
        head.insert(STARTS_COLUMN, "starts in");
    }
    let mut table = output::table(&head);
    for task in tasks {
        let mut row = Vec::from(row(task));
        if estimate {
            row.insert(STARTS_COLUMN, estimate::start(task.queue.as_deref()));
        }
        table.add_row(row);
    }
    Ok(output::show(&table)?)
}

fn row(task: &TaskAnswer) -> [String; 9] {
    let data = match (&task.data, &task.data_base64) {
        (Some(data), _) => payload::show_bytes(data.as_msgpack()),
        (None, Some(_)) => "(JSON cannot represent it; --json shows it)".into(),
        (None, None) => String::new(),
    };
    [
        task.id.to_string(),
        taskyard_core::State::from(task.state).name().into(),
        task.pri.to_string(),
        task.attempts.to_string(),
        units::age(task.created),
        task.worker.clone().unwrap_or_default(),
        task.reason.as_ref().map_or_else(String::new, why),
        task.error.as_deref().map_or_else(String::new, output::printable),
        if task.cut { format!("{data} …") } else { data },
    ]
}

/// Why a task does not run, and when the next delivery is allowed if only a rate limit is the cause.
fn why(reason: &ReasonAnswer) -> String {
    match reason.until.filter(|_| reason.name == "rate_limited") {
        Some(next) => {
            format!("{}; next delivery in {}", reason.text, units::in_words(next - units::now()))
        }
        None => reason.text.clone(),
    }
}

/// Shows one task; the exit code is 4 if it does not exist.
pub fn show(args: ShowTaskArgs) -> anyhow::Result<Exit> {
    let tube = TubeName::new(&args.tube)?;
    let id = TaskId(args.id);
    let peek = Command::Peek { tube: tube.clone(), ids: vec![id] };
    let Reply::Tasks(tasks) = args.connect.execute(peek)? else {
        return Err(unexpected_reply("peek"));
    };
    let Some(task) = tasks.first() else {
        output::note(format!("task {id} does not exist in {tube}"));
        return Ok(Exit::NotFound);
    };
    let mut answer = TaskAnswer::with_reason(task, Form::Json);
    if matches!(task.state, State::Ready | State::Delayed)
        && let Some(position) = estimate::positions(&args.connect, &tube, &[id])?.first()
    {
        answer = answer.at_position(position);
    }
    if args.json {
        output::json(&answer)?;
        return Ok(Exit::Ok);
    }
    for (name, value) in details(task, &answer) {
        output::line(format!("{name:<INDENT$}{value}"))?;
    }
    Ok(Exit::Ok)
}

fn details(task: &Task, answer: &TaskAnswer) -> Vec<(&'static str, String)> {
    let now = units::now();
    let mut lines = vec![
        ("task", task.id.to_string()),
        ("state", task.state.name().into()),
        ("why", peek::why(task, now)),
        ("priority", task.pri.to_string()),
        ("attempts", task.attempts.to_string()),
    ];
    let queue = answer.queue.as_deref();
    let about = if queue.is_some_and(|queue| queue.approximate) { "about " } else { "" };
    lines.extend(answer.position.map(|place| ("position", format!("{about}{place}"))));
    lines.extend(queue.map(|queue| ("starts in", estimate::start(Some(queue)))));
    let moments = [
        ("created", Some(task.created)),
        ("due", task.due),
        ("taken", task.start),
        ("lease ends", task.lease_until),
        ("finished", task.finished.as_ref().map(Finished::at)),
        ("expires", Some(task.expires).filter(|_| task.finished.is_none())),
    ];
    for (name, at) in moments {
        if let Some(at) = at.and_then(moment_of) {
            let distance = match at > now {
                true => format!("in {}", units::in_words(at - now)),
                false => format!("{} ago", units::in_words(now - at)),
            };
            lines.push((name, format!("{} ({distance})", units::utc(at))));
        }
    }
    let finished = task.finished.as_ref();
    let worker = task.worker.as_deref().or(finished.and_then(Finished::worker));
    let texts = [
        ("lease", task.lease.map(|lease| lease.0.to_string())),
        ("session", task.session.map(|session| session.to_string())),
        ("worker", worker.map(output::printable)),
        ("ran", finished.map(|finished| ran(finished.run()))),
        ("key", task.key.as_ref().map(|key| output::printable(key.as_str()))),
        ("sub-queue", task.subqueue.as_deref().map(output::printable)),
        ("semaphore pri", task.semaphore_priority.map(|own| own.value().to_string())),
        ("data", Some(payload::show(task.body.as_ref()))),
        ("result", finished.and_then(Finished::result).map(payload::show_bytes)),
    ];
    lines.extend(texts.into_iter().filter_map(|(name, text)| Some((name, text?))));
    lines.extend(
        task.failures.iter().flat_map(|all| all.iter()).map(|one| ("failed", tell(&one, now))),
    );
    lines
}

fn ran(run: Span) -> String {
    units::in_words(run.as_secs_f64())
}

/// A failure: when, which attempt, by which worker, and its error, whose further lines are indented.
fn tell(failure: &Failure, now: f64) -> String {
    let at = failure.at.as_secs_f64();
    let worker = failure.worker.as_deref().map_or_else(String::new, |name| format!(" by {name}"));
    format!(
        "{} ({} ago), attempt {} after {}{}: {}",
        units::utc(at),
        units::in_words(now - at),
        failure.attempt,
        ran(failure.run),
        output::printable(&worker),
        indented(&failure.error)
    )
}

/// A text of several lines, such as a stack trace, with all but the first below the first.
fn indented(text: &str) -> String {
    let lines: Vec<_> = text.trim_end().lines().map(output::printable).collect();
    lines.join(&format!("\n{:INDENT$}", ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stack traces were printed on one line, with `\\u{a}` for each end of a line.
    #[test]
    fn the_lines_of_an_error_stay_lines() {
        let shown = indented("no address\n  in send\u{1b}[2J\n");
        assert_eq!(shown, "no address\n                in send\\u{1b}[2J");
    }
}
