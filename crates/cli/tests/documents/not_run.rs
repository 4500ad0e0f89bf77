//! The blocks of code that no test runs, each with the reason, and the check that there are no others but those that are copied from
//! files which other tests run (`<!-- from: … -->`) and those of the generated `docs/cli.md`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::page::{CodeBlock, DocumentPage};

/// A document, how a block of it begins, and why it is not run here.
type NotRun = (&'static str, &'static str, &'static str);

const BUILD: &str = "builds the program, which the tests have; cargo_commands.rs checks its names";
const FRAGMENT: &str = "a part of a program: the tests of the crates compile these calls";
const SYSTEM: &str = "changes this machine: suite/deploy does it in a root folder of its own";
const OTHER_MACHINES: &str = "needs the machines and certificates that it names";

/// All of them.
const NOT_RUN: &[NotRun] = &[
    ("README.md", "cargo run --release -- serve", BUILD),
    ("README.md", "cargo xtask test", "runs all tests"),
    ("README.md", "[dependencies]", "crates/client/tests/suite/readme.rs builds a project with it"),
    ("docs/guides/workers-rust.md", "to ann: hello", "examples/mailer/tests/mailer.rs runs it"),
    ("docs/iproto.md", "let client =", FRAGMENT),
    ("docs/operate/monitoring.md", "scrape_configs:", "a part of a file of Prometheus"),
    ("docs/operating.md", "# taskyard.yaml", "suite/config.rs checks it"),
    ("docs/operating.md", "apt install", SYSTEM),
    ("docs/pool.md", "taskyard pool scheduler pool.yaml", OTHER_MACHINES),
    ("docs/pool.md", "taskyard pool backend pool.yaml", OTHER_MACHINES),
    ("docs/redis.md", "taskyard serve --store redis+cluster", "tests/redis serves on a cluster"),
    ("docs/security.md", "[[users]]", "src/users_file.rs reads it"),
    ("docs/security.md", "{\"time\":", "suite/audit.rs compares the fields"),
    ("docs/security.md", "/var/log/taskyard", "a file of logrotate, which the tests do not have"),
    ("docs/security.md", "install -m 0755", SYSTEM),
    ("docs/security.md", "users: users.toml", "two settings that the table of options has"),
    ("docs/security.md", "podman build", "suite/deploy/container.rs builds and runs it"),
    ("docs/semaphores.md", "let manager =", FRAGMENT),
    (
        "docs/sql.md",
        "cannot connect to",
        "a message: suite/sql.rs and crates/services/sql/tests cause it",
    ),
    ("docs/start.md", "cargo build", BUILD),
    ("docs/testing.md", "cargo xtask simulate", "crates/simulator/tests runs it"),
    ("docs/testing.md", "git clone", "needs the network and runs tests"),
    ("docs/workers.md", "let client =", FRAGMENT),
    ("docs/workers.md", "[dependencies]", "examples/mailer has them"),
    ("docs/workers.md", "pub mod queues", "examples/mailer has it"),
    (
        "docs/workers.md",
        "- id: 1",
        "a part of a contract: crates/contract/tests/suite/evolution.rs has it",
    ),
    ("docs/workers.md", "cargo run -p mailer", "examples/mailer/tests/service.rs runs it"),
    (
        "docs/workers.md",
        "shop: ",
        "a file of settings: crates/worker/tests/suite/config.rs reads such files",
    ),
];

/// Documents whose blocks are made by the program: the texts of its help.
const GENERATED: [&str; 1] = ["docs/cli.md"];

/// Whether a block is to be run.
pub fn is_run_here(page: &str, block: &CodeBlock) -> bool {
    !block.is_copied && !NOT_RUN.iter().any(|not_run| is_it(not_run, page, block))
}

fn is_it(not_run: &NotRun, page: &str, block: &CodeBlock) -> bool {
    not_run.0 == page && block.text.trim_start().starts_with(not_run.1)
}

/// README.md and all documents, as paths from the root of the repository.
pub fn documents() -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (mut found, mut folders) =
        (BTreeSet::from(["README.md".to_owned()]), vec![root.join("docs")]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder of documents") {
            let path = entry.expect("an entry").path();
            match path.extension() {
                _ if path.is_dir() => folders.push(path),
                Some(end) if end == "md" => {
                    let name = path.strip_prefix(&root).expect("it is below the root");
                    found.insert(name.display().to_string());
                }
                _ => {}
            }
        }
    }
    for name in GENERATED {
        assert!(found.remove(name), "{name} is no document");
    }
    found
}

// A reader ran commands of pages that no test ran: some of them failed, others printed something else.
#[test]
fn every_block_of_every_document_is_run_or_has_a_reason() {
    let run_here: Vec<&str> = crate::RUN_HERE.concat();
    let (mut left, mut used) = (Vec::new(), vec![0; NOT_RUN.len()]);
    for name in documents() {
        for block in &DocumentPage::read(&name).blocks {
            for (not_run, used) in NOT_RUN.iter().zip(&mut used) {
                *used += usize::from(is_it(not_run, &name, block));
            }
            if is_run_here(&name, block) && !run_here.contains(&name.as_str()) {
                left.push(format!("{name}:{}: {}", block.line, block.language));
            }
        }
    }
    assert!(left.is_empty(), "run these blocks, or say in NOT_RUN why not: {left:#?}");
    let outdated = NOT_RUN.iter().zip(used).filter(|(_, used)| *used != 1);
    let outdated: Vec<_> = outdated.map(|((page, begin, _), used)| (page, begin, used)).collect();
    assert!(outdated.is_empty(), "these reasons are not for one block: {outdated:#?}");
    let unique: BTreeSet<_> = run_here.iter().collect();
    assert_eq!(unique.len(), run_here.len(), "a document is run twice");
}
