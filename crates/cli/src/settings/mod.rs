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
mod tests {
    use std::collections::HashMap;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// What a flag with this value name accepts.
    fn sample(key: &SettingKey) -> &'static str {
        match (key.name(), key.value_name()) {
            ("iproto", _) => "off",
            ("session-idle", _) => "5m",
            (_, "ADDR") => "127.0.0.1:1",
            (_, "SIZE") => "2MB",
            (_, "N") => "7",
            (_, "URL") => "http://box7:7070",
            _ => "a-word",
        }
    }

    fn resolved(
        flags: &str,
        file: &str,
        variables: &[(&str, &str)],
    ) -> Result<ServeSettings, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.yaml");
        fs::write(&path, file).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let flags: Vec<OsString> = flags.split_whitespace().map(OsString::from).collect();
        let variables: HashMap<_, _> = variables.iter().copied().collect();
        let variable = |name: &str| variables.get(name).map(OsString::from);
        let shown = folder.path().display().to_string() + "/";
        let result = ServeSettings::resolve_in(&flags, Some(&path), &variable);
        result.map_err(|error| match error {
            SettingsError::Flags(error) => error.to_string(),
            SettingsError::Invalid(problems) => problems.join("\n").replace(&shown, ""),
        })
    }

    fn of<'a>(resolved: &'a ServeSettings, name: &str) -> (&'a [String], Origin) {
        let setting = resolved.settings.iter().find(|setting| setting.key.name() == name).unwrap();
        (&setting.values, setting.origin)
    }

    /// A new flag of `serve` can be set by the file and by a variable without more code, or this test fails.
    #[test]
    fn every_flag_can_be_set_by_a_file_and_by_a_variable() {
        let keys = SettingKey::all();
        let command = Cli::command();
        let serve = command.find_subcommand("serve").unwrap();
        let flags = serve.get_arguments().filter(|arg| !arg.is_positional()).count();
        assert_eq!(serve.get_arguments().count(), flags, "an argument has no name");
        assert_eq!(keys.len(), flags - 1, "all but --config");
        let only_flags = keys.iter().filter(|key| key.is_only_flag()).map(SettingKey::name);
        assert_eq!(only_flags.collect::<Vec<_>>(), ["accept-loss", "record", "record-max"]);
        for key in keys.iter().filter(|key| !key.is_only_flag()) {
            let (value, written) = match key.shape() {
                Shape::Switch => ("true", "true".into()),
                Shape::Single => (sample(key), sample(key).to_owned()),
                Shape::List => (sample(key), format!("[{}]", sample(key))),
            };
            // What the setting requires is not the question here.
            let needed: String = keys
                .iter()
                .filter(|other| other.name() != key.name() && !other.excludes(key))
                .filter(|other| NEEDED.contains(&other.name()))
                .map(|other| match other.shape() {
                    Shape::List => format!("{}: [{}]\n", other.name(), sample(other)),
                    _ => format!("{}: {}\n", other.name(), sample(other)),
                })
                .collect();
            let by_file =
                resolved("", &format!("{}: {written}\n{needed}", key.name()), &[]).unwrap();
            let (values, origin) = of(&by_file, key.name());
            assert!(values[0].ends_with(value), "{}: {values:?}", key.name());
            assert_eq!(origin, Origin::File { line: 1 }, "{}", key.name());
            let variable = key.variable();
            let by_variable = resolved("", &needed, &[(&variable, value)]).unwrap();
            assert_eq!(of(&by_variable, key.name()), (&[value.to_owned()][..], Origin::Variable));
        }
    }

    /// Settings that others require.
    const NEEDED: [&str; 9] = [
        "tls-cert",
        "tls-key",
        "iproto-tls-cert",
        "iproto-tls-key",
        "database",
        "sql",
        "pool",
        "pool-redis",
        "peer",
    ];

    #[test]
    fn a_flag_replaces_a_variable_and_a_variable_the_file() {
        let file = "memory: 1MB\nmetrics-tubes: 5\nseries-tubes: 6\nstrict-tubes: true\n";
        let variables = [
            ("TASKYARD_METRICS_TUBES", "50"),
            ("TASKYARD_SERIES_TUBES", "60"),
            ("TASKYARD_STRICT_TUBES", "false"),
        ];
        let resolved = resolved("--series-tubes 600", file, &variables).unwrap();
        assert_eq!(of(&resolved, "series-tubes"), (&["600".to_owned()][..], Origin::Flag));
        assert_eq!(of(&resolved, "metrics-tubes"), (&["50".to_owned()][..], Origin::Variable));
        assert_eq!(of(&resolved, "memory"), (&["1MB".to_owned()][..], Origin::File { line: 1 }));
        assert_eq!(of(&resolved, "strict-tubes").1, Origin::Variable);
        assert_eq!(of(&resolved, "tubes-per-user").1, Origin::Default);
        assert_eq!(resolved.args.problems(), Vec::<String>::new());
    }

    /// A container with the flag `--data` and the variable TASKYARD_STORE started on an empty folder, and `--iproto-users` beside
    /// `users` in the file without the users: a setting of a lower level was dropped silently.
    #[test]
    fn settings_that_exclude_each_other_are_refused_across_levels() {
        const TOKEN: (&str, &str) = ("TASKYARD_TOKEN", "0123456789abcdef");
        const STORE: (&str, &str) = ("TASKYARD_STORE", "postgres://db/queue");
        const NO_VARIABLE: &[(&str, &str)] = &[];
        for (flags, file, variables, said) in [
            (
                "--data /data",
                "",
                &[STORE][..],
                "data and store cannot be combined; data is set by --data; store is set by TASKYARD_STORE; keep one of them",
            ),
            (
                "--token-file t",
                "",
                &[TOKEN][..],
                "token-file is set by --token-file; token is set by TASKYARD_TOKEN",
            ),
            (
                "--iproto-users u",
                "users: u.toml\n",
                NO_VARIABLE,
                "iproto-users is set by --iproto-users; users is set in t.yaml, line 1",
            ),
            (
                "",
                "data: tasks\n",
                &[STORE][..],
                "store is set by TASKYARD_STORE; data is set in t.yaml, line 1",
            ),
            (
                "",
                "data: tasks\nstore: 'memory:'\n",
                NO_VARIABLE,
                "data is set in t.yaml, line 1; store is set in t.yaml, line 2",
            ),
            // The file has the same setting as the flag, and the variable another one.
            (
                "--data /data",
                "data: tasks\n",
                &[STORE][..],
                "data is set by --data; store is set by TASKYARD_STORE",
            ),
        ] {
            let refused = resolved(flags, file, variables).unwrap_err();
            assert!(refused.contains(said), "{refused}");
        }
        let refused = resolved("--data a --store memory:", "", NO_VARIABLE).unwrap_err();
        assert!(refused.contains("cannot be used with"), "{refused}");
    }

    #[test]
    fn flags_of_the_store_replace_those_of_the_file() {
        let replaced = resolved("--store memory:", "data: tasks\n", &[]).unwrap();
        assert_eq!(of(&replaced, "data").1, Origin::Default);
        let replaced = resolved("--data a", "store: 'memory:'\n", &[]).unwrap();
        assert_eq!(of(&replaced, "store"), (&[][..], Origin::Default));
    }

    /// Three variables had another meaning before every flag had one: clients read them, and a user who had exported one for a
    /// client started another server.
    #[test]
    fn variables_of_clients_are_not_read() {
        let variables = [
            ("TASKYARD_TOKEN_FILE", "client-token"),
            ("TASKYARD_POOL_REDIS", "redis://db"),
            ("TASKYARD_USERS", "users.toml"),
        ];
        let alone = resolved("", "", &variables).unwrap();
        for name in ["token-file", "pool-redis", "users"] {
            assert_eq!(of(&alone, name), (&[][..], Origin::Default), "{name}");
        }
        let set = resolved("", "", &[("TASKYARD_SERVER_USERS", "u.toml")]).unwrap();
        assert_eq!(of(&set, "users"), (&["u.toml".to_owned()][..], Origin::Variable));
    }

    /// A trace that exists is refused, so a server with `record` in its file started once and never again; and damage would have
    /// been accepted at every start.
    #[test]
    fn one_time_flags_are_only_for_the_command_line() {
        let refused = resolved("", "memory: 1MB\naccept-loss: true\n", &[]).unwrap_err();
        assert!(refused.contains("line 2: accept-loss is not accepted"), "{refused}");
        let refused = resolved("", "", &[("TASKYARD_RECORD", "t.trace")]).unwrap_err();
        assert!(
            refused.contains("TASKYARD_RECORD is not accepted: only on the command line: --record"),
            "{refused}"
        );
        let given = resolved("--accept-loss --record t.trace", "", &[]).unwrap();
        assert_eq!(of(&given, "record"), (&["t.trace".to_owned()][..], Origin::Flag));
    }

    /// `TASKYARD_MEMORY=` of a template without a value kept the server from starting, as did a wrong variable that a flag
    /// replaces.
    #[test]
    fn empty_and_replaced_variables_are_not_read() {
        let variables = [("TASKYARD_MEMORY", ""), ("TASKYARD_HTTP", "wrong")];
        let read = resolved("--http 127.0.0.1:1", "memory: 2MB\n", &variables).unwrap();
        assert_eq!(of(&read, "memory").1, Origin::File { line: 1 });
        assert_eq!(of(&read, "http").1, Origin::Flag);
        let empty_token = resolved("", "", &[("TASKYARD_TOKEN", "")]).unwrap();
        assert_eq!(of(&empty_token, "token").1, Origin::Variable);
        assert!(!empty_token.args.problems().is_empty());
        let refused = resolved("", "", &[("TASKYARD_HOST_NAME", "a,,b")]).unwrap_err();
        assert!(refused.contains("TASKYARD_HOST_NAME: '' is not accepted"), "{refused}");
        assert!(resolved("", "host-name: [a, '']\n", &[]).is_err());
    }

    #[test]
    fn a_missing_other_half_is_named() {
        let refused = resolved("", "sql: tasks.json\n", &[]).unwrap_err();
        assert!(refused.contains("--database <URL>; sql is set in t.yaml, line 1"), "{refused}");
        // The other half comes from a variable.
        resolved("", "sql: t.json\n", &[("TASKYARD_DATABASE", "postgres://db")]).unwrap();
    }

    #[test]
    fn paths_start_at_the_folder_of_the_file() {
        let resolved =
            resolved("--users u.toml", "data: tasks\ntls-cert: /c\ntls-key: k\n", &[]).unwrap();
        let (data, _) = of(&resolved, "data");
        assert!(data[0].starts_with('/') && data[0].ends_with("/tasks"), "{data:?}");
        assert_eq!(of(&resolved, "tls-cert").0, ["/c"]);
        assert_eq!(of(&resolved, "users").0, ["u.toml"]);
    }

    #[test]
    fn wrong_lines_are_named_with_what_is_accepted() {
        for (text, said) in [
            (
                "# a\nmetrics_tubes: 5\n",
                "t.yaml, line 2: 'metrics_tubes' is no setting; the nearest one is metrics-tubes",
            ),
            ("config: x\n", "'config' is no setting"),
            (
                "http: 7070\n",
                "line 1: http: '7070' is not accepted: invalid socket address syntax\n  http: ADDR. Address for HTTP",
            ),
            (
                "strict-tubes: perhaps\n",
                "strict-tubes: 'perhaps' is not accepted: it is neither true nor false",
            ),
            ("contract: a.yaml\n", "line 1: contract: it takes a list, such as [a, b]"),
            ("memory: [1MB]\n", "line 1: memory: it takes one value"),
            ("\nmemory:\n  most: 1MB\n", "line 2: memory: it takes one value"),
            ("memory:\n", "memory: "),
            ("memory: 1MB\nmemory: 2MB\n", "memory"),
            ("- memory\n", "t.yaml: "),
            ("memory: 'a\n", "memory"),
        ] {
            let refused = resolved("", text, &[]).unwrap_err();
            assert!(refused.contains(said), "{text:?}: {refused}");
        }
        let refused =
            resolved("", "a: 1\nb: 2\nhttp: x\n", &[("TASKYARD_MEMORY", "much")]).unwrap_err();
        assert_eq!(refused.matches("no setting").count(), 2, "{refused}");
        assert!(refused.contains("TASKYARD_MEMORY: 'much' is not accepted"), "{refused}");
    }

    #[test]
    fn no_error_shows_a_secret() {
        for text in [
            "token: [s3cret-s3cret]\n",
            "token: {s3cret-s3cret: 1}\n",
            "token: 's3cret-s3cret\n",
            "token: s3cret-s3cret: x\n",
            "store: postgres://ann:s3cret@db\ndata: x\n",
            "peer: [ann:s3cret@, x]\nstore: 's3cret\n",
        ] {
            let refused = resolved("", text, &[]).unwrap_err();
            assert!(!refused.contains("s3cret"), "{text}: {refused}");
        }
    }

    #[test]
    fn yaml_words_are_texts() {
        let file =
            "iproto: off\ntoken: 12345678901234567890\nhost-name: [yes, 1e3, 'null']\n# end\n";
        let resolved = resolved("", file, &[]).unwrap();
        assert_eq!(of(&resolved, "iproto").0, ["off"]);
        assert_eq!(of(&resolved, "token").0, ["12345678901234567890"]);
        assert_eq!(of(&resolved, "host-name").0, ["yes", "1e3", "null"]);
        for nothing in ["", "# only\n", "---\n"] {
            assert!(super::tests::resolved("", nothing, &[]).is_ok());
        }
    }

    #[test]
    fn a_file_with_a_secret_is_not_for_every_user() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.yaml");
        for (text, mode, is_refused) in [
            ("token: 0123456789abcdef\n", 0o644, true),
            ("token: 0123456789abcdef\n", 0o640, false),
            ("store: postgres://a:s3cret@db\n", 0o604, true),
            ("store: postgres://a@db\n", 0o644, false),
            ("http: 127.0.0.1:1\n", 0o646, true),
            ("http: 127.0.0.1:1\n", 0o664, true),
        ] {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let read = file::read(&path, &SettingKey::all());
            let refused = read.is_err_and(|problems| problems.join(" ").contains("chmod "));
            assert_eq!(refused, is_refused, "{mode:o} {text}");
        }
    }
}
