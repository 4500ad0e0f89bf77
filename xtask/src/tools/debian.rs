//! Installs the programs that come as Debian packages.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::shell;

/// The Debian packages that the tests use. To add one, add a line.
const PACKAGES: &[Package] = &[
    Package { name: "asymptote", probe: &["asy", "--version"] },
    Package { name: "beanstalkd", probe: &["beanstalkd", "-v"] },
    Package { name: "binutils", probe: &["strip", "--version"] },
    Package { name: "bubblewrap", probe: &["bwrap", "--version"] },
    Package { name: "chromium", probe: &["chromium", "--version"] },
    Package { name: "chromium-driver", probe: &["chromedriver", "--version"] },
    Package { name: "curl", probe: &["curl", "--version"] },
    Package { name: "dvisvgm", probe: &["dvisvgm", "--version"] },
    Package { name: "nginx", probe: &["/usr/sbin/nginx", "-v"] },
    Package { name: "nodejs", probe: &["node", "--version"] },
    Package { name: "npm", probe: &["npm", "--version"] },
    Package { name: "openssl", probe: &["openssl", "version"] },
    Package { name: "pgbouncer", probe: &["/usr/sbin/pgbouncer", "--version"] },
    Package { name: "postgresql", probe: &["/usr/lib/postgresql/15/bin/postgres", "--version"] },
    Package { name: "python3-venv", probe: &["python3", "-c", "import ensurepip, venv"] },
    Package { name: "redis-server", probe: &["redis-server", "--version"] },
    Package { name: "systemd", probe: &["systemd-analyze", "--version"] },
    Package { name: "tarantool", probe: &["tarantool", "--version"] },
];

/// A Debian package, and the command that works once it is installed. Probing the command instead of
/// asking dpkg also works on other systems.
struct Package {
    name: &'static str,
    probe: &'static [&'static str],
}

/// What a package is made with.
const PACKAGING: [&str; 1] = ["binutils"];

/// Installs the packages whose programs do not work yet; without the right to, it says what to run.
pub fn prepare() -> Result<(), String> {
    prepare_missing(missing())
}

/// Installs what a package is made with.
pub fn prepare_packaging() -> Result<(), String> {
    shell::output(shell::program("dpkg-deb").arg("--version")).map_err(|error| {
        format!(
            "{error}\npackages are made on Debian and systems derived from it, which have dpkg-deb"
        )
    })?;
    prepare_missing(missing().into_iter().filter(|name| PACKAGING.contains(name)).collect())
}

fn prepare_missing(missing: Vec<&str>) -> Result<(), String> {
    if missing.is_empty() {
        return Ok(());
    }
    if !is_root() {
        return Err(advice(&missing));
    }
    install(&missing)
}

fn missing() -> Vec<&'static str> {
    PACKAGES.iter().filter(|package| !package.works()).map(|package| package.name).collect()
}

impl Package {
    fn works(&self) -> bool {
        let (program, args) = self.probe.split_first().expect("a probe names a program");
        shell::output(shell::program(program).args(args)).is_ok()
    }
}

fn advice(missing: &[&str]) -> String {
    let packages = missing.join(" ");
    format!(
        "the tests use programs that are not installed; as root, run\n\n    \
         apt-get install -y --no-install-recommends {packages}\n\n\
         or leave their tests out with `cargo xtask test --embedded`"
    )
}

fn is_root() -> bool {
    shell::output(shell::program("id").arg("-u")).is_ok_and(|id| id.trim() == "0")
}

fn install(packages: &[&str]) -> Result<(), String> {
    // An old list of packages may still do, so that only the installation itself decides.
    if let Err(error) = shell::run(apt_get().arg("update")) {
        eprintln!("{error}; installing from the list of packages that is present");
    }
    let quiet = NoServices::new(Path::new("/usr/sbin/policy-rc.d"))
        .map_err(|error| format!("cannot keep services from starting: {error}"))?;
    let installed =
        shell::run(apt_get().args(["install", "-y", "--no-install-recommends"]).args(packages));
    drop(quiet);
    installed.map_err(|error| format!("{error}\n{}", advice(packages)))?;
    let missing: Vec<_> = missing().into_iter().filter(|name| packages.contains(name)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(format!("installed, but still not working: {}", missing.join(", ")))
}

fn apt_get() -> std::process::Command {
    let mut command = shell::program("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive").args(["-q", "-o", "Dpkg::Use-Pty=0"]).args([
        "-o",
        "DPkg::Lock::Timeout=300",
        "-o",
        "Acquire::Retries=3",
    ]);
    // Standard output is for what a shell may evaluate, see `print`.
    command.stdout(std::io::stderr());
    command
}

/// While this lives, a package that is installed does not start its service: one of them would
/// sit on a port that ours uses. What was there before comes back at the end.
struct NoServices {
    policy: PathBuf,
    saved: PathBuf,
}

impl NoServices {
    fn new(policy: &Path) -> std::io::Result<Self> {
        let saved = policy.with_extension("d.before-taskyard");
        // A run that was killed has left its own policy here, and the real one in `saved`.
        if policy.symlink_metadata().is_ok() && saved.symlink_metadata().is_err() {
            fs::rename(policy, &saved)?;
        }
        let this = Self { policy: policy.into(), saved };
        fs::write(policy, "#!/bin/sh\nexit 101\n")?;
        fs::set_permissions(policy, fs::Permissions::from_mode(0o755))?;
        Ok(this)
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.policy);
        if self.saved.symlink_metadata().is_ok() {
            let _ = fs::rename(&self.saved, &self.policy);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("xtask-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn the_policy_comes_back() {
        let folder = folder("policy");
        let policy = folder.join("policy-rc.d");
        fs::write(&policy, "the owner's").unwrap();
        let quiet = NoServices::new(&policy).unwrap();
        assert!(fs::read_to_string(&policy).unwrap().contains("exit 101"));
        drop(quiet);
        assert_eq!(fs::read_to_string(&policy).unwrap(), "the owner's");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_killed_run_does_not_lose_the_policy() {
        let folder = folder("killed");
        let policy = folder.join("policy-rc.d");
        fs::write(&policy, "the owner's").unwrap();
        std::mem::forget(NoServices::new(&policy).unwrap());
        drop(NoServices::new(&policy).unwrap());
        assert_eq!(fs::read_to_string(&policy).unwrap(), "the owner's");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn without_a_policy_none_is_left() {
        let folder = folder("none");
        drop(NoServices::new(&folder.join("policy-rc.d")).unwrap());
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn the_advice_can_be_pasted() {
        let line = "    apt-get install -y --no-install-recommends chromium python3-venv\n";
        assert!(advice(&["chromium", "python3-venv"]).contains(line));
    }
}
