//! Checks the input of a client and builds the command to run.

use std::sync::Arc;
use std::time::Duration;

use taskyard_core::Span;
use taskyard_core::classes::RunRequest;

use crate::config::{Limits, Program};
use crate::protocol::{NameError, Options, StartHead, check_name};
use crate::units::size;

/// A task that is ready to run.
#[derive(Clone, Debug)]
pub struct TaskSpec {
    /// The program.
    pub program: Arc<Program>,
    /// The files by name.
    pub files: Vec<(String, Vec<u8>)>,
    /// Input that a session gets as soon as it runs.
    pub stdin: Vec<u8>,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The result's file, format and media type.
    pub result: Option<(String, String, String)>,
    /// Whether standard error comes as standard output.
    pub stderr_redir: bool,
    /// Whether it is an interactive session.
    pub interactive: bool,
    /// How it asks to be scheduled.
    pub ask: RunRequest,
    /// The client's options, so that another machine can build the same specification.
    pub source: TaskSource,
}

/// What a client sent about how to run its files.
#[derive(Clone, Debug, Default)]
pub struct TaskSource {
    /// The options.
    pub options: Options,
    /// The main file.
    pub start: StartHead,
}

/// Why a task cannot run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TaskSpecError {
    /// A file name is not allowed.
    #[error("{0}")]
    Name(#[from] NameError),
    /// Too much input.
    #[error("the input is larger than {}", size(*.0 as u64))]
    TooLarge(usize),
    /// Too many files.
    #[error("more than {0} files")]
    TooManyFiles(usize),
    /// A file name occurs twice.
    #[error("the file {0:?} was sent twice")]
    Twice(String),
    /// The main file is missing.
    #[error("`main` must name one of the files")]
    Main,
    /// Unknown format.
    #[error("unknown format {0:?}")]
    Format(String),
    /// The duration is invalid.
    #[error("the duration must be a number of seconds")]
    Duration,
    /// Interactive tasks have no duration.
    #[error("an interactive task has no duration")]
    InteractiveDuration,
    /// The program has no interactive mode.
    #[error("this program has no interactive mode")]
    NotInteractive,
}

/// Adds a file within the limits.
pub fn add_file(
    files: &mut Vec<(String, Vec<u8>)>,
    program: &Program,
    limits: &Limits,
    file: (String, Vec<u8>),
) -> Result<(), TaskSpecError> {
    check_name(&file.0, &program.input)?;
    if files.len() >= limits.input_files_max {
        return Err(TaskSpecError::TooManyFiles(limits.input_files_max));
    }
    if files.iter().any(|(name, _)| *name == file.0) {
        return Err(TaskSpecError::Twice(file.0));
    }
    let size: usize = files.iter().map(|(_, bytes)| bytes.len()).sum();
    if size + file.1.len() > limits.input_bytes_max {
        return Err(TaskSpecError::TooLarge(limits.input_bytes_max));
    }
    files.push(file);
    Ok(())
}

impl TaskSpec {
    /// Builds a task from these files; `interactive` ones need none.
    pub fn new(
        program: Arc<Program>,
        files: Vec<(String, Vec<u8>)>,
        options: &Options,
        start: &StartHead,
        interactive: bool,
    ) -> Result<Self, TaskSpecError> {
        let ask = ask(options, interactive)?;
        let template = if interactive { &program.interactive } else { &program.command };
        if template.is_empty() {
            return Err(TaskSpecError::NotInteractive);
        }
        let main = match &start.main {
            Some(main) => files.iter().find(|(name, _)| name == main).map(|(name, _)| name),
            None if files.len() == 1 => files.first().map(|(name, _)| name),
            None => None,
        };
        let needs_main = template.iter().any(|part| part.contains("{main}"));
        if (needs_main || start.main.is_some()) && main.is_none() {
            return Err(TaskSpecError::Main);
        }
        let result = if interactive { None } else { result(&program, options)? };
        let filled = |part: &String| fill(part, main, result.as_ref());
        let mut command: Vec<String> = template.iter().map(filled).collect();
        let level = options.verbosity.unwrap_or(0).min(program.verbosity.len().saturating_sub(1));
        if let Some(more) = program.verbosity.get(level) {
            command.splice(1..1, more.iter().cloned());
        }
        let stderr_redir = options.stderr_redir.unwrap_or(true);
        let stdin = Vec::new();
        let source = TaskSource { options: options.clone(), start: start.clone() };
        Ok(TaskSpec {
            program,
            files,
            stdin,
            command,
            result,
            stderr_redir,
            interactive,
            ask,
            source,
        })
    }
}

fn ask(options: &Options, interactive: bool) -> Result<RunRequest, TaskSpecError> {
    match options.duration {
        Some(_) if interactive => Err(TaskSpecError::InteractiveDuration),
        None if interactive => Ok(RunRequest::Interactive),
        None => Ok(RunRequest::Default),
        Some(seconds) => Ok(RunRequest::Timed(duration(seconds)?)),
    }
}

/// Parses a number of seconds from a client.
pub fn duration(seconds: f64) -> Result<Span, TaskSpecError> {
    let duration = Duration::try_from_secs_f64(seconds.min(1e9));
    duration.map(Span::from).map_err(|_| TaskSpecError::Duration)
}

fn result(
    program: &Program,
    options: &Options,
) -> Result<Option<(String, String, String)>, TaskSpecError> {
    let format = match &options.format {
        Some(format) if !program.formats.contains_key(format) => {
            return Err(TaskSpecError::Format(format.chars().take(40).collect()));
        }
        Some(format) => Some(format.as_str()),
        None => program.default_format(),
    };
    let Some((file, format)) = program.result.as_ref().zip(format) else { return Ok(None) };
    let media = program.formats.get(format).cloned().unwrap_or_default();
    Ok(Some((file.replace("{format}", format), format.into(), media)))
}

fn fill(part: &str, main: Option<&String>, result: Option<&(String, String, String)>) -> String {
    let (file, format) =
        result.map_or(("", ""), |(file, format, _)| (file.as_str(), format.as_str()));
    let part = part.replace("{result}", file).replace("{format}", format);
    // Last, so that nothing in a client's file name is taken for a placeholder.
    part.replace("{main}", main.map_or("", String::as_str))
}
