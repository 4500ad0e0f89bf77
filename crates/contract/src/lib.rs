//! Contracts of typed queues: parses a YAML file that defines queues and the fields of their tasks, and generates Rust,
//! Python or TypeScript source code from it.
//!
//! All functions are pure, except those of [`build`], which reads and writes files for a build script. The crate never
//! connects to a queue.
//!
//! ```
//! let yaml = "queues:\n  - id: 1\n    name: emails\n    fields:\n      - {name: to, type: string}\n";
//! let contract = taskyard_contract::parse(yaml).unwrap();
//! assert!(taskyard_contract::rust(&contract).contains("pub struct EmailsTask"));
//! ```
//!
//! Start reading at `schema` (the parts of a contract), then `check` (its validation), then `render` (the generators).

pub mod build;
mod check;
mod evolution;
mod names;
mod problem;
mod render;
mod schema;
mod yaml;

pub use check::parse;
pub use evolution::compare;
pub use problem::{Position, Problem, Problems};
pub use render::{python, rust, rust_types, typescript};
pub use schema::{Contract, Field, FieldType, Queue};
