//! Many random runs of one property, and the shortest run that breaks it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::random::{self, Step, seeds};

/// The result of a property; a broken one says how.
pub type PropertyResult = Result<(), String>;

/// Checks `property` on `runs` random runs of `length` steps.
pub fn check(runs: u64, length: usize, property: impl Fn(&[Step]) -> PropertyResult) {
    for seed in seeds(runs) {
        let script = random::script(seed, length);
        if let Err(violation) = judge(&property, &script) {
            let (script, violation) = shrink(&property, script, violation);
            let steps: Vec<_> = script.iter().map(|step| format!("{step:?}")).collect();
            panic!("seed {seed}: {violation}\nafter\n{}", steps.join("\n"));
        }
    }
}

/// A panic of the machine breaks the property too.
fn judge(property: &impl Fn(&[Step]) -> PropertyResult, script: &[Step]) -> PropertyResult {
    let result = catch_unwind(AssertUnwindSafe(|| property(script)));
    result.unwrap_or_else(|_| Err("a panic, see above".into()))
}

/// Removes as many steps as possible so that the property is still broken: halves first, then
/// single steps.
fn shrink(
    property: &impl Fn(&[Step]) -> PropertyResult,
    mut script: Vec<Step>,
    mut violation: String,
) -> (Vec<Step>, String) {
    let mut size = script.len() / 2;
    while size > 0 {
        let mut start = 0;
        while start < script.len() {
            let mut shorter = script.clone();
            shorter.drain(start..script.len().min(start + size));
            match judge(property, &shorter) {
                Ok(()) => start += size,
                Err(other) => (script, violation) = (shorter, other),
            }
        }
        size /= 2;
    }
    (script, violation)
}

/// A property in which both sides must be equal.
pub fn same<T: PartialEq + std::fmt::Debug>(what: &str, machine: &T, model: &T) -> PropertyResult {
    if machine == model {
        return Ok(());
    }
    Err(format!("{what}:\n  the machine says {machine:?}\n  the model says   {model:?}"))
}
