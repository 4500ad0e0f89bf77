//! The container: built and run where podman or docker works, and its root folder with its command line in a sandbox elsewhere.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use taskyard_testkit::free_port;
use taskyard_testkit::skipped::{find_tool, skip, skip_without};
use tempfile::TempDir;

use super::{FILES, KeptProgram, children, deploy_file, write_secret};
use crate::process::{Ran, TOKEN, run};

/// The port of the server in the container.
const PORT: &str = "7070";

/// The words of an instruction of the Containerfile that is a JSON list.
fn instruction(name: &str) -> Vec<String> {
    let file = deploy_file("container/Containerfile");
    let line = file.lines().find(|line| line.starts_with(&format!("{name} ")));
    let line = line.unwrap_or_else(|| panic!("no {name} in the Containerfile"));
    serde_json::from_str(&line[line.find('[').expect("a list")..]).expect("a list of words")
}

/// Makes the root folder as the Containerfile does, with the program that is tested.
fn make_root(folder: &Path) {
    let script = Path::new(FILES).join("container/root.sh");
    let mut make = Command::new("sh");
    let made = make.arg(script).arg(env!("CARGO_BIN_EXE_taskyard")).arg(folder).output();
    let made = made.expect("a shell can be started");
    assert!(made.status.success(), "{}", text(&made));
}

fn text(output: &Output) -> String {
    let bytes = [&output.stdout[..], &output.stderr].concat();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Runs a client command against the published port.
fn client(port: u16, token: &Path, args: &[&str]) -> Ran {
    let url = format!("http://127.0.0.1:{port}");
    run(&[args, &["--url", &url, "--token-file", token.to_str().unwrap()]].concat())
}

/// A root folder with its volume and its secret.
struct ContainerFolders {
    folder: TempDir,
}

impl ContainerFolders {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        make_root(&folder.path().join("root"));
        fs::create_dir(folder.path().join("data")).unwrap();
        fs::create_dir(folder.path().join("secrets")).unwrap();
        let folders = ContainerFolders { folder };
        write_secret(&folders.token(), TOKEN);
        folders
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn token(&self) -> PathBuf {
        self.path("secrets/token")
    }

    /// Bubblewrap with what `run.sh` asks of a container: a read-only root, the user, no capabilities, the volumes, `/tmp`.
    fn sandbox(&self) -> Command {
        let mut bubblewrap = Command::new("/usr/bin/bwrap");
        bubblewrap.args(["--unshare-all", "--share-net", "--die-with-parent", "--clearenv"]);
        bubblewrap.args(["--uid", "10001", "--gid", "10001", "--cap-drop", "ALL", "--ro-bind"]);
        bubblewrap
            .arg(self.path("root"))
            .arg("/")
            .arg("--bind")
            .arg(self.path("data"))
            .arg("/data");
        bubblewrap.arg("--ro-bind").arg(self.path("secrets")).arg("/run/secrets");
        bubblewrap.args(["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--"]);
        bubblewrap
    }
}

/// Whether bubblewrap works; if not, the test is skipped.
fn has_bubblewrap() -> bool {
    let program = "/usr/bin/bwrap";
    if !Path::new(program).exists() {
        skip_without(program);
        return false;
    }
    let mut trial = Command::new(program);
    trial.args(["--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "/bin/true"]);
    let works = trial.output().is_ok_and(|ended| ended.status.success());
    if !works {
        skip("bubblewrap does not work on this machine");
    }
    works
}

/// Every file below a folder, by its path from there.
fn files_below(folder: &Path, at: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(at).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files_below(folder, &path, found),
            false => found.push(path.strip_prefix(folder).unwrap().display().to_string()),
        }
    }
}

#[test]
fn the_command_line_of_the_container_runs_in_its_root_folder() {
    if !has_bubblewrap() {
        return;
    }
    let folders = ContainerFolders::new();
    let port = free_port();
    let with_port = |word: &String| word.replace(PORT, &port.to_string());
    let mut command = folders.sandbox();
    command.args(instruction("ENTRYPOINT")).args(instruction("CMD").iter().map(with_port));
    let server = KeptProgram::start(&command, "KILL");
    let is_healthy = || {
        let health = instruction("HEALTHCHECK");
        let url = format!("http://127.0.0.1:{port}");
        // The environment of the container is not that of the test.
        let mut check = folders.sandbox();
        check.args(&health).args(["--url", &url]).output().unwrap()
    };
    let mut health = is_healthy();
    while !health.status.success() {
        assert!(!server.has_ended(), "the server ended; {}", text(&health));
        health = is_healthy();
    }
    assert_eq!(text(&health), "ok\n");
    assert_eq!(client(port, &folders.token(), &["put", "mail", "hello"]).good(), "0\n");
    let taken = client(port, &folders.token(), &["take", "mail", "--json"]);
    assert_eq!(taken.json()[0]["data"], "hello");

    // Bubblewrap starts the first process of the namespace, which starts the server.
    let bubblewrap = server.children().pop().unwrap();
    let first = children(&bubblewrap).pop().unwrap();
    let main = children(&first).pop().unwrap();
    let status = fs::read_to_string(format!("/proc/{main}/status")).unwrap();
    for line in ["CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1"] {
        assert!(status.contains(line), "no {line} in {status}");
    }
    let arguments = fs::read_to_string(format!("/proc/{main}/cmdline")).unwrap();
    assert!(
        arguments.starts_with("/usr/local/bin/taskyard\0serve\0") && !arguments.contains(TOKEN)
    );
    assert!(folders.path("data/taskyard.db").exists());
}

#[test]
fn the_containerfile_has_no_findings_of_a_linter() {
    let Some(hadolint) = find_tool("TASKYARD_HADOLINT", "/usr/bin/hadolint") else { return };
    let lint = |file: &Path| {
        let linted = Command::new(&hadolint).arg("--no-color").arg(file).output();
        linted.expect("the linter starts")
    };
    let linted = lint(&Path::new(FILES).join("container/Containerfile"));
    assert!(linted.status.success() && text(&linted).is_empty(), "{}", text(&linted));
    // The linter sees a mistake.
    let folder = tempfile::tempdir().unwrap();
    let wrong = folder.path().join("Containerfile");
    fs::write(&wrong, "FROM debian:latest\nRUN cd /tmp && sudo true\n").unwrap();
    let linted = lint(&wrong);
    assert!(!linted.status.success() && text(&linted).contains("DL3007"), "{}", text(&linted));
}

/// A shell in the container would help an attacker more than an operator.
#[test]
fn the_container_has_nothing_but_the_program() {
    let folder = tempfile::tempdir().unwrap();
    make_root(folder.path());
    let mut files = Vec::new();
    files_below(folder.path(), folder.path(), &mut files);
    let known = |file: &&String| {
        let is_library = file.starts_with("lib") || file.starts_with("usr/lib");
        let settings = ["etc/passwd", "etc/group", "etc/nsswitch.conf"];
        is_library && file.contains(".so")
            || settings.contains(&file.as_str())
            || *file == "etc/ssl/certs/ca-certificates.crt"
            || *file == "usr/local/bin/taskyard"
    };
    let unknown: Vec<_> = files.iter().filter(|file| !known(file)).collect();
    assert!(unknown.is_empty() && files.len() > 4, "{files:?}");
}

/// The programs that run containers on this machine: installed, and able to.
fn engine() -> Option<&'static str> {
    let works = |engine: &&str| {
        Command::new(engine).arg("info").output().is_ok_and(|ended| ended.status.success())
    };
    let engine = ["podman", "docker"].into_iter().find(works);
    if engine.is_none() {
        skip("neither podman nor docker works on this machine");
    }
    engine
}

/// An image and a container, removed at the end.
struct TestContainer {
    engine: &'static str,
    name: String,
}

impl Drop for TestContainer {
    fn drop(&mut self) {
        for args in [
            ["rm", "--force", "--volumes"],
            ["volume", "rm", "--force"],
            ["image", "rm", "--force"],
        ] {
            let _ = Command::new(self.engine).args(args).arg(&self.name).output();
        }
    }
}

#[test]
fn the_container_is_built_and_runs() {
    let Some(engine) = engine() else { return };
    let folder = tempfile::tempdir().unwrap();
    let name = format!("taskyard-test-{}", std::process::id());
    let container = TestContainer { engine, name: name.clone() };
    // The program is compiled already, so the first stage only has the folder that it would make.
    let file = deploy_file("container/Containerfile");
    let second = file.find("FROM scratch").expect("a stage without a base image");
    let file = format!("FROM scratch AS build\nCOPY image /image\n\n{}", &file[second..]);
    fs::write(folder.path().join("Containerfile"), file).unwrap();
    make_root(&folder.path().join("image/root"));
    fs::create_dir_all(folder.path().join("image/owned/data")).unwrap();
    let mut build = Command::new(engine);
    build.args(["build", "--tag", &name, "--file"]).arg(folder.path().join("Containerfile"));
    let built = build.arg(folder.path()).output().unwrap();
    assert!(built.status.success(), "{}", text(&built));

    let (port, token) = (free_port(), folder.path().join("token"));
    write_secret(&token, TOKEN);
    // An ordinary user cannot give a file away, and maps its own id instead.
    let _ = std::os::unix::fs::chown(&token, Some(10001), Some(10001));
    let mut start = Command::new("sh");
    start
        .arg(Path::new(FILES).join("container/run.sh"))
        .envs([("ENGINE", engine), ("NAME", &name)]);
    start.envs([("VOLUME", &name), ("IMAGE", &name)]).env("PORT", port.to_string());
    let started = start.env("TOKEN_FILE", &token).output().unwrap();
    assert!(started.status.success(), "{}", text(&started));
    let logs = || text(&Command::new(engine).args(["logs", &name]).output().unwrap());
    let runs = || {
        let mut inspect = Command::new(engine);
        let shown = inspect.args(["inspect", "--format", "{{.State.Running}}", &name]).output();
        text(&shown.unwrap()).trim() == "true"
    };
    while client(port, &token, &["health"]).exit != 0 {
        assert!(runs(), "{}", logs());
    }
    assert_eq!(client(port, &token, &["put", "mail", "hello"]).good(), "0\n");
    let health = instruction("HEALTHCHECK");
    let health = Command::new(engine).args(["exec", &name]).args(health).output().unwrap();
    assert_eq!(text(&health), "ok\n");
    drop(container);
}
