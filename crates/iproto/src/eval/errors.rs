//! The errors for expressions that are not supported.

use taskyard_core::Command;

use super::EvalAction;
use super::lexer::Lexer;
use super::statement::EvalParser;
use crate::call::{Call, CallAction, ReplyForm};
use crate::faults::{lua, shortened};
use crate::reply::Fault;

/// How many characters of an expression an error repeats to show a position.
const NEAR_CHARS_MAX: usize = 40;

impl<'a> EvalParser<'a> {
    /// The current position is not supported.
    pub fn unsupported(&self) -> Fault {
        self.unsupported_at(self.lexer)
    }

    /// This position is not supported.
    pub fn unsupported_at(&self, position: Lexer<'a>) -> Fault {
        lua(format!(
            "the expression is not supported {}; supported are, with plain values, \
             queue.FUNCTION(...), queue.tube.NAME:METHOD(...), queue.tube.NAME ~= nil and \
             if not queue.tube.NAME then queue.create_tube(...) end",
            self.describe(position)
        ))
    }

    /// The expression does a second thing.
    pub fn only_one_action(&self) -> Fault {
        lua(format!(
            "an expression may do one thing, or create several tubes; send this part separately: {}",
            self.describe(self.statement)
        ))
    }

    /// The expression returns a tube: its Lua value cannot be sent.
    pub fn tube_not_sendable(&self, name: &[u8]) -> Fault {
        let name = String::from_utf8_lossy(name);
        lua(format!(
            "a tube cannot be sent back; write return {}.tube['{}'] ~= nil to ask whether it \
             exists, or call a method of it, such as :take(0)",
            self.context.prefix,
            shortened(&name)
        ))
    }

    /// The expression returns a part of an answer.
    pub fn partial_answer(&self, action: &EvalAction, position: Lexer<'a>) -> Fault {
        let instead = match action {
            EvalAction::Call(Call {
                action: CallAction::Command(Command::Tubes { tube: Some(tube) }, form),
                ..
            }) if *form == ReplyForm::Statistics => {
                format!("CALL {}.statistics('{tube}')", self.context.prefix)
            }
            _ => "return it".into(),
        };
        lua(format!(
            "the expression is not supported {}: an answer is sent as a whole; {instead} and select \
             the part in your program",
            self.describe(position)
        ))
    }

    /// A position for messages: the words there, and the line if there are several.
    fn describe(&self, position: Lexer<'a>) -> String {
        let rest = position.rest();
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
