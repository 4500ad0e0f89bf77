//! Expressions: the few that clients and administrators send, recognised rather than run.
//!
//! An expression may load the queue, name things with `local`, and do one thing with it: make tubes,
//! call a function of the queue or a method of a tube, or ask whether there is a tube. Arguments are
//! literals, names bound to them, or what was sent along (`...`). Literals become MessagePack, so
//! that the same code reads them as the arguments of a call.

mod lexer;
mod literal;
mod refusal;
mod statement;
mod thing;

use taskyard_core::{TubeName, TubeOptions};

use super::answer::Answer;
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
    /// What is sent back when it is done.
    pub returns: Returns,
}

/// What to do for an expression.
#[derive(Clone, Debug, PartialEq)]
pub enum EvalAsk {
    /// Nothing: the expression only loads the queue or names things.
    Nothing,
    /// What a call would ask, except to make a tube.
    Ask(Ask),
    /// Make these tubes, one after the other.
    CreateTubes(Vec<NewTube>),
    /// A variable is to stand for this tube; nothing else happens.
    Tube {
        /// The tube, which must be there.
        tube: TubeName,
        /// The variable.
        variable: String,
    },
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

/// A tube that an expression makes.
#[derive(Clone, Debug, PartialEq)]
pub struct NewTube {
    /// Its name.
    pub tube: TubeName,
    /// What it does.
    pub options: TubeOptions,
    /// Whether an existing one may stay.
    pub if_not_exists: bool,
    /// The global variable that is to stand for it afterwards.
    pub variable: Option<String>,
}

/// What an expression sends back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returns {
    /// Nothing: the answer is empty.
    Nothing,
    /// What was found.
    Result,
    /// No for yes and yes for no: whether a tube is missing.
    Opposite,
    /// Yes or no, whatever was found.
    Flag(bool),
    /// Nil, whatever was found.
    Nil,
}

impl Returns {
    /// What is sent instead of what was found, if it is something else.
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
