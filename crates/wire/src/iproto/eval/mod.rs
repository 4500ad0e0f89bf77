//! Expressions: the few that clients and administrators send, recognised rather than run.
//!
//! An expression may load the queue, name things with `local`, and do one thing with it: call a
//! function of the queue or a method of a tube, or ask whether there is a tube. Arguments are
//! literals, names bound to them, or what was sent along (`...`). Literals become MessagePack, so
//! that the same code reads them as the arguments of a call.

mod lexer;
mod literal;
mod statement;
mod thing;

use taskyard_core::TubeName;

use super::call::Ask;
use super::faults::lua;
use super::reply::Fault;
use statement::Program;

/// Longest expression, in bytes: data belongs into the arguments.
const EXPRESSION_BYTES_MAX: usize = 256 << 10;

/// What an expression asks.
#[derive(Clone, Debug, PartialEq)]
pub struct Eval {
    /// What to do.
    pub ask: EvalAsk,
    /// The global variable that is to stand for the tube afterwards.
    pub assigns: Option<String>,
    /// Whether the result is sent back; without it the answer is empty.
    pub returns: bool,
}

/// What to do for an expression.
#[derive(Clone, Debug, PartialEq)]
pub enum EvalAsk {
    /// Nothing: the expression only loads the queue or names things.
    Nothing,
    /// What a call would ask.
    Ask(Ask),
    /// A variable is to stand for this tube; nothing else happens.
    Tube(TubeName),
    /// A method of the tube that a global variable stands for: see [`super::parse_method`].
    OnVariable {
        /// The variable.
        variable: String,
        /// The method.
        method: String,
        /// Its arguments, a MessagePack list.
        args: Vec<u8>,
    },
}

/// What an expression with these arguments asks; `prefix` is what the queue is called.
pub fn parse_eval(prefix: &str, expression: &str, args: &[u8]) -> Result<Eval, Fault> {
    if expression.len() > EXPRESSION_BYTES_MAX {
        let text = format!(
            "the expression has {} bytes, the limit is {EXPRESSION_BYTES_MAX}; send data as \
             arguments",
            expression.len()
        );
        return Err(lua(text));
    }
    Program::new(prefix, expression, args)?.run()
}

/// An expression that we do not know: `near` is where that was noticed.
fn not_understood(near: &str) -> Fault {
    let mut near: String = near.trim().chars().take(40).collect();
    if near.is_empty() {
        near = "the end".into();
    }
    lua(format!(
        "the expression is not understood near '{near}'; understood is one call with literal \
         arguments, such as return queue.tube.NAME:take(0), queue.create_tube('NAME', 'fifottl', \
         {{if_not_exists = true}}), return queue.tube['NAME'] ~= nil or return queue.statistics()"
    ))
}
