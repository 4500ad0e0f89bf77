//! A program that goes on while the document is run. All that it prints is read at once, so it never waits for its reader.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use taskyard_testkit::recorded_output::record;
use taskyard_testkit::server_process::{record_command_line, send_signal};

/// A running program. Dropping this kills it.
pub struct Program {
    child: Child,
    lines: Receiver<String>,
}

/// A program that has ended by itself.
pub struct EndedProgram {
    pub status: ExitStatus,
    pub printed: String,
}

impl Program {
    /// Starts it.
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("there is a shell");
        record_command_line(command, &child);
        let out = BufReader::new(child.stdout.take().expect("the output is piped"));
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in out.lines() {
                let line = line.expect("the lines are text");
                record("command", &format!("{line}\n"));
                // The lines after the last one that is waited for are only recorded.
                let _ = sender.send(line);
            }
        });
        Program { child, lines }
    }

    /// Reads lines up to one that is the last; says why there is none within this time.
    pub fn read_to(
        &self,
        limit: Duration,
        mut is_last: impl FnMut(&str) -> bool,
    ) -> Result<(), &'static str> {
        let began = Instant::now();
        while let Some(left) = limit.checked_sub(began.elapsed()) {
            match self.lines.recv_timeout(left) {
                Ok(line) if is_last(&line) => return Ok(()),
                Err(RecvTimeoutError::Disconnected) => return Err("it ended"),
                _ => {}
            }
        }
        Err("it goes on")
    }

    /// Waits until it and everything that writes to its output has ended; what it printed, if it does not end within this time.
    pub fn ended(mut self, limit: Duration) -> Result<EndedProgram, String> {
        let mut printed = String::new();
        let read = self.read_to(limit, |line| {
            printed.extend([line, "\n"]);
            false
        });
        match read {
            Err("it ended") => {
                let status = self.child.wait().expect("it ends");
                Ok(EndedProgram { status, printed })
            }
            _ => Err(printed),
        }
    }

    /// Stops it as Ctrl-C does, and waits until it and everything that writes to its output has ended.
    #[track_caller]
    pub fn stop(mut self, limit: Duration) {
        send_signal(self.child.id(), "INT");
        assert_eq!(self.read_to(limit, |_| false), Err("it ended"));
        let status = self.child.wait().expect("it ends");
        assert!(status.code().is_some(), "{status}");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
