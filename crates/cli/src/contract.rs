//! `contract`: check contracts of typed queues and generate source code from them.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use taskyard_contract::{Contract, Problems, compare, parse, python, rust, rust_types};
use taskyard_wire::Exit;

use crate::failure::Wrong;
use crate::output;

/// What to do with a contract.
#[derive(Debug, Args)]
pub struct ContractArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Say everything that is wrong with a contract, with line, column and a hint.
    Check(CheckArgs),
    /// Write the source code of a contract: types, codec, handlers, producers.
    Generate(GenerateArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard contract check queues.yaml
  taskyard contract check queues.yaml --previous released/queues.yaml

Exit code 2 when something is wrong. Against the previous contract: fields may only be appended, ids never
change.")]
struct CheckArgs {
    /// The contract.
    file: PathBuf,
    /// The contract that is in use: its tasks must survive.
    #[arg(long, value_name = "FILE")]
    previous: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard contract generate queues.yaml --output src/queues.rs
  taskyard contract generate queues.yaml --language python > queues.py

Generating again changes nothing. No code of yours belongs into what is generated.")]
struct GenerateArgs {
    #[command(flatten)]
    check: CheckArgs,
    /// Write to this file instead of printing; a file that is as it should be is left alone.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// In which language.
    #[arg(long, value_enum, default_value = "rust")]
    language: Language,
    /// Leave out the handlers: for programs that only put tasks.
    #[arg(long)]
    types: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Language {
    /// For the crate `taskyard`.
    Rust,
    /// For Python 3, types and codec only.
    Python,
}

/// Checks or generates.
pub fn run(args: ContractArgs) -> anyhow::Result<Exit> {
    match args.verb {
        Verb::Check(args) => {
            let contract = args.contract()?;
            let count = contract.queues.len();
            let queues = if count == 1 { "1 queue".into() } else { format!("{count} queues") };
            output::line(format!("{} is good: {queues}", args.file.display()))?;
        }
        Verb::Generate(args) => args.generate()?,
    }
    Ok(Exit::Ok)
}

impl CheckArgs {
    fn contract(&self) -> anyhow::Result<Contract> {
        let contract = read(&self.file)?;
        if let Some(previous) = &self.previous {
            let previous = read(previous)?;
            compare(&previous, &contract).map_err(|problems| wrong(&self.file, &problems))?;
        }
        Ok(contract)
    }
}

impl GenerateArgs {
    fn generate(&self) -> anyhow::Result<()> {
        let contract = self.check.contract()?;
        let source = match self.language {
            Language::Rust if self.types => rust_types(&contract),
            Language::Rust => rust(&contract),
            Language::Python => python(&contract),
        };
        let Some(target) = &self.output else {
            return Ok(output::bytes(source.as_bytes())?);
        };
        // What is built from the file need not be built again.
        if fs::read(target).is_ok_and(|written| written == source.as_bytes()) {
            return Ok(());
        }
        fs::write(target, source)
            .map_err(|error| anyhow::anyhow!("cannot write {}: {error}", target.display()))
    }
}

/// The contract in a file.
pub fn read(path: &Path) -> Result<Contract, Wrong> {
    let text = fs::read_to_string(path)
        .map_err(|error| Wrong(format!("cannot read {}: {error}", path.display())))?;
    parse(&text).map_err(|problems| wrong(path, &problems))
}

fn wrong(path: &Path, problems: &Problems) -> Wrong {
    let lines: Vec<_> =
        problems.iter().map(|problem| format!("{}:{problem}", path.display())).collect();
    Wrong(lines.join("\n"))
}
