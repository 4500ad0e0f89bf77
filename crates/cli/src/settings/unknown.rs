//! Names variables of the environment that look like settings of a server and are none.

use std::collections::BTreeSet;
use std::env;

use clap::{Command, CommandFactory};

use super::key::{CONFIG, SettingKey, variable};
use crate::args::Cli;
use crate::output::printable;

/// What the names of all variables begin with.
const PREFIX: &str = "TASKYARD_";

/// Variables that are neither options nor wrong: the level of the log, the options in the units of systemd, and what a worker tells
/// the program that it runs for a task.
const OTHERS: [&str; 8] = [
    "TASKYARD_LOG",
    "TASKYARD_OPTIONS",
    "TASKYARD_ATTEMPTS",
    "TASKYARD_ID",
    "TASKYARD_LEASE",
    "TASKYARD_QUEUE",
    "TASKYARD_TASK_ID",
    "TASKYARD_TUBE",
];

/// Words in the names of variables with which Kubernetes tells the addresses of services: those of one called `taskyard` have our prefix.
const KUBERNETES: [&str; 2] = ["PORT", "SERVICE"];

/// Logs a warning for each of them: a name with a typing error is not read, and the server would run with the default.
pub fn warn_of_unknown_variables() {
    let names = env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for warning in warnings(names) {
        tracing::warn!("{warning}");
    }
}

fn warnings(names: impl Iterator<Item = String>) -> Vec<String> {
    let settings = SettingKey::all().into_iter().map(|key| key.variable());
    let settings: Vec<String> = settings.chain([variable(CONFIG)]).collect();
    let mut known: BTreeSet<String> = OTHERS.into_iter().map(String::from).collect();
    add_variables(&Cli::command(), &mut known);
    let unknown = names.filter(|name| {
        let Some(rest) = name.strip_prefix(PREFIX) else { return false };
        let is_address = rest.split('_').any(|word| KUBERNETES.contains(&word));
        !is_address && !known.contains(name) && !settings.contains(name)
    });
    let warning = |name: String| {
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
        warnings(names.iter().map(|name| format!("{PREFIX}{name}")))
    }

    #[test]
    fn a_typing_error_is_named_with_the_nearest_option() {
        for (wrong, nearest) in [
            ("HTPP", "HTTP"),
            ("METRICS_TUBE", "METRICS_TUBES"),
            ("SERVER_TOKENFILE", "SERVER_TOKEN_FILE"),
            ("CONFG", "CONFIG"),
            ("STORE_URL", "STORE"),
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
        let service = ["SERVICE_HOST", "SERVICE_PORT_HTTP", "PORT", "PORT_7070_TCP_ADDR"];
        assert_eq!(of(&service), [""; 0]);
        assert_eq!(warnings(["HOME", "MY_TASKYARD_HTPP"].map(String::from).into_iter()), [""; 0]);
    }
}
