//! The cargo commands of the documents name packages, programs, examples and features of this workspace, and commands of xtask. The
//! tests do not run them: they compile the program, which takes minutes.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::not_run::documents;

/// The repository.
const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Documents outside of `docs`.
const OTHERS: [&str; 4] =
    ["ARCHITECTURE.md", "CONTRIBUTING.md", "clients/node/README.md", "clients/python/README.md"];

/// What cargo knows about the workspace, and what xtask prints as its help.
struct Workspace {
    packages: Vec<Value>,
    default_members: Vec<Value>,
    xtask: String,
}

impl Workspace {
    fn read() -> Self {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut metadata = Command::new(cargo);
        metadata.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]);
        let printed = metadata.current_dir(REPOSITORY).output().expect("cargo starts");
        let mut known: Value = serde_json::from_slice(&printed.stdout).expect("cargo prints JSON");
        let mut list = |name: &str| match known[name].take() {
            Value::Array(items) => items,
            other => panic!("{name} is no list: {other}"),
        };
        let source = Path::new(REPOSITORY).join("xtask/src/main.rs");
        Workspace {
            packages: list("packages"),
            default_members: list("workspace_default_members"),
            xtask: fs::read_to_string(source).expect("the source of xtask"),
        }
    }

    /// What is wrong with a command.
    fn problem(&self, command: &CargoCommand) -> Option<String> {
        match command.words.first()?.as_str() {
            "xtask" => {
                let name = command.words.get(1)?;
                let is_known = self.xtask.contains(&format!("\n  cargo xtask {name} "));
                (!is_known && name != "help").then(|| format!("xtask has no {name}"))
            }
            "build" | "install" | "run" | "test" => self.problem_of_build(command),
            other => Some(format!("cargo {other} is not checked here")),
        }
    }

    fn problem_of_build(&self, command: &CargoCommand) -> Option<String> {
        let package = command.value(&["-p", "--package"]);
        let path = command.value(&["--path"]);
        let is_selected = |one: &&Value| match (package, path) {
            (Some(name), _) => one["name"] == name,
            (None, Some(path)) => {
                let manifest = one["manifest_path"].as_str().unwrap_or_default();
                manifest.ends_with(&format!("/{path}/Cargo.toml"))
            }
            (None, None) => self.default_members.contains(&one["id"]),
        };
        let selected: Vec<&Value> = self.packages.iter().filter(is_selected).collect();
        let Some(first) = selected.first() else { return Some("no such package".into()) };
        for (option, kind) in [("--bin", "bin"), ("--example", "example"), ("--test", "test")] {
            let Some(name) = command.value(&[option]) else { continue };
            if !targets(&selected, kind).any(|target| target["name"] == name) {
                return Some(format!("no {kind} {name}"));
            }
        }
        let features = command.value(&["--features"]).unwrap_or_default();
        let mut features = features.split(',').filter(|name| !name.is_empty());
        if let Some(name) = features.find(|name| first["features"].get(name).is_none()) {
            return Some(format!("no feature {name}"));
        }
        let names_target = command.value(&["--bin", "--example"]).is_some();
        let programs = targets(&selected, "bin").count();
        let is_clear = names_target || programs == 1 || first["default_run"].is_string();
        let is_run = command.words[0] == "run";
        (is_run && !is_clear).then(|| format!("{programs} programs, none of them is named"))
    }
}

/// The targets of a kind.
fn targets<'a>(packages: &[&'a Value], kind: &str) -> impl Iterator<Item = &'a Value> {
    let targets = packages.iter().filter_map(|package| package["targets"].as_array()).flatten();
    targets.filter(move |target| target["kind"] == serde_json::json!([kind]))
}

/// The words of a command behind `cargo`, without the arguments for the program that it runs.
struct CargoCommand {
    words: Vec<String>,
}

impl CargoCommand {
    /// The commands in a line of a document, between backquotes or in a block of code.
    fn all_in(line: &str) -> Vec<Self> {
        let is_begin = |at: usize| {
            let before = line[..at].trim_end_matches(' ');
            let sets_variable =
                before.split(' ').next_back().is_some_and(|word| word.contains('='));
            before.is_empty()
                || before.ends_with(['`', '$', '('])
                || before.ends_with("&&")
                || sets_variable
        };
        let found = line.match_indices("cargo ").filter(|(at, _)| is_begin(*at));
        let command = |(at, name): (usize, &str)| {
            let rest =
                line[at + name.len()..].split(['`', '#', ';', ')']).next().unwrap_or_default();
            let words = rest.split_whitespace().take_while(|word| !["--", "&&"].contains(word));
            CargoCommand { words: words.map(str::to_owned).collect() }
        };
        found.map(command).collect()
    }

    /// The value of the first of these options that it has.
    fn value(&self, options: &[&str]) -> Option<&str> {
        let at = self.words.iter().position(|word| options.contains(&word.as_str()))?;
        self.words.get(at + 1).map(String::as_str)
    }
}

// Pages go on naming a package or an example after it was renamed, and no test runs what builds the program.
#[test]
fn the_cargo_commands_of_the_documents_name_what_the_workspace_has() {
    let workspace = Workspace::read();
    let (mut wrong, mut checked) = (Vec::new(), 0);
    for name in documents().into_iter().chain(OTHERS.map(str::to_owned)) {
        let text = fs::read_to_string(Path::new(REPOSITORY).join(&name)).expect("a document");
        for (line, number) in text.lines().zip(1..) {
            for command in CargoCommand::all_in(line) {
                checked += 1;
                let problem = workspace.problem(&command);
                wrong.extend(problem.map(|problem| format!("{name}:{number}: {problem}: {line}")));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(checked > 30, "only {checked} commands were found");
}

/// A test of the tests.
#[test]
fn commands_that_cannot_work_are_found() {
    let workspace = Workspace::read();
    let problem = |line: &str| {
        let commands = CargoCommand::all_in(line);
        assert_eq!(commands.len(), 1, "{line}");
        workspace.problem(&commands[0])
    };
    for good in [
        "$ cargo run --release -- serve --package x",
        "Use `cargo run -p taskyard --example mail --features embedded`.",
        "(cd x && cargo xtask test)",
    ] {
        assert_eq!(problem(good), None, "{good}");
    }
    for wrong in [
        "cargo run -p mail",
        "cargo run -p taskyard",
        "cargo build --bin yard",
        "cargo run -p taskyard --example post",
        "cargo build -p taskyard --features embeded,tls",
        "cargo install --path crates/command",
        "`cargo xtask tests`",
        "NAME=1 cargo xtask tests",
        "cargo biuld",
    ] {
        assert!(problem(wrong).is_some(), "{wrong}");
    }
}
