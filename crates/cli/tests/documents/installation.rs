//! Runs the blocks that install the packages for Python and Node as they are in the documents, from a copy of the sources. What they would
//! download is in folders of the tests, so that they need no network.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::document_run::DocumentRun;
use crate::{node_package, python_package};

/// Makes a wheel of the installed build tool of the Python package.
const WHEEL: &str = r#"
import importlib.metadata, zipfile
package = importlib.metadata.distribution("flit_core")
with zipfile.ZipFile(f"wheels/flit_core-{package.version}-py3-none-any.whl", "w") as wheel:
    for file in package.files:
        if file.suffix != ".pyc":
            wheel.write(package.locate_file(file), file)
"#;

/// The packages with which the Node package is built.
const NODE_TOOLS: [&str; 4] = ["@types/node", "@typescript", "typescript", "undici-types"];

impl DocumentRun {
    /// A folder beside that of the reader in place of the one of the repository, `../taskyard` in the documents.
    fn repository(&mut self) -> PathBuf {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let path = folder.path().to_owned();
        self.rename("../taskyard/", format!("{}/", path.display()));
        self.keep(folder);
        path
    }

    /// Runs the next block, which installs the Python package into an environment, and uses this environment from then on.
    pub fn install_python_package(&mut self) -> Option<()> {
        let tools = python_package::interpreter()?;
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../clients/python");
        let clients = self.repository().join("clients");
        std::fs::create_dir(&clients).expect("a folder can be made");
        copy(Path::new(source), &clients);
        self.find_in(tools.parent()?);
        std::fs::create_dir(self.folder().join("wheels")).expect("a folder can be made");
        self.write("wheel.py", WHEEL);
        self.succeed("python wheel.py");
        self.set("PIP_CONFIG_FILE", "/dev/null");
        self.set("PIP_NO_INDEX", "1");
        self.set("PIP_NO_CACHE_DIR", "1");
        self.set("PIP_FIND_LINKS", self.folder().join("wheels"));
        self.run_as_script();
        // As after the command `activate` in the terminal of the reader.
        self.find_in(self.folder().join("venv/bin"));
        let used = self.succeed("python -c 'import taskyard; print(taskyard.__file__)'");
        assert!(used.contains("/venv/"), "not the installed package: {used}");
        Some(())
    }

    /// Runs the next block, which builds the Node package and installs it into the folder of the reader.
    pub fn install_node_package(&mut self) -> Option<()> {
        let (node, modules) = node_package::tools()?;
        let source = node_package::copy_source(&self.repository());
        // Copies and no links: npm removes packages that it finds unnecessary, also through links.
        for name in NODE_TOOLS {
            let to = source.join("node_modules").join(name);
            std::fs::create_dir_all(to.parent()?).expect("a folder can be made");
            copy(&modules.join(name), &to);
        }
        // Without the links to its programs npm fetches a package anew.
        let programs = source.join("node_modules/.bin");
        std::fs::create_dir(&programs).expect("a folder can be made");
        std::os::unix::fs::symlink("../typescript/bin/tsc", programs.join("tsc"))
            .expect("a link can be made");
        self.find_in(node.parent()?);
        // Otherwise npm installs into the nearest folder above that has packages.
        std::fs::create_dir(self.folder().join("node_modules")).expect("a folder can be made");
        self.set("npm_config_userconfig", self.folder().join("no-npmrc"));
        self.set("npm_config_offline", "true");
        self.set("npm_config_cache", self.folder().join("cache"));
        self.run_as_script();
        let used = self.succeed("node -p 'require.resolve(\"taskyard\")'");
        let own = source.canonicalize().expect("the folder is there").join("dist");
        assert!(used.starts_with(&own.display().to_string()), "not that package: {used}");
        Some(())
    }
}

/// Copies a folder with what links in it lead to.
fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-RL").args([from, to]).status();
    assert!(copied.expect("there is a program that copies").success(), "{}", from.display());
}
