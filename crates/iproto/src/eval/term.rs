//! Parses the terms of an expression: names, members, calls and comparisons.

use taskyard_core::limits::NESTING_MAX;
use taskyard_core::{Command, TubeName};

use super::lexer::{Lexer, Token};
use super::statement::EvalParser;
use super::{EvalAction, NewTube};
use crate::call::{Call, CallAction, parse_function, parse_method};
use crate::faults::{lua, no_statistics, not_defined, shortened};
use crate::reader::{Value, ValueReader};
use crate::reply::Fault;

/// The value of a term.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Term {
    /// A literal, as MessagePack.
    Value(Vec<u8>),
    /// The queue itself.
    Queue,
    /// `queue.tube`.
    TubeTable,
    /// `queue.schema`.
    Schema,
    /// A function of the queue.
    Function(String),
    /// A tube, by its name.
    Tube(Vec<u8>),
    /// A global name that is none of these, perhaps with dots.
    Global(String),
    /// Whether a tube exists, or is missing.
    Exists {
        /// The name of the tube, which need not be valid.
        name: String,
        /// Whether true means that it exists.
        exists: bool,
    },
    /// A value from before the tube was created by this expression.
    Outdated,
    /// A tube to create.
    NewTube(Box<NewTube>),
    /// Another action.
    Done(Box<EvalAction>),
}

impl Term {
    pub fn nil() -> Self {
        Term::Value(vec![0xc0])
    }

    fn exists(name: &[u8], exists: bool) -> Self {
        Term::Exists { name: String::from_utf8_lossy(name).into_owned(), exists }
    }

    fn call(Call { function, action }: Call) -> Self {
        match action {
            CallAction::Command(Command::CreateTube { tube, options, if_not_exists }, _) => {
                let new = NewTube { tube, options, if_not_exists, variable: None };
                Term::NewTube(Box::new(new))
            }
            CallAction::TubeExists { name } => Term::Exists { name, exists: true },
            action => Term::Done(Box::new(EvalAction::Call(Call { function, action }))),
        }
    }
}

impl<'a> EvalParser<'a> {
    /// Parses a term, and `~= nil` or `== nil` after it.
    pub fn expression(&mut self, depth: usize) -> Result<Term, Fault> {
        let start = self.lexer;
        let term = self.operand(depth)?;
        let exists = match self.peek()? {
            Token::Mark("~=") => true,
            Token::Mark("==") => false,
            _ => return Ok(term),
        };
        let Term::Tube(name) = term else { return Err(self.unsupported_at(start)) };
        self.next()?;
        self.expect_word("nil")?;
        Ok(Term::exists(&name, exists))
    }

    /// Parses a term, a term in brackets, or `not` before one.
    fn operand(&mut self, depth: usize) -> Result<Term, Fault> {
        if depth > NESTING_MAX {
            return Err(lua(format!("the expression is nested deeper than {NESTING_MAX} levels")));
        }
        let start = self.lexer;
        match self.peek()? {
            Token::Name("not") => {
                self.next()?;
                match self.operand(depth + 1)? {
                    Term::Tube(name) => Ok(Term::exists(&name, false)),
                    Term::Exists { name, exists } => Ok(Term::Exists { name, exists: !exists }),
                    _ => Err(self.unsupported_at(start)),
                }
            }
            Token::Mark("(") => {
                self.next()?;
                let term = self.expression(depth + 1)?;
                self.expect(")")?;
                Ok(term)
            }
            _ => self.primary(depth),
        }
    }

    fn primary(&mut self, depth: usize) -> Result<Term, Fault> {
        let start = self.lexer;
        if let Some(literal) = self.literal(depth)? {
            return Ok(Term::Value(literal));
        }
        let name = self.name()?;
        let mut term = match self.local_named(name)? {
            Some(term) => term,
            None => self.global(name.into()),
        };
        loop {
            // An unknown name is shown from its beginning, with all its parts.
            let here = if matches!(term, Term::Global(_)) { start } else { self.lexer };
            term = match self.peek()? {
                Token::Mark(".") => {
                    self.next()?;
                    let name = self.name()?;
                    self.member(term, name, here)?
                }
                Token::Mark("[") => self.indexed(term, here, depth)?,
                Token::Mark(":") => {
                    self.next()?;
                    let method = self.name()?;
                    let args = self.arguments(depth)?;
                    self.method(term, method, args, here)?
                }
                Token::Mark("(" | "{") | Token::Text(_) => {
                    let args = self.arguments(depth)?;
                    self.called(term, &args, here)?
                }
                _ => return Ok(term),
            };
        }
    }

    /// The value of a global name: the queue under any of its names, or something unknown.
    fn global(&self, name: String) -> Term {
        let bare = name.strip_prefix("box.").unwrap_or(&name);
        if bare == "queue" || bare == self.context.prefix {
            Term::Queue
        } else {
            Term::Global(name)
        }
    }

    /// `term.name`.
    fn member(&self, term: Term, name: &str, here: Lexer<'a>) -> Result<Term, Fault> {
        Ok(match term {
            Term::Queue if name == "tube" => Term::TubeTable,
            Term::Queue if name == "schema" => Term::Schema,
            Term::Queue => Term::Function(name.into()),
            Term::Schema => Term::Function(format!("schema.{name}")),
            Term::TubeTable => Term::Tube(name.into()),
            Term::Global(global) => self.global(format!("{global}.{name}")),
            Term::Done(action) if *action == EvalAction::Call(Call::statistics(None)) => {
                let tube = TubeName::new(name).map_err(|_| no_statistics())?;
                Term::call(Call::statistics(Some(tube)))
            }
            Term::Done(action) => return Err(self.partial_answer(&action, here)),
            _ => return Err(self.unsupported_at(here)),
        })
    }

    /// `term[name]`.
    fn indexed(&mut self, term: Term, here: Lexer<'a>, depth: usize) -> Result<Term, Fault> {
        self.expect("[")?;
        let start = self.lexer;
        let Term::Value(key) = self.expression(depth + 1)? else {
            return Err(self.unsupported_at(start));
        };
        self.expect("]")?;
        let name = match (ValueReader::new(&key).value(), &term) {
            (Ok(Value::Str(name) | Value::Bin(name)), _) => name,
            (_, Term::Done(action)) => return Err(self.partial_answer(action, here)),
            _ => return Err(self.unsupported_at(start)),
        };
        match term {
            Term::TubeTable => Ok(Term::Tube(name.to_vec())),
            term => {
                let name = std::str::from_utf8(name).map_err(|_| self.unsupported_at(start))?;
                self.member(term, name, here)
            }
        }
    }

    /// `term:method(args)`.
    fn method(
        &self,
        term: Term,
        method: &str,
        args: Vec<u8>,
        here: Lexer<'a>,
    ) -> Result<Term, Fault> {
        match term {
            Term::Tube(name) => {
                let name = String::from_utf8_lossy(&name);
                let undefined = |_| {
                    let (tube, method) = (shortened(&name), shortened(method));
                    not_defined(&format!("{}.tube.{tube}:{method}", self.context.prefix))
                };
                let tube = TubeName::new(&name).map_err(undefined)?;
                parse_method(self.context, tube, method, &args).map(Term::call)
            }
            Term::Global(variable) if !variable.contains('.') => {
                let method = method.into();
                Ok(Term::Done(Box::new(EvalAction::OnVariable { variable, method, args })))
            }
            _ => Err(self.unsupported_at(here)),
        }
    }

    /// `term(args)`.
    fn called(&self, term: Term, args: &[u8], here: Lexer<'a>) -> Result<Term, Fault> {
        let function = match term {
            Term::Function(name) => name,
            Term::TubeTable => "tube".into(),
            Term::Global(name) if name == "create_tube" => name,
            Term::Global(name) if name == "require" => {
                let mut reader = ValueReader::new(args);
                let module = (reader.array(), reader.value());
                let queue = module == (Ok(1), Ok(Value::Str(b"queue")));
                return if queue { Ok(Term::Queue) } else { Err(self.unsupported_at(here)) };
            }
            _ => return Err(self.unsupported_at(here)),
        };
        parse_function(self.context.prefix, &function, args).map(Term::call)
    }
}
