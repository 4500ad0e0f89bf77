//! Parses Lua expressions: the few that clients and administrators send are recognised, not run.
//!
//! An expression may load the queue, define names with `local`, and do one thing: create tubes,
//! call a function of the queue or a method of a tube, or ask whether a tube exists. Arguments are
//! literals, names bound to them, or the arguments of the expression (`...`). Literals become
//! MessagePack, so that the same code reads them as the arguments of a call.

mod errors;
mod lexer;
mod literal;
mod statement;
mod term;

use taskyard_core::{TubeName, TubeOptions};

use super::answer::Answer;
use super::call::{Call, CallContext};
use super::faults::lua;
use super::reply::Fault;
use statement::EvalParser;

/// Longest expression, in bytes: data belongs in the arguments.
const EXPRESSION_BYTES_MAX: usize = 256 << 10;

/// A parsed expression.
#[derive(Clone, Debug, PartialEq)]
pub struct Eval {
    /// What to do.
    pub action: EvalAction,
    /// What is sent back afterwards.
    pub returns: Returns,
}

/// What to do for an expression.
#[derive(Clone, Debug, PartialEq)]
pub enum EvalAction {
    /// Nothing: the expression only loads the queue or defines names.
    Nothing,
    /// Runs a call that creates no tube.
    Call(Call),
    /// Creates these tubes, one after the other.
    CreateTubes(Vec<NewTube>),
    /// Stores this tube in a variable; nothing else happens.
    Tube {
        /// The tube, which must exist.
        tube: TubeName,
        /// The variable.
        variable: String,
    },
    /// Calls a method of the tube in a global variable: see [`super::parse_method`].
    OnVariable {
        /// The variable.
        variable: String,
        /// The method.
        method: String,
        /// Its arguments, a MessagePack list.
        args: Vec<u8>,
    },
}

/// A tube that an expression creates.
#[derive(Clone, Debug, PartialEq)]
pub struct NewTube {
    /// Its name.
    pub tube: TubeName,
    /// Its options.
    pub options: TubeOptions,
    /// Whether an existing tube is accepted.
    pub if_not_exists: bool,
    /// The global variable in which the tube is stored afterwards.
    pub variable: Option<String>,
}

/// What an expression returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returns {
    /// Nothing: the answer is empty.
    Nothing,
    /// The result of the action.
    Result,
    /// The negated result: whether a tube is missing.
    Opposite,
    /// This boolean instead of the result.
    Flag(bool),
    /// Nil instead of the result.
    Nil,
}

impl Returns {
    /// The answer that replaces the result, if one does.
    pub fn instead_of(self, found: &Answer<'_>) -> Option<Answer<'static>> {
        match (self, found) {
            (Returns::Opposite, Answer::Flag(flag)) => Some(Answer::Flag(!flag)),
            (Returns::Result | Returns::Opposite, _) => None,
            (Returns::Nothing, _) => Some(Answer::Nothing),
            (Returns::Flag(flag), _) => Some(Answer::Flag(flag)),
            (Returns::Nil, _) => Some(Answer::Nil),
        }
    }
}

/// Parses an expression with these arguments.
pub fn parse_eval(context: CallContext<'_>, expression: &str, args: &[u8]) -> Result<Eval, Fault> {
    if expression.len() > EXPRESSION_BYTES_MAX {
        let text = format!(
            "the expression has {} bytes, the limit is {EXPRESSION_BYTES_MAX}; send data as \
             arguments",
            expression.len()
        );
        return Err(lua(text));
    }
    EvalParser::new(context, expression, args)?.run()
}
