//! Contracts of typed queues: a YAML file that names queues and the fields of their tasks, and the source
//! code that follows from it.
//!
//! Everything is a pure function of texts, except [`build`], which reads and writes files for a build
//! script. It never speaks to a queue and never runs anything.
//!
//! ```
//! let yaml = "queues:\n  - id: 1\n    name: emails\n    fields:\n      - {name: to, type: string}\n";
//! let contract = taskyard_contract::parse(yaml).unwrap();
//! assert!(taskyard_contract::rust(&contract).contains("pub struct EmailsTask"));
//! ```
//!
//! Start reading at `schema` (what a contract is), then `check` (when it is one), then `render`.

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
pub use problem::{Place, Problem, Problems};
pub use render::{python, rust, rust_types};
pub use schema::{Contract, Field, FieldType, Queue};
