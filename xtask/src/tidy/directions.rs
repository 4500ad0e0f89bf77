//! Checks the directions of dependencies: each crate exists for an invariant that is checked here.

use std::collections::{BTreeMap, BTreeSet};

use super::Diagnostic;
use super::lexer::find_word;
use super::tree::Tree;
use crate::shell;

/// What a crate must not know.
struct Rule {
    package: &'static str,
    /// Packages that must not be reached, however far down.
    unreachable: &'static [&'static str],
    /// Packages that must not be named, while a crate below may use them.
    unnamed: &'static [&'static str],
    /// What to do instead.
    instead: &'static str,
}

/// What every store of a database must not know.
const fn store_rule(package: &'static str) -> Rule {
    Rule {
        package,
        unreachable: &["taskyard-engine", "taskyard-wire", "taskyard-server", "taskyard", "utoipa"],
        // The Tarantool driver uses it: it is the protocol of Tarantool.
        unnamed: &["taskyard-iproto"],
        instead: "a store takes the core's commands and returns replies: shared types go there",
    }
}

const RULES: &[Rule] = &[
    Rule {
        package: "taskyard-core",
        unreachable: &[
            "tokio",
            "futures",
            "serde",
            "serde_core",
            "tracing",
            "log",
            "chrono",
            "time",
            "taskyard-store",
            "taskyard-engine",
            "taskyard-iproto",
            "taskyard-wire",
            "taskyard-server",
            "taskyard",
        ],
        unnamed: &[],
        instead: "the core decides from its arguments alone: do this in the store, engine or wire",
    },
    Rule {
        package: "taskyard-store",
        unreachable: &[
            "rusqlite",
            "tokio-postgres",
            "taskyard-engine",
            "taskyard-wire",
            "taskyard-server",
            "taskyard",
            "utoipa",
        ],
        unnamed: &["taskyard-iproto", "taskyard-postgres", "taskyard-redis", "taskyard-tarantool"],
        instead: "this crate is the interface of stores: a database has a crate in crates/stores",
    },
    Rule {
        package: "taskyard-conformance",
        unreachable: &["tokio", "taskyard-engine", "taskyard-wire", "taskyard-server", "taskyard"],
        unnamed: &[],
        instead: "the suite runs on any Execute: let the tests of a store or server bring it",
    },
    store_rule("taskyard-store-sqlite"),
    store_rule("taskyard-store-postgres"),
    store_rule("taskyard-store-redis"),
    store_rule("taskyard-store-tarantool"),
    store_rule("taskyard-stores"),
    Rule {
        package: "taskyard-testkit",
        unreachable: &["rusqlite", "taskyard-engine", "taskyard-server", "taskyard"],
        unnamed: &[],
        instead: "fixtures start databases and browsers: a server needs the feature `server` or `storm`",
    },
    Rule {
        package: "taskyard-simulator",
        unreachable: &["taskyard-testkit", "tokio-postgres", "reqwest"],
        // The pool uses it for the folders of programs, which do not exist in a run.
        unnamed: &["tempfile"],
        instead: "a run has no process, socket or file: simulate what it needs behind a trait of the product",
    },
    Rule {
        package: "taskyard-engine",
        unreachable: &["taskyard-wire", "taskyard-server", "taskyard"],
        unnamed: &["taskyard-iproto", "serde", "serde_json", "rmp", "rusqlite"],
        instead: "the engine knows no bytes: encode in the wire, store in the store",
    },
    Rule {
        package: "taskyard-iproto",
        unreachable: &[
            "tokio",
            "serde",
            "serde_core",
            "utoipa",
            "taskyard-store",
            "taskyard-engine",
            "taskyard-wire",
            "taskyard-server",
            "taskyard",
        ],
        unnamed: &[],
        instead: "iproto turns bytes into commands and back: HTTP shapes belong in `wire`, sockets in \
                  server, client and driver",
    },
    Rule {
        package: "taskyard-wire",
        unreachable: &[
            "tokio",
            "axum",
            "hyper",
            "reqwest",
            "rusqlite",
            "taskyard-store",
            "taskyard-engine",
            "taskyard-server",
            "taskyard",
        ],
        unnamed: &[],
        instead: "the wire turns bytes into requests and back: open sockets in server or client",
    },
    Rule {
        package: "taskyard-server",
        unreachable: &["taskyard"],
        unnamed: &["rusqlite", "postgres", "tokio-postgres", "sqlx", "redis", "fred"],
        instead: "the server is given an engine: let the store speak to the database",
    },
    Rule {
        package: "taskyard-pool",
        unreachable: &[
            "taskyard-store",
            "taskyard-engine",
            "taskyard-iproto",
            "taskyard-wire",
            "taskyard-server",
            "taskyard",
        ],
        unnamed: &[],
        instead: "the pool asks `core::classes` and runs programs: who hosts it is further out",
    },
    Rule {
        package: "taskyard",
        unreachable: &[
            "rusqlite",
            "libsqlite3-sys",
            "axum",
            "taskyard-store",
            "taskyard-engine",
            "taskyard-server",
        ],
        unnamed: &[],
        instead: "put it behind a feature that is not a default one",
    },
    Rule {
        package: "taskyard-worker",
        unreachable: &[
            "rusqlite",
            "libsqlite3-sys",
            "axum",
            "taskyard-contract",
            "taskyard-store",
            "taskyard-engine",
            "taskyard-server",
            "taskyard",
        ],
        unnamed: &[],
        instead: "a worker runs on any queue that executes commands: use `core::Execute`",
    },
    Rule {
        package: "taskyard-postgres",
        unreachable: &[
            "tokio",
            "tokio-postgres",
            "taskyard-core",
            "taskyard-store",
            "taskyard-engine",
            "taskyard-iproto",
            "taskyard-wire",
            "taskyard-server",
            "taskyard",
        ],
        unnamed: &[],
        instead: "it says how a database is reached and whom to believe: who connects is further out",
    },
    Rule {
        package: "taskyard-redis",
        unreachable: &[
            "serde",
            "taskyard-core",
            "taskyard-store",
            "taskyard-engine",
            "taskyard-iproto",
            "taskyard-wire",
            "taskyard-server",
            "taskyard",
        ],
        unnamed: &[],
        instead: "it carries words to Redis and answers back: what they mean is for store and pool",
    },
    Rule {
        package: "taskyard-tarantool",
        unreachable: &[
            "taskyard-wire",
            "taskyard-store",
            "taskyard-engine",
            "taskyard-server",
            "taskyard",
        ],
        unnamed: &["taskyard-core"],
        instead: "it carries calls to Tarantool and answers back: what they mean is for the store",
    },
    Rule {
        package: "taskyard-sql",
        unreachable: &[
            "rusqlite",
            "taskyard-store",
            "taskyard-engine",
            "taskyard-iproto",
            "taskyard-wire",
            "taskyard-server",
            "taskyard",
        ],
        unnamed: &[],
        instead: "SQL tasks own their table: rules of time go to the core, everything else stays here",
    },
    Rule {
        package: "taskyard-tls",
        unreachable: &[
            "serde",
            "taskyard-core",
            "taskyard-store",
            "taskyard-engine",
            "taskyard-iproto",
            "taskyard-wire",
            "taskyard-server",
            "taskyard",
        ],
        unnamed: &["tokio"],
        instead: "it reads certificates and decides which are trusted: sockets belong to who opens them",
    },
    Rule {
        package: "taskyard-trace",
        unreachable: &[
            "tokio",
            "serde",
            "taskyard-store",
            "taskyard-engine",
            "taskyard-wire",
            "taskyard-server",
            "taskyard",
        ],
        unnamed: &[],
        instead: "a trace is recorded and replayed by the rules of the core alone: printing belongs to the CLI",
    },
    Rule {
        package: "taskyard-timezone",
        unreachable: &["tokio", "serde", "taskyard-store", "taskyard-engine", "taskyard"],
        unnamed: &[],
        instead: "it finds time zones by name: rules of time go to the core",
    },
    Rule {
        package: "taskyard-packed",
        unreachable: &["tokio", "serde", "taskyard-core"],
        unnamed: &[],
        instead: "build scripts use it: it knows texts and their names only",
    },
    Rule {
        package: "taskyard-documents",
        unreachable: &["taskyard-core", "taskyard-server", "taskyard"],
        unnamed: &["tokio", "serde", "serde_json"],
        instead: "the documents are pages of texts: what shows data belongs to the server",
    },
    Rule {
        package: "taskyard-contract",
        unreachable: &[
            "tokio",
            "serde",
            "taskyard-core",
            "taskyard-iproto",
            "taskyard-wire",
            "taskyard",
        ],
        unnamed: &[],
        instead: "a contract is text in and text out, so that a build script can use it",
    },
    // Its promise is the other way round, see `compare`.
    Rule { package: CLI, unreachable: &[], unnamed: &[], instead: "" },
    Rule {
        package: "mailer",
        unreachable: &["taskyard-server"],
        unnamed: &["taskyard-core", "taskyard-engine", "taskyard-store", "taskyard-wire"],
        instead: "an example uses what users have: `taskyard`, `taskyard-worker` and `taskyard-contract`",
    },
    Rule {
        package: "taskyard-bench",
        unreachable: &[CLI],
        unnamed: &[],
        instead: "the benchmark starts the product as a process, next to its own executable",
    },
    Rule { package: "xtask", unreachable: &["syn", "serde"], unnamed: &[], instead: "use std" },
];

const CLI: &str = "taskyard-cli";

/// What the core's sources must not touch, beyond what its dependencies tell.
const IMPURE: &[(&str, &str)] = &[
    ("Instant", "`now` is an argument, a `core::Timestamp`"),
    ("SystemTime", "`now` is an argument, a `core::Timestamp`"),
    ("std::fs", "the store reads and writes"),
    ("std::net", "server and client open sockets"),
    ("std::thread", "the engine runs things"),
    ("std::process", "the caller runs things"),
    ("std::env", "the caller passes settings as arguments"),
];

/// The core reads no clock and touches nothing outside itself.
pub fn pure_core(tree: &Tree) -> Vec<Diagnostic> {
    let mut diagnostics = Vec::new();
    for (path, source) in tree.rust().filter(|(path, _)| path.starts_with("crates/core/src/")) {
        for line in source.lines().filter(|line| !line.test) {
            for (word, instead) in IMPURE {
                let grouped = || {
                    let code = line.code.contains("std::{").then(|| source.code_from(line.number));
                    code.is_some_and(|code| is_in_group(&code, word))
                };
                if find_word(line.code, word).is_some() || grouped() {
                    let problem = format!("the core uses `{word}`");
                    diagnostics.push(Diagnostic::new((path, line.number), problem, *instead));
                }
            }
        }
    }
    diagnostics
}

/// Whether `use std::{..}` at the start of the code imports `std::word`.
fn is_in_group(code: &str, word: &str) -> bool {
    let group = code.split(';').next().unwrap_or_default();
    word.strip_prefix("std::").is_some_and(|module| find_word(group, module).is_some())
}

/// The dependencies of one package.
#[derive(Default)]
struct Dependencies {
    named: BTreeSet<String>,
    reached: BTreeSet<String>,
}

/// Asks cargo and compares with the rules.
pub fn check() -> Result<Vec<Diagnostic>, String> {
    let members = packages(&["--workspace", "--depth", "0"])?;
    let mut known = BTreeMap::new();
    for member in members {
        let all_edges = ["--package", &member, "--edges", "normal,build,dev", "--depth", "1"];
        // Tests may use what the crate itself must not reach.
        let own_edges = ["--package", &member, "--edges", "normal,build"];
        let mut named = packages(&all_edges)?;
        let mut reached = packages(&own_edges)?;
        named.remove(&member);
        reached.remove(&member);
        known.insert(member, Dependencies { named, reached });
    }
    Ok(compare(&known, RULES))
}

fn packages(args: &[&str]) -> Result<BTreeSet<String>, String> {
    let mut tree = shell::cargo();
    tree.args(["tree", "--quiet", "--prefix", "none", "--format", "{p}"]).args(args);
    let printed = shell::output(&mut tree)?;
    let names = printed.lines().filter_map(|line| line.split_whitespace().next());
    Ok(names.filter(|name| !name.starts_with('[')).map(String::from).collect())
}

fn compare(known: &BTreeMap<String, Dependencies>, rules: &[Rule]) -> Vec<Diagnostic> {
    let mut diagnostics = Vec::new();
    for (package, knows) in known {
        let mut report = |problem: String, instead: &str| {
            diagnostics.push(Diagnostic::new((package, 1), problem, instead));
        };
        if knows.named.contains(CLI) {
            report(format!("depends on `{CLI}`"), "move what is shared into the crate it is about");
        }
        let Some(rule) = rules.iter().find(|rule| rule.package == package) else {
            let instead = "a line in xtask/src/tidy/directions.rs with what it must not know, or a \
                           module of another crate";
            report("this crate has no rule".into(), instead);
            continue;
        };
        for banned in rule.unreachable.iter().filter(|name| knows.reached.contains(**name)) {
            report(format!("depends on `{banned}`, perhaps through another crate"), rule.instead);
        }
        for banned in rule.unnamed.iter().filter(|name| knows.named.contains(**name)) {
            report(format!("names `{banned}` in its Cargo.toml"), rule.instead);
        }
    }
    for rule in rules.iter().filter(|rule| !known.contains_key(rule.package)) {
        let problem = "a rule for a crate that is not there";
        diagnostics.push(Diagnostic::new((rule.package, 1), problem, "remove or rename the rule"));
    }
    diagnostics
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(package: &str, named: &[&str], reached: &[&str]) -> (String, Dependencies) {
        let set = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
        (package.into(), Dependencies { named: set(named), reached: set(reached) })
    }

    fn problem(known: Vec<(String, Dependencies)>) -> Vec<(String, String)> {
        const RULES: &[Rule] = &[
            Rule { package: "core", unreachable: &["tokio"], unnamed: &[], instead: "" },
            Rule { package: "server", unreachable: &[], unnamed: &["rusqlite"], instead: "" },
        ];
        let found = compare(&known.into_iter().collect(), RULES);
        found.into_iter().map(|found| (found.path, found.problem)).collect()
    }

    #[test]
    fn a_driver_may_be_reached_but_not_named() {
        let core = || known("core", &[], &[]);
        let server = known("server", &["core"], &["core", "rusqlite"]);
        assert_eq!(problem(vec![core(), server]), []);
        let server = known("server", &["rusqlite"], &["rusqlite"]);
        let expected = ("server".into(), "names `rusqlite` in its Cargo.toml".into());
        assert_eq!(problem(vec![core(), server]), [expected]);
    }

    #[test]
    fn what_is_reached_through_others_counts() {
        let found = problem(vec![known("core", &[], &["tokio"]), known("server", &[], &[])]);
        let text = "depends on `tokio`, perhaps through another crate";
        assert_eq!(found, [("core".into(), text.into())]);
    }

    #[test]
    fn every_crate_has_a_rule_and_every_rule_a_crate() {
        let found = problem(vec![known("core", &[], &[]), known("types", &[CLI], &[])]);
        let packages: Vec<_> = found.iter().map(|(package, _)| package.as_str()).collect();
        assert_eq!(packages, ["types", "types", "server"]);
    }

    #[test]
    fn the_core_is_pure() {
        let text = "\
use std::time::Instant;
use std::collections::HashMap;
use std::{collections, fs};
use std::{
    net,
};
/// An Instant in a comment.
fn instant() {}
#[cfg(test)]
mod tests {
    use std::fs;
}
";
        let lines = |path: &str| {
            let tree = Tree::of(&[(path, text)]);
            pure_core(&tree).into_iter().map(|diagnostic| diagnostic.line).collect::<Vec<_>>()
        };
        assert_eq!(lines("crates/core/src/a.rs"), [1, 3, 4]);
        assert_eq!(lines("crates/store/src/a.rs"), []);
    }
}
