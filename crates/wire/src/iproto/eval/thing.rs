//! What a name or a call can stand for.

use taskyard_core::TubeName;
use taskyard_core::limits::NESTING_MAX;

use super::lexer::{Lexer, Token};
use super::statement::Program;
use super::{EvalAsk, NewTube};
use crate::iproto::call::{Ask, parse_function, parse_method};
use crate::iproto::faults::{lua, no_statistics, not_defined, shown};
use crate::iproto::reader::{Reader, Value};
use crate::iproto::reply::Fault;

/// What an expression can be before it is over.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Thing {
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
    /// Whether a tube is there, or is missing.
    Exists {
        /// The name of the tube, which need not be a good one.
        name: String,
        /// Whether yes means that it is there.
        there: bool,
    },
    /// What was known of a tube before it was made here.
    Outdated,
    /// A tube to be made.
    NewTube(Box<NewTube>),
    /// Something else to be done.
    Done(Box<EvalAsk>),
}

impl Thing {
    pub fn nil() -> Self {
        Thing::Value(vec![0xc0])
    }

    fn exists(name: &[u8], there: bool) -> Self {
        Thing::Exists { name: String::from_utf8_lossy(name).into_owned(), there }
    }

    fn ask(ask: Ask) -> Self {
        match ask {
            Ask::CreateTube { tube, options, if_not_exists } => {
                let new = NewTube { tube, options, if_not_exists, variable: None };
                Thing::NewTube(Box::new(new))
            }
            Ask::TubeExists { name } => Thing::Exists { name, there: true },
            other => Thing::Done(Box::new(EvalAsk::Ask(other))),
        }
    }
}

impl<'a> Program<'a> {
    /// Reads an expression, and `~= nil` or `== nil` behind it.
    pub fn expression(&mut self, depth: usize) -> Result<Thing, Fault> {
        let start = self.lexer;
        let thing = self.operand(depth)?;
        let there = match self.peek()? {
            Token::Mark("~=") => true,
            Token::Mark("==") => false,
            _ => return Ok(thing),
        };
        let Thing::Tube(name) = thing else { return Err(self.lost_at(start)) };
        self.next()?;
        self.expect_word("nil")?;
        Ok(Thing::exists(&name, there))
    }

    /// Something, something in brackets, or `not` and whether a tube is there.
    fn operand(&mut self, depth: usize) -> Result<Thing, Fault> {
        if depth > NESTING_MAX {
            return Err(lua(format!("the expression is nested deeper than {NESTING_MAX} levels")));
        }
        let start = self.lexer;
        match self.peek()? {
            Token::Name("not") => {
                self.next()?;
                match self.operand(depth + 1)? {
                    Thing::Tube(name) => Ok(Thing::exists(&name, false)),
                    Thing::Exists { name, there } => Ok(Thing::Exists { name, there: !there }),
                    _ => Err(self.lost_at(start)),
                }
            }
            Token::Mark("(") => {
                self.next()?;
                let thing = self.expression(depth + 1)?;
                self.expect(")")?;
                Ok(thing)
            }
            _ => self.thing(depth),
        }
    }

    fn thing(&mut self, depth: usize) -> Result<Thing, Fault> {
        let start = self.lexer;
        if let Some(literal) = self.literal(depth)? {
            return Ok(Thing::Value(literal));
        }
        let name = self.name()?;
        let mut thing = match self.local_named(name)? {
            Some(thing) => thing,
            None => self.global(name.into()),
        };
        loop {
            // An unknown name is shown from its beginning, with all its parts.
            let here = if matches!(thing, Thing::Global(_)) { start } else { self.lexer };
            thing = match self.peek()? {
                Token::Mark(".") => {
                    self.next()?;
                    let name = self.name()?;
                    self.member(thing, name, here)?
                }
                Token::Mark("[") => self.indexed(thing, here, depth)?,
                Token::Mark(":") => {
                    self.next()?;
                    let method = self.name()?;
                    let args = self.arguments(depth)?;
                    self.method(thing, method, args, here)?
                }
                Token::Mark("(" | "{") | Token::Text(_) => {
                    let args = self.arguments(depth)?;
                    self.called(thing, &args, here)?
                }
                _ => return Ok(thing),
            };
        }
    }

    /// What a global name stands for: the queue under any of its names, or something unknown.
    fn global(&self, name: String) -> Thing {
        let bare = name.strip_prefix("box.").unwrap_or(&name);
        if bare == "queue" || bare == self.prefix { Thing::Queue } else { Thing::Global(name) }
    }

    /// `thing.name`.
    fn member(&self, thing: Thing, name: &str, here: Lexer<'a>) -> Result<Thing, Fault> {
        Ok(match thing {
            Thing::Queue if name == "tube" => Thing::TubeTable,
            Thing::Queue if name == "schema" => Thing::Schema,
            Thing::Queue => Thing::Function(name.into()),
            Thing::Schema => Thing::Function(format!("schema.{name}")),
            Thing::TubeTable => Thing::Tube(name.into()),
            Thing::Global(global) => self.global(format!("{global}.{name}")),
            Thing::Done(ask) if *ask == EvalAsk::Ask(Ask::Statistics { tube: None }) => {
                let tube = TubeName::new(name).map_err(|_| no_statistics())?;
                Thing::ask(Ask::Statistics { tube: Some(tube) })
            }
            Thing::Done(ask) => return Err(self.part_of(&ask, here)),
            _ => return Err(self.lost_at(here)),
        })
    }

    /// `thing[name]`.
    fn indexed(&mut self, thing: Thing, here: Lexer<'a>, depth: usize) -> Result<Thing, Fault> {
        self.expect("[")?;
        let start = self.lexer;
        let Thing::Value(key) = self.expression(depth + 1)? else {
            return Err(self.lost_at(start));
        };
        self.expect("]")?;
        let name = match (Reader::new(&key).value(), &thing) {
            (Ok(Value::Str(name) | Value::Bin(name)), _) => name,
            (_, Thing::Done(ask)) => return Err(self.part_of(ask, here)),
            _ => return Err(self.lost_at(start)),
        };
        match thing {
            Thing::TubeTable => Ok(Thing::Tube(name.to_vec())),
            thing => {
                let name = std::str::from_utf8(name).map_err(|_| self.lost_at(start))?;
                self.member(thing, name, here)
            }
        }
    }

    /// `thing:method(args)`.
    fn method(
        &self,
        thing: Thing,
        method: &str,
        args: Vec<u8>,
        here: Lexer<'a>,
    ) -> Result<Thing, Fault> {
        match thing {
            Thing::Tube(name) => {
                let name = String::from_utf8_lossy(&name);
                let undefined = |_| {
                    let (tube, method) = (shown(&name), shown(method));
                    not_defined(&format!("{}.tube.{tube}:{method}", self.prefix))
                };
                let tube = TubeName::new(&name).map_err(undefined)?;
                parse_method(self.prefix, tube, method, &args).map(Thing::ask)
            }
            Thing::Global(variable) if !variable.contains('.') => {
                let method = method.into();
                Ok(Thing::Done(Box::new(EvalAsk::OnVariable { variable, method, args })))
            }
            _ => Err(self.lost_at(here)),
        }
    }

    /// `thing(args)`.
    fn called(&self, thing: Thing, args: &[u8], here: Lexer<'a>) -> Result<Thing, Fault> {
        let function = match thing {
            Thing::Function(name) => name,
            Thing::TubeTable => "tube".into(),
            Thing::Global(name) if name == "create_tube" => name,
            Thing::Global(name) if name == "require" => {
                let mut reader = Reader::new(args);
                let module = (reader.array(), reader.value());
                let queue = module == (Ok(1), Ok(Value::Str(b"queue")));
                return if queue { Ok(Thing::Queue) } else { Err(self.lost_at(here)) };
            }
            _ => return Err(self.lost_at(here)),
        };
        parse_function(self.prefix, &function, args).map(Thing::ask)
    }
}
