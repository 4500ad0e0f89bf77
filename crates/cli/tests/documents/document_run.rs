//! Runs a document as its reader would: each block of code in its order, in one folder, and compares what is printed with what the
//! document shows.

use std::any::Any;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use taskyard_testkit::server_process::{ServerProcess, shown_iproto};
use taskyard_testkit::skipped::is_embedded;
use tempfile::TempDir;

use crate::not_run::is_run_here;
use crate::page::{CodeBlock, DocumentPage, commands, difference, normalized};
use crate::process::{Serving, binary};
use crate::program::{EndedProgram, Program};

/// How long a command may run, and may be repeated until it prints what the document shows.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a script may run: it may install packages.
const PATIENCE_OF_SCRIPTS: Duration = Duration::from_secs(300);

/// The time between two tries of what is repeated until it succeeds.
const PAUSE: Duration = Duration::from_millis(50);

/// The variables of this shell that commands have. Others choose servers, proxies or options of the tools.
const ENVIRONMENT: [&str; 4] = ["PATH", "HOME", "LANG", "TMPDIR"];

/// Commands that run a server, which the commands after them use.
const SERVERS: [&str; 3] = ["taskyard serve", "taskyard pool serve", "taskyard pool gateway"];

/// Commands that run until they are stopped.
const PROGRAMS: [&str; 7] = [
    "python -m taskyard worker",
    "redis-server",
    "taskyard worker",
    "taskyard sql --database",
    "taskyard pool scheduler",
    "taskyard pool backend",
    "node forward.mjs",
];

/// Those that print nothing before they have something to do.
const SILENT: [&str; 1] = ["taskyard worker"];

/// A document that is being run.
pub struct DocumentRun {
    page: DocumentPage,
    /// How many of its blocks were passed, run or not.
    passed: usize,
    server: Option<Serving>,
    programs: Vec<Program>,
    folder: TempDir,
    /// What the document calls something, and what it is here.
    names: Vec<(String, String)>,
    variables: Vec<(String, OsString)>,
    path: Vec<PathBuf>,
    /// What has to live as long as this.
    fixtures: Vec<Box<dyn Any>>,
}

/// Runs a document. All of its blocks must have been run. The steps may return nothing where the tests run without tools.
#[track_caller]
pub fn run_document(name: &str, steps: impl FnOnce(&mut DocumentRun) -> Option<()>) {
    let mut document = DocumentRun::new(name);
    if steps(&mut document).is_none() {
        // What is missing was noted when it was looked for.
        assert!(is_embedded(), "{name}: its steps ended early");
        return;
    }
    let left = document.rest().first().map(|block| block.line);
    assert_eq!(left, None, "{name}: the block in this line is not run");
}

/// A test for each document, and the list of these documents.
macro_rules! document_tests {
    ($($test:ident: $page:literal, $steps:expr;)*) => {
        /// The documents that are run here.
        pub const PAGES: &[&str] = &[$($page),*];
        $(
            #[test]
            fn $test() {
                crate::document_run::run_document($page, $steps);
            }
        )*
    };
}
pub(crate) use document_tests;

/// Runs a document of commands on an empty server.
pub fn commands_on_a_server(document: &mut DocumentRun) -> Option<()> {
    document.serve();
    document.run_all();
    Some(())
}

impl DocumentRun {
    fn new(name: &str) -> Self {
        let program = PathBuf::from(binary().get_program());
        let programs = program.parent().expect("it is in a folder").to_owned();
        DocumentRun {
            page: DocumentPage::read(name),
            passed: 0,
            server: None,
            programs: Vec::new(),
            folder: tempfile::tempdir().expect("a folder can be made"),
            names: Vec::new(),
            variables: Vec::new(),
            path: vec![programs],
            fixtures: Vec::new(),
        }
    }

    /// Starts a server on an empty folder.
    pub fn serve(&mut self) {
        self.start_server("taskyard serve", "");
    }

    /// Stops the server, and returns the end of what it printed.
    pub fn stop_server(&mut self) -> String {
        let server = self.server.take().expect("a server runs");
        server.signal("INT");
        let (status, printed) = server.ended();
        assert!(status.success(), "{printed}");
        printed
    }

    /// The folder of the reader.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Calls something in the document by the name that it has here.
    pub fn rename(&mut self, shown: &str, own: impl Into<String>) {
        self.names.push((shown.into(), own.into()));
    }

    /// Sets a variable of the environment.
    pub fn set(&mut self, name: &str, value: impl Into<OsString>) {
        self.variables.push((name.into(), value.into()));
    }

    /// Finds programs in this folder first.
    pub fn find_in(&mut self, folder: impl Into<PathBuf>) {
        self.path.insert(1, folder.into());
    }

    /// Keeps something for as long as the document is run.
    pub fn keep(&mut self, fixture: impl Any) {
        self.fixtures.push(Box::new(fixture));
    }

    /// The blocks that are not run yet.
    fn rest(&self) -> Vec<CodeBlock> {
        let rest = self.page.blocks[self.passed..].iter();
        rest.filter(|block| is_run_here(&self.page.name, block)).cloned().collect()
    }

    /// The next block, which is in one of these languages.
    #[track_caller]
    pub fn next(&mut self, languages: &[&str]) -> CodeBlock {
        let (page, rest) = (&self.page.name, self.rest());
        let block = rest.first().unwrap_or_else(|| panic!("{page} has no block any more"));
        let is_expected = languages.contains(&block.language.as_str());
        assert!(is_expected, "{page}:{} is no block of {languages:?}", block.line);
        let at = self.page.blocks.iter().position(|other| other.line == block.line);
        self.passed = at.expect("it is a block of the page") + 1;
        block.clone()
    }

    /// Writes the next block into a file.
    #[track_caller]
    pub fn file(&mut self, language: &str, name: &str) {
        let text = self.next(&[language]).text;
        self.write(name, &self.named_as_here(&text));
    }

    /// Writes a file.
    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.folder().join(name), text).expect("a file can be written");
    }

    /// Writes the next block into a file, runs the file, and compares what it prints with the block after it.
    #[track_caller]
    pub fn program(&mut self, language: &str, command: &str) {
        let name = command.split(' ').next_back().unwrap_or_default();
        self.file(language, name);
        let printed = self.succeed(command);
        let shown = self.next(&["text"]);
        self.compare(&shown, command, &shown.text, &printed);
    }

    /// Runs all commands that are left.
    #[track_caller]
    pub fn run_all(&mut self) {
        assert!(!self.rest().is_empty(), "{} has no commands", self.page.name);
        while !self.rest().is_empty() {
            self.run();
        }
    }

    /// Runs the commands of the next block.
    #[track_caller]
    pub fn run(&mut self) {
        let block = self.next(&["console", "sh"]);
        for (command, shown) in commands(&block) {
            self.run_command(&block, &command, &shown);
        }
    }

    /// Runs the next block as one script, whose commands share a folder and an environment, and which may take minutes.
    #[track_caller]
    pub fn run_as_script(&mut self) {
        let text = self.next(&["sh"]).text;
        let program = Program::start(&mut self.shell(&format!("exec 2>&1; set -e\n{text}")));
        match program.ended(PATIENCE_OF_SCRIPTS) {
            Ok(ended) if ended.status.success() => {}
            Ok(ended) => panic!("{}: {text}: {}", self.page.name, ended.printed),
            Err(printed) => panic!("{}: {text} did not end: {printed}", self.page.name),
        }
    }

    /// Runs the commands of the next block, each until it prints what the document shows.
    #[track_caller]
    pub fn run_until(&mut self) {
        self.run_until_same(str::to_owned);
    }

    /// Runs the commands of the next block, each until it prints what the document shows but for the numbers.
    #[track_caller]
    pub fn words_until(&mut self) {
        self.run_until_same(words);
    }

    /// Runs the commands of the next block, each until this part of what it prints is the same as in the document.
    #[track_caller]
    fn run_until_same(&mut self, part: impl Fn(&str) -> String) {
        let block = self.next(&["console"]);
        for (command, shown) in commands(&block) {
            let shown = part(&shown);
            self.repeat(|document| {
                let text = difference(&shown, &part(&document.succeed(&command)))?;
                Some(format!("{}: {command}\n{text}", block.line))
            });
        }
    }

    /// Repeats this until nothing is missing any more.
    #[track_caller]
    fn repeat(&self, missing: impl Fn(&DocumentRun) -> Option<String>) {
        let began = Instant::now();
        while let Some(text) = missing(self) {
            assert!(began.elapsed() < PATIENCE, "{}: {text}", self.page.name);
            // tidy: sleep because other processes do not tell when they are done
            thread::sleep(PAUSE);
        }
    }

    #[track_caller]
    fn run_command(&mut self, block: &CodeBlock, command: &str, shown: &str) {
        let begins = |names: &[&str]| names.iter().any(|name| command.starts_with(name));
        if let Some(setting) = command.strip_prefix("export ") {
            let setting = self.named_as_here(setting.split(" #").next().unwrap_or_default());
            let (name, value) = setting.trim().split_once('=').expect("a variable has a value");
            self.set(name, value);
        } else if begins(&SERVERS) {
            self.start_server(command, shown);
        } else if begins(&PROGRAMS) {
            self.start_program(command, shown);
        } else {
            let ended = self.output(command);
            // A refusal is shown as it is printed.
            let is_refused = shown.starts_with("taskyard: ");
            let place = format!("{}:{}: {command}", self.page.name, block.line);
            assert!(ended.status.success() != is_refused, "{place}: {}", ended.printed);
            self.compare(block, command, shown, &ended.printed);
        }
    }

    #[track_caller]
    fn compare(&self, block: &CodeBlock, command: &str, shown: &str, printed: &str) {
        let place = format!("{}:{}: {command}", self.page.name, block.line);
        if let Some(text) = difference(shown, printed) {
            panic!("{place}\n{text}");
        }
    }

    /// Runs a command that must succeed, and returns what it printed.
    #[track_caller]
    pub fn succeed(&self, command: &str) -> String {
        let ended = self.output(command);
        assert!(ended.status.success(), "{}: {command}: {}", self.page.name, ended.printed);
        ended.printed
    }

    #[track_caller]
    fn output(&self, command: &str) -> EndedProgram {
        let program = Program::start(&mut self.shell(&format!("exec 2>&1; {command}")));
        let ended = program.ended(PATIENCE);
        ended.unwrap_or_else(|printed| {
            panic!("{}: {command} did not end and printed {printed}", self.page.name)
        })
    }

    /// Starts a server on free ports in place of the one that runs, and compares the lines of its start screen that are shown.
    #[track_caller]
    pub fn start_server(&mut self, command: &str, shown: &str) {
        self.server = None;
        let name = SERVERS.iter().find(|name| command.starts_with(**name)).expect("it serves");
        let flags = [("--http ", "--http 127.0.0.1:0"), ("--iproto ", "--iproto 127.0.0.1:0")];
        let is_missing = |(flag, _): &&(&str, &str)| !command.contains(flag);
        let wanted = if *name == SERVERS[0] { 2 } else { 1 };
        let missing = flags[..wanted].iter().filter(is_missing).map(|(_, given)| *given);
        let flags = missing.collect::<Vec<_>>().join(" ");
        let rest = &command[name.len()..];
        let mut shell = self.shell(&format!("exec {name} {flags}{rest}"));
        let server = Serving { process: ServerProcess::start(&mut shell) };
        assert_start_screen(shown, &server, &self.names);
        self.server = Some(server);
    }

    /// Starts a program that goes on, and waits until it has printed the lines that are shown, in any order, or its first one.
    #[track_caller]
    pub fn start_program(&mut self, command: &str, shown: &str) {
        let program = Program::start(&mut self.shell(&format!("exec 2>&1; exec {command}")));
        let mut missing: Vec<String> = normalized(shown).lines().map(String::from).collect();
        missing.retain(|line| !line.is_empty());
        let is_silent = SILENT.iter().any(|name| command.starts_with(name)) && missing.is_empty();
        if !is_silent {
            let read = program.read_to(PATIENCE, |printed| {
                let printed = normalized(printed);
                // A line that is shown twice has to be printed twice.
                let found = missing.iter().position(|line| *line == printed);
                found.map(|at| missing.remove(at));
                missing.is_empty()
            });
            assert_eq!(read, Ok(()), "{}: {command} without {missing:?}", self.page.name);
        }
        self.programs.push(program);
    }

    /// Asks until the answer is yes.
    #[track_caller]
    pub fn until(&self, what: &str, is_so: impl Fn(&DocumentRun) -> bool) {
        self.repeat(|document| (!is_so(document)).then(|| format!("never: {what}")));
    }

    /// Waits for a line of the program that was started last.
    #[track_caller]
    pub fn prints(&self, wanted: &str) {
        let program = self.programs.last().expect("a program runs");
        let read = program.read_to(PATIENCE, |line| line.trim_end() == wanted);
        assert_eq!(read, Ok(()), "{}: without {wanted}", self.page.name);
    }

    /// Stops the program that was started last, as Ctrl-C does.
    pub fn stop_program(&mut self) {
        self.programs.pop().expect("a program runs").stop(PATIENCE);
    }

    /// Kills the program that was started last.
    pub fn kill_program(&mut self) {
        self.programs.pop().expect("a program runs");
    }

    /// A shell in the folder, in which the names of the document are those of here.
    fn shell(&self, command: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", &self.named_as_here(command)]).current_dir(self.folder());
        shell.env_clear().stdin(Stdio::null());
        for name in ENVIRONMENT {
            shell.envs(std::env::var_os(name).map(|value| (name, value)));
        }
        shell.env("PYTHONUNBUFFERED", "1").env("PYTHONDONTWRITEBYTECODE", "1");
        let usual = std::env::var_os("PATH").unwrap_or_default();
        let path = self.path.iter().cloned().chain(std::env::split_paths(&usual));
        shell.env("PATH", std::env::join_paths(path).expect("folders have plain names"));
        if let Some(server) = &self.server {
            shell.env("TASKYARD_URL", &server.url);
        }
        shell.envs(self.variables.iter().map(|(name, value)| (name, value)));
        shell
    }

    /// A text of the document with the names and addresses that are used here. None of the usual ports is left: the text would reach
    /// another server of this machine.
    #[track_caller]
    pub fn named_as_here(&self, text: &str) -> String {
        let mut names = self.names.clone();
        if let Some(server) = &self.server {
            let (_, http) = server.url.split_once("://").expect("a URL");
            names.extend(
                ["localhost:7070", "127.0.0.1:7070"].map(|name| (name.into(), http.into())),
            );
            let iproto = shown_iproto(&server.screen);
            if let Some((host, port)) = iproto.rsplit_once(':') {
                names.push(("127.0.0.1:3301".into(), iproto.into()));
                names.push(("\"127.0.0.1\", 3301".into(), format!("\"{host}\", {port}")));
            }
        }
        let http = self.server.as_ref().and_then(|server| server.url.split_once("://"));
        for (_, own) in &mut names {
            *own = own.replace("{http}", http.map_or("", |(_, http)| http));
        }
        let left =
            names.iter().fold(text.to_owned(), |left, (shown, _)| renamed(&left, shown, " "));
        let has_usual_port = [":7070", "3301"].iter().any(|port| renamed(&left, port, "") != left);
        assert!(!has_usual_port, "an address is not that of the tested server: {text}");
        names.iter().fold(text.to_owned(), |text, (shown, own)| renamed(&text, shown, own))
    }
}

/// A text with another name for something. A name that begins or ends with a number is not found inside a longer number.
fn renamed(text: &str, from: &str, to: &str) -> String {
    let is_digit = |c: Option<char>| c.is_some_and(|c| c.is_ascii_digit());
    let is_inside = |name: Option<char>, beside: Option<char>| is_digit(name) && is_digit(beside);
    let (mut renamed, mut copied) = (String::new(), 0);
    for (at, _) in text.match_indices(from).filter(|_| !from.is_empty()) {
        let end = at + from.len();
        let is_part = is_inside(from.chars().next(), text[..at].chars().next_back())
            || is_inside(from.chars().next_back(), text[end..].chars().next());
        if !is_part {
            renamed.extend([&text[copied..at], to]);
            copied = end;
        }
    }
    renamed + &text[copied..]
}

/// A text whose numbers are the same in every run.
fn words(text: &str) -> String {
    let mut words = String::new();
    for c in normalized(&text.replace("µs", "s")).chars() {
        match c.is_ascii_digit() || c == 'N' || c == '.' {
            true if words.ends_with('N') => {}
            true => words.push('N'),
            false => words.push(c),
        }
    }
    // A duration may have two parts.
    while words.contains("N s N s") {
        words = words.replace("N s N s", "N s");
    }
    words
}

/// The lines of a start screen that a document shows are in it, in their order.
#[track_caller]
fn assert_start_screen(shown: &str, server: &Serving, names: &[(String, String)]) {
    let (_, http) = server.url.split_once("://").expect("a URL");
    let mut screen = server.screen.replace(http, "127.0.0.1:7070");
    let iproto = shown_iproto(&server.screen);
    if iproto.contains(':') {
        screen = screen.replace(iproto, "127.0.0.1:3301");
    }
    for (name, own) in names {
        screen = renamed(&screen, own, name);
    }
    let screen = normalized(&screen);
    let mut printed = screen.lines();
    for line in normalized(shown).lines() {
        let is_it = |printed: &str| match line.strip_suffix('…') {
            Some(begin) => printed.starts_with(begin.trim_end()),
            None => printed == line,
        };
        assert!(printed.any(is_it), "no line {line:?} in {screen}");
    }
}

// Ports of the tests are free ones: 13301 was taken for 3301, and 16390 was replaced again.
#[test]
fn a_port_is_not_found_inside_another_one() {
    assert_eq!(renamed("6390 16390 63901 :6390", "6390", "16390"), "16390 16390 63901 :16390");
    assert_eq!(renamed("localhost:13301", "3301", ""), "localhost:13301");
    assert_eq!(renamed("127.0.0.1:7070", "", "/etc/taskyard/"), "127.0.0.1:7070");
}

#[test]
#[should_panic(expected = "not that of the tested server: curl 127.1:7070")]
fn an_address_in_other_words_does_not_run() {
    let mut document = DocumentRun::new("docs/start.md");
    document.serve();
    document.named_as_here("curl 127.1:7070");
}
