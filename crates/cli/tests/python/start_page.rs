//! The commands of `docs/start.md`, run in their order: a server in its own folder, commands, a worker in Python, requests, a client of
//! Tarantool's queue, and a restart.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use taskyard_testkit::server_process::shown_iproto;

use crate::document_page::{DocumentPage, assert_start_screen, normalized, with_addresses};
use crate::package::interpreter;
use crate::process::{Running, Serving, binary};

/// The sources of the Python package: another test builds and installs it.
const PACKAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../clients/python/src");

/// Runs the examples of a session of Python and compares what they print.
const SESSION: &str = "\
import doctest, sys
test = doctest.DocTestParser().get_doctest(sys.stdin.read(), {}, 'session', None, 0)
sys.exit(doctest.DocTestRunner(verbose=False).run(test).failed)
";

struct StartPage {
    page: DocumentPage,
    python: PathBuf,
    folder: tempfile::TempDir,
}

impl StartPage {
    fn serve(&self) -> Serving {
        let mut serve = binary();
        serve.args(["serve", "--http", "127.0.0.1:0", "--iproto", "127.0.0.1:0"]);
        Serving::start(serve.current_dir(self.folder.path()))
    }

    fn worker(&self, server: &Serving) -> Running {
        let mut worker = Command::new(&self.python);
        worker.args(["-u", "-m", "taskyard", "worker", "tasks:app"]).stdin(Stdio::null());
        worker.env("PYTHONPATH", PACKAGE).env("PYTHONDONTWRITEBYTECODE", "1");
        worker.env("TASKYARD_URL", &server.url);
        Running::start(worker.current_dir(self.folder.path()))
    }

    /// Runs the sessions whose first command contains this, of which there is at least one.
    fn run(&self, text: &str, server: &Serving) {
        let sessions = self.page.blocks(&["console"]).into_iter();
        let chosen: Vec<_> =
            sessions.filter(|block| first_line(&block.text).contains(text)).collect();
        assert!(!chosen.is_empty(), "docs/start.md has no session that begins with {text}");
        chosen.iter().for_each(|block| self.page.run(block, server, self.folder.path()));
    }

    fn shown(&self, text: &str) -> String {
        let sessions = self.page.blocks(&["console"]);
        let block = sessions.iter().find(|block| first_line(&block.text).contains(text));
        block.unwrap_or_else(|| panic!("docs/start.md has no {text}")).text.clone()
    }

    fn path(&self, name: &str) -> PathBuf {
        Path::new(self.folder.path()).join(name)
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// The part of a line of the worker's log behind its time.
fn message(line: &str) -> String {
    let words: Vec<&str> = line.splitn(3, ' ').collect();
    normalized(words[2])
}

// The page was written by hand from runs by hand: a renamed command or another column stayed in it.
#[test]
fn every_command_of_the_start_page_runs() {
    let Some(python) = interpreter() else { return };
    let (page, folder) = (DocumentPage::read("docs/start.md"), tempfile::tempdir().unwrap());
    let start = StartPage { page, python, folder };
    let server = start.serve();
    assert_start_screen(&start.shown("taskyard serve"), &server);
    start.run("taskyard put mail", &server);
    start.run("taskyard take mail", &server);
    start.run("taskyard peek mail", &server);

    let program = start.page.blocks(&["python"]).remove(0).text;
    let program = with_addresses(&program, &[]);
    fs::write(start.path("tasks.py"), &program).unwrap();
    let mut worker = start.worker(&server);
    let shown = start.shown("taskyard worker tasks:app");
    for line in shown.lines().skip(1) {
        // Tracebacks are left out in the page.
        let mut printed = worker.error_line();
        while !printed.starts_with(|c: char| c.is_ascii_digit()) {
            assert!(!printed.is_empty(), "the worker ended before {line}");
            printed = worker.error_line();
        }
        assert_eq!(message(&printed), message(line));
    }
    worker.signal("INT");
    worker.ended();
    start.run("--state buried", &server);

    let raise = program.lines().find(|line| line.contains("raise ")).expect("it raises").trim();
    fs::write(start.path("tasks.py"), program.replace(raise, "to += \"@example.org\"")).unwrap();
    let mut worker = start.worker(&server);
    start.run("taskyard retry mail", &server);
    assert_eq!(worker.line(), "mail to bob@example.org\n");
    worker.signal("INT");
    worker.ended();

    start.run("curl", &server);
    start.python_session(&server);
    server.signal("INT");
    let (status, last_line) = server.ended();
    // The line before it is on the error output.
    assert!(status.success() && start.shown("stopping;").ends_with(&last_line), "{last_line}");
    let server = start.serve();
    let left = server.run(&["tasks", "mail"]).good();
    assert!(left.contains("cy@example.org") && left.lines().count() == 2, "{left}");
}

impl StartPage {
    /// The session with a client of Tarantool's queue; the tools of the tests have that client.
    fn python_session(&self, server: &Serving) {
        let session = self.shown("python3 -m venv");
        let iproto = shown_iproto(&server.screen);
        let (host, port) = iproto.rsplit_once(':').expect("it has a port");
        let own = format!("\"{host}\", {port}");
        let code = with_addresses(&session, &[("\"127.0.0.1\", 3301", &own)]);
        let (_, code) = code.split_once(">>>").expect("the session has statements");
        fs::write(self.path("session.txt"), format!(">>>{code}")).unwrap();
        let mut python = Command::new(&self.python);
        python.args(["-c", SESSION]).stdin(fs::File::open(self.path("session.txt")).unwrap());
        let ran = python.output().expect("Python starts");
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stdout));
    }
}
