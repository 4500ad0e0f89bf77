//! Statements: names that are given, and what is done.

use taskyard_core::TubeName;

use super::lexer::{Lexer, Token};
use super::thing::Thing;
use super::{Eval, EvalAsk, NewTube, Returns};
use crate::iproto::args::Args;
use crate::iproto::call::Ask;
use crate::iproto::faults::{lua, shown};
use crate::iproto::reader::{Reader, Value};
use crate::iproto::reply::Fault;

/// Most names that an expression may give.
const LOCALS_MAX: usize = 50;
/// Most tubes that an expression may make.
const TUBES_MAX: usize = 50;
/// Most arguments that an expression may get.
const VARARGS_MAX: usize = 1_000;
/// How often all that was sent may be copied into what is asked.
const COPIES_MAX: usize = 8;

/// An expression on its way through.
pub(super) struct Program<'a> {
    pub lexer: Lexer<'a>,
    /// Where the statement begins that is being read.
    pub statement: Lexer<'a>,
    /// All of it.
    pub expression: &'a str,
    /// What the queue is called.
    pub prefix: &'a str,
    /// What was sent along, one by one.
    pub varargs: Vec<&'a [u8]>,
    /// How many more bytes may be copied, so that a few names for one large thing stay small.
    copies_left: usize,
    locals: Vec<(&'a str, Thing)>,
    /// The one thing that is done.
    ask: EvalAsk,
    returns: Returns,
}

impl<'a> Program<'a> {
    pub fn new(prefix: &'a str, expression: &'a str, args: &'a [u8]) -> Result<Self, Fault> {
        let mut list = Args::new(args)?;
        let mut varargs = Vec::new();
        while let Some(raw) = list.raw()? {
            if varargs.len() == VARARGS_MAX {
                return Err(lua(format!("an expression may get {VARARGS_MAX} arguments")));
            }
            varargs.push(raw);
        }
        Ok(Program {
            lexer: Lexer::new(expression),
            statement: Lexer::new(expression),
            expression,
            prefix,
            varargs,
            copies_left: COPIES_MAX * (expression.len() + args.len()),
            locals: Vec::new(),
            ask: EvalAsk::Nothing,
            returns: Returns::Nothing,
        })
    }

    /// Walks through all statements.
    pub fn run(mut self) -> Result<Eval, Fault> {
        let mut over = false;
        loop {
            self.statement = self.lexer;
            match self.peek()? {
                Token::End => return Ok(Eval { ask: self.ask, returns: self.returns }),
                Token::Mark(";") => drop(self.next()?),
                _ if over => return Err(self.lost()),
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
                    self.make_if_missing()?;
                }
                _ => self.assignment_or_call()?,
            }
        }
    }

    /// What follows `return`, if anything does.
    fn returned(&mut self) -> Result<(), Fault> {
        let start = self.lexer;
        match self.peek()? {
            Token::End | Token::Mark(";") => return Ok(()),
            // It may stand for several values.
            Token::Mark("...") => return Err(self.lost()),
            _ => {}
        }
        self.returns = match self.expression(0)? {
            Thing::Done(ask) => self.do_one(*ask).map(|()| Returns::Result)?,
            Thing::NewTube(new) => self.make(*new).map(|()| Returns::Result)?,
            Thing::Tube(name) if self.makes(&name) => Returns::Result,
            Thing::Tube(name) => return Err(self.tube_alone(&name)),
            Thing::Exists { name, there } if self.makes(name.as_bytes()) => Returns::Flag(there),
            Thing::Exists { name, there } => {
                self.do_one(EvalAsk::Ask(Ask::TubeExists { name }))?;
                if there { Returns::Result } else { Returns::Opposite }
            }
            Thing::Value(value) => match Reader::new(&value).value() {
                Ok(Value::Bool(flag)) => Returns::Flag(flag),
                Ok(Value::Nil) => Returns::Nil,
                _ => return Err(self.lost_at(start)),
            },
            _ => return Err(self.lost_at(start)),
        };
        Ok(())
    }

    /// `if not queue.tube.NAME then queue.create_tube('NAME', …) end`, after its first word.
    fn make_if_missing(&mut self) -> Result<(), Fault> {
        let condition = self.lexer;
        let Thing::Exists { name, there: false } = self.expression(0)? else {
            return Err(self.lost_at(condition));
        };
        self.expect_word("then")?;
        self.skip_semicolons()?;
        let made = self.lexer;
        let Thing::NewTube(mut new) = self.expression(0)? else { return Err(self.lost_at(made)) };
        self.skip_semicolons()?;
        self.expect_word("end")?;
        if new.tube.as_str() != name {
            return Err(lua(format!(
                "the expression asks whether '{}' is there and makes '{}'; an if may only make \
                 the tube that it asks about",
                shown(&name),
                new.tube
            )));
        }
        new.if_not_exists = true;
        self.make(*new)
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
            let thing = things.next().unwrap_or_else(Thing::nil);
            let thing = self.performed(thing)?;
            self.locals.push((name, thing));
        }
        Ok(())
    }

    /// The values after `=`; `...` at the end stands for all that was sent along.
    fn expressions(&mut self) -> Result<Vec<Thing>, Fault> {
        let mut things = Vec::new();
        loop {
            if self.peek()? == Token::Mark("...") {
                self.next()?;
                for at in 0..self.varargs.len() {
                    let raw = self.varargs[at];
                    self.copy(raw.len())?;
                    things.push(Thing::Value(raw.to_vec()));
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

    /// `name = expression`, or an expression that does something.
    fn assignment_or_call(&mut self) -> Result<(), Fault> {
        let mut ahead = self.lexer;
        let (name, mark) = (ahead.next(), ahead.next());
        if let (Some(Token::Name(name)), Some(Token::Mark("="))) = (name, mark) {
            self.lexer = ahead;
            let thing = self.expression(0)?;
            return self.assign(name, thing);
        }
        match self.expression(0)? {
            Thing::Done(ask) => self.do_one(*ask),
            Thing::NewTube(new) => self.make(*new),
            Thing::Exists { name, .. } => self.do_one(EvalAsk::Ask(Ask::TubeExists { name })),
            Thing::Queue => Ok(()),
            Thing::Tube(name) => Err(self.tube_alone(&name)),
            _ => Err(self.lost_at(self.statement)),
        }
    }

    /// A global name for a tube, or for the queue, which has its name already.
    fn assign(&mut self, variable: &'a str, thing: Thing) -> Result<(), Fault> {
        match self.performed(thing)? {
            Thing::Queue => {
                self.locals.push((variable, Thing::Queue));
                Ok(())
            }
            Thing::Tube(tube) => self.stands_for(variable, tube_name(&tube)?),
            _ => Err(self.lost_at(self.statement)),
        }
    }

    /// Lets a variable stand for a tube that is made here, or for one that is there when nothing else
    /// is done: which tube it is, is known only once that was made or found.
    fn stands_for(&mut self, variable: &str, tube: TubeName) -> Result<(), Fault> {
        let variable = variable.to_owned();
        match &mut self.ask {
            EvalAsk::Nothing => self.ask = EvalAsk::Tube { tube, variable },
            EvalAsk::CreateTubes(tubes) => {
                let mut nameless = tubes.iter_mut().filter(|new| new.variable.is_none());
                let Some(new) = nameless.find(|new| new.tube == tube) else {
                    return Err(self.one_thing());
                };
                new.variable = Some(variable);
            }
            _ => return Err(self.one_thing()),
        }
        Ok(())
    }

    /// Does what has to be done for a value that is given a name. Only what makes a tube has a
    /// result that can be used later.
    fn performed(&mut self, thing: Thing) -> Result<Thing, Fault> {
        match thing {
            Thing::NewTube(new) => {
                let made = Thing::Tube(new.tube.as_str().as_bytes().to_vec());
                self.make(*new)?;
                Ok(made)
            }
            Thing::Done(_) => Err(self.lost_at(self.statement)),
            other => Ok(other),
        }
    }

    fn do_one(&mut self, ask: EvalAsk) -> Result<(), Fault> {
        if self.ask != EvalAsk::Nothing {
            return Err(self.one_thing());
        }
        self.ask = ask;
        Ok(())
    }

    /// Makes a tube: the only thing that can be done several times.
    fn make(&mut self, new: NewTube) -> Result<(), Fault> {
        self.outdate(new.tube.as_str());
        match &mut self.ask {
            EvalAsk::Nothing => self.ask = EvalAsk::CreateTubes(vec![new]),
            EvalAsk::CreateTubes(tubes) if tubes.len() < TUBES_MAX => tubes.push(new),
            EvalAsk::CreateTubes(_) => {
                return Err(lua(format!("an expression may make {TUBES_MAX} tubes")));
            }
            _ => return Err(self.one_thing()),
        }
        Ok(())
    }

    /// Forgets what earlier names say of a tube: to Lua they keep what was so before it was made.
    fn outdate(&mut self, tube: &str) {
        for (_, thing) in &mut self.locals {
            let about = match thing {
                Thing::Tube(name) => name.as_slice(),
                Thing::Exists { name, .. } => name.as_bytes(),
                _ => continue,
            };
            if about == tube.as_bytes() {
                *thing = Thing::Outdated;
            }
        }
    }

    /// Whether a tube of this name is made here, so that it is there in the end.
    fn makes(&self, name: &[u8]) -> bool {
        let EvalAsk::CreateTubes(tubes) = &self.ask else { return false };
        tubes.iter().any(|new| new.tube.as_str().as_bytes() == name)
    }

    /// What a name stands for that was given here.
    pub fn local_named(&mut self, name: &str) -> Result<Option<Thing>, Fault> {
        let local = self.locals.iter().rev().find(|local| local.0 == name);
        let Some((_, thing)) = local else { return Ok(None) };
        let thing = thing.clone();
        if let Thing::Value(value) = &thing {
            self.copy(value.len())?;
        }
        Ok(Some(thing))
    }

    /// Notes that this many bytes of what was sent are copied.
    pub fn copy(&mut self, bytes: usize) -> Result<(), Fault> {
        let left = self.copies_left.checked_sub(bytes);
        self.copies_left = left.ok_or_else(|| lua("the expression repeats its data too often"))?;
        Ok(())
    }

    pub fn peek(&self) -> Result<Token<'a>, Fault> {
        let mut ahead = self.lexer;
        ahead.next().ok_or_else(|| self.lost())
    }

    pub fn next(&mut self) -> Result<Token<'a>, Fault> {
        let token = self.peek()?;
        self.lexer.next();
        Ok(token)
    }

    /// The name that must be next.
    pub fn name(&mut self) -> Result<&'a str, Fault> {
        let Token::Name(name) = self.peek()? else { return Err(self.lost()) };
        self.next()?;
        Ok(name)
    }

    /// Goes on behind the mark, which must be next.
    pub fn expect(&mut self, mark: &'static str) -> Result<(), Fault> {
        self.expect_token(&Token::Mark(mark))
    }

    /// Goes on behind the word, which must be next.
    pub fn expect_word(&mut self, word: &'static str) -> Result<(), Fault> {
        self.expect_token(&Token::Name(word))
    }

    fn expect_token(&mut self, token: &Token<'_>) -> Result<(), Fault> {
        if self.peek()? != *token {
            return Err(self.lost());
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
