//! `docs/start.md`: a server in its own folder, commands, a worker in Python, requests, a client of Tarantool's queue, and a restart.

use crate::play::{Play, plays};

plays! {
    every_command_of_the_start_page_runs: "docs/start.md", steps;
}

/// Runs the examples of a session of Python and compares what they print.
const SESSION: &str = "\
import doctest, sys
test = doctest.DocTestParser().get_doctest(sys.stdin.read(), {}, 'session', None, 0)
sys.exit(doctest.DocTestRunner(verbose=False).run(test).failed)
";

// The page was written by hand from runs by hand: a renamed command or another column stayed in it.
fn steps(play: &mut Play) -> Option<()> {
    play.with_python()?;
    for _session in ["serve", "put", "take", "peek"] {
        play.run();
    }
    play.file("python", "tasks.py");
    play.run();
    play.stop_program();
    play.run();
    play.succeed("sed -i 's/raise ValueError.*/to += \"@example.org\"/' tasks.py");
    play.start_program("python -m taskyard worker tasks:app", "");
    play.run();
    play.prints("mail to bob@example.org");
    play.stop_program();
    // Requests with curl.
    play.run();
    // Of the session with Python, the tools of the tests have the package that it installs.
    let session = play.next(&["console"]).text;
    let (_, statements) = session.split_once(">>>").expect("the session has statements");
    play.write("session.txt", &play.named_as_here(&format!(">>>{statements}")));
    play.write("session.py", SESSION);
    play.succeed("python session.py < session.txt");
    let shown = play.next(&["console"]).text;
    // The line before it is on the error output.
    let end = play.stop_server();
    assert!(shown.ends_with(&end), "{end}");
    play.serve();
    let left = play.succeed("taskyard tasks mail");
    assert!(left.contains("cy@example.org") && left.lines().count() == 2, "{left}");
    Some(())
}
