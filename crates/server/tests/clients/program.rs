//! Runs a client in another language as a separate program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::json;
use taskyard_testkit::recorded_output::record;
use taskyard_testkit::skipped::find_tool;
use tokio::process::Command;

use crate::scenario::{self, Ability, Case, PASSWORD, USER};
use crate::site::ScenarioServer;

/// How long a program may take for the whole scenario.
const LIMIT: Duration = Duration::from_secs(60);

/// What a program needs from outside.
pub struct Tool {
    /// The environment variable that tells where it is.
    pub variable: &'static str,
    /// Where it is otherwise, from the root of the repository.
    pub usual: &'static str,
}

impl Tool {
    /// Its path; `None` when the tests run without it.
    pub fn find(&self) -> Option<PathBuf> {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        find_tool(self.variable, root.join(self.usual))
    }
}

/// A program beside this file and what runs it.
pub struct Program {
    interpreter: PathBuf,
    name: &'static str,
    env: Option<(&'static str, PathBuf)>,
    cannot: &'static [Ability],
}

impl Program {
    pub fn new(interpreter: &Path, name: &'static str) -> Self {
        Program { interpreter: interpreter.into(), name, env: None, cannot: &[] }
    }

    pub fn env(mut self, name: &'static str, value: &Path) -> Self {
        self.env = Some((name, value.into()));
        self
    }

    /// What its client cannot do.
    pub fn cannot(mut self, cannot: &'static [Ability]) -> Self {
        self.cannot = cannot;
        self
    }

    /// Plays the whole scenario against its own server, and fails with its output. Then
    /// it must notice wrong answers.
    pub async fn play(self) {
        let site = ScenarioServer::new().await;
        let cases = scenario::cases(self.cannot);
        let ProgramOutput { success, text } = self.run(&site, &cases).await;
        assert!(success, "{}: {text}", self.name);
        // A program that stops early with success has not played.
        let done = format!("played {} cases", cases.len());
        assert!(text.lines().any(|line| line == done), "{}: {text}", self.name);
        for case in scenario::wrong_cases(self.cannot) {
            let ProgramOutput { success, text } =
                self.run(&site, std::slice::from_ref(&case)).await;
            assert!(!success && text.contains(&case.name), "{} goes on: {text}", self.name);
        }
    }

    /// Runs it against this server, where it must succeed and print this line.
    pub async fn says(self, site: &ScenarioServer, line: &str) {
        let ProgramOutput { success, text } = self.run(site, &[]).await;
        assert!(success && text.lines().any(|said| said == line), "{}: {text}", self.name);
    }

    async fn run(&self, site: &ScenarioServer, cases: &[Case]) -> ProgramOutput {
        // Files that the program leaves are removed with the folder.
        let folder = tempfile::tempdir().unwrap();
        let scenario = folder.path().join("scenario.json");
        fs::write(&scenario, json!(cases).to_string()).unwrap();
        let programs = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients"));
        let mut command = Command::new(&self.interpreter);
        command.current_dir(folder.path()).arg(programs.join(self.name)).arg(&scenario);
        command.arg(site.address().ip().to_string()).arg(site.address().port().to_string());
        command.env("USER", USER).env("PASSWORD", PASSWORD);
        command.envs(self.env.clone()).kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let running = command.spawn().expect("the program starts");
        let ended = tokio::time::timeout(LIMIT, running.wait_with_output()).await;
        let output = ended.expect("the program ends in time").unwrap();
        let said = [output.stdout, output.stderr].concat();
        let text = format!("{}\n{}", output.status, String::from_utf8_lossy(&said));
        record("client", &text);
        ProgramOutput { success: output.status.success(), text }
    }
}

/// How a program ended, and all that it printed.
struct ProgramOutput {
    success: bool,
    text: String,
}
