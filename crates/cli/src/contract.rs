//! `contract`: checks contracts of typed queues and generates source code from them.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use taskyard_contract::{Contract, Problems, compare, parse, python, rust, rust_types, typescript};
use taskyard_wire::Exit;

use crate::failure::UsageError;
use crate::output;

/// The arguments of `contract`.
#[derive(Debug, Args)]
pub struct ContractArgs {
    #[command(subcommand)]
    verb: ContractVerb,
}

#[derive(Debug, Subcommand)]
enum ContractVerb {
    /// Report all errors of a contract, with line, column and a hint.
    Check(CheckArgs),
    /// Generate source code from a contract: types, codec, handlers, producers.
    Generate(GenerateArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard contract check queues.yaml
  taskyard contract check queues.yaml --previous released/queues.yaml

The exit code is 2 if the contract has errors. Compared with the previous contract, fields may
only be appended and ids must not change.")]
struct CheckArgs {
    /// The contract, a YAML file.
    file: PathBuf,
    /// The contract that is in use; its tasks must stay readable.
    #[arg(long, value_name = "FILE")]
    previous: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard contract generate queues.yaml --output src/queues.rs
  taskyard contract generate queues.yaml --language python > queues.py
  taskyard contract generate queues.yaml --typescript > queues.ts

Generating again gives the same result. Do not edit the generated file.")]
struct GenerateArgs {
    #[command(flatten)]
    check: CheckArgs,
    /// Write to this file instead of standard output; an unchanged file is not written.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The language of the generated code.
    #[arg(long, value_enum, default_value = "rust")]
    language: Language,
    /// The same as `--language typescript`.
    #[arg(long, conflicts_with = "language")]
    typescript: bool,
    /// Generate no handlers, for programs that only put tasks.
    #[arg(long)]
    types: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Language {
    /// For the crate `taskyard-worker`.
    Rust,
    /// For Python 3, types and codec only.
    Python,
    /// For TypeScript, types only; the npm package `taskyard` has the rest.
    Typescript,
}

/// Checks a contract or generates code.
pub fn run(args: ContractArgs) -> anyhow::Result<Exit> {
    match args.verb {
        ContractVerb::Check(args) => {
            let contract = args.contract()?;
            let queues = output::plural(contract.queues.len() as u64, "queue");
            output::line(format!("{} is valid: {queues}", args.file.display()))?;
        }
        ContractVerb::Generate(args) => args.generate()?,
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
        let language = if self.typescript { Language::Typescript } else { self.language };
        let source = match language {
            Language::Rust if self.types => rust_types(&contract),
            Language::Rust => rust(&contract),
            Language::Python => python(&contract),
            Language::Typescript => typescript(&contract),
        };
        let Some(target) = &self.output else {
            return Ok(output::bytes(source.as_bytes())?);
        };
        // An unchanged file does not trigger a rebuild.
        if fs::read(target).is_ok_and(|written| written == source.as_bytes()) {
            return Ok(());
        }
        fs::write(target, source)
            .map_err(|error| anyhow::anyhow!("cannot write {}: {error}", target.display()))
    }
}

/// Reads a contract from a file.
pub fn read(path: &Path) -> Result<Contract, UsageError> {
    let text = fs::read_to_string(path)
        .map_err(|error| UsageError(format!("cannot read {}: {error}", path.display())))?;
    parse(&text).map_err(|problems| wrong(path, &problems))
}

fn wrong(path: &Path, problems: &Problems) -> UsageError {
    let lines: Vec<_> =
        problems.iter().map(|problem| format!("{}:{problem}", path.display())).collect();
    UsageError(lines.join("\n"))
}
