//! What is said about expressions that are not understood.

use super::EvalAsk;
use super::lexer::Lexer;
use super::statement::Program;
use crate::iproto::call::Ask;
use crate::iproto::faults::{lua, shown};
use crate::iproto::reply::Fault;

/// How much of an expression is repeated to show a place in it, in characters.
const NEAR_CHARS_MAX: usize = 40;

impl<'a> Program<'a> {
    /// The refusal of what stands here.
    pub fn lost(&self) -> Fault {
        self.lost_at(self.lexer)
    }

    /// The refusal of what stands there.
    pub fn lost_at(&self, there: Lexer<'a>) -> Fault {
        lua(format!(
            "the expression is not understood {}; understood are, with plain values, \
             queue.FUNCTION(...), queue.tube.NAME:METHOD(...), queue.tube.NAME ~= nil and \
             if not queue.tube.NAME then queue.create_tube(...) end",
            self.place(there)
        ))
    }

    /// The refusal of a second thing to do.
    pub fn one_thing(&self) -> Fault {
        lua(format!(
            "an expression may do one thing, or make several tubes; send by itself what stands {}",
            self.place(self.statement)
        ))
    }

    /// The refusal of a tube as a value: what it is in Lua cannot be sent.
    pub fn tube_alone(&self, name: &[u8]) -> Fault {
        let name = String::from_utf8_lossy(name);
        lua(format!(
            "a tube cannot be sent back; write return {}.tube['{}'] ~= nil to ask whether it is \
             there, or call a method of it, such as :take(0)",
            self.prefix,
            shown(&name)
        ))
    }

    /// The refusal of a part of an answer, which stands there.
    pub fn part_of(&self, ask: &EvalAsk, there: Lexer<'a>) -> Fault {
        let instead = match ask {
            EvalAsk::Ask(Ask::Statistics { tube: Some(tube) }) => {
                format!("CALL {}.statistics('{tube}')", self.prefix)
            }
            _ => "return it".into(),
        };
        lua(format!(
            "the expression is not understood {}: an answer is sent whole; {instead} and pick the \
             part in your program",
            self.place(there)
        ))
    }

    /// Where something stands, for messages: the words there, and the line if there are several.
    fn place(&self, there: Lexer<'a>) -> String {
        let rest = there.rest();
        let Some(line) = rest.lines().next() else { return "at its end".into() };
        let line = line.trim_ascii_end();
        let near: String = line.chars().take(NEAR_CHARS_MAX).collect();
        let more = if near.len() < line.len() { "..." } else { "" };
        let before = self.expression.strip_suffix(rest).unwrap_or_default();
        if self.expression.trim_ascii().contains('\n') {
            let number = before.matches('\n').count() + 1;
            format!("near '{near}{more}' in line {number}")
        } else {
            format!("near '{near}{more}'")
        }
    }
}
