//! The progress of long commands, which only a person at a terminal sees.

use crate::process::TestServer;
use crate::pseudo_terminal::PseudoTerminal;

/// Clears the line that shows the progress.
const CLEARED: &str = "\r\u{1b}[K";

/// A server with 24,000 tasks: a search compares 20,000 in one request.
fn server() -> TestServer {
    // A manager would add a task of its own.
    let server = TestServer::with(&["--no-manager"]);
    let lines: String = (0..24_000).map(|number| format!("{number}\n")).collect();
    server.serving.run_with(&["put", "mail", "--lines"], &lines).good();
    server
}

/// The first request has compared five of six parts: 33 of 40 cells.
fn bar() -> String {
    format!("{CLEARED}{}{} 20,000 of 24,000 tasks  ", "█".repeat(33), "░".repeat(7))
}

#[test]
fn a_search_shows_how_many_tasks_it_has_compared() {
    let server = server();
    for (args, result) in [
        ("tasks mail --match nothing", "no such task in mail"),
        ("delete mail --match nothing --dry-run", "0 tasks would be deleted"),
        ("delete mail --created-until 2000-01-01 --dry-run", "0 tasks would be deleted"),
    ] {
        let screen = PseudoTerminal::start(&format!("{args} --url {}", server.serving.url)).ended();
        let (_, shown) = screen.split_once(&bar()).unwrap_or_else(|| panic!("{args}: {screen:?}"));
        let (progress, after) = shown.rsplit_once(CLEARED).expect("the line is cleared");
        assert!(progress.contains(" left  compared"), "{args}: {screen:?}");
        assert!(after.starts_with(result), "{args}: {screen:?}");
    }
}

/// The commands that work on many tasks, each with what its bar and its result say. One task more, of an internal tube, says who made the
/// tube.
fn long_commands(url: &str, folder: &str) -> [(String, &'static str, String); 4] {
    [
        (
            format!("backup {folder}/b --force --url {url}"),
            "backed up",
            "backed up 24001 tasks in 2 tubes ".into(),
        ),
        (
            format!("restore {folder}/b --check"),
            "verified",
            format!("{folder}/b is intact: 24001 tasks"),
        ),
        (
            format!("restore {folder}/b --data {folder}/data"),
            "restored",
            "restored 24001 tasks in 2 tubes ".into(),
        ),
        (format!("delete mail --all --yes --url {url}"), "compared", "deleted 24000 tasks".into()),
    ]
}

#[test]
fn long_commands_show_a_bar_in_a_terminal() {
    let (server, temporary) = (server(), tempfile::tempdir().unwrap());
    let folder = temporary.path().to_str().unwrap();
    for (args, what, result) in long_commands(&server.serving.url, folder) {
        let screen = PseudoTerminal::start(&args).ended();
        let (_, shown) = screen.split_once(CLEARED).unwrap_or_else(|| panic!("{args}: {screen:?}"));
        let (progress, after) = shown.rsplit_once(CLEARED).expect("the line is cleared");
        let cells = progress.chars().take_while(|c| "█░".contains(*c)).count();
        assert_eq!(cells, 40, "{args}: {screen:?}");
        assert!(progress.contains(&format!(" left  {what}")), "{args}: {screen:?}");
        assert!(after.starts_with(&result), "{args}: {screen:?}");
    }
}

/// A bar in the log of a nightly backup would be one line of control characters.
#[test]
fn long_commands_print_no_control_characters_without_a_terminal() {
    let (server, temporary) = (server(), tempfile::tempdir().unwrap());
    let folder = temporary.path().to_str().unwrap();
    for (args, _, result) in long_commands(&server.serving.url, folder) {
        let ran = server.run(&args.split(' ').collect::<Vec<_>>()).ends(0);
        let is_control = |c: char| c.is_control() && c != '\n';
        assert!(!ran.out.contains(is_control) && !ran.err.contains(is_control), "{ran:?}");
        assert!(ran.out.starts_with(&result) && !ran.err.contains('█'), "{ran:?}");
    }
}

#[test]
fn puts_are_counted() {
    let server = TestServer::new();
    let folder = tempfile::tempdir().unwrap();
    let lines = folder.path().join("lines");
    std::fs::write(&lines, "1\n2\n3\n").unwrap();
    let args = format!("put mail --lines --url {} < {}", server.serving.url, lines.display());
    let screen = PseudoTerminal::start(&args).ended();
    assert!(screen.contains(CLEARED) && screen.contains(" tasks put, "), "{screen:?}");
}

#[test]
fn a_program_that_reads_the_output_sees_no_progress() {
    let server = server();
    let ran = server.run(&["tasks", "mail", "--match", "nothing"]).ends(0);
    assert_eq!((ran.out.as_str(), ran.err.trim_end()), ("", "no such task in mail"));
}
