//! Ends servers and removes their folders when the test process ends, however it does.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use std::os::unix::process::CommandExt;
use tempfile::{Builder, TempDir};

/// Kills the server with the process id in the file `pid` of the folder, and removes the folder.
const KILL: &str = r#"
read -r _
kill -9 "$(cat "$0/pid")" 2>/dev/null
for _ in 1 2 3 4 5 6 7 8 9; do rm -rf "$0" && break; sleep 0.2; done
"#;

/// A shell that outlives this process for as long as it takes to clean up. Its script waits until its input ends.
pub(crate) struct CleanupShell(Child);

impl CleanupShell {
    /// Kills the server whose process id is in the folder, and removes the folder.
    pub(crate) fn kill(folder: &Path) -> Self {
        Self::spawn(Command::new("sh").args(["-c", KILL]).arg(folder))
    }

    /// Runs this shell, whose arguments the caller has set.
    pub(crate) fn spawn(shell: &mut Command) -> Self {
        // In a process group of its own, so that interrupting the tests does not interrupt it.
        shell.process_group(0).current_dir("/");
        shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        CleanupShell(shell.spawn().expect("a shell can be started"))
    }
}

impl Drop for CleanupShell {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().expect("the shell ends");
    }
}

/// A new folder, which a [`CleanupShell`] removes: in memory where the system has such a place, because the tests sync at every step.
pub(crate) fn memory_folder(prefix: &str) -> PathBuf {
    let memory = Path::new("/dev/shm");
    let mut builder = Builder::new();
    builder.prefix(prefix);
    let made = if memory.is_dir() { builder.tempdir_in(memory) } else { builder.tempdir() };
    made.map(TempDir::keep).expect("a temporary folder can be made")
}
