//! The unit of systemd: checked by systemd's own tools, and run by a systemd that is the first process of its own namespaces.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use taskyard_testkit::free_port;
use taskyard_testkit::recorded_output::record;
use taskyard_testkit::skipped::{find_tool, skip};
use tempfile::TempDir;

use super::package::Packages;
use super::{FILES, KeptProgram, children, deploy_file, write_secret};
use crate::process::{TOKEN, http_post_as, run};

/// The unit with the queue, and that with a pool.
const UNITS: [&str; 2] = ["taskyard.service", "taskyard-pool.service"];

/// What `systemd-analyze security` may say, from 0 (nothing is exposed) to 10; docs/security.md states these numbers.
const EXPOSURE_MAX: [(&str, f64); 2] = [("taskyard.service", 1.5), ("taskyard-pool.service", 3.5)];

/// The program in the units.
const PROGRAM: &str = "/usr/local/bin/taskyard";

fn output(command: &mut Command) -> Output {
    command.output().expect("the program starts")
}

fn text(output: &Output) -> String {
    let bytes = [&output.stdout[..], &output.stderr].concat();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The units in a folder, with the path of the program that is tested.
fn units() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for unit in UNITS {
        let text = deploy_file(&format!("systemd/{unit}"));
        let text = text.replace(PROGRAM, env!("CARGO_BIN_EXE_taskyard"));
        fs::write(folder.path().join(unit), text).unwrap();
    }
    folder
}

#[test]
fn the_units_are_correct_and_expose_little() {
    let Some(analyze) = find_tool("TASKYARD_SYSTEMD_ANALYZE", "/usr/bin/systemd-analyze") else {
        return;
    };
    let folder = units();
    for unit in UNITS {
        let path = folder.path().join(unit);
        let verified = output(Command::new(&analyze).arg("verify").arg(&path));
        assert!(verified.status.success() && text(&verified).is_empty(), "{}", text(&verified));
        // An option that does not exist is only a warning, so the test shows that warnings are seen.
        let wrong = folder.path().join("wrong.service");
        fs::write(
            &wrong,
            fs::read_to_string(&path).unwrap() + "[Service]\nProtectEverything=yes\n",
        )
        .unwrap();
        let verified = output(Command::new(&analyze).arg("verify").arg(&wrong));
        assert!(text(&verified).contains("ProtectEverything"), "{}", text(&verified));
    }
    for (unit, most) in EXPOSURE_MAX {
        let threshold = format!("--threshold={}", (most * 10.0) as u32);
        let mut command = Command::new(&analyze);
        command.args(["security", "--offline=yes", "--no-pager", &threshold]);
        let rated = output(command.arg(folder.path().join(unit)));
        assert!(rated.status.success(), "{}", text(&rated));
        let shown = text(&rated);
        let level = shown.split("Overall exposure level for ").nth(1);
        let level = level.and_then(|line| line.split(": ").nth(1)).expect("a level is shown");
        let level: f64 = level.split_whitespace().next().unwrap().parse().unwrap();
        assert!(level <= most, "{unit}: {level}");
    }
}

/// A program that exists on every machine, for the pool.
const POOL: &str = "
backends: 1
programs:
  sh:
    command: [/bin/sh, '{main}']
    input: .sh
    formats: {txt: text/plain}
    result: result.{format}
";

/// What booting needs: namespaces, and mounts in them, which only root may do and some containers forbid.
const TRIAL: [&str; 10] = [
    "--mount",
    "--pid",
    "--fork",
    "--uts",
    "--ipc",
    "--cgroup",
    "--propagation=private",
    "sh",
    "-ec",
    "mount -t tmpfs tmpfs /mnt; cd /mnt; mkdir changes work root; \
     mount -t overlay overlay -o lowerdir=/,upperdir=changes,workdir=work root; \
     mount -t proc proc root/proc; mount -t sysfs -o ro sysfs root/sys; mount -t cgroup2 cgroup2 root/sys/fs/cgroup",
];

/// A machine whose first process is systemd, with one of our units.
struct Machine {
    unit: &'static str,
    folder: TempDir,
    port: u16,
    systemd: KeptProgram,
    group: PathBuf,
}

impl Machine {
    /// Boots it; `None` where that is not possible.
    fn boot(unit: &'static str) -> Option<Self> {
        find_tool("TASKYARD_SYSTEMD", "/lib/systemd/systemd")?;
        let trial = output(Command::new("unshare").args(TRIAL));
        let group = trial.status.success().then(|| control_group(unit)).flatten();
        let Some(group) = group else {
            skip(format_args!("this machine cannot boot a systemd of its own: {}", text(&trial)));
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        for name in ["machine", "etc", "lib", "log"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        // The service reaches what is below with the rights of its own user.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(folder.path().join("console"), "").unwrap();
        let (etc, port) = (folder.path().join("etc"), free_port());
        write_secret(&etc.join("token"), TOKEN);
        write_secret(&etc.join("pool-token"), TOKEN);
        fs::write(etc.join("pool.yaml"), POOL).unwrap();
        let options = format!("TASKYARD_OPTIONS=--http 127.0.0.1:{port}");
        let pool_options = format!("{options} --audit /var/log/taskyard-pool/audit.jsonl");
        fs::write(etc.join("pool-options"), pool_options).unwrap();
        let settings = deploy_file("systemd/taskyard.yaml")
            .replace("http: 127.0.0.1:7070", &format!("http: 127.0.0.1:{port}"));
        let settings = settings + "users: users.toml\naudit: /var/log/taskyard/audit.jsonl\n";
        fs::write(etc.join("taskyard.yaml"), settings).unwrap();
        add_user(folder.path(), "ann");
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/deploy/boot.sh");
        let mut boot = Command::new("sh");
        boot.arg(script).arg(folder.path()).arg(env!("CARGO_BIN_EXE_taskyard"));
        boot.arg(Path::new(FILES).join("systemd")).arg(&group);
        let systemd = KeptProgram::start(&boot, "KILL");
        let machine = Machine { unit, folder, port, systemd, group };
        while !machine.inside(&["test", "-S", "/run/systemd/private"]).status.success() {
            assert!(!machine.systemd.has_ended(), "systemd ended: {}", machine.console());
        }
        Some(machine)
    }

    /// Runs a command in the machine.
    fn inside(&self, command: &[&str]) -> Output {
        // The keeper has started `unshare`, which has started the first process.
        let unshare = self.systemd.children().pop().unwrap_or_default();
        let first = children(&unshare).pop().unwrap_or_default();
        let mut enter = Command::new("nsenter");
        enter.args(["--target", &first, "--mount", "--pid", "--uts", "--ipc", "--cgroup"]);
        output(enter.args(["--root", "--wd", "--"]).args(command))
    }

    fn systemctl(&self, args: &[&str]) -> Output {
        self.inside(&[&["systemctl"], args].concat())
    }

    #[track_caller]
    fn must(&self, verb: &str) {
        let ended = self.systemctl(&[verb, self.unit]);
        assert!(ended.status.success(), "{}\n{}", text(&ended), self.console());
    }

    /// A property of the service.
    fn property(&self, name: &str) -> String {
        let shown = self.systemctl(&["show", "--value", "--property", name, self.unit]);
        text(&shown).trim().to_owned()
    }

    /// The state of the main process, as the kernel shows it.
    fn process(&self, file: &str) -> String {
        let path = format!("/proc/{}/{file}", self.property("MainPID"));
        text(&self.inside(&["cat", &path]))
    }

    /// Runs a client command on the machine of the test; the network is the same.
    fn client(&self, token: &str, args: &[&str]) -> crate::process::Ran {
        let (url, token) =
            (format!("http://127.0.0.1:{}", self.port), self.folder.path().join(token));
        run(&[args, &["--url", &url, "--token-file", token.to_str().unwrap()]].concat())
    }

    /// Checks that the audit file is in a folder of its own, and that a reload opens it again after a rotation.
    fn rotate_audit(&self, name: &str, user: &str) -> String {
        let folder = self.folder.path().join("log").join(name);
        let file = folder.join("audit.jsonl");
        for (path, mode) in [(&folder, 0o700), (&file, 0o600)] {
            let about = fs::metadata(path).unwrap();
            let found = (about.mode() & 0o777, about.uid().to_string());
            assert_eq!(found, (mode, user.to_owned()), "{path:?}");
        }
        let moved = folder.join("audit.jsonl.1");
        fs::rename(&file, &moved).unwrap();
        self.must("reload");
        while !file.exists() {}
        fs::read_to_string(moved).unwrap()
    }

    fn console(&self) -> String {
        let read =
            |name: &str| fs::read_to_string(self.folder.path().join(name)).unwrap_or_default();
        ["console", "log/taskyard.log", "log/taskyard-pool.log"].map(read).concat()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        drop(self.systemd.shell.stdin.take());
        let _ = self.systemd.shell.wait();
        record("systemd", &self.console());
        // The group is busy until the kernel has ended every process of the machine.
        while self.group.exists() {
            let mut find = Command::new("find");
            find.arg(&self.group).args(["-depth", "-type", "d", "-delete"]).stderr(Stdio::null());
            let _ = find.status();
        }
    }
}

/// A new control group of version 2 below our own, if one can be made.
fn control_group(name: &str) -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    let mut fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mount = fields.find(|fields| fields.get(2) == Some(&"cgroup2"))?[1].to_owned();
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = own.lines().find_map(|line| line.strip_prefix("0::/"))?.to_owned();
    let group = Path::new(&mount).join(own).join(format!("test-{}-{name}", std::process::id()));
    let is_root = fs::metadata("/proc/self").is_ok_and(|about| about.uid() == 0);
    (is_root && fs::create_dir(&group).is_ok()).then_some(group)
}

/// Adds a user to the file that the service reads; its token is in a file of the same name.
fn add_user(folder: &Path, name: &str) {
    let users = folder.join("etc/users.toml");
    let added = run(&["user", "add", name, "--role", "admin", "--users", users.to_str().unwrap()]);
    write_secret(&folder.join(name), &added.good());
}

/// Checks what both units do with the rights of their process.
fn check_rights(machine: &Machine) -> String {
    let status = machine.process("status");
    let user = line(&status, "Uid").split_whitespace().next().unwrap();
    assert_ne!(user, "0");
    for (name, expected) in [
        ("CapEff", "0000000000000000"),
        ("CapPrm", "0000000000000000"),
        ("CapBnd", "0000000000000000"),
        ("NoNewPrivs", "1"),
        ("Seccomp", "2"),
        ("Umask", "0077"),
    ] {
        assert_eq!(line(&status, name), expected, "{name}");
    }
    for file in ["cmdline", "environ"] {
        assert!(!machine.process(file).contains(TOKEN), "{file}");
    }
    let limits = machine.process("limits");
    assert!(
        limits.lines().any(|line| line.starts_with("Max core file size        0 ")),
        "{limits}"
    );
    user.to_owned()
}

/// The value of a line of `/proc/PID/status`.
fn line<'a>(status: &'a str, name: &str) -> &'a str {
    let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.unwrap_or_else(|| panic!("no {name} in {status}")).trim()
}

#[test]
fn systemd_runs_the_unit() {
    let Some(machine) = Machine::boot("taskyard.service") else { return };
    // It returns when the server has said that it is ready.
    machine.must("start");
    machine.client("etc/token", &["put", "mail", "hello"]).good();
    machine.client("ann", &["put", "mail", "again"]).good();

    let user = check_rights(&machine);
    let data = machine.folder.path().join("lib/taskyard");
    for (path, mode) in [(data.clone(), 0o700), (data.join("taskyard.db"), 0o600)] {
        let about = fs::metadata(&path).unwrap();
        assert_eq!(
            (about.mode() & 0o777, about.uid().to_string()),
            (mode, user.clone()),
            "{path:?}"
        );
    }

    let process = machine.property("MainPID");
    add_user(machine.folder.path(), "bob");
    machine.must("reload");
    while machine.client("bob", &["stats"]).exit == 8 {}
    let audit = machine.rotate_audit("taskyard", &user);
    assert!(audit.contains("\"action\":\"create_tube\""), "{audit}");
    assert_eq!(machine.property("MainPID"), process);

    // A server that was killed is started again, with its tasks.
    assert!(machine.systemctl(&["kill", "--signal=KILL", machine.unit]).status.success());
    while machine.property("MainPID") == process || machine.property("ActiveState") != "active" {}
    let stats = machine.client("ann", &["stats", "mail", "--json"]);
    assert_eq!(stats.json()[0]["tasks"]["ready"], 2);
    machine.must("stop");
    assert_eq!(machine.property("Result"), "success");
    assert_eq!(machine.property("ActiveState"), "inactive");
}

#[test]
fn systemd_runs_the_unit_of_a_pool() {
    let Some(machine) = Machine::boot("taskyard-pool.service") else { return };
    machine.must("start");
    let user = check_rights(&machine);
    // The pool has tried its sandbox before it was ready. A program runs in one, and cannot see the token.
    let script =
        "id -u; cat /run/credentials/*/token /etc/taskyard/pool-token; ls /proc | grep -c '^[0-9]'";
    let file = serde_json::json!({ "filename": "a.sh", "text": script });
    let body = serde_json::json!({ "input": [file] }).to_string();
    let answer =
        http_post_as(TOKEN, &format!("http://127.0.0.1:{}", machine.port), "/pool/run/sh", &body);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}\n{}", machine.console());
    assert!(answer.contains("No such file") && !answer.contains(TOKEN), "{answer}");
    let process = machine.property("MainPID");
    machine.rotate_audit("taskyard-pool", &user);
    assert_eq!(machine.property("MainPID"), process);
    machine.must("stop");
    assert_eq!(machine.property("Result"), "success");
}

impl Machine {
    /// A machine without our unit, with an empty list of packages.
    fn without_unit() -> Option<Self> {
        let machine = Machine::boot("taskyard.service")?;
        for folder in ["info", "updates"] {
            fs::create_dir_all(machine.folder.path().join("lib/dpkg").join(folder)).unwrap();
        }
        fs::write(machine.folder.path().join("lib/dpkg/status"), "").unwrap();
        // Images of containers forbid packages to start services.
        let script = "rm -f /etc/systemd/system/taskyard*.service /usr/sbin/policy-rc.d /etc/taskyard/token; \
                      systemctl daemon-reload";
        assert!(machine.inside(&["sh", "-ec", script]).status.success());
        Some(machine)
    }

    #[track_caller]
    fn dpkg(&self, args: &[&str]) {
        // The settings of the machine have a free port, and stay.
        let forced = ["dpkg", "--force-depends", "--force-confold", "--force-unsafe-io"];
        let ended = self.inside(&[&forced, args].concat());
        assert!(ended.status.success(), "{}\n{}", text(&ended), self.console());
    }

    fn install(&self, package: &Path) {
        fs::copy(package, self.folder.path().join("lib/taskyard.deb")).unwrap();
        self.dpkg(&["--install", "/var/lib/taskyard.deb"]);
    }
}

#[test]
fn the_package_starts_restarts_and_stops_its_service() {
    let Some(machine) = Machine::without_unit() else { return };
    let packages = Packages::new();
    machine.install(&packages.previous());
    assert_eq!(machine.property("ActiveState"), "active", "{}", machine.console());
    assert_eq!(machine.property("UnitFileState"), "enabled");
    assert!(machine.process("cmdline").starts_with("/usr/bin/taskyard\0serve\0--config\0"));
    let token = fs::read_to_string(machine.folder.path().join("etc/token")).unwrap();
    taskyard_testkit::recorded_output::register_secret(&token);
    machine.client("etc/token", &["put", "mail", "hello"]).good();

    let process = machine.property("MainPID");
    let next = packages.next();
    machine.install(&next);
    assert_ne!(machine.property("MainPID"), process);
    assert_eq!(machine.property("ActiveState"), "active", "{}", machine.console());
    let stats = machine.client("etc/token", &["stats", "mail", "--json"]);
    assert_eq!(stats.json()[0]["tasks"]["ready"], 1);

    // What an administrator has switched off stays off.
    machine.must("disable");
    machine.must("stop");
    machine.install(&next);
    assert_eq!(machine.property("ActiveState"), "inactive");
    machine.must("start");
    machine.dpkg(&["--remove", "taskyard"]);
    assert_eq!(machine.property("ActiveState"), "inactive", "{}", machine.console());
    assert!(machine.folder.path().join("lib/taskyard/taskyard.db").exists());
    machine.dpkg(&["--purge", "taskyard"]);
    assert!(!machine.folder.path().join("lib/taskyard").exists());
    assert!(!machine.folder.path().join("etc/token").exists());
}
