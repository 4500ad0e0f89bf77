//! The Debian package and the tarball: built from the program that is tested, installed into a fresh root, run, upgraded, removed and
//! purged.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use taskyard_testkit::skipped::{skip, skip_without};
use tempfile::TempDir;

use super::{FILES, write_secret};
use crate::earlier::EarlierFolder;
use crate::process::{Ran, Serving, run};

/// The time of the sources, which is that of all files in a package.
const EPOCH: &str = "1700000000";
/// The unit in the package.
const UNIT: &str = "usr/lib/systemd/system/taskyard.service";

fn text(output: &Output) -> String {
    let bytes = [&output.stdout[..], &output.stderr].concat();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[track_caller]
fn must(command: &mut Command) -> String {
    let ended = command.output().expect("the program starts");
    let text = text(&ended);
    assert!(ended.status.success(), "{command:?}: {text}");
    text
}

/// Whether packages can be built here; if not, the test is skipped.
fn can_build() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_missing =
        |name: &&str| !std::env::split_paths(&path).any(|folder| folder.join(name).is_file());
    let programs = ["dpkg-deb", "deb-systemd-helper", "systemd-sysusers", "strip"];
    let missing = programs.into_iter().find(is_missing);
    missing.inspect(|name| skip_without(name)).is_none()
}

/// Whether packages can also be installed here.
fn can_install() -> bool {
    let is_root = fs::metadata("/proc/self").is_ok_and(|about| about.uid() == 0);
    if !is_root {
        skip("only root installs packages");
    }
    is_root && can_build()
}

/// The package of an earlier version; an absolute path.
fn given_package() -> Option<PathBuf> {
    let given = std::env::var_os("TASKYARD_PREVIOUS_PACKAGE").filter(|path| !path.is_empty());
    let given = given.map(PathBuf::from);
    assert!(given.iter().all(|path| path.is_absolute()), "{given:?} must be an absolute path");
    given
}

/// Packages of the program that is tested.
pub struct Packages {
    folder: TempDir,
}

impl Packages {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        write_pages(&folder.path().join("man"));
        Packages { folder }
    }

    /// The package of the previous version, which `TASKYARD_PREVIOUS_PACKAGE` names. Without it this program is packed with a lower version.
    pub fn previous(&self) -> PathBuf {
        given_package().unwrap_or_else(|| self.build("0.0.9", "previous"))
    }

    /// Builds the package of this version.
    pub fn next(&self) -> PathBuf {
        self.build(env!("CARGO_PKG_VERSION"), "next")
    }

    /// Builds the package of a version into a folder of this name.
    pub fn build(&self, version: &str, name: &str) -> PathBuf {
        let output = self.folder.path().join(name);
        let mut build = Command::new("sh");
        build.arg(Path::new(FILES).join("package/build.sh"));
        build.arg(env!("CARGO_BIN_EXE_taskyard")).arg(version);
        build.arg(self.folder.path().join("man")).arg(&output);
        let built = must(build.env("SOURCE_DATE_EPOCH", EPOCH).env("FAST", "1"));
        built.lines().next().expect("the path of the package").into()
    }
}

/// Writes the manual pages; a build without the command `man` has one page.
fn write_pages(folder: &Path) {
    if cfg!(feature = "man") {
        run(&["man", folder.to_str().unwrap()]).good();
    } else {
        fs::create_dir(folder).unwrap();
        fs::write(folder.join("taskyard.1"), ".TH taskyard 1\n").unwrap();
    }
}

/// A root folder with the libraries of the program and nothing else.
struct FreshRoot {
    folder: TempDir,
}

impl FreshRoot {
    fn new() -> Self {
        let root = FreshRoot { folder: tempfile::tempdir().unwrap() };
        let mut make = Command::new("sh");
        make.arg(Path::new(FILES).join("container/root.sh")).arg(env!("CARGO_BIN_EXE_taskyard"));
        must(make.arg(root.path("")));
        fs::remove_file(root.path("usr/local/bin/taskyard")).unwrap();
        fs::write(root.path("etc/passwd"), "root:x:0:0::/root:/bin/sh\n").unwrap();
        fs::write(root.path("etc/group"), "root:x:0:\n").unwrap();
        for folder in ["var/lib/dpkg/info", "var/lib/dpkg/updates", "var/log"] {
            fs::create_dir_all(root.path(folder)).unwrap();
        }
        fs::write(root.path("var/lib/dpkg/status"), "").unwrap();
        // A service opens its files with the rights of its own user.
        fs::set_permissions(root.path(""), fs::Permissions::from_mode(0o755)).unwrap();
        root
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn has(&self, name: &str) -> bool {
        self.path(name).symlink_metadata().is_ok()
    }

    #[track_caller]
    fn dpkg(&self, args: &[&str]) -> String {
        let mut dpkg = Command::new("dpkg");
        dpkg.arg(format!("--root={}", self.path("").display()));
        // Scripts run outside of the root, which has no shell; the packages of this machine are not in its list.
        dpkg.args(["--force-script-chrootless", "--force-depends", "--force-unsafe-io"]);
        // Without it dpkg asks which file to keep, if the default configuration and the installed one have both changed.
        dpkg.arg("--force-confold");
        must(dpkg.args(args).env("LC_ALL", "C"))
    }

    #[track_caller]
    fn install(&self, package: &Path) {
        self.dpkg(&["--install", package.to_str().unwrap()]);
    }

    /// The ids of the user of the unit.
    fn ids(&self) -> (u32, u32) {
        let users = fs::read_to_string(self.path("etc/passwd")).unwrap();
        let line = users.lines().find(|line| line.starts_with("taskyard:")).expect("a user");
        let ids: Vec<u32> = line.split(':').filter_map(|field| field.parse().ok()).collect();
        (ids[0], ids[1])
    }

    /// A line of the unit.
    fn unit(&self, name: &str) -> String {
        let unit = fs::read_to_string(self.path(UNIT)).unwrap();
        let line = unit.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        line.unwrap_or_else(|| panic!("no {name} in {unit}")).to_owned()
    }

    /// Runs the command of the unit as its user, with the folders and the credential that systemd prepares.
    fn serve(&self) -> Serving {
        let (user, group) = self.ids();
        for (folder, name) in
            [("var/lib", self.unit("StateDirectory")), ("var/log", self.unit("LogsDirectory"))]
        {
            let folder = self.path(folder).join(name);
            fs::create_dir_all(&folder).unwrap();
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
            chown(&folder, Some(user), Some(group)).unwrap();
        }
        let credential = self.path("run/token");
        let _ = fs::remove_file(&credential);
        write_secret(&credential, &fs::read_to_string(self.path("etc/taskyard/token")).unwrap());
        chown(&credential, Some(user), Some(group)).unwrap();
        let mut command = Command::new("chroot");
        command.arg(format!("--userspec=+{user}:+{group}")).arg("--groups=").arg(self.path(""));
        let words = self.unit("ExecStart");
        command.args(words.replace("${CREDENTIALS_DIRECTORY}", "/run").split(' '));
        // The port of the package may be in use on this machine.
        command.env_clear().env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin");
        Serving::start(command.env("TASKYARD_HTTP", "127.0.0.1:0"))
    }

    fn client(&self, serving: &Serving, args: &[&str]) -> Ran {
        let token = self.path("etc/taskyard/token");
        serving.run(&[args, &["--token-file", token.to_str().unwrap()]].concat())
    }
}

/// Stops a server as systemd does.
#[track_caller]
fn stop(serving: Serving) {
    serving.signal("TERM");
    let (status, rest) = serving.ended();
    assert!(status.success() && rest.contains("all tasks are in"), "{rest}");
}

fn check_installed(root: &FreshRoot) {
    for file in [
        "usr/bin/taskyard",
        "usr/libexec/taskyard-sandbox",
        UNIT,
        "usr/lib/systemd/system/taskyard-pool.service",
        "usr/lib/sysusers.d/taskyard.conf",
        "usr/share/man/man1/taskyard.1.gz",
        "usr/share/bash-completion/completions/taskyard",
        "usr/share/zsh/vendor-completions/_taskyard",
        "usr/share/fish/vendor_completions.d/taskyard.fish",
        "usr/share/doc/taskyard/copyright",
        "etc/taskyard/taskyard.yaml",
        "etc/systemd/system/multi-user.target.wants/taskyard.service",
    ] {
        assert!(root.has(file), "{file}");
    }
    if cfg!(feature = "man") {
        assert!(root.has("usr/share/man/man1/taskyard-tube-create.1.gz"));
    }
    // The pool needs a configuration before it can start.
    assert!(!root.has("etc/systemd/system/multi-user.target.wants/taskyard-pool.service"));
    for (file, mode) in
        [("etc/taskyard/token", 0o600), ("etc/taskyard/taskyard.yaml", 0o644), (UNIT, 0o644)]
    {
        let about = fs::metadata(root.path(file)).unwrap();
        assert_eq!((about.mode() & 0o777, about.uid(), about.gid()), (mode, 0, 0), "{file}");
    }
    let token = fs::read_to_string(root.path("etc/taskyard/token")).unwrap();
    assert!(token.len() == 64 && token.chars().all(|c| c.is_ascii_hexdigit()));
    assert!(root.unit("ExecStart").starts_with("/usr/bin/taskyard serve --config "));
    assert_eq!(root.unit("User"), "taskyard");
}

#[test]
fn the_package_is_installed_run_upgraded_removed_and_purged() {
    if !can_install() {
        return;
    }
    let (packages, root) = (Packages::new(), FreshRoot::new());
    root.install(&packages.previous());
    if given_package().is_none() {
        check_installed(&root);
    }
    let token = fs::read_to_string(root.path("etc/taskyard/token")).unwrap();

    let serving = root.serve();
    assert!(serving.screen.contains("config /etc/taskyard/taskyard.yaml"), "{}", serving.screen);
    assert!(serving.screen.contains("sqlite:/var/lib/taskyard"), "{}", serving.screen);
    assert_eq!(root.client(&serving, &["put", "mail", "one"]).good(), "0\n");
    assert_eq!(root.client(&serving, &["put", "mail", "two"]).good(), "1\n");
    assert_eq!(root.client(&serving, &["take", "mail", "--json"]).json()[0]["data"], "one");
    root.client(&serving, &["ack", "mail", "0"]).good();
    serving.run(&["put", "mail", "x"]).ends(8);

    // An administrator has changed the configuration, which an upgrade keeps. The server runs while its program is replaced.
    let config = root.path("etc/taskyard/taskyard.yaml");
    let changed = fs::read_to_string(&config).unwrap() + "metrics-tubes: 7\n";
    fs::write(&config, &changed).unwrap();
    root.install(&packages.next());
    check_installed(&root);
    let version = concat!("Version: ", env!("CARGO_PKG_VERSION"), "\n");
    assert!(root.dpkg(&["--status", "taskyard"]).contains(version));
    assert_eq!(fs::read_to_string(&config).unwrap(), changed);
    assert_eq!(fs::read_to_string(root.path("etc/taskyard/token")).unwrap(), token);
    assert_eq!(root.client(&serving, &["put", "mail", "three"]).good(), "2\n");
    stop(serving);
    let serving = root.serve();
    for data in ["two", "three"] {
        assert_eq!(root.client(&serving, &["take", "mail", "--json"]).json()[0]["data"], data);
    }
    stop(serving);

    root.dpkg(&["--remove", "taskyard"]);
    for (file, stays) in [
        ("usr/bin/taskyard", false),
        (UNIT, false),
        ("etc/taskyard/taskyard.yaml", true),
        ("etc/taskyard/token", true),
        ("var/lib/taskyard/taskyard.db", true),
    ] {
        assert_eq!(root.has(file), stays, "{file}");
    }
    root.dpkg(&["--purge", "taskyard"]);
    for file in [
        "etc/taskyard",
        "var/lib/taskyard",
        "var/log/taskyard",
        "etc/systemd/system/multi-user.target.wants/taskyard.service",
        "etc/systemd/system/taskyard.service",
    ] {
        assert!(!root.has(file), "{file}");
    }
}

// Only folders of the same program were upgraded by a package.
#[test]
fn the_package_is_upgraded_over_the_data_of_an_earlier_program() {
    if !can_install() {
        return;
    }
    let (packages, root) = (Packages::new(), FreshRoot::new());
    root.install(&packages.previous());
    let state = root.path("var/lib");
    for folder in [EarlierFolder::Stopped, EarlierFolder::Killed] {
        let _ = fs::remove_dir_all(state.join("taskyard"));
        fs::rename(folder.unpack(&state), state.join("taskyard")).unwrap();
        let (user, group) = root.ids();
        for entry in fs::read_dir(state.join("taskyard")).unwrap() {
            chown(entry.unwrap().path(), Some(user), Some(group)).unwrap();
        }
        root.install(&packages.build(env!("CARGO_PKG_VERSION"), folder.name()));
        let serving = root.serve();
        folder.assert_shown(|args| root.client(&serving, args));
        stop(serving);
    }
}

/// Without this, checksums of two builds of one commit differ, and a package cannot be compared with its sources.
#[test]
fn two_builds_give_the_same_bytes() {
    if !can_build() {
        return;
    }
    let packages = Packages::new();
    let built = ["first", "second"].map(|name| packages.build("0.1.0", name));
    let folders = built.each_ref().map(|package| package.parent().unwrap());
    let names: Vec<_> =
        fs::read_dir(folders[0]).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 3, "a package, a tarball and checksums: {names:?}");
    for name in &names {
        let [first, second] = folders.map(|folder| fs::read(folder.join(name)).unwrap());
        assert!(first == second, "{name:?} differs");
    }
    let info = must(Command::new("dpkg-deb").arg("--info").arg(&built[0]));
    for line in ["Package: taskyard", "Depends: libc6 (>= 2.", "conffiles", "postrm"] {
        assert!(info.contains(line), "{line}: {info}");
    }
}

/// The whole way of a user without dpkg: download, verify, unpack, run. A damaged tarball is noticed.
#[test]
fn the_tarball_is_verified_unpacked_and_run() {
    if !can_build() {
        return;
    }
    let (packages, version) = (Packages::new(), env!("CARGO_PKG_VERSION"));
    let package = packages.build(version, "dist");
    let folder = package.parent().unwrap();
    let ending = |end: &str| {
        let mut names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        let found = names.find(|name| name.to_string_lossy().ends_with(end));
        found.unwrap_or_else(|| panic!("nothing ends with {end}")).into_string().unwrap()
    };
    let (tarball, checksums) = (ending(".tar.gz"), ending(".sha256"));
    let verify = || {
        let mut verify = Command::new("sha256sum");
        verify.arg("-c").arg(&checksums).current_dir(folder);
        text(&verify.output().expect("sha256sum is there"))
    };
    assert!(verify().contains(&format!("{tarball}: OK\n")), "{}", verify());

    must(Command::new("tar").args(["-xzf", &tarball]).current_dir(folder));
    let root = folder.join(format!("taskyard-{version}"));
    let program = root.join("usr/bin/taskyard");
    assert_eq!(must(Command::new(&program).arg("--version")), format!("taskyard {version}\n"));
    for (shell, file) in [
        ("bash", "bash-completion/completions/taskyard"),
        ("zsh", "zsh/vendor-completions/_taskyard"),
        ("fish", "fish/vendor_completions.d/taskyard.fish"),
    ] {
        let packed = fs::read_to_string(root.join("usr/share").join(file)).expect(file);
        assert_eq!(packed, must(Command::new(&program).args(["completions", shell])), "{file}");
    }
    let page = |name: &str| {
        let file = root.join("usr/share/man/man1").join(name);
        must(Command::new("gzip").args(["-cd"]).arg(file))
    };
    assert!(page("taskyard.1.gz").contains(".TH taskyard 1"));
    if cfg!(feature = "man") {
        assert!(page("taskyard-tube-create.1.gz").contains("attempts"));
    }
    assert!(root.join(UNIT).exists());

    fs::write(folder.join(&tarball), "damaged").unwrap();
    assert!(verify().contains(&format!("{tarball}: FAILED\n")), "{}", verify());
}

/// An installation with /etc/taskyard/options started with an empty folder after the upgrade; and for dpkg a candidate must be
/// before its release.
#[test]
fn an_upgrade_of_an_earlier_installation_is_announced() {
    if !can_install() {
        return;
    }
    let (packages, root) = (Packages::new(), FreshRoot::new());
    fs::create_dir_all(root.path("etc/taskyard")).unwrap();
    fs::create_dir_all(root.path("etc/systemd/system")).unwrap();
    fs::write(root.path("etc/taskyard/options"), "TASKYARD_OPTIONS=--users u.toml\n").unwrap();
    fs::write(root.path("etc/taskyard/token"), "").unwrap();
    fs::write(root.path("etc/systemd/system/taskyard.service"), "[Service]\n").unwrap();
    let package = packages.build("0.1.0-rc.1", "candidate");
    let said = root.dpkg(&["--install", package.to_str().unwrap()]);
    assert!(said.contains("does not start while /etc/taskyard/options exists"), "{said}");
    assert!(said.contains("/etc/systemd/system/taskyard.service overrides"), "{said}");
    assert_eq!(root.unit("AssertPathExists"), "!/etc/taskyard/options");
    let token = fs::read_to_string(root.path("etc/taskyard/token")).unwrap();
    assert_eq!(token.len(), 64, "an empty token is replaced");
    assert!(root.dpkg(&["--status", "taskyard"]).contains("Version: 0.1.0~rc.1"));
}

/// The scripts of the package run as root on machines of users: a typing error in them must not be seen there first.
#[test]
fn the_scripts_are_valid() {
    for script in ["build.sh", "postinst", "prerm", "postrm"] {
        must(Command::new("sh").arg("-n").arg(Path::new(FILES).join("package").join(script)));
    }
}
