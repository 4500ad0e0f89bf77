//! Starts what documents need beside a server: Python, Node, PostgreSQL, Redis, Tarantool. Each is nothing when the tests run without it.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use taskyard_testkit::postgres::{cluster, programs};
use taskyard_testkit::recorded_output::register_secret;
use taskyard_testkit::redis::{DURABLE, RedisInstance};
use taskyard_testkit::skipped::skip_without;
use taskyard_testkit::tarantool::TarantoolInstance;
use taskyard_testkit::{redis, tarantool};

use crate::document_run::DocumentRun;
use crate::node_package::NodePackage;
use crate::python_package::interpreter;

/// The sources of the Python package: another test builds and installs it.
const PYTHON_PACKAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../clients/python/src");
/// The repository.
const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

impl DocumentRun {
    /// Lets `python` find the package and the tools of the tests.
    pub fn with_python(&mut self) -> Option<()> {
        self.find_in(interpreter()?.parent()?);
        self.set("PYTHONPATH", PYTHON_PACKAGE);
        Some(())
    }

    /// Lets `node` find the package, packed and installed, and the packages of the tests. Documents that are run at the same time
    /// share it.
    pub fn with_node(&mut self) -> Option<()> {
        let package = {
            static PACKAGE: Mutex<Weak<NodePackage>> = Mutex::new(Weak::new());
            let mut shared = PACKAGE.lock().unwrap_or_else(PoisonError::into_inner);
            match shared.upgrade() {
                Some(package) => package,
                None => {
                    let package = Arc::new(NodePackage::install()?);
                    *shared = Arc::downgrade(&package);
                    package
                }
            }
        };
        let modules = self.folder().join("node_modules");
        std::fs::create_dir(&modules).expect("a folder can be made");
        for folder in [package.modules(), &package.path("node_modules")] {
            for entry in std::fs::read_dir(folder).expect("a folder of packages").flatten() {
                let link = modules.join(entry.file_name());
                let _ = std::fs::remove_file(&link);
                std::os::unix::fs::symlink(entry.path(), link).expect("a link can be made");
            }
        }
        self.find_in(package.node().parent()?);
        self.keep(package);
        Some(())
    }

    /// Starts the server again with other flags.
    pub fn restart(&mut self, flags: &str) {
        self.start_server(&format!("taskyard serve {flags}"), "");
    }

    /// Starts a server on an empty folder in place of the one that runs.
    pub fn serve_anew(&mut self) {
        self.stop_server();
        std::fs::remove_dir_all(self.folder().join("taskyard-data")).expect("its folder");
        self.serve();
    }

    /// A database of a user with its name, both called `shop` in documents, on the server that the tests share. `psql` finds it
    /// without a host.
    pub fn with_postgres(&mut self) -> Option<()> {
        static DATABASES: AtomicU32 = AtomicU32::new(0);
        let (programs, cluster) = (programs()?, cluster());
        let name = format!("shop{}", DATABASES.fetch_add(1, Ordering::Relaxed));
        let socket = cluster.socket();
        self.find_in(programs);
        for (variable, value) in [
            ("PGHOST", socket.parent()?.as_os_str()),
            ("PGUSER", name.as_ref()),
            ("PGDATABASE", name.as_ref()),
        ] {
            self.set(variable, value);
        }
        self.succeed(&format!(
            "psql -U postgres -d postgres -q -c 'CREATE ROLE {name} LOGIN' -c 'CREATE DATABASE {name} OWNER {name}'"
        ));
        let url = cluster.url(&name).replace("//postgres@", &format!("//{name}@"));
        for shown in ["postgres://shop@db/shop", "postgres://shop@127.0.0.1/shop"] {
            self.rename(shown, &url);
        }
        self.rename("postgresql://shop@127.0.0.1/shop", &url);
        self.rename("postgres://postgres@db/postgres", cluster.url("postgres"));
        self.rename("psql shop", format!("psql {name}"));
        self.rename("\"data\": \"shop\"", format!("\"data\": \"{name}\""));
        Some(())
    }

    /// The URL of that database.
    pub fn database(&self) -> String {
        self.named_as_here("postgres://shop@db/shop")
    }

    /// A Redis in place of what the document calls so.
    pub fn with_redis(&mut self, shown: &str, own: &str) -> Option<u16> {
        let program = redis::program()?;
        self.find_in(program.parent()?);
        let redis = RedisInstance::with(program, DURABLE);
        let port = redis.port();
        self.rename(shown, own.replace("PORT", &port.to_string()));
        self.keep(redis);
        Some(port)
    }

    /// A Tarantool in place of this address, with the user and the password of the document: both are on command lines.
    pub fn with_tarantool(&mut self, user: &str, shown: &str) -> Option<TarantoolInstance> {
        let settings = [("wal_mode", "write")];
        let tarantool = TarantoolInstance::with(tarantool::program()?, &settings);
        let (name, password) = user.split_once(':')?;
        tarantool.talk(&format!(
            "box.schema.user.create('{name}', {{ password = '{password}' }}) \
             box.schema.user.grant('{name}', 'read,write,execute,create', 'universe')"
        ));
        self.rename(shown, format!("127.0.0.1:{}", tarantool.port()));
        Some(tarantool)
    }

    /// Runs the SQL of the next block as the user of the document.
    #[track_caller]
    pub fn sql(&mut self) -> String {
        let text = self.next(&["sql"]).text;
        self.write("block.sql", &text);
        self.succeed("psql -v ON_ERROR_STOP=1 -f block.sql")
    }

    /// Copies a file of the repository into the folder.
    pub fn copy(&self, file: &str, name: &str) {
        let from = Path::new(REPOSITORY).join(file);
        std::fs::copy(from, self.folder().join(name)).expect(file);
    }

    /// Nothing if a program is not installed and the tests run without it.
    pub fn program_or_skip(&self, name: &str) -> Option<()> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let is_installed = std::env::split_paths(&path).any(|folder| folder.join(name).is_file());
        if !is_installed {
            skip_without(name);
        }
        is_installed.then_some(())
    }

    /// A file with a token.
    pub fn token(&self, name: &str) {
        self.succeed(&format!("umask 077; openssl rand -hex 32 > {name}"));
        let token = std::fs::read_to_string(self.folder().join(name)).expect("it was written");
        register_secret(token.trim());
    }

    /// Lets a pool run without sandboxes where they do not work.
    pub fn allow_no_sandbox(&self, file: &str) {
        let mut trial = Command::new("/usr/bin/bwrap");
        trial.args(["--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "/bin/true"]);
        if !trial.status().is_ok_and(|status| status.success()) {
            self.succeed(&format!("echo 'sandbox: none' >> {file}"));
        }
    }
}
