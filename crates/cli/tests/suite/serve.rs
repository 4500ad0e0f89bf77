//! `serve`: the start message, errors at startup, and stopping.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use taskyard_testkit::certificates::self_signed;
use taskyard_testkit::server_process::shown_iproto;

use crate::process::{Ran, Running, Serving, TOKEN, TestServer, binary, run, token_file};

/// The suggested commands work in a shell.
#[test]
fn the_suggested_commands_of_the_start_message_work() {
    let server = TestServer::new();
    let screen = &server.serving.screen;
    assert!(screen.starts_with(&format!("taskyard {}", env!("CARGO_PKG_VERSION"))), "{screen}");
    assert!(screen.contains("durable") && screen.contains("0 in 0 tubes"), "{screen}");
    assert_eq!(paste(screen), 3, "{screen}");
    let stats = server.run(&["stats", "--json"]).json();
    assert_eq!(stats[0]["calls"]["ack"], 1);
}

#[test]
fn it_stops_on_a_signal_and_keeps_all_tasks() {
    for signal in ["INT", "TERM"] {
        let folder = tempfile::tempdir().unwrap();
        let serving = Serving::folder(folder.path(), &[]);
        serving.run(&["put", "mail", "a", "b"]).good();
        serving.run(&["take", "mail"]).ends(0);
        serving.signal(signal);
        let (status, rest) = serving.ended();
        assert!(status.success(), "{signal}: {status}");
        assert!(rest.starts_with("stopped; "), "{rest}");
        let serving = Serving::folder(folder.path(), &[]);
        assert!(serving.screen.contains("2 in 1 tube,"), "{}", serving.screen);
        assert!(serving.screen.contains("put mail2 "), "{}", serving.screen);
        assert_eq!(serving.run(&["stats", "--json"]).json()[0]["tasks"]["ready"], 2);
    }
}

// A server forgot at its end which user had created which tube: after each start a user could create
// as many tubes again.
#[test]
fn a_restart_does_not_raise_the_limit_of_tubes() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--tubes-per-user", "2"];
    for signal in ["TERM", "KILL"] {
        let serving = Serving::folder(folder.path(), &flags);
        for tube in ["a", "b"] {
            serving.run(&["put", tube, "1"]).good();
        }
        let refused = serving.run(&["put", "c", "1"]);
        assert!(refused.exit != 0 && refused.err.contains("--tubes-per-user"), "{refused:?}");
        serving.signal(signal);
        serving.ended();
    }
    let serving = Serving::folder(folder.path(), &flags);
    assert!(serving.screen.contains("4 in 2 tubes,"), "{}", serving.screen);
    assert_eq!(serving.run(&["stats", "--json"]).json().len(), 2, "internal tubes are not shown");
    assert_ne!(serving.run(&["put", "c", "1"]).exit, 0);
    serving.run(&["tube", "drop", "a", "--yes"]).good();
    serving.run(&["put", "c", "1"]).good();
}

#[test]
fn a_memory_store_prints_that_tasks_are_lost() {
    let mut command = binary();
    command.args(["serve", "--store", "memory:", "--http", "127.0.0.1:0"]);
    let serving = Serving::start(&mut command);
    assert!(serving.screen.contains("not durable"), "{}", serving.screen);
    serving.signal("TERM");
    assert!(serving.ended().1.contains("lost"));
}

#[test]
fn a_start_failure_prints_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let serving = Serving::folder(folder.path(), &[]);
    let second = run(&["serve", "--data", path, "--http", "127.0.0.1:0"]).ends(10);
    assert!(second.err.contains("in use"), "{}", second.err);
    let address = serving.url.trim_start_matches("http://");
    let busy = run(&["serve", "--store", "memory:", "--http", address]).ends(9);
    assert!(busy.err.contains("--http"), "{}", busy.err);
    let exposed = run(&["serve", "--store", "memory:", "--http", "0.0.0.0:0"]).ends(9);
    assert!(exposed.err.contains("--insecure"), "{}", exposed.err);
    let store = run(&["serve", "--store", "nowhere:", "--http", "127.0.0.1:0"]).ends(11);
    assert!(store.err.contains("sqlite:DIR"), "{}", store.err);
}

// A server that could not listen had already created its folder and left it empty.
#[test]
fn a_failed_start_creates_no_folder() {
    let server = TestServer::new();
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let address = server.serving.url.trim_start_matches("http://");
    run(&["serve", "--data", data.to_str().unwrap(), "--http", address]).ends(9);
    run(&["serve", "--data", data.to_str().unwrap(), "--http", "0.0.0.0:0"]).ends(9);
    assert!(!data.exists());
}

// An empty token, usually a missing secret, started the server without a token.
#[test]
fn an_empty_token_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    fs::write(&file, "\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let serve = ["serve", "--store", "memory:", "--http", "127.0.0.1:0"];
    for flags in [["--token", ""], ["--token", " "], ["--token-file", file.to_str().unwrap()]] {
        let ran = run(&[&serve[..], &flags].concat()).ends(2);
        assert!(ran.err.contains("empty") && ran.err.contains("unset"), "{}", ran.err);
    }
    let by_variable = binary().args(serve).env("TASKYARD_TOKEN", "").output().unwrap();
    assert_eq!(by_variable.status.code(), Some(2), "{by_variable:?}");
}

// A token of one character was accepted, and so was a token file that every user of the machine could read.
#[test]
fn short_tokens_and_readable_token_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = token_file(folder.path());
    let serve = ["serve", "--store", "memory:", "--http", "127.0.0.1:0", "--iproto", "off"];
    let short = finish_with(&serve, &["--token", &TOKEN[2..]]).ends(2);
    assert!(short.err.contains("15 characters") && short.err.contains("openssl"), "{}", short.err);
    for mode in [0o644, 0o602] {
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        let open = finish_with(&serve, &["--token-file", &file]).ends(2);
        assert!(open.err.contains(&format!("chmod 600 {file}")), "{}", open.err);
        assert!(!open.err.contains(TOKEN), "{}", open.err);
    }
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    let serving = Serving::start(binary().args(serve).args(["--token-file", &file]));
    serving.run(&["put", "mail", "x", "--token", TOKEN]).good();
    // The start screen suggested --token, which other users of the machine can read in the list of processes.
    let screen = &serving.screen;
    assert!(screen.contains(" --token-file FILE") && !screen.contains("--token "), "{screen}");
}

// Of the files with secrets only the token file was refused when every user of the machine could read it.
#[test]
fn readable_files_with_passwords_and_keys_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str, mode: u32| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let serve = ["serve", "--store", "memory:", "--http", "127.0.0.1:0", "--iproto", "127.0.0.1:0"];
    let own = self_signed(folder.path(), "own");
    let certificate = own.certificate.to_str().unwrap();
    for mode in [0o644, 0o602, 0o640] {
        let key = write("key.pem", &fs::read_to_string(&own.key).unwrap(), mode);
        let users = "users: [{name: ann, password: hidden-word, grants: all}]";
        let users = write("users.yaml", users, mode);
        let tasks = r#"[{"data": "postgres", "password": "hidden-word"}]"#;
        let tasks = write("tasks.json", tasks, mode);
        let database = ["--database", "host=/nowhere user=postgres"];
        let own_tls = ["--iproto-tls-cert", certificate, "--iproto-tls-key", &key];
        let tls = ["--tls-cert", certificate, "--tls-key", &key];
        let cases: [(&str, Vec<&str>); 6] = [
            (&users, [&serve[..], &["--iproto-users", &users]].concat()),
            (&key, [&serve[..], &own_tls].concat()),
            (&key, [&serve[..], &tls].concat()),
            (&tasks, [&serve[..], &["--sql", &tasks], &database].concat()),
            (&tasks, [&["sql", "--config", &tasks], &database[..]].concat()),
            (&tasks, vec!["sql", "check", &tasks]),
        ];
        for (file, args) in cases {
            // Private keys and the password of a database may be readable by a group.
            if mode != 0o640 || file == users {
                let open = run(&args).ends(2);
                assert!(open.err.contains(&format!("chmod 600 {file}")), "{args:?}: {}", open.err);
                assert!(!open.err.contains("hidden-word"), "{}", open.err);
            } else if args[0] == "serve" {
                drop(Serving::start(binary().args(args)));
            } else if args[1] == "check" {
                run(&args).good();
            }
        }
    }
    // Without a password there is no secret in the configuration of SQL tasks.
    let tasks = write("tasks.json", r#"[{"data": "postgres"}]"#, 0o644);
    run(&["sql", "check", &tasks]).good();
}

// Wrong tokens were not logged.
#[test]
fn failed_logins_are_logged() {
    let serve = ["serve", "--store", "memory:", "--http", "127.0.0.1:0", "--iproto", "off"];
    let mut serving = Running::start(binary().args(serve).args(["--token", TOKEN]));
    let mut screen = String::new();
    while !screen.contains("Ctrl-C") {
        screen.push_str(&serving.line());
    }
    let url = screen.split_whitespace().find(|word| word.starts_with("http://")).unwrap();
    let wrong = run(&["put", "mail", "x", "--url", url, "--token", "wrong-0123456789"]).ends(8);
    let logged = serving.error_line();
    assert!(logged.contains("login failed: wrong credentials"), "{logged} {wrong:?}");
    assert!(logged.contains("127.0.0.1"), "{logged}");
    assert!(!logged.contains("0123456789"), "{logged}");
}

// A server on every address printed 127.0.0.1, and no warning said that every machine could use it.
#[test]
fn an_insecure_server_warns_and_prints_its_addresses() {
    let mut command = binary();
    command.args([
        "serve",
        "--store",
        "memory:",
        "--http",
        "0.0.0.0:0",
        "--iproto",
        "off",
        "--insecure",
    ]);
    let mut running = Running::start(&mut command);
    let warning = running.error_line();
    assert!(warning.contains("warning") && warning.contains("without a token"), "{warning}");
    let mut line = running.line();
    while !line.trim().starts_with("http ") {
        line = running.line();
    }
    assert!(line.contains("every address of this machine (0.0.0.0:"), "{line}");
    running.signal("TERM");
}

// The addresses were bound, dropped and bound again once the store was open: clients that connected meanwhile were
// reset, and another program could take the port.
#[test]
fn a_starting_server_answers_that_it_is_starting() {
    // A database that accepts connections and never answers.
    let database = TcpListener::bind("127.0.0.1:0").unwrap();
    let store = format!("redis://{}", database.local_addr().unwrap());
    let mut command = binary();
    command.env("TASKYARD_LOG", "info").args(["serve", "--store", &store, "--http", "127.0.0.1:0"]);
    let mut running = Running::start(command.args(["--iproto", "off"]));
    let line = running.error_line();
    let address = line.split("http=").nth(1).and_then(|rest| rest.split_whitespace().next());
    let address = address.unwrap_or_else(|| panic!("{line}")).to_owned();
    let (_asked, _) = database.accept().unwrap();
    for (path, expected) in [("/healthz", "\"status\":\"starting\""), ("/v1/tubes", "store_away")] {
        let mut stream = TcpStream::connect(&address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
        assert!(answer.contains("retry-after: 1\r\n") && answer.contains(expected), "{answer}");
    }
    let put = run(&["put", "mail", "x", "--url", &address]);
    assert!(put.err.contains("the server is starting"), "{put:?}");
}

#[test]
fn strict_servers_create_no_tubes() {
    let server = TestServer::with(&["--strict-tubes"]);
    let refused = server.run(&["put", "my mail", "x"]).ends(4);
    assert!(refused.err.contains("taskyard tube create 'my mail'"), "{}", refused.err);
    server.run(&["tube", "create", "my mail"]).good();
    server.run(&["put", "my mail", "x"]).good();
}

// The suggested commands put into a tube that a strict server does not create.
#[test]
fn the_suggested_commands_of_a_strict_server_work() {
    let server = TestServer::with(&["--strict-tubes"]);
    assert_eq!(paste(&server.serving.screen), 4);
    assert_eq!(server.run(&["stats", "--json"]).json()[0]["calls"]["ack"], 1);
}

/// Runs the suggested commands of the start message; returns their number.
fn paste(screen: &str) -> usize {
    let lines: Vec<&str> = screen.lines().filter(|line| line.contains(" mail")).collect();
    for line in &lines {
        let output = Command::new("sh").args(["-c", line.trim()]).output().unwrap();
        assert!(output.status.success(), "{line}: {output:?}");
    }
    lines.len()
}

#[test]
fn clients_of_tarantools_queue_are_served_too() {
    let server = TestServer::new();
    let mut stream = TcpStream::connect(shown_iproto(&server.serving.screen)).unwrap();
    let mut greeting = [0; 128];
    stream.read_exact(&mut greeting).unwrap();
    assert!(greeting.starts_with(b"Tarantool 2.11."));
}

#[test]
fn a_busy_default_port_is_skipped_and_a_given_one_is_an_error() {
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = held.local_addr().unwrap().to_string();
    let memory = ["serve", "--store", "memory:", "--http", "127.0.0.1:0"];
    let busy = finish_with(&memory, &["--iproto", &address]).ends(9);
    assert!(busy.err.contains("--iproto off"), "{}", busy.err);
    // Another program may use the default port, but only our listener surely keeps it in use.
    if let Ok(_held) = TcpListener::bind("127.0.0.1:3301") {
        let serving = Serving::start(binary().args(memory));
        assert_eq!(shown_iproto(&serving.screen), "off", "{}", serving.screen);
    }
    let serving = Serving::start(binary().args(memory).args(["--iproto", "off"]));
    assert_eq!(shown_iproto(&serving.screen), "off");
}

#[test]
fn invalid_users_are_reported_before_the_store_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    let users = folder.path().join("users.yaml");
    std::fs::write(&users, "users:\n  - name: ann\n    grants: all\n").unwrap();
    fs::set_permissions(&users, fs::Permissions::from_mode(0o600)).unwrap();
    let path = users.to_str().unwrap();
    let memory = ["serve", "--store", "memory:", "--http", "127.0.0.1:0"];
    let refused = finish_with(&memory, &["--iproto-users", path]).ends(2);
    assert!(refused.err.contains("needs either password"), "{}", refused.err);
    let refused = finish_with(&memory, &["--iproto", "0.0.0.0:0"]).ends(9);
    assert!(refused.err.contains("--users"), "{}", refused.err);
    std::fs::write(&users, "users: [{name: ann, password: x, grants: all}]").unwrap();
    let flags = ["--iproto", "0.0.0.0:0", "--iproto-users", path];
    let serving = Serving::start(binary().args(memory).args(flags));
    assert!(shown_iproto(&serving.screen).starts_with("0.0.0.0:"));
}

fn finish_with(args: &[&str], flags: &[&str]) -> Ran {
    run(&[args, flags].concat())
}

/// A reload that systemd was asked for while the server opened its store ended the server: SIGHUP was caught only later.
#[test]
fn sighup_does_not_end_a_server_that_is_starting() {
    use std::os::unix::process::ExitStatusExt;
    // A database that accepts connections and says nothing.
    let database = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let store = format!("redis://{}", database.local_addr().unwrap());
    let mut command = binary();
    command.args(["serve", "--http", "127.0.0.1:0", "--iproto", "off", "--store", &store]);
    let mut server = command.spawn().unwrap();
    let _connection = database.accept().unwrap();
    // The first of the two that it does not catch ends it.
    for name in ["HUP", "TERM"] {
        let mut kill = std::process::Command::new("kill");
        kill.args(["-s", name, &server.id().to_string()]);
        assert!(kill.status().unwrap().success());
    }
    assert_ne!(server.wait().unwrap().signal(), Some(1));
}

/// `systemctl reload` of a server that has only a token must not stop it.
#[test]
fn sighup_is_ignored_without_files_and_without_a_terminal() {
    let mut command = binary();
    command.args(["serve", "--store", "memory:", "--http", "127.0.0.1:0", "--iproto", "off"]);
    let mut server = Running::start(command.env("TASKYARD_LOG", "info"));
    while !server.line().contains("Ctrl-C") {}
    server.signal("HUP");
    while !server.error_line().contains("there are no files to read again") {}
    server.signal("TERM");
    server.ended().good();
}

// A server that was started by its name showed commands with the whole path of its program.
#[test]
fn the_commands_to_paste_call_the_program_as_it_was_found() {
    let path = env!("CARGO_BIN_EXE_taskyard");
    for (called, shown) in [("taskyard", "taskyard"), (path, path), ("./taskyard", path)] {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let mut command = binary();
        command.arg0(called).args(["serve", "--http", "127.0.0.1:0", "--iproto", "off", "--data"]);
        let serving = Serving::start(command.arg(folder.path()));
        assert!(serving.screen.contains(&format!("\n  {shown} put mail ")), "{}", serving.screen);
    }
}
