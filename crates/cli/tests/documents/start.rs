//! `docs/start.md`: a server in its own folder, commands, a worker in Python, requests, a client of Tarantool's queue, and a restart.

use crate::document_run::{DocumentRun, document_tests};

document_tests! {
    every_command_of_the_start_page_runs: "docs/start.md", steps;
}

/// Runs the examples of a session of Python and compares what they print.
const SESSION: &str = "\
import doctest, sys
test = doctest.DocTestParser().get_doctest(sys.stdin.read(), {}, 'session', None, 0)
sys.exit(doctest.DocTestRunner(verbose=False).run(test).failed)
";

// The page was written by hand from runs by hand: a renamed command or another column stayed in it.
fn steps(document: &mut DocumentRun) -> Option<()> {
    for _session in ["serve", "put", "take", "peek"] {
        document.run();
    }
    document.install_python_package()?;
    document.file("python", "tasks.py");
    document.run();
    document.stop_program();
    document.run();
    document.succeed("sed -i 's/raise ValueError.*/to += \"@example.org\"/' tasks.py");
    document.start_program("python -m taskyard worker tasks:app", "");
    document.run();
    document.prints("mail to bob@example.org");
    document.stop_program();
    // Requests with curl.
    document.run();
    // Of the session with Python, the tools of the tests have the package that it installs.
    document.with_python()?;
    let session = document.next(&["console"]).text;
    let (_, statements) = session.split_once(">>>").expect("the session has statements");
    document.write("session.txt", &document.named_as_here(&format!(">>>{statements}")));
    document.write("session.py", SESSION);
    document.succeed("python session.py < session.txt");
    let shown = document.next(&["console"]).text;
    // The line before it is on the error output.
    let end = document.stop_server();
    assert!(shown.ends_with(&end), "{end}");
    document.serve();
    let left = document.succeed("taskyard tasks mail");
    assert!(left.contains("cy@example.org") && left.lines().count() == 2, "{left}");
    Some(())
}
