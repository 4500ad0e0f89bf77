//! Names variables of the environment that look like settings of a server and are none.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;

use clap::{Command, CommandFactory};

use super::key::{CONFIG, SettingKey, variable};
use crate::args::Cli;
use crate::output::printable;

/// What the names of all variables begin with.
const PREFIX: &str = "TASKYARD_";

/// Variables that are neither options nor wrong: the level of the log, and what a worker sets for the program that it runs for a task.
const OTHERS: [&str; 7] = [
    "TASKYARD_LOG",
    "TASKYARD_ATTEMPTS",
    "TASKYARD_ID",
    "TASKYARD_LEASE",
    "TASKYARD_QUEUE",
    "TASKYARD_TASK_ID",
    "TASKYARD_TUBE",
];

/// Logs a warning for each of them: a name with a typing error is not read, and the server would run with the default.
pub fn warn_of_unknown_variables() {
    for warning in unknown_variables() {
        tracing::warn!("{warning}");
    }
}

/// A sentence about each of them.
pub fn unknown_variables() -> Vec<String> {
    let text = |(name, value): (OsString, OsString)| {
        Some((name.into_string().ok()?, value.to_string_lossy().into_owned()))
    };
    warnings(env::vars_os().filter_map(text))
}

/// Whether Kubernetes sets such a variable: those with the addresses of a service called `taskyard` have our prefix.
fn is_of_kubernetes(name: &str, value: &str) -> bool {
    let words: Vec<&str> = name.split('_').collect();
    words.windows(2).any(|pair| match pair {
        ["SERVICE", "HOST" | "PORT"] => true,
        ["PORT", number] => number.parse::<u16>().is_ok(),
        _ => false,
    }) || (name.ends_with("_PORT") && value.contains("://"))
}

fn warnings(variables: impl Iterator<Item = (String, String)>) -> Vec<String> {
    let settings = SettingKey::all().into_iter().map(|key| key.variable());
    let settings: Vec<String> = settings.chain([variable(CONFIG)]).collect();
    let mut known: BTreeSet<String> = OTHERS.into_iter().map(String::from).collect();
    add_variables(&Cli::command(), &mut known);
    let unknown = variables.filter(|(name, value)| {
        name.starts_with(PREFIX)
            && !is_of_kubernetes(name, value)
            && !known.contains(name)
            && !settings.contains(name)
    });
    let warning = |(name, _): (String, String)| {
        let alike = |setting: &&String| {
            (strsim::jaro_winkler(&name[PREFIX.len()..], &setting[PREFIX.len()..]) * 1000.0) as u32
        };
        let nearest = settings.iter().max_by_key(alike).map_or("", String::as_str);
        format!(
            "the variable {} is no option and is not read; the nearest one is {nearest}",
            printable(&name)
        )
    };
    let mut warnings: Vec<String> = unknown.map(warning).collect();
    warnings.sort();
    warnings
}

/// Adds the variables that a command and those below it read.
fn add_variables(command: &Command, known: &mut BTreeSet<String>) {
    let variables = command.get_arguments().filter_map(|arg| arg.get_env()?.to_str());
    known.extend(variables.map(String::from));
    command.get_subcommands().for_each(|below| add_variables(below, known));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The warnings about variables with these names behind the prefix.
    fn of(names: &[&str]) -> Vec<String> {
        warnings(names.iter().map(|name| (format!("{PREFIX}{name}"), "8080".into())))
    }

    #[test]
    fn a_typing_error_is_named_with_the_nearest_option() {
        for (wrong, nearest) in [
            ("HTPP", "HTTP"),
            ("METRICS_TUBE", "METRICS_TUBES"),
            ("SERVER_TOKENFILE", "SERVER_TOKEN_FILE"),
            ("CONFG", "CONFIG"),
            ("STORE_URL", "STORE"),
            ("HTTP_PORT", "HTTP"),
            // Of the unit of a pool.
            ("OPTIONS", "IPROTO_USERS"),
        ] {
            let warnings = of(&[wrong]);
            assert_eq!(warnings.len(), 1, "{warnings:?}");
            let ends = format!(
                "TASKYARD_{wrong} is no option and is not read; the nearest one is TASKYARD_{nearest}"
            );
            assert!(warnings[0].ends_with(&ends), "{warnings:?}");
        }
        assert_eq!(of(&["HTPP", "CONFG"]).len(), 2);
    }

    #[test]
    fn variables_that_are_read_or_belong_to_others_are_not_named() {
        let keys: Vec<String> = SettingKey::all().iter().map(SettingKey::variable).collect();
        let keys: Vec<&str> = keys.iter().map(|key| &key[PREFIX.len()..]).collect();
        assert_eq!(of(&keys), [""; 0]);
        let others = ["CONFIG", "LOG", "URL", "TOKEN", "TOKEN_FILE", "CA", "POOL_REDIS", "USERS"];
        assert_eq!(of(&others), [""; 0]);
        // A service of Kubernetes with the name taskyard.
        let service =
            ["SERVICE_HOST", "SERVICE_PORT_HTTP", "WEB_SERVICE_PORT", "PORT_7070_TCP_ADDR"];
        assert_eq!(of(&service), [""; 0]);
        let variables = [
            ("TASKYARD_PORT", "tcp://10.0.0.1:7070"),
            ("HOME", "/root"),
            ("MY_TASKYARD_HTPP", "0.0.0.0:80"),
        ];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(warnings(variables.into_iter()), [""; 0]);
        assert_eq!(of(&["PORT"]).len(), 1, "a number is no address of Kubernetes");
    }
}
