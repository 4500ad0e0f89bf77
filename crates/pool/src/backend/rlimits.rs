//! Limits that the system keeps for each process, and who sets them.

use crate::config::Limits;

const PRLIMIT: &str = "/usr/bin/prlimit";
/// Files that a process may have open.
const OPEN_MAX: u64 = 256;
/// In these sizes a shell counts memory and files, in bytes.
const KIB: u64 = 1024;
const BLOCK: u64 = 512;
/// A shell that cannot set a limit ends with this, before the program begins.
const REFUSED: &str = "126";

/// What one process of a program may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rlimits {
    memory: u64,
    file: u64,
    /// Processes of its user, where it has one of its own.
    processes: Option<u64>,
    /// Seconds of processor time: a signal of its own at first, so that it is not taken for a kill from outside,
    /// then the kill.
    cpu: Option<(u64, u64)>,
}

/// Who sets them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Setter {
    /// The first shell inside bubblewrap, which is there anyway.
    Shell,
    /// The program of this name, which costs as much as a start of the shell.
    Prlimit,
    Nobody,
}

impl Rlimits {
    pub fn new(limits: &Limits, processes: Option<u64>, cpu: Option<u64>) -> Self {
        Rlimits {
            memory: limits.memory_bytes_max,
            file: limits.file_bytes_max,
            processes,
            cpu: cpu.map(|seconds| (seconds, seconds.saturating_add(1))),
        }
    }

    /// What must be written before a command for `prlimit` to run it.
    pub fn prlimit(&self) -> Vec<String> {
        let mut words = vec![
            PRLIMIT.into(),
            "--core=0".into(),
            format!("--as={}", self.memory),
            format!("--fsize={}", self.file),
            format!("--nofile={OPEN_MAX}"),
        ];
        words.extend(self.processes.map(|most| format!("--nproc={most}")));
        words.extend(self.cpu.map(|(soft, hard)| format!("--cpu={soft}:{hard}")));
        words.push("--".into());
        words
    }

    /// What a shell does to set them, in its sizes and never more. Nothing in it comes from a client.
    pub fn script(&self) -> String {
        let mut steps = vec![
            "ulimit -c 0".into(),
            format!("ulimit -v {}", self.memory / KIB),
            format!("ulimit -f {}", self.file / BLOCK),
            format!("ulimit -n {OPEN_MAX}"),
        ];
        steps.extend(self.processes.map(|most| format!("ulimit -p {most}")));
        if let Some((soft, hard)) = self.cpu {
            steps.extend([format!("ulimit -t {hard}"), format!("ulimit -S -t {soft}")]);
        }
        format!("{} || exit {REFUSED}; ", steps.join(" && "))
    }

    /// Limits by which a shell is tried out: each is another number.
    pub fn trial() -> Self {
        Rlimits { memory: 1 << 30, file: 3 << 20, processes: Some(4_000), cpu: Some((50, 51)) }
    }

    /// Whether a process has them whose `/proc/self/limits` this is. Shells do not all count alike.
    pub fn are_set(&self, limits: &str) -> bool {
        let both = |most: u64| (most.to_string(), most.to_string());
        let cpu = self.cpu.map(|(soft, hard)| (soft.to_string(), hard.to_string()));
        [
            ("Max core file size", Some(both(0))),
            ("Max address space", Some(both(self.memory))),
            ("Max file size", Some(both(self.file))),
            ("Max open files", Some(both(OPEN_MAX))),
            ("Max processes", self.processes.map(both)),
            ("Max cpu time", cpu),
        ]
        .into_iter()
        .all(|(name, wanted)| {
            let Some((soft, hard)) = wanted else { return true };
            let line = limits.lines().find_map(|line| line.strip_prefix(name));
            let words: Vec<&str> = line.unwrap_or_default().split_whitespace().take(2).collect();
            words == [soft, hard]
        })
    }
}

impl Setter {
    /// `prlimit`, where it is installed.
    pub fn installed() -> Self {
        if std::path::Path::new(PRLIMIT).exists() { Setter::Prlimit } else { Setter::Nobody }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn limits_after(words: &[&str]) -> String {
        let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn a_shell_and_prlimit_set_the_same() {
        let trial = Rlimits::trial();
        let script = format!("{}exec cat /proc/self/limits", trial.script());
        let by_shell = limits_after(&["/bin/dash", "-c", &script]);
        let mut words = trial.prlimit();
        words.extend(["cat", "/proc/self/limits"].map(String::from));
        let by_prlimit = limits_after(&words.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(trial.are_set(&by_prlimit), "{by_prlimit}");
        assert!(trial.are_set(&by_shell), "{by_shell}");
        assert_eq!(by_shell, by_prlimit);
    }

    // Bash counts pipes where dash counts processes, and files in other blocks: it must not be trusted with this.
    #[test]
    fn a_shell_that_counts_otherwise_is_noticed() {
        let script = format!("{}exec cat /proc/self/limits", Rlimits::trial().script());
        let output = Command::new("/bin/bash").args(["-c", &script]).output().unwrap();
        let limits = String::from_utf8(output.stdout).unwrap();
        assert!(!Rlimits::trial().are_set(&limits), "{limits}");
    }

    #[test]
    fn every_limit_is_looked_at() {
        let trial = Rlimits::trial();
        let text = "Max cpu time 50 51 seconds\nMax file size 3145728 3145728 bytes\nMax core file size 0 0 bytes\n\
                    Max processes 4000 4000 processes\nMax open files 256 256 files\nMax address space 1073741824 \
                    1073741824 bytes\n";
        assert!(trial.are_set(text));
        for line in text.lines() {
            assert!(!trial.are_set(&text.replace(line, "")), "without {line}");
        }
        assert!(!trial.are_set(&text.replace("50 51", "51 51")));
    }
}
