//! The settings of `serve`: from its flags, from environment variables, from a file, or defaults, in this order.
//!
//! There is one list of settings: the flags of `serve`. The key in a file is the long name of the flag, and the variable is
//! `TASKYARD_` with this name in capitals. Start reading at [`ServeSettings::resolve`].

mod file;
mod key;

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
        let (set_by_variables, mut problems) = variable_settings(&keys, variables);
        let in_file = file.as_deref().map_or(Ok(Vec::new()), |file| file::read(file, &keys));
        let in_file = in_file.unwrap_or_else(|found| {
            problems.extend(found);
            Vec::new()
        });
        if !problems.is_empty() {
            return Err(SettingsError::Invalid(problems));
        }
        let chosen = by_precedence([flag_settings(&keys, &matches), set_by_variables, in_file]);
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

/// The settings of environment variables, and those that are wrong.
fn variable_settings(keys: &[SettingKey], variables: Variables<'_>) -> (Vec<Setting>, Vec<String>) {
    let (mut settings, mut problems) = (Vec::new(), Vec::new());
    for key in keys {
        let name = key.variable();
        let Some(value) = variables(&name) else { continue };
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

/// Of each setting the first value in these levels. A setting also replaces those of later levels that cannot be combined with it:
/// `--store` the `data` of a file.
fn by_precedence(levels: [Vec<Setting>; 3]) -> Vec<Setting> {
    let mut chosen: Vec<Setting> = Vec::new();
    for level in levels {
        let is_free = |setting: &Setting| {
            chosen.iter().all(|higher| {
                higher.key.name() != setting.key.name() && !higher.key.excludes(&setting.key)
            })
        };
        let free: Vec<_> = level.into_iter().filter(is_free).collect();
        chosen.extend(free);
    }
    chosen
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
        for key in &keys {
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
    const NEEDED: [&str; 10] = [
        "tls-cert",
        "tls-key",
        "iproto-tls-cert",
        "iproto-tls-key",
        "database",
        "sql",
        "pool",
        "pool-redis",
        "record",
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

    #[test]
    fn a_setting_replaces_those_that_exclude_it_on_lower_levels() {
        let file = "data: tasks\ntoken-file: token\n";
        let variables = [("TASKYARD_TOKEN", "0123456789abcdef")];
        let replaced = resolved("--store memory:", file, &variables).unwrap();
        assert_eq!(of(&replaced, "data").1, Origin::Default);
        assert_eq!(of(&replaced, "token-file"), (&[][..], Origin::Default));
        let refused = resolved("", "data: tasks\nstore: 'memory:'\n", &[]).unwrap_err();
        assert!(
            refused.contains("'--data <DIR>' cannot be used with '--store <URL>'"),
            "{refused}"
        );
        assert!(
            refused.contains("data is set in t.yaml, line 1; store is set in t.yaml, line 2"),
            "{refused}"
        );
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
    fn a_file_with_a_secret_is_for_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.yaml");
        for (text, mode, is_refused) in [
            ("token: 0123456789abcdef\n", 0o644, true),
            ("token: 0123456789abcdef\n", 0o640, false),
            ("store: postgres://a:s3cret@db\n", 0o604, true),
            ("store: postgres://a@db\n", 0o644, false),
            ("http: 127.0.0.1:1\n", 0o646, true),
        ] {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let read = file::read(&path, &SettingKey::all());
            let refused =
                read.is_err_and(|problems| problems.join(" ").contains("restrict it: chmod"));
            assert_eq!(refused, is_refused, "{mode:o} {text}");
        }
    }
}
