//! What a client brought, checked: files, options, and the command that comes of them.

use std::sync::Arc;
use std::time::Duration;

use taskyard_core::Span;
use taskyard_core::classes::Ask;

use crate::config::{Limits, Program};
use crate::protocol::{NameError, Options, StartHead, check_name};
use crate::units::size;

/// A task that is ready to run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The program.
    pub program: Arc<Program>,
    /// The files by name.
    pub files: Vec<(String, Vec<u8>)>,
    /// What a session is told as soon as it runs.
    pub words: Vec<u8>,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The result's file, format and media type.
    pub result: Option<(String, String, String)>,
    /// Whether standard error comes as standard output.
    pub stderr_redir: bool,
    /// Whether a person sits before it.
    pub interactive: bool,
    /// How it wants to run.
    pub ask: Ask,
    /// What it was made of, so that another machine can make the same.
    pub source: Source,
}

/// What a client said about how to run its files.
#[derive(Clone, Debug, Default)]
pub struct Source {
    /// The options.
    pub options: Options,
    /// Which file to begin with.
    pub start: StartHead,
}

/// Why a task cannot run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StageError {
    /// A name is not allowed.
    #[error("{0}")]
    Name(#[from] NameError),
    /// Too much input.
    #[error("the input has more than {}, the most there is", size(*.0 as u64))]
    TooLarge(usize),
    /// Too many files.
    #[error("there are more than {0} files, the most there is")]
    TooManyFiles(usize),
    /// The same name twice.
    #[error("the file {0:?} is there already")]
    Twice(String),
    /// No such file.
    #[error("say which file to start with: `main` must be one of the files")]
    Main,
    /// No such format.
    #[error("{0:?} is no format of this program")]
    Format(String),
    /// No such number of seconds.
    #[error("the duration must be a number of seconds")]
    Duration,
    /// Interactive tasks have none.
    #[error("an interactive task has no duration")]
    InteractiveDuration,
    /// There is no such mode.
    #[error("this program has no interactive mode")]
    NotInteractive,
}

/// Adds a file within the limits.
pub fn add_file(
    files: &mut Vec<(String, Vec<u8>)>,
    program: &Program,
    limits: &Limits,
    file: (String, Vec<u8>),
) -> Result<(), StageError> {
    check_name(&file.0, &program.input)?;
    if files.len() >= limits.input_files_max {
        return Err(StageError::TooManyFiles(limits.input_files_max));
    }
    if files.iter().any(|(name, _)| *name == file.0) {
        return Err(StageError::Twice(file.0));
    }
    let size: usize = files.iter().map(|(_, bytes)| bytes.len()).sum();
    if size + file.1.len() > limits.input_bytes_max {
        return Err(StageError::TooLarge(limits.input_bytes_max));
    }
    files.push(file);
    Ok(())
}

impl Plan {
    /// A task of these files; `interactive` ones need none.
    pub fn new(
        program: Arc<Program>,
        files: Vec<(String, Vec<u8>)>,
        options: &Options,
        start: &StartHead,
        interactive: bool,
    ) -> Result<Self, StageError> {
        let ask = ask(options, interactive)?;
        let template = if interactive { &program.interactive } else { &program.command };
        if template.is_empty() {
            return Err(StageError::NotInteractive);
        }
        let main = match &start.main {
            Some(main) => files.iter().find(|(name, _)| name == main).map(|(name, _)| name),
            None if files.len() == 1 => files.first().map(|(name, _)| name),
            None => None,
        };
        let needs_main = template.iter().any(|part| part.contains("{main}"));
        if (needs_main || start.main.is_some()) && main.is_none() {
            return Err(StageError::Main);
        }
        let result = if interactive { None } else { result(&program, options)? };
        let filled = |part: &String| fill(part, main, result.as_ref());
        let mut command: Vec<String> = template.iter().map(filled).collect();
        let level = options.verbosity.unwrap_or(0).min(program.verbosity.len().saturating_sub(1));
        if let Some(more) = program.verbosity.get(level) {
            command.splice(1..1, more.iter().cloned());
        }
        let stderr_redir = options.stderr_redir.unwrap_or(true);
        let words = Vec::new();
        let source = Source { options: options.clone(), start: start.clone() };
        Ok(Plan { program, files, words, command, result, stderr_redir, interactive, ask, source })
    }
}

fn ask(options: &Options, interactive: bool) -> Result<Ask, StageError> {
    match options.duration {
        Some(_) if interactive => Err(StageError::InteractiveDuration),
        None if interactive => Ok(Ask::Interactive),
        None => Ok(Ask::Default),
        Some(seconds) => Ok(Ask::Timed(duration(seconds)?)),
    }
}

/// A number of seconds that a client said.
pub fn duration(seconds: f64) -> Result<Span, StageError> {
    let duration = Duration::try_from_secs_f64(seconds.min(1e9));
    duration.map(Span::from).map_err(|_| StageError::Duration)
}

fn result(
    program: &Program,
    options: &Options,
) -> Result<Option<(String, String, String)>, StageError> {
    let format = match &options.format {
        Some(format) if !program.formats.contains_key(format) => {
            return Err(StageError::Format(format.chars().take(40).collect()));
        }
        Some(format) => Some(format.as_str()),
        None => program.usual_format(),
    };
    let Some((file, format)) = program.result.as_ref().zip(format) else { return Ok(None) };
    let media = program.formats.get(format).cloned().unwrap_or_default();
    Ok(Some((file.replace("{format}", format), format.into(), media)))
}

fn fill(part: &str, main: Option<&String>, result: Option<&(String, String, String)>) -> String {
    let (file, format) =
        result.map_or(("", ""), |(file, format, _)| (file.as_str(), format.as_str()));
    let part = part.replace("{result}", file).replace("{format}", format);
    // Last, so that nothing in a client's name is taken for a placeholder.
    part.replace("{main}", main.map_or("", String::as_str))
}
