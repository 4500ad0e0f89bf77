//! `man`: writes the manual pages of all commands, for packages.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, CommandFactory};
use taskyard_wire::Exit;

use crate::args::Cli;

/// The arguments of `man`.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// The folder; it is created if it is missing.
    folder: PathBuf,
}

/// Writes the pages.
pub fn run(args: ManArgs) -> anyhow::Result<Exit> {
    let folder = args.folder.display();
    fs::create_dir_all(&args.folder).with_context(|| format!("cannot create {folder}"))?;
    let written = clap_mangen::generate_to(Cli::command(), &args.folder);
    written.with_context(|| format!("cannot write manual pages into {folder}"))?;
    Ok(Exit::Ok)
}
