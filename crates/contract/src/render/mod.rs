//! Generates source code from a contract. The same contract always gives the same text.

mod python;
mod rust;
mod typescript;

pub use python::python;
pub use rust::{rust, rust_types};
pub use typescript::typescript;

/// Replaces `«name»` in a template. A template rather than `format!`, because source code is full of braces.
fn fill(template: &str, values: &[(&str, String)]) -> String {
    let mut text = template.to_owned();
    for (name, value) in values {
        text = text.replace(&format!("«{name}»"), value);
    }
    text
}
