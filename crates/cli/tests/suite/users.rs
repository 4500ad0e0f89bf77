//! `user`, `serve --users` and `--token-file`: users with roles, from the file to a refused request.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use taskyard::Client;
use taskyard_testkit::recorded_output::register_secret;
use taskyard_testkit::server_process::shown_iproto;

use crate::process::{LoggedServer, Ran, Serving, TOKEN, binary, run};

/// A folder with a file of users.
pub struct UsersFolder {
    pub folder: tempfile::TempDir,
    pub users: String,
}

impl UsersFolder {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let users = text(&folder.path().join("users.toml"));
        UsersFolder { folder, users }
    }

    /// Runs `user` with this file.
    fn user(&self, args: &[&str]) -> Ran {
        run(&[&["user"], args, &["--users", &self.users]].concat())
    }

    /// Adds a user; returns a file with its token.
    pub fn add(&self, args: &[&str]) -> String {
        let token = self.user(&[&["add"], args].concat()).good();
        let path = self.folder.path().join(format!("{}.token", args[0]));
        let mut file = fs::OpenOptions::new();
        let mut file =
            file.write(true).create(true).truncate(true).mode(0o600).open(&path).unwrap();
        file.write_all(token.as_bytes()).unwrap();
        text(&path)
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }
}

fn text(path: &Path) -> String {
    path.to_str().expect("paths of tests are text").into()
}

#[test]
fn users_are_added_listed_and_removed() {
    let folder = UsersFolder::new();
    let added = folder.user(&["add", "mailer", "--role", "produce", "--tube", "mail.*"]);
    assert!(added.err.contains("cannot be shown again"), "{added:?}");
    let token = added.good();
    assert!(token.starts_with("taskyard_") && token.trim().len() > 40, "{token}");
    let mode = fs::metadata(&folder.users).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(!fs::read_to_string(&folder.users).unwrap().contains(token.trim()));
    let again = folder.user(&["add", "mailer", "--role", "read"]).ends(2);
    assert!(
        again.err.contains("exists in ") && again.err.contains("taskyard user remove"),
        "{again:?}"
    );
    fs::write(&folder.users, fs::read_to_string(&folder.users).unwrap() + "# a comment\n").unwrap();
    folder.user(&["add", "ann", "--role", "read", "--role", "operate", "--iproto"]).good();
    let listed = folder.user(&["list"]).good();
    let rows: Vec<Vec<&str>> =
        listed.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[1], ["mailer", "token", "produce", "mail.*"], "{listed}");
    assert_eq!(rows[2], ["ann", "token,password", "read,operate", "*"], "{listed}");
    let json = folder.user(&["list", "--json"]).json();
    assert_eq!((&json[1]["name"], &json[1]["roles"][1]), (&"ann".into(), &"operate".into()));
    assert!(!listed.contains(token.trim()));
    folder.user(&["remove", "mailer"]).good();
    assert_eq!(folder.user(&["list", "--json"]).json().len(), 1);
    let unknown = folder.user(&["remove", "mailer"]).ends(2);
    assert!(unknown.err.contains("no user 'mailer'"), "{unknown:?}");
    folder.user(&["remove", "ann"]).good();
    assert!(folder.user(&["remove", "ann"]).ends(2).err.contains("no user 'ann'"));
}

#[test]
fn wrong_arguments_of_user_change_nothing() {
    let folder = UsersFolder::new();
    folder.user(&["add", "a", "--role", "read"]).good();
    let before = fs::read(&folder.users).unwrap();
    for (args, said) in [
        (&["add", "b"][..], "--role"),
        (&["add", "b", "--role", "root"], "read, produce, consume, operate, admin"),
        (&["add", "b", "--role", "read", "--tube", ""], "a pattern is empty"),
        (&["add", "", "--role", "read"], "empty name"),
        (&["add", "b\nc", "--role", "read"], "must not contain"),
    ] {
        let refused = folder.user(args).ends(2);
        assert!(refused.err.contains(said) && refused.out.is_empty(), "{refused:?}");
        assert_eq!(fs::read(&folder.users).unwrap(), before);
    }
    // A change that is being made is not overtaken by another one.
    let lock = format!("{}.new", folder.users);
    fs::write(&lock, "").unwrap();
    let refused = folder.user(&["add", "b", "--role", "read"]).ends(2);
    assert!(refused.err.contains("another change"), "{refused:?}");
    assert!(fs::exists(&lock).unwrap());
    let yaml = text(&folder.folder.path().join("users.yaml"));
    let refused = run(&["user", "add", "b", "--role", "read", "--users", &yaml]).ends(2);
    assert!(refused.err.contains("YAML"), "{refused:?}");
}

#[test]
fn a_user_of_the_command_line_has_its_roles() {
    let folder = UsersFolder::new();
    let mailer = folder.add(&["mailer", "--role", "produce", "--tube", "mail.*"]);
    let worker = folder.add(&["worker", "--role", "consume", "--tube", "mail.*"]);
    let boss = folder.add(&["boss", "--role", "admin"]);
    let server = Serving::folder(&folder.data(), &["--users", &folder.users]);
    assert!(server.screen.contains("token needed"), "{}", server.screen);
    server.run(&["put", "mail.a", "1", "--token-file", &mailer]).good();
    let refused = server.run(&["put", "orders", "1", "--token-file", &mailer]).ends(8);
    let expected = "user 'mailer' may not do this: the role 'produce' for tube 'orders'";
    assert!(refused.err.contains(expected), "{refused:?}");
    let refused = server.run(&["take", "mail.a", "--token-file", &mailer]).ends(8);
    assert!(refused.err.contains("'consume' for tube 'mail.a'"), "{refused:?}");
    let taken = server.run(&["take", "mail.a", "--json", "--token-file", &worker]).json();
    let lease = format!("{}:{}", taken[0]["id"], taken[0]["lease"]);
    // Without a lease it would be the delivery of any consumer.
    let refused = server.run(&["ack", "mail.a", "0", "--token-file", &worker]).ends(8);
    assert!(refused.err.contains("'operate'"), "{refused:?}");
    server.run(&["ack", "mail.a", &lease, "--token-file", &worker]).good();
    server.run(&["put", "orders", "1", "--token-file", &boss]).good();
    let seen = server.run(&["stats", "--json", "--token-file", &worker]).json();
    assert_eq!(seen.len(), 1, "{seen:?}");
    let missing = server.run(&["stats"]).ends(8);
    assert!(missing.err.contains("--token-file"), "{missing:?}");
    let both = server.run(&["stats", "--token-file", &boss, "--token", TOKEN]).ends(2);
    assert!(both.err.contains("leave one of them out"), "{both:?}");
}

// An unusable file is refused at the start, with what to do.
#[test]
fn a_server_does_not_start_with_a_wrong_file() {
    let folder = UsersFolder::new();
    let data = text(&folder.data());
    let serve = || {
        let flags = ["serve", "--http", "127.0.0.1:0", "--iproto", "off", "--data", &data];
        run(&[&flags[..], &["--users", &folder.users]].concat()).ends(2)
    };
    assert!(serve().err.contains("cannot read the users"));
    folder.add(&["a", "--role", "read", "--iproto"]);
    fs::set_permissions(&folder.users, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(serve().err.contains("chmod 600"));
    fs::write(&folder.users, "[[users]]\nname = 'a'\n").unwrap();
    assert!(serve().err.contains("token_sha256"));
    assert!(!folder.data().exists());
}

/// A server that logs to a pipe.
fn logging_server(folder: &UsersFolder) -> LoggedServer {
    let mut command = binary();
    command.args(["serve", "--http", "127.0.0.1:0", "--iproto", "off", "--users", &folder.users]);
    LoggedServer::start(command.arg("--data").arg(folder.data()))
}

#[test]
fn the_file_is_read_again_when_it_changes_and_on_a_signal() {
    let folder = UsersFolder::new();
    let ann = folder.add(&["ann", "--role", "read"]);
    let mut server = logging_server(&folder);
    let url = server.url.clone();
    let stats = |token: &str| run(&["stats", "--url", &url, "--token-file", token]).exit;
    assert_eq!(stats(&ann), 0);
    server.running.signal("HUP");
    server.logs("users reloaded");
    let bob = folder.add(&["bob", "--role", "read"]);
    server.logs("users reloaded");
    assert_eq!((stats(&ann), stats(&bob)), (0, 0));
    let before = fs::read(&folder.users).unwrap();
    fs::write(&folder.users, "[[users]]\nname = 'eve'\npassword = 's3cret\n").unwrap();
    let line = server.logs("users not reloaded; the previous ones stay");
    assert!(line.contains("users.toml") && !line.contains("s3cret"), "{line}");
    assert_eq!((stats(&ann), stats(&bob)), (0, 0));
    fs::write(&folder.users, before).unwrap();
    server.logs("users reloaded");
    folder.user(&["remove", "ann"]).good();
    server.logs("users reloaded");
    assert_eq!((stats(&ann), stats(&bob)), (8, 0));
}

/// A file of `--iproto-users` with these users, each with its name as a part of the password.
fn write_iproto_users(path: &Path, names: &[&str]) {
    let mut text = "users:\n".to_owned();
    for name in names {
        let password = iproto_password(name);
        text.push_str(&format!("  - {{ name: {name}, password: {password}, grants: all }}\n"));
    }
    let new = path.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).unwrap();
    fs::rename(new, path).unwrap();
}

fn iproto_password(name: &str) -> String {
    let password = format!("iproto-password-of-{name}");
    register_secret(&password);
    password
}

// The file was read once: a user that was removed could log in until the next restart.
#[test]
fn the_users_of_iproto_are_read_again_too() {
    let folder = tempfile::tempdir().unwrap();
    // Any name is YAML here.
    let path = folder.path().join("iproto-users");
    write_iproto_users(&path, &["ann", "bob"]);
    let mut command = binary();
    command.args(["serve", "--store", "memory:", "--http", "127.0.0.1:0", "--iproto"]);
    let mut server =
        LoggedServer::start(command.args(["127.0.0.1:0", "--iproto-users"]).arg(&path));
    let address = shown_iproto(&server.screen).to_owned();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let open = |name: &str| {
        let url = format!("iproto://{name}:{}@{address}", iproto_password(name));
        runtime.block_on(Client::open(&url)).unwrap()
    };
    let may_list = |client: &Client| runtime.block_on(client.tubes()).is_ok();
    let connected = open("ann");
    assert!(may_list(&connected) && may_list(&open("bob")) && !may_list(&open("carol")));
    write_iproto_users(&path, &["bob", "carol"]);
    server.logs("users reloaded");
    assert!(!may_list(&connected) && !may_list(&open("ann")));
    assert!(may_list(&open("bob")) && may_list(&open("carol")));
    server.running.signal("HUP");
    server.logs("users reloaded");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let line = server.logs("users not reloaded; the previous ones stay");
    assert!(line.contains("chmod 600"), "{line}");
    assert!(may_list(&open("bob")));
}
