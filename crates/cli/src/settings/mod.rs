//! The settings of `serve`: from its flags, from environment variables, from a file, or defaults, in this order.
//!
//! There is one list of settings: the flags of `serve`. The key in a file is the long name of the flag, and the variable is
//! `TASKYARD_` with this name in capitals; the exceptions are at the top of `key.rs`. Start reading at
//! [`ServeSettings::resolve`].

mod file;
mod key;
#[cfg(test)]
mod page;
mod unknown;

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::builder::Resettable;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, CommandFactory, FromArgMatches, Parser};

use crate::args::{Cli, Verb};
use crate::failure::UsageError;
use crate::serve::ServeArgs;
use key::{CONFIG, variable};
pub use key::{SettingKey, Shape};
pub use unknown::{unknown_variables, warn_of_unknown_variables};

/// A setting, its values and where they come from.
#[derive(Clone, Debug)]
pub struct Setting {
    pub key: SettingKey,
    pub values: Vec<String>,
    pub origin: Origin,
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    Flag,
    Variable,
    File { line: u64 },
    Default,
}

/// All settings of a server, each with its origin, and the same as arguments.
#[derive(Debug)]
pub struct ServeSettings {
    pub settings: Vec<Setting>,
    pub args: Box<ServeArgs>,
}

/// Why there are no settings.
#[derive(Debug)]
pub enum SettingsError {
    /// The flags are wrong, or ask for help.
    Flags(clap::Error),
    /// A file, a variable, or their combination is wrong.
    Invalid(Vec<String>),
}

/// Reads an environment variable.
type Variables<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// The command line of this process; that of `serve` is completed by environment variables and a file.
pub fn parse_command_line() -> anyhow::Result<Cli> {
    let line: Vec<OsString> = env::args_os().collect();
    if line.get(1).is_none_or(|verb| verb != "serve") {
        return Ok(Cli::parse_from(line));
    }
    match ServeSettings::resolve(&line[2..], None) {
        Ok(settings) => Ok(Cli { verb: Verb::Serve(settings.args) }),
        Err(SettingsError::Flags(error)) => error.exit(),
        Err(SettingsError::Invalid(problems)) => Err(UsageError(problems.join("\n")).into()),
    }
}

impl Setting {
    /// Whether one of its values must not be printed.
    pub fn is_secret(&self) -> bool {
        self.values.iter().any(|value| self.key.is_secret(value))
    }

    /// Where it was set, for messages.
    fn place(&self, file: Option<&Path>) -> String {
        let name = self.key.name();
        match (self.origin, file) {
            (Origin::File { line }, Some(file)) => {
                format!("{name} is set in {}, line {line}", file.display())
            }
            (Origin::Variable, _) => format!("{name} is set by {}", self.key.variable()),
            _ => format!("{name} is set by --{name}"),
        }
    }

    /// Whether a setting of a lower level is not used beside this one. `--store` and `--data` name the same thing, so as flags they
    /// replace each other in a file.
    fn replaces(&self, lower: &Setting) -> bool {
        let names_store = |setting: &Setting| ["data", "store"].contains(&setting.key.name());
        let is_store_flag = self.origin == Origin::Flag
            && matches!(lower.origin, Origin::File { .. })
            && names_store(self)
            && names_store(lower);
        self.key.name() == lower.key.name() || is_store_flag
    }
}

impl ServeSettings {
    /// The settings that these flags of `serve` give in the environment of this process. The file, if it is not named here, is that
    /// of `--config` or `TASKYARD_CONFIG`.
    pub fn resolve(flags: &[OsString], file: Option<&Path>) -> Result<Self, SettingsError> {
        Self::resolve_in(flags, file, &|name| env::var_os(name))
    }

    /// The settings of these flags alone.
    pub fn of_flags(flags: &[OsString]) -> Result<Self, SettingsError> {
        Self::resolve_in(flags, None, &|_| None)
    }

    fn resolve_in(
        flags: &[OsString],
        file: Option<&Path>,
        variables: Variables<'_>,
    ) -> Result<Self, SettingsError> {
        let keys = SettingKey::all();
        let matches = parse_flags(flags, &keys)?;
        let file = file.map(PathBuf::from).or_else(|| config_file(&matches, variables));
        let by_flags = flag_settings(&keys, &matches);
        let (set_by_variables, mut problems) = variable_settings(&keys, &by_flags, variables);
        let in_file = file.as_deref().map_or(Ok(Vec::new()), |file| file::read(file, &keys));
        let in_file = in_file.unwrap_or_else(|found| {
            problems.extend(found);
            Vec::new()
        });
        if !problems.is_empty() {
            return Err(SettingsError::Invalid(problems));
        }
        let chosen = by_precedence([by_flags, set_by_variables, in_file]);
        let problems = conflicts(&chosen, file.as_deref());
        if !problems.is_empty() {
            return Err(SettingsError::Invalid(problems));
        }
        let args = complete(flags, file.as_deref(), &chosen)?;
        let default =
            |key: SettingKey| Setting { values: key.defaults(), key, origin: Origin::Default };
        let settings = keys.into_iter().map(|key| {
            let set = chosen.iter().find(|setting| setting.key.name() == key.name()).cloned();
            set.unwrap_or_else(|| default(key))
        });
        Ok(ServeSettings { settings: settings.collect(), args })
    }
}

/// What the flags alone say. A flag that needs another one may find it in a variable or in the file, so that is not checked yet.
fn parse_flags(flags: &[OsString], keys: &[SettingKey]) -> Result<ArgMatches, SettingsError> {
    let config = Arg::new(CONFIG).long(CONFIG).value_parser(clap::value_parser!(PathBuf));
    let loose = Command::new("serve").no_binary_name(true).disable_help_flag(true).arg(config);
    let loose = loose.args(keys.iter().map(SettingKey::lone_arg));
    loose.try_get_matches_from(flags).map_err(|error| {
        // The complete definition knows the help text, and says more about an error.
        let complete = Cli::command().try_get_matches_from(command_line(flags, &[]));
        SettingsError::Flags(complete.err().unwrap_or(error))
    })
}

fn command_line(flags: &[OsString], more: &[String]) -> Vec<OsString> {
    let start = ["taskyard", "serve"].map(OsString::from);
    start.into_iter().chain(flags.iter().cloned()).chain(more.iter().map(OsString::from)).collect()
}

fn config_file(matches: &ArgMatches, variables: Variables<'_>) -> Option<PathBuf> {
    let flag = matches.get_one::<PathBuf>(CONFIG).cloned();
    let variable = || variables(&variable(CONFIG)).filter(|path| !path.is_empty());
    flag.or_else(|| variable().map(PathBuf::from))
}

fn flag_settings(keys: &[SettingKey], matches: &ArgMatches) -> Vec<Setting> {
    let given =
        keys.iter().filter(|key| matches.value_source(key.id()) == Some(ValueSource::CommandLine));
    let setting = |key: &SettingKey| {
        let raw = matches.get_raw(key.id()).into_iter().flatten();
        let values = match key.shape() {
            Shape::Switch => vec!["true".into()],
            _ => raw.map(|value: &OsStr| value.to_string_lossy().into_owned()).collect(),
        };
        Setting { key: key.clone(), values, origin: Origin::Flag }
    };
    given.map(setting).collect()
}

/// The settings of environment variables that no flag replaces, and those that are wrong. An empty variable sets nothing.
fn variable_settings(
    keys: &[SettingKey],
    by_flags: &[Setting],
    variables: Variables<'_>,
) -> (Vec<Setting>, Vec<String>) {
    let (mut settings, mut problems) = (Vec::new(), Vec::new());
    let has_flag = |key: &SettingKey| by_flags.iter().any(|flag| flag.key.name() == key.name());
    for key in keys.iter().filter(|key| !has_flag(key)) {
        let name = key.variable();
        // An empty token is usually a missing secret, which must not make the server accessible without one.
        let is_set = |value: &OsString| !value.is_empty() || key.name() == "token";
        let Some(value) = variables(&name).filter(is_set) else { continue };
        if key.is_only_flag() {
            problems.push(format!("{name} is not accepted: {}", key.only_flag()));
            continue;
        }
        let Ok(value) = value.into_string() else {
            problems.push(format!("{name} is not text in UTF-8\n  {}", key.accepted()));
            continue;
        };
        let values: Vec<String> = match key.shape() {
            Shape::List => value.split(',').map(|part| part.trim().to_owned()).collect(),
            Shape::Single | Shape::Switch => vec![value],
        };
        for value in &values {
            if let Err(why) = key.check(value) {
                let value = key.shown(value);
                problems.push(format!(
                    "{name}: '{value}' is not accepted: {why}\n  {}",
                    key.accepted()
                ));
            }
        }
        settings.push(Setting { key: key.clone(), values, origin: Origin::Variable });
    }
    (settings, problems)
}

/// Of each setting the first value in these levels.
fn by_precedence(levels: [Vec<Setting>; 3]) -> Vec<Setting> {
    let mut chosen: Vec<Setting> = Vec::new();
    for level in levels {
        let is_used = |setting: &Setting| !chosen.iter().any(|higher| higher.replaces(setting));
        let used: Vec<_> = level.into_iter().filter(is_used).collect();
        chosen.extend(used);
    }
    chosen
}

/// Settings that cannot be combined. To drop one of them could mean to start with another store, or without users.
fn conflicts(chosen: &[Setting], file: Option<&Path>) -> Vec<String> {
    let mut problems = Vec::new();
    for (index, one) in chosen.iter().enumerate() {
        for other in chosen.iter().skip(index + 1).filter(|other| one.key.excludes(&other.key)) {
            // The definition of the flags refuses two flags, and shows the usage.
            if one.origin == Origin::Flag && other.origin == Origin::Flag {
                continue;
            }
            problems.push(format!(
                "{} and {} cannot be combined; {}; {}; keep one of them",
                one.key.name(),
                other.key.name(),
                one.place(file),
                other.place(file),
            ));
        }
    }
    problems
}

/// The arguments of `serve` with all settings, which are checked together.
fn complete(
    flags: &[OsString],
    file: Option<&Path>,
    chosen: &[Setting],
) -> Result<Box<ServeArgs>, SettingsError> {
    let others: Vec<&Setting> = chosen.iter().filter(|set| set.origin != Origin::Flag).collect();
    let more = others.iter().flat_map(|set| set.values.iter().filter_map(|v| set.key.as_flag(v)));
    let mut line = command_line(flags, &more.collect::<Vec<_>>());
    let has_config = flags.iter().any(|flag| flag.to_string_lossy().starts_with("--config"));
    if let Some(file) = file.filter(|_| !has_config) {
        line.extend(["--config".into(), file.as_os_str().to_owned()]);
    }
    // Variables are settings already; a variable that a flag replaces must not be read again.
    let command = Cli::command()
        .mut_subcommand("serve", |serve| serve.mut_args(|arg| arg.env(Resettable::Reset)));
    let parsed = command.try_get_matches_from(line).and_then(|matches| {
        let cli = Cli::from_arg_matches(&matches)?;
        match cli.verb {
            Verb::Serve(args) => Ok(args),
            _ => Err(Cli::command().error(clap::error::ErrorKind::InvalidSubcommand, "not serve")),
        }
    });
    parsed.map_err(|error| {
        let text = error.to_string();
        let named = |set: &&&Setting| {
            let flag = format!("--{}", set.key.name());
            text.split_whitespace().any(|word| word.trim_matches(|c| "'[],".contains(c)) == flag)
        };
        let places: Vec<_> = others.iter().filter(named).map(|set| set.place(file)).collect();
        if places.is_empty() {
            return SettingsError::Flags(error);
        }
        let said = text.split("\n\nUsage:").next().unwrap_or_default();
        let said = said.trim_start_matches("error: ").split_whitespace().collect::<Vec<_>>();
        SettingsError::Invalid(vec![format!("{}; {}", said.join(" "), places.join("; "))])
    })
}

#[cfg(test)]
mod tests;
