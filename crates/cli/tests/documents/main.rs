//! Every command and block of code of the documents, run as a reader would run it, on real servers and databases.
//!
//! `document_run.rs` runs them; the other modules say for each document what has to be there. `not_run.rs` lists the blocks that are not run
//! here, each with its reason: a new block that is neither run nor listed fails a test. Left out are also blocks that are copied from
//! files which other tests run (`<!-- from: … -->`), and `docs/cli.md`, which the program generates.

mod cargo_commands;
mod coming_from;
mod document_run;
mod fixtures;
mod guides;
mod installation;
mod lists;
mod messages;
#[expect(dead_code, reason = "the tests of the package use all of it")]
#[path = "../node/package.rs"]
mod node_package;
mod not_run;
mod operate;
mod page;
#[expect(dead_code, reason = "the tests of the program use all of it")]
#[path = "../suite/process.rs"]
mod process;
mod program;
#[expect(dead_code, reason = "the tests of the package use all of it")]
#[path = "../python/package.rs"]
mod python_package;
mod reference;
mod start;

/// The documents that are run.
const RUN_HERE: &[&[&str]] =
    &[coming_from::PAGES, guides::PAGES, operate::PAGES, reference::PAGES, start::PAGES];
