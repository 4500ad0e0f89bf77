//! The settings of a server come from options, variables and a file, in this order.

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

fn resolved(flags: &str, file: &str, variables: &[(&str, &str)]) -> Result<ServeSettings, String> {
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
        let by_file = resolved("", &format!("{}: {written}\n{needed}", key.name()), &[]).unwrap();
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
            "line 1: http: '7070' is not accepted: give an IP address with a port, such as 127.0.0.1:7070\n  http: ADDR. Address for HTTP",
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
    let file = "iproto: off\ntoken: 12345678901234567890\nhost-name: [yes, 1e3, 'null']\n# end\n";
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
