//! The hardened deployment of docs/security.md: the files in deploy/ are used as they are, with real programs.

mod container;
mod package;
mod proxy;
mod service;

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use taskyard_testkit::recorded_output::register_secret;

/// The files that docs/security.md refers to.
const FILES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy");

/// The text of a file of the deployment.
fn deploy_file(name: &str) -> String {
    fs::read_to_string(Path::new(FILES).join(name)).expect("the file is in the repository")
}

/// Writes a file that no other user can read.
fn write_secret(path: &Path, text: &str) {
    register_secret(text);
    let mut options = fs::OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes())).expect("a file can be written");
}

/// Ends a program when its own input ends: when the test does, however it does.
const KEEPER: &str = r#"
signal=$1
shift
"$@" < /dev/null &
child=$!
read -r _
kill -s "$signal" "$child"
wait "$child"
"#;

/// A program that ends with the test.
struct KeptProgram {
    shell: Child,
}

impl KeptProgram {
    /// Starts it; this signal ends it.
    fn start(command: &Command, signal: &str) -> Self {
        let mut shell = Command::new("sh");
        shell
            .args(["-c", KEEPER, "keeper", signal])
            .arg(command.get_program())
            .args(command.get_args());
        let shell = shell.stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
        KeptProgram { shell: shell.expect("a shell can be started") }
    }

    /// Whether it has ended by itself.
    fn has_ended(&self) -> bool {
        self.children().is_empty()
    }

    /// The processes that the keeper has started.
    fn children(&self) -> Vec<String> {
        children(&self.shell.id().to_string())
    }
}

impl Drop for KeptProgram {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

/// The ids of the child processes of a process.
fn children(process: &str) -> Vec<String> {
    let path = format!("/proc/{process}/task/{process}/children");
    let listed = fs::read_to_string(path).unwrap_or_default();
    listed.split_whitespace().map(str::to_owned).collect()
}
