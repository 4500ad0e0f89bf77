//! Parses the statements of an expression: definitions of names, and the one action.

use taskyard_core::TubeName;

use super::lexer::{Lexer, Token};
use super::term::Term;
use super::{Eval, EvalAction, NewTube, Returns};
use crate::args::ArgumentReader;
use crate::call::{Call, CallContext};
use crate::faults::{lua, shortened};
use crate::reader::{Value, ValueReader};
use crate::reply::Fault;

/// Most names that an expression may define.
const LOCALS_MAX: usize = 50;
/// Most tubes that an expression may create.
const TUBES_MAX: usize = 50;
/// Most arguments that an expression may have.
const VARARGS_MAX: usize = 1_000;
/// How often the whole input may be copied into the action.
const COPIES_MAX: usize = 8;

/// The state of the parser.
pub(super) struct EvalParser<'a> {
    pub lexer: Lexer<'a>,
    /// The beginning of the current statement.
    pub statement: Lexer<'a>,
    /// The whole expression.
    pub expression: &'a str,
    /// The name of the queue, and the session that sent the expression.
    pub context: CallContext<'a>,
    /// The arguments of the expression.
    pub varargs: Vec<&'a [u8]>,
    /// How many more bytes may be copied, so that a few names for one large value stay small.
    copies_left: usize,
    locals: Vec<(&'a str, Term)>,
    /// The one action of the expression.
    action: EvalAction,
    returns: Returns,
}

impl<'a> EvalParser<'a> {
    pub fn new(
        context: CallContext<'a>,
        expression: &'a str,
        args: &'a [u8],
    ) -> Result<Self, Fault> {
        let mut list = ArgumentReader::new(args)?;
        let mut varargs = Vec::new();
        while let Some(raw) = list.raw()? {
            if varargs.len() == VARARGS_MAX {
                return Err(lua(format!("an expression may have at most {VARARGS_MAX} arguments")));
            }
            varargs.push(raw);
        }
        Ok(EvalParser {
            lexer: Lexer::new(expression),
            statement: Lexer::new(expression),
            expression,
            context,
            varargs,
            copies_left: COPIES_MAX * (expression.len() + args.len()),
            locals: Vec::new(),
            action: EvalAction::Nothing,
            returns: Returns::Nothing,
        })
    }

    /// Parses all statements.
    pub fn run(mut self) -> Result<Eval, Fault> {
        let mut over = false;
        loop {
            self.statement = self.lexer;
            match self.peek()? {
                Token::End => return Ok(Eval { action: self.action, returns: self.returns }),
                Token::Mark(";") => drop(self.next()?),
                _ if over => return Err(self.unsupported()),
                Token::Name("return") => {
                    self.next()?;
                    over = true;
                    self.returned()?;
                }
                Token::Name("local") => {
                    self.next()?;
                    self.local()?;
                }
                Token::Name("if") => {
                    self.next()?;
                    self.create_if_missing()?;
                }
                _ => self.assignment_or_call()?,
            }
        }
    }

    /// The rest of a `return`.
    fn returned(&mut self) -> Result<(), Fault> {
        let start = self.lexer;
        match self.peek()? {
            Token::End | Token::Mark(";") => return Ok(()),
            // It may stand for several values.
            Token::Mark("...") => return Err(self.unsupported()),
            _ => {}
        }
        self.returns = match self.expression(0)? {
            Term::Done(action) => self.set_action(*action).map(|()| Returns::Result)?,
            Term::NewTube(new) => self.create(*new).map(|()| Returns::Result)?,
            Term::Tube(name) if self.creates(&name) => Returns::Result,
            Term::Tube(name) => return Err(self.tube_not_sendable(&name)),
            Term::Exists { name, exists } if self.creates(name.as_bytes()) => Returns::Flag(exists),
            Term::Exists { name, exists } => {
                self.set_action(EvalAction::Call(Call::tube_exists(name)))?;
                if exists { Returns::Result } else { Returns::Opposite }
            }
            Term::Value(value) => match ValueReader::new(&value).value() {
                Ok(Value::Bool(flag)) => Returns::Flag(flag),
                Ok(Value::Nil) => Returns::Nil,
                _ => return Err(self.unsupported_at(start)),
            },
            _ => return Err(self.unsupported_at(start)),
        };
        Ok(())
    }

    /// `if not queue.tube.NAME then queue.create_tube('NAME', …) end`, after its first word.
    fn create_if_missing(&mut self) -> Result<(), Fault> {
        let condition = self.lexer;
        let Term::Exists { name, exists: false } = self.expression(0)? else {
            return Err(self.unsupported_at(condition));
        };
        self.expect_word("then")?;
        self.skip_semicolons()?;
        let made = self.lexer;
        let Term::NewTube(mut new) = self.expression(0)? else {
            return Err(self.unsupported_at(made));
        };
        self.skip_semicolons()?;
        self.expect_word("end")?;
        if new.tube.as_str() != name {
            return Err(lua(format!(
                "the expression asks whether '{}' exists and creates '{}'; an if may only create \
                 the tube that it asks about",
                shortened(&name),
                new.tube
            )));
        }
        new.if_not_exists = true;
        self.create(*new)
    }

    /// `local a, b = 1, 2`, after its first word.
    fn local(&mut self) -> Result<(), Fault> {
        let mut names = Vec::new();
        loop {
            names.push(self.name()?);
            if self.locals.len() + names.len() > LOCALS_MAX {
                return Err(lua(format!("an expression may name {LOCALS_MAX} things")));
            }
            if self.peek()? != Token::Mark(",") {
                break;
            }
            self.next()?;
        }
        self.expect("=")?;
        let mut things = self.expressions()?.into_iter();
        for name in names {
            let term = things.next().unwrap_or_else(Term::nil);
            let term = self.run_term(term)?;
            self.locals.push((name, term));
        }
        Ok(())
    }

    /// The values after `=`; `...` at the end stands for all arguments of the expression.
    fn expressions(&mut self) -> Result<Vec<Term>, Fault> {
        let mut things = Vec::new();
        loop {
            if self.peek()? == Token::Mark("...") {
                self.next()?;
                for at in 0..self.varargs.len() {
                    let raw = self.varargs[at];
                    self.copy(raw.len())?;
                    things.push(Term::Value(raw.to_vec()));
                }
            } else {
                things.push(self.expression(0)?);
            }
            if self.peek()? != Token::Mark(",") {
                return Ok(things);
            }
            self.next()?;
        }
    }

    /// `name = expression`, or an expression with an effect.
    fn assignment_or_call(&mut self) -> Result<(), Fault> {
        let mut ahead = self.lexer;
        let (name, mark) = (ahead.next(), ahead.next());
        if let (Some(Token::Name(name)), Some(Token::Mark("="))) = (name, mark) {
            self.lexer = ahead;
            let term = self.expression(0)?;
            return self.assign(name, term);
        }
        match self.expression(0)? {
            Term::Done(action) => self.set_action(*action),
            Term::NewTube(new) => self.create(*new),
            Term::Exists { name, .. } => self.set_action(EvalAction::Call(Call::tube_exists(name))),
            Term::Queue => Ok(()),
            Term::Tube(name) => Err(self.tube_not_sendable(&name)),
            _ => Err(self.unsupported_at(self.statement)),
        }
    }

    /// Assigns a tube, or the queue, to a global name.
    fn assign(&mut self, variable: &'a str, term: Term) -> Result<(), Fault> {
        match self.run_term(term)? {
            Term::Queue => {
                self.locals.push((variable, Term::Queue));
                Ok(())
            }
            Term::Tube(tube) => self.assign_tube(variable, tube_name(&tube)?),
            _ => Err(self.unsupported_at(self.statement)),
        }
    }

    /// Assigns a tube to a variable: one that this expression creates, or an existing one if the
    /// expression does nothing else. Which tube it is, is known only after it was created or found.
    fn assign_tube(&mut self, variable: &str, tube: TubeName) -> Result<(), Fault> {
        let variable = variable.to_owned();
        match &mut self.action {
            EvalAction::Nothing => self.action = EvalAction::Tube { tube, variable },
            EvalAction::CreateTubes(tubes) => {
                let mut nameless = tubes.iter_mut().filter(|new| new.variable.is_none());
                let Some(new) = nameless.find(|new| new.tube == tube) else {
                    return Err(self.only_one_action());
                };
                new.variable = Some(variable);
            }
            _ => return Err(self.only_one_action()),
        }
        Ok(())
    }

    /// Runs the action of a value that is assigned to a name. Only the creation of a tube has a
    /// result that can be used later.
    fn run_term(&mut self, term: Term) -> Result<Term, Fault> {
        match term {
            Term::NewTube(new) => {
                let made = Term::Tube(new.tube.as_str().as_bytes().to_vec());
                self.create(*new)?;
                Ok(made)
            }
            Term::Done(_) => Err(self.unsupported_at(self.statement)),
            other => Ok(other),
        }
    }

    fn set_action(&mut self, action: EvalAction) -> Result<(), Fault> {
        if self.action != EvalAction::Nothing {
            return Err(self.only_one_action());
        }
        self.action = action;
        Ok(())
    }

    /// Creates a tube: the only action that an expression may repeat.
    fn create(&mut self, new: NewTube) -> Result<(), Fault> {
        self.invalidate(new.tube.as_str());
        match &mut self.action {
            EvalAction::Nothing => self.action = EvalAction::CreateTubes(vec![new]),
            EvalAction::CreateTubes(tubes) if tubes.len() < TUBES_MAX => tubes.push(new),
            EvalAction::CreateTubes(_) => {
                return Err(lua(format!("an expression may create at most {TUBES_MAX} tubes")));
            }
            _ => return Err(self.only_one_action()),
        }
        Ok(())
    }

    /// Invalidates what earlier names say of a tube: in Lua they keep the value from before its
    /// creation.
    fn invalidate(&mut self, tube: &str) {
        for (_, term) in &mut self.locals {
            let about = match term {
                Term::Tube(name) => name.as_slice(),
                Term::Exists { name, .. } => name.as_bytes(),
                _ => continue,
            };
            if about == tube.as_bytes() {
                *term = Term::Outdated;
            }
        }
    }

    /// Whether this expression creates a tube of this name.
    fn creates(&self, name: &[u8]) -> bool {
        let EvalAction::CreateTubes(tubes) = &self.action else { return false };
        tubes.iter().any(|new| new.tube.as_str().as_bytes() == name)
    }

    /// The value of a local name.
    pub fn local_named(&mut self, name: &str) -> Result<Option<Term>, Fault> {
        let local = self.locals.iter().rev().find(|local| local.0 == name);
        let Some((_, term)) = local else { return Ok(None) };
        let term = term.clone();
        if let Term::Value(value) = &term {
            self.copy(value.len())?;
        }
        Ok(Some(term))
    }

    /// Counts copied bytes of the input.
    pub fn copy(&mut self, bytes: usize) -> Result<(), Fault> {
        let left = self.copies_left.checked_sub(bytes);
        self.copies_left = left.ok_or_else(|| lua("the expression repeats its data too often"))?;
        Ok(())
    }

    pub fn peek(&self) -> Result<Token<'a>, Fault> {
        let mut ahead = self.lexer;
        ahead.next().ok_or_else(|| self.unsupported())
    }

    pub fn next(&mut self) -> Result<Token<'a>, Fault> {
        let token = self.peek()?;
        self.lexer.next();
        Ok(token)
    }

    /// Reads the name that must be next.
    pub fn name(&mut self) -> Result<&'a str, Fault> {
        let Token::Name(name) = self.peek()? else { return Err(self.unsupported()) };
        self.next()?;
        Ok(name)
    }

    /// Skips the mark that must be next.
    pub fn expect(&mut self, mark: &'static str) -> Result<(), Fault> {
        self.expect_token(&Token::Mark(mark))
    }

    /// Skips the word that must be next.
    pub fn expect_word(&mut self, word: &'static str) -> Result<(), Fault> {
        self.expect_token(&Token::Name(word))
    }

    fn expect_token(&mut self, token: &Token<'_>) -> Result<(), Fault> {
        if self.peek()? != *token {
            return Err(self.unsupported());
        }
        self.next().map(drop)
    }

    fn skip_semicolons(&mut self) -> Result<(), Fault> {
        while self.peek()? == Token::Mark(";") {
            self.next()?;
        }
        Ok(())
    }
}

fn tube_name(name: &[u8]) -> Result<TubeName, Fault> {
    let name = String::from_utf8_lossy(name);
    TubeName::new(&name).map_err(|error| lua(error.to_string()))
}
