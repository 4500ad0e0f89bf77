//! What a name or a call can stand for.

use taskyard_core::TubeName;
use taskyard_core::limits::NESTING_MAX;

use super::EvalAsk;
use super::lexer::Token;
use super::statement::Program;
use crate::iproto::call::{Ask, parse_function, parse_method};
use crate::iproto::faults::{lua, not_defined, shown};
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
    /// Something to be done.
    Done(Box<EvalAsk>),
}

impl Thing {
    pub fn nil() -> Self {
        Thing::Value(vec![0xc0])
    }

    fn ask(ask: Ask) -> Self {
        Thing::Done(Box::new(EvalAsk::Ask(ask)))
    }
}

impl Program<'_> {
    /// Reads an expression, and `~= nil` behind it.
    pub fn expression(&mut self, depth: usize) -> Result<Thing, Fault> {
        if depth > NESTING_MAX {
            return Err(lua(format!("the expression is nested deeper than {NESTING_MAX} levels")));
        }
        let thing = self.thing(depth)?;
        if self.peek()? != Token::Mark("~=") {
            return Ok(thing);
        }
        self.next()?;
        let Token::Name("nil") = self.next()? else { return Err(self.lost()) };
        match thing {
            Thing::Tube(name) => {
                let name = String::from_utf8_lossy(&name).into_owned();
                Ok(Thing::ask(Ask::TubeExists { name }))
            }
            _ => Err(self.lost()),
        }
    }

    fn thing(&mut self, depth: usize) -> Result<Thing, Fault> {
        if let Some(literal) = self.literal(depth)? {
            return Ok(Thing::Value(literal));
        }
        let Token::Name(name) = self.next()? else { return Err(self.lost()) };
        let mut thing = match self.local_named(name)? {
            Some(thing) => thing,
            None => self.global(name.into()),
        };
        loop {
            thing = match self.peek()? {
                Token::Mark(".") => {
                    self.next()?;
                    let Token::Name(name) = self.next()? else { return Err(self.lost()) };
                    self.member(thing, name)?
                }
                Token::Mark("[") => self.indexed(thing, depth)?,
                Token::Mark(":") => {
                    self.next()?;
                    let Token::Name(method) = self.next()? else { return Err(self.lost()) };
                    let args = self.arguments(depth)?;
                    self.method(thing, method, args)?
                }
                Token::Mark("(" | "{") | Token::Text(_) => {
                    let args = self.arguments(depth)?;
                    self.called(thing, &args)?
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
    fn member(&self, thing: Thing, name: &str) -> Result<Thing, Fault> {
        Ok(match thing {
            Thing::Queue if name == "tube" => Thing::TubeTable,
            Thing::Queue if name == "schema" => Thing::Schema,
            Thing::Queue => Thing::Function(name.into()),
            Thing::Schema => Thing::Function(format!("schema.{name}")),
            Thing::TubeTable => Thing::Tube(name.into()),
            Thing::Global(global) => self.global(format!("{global}.{name}")),
            _ => return Err(self.lost()),
        })
    }

    /// `thing[name]`.
    fn indexed(&mut self, thing: Thing, depth: usize) -> Result<Thing, Fault> {
        self.expect("[")?;
        let Thing::Value(key) = self.expression(depth + 1)? else { return Err(self.lost()) };
        self.expect("]")?;
        let key = match Reader::new(&key).value() {
            Ok(Value::Str(name) | Value::Bin(name)) => name.to_vec(),
            _ => return Err(self.lost()),
        };
        match thing {
            Thing::TubeTable => Ok(Thing::Tube(key)),
            thing => {
                let name = String::from_utf8(key).map_err(|_| self.lost())?;
                self.member(thing, &name)
            }
        }
    }

    /// `thing:method(args)`.
    fn method(&self, thing: Thing, method: &str, args: Vec<u8>) -> Result<Thing, Fault> {
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
            _ => Err(self.lost()),
        }
    }

    /// `thing(args)`.
    fn called(&self, thing: Thing, args: &[u8]) -> Result<Thing, Fault> {
        let function = match thing {
            Thing::Function(name) => name,
            Thing::TubeTable => "tube".into(),
            Thing::Global(name) if name == "create_tube" => name,
            Thing::Global(name) if name == "require" => {
                let mut reader = Reader::new(args);
                let module = (reader.array(), reader.value());
                let queue = module == (Ok(1), Ok(Value::Str(b"queue")));
                return if queue { Ok(Thing::Queue) } else { Err(self.lost()) };
            }
            _ => return Err(self.lost()),
        };
        parse_function(self.prefix, &function, args).map(Thing::ask)
    }
}
