//! A setting of `serve`: everything about it comes from the definition of its flag.

use std::any::TypeId;
use std::error::Error as _;
use std::path::PathBuf;

use clap::builder::Resettable;
use clap::{Arg, ArgAction, Command, CommandFactory};

use crate::args::Cli;
use crate::migrate::without_password;

/// The flag that names the file itself.
pub const CONFIG: &str = "config";
/// What is shown instead of a secret.
pub const HIDDEN: &str = "(hidden)";

/// Settings with another variable than the rule gives: client commands read that one, for a token of their own, the Redis of a
/// pool, or the file that they change. Exported for a client, it must not change a server.
const OTHER_VARIABLES: [(&str, &str); 3] = [
    ("token-file", "TASKYARD_SERVER_TOKEN_FILE"),
    ("pool-redis", "TASKYARD_SERVER_POOL_REDIS"),
    ("users", "TASKYARD_SERVER_USERS"),
];

/// Flags for one start: damage is not accepted for ever, and a trace that exists is refused. They cannot be set elsewhere.
const ONLY_FLAGS: [&str; 3] = ["accept-loss", "record", "record-max"];

/// How the value of a setting is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// `true` or `false`.
    Switch,
    /// One value.
    Single,
    /// A list, as the flag may be repeated.
    List,
}

/// A setting, named as the flag without its dashes.
#[derive(Clone, Debug)]
pub struct SettingKey {
    arg: Arg,
    /// The settings that cannot be combined with it.
    conflicts: Vec<String>,
}

impl SettingKey {
    /// All settings, in the order of the help text of `serve`.
    pub fn all() -> Vec<SettingKey> {
        let command = Cli::command();
        let Some(serve) = command.find_subcommand("serve") else { return Vec::new() };
        let args = serve.get_arguments().filter(|arg| arg.get_long().is_some_and(|l| l != CONFIG));
        let mut keys: Vec<_> =
            args.map(|arg| SettingKey { arg: arg.clone(), conflicts: Vec::new() }).collect();
        // The definition names a conflict at one of the two flags.
        for index in 0..keys.len() {
            let name = keys[index].name().to_owned();
            for other in serve.get_arg_conflicts_with(&keys[index].arg) {
                let other = other.get_long().unwrap_or_default();
                keys[index].conflicts.push(other.to_owned());
                let other = keys.iter_mut().find(|key| key.name() == other);
                other.into_iter().for_each(|key| key.conflicts.push(name.clone()));
            }
        }
        keys
    }

    /// Its name, which is the key in a file.
    pub fn name(&self) -> &str {
        self.arg.get_long().unwrap_or_default()
    }

    /// The name of its environment variable.
    pub fn variable(&self) -> String {
        variable(self.name())
    }

    /// Whether it cannot be set in a file or by a variable.
    pub fn is_only_flag(&self) -> bool {
        ONLY_FLAGS.contains(&self.name())
    }

    /// Where such a setting is accepted, for messages.
    pub fn only_flag(&self) -> String {
        format!("only on the command line: --{}", self.name())
    }

    /// How its value is written.
    pub fn shape(&self) -> Shape {
        match self.arg.get_action() {
            ArgAction::SetTrue => Shape::Switch,
            ArgAction::Append => Shape::List,
            _ => Shape::Single,
        }
    }

    /// Whether its value is a path of a file or a folder.
    pub fn is_path(&self) -> bool {
        self.arg.get_value_parser().type_id() == TypeId::of::<PathBuf>()
    }

    /// Whether this setting and another one cannot be combined.
    pub fn excludes(&self, other: &SettingKey) -> bool {
        self.conflicts.iter().any(|name| name == other.name())
    }

    /// Its default values.
    pub fn defaults(&self) -> Vec<String> {
        if self.shape() == Shape::Switch {
            return vec!["false".into()];
        }
        let values = self.arg.get_default_values().iter();
        values.map(|value| value.to_string_lossy().into_owned()).collect()
    }

    /// The word that stands for its value in the help text.
    pub fn value_name(&self) -> &str {
        self.arg.get_value_names().and_then(|names| names.first()).map_or("", |name| name.as_str())
    }

    /// Its help text.
    pub fn help(&self) -> String {
        self.arg.get_help().map(ToString::to_string).unwrap_or_default()
    }

    /// The flag alone, without its relations to other flags and without an environment variable.
    pub fn lone_arg(&self) -> Arg {
        let arg = self.arg.clone().requires(Resettable::Reset);
        arg.conflicts_with(Resettable::Reset).env(Resettable::Reset)
    }

    /// Its name in the matches of a parser.
    pub fn id(&self) -> &str {
        self.arg.get_id().as_str()
    }

    /// Checks a value as the flag does.
    pub fn check(&self, value: &str) -> Result<(), String> {
        if self.shape() == Shape::Switch {
            return switch(value).map(drop);
        }
        if self.shape() == Shape::List && value.is_empty() {
            return Err("a part of the list is empty".into());
        }
        let command = Command::new("setting").no_binary_name(true).disable_help_flag(true);
        let checked = command.arg(self.lone_arg()).try_get_matches_from([self.flag(value)]);
        checked.map(drop).map_err(|error| match error.source() {
            Some(why) => why.to_string(),
            None if value.is_empty() => "it is empty".into(),
            None => "it cannot be read".into(),
        })
    }

    /// The flag with a value; `None` for a switch that is off.
    pub fn as_flag(&self, value: &str) -> Option<String> {
        match self.shape() {
            Shape::Switch => (switch(value) == Ok(true)).then(|| format!("--{}", self.name())),
            Shape::Single | Shape::List => Some(self.flag(value)),
        }
    }

    fn flag(&self, value: &str) -> String {
        format!("--{}={value}", self.name())
    }

    /// What is accepted, for messages about a wrong value.
    pub fn accepted(&self) -> String {
        let default = match self.defaults().as_slice() {
            [] => String::new(),
            values => format!(" [default: {}]", values.join(", ")),
        };
        let value = match self.shape() {
            Shape::Switch => "true or false",
            Shape::Single | Shape::List => self.value_name(),
        };
        format!("{}: {value}. {}{default}", self.name(), self.help())
    }

    /// A value as it may be printed: without passwords and tokens.
    pub fn shown(&self, value: &str) -> String {
        if !self.arg.is_hide_env_values_set() {
            return value.to_owned();
        }
        let is_local = ["memory:", "sqlite:"].iter().any(|scheme| value.starts_with(scheme));
        match self.name() != "token" && (is_local || is_url(value)) {
            true => without_password(value),
            false => HIDDEN.into(),
        }
    }

    /// Whether this value contains a secret.
    pub fn is_secret(&self, value: &str) -> bool {
        self.shown(value) != value
    }

    #[cfg(test)]
    pub fn arg(&self) -> &Arg {
        &self.arg
    }
}

/// The environment variable of a setting.
pub fn variable(name: &str) -> String {
    match OTHER_VARIABLES.iter().find(|(setting, _)| *setting == name) {
        Some((_, variable)) => (*variable).to_owned(),
        None => format!("TASKYARD_{}", name.replace('-', "_").to_uppercase()),
    }
}

/// Whether this is scheme://host, perhaps with a user, ports, a path and a query. Anything else may be a secret.
fn is_url(value: &str) -> bool {
    let Some((scheme, rest)) = value.split_once("://") else { return false };
    let is_in_scheme = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, behind) = rest.split_at(end);
    let hosts = authority.rsplit_once('@').map_or(authority, |(_, hosts)| hosts);
    // An @ behind the host is a part of a password that was not encoded.
    scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.chars().all(is_in_scheme)
        && hosts.split(',').all(is_host)
        && !behind.contains('@')
}

/// Whether this is a host, perhaps with a port. A user with a password, in front of a forgotten @, is none.
fn is_host(text: &str) -> bool {
    let (name, port) = match text.rsplit_once(':').filter(|_| !text.ends_with(']')) {
        Some((name, port)) => (name, Some(port)),
        None => (text, None),
    };
    let is_address = name.starts_with('[') && name.ends_with(']');
    let is_in_name = |c: char| c.is_ascii_alphanumeric() || "-._%".contains(c);
    !name.is_empty()
        && (is_address || name.chars().all(is_in_name))
        && port.is_none_or(|port| port.parse::<u16>().is_ok())
}

/// The value of a switch.
fn switch(value: &str) -> Result<bool, String> {
    match value {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err("it is neither true nor false".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> SettingKey {
        SettingKey::all().into_iter().find(|key| key.name() == name).expect(name)
    }

    #[test]
    fn values_are_checked_as_those_of_flags() {
        assert!(key("http").check("127.0.0.1:1").is_ok());
        assert!(key("http").check("7070").unwrap_err().contains("IP address"));
        assert!(key("memory").check("64 apples").unwrap_err().contains("64MB"));
        assert!(key("session-idle").check("1s").unwrap_err().contains("between 1m and 12h"));
        assert!(key("metrics-tubes").check("70000").unwrap_err().contains("65535"));
        assert!(key("data").check("").unwrap_err().contains("empty"));
        assert!(key("strict-tubes").check("yes").unwrap_err().contains("neither true nor false"));
        assert_eq!(key("strict-tubes").as_flag("false"), None);
        assert_eq!(key("iproto").as_flag("off").as_deref(), Some("--iproto=off"));
    }

    #[test]
    fn conflicts_hold_in_both_directions() {
        for (one, other) in [("data", "store"), ("token", "token-file"), ("users", "iproto-users")]
        {
            assert!(key(one).excludes(&key(other)) && key(other).excludes(&key(one)), "{one}");
        }
        assert!(!key("data").excludes(&key("http")));
    }

    #[test]
    fn secrets_are_not_shown() {
        for (name, value, shown) in [
            ("token", "0123456789abcdef", HIDDEN),
            ("store", "postgres://ann:secret@db/queue", "postgres://ann@db/queue"),
            ("store", "postgres://ann:sec?ret@db/queue", HIDDEN),
            ("store", "sqlite:tasks", "sqlite:tasks"),
            ("database", "host=db password=secret", HIDDEN),
            // Each of these was printed: it contains :// or its user has no @ behind it.
            ("database", "host=db password=a://b", HIDDEN),
            ("token", "abc://0123456789abcdef", HIDDEN),
            ("store", "postgres://ann:secret", HIDDEN),
            ("store", "postgres://ann:secret/queue", HIDDEN),
            ("store", "postgres://ann:1/secret@db/queue", HIDDEN),
            ("store", "redis+cluster://box7:1,box8", "redis+cluster://box7:1,box8"),
            ("store", "postgres://[::1]:5432/queue", "postgres://[::1]:5432/queue"),
            ("pool-redis", "redis://:secret@db", "redis://@db"),
            ("peer", "http://ann:secret@box7:7070", "http://ann@box7:7070"),
            ("http", "127.0.0.1:1", "127.0.0.1:1"),
        ] {
            assert_eq!(key(name).shown(value), shown, "{name}");
            assert_eq!(key(name).is_secret(value), shown != value);
        }
    }

    /// A new flag with a secret must be marked as one, so that no command prints it.
    #[test]
    fn flags_with_urls_and_tokens_are_secrets() {
        for key in SettingKey::all() {
            let is_named_so = ["URL", "TOKEN", "PASSWORD"].contains(&key.value_name());
            assert_eq!(key.arg().is_hide_env_values_set(), is_named_so, "{}", key.name());
        }
    }

    /// Variables that the help texts name are those of the rule.
    #[test]
    fn variables_have_the_names_of_their_flags() {
        for key in SettingKey::all() {
            if let Some(named) = key.arg().get_env() {
                assert_eq!(named, key.variable().as_str());
            }
        }
        assert_eq!(variable("tls-client-ca"), "TASKYARD_TLS_CLIENT_CA");
        assert_eq!(variable("users"), "TASKYARD_SERVER_USERS");
    }
}
