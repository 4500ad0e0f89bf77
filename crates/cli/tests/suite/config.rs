//! The configuration file of a server, as `serve --config` and `taskyard config` read and write it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::process::{LoggedServer, Running, TOKEN, binary, run, token_file};

/// The file that the Debian package installs.
const PACKAGED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/systemd/taskyard.yaml");

/// The settings in it.
const PACKAGED_FLAGS: [&str; 6] =
    ["--data", "/var/lib/taskyard", "--http", "127.0.0.1:7070", "--iproto", "off"];

/// A folder with a configuration.
struct ConfigFolder {
    folder: TempDir,
}

impl ConfigFolder {
    fn new(text: &str) -> Self {
        let config = ConfigFolder { folder: tempfile::tempdir().unwrap() };
        config.write(text);
        config
    }

    fn write(&self, text: &str) {
        fs::write(self.file(), text).unwrap();
        fs::set_permissions(self.file(), fs::Permissions::from_mode(0o600)).unwrap();
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("taskyard.yaml")
    }

    fn check(&self, flags: &[&str]) -> crate::process::Ran {
        run(&[&["config", "check", self.file().to_str().unwrap()], flags].concat())
    }
}

fn serve(file: &Path) -> std::process::Command {
    let mut command = binary();
    command.arg("serve").arg("--config").arg(file);
    command
}

#[test]
fn a_server_has_the_settings_of_its_file() {
    let config = ConfigFolder::new(
        "data: tasks\nhttp: 127.0.0.1:0\niproto: off\nstrict-tubes: true\ntoken-file: token\n",
    );
    let token = token_file(config.folder.path());
    let server = LoggedServer::start(&mut serve(&config.file()));
    assert!(server.screen.contains(&format!("config {}", config.file().display())));
    assert!(server.screen.contains("token needed") && server.screen.contains("iproto off"));
    let put = ["put", "mail", "x", "--url", &server.url, "--token-file", &token];
    let refused = run(&put).ends(4);
    assert!(refused.err.contains("does not exist"), "{refused:?}");
    drop(server);
    assert!(config.folder.path().join("tasks/taskyard.db").exists());

    // A variable replaces the file, and a flag the variable.
    let mut command = serve(&config.file());
    command.env("TASKYARD_STRICT_TUBES", "false").env("TASKYARD_TOKEN_FILE", "/nonexistent/x");
    let server = LoggedServer::start(command.args(["--store", "memory:"]));
    let put = ["put", "mail", "x", "--url", &server.url, "--token-file", &token];
    run(&put).good();
}

#[test]
fn a_server_with_a_wrong_file_does_not_start() {
    let config = ConfigFolder::new("htpp: 127.0.0.1:0\n");
    let ended = Running::start(&mut serve(&config.file())).ended().ends(2);
    assert!(
        ended.err.contains("line 1: 'htpp' is no setting; the nearest one is http"),
        "{ended:?}"
    );
    let missing = config.folder.path().join("none.yaml");
    let mut by_variable = binary();
    by_variable.arg("serve").env("TASKYARD_CONFIG", &missing);
    let ended = Running::start(&mut by_variable).ended().ends(2);
    assert!(ended.err.contains("taskyard config show >"), "{ended:?}");
}

// A server with the variable TASKYARD_METRICS_TUBE had the default, and nothing named the typing error.
#[test]
fn a_variable_that_is_no_option_is_named() {
    let mut command = binary();
    command.args(["serve", "--store", "memory:", "--http", "127.0.0.1:0", "--iproto", "off"]);
    command.env("TASKYARD_METRICS_TUBE", "5").env("TASKYARD_URL", "http://127.0.0.1:1");
    let mut server = LoggedServer::start(&mut command);
    let line = server.logs("the variable TASKYARD_");
    let named = "TASKYARD_METRICS_TUBE is no option and is not read; the nearest one is TASKYARD_METRICS_TUBES";
    assert!(line.contains("WARN") && line.contains(named), "{line}");
}

#[test]
fn check_shows_each_value_and_where_it_comes_from() {
    let config = ConfigFolder::new(
        "http: 127.0.0.1:7171\nmemory: 64MB\n# no tubes by puts\nstrict-tubes: true\n",
    );
    let mut command = binary();
    command.args(["config", "check"]).arg(config.file()).args(["--memory", "32MB"]);
    let ran = Running::start(command.env("TASKYARD_METRICS_TUBES", "5")).ended();
    let out = ran.good();
    let row = |name: &str| {
        let row = out.lines().find(|line| line.split_whitespace().next() == Some(name));
        row.unwrap_or_else(|| panic!("no {name}: {out}")).split_whitespace().collect::<Vec<_>>()
    };
    assert_eq!(row("http"), ["http", "127.0.0.1:7171", "file,", "line", "1"]);
    assert_eq!(row("memory"), ["memory", "32MB", "command", "line"]);
    assert_eq!(row("strict-tubes"), ["strict-tubes", "true", "file,", "line", "4"]);
    assert_eq!(row("metrics-tubes"), ["metrics-tubes", "5", "TASKYARD_METRICS_TUBES"]);
    assert_eq!(row("contract"), ["contract", "-", "default"]);
    assert!(out.ends_with("is valid\n"), "{out}");

    let answer = &config.check(&["--json"]).json()[0];
    assert_eq!(answer["valid"], true);
    let settings = answer["settings"].as_array().unwrap();
    let strict = settings.iter().find(|setting| setting["name"] == "strict-tubes").unwrap();
    assert_eq!((&strict["value"], &strict["line"]), (&true.into(), &4.into()));
}

/// A variable with a typing error left the setting at its default, and the check said "valid".
#[test]
fn check_warns_of_unknown_variables() {
    let config = ConfigFolder::new("memory: 64MB\n");
    for flags in [&[][..], &["--json"]] {
        let mut command = binary();
        command.args(["config", "check"]).arg(config.file()).args(flags);
        let ran = Running::start(command.env("TASKYARD_HTPP", "0.0.0.0:80")).ended().ends(0);
        let warning = "TASKYARD_HTPP";
        if flags.is_empty() {
            assert!(ran.err.contains(warning) && ran.err.contains("TASKYARD_HTTP"), "{ran:?}");
        } else {
            assert!(ran.json()[0]["warnings"][0].as_str().unwrap().contains(warning), "{ran:?}");
        }
    }
}

#[test]
fn check_reads_the_files_that_are_named() {
    let config = ConfigFolder::new(
        "users: u.toml\ntls-cert: c.pem\ntls-key: k.pem\npool: p.yaml\ncontract: [c.yaml]\naudit: none/a.jsonl\n\
         sql: s.json\ndatabase: postgres://db\nstore: nowhere:x\npayload-max: 65MB\n",
    );
    let ran = config.check(&[]).ends(2);
    for said in [
        "u.toml",
        "p.yaml",
        "c.yaml",
        "none/a.jsonl",
        "s.json",
        "nowhere:x",
        "--payload-max is more",
        "is not valid: ",
    ] {
        assert!(ran.err.contains(said), "{said}: {}", ran.err);
    }
    let answer = &config.check(&["--json"]).ends(2).json()[0];
    assert!(answer["problems"].as_array().unwrap().len() >= 7, "{answer}");
    // Nothing was created.
    let names: Vec<_> = fs::read_dir(config.folder.path()).unwrap().collect();
    assert_eq!(names.len(), 1);
    config.write("http: 0.0.0.0:7070\n");
    assert!(config.check(&[]).ends(2).err.contains("can be reached from other machines"));
    config.write("memory: 64MB\n");
    let record = ["--record", config.file().to_str().unwrap()].map(str::to_owned);
    assert!(config.check(&record.each_ref().map(String::as_str)).ends(2).err.contains("exists"));
}

#[test]
fn no_secret_is_printed() {
    token_file(tempfile::tempdir().unwrap().path());
    let config =
        ConfigFolder::new(&format!("token: {TOKEN}\nstore: postgres://ann:{TOKEN}@db/q\n"));
    for flags in [&[][..], &["--json"]] {
        let out = config.check(flags).good();
        assert!(out.contains("(hidden)") && out.contains("postgres://ann@db/q"), "{out}");
        assert!(!out.contains(TOKEN));
    }
    let shown = run(&["config", "show", "--token", TOKEN]);
    assert!(!format!("{shown:?}").contains(TOKEN) && shown.err.contains("token"), "{shown:?}");
    fs::set_permissions(config.file(), fs::Permissions::from_mode(0o644)).unwrap();
    let refused = config.check(&[]).ends(2);
    assert!(refused.err.contains("chmod 640"), "{refused:?}");
}

#[test]
fn the_shown_file_has_all_settings() {
    let shown = run(&["config", "show"]).good();
    let help = run(&["serve", "--help"]).good();
    let flags = help.lines().filter_map(|line| line.strip_prefix("      --"));
    let names: Vec<_> = flags.filter_map(|rest| rest.split([' ', '\n']).next()).collect();
    assert!(names.len() > 30);
    for name in names.iter().filter(|name| **name != "config") {
        if ["accept-loss", "record", "record-max"].contains(name) {
            assert!(!shown.contains(&format!("\n#{name}: ")), "{name}: {shown}");
            continue;
        }
        assert!(shown.contains(&format!("\n#{name}: ")), "{name}: {shown}");
    }
    // The defaults, as they are written, are what a server without the file has.
    let has_default = |line: &&str| {
        let value = line.split_once(": ").map_or("", |(_, value)| value);
        line.starts_with('#')
            && !line.starts_with("# ")
            && value.chars().any(|c| !c.is_ascii_uppercase() && c != '|')
    };
    // One has no fixed default.
    let is_fixed = |line: &&str| !line.contains("ADDR|off");
    let set = shown.lines().filter(has_default).filter(is_fixed);
    let set: Vec<_> = set.map(|line| &line[1..]).collect();
    assert!(set.contains(&"http: 127.0.0.1:7070") && set.contains(&"contract: []"), "{set:?}");
    let config = ConfigFolder::new(&(set.join("\n") + "\n"));
    let settings = config.check(&["--json"]).json()[0]["settings"].clone();
    assert!(settings.as_array().unwrap().len() > 30, "{:?}", config.check(&[]));
}

#[test]
fn the_file_of_the_package_is_current() {
    let made = run(&[&["config", "show"], &PACKAGED_FLAGS[..]].concat()).good();
    if std::env::var_os("TASKYARD_WRITE_DOCS").is_some() {
        fs::write(PACKAGED, &made).expect("the file can be written");
    }
    let committed = fs::read_to_string(PACKAGED).unwrap_or_default();
    assert!(committed == made, "deploy/systemd/taskyard.yaml is outdated: run `cargo xtask docs`");
    // Not the file itself, which its group may be able to change in a working tree.
    ConfigFolder::new(&made).check(&[]).good();
}

#[test]
fn the_example_of_the_documents_is_accepted() {
    let page = include_str!("../../../../docs/operating.md");
    let example = page.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap();
    let config = ConfigFolder::new(example);
    // Its files do not exist here, which is a problem of its own.
    let answer = &config.check(&["--json"]).ends(2).json()[0];
    assert!(answer["settings"].as_array().is_some_and(|settings| settings.len() > 30), "{answer}");
}
