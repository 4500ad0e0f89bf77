//! Runs the binary in a terminal.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::process::without_settings;

/// The binary in a terminal of 120 columns that `script` creates. Dropping this kills it.
pub struct PseudoTerminal {
    child: Child,
    keys: Option<ChildStdin>,
    out: ChildStdout,
    /// Everything that was written to the terminal so far.
    screen: String,
}

impl PseudoTerminal {
    /// Starts the binary with these arguments. The shell prints its process id before it runs it.
    pub fn start(args: &str) -> Self {
        Self::start_with(args, &[])
    }

    /// The same with these variables of the environment.
    pub fn start_with(args: &str, variables: &[(&str, &OsStr)]) -> Self {
        let line = format!(
            "stty rows 24 cols 120; echo pid $$.; exec '{}' {args}",
            env!("CARGO_BIN_EXE_taskyard"),
        );
        let mut command = Command::new("script");
        command.args(["--quiet", "--flush", "--return", "--command", &line, "/dev/null"]);
        without_settings(&mut command).env("TERM", "xterm").env("SHELL", "/bin/sh");
        command.env_remove("DISPLAY").env_remove("WAYLAND_DISPLAY");
        command.envs(variables.iter().copied());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("script is there");
        let out = child.stdout.take().expect("the output is piped");
        let keys = child.stdin.take();
        PseudoTerminal { child, keys, out, screen: String::new() }
    }

    /// Reads until this text is shown after what was read before.
    #[track_caller]
    pub fn shows(&mut self, text: &str) {
        let seen = self.screen.len();
        let mut bytes = [0; 4096];
        while !self.screen[seen..].contains(text) {
            let read = self.out.read(&mut bytes).expect("the terminal is read");
            assert!(read > 0, "ended before {text:?}: {:?}", self.screen);
            self.screen.push_str(&String::from_utf8_lossy(&bytes[..read]));
        }
    }

    /// Presses keys.
    pub fn press(&mut self, keys: &str) {
        let terminal = self.keys.as_mut().expect("keys can be pressed");
        terminal.write_all(keys.as_bytes()).expect("the keys arrive");
    }

    /// Sends a signal to the binary itself.
    pub fn signal(&self, name: &str) {
        let (_, rest) = self.screen.split_once("pid ").expect("the shell said its number");
        let (pid, _) = rest.split_once('.').expect("the number ends");
        let kill = Command::new("kill").args(["-s", name, pid]).status();
        assert!(kill.expect("kill is there").success());
    }

    /// Waits for the end, which must be a success. Returns everything that was written to the terminal.
    #[track_caller]
    pub fn ended(mut self) -> String {
        let mut rest = Vec::new();
        self.out.read_to_end(&mut rest).expect("the terminal is read");
        self.screen.push_str(&String::from_utf8_lossy(&rest));
        let status = self.child.wait().expect("script ends");
        assert!(status.success(), "{status}: {:?}", self.screen);
        std::mem::take(&mut self.screen)
    }
}

impl Drop for PseudoTerminal {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
