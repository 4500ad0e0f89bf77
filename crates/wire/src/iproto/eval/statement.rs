//! Statements: names that are given, and the one thing that is done.

use taskyard_core::TubeName;

use super::lexer::{Lexer, Token};
use super::thing::Thing;
use super::{Eval, EvalAsk, not_understood};
use crate::iproto::args::Args;
use crate::iproto::call::Ask;
use crate::iproto::faults::lua;
use crate::iproto::reply::Fault;

/// Most names that an expression may give.
const LOCALS_MAX: usize = 50;
/// Most arguments that an expression may get.
const VARARGS_MAX: usize = 1_000;
/// How often all that was sent may be copied into what is asked.
const COPIES_MAX: usize = 8;

/// An expression on its way through.
pub(super) struct Program<'a> {
    pub lexer: Lexer<'a>,
    /// Where the statement begins that is being read.
    statement: Lexer<'a>,
    /// What the queue is called.
    pub prefix: &'a str,
    /// What was sent along, one by one.
    pub varargs: Vec<&'a [u8]>,
    /// How many more bytes may be copied, so that a few names for one large thing stay small.
    copies_left: usize,
    locals: Vec<(&'a str, Thing)>,
    /// The one thing that is done.
    ask: Option<EvalAsk>,
    assigns: Option<String>,
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
            prefix,
            varargs,
            copies_left: COPIES_MAX * (expression.len() + args.len()),
            locals: Vec::new(),
            ask: None,
            assigns: None,
        })
    }

    /// Walks through all statements.
    pub fn run(mut self) -> Result<Eval, Fault> {
        let mut returns = false;
        loop {
            self.statement = self.lexer;
            match self.peek()? {
                Token::End => break,
                Token::Mark(";") => drop(self.next()?),
                _ if returns => return Err(self.lost()),
                Token::Name("return") => {
                    self.next()?;
                    returns = true;
                    self.returned()?;
                }
                Token::Name("local") => {
                    self.next()?;
                    self.local()?;
                }
                _ => self.assignment_or_call()?,
            }
        }
        Ok(Eval { ask: self.ask.unwrap_or(EvalAsk::Nothing), assigns: self.assigns, returns })
    }

    /// What follows `return`, if anything does.
    fn returned(&mut self) -> Result<(), Fault> {
        if matches!(self.peek()?, Token::End | Token::Mark(";")) {
            return Ok(());
        }
        match self.expression(0)? {
            Thing::Done(ask) => self.do_one(*ask),
            Thing::Tube(name) => self.do_one(EvalAsk::Tube(tube_name(&name)?)),
            _ => Err(self.lost()),
        }
    }

    /// `local a, b = 1, 2`, after its first word.
    fn local(&mut self) -> Result<(), Fault> {
        let mut names = Vec::new();
        loop {
            let Token::Name(name) = self.next()? else { return Err(self.lost()) };
            names.push(name);
            if self.locals.len() + names.len() > LOCALS_MAX {
                return Err(lua(format!("an expression may name {LOCALS_MAX} things")));
            }
            match self.next()? {
                Token::Mark(",") => {}
                Token::Mark("=") => break,
                _ => return Err(self.lost()),
            }
        }
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
            Thing::Queue => Ok(()),
            _ => Err(self.lost()),
        }
    }

    /// A global name for a tube, or for the queue, which has its name already.
    fn assign(&mut self, name: &'a str, thing: Thing) -> Result<(), Fault> {
        match self.performed(thing)? {
            Thing::Queue => {
                self.locals.push((name, Thing::Queue));
                Ok(())
            }
            Thing::Tube(tube) => {
                self.stands_for(&tube_name(&tube)?)?;
                self.assigns = Some(name.into());
                Ok(())
            }
            _ => Err(self.lost()),
        }
    }

    /// Makes sure that the tube of an assignment is the one that the expression is about: which tube a
    /// variable stands for is known only once that was made or found.
    fn stands_for(&mut self, tube: &TubeName) -> Result<(), Fault> {
        let about = match &self.ask {
            None => return self.do_one(EvalAsk::Tube(tube.clone())),
            Some(EvalAsk::Ask(Ask::CreateTube { tube, .. }) | EvalAsk::Tube(tube)) => Some(tube),
            Some(_) => None,
        };
        if about == Some(tube) && self.assigns.is_none() { Ok(()) } else { Err(one_thing()) }
    }

    /// Does what has to be done for a value that is given a name. Only what makes a tube has a
    /// result that can be used later.
    fn performed(&mut self, thing: Thing) -> Result<Thing, Fault> {
        let Thing::Done(ask) = thing else { return Ok(thing) };
        let EvalAsk::Ask(Ask::CreateTube { tube, .. }) = &*ask else { return Err(self.lost()) };
        let made = Thing::Tube(tube.as_str().as_bytes().to_vec());
        self.do_one(*ask)?;
        Ok(made)
    }

    fn do_one(&mut self, ask: EvalAsk) -> Result<(), Fault> {
        if self.ask.is_some() {
            return Err(one_thing());
        }
        self.ask = Some(ask);
        Ok(())
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
        let before = self.lexer;
        self.lexer.next().ok_or_else(|| not_understood(before.rest()))
    }

    /// Goes on behind the mark, which must be next.
    pub fn expect(&mut self, mark: &'static str) -> Result<(), Fault> {
        if self.peek()? != Token::Mark(mark) {
            return Err(self.lost());
        }
        self.next().map(drop)
    }

    /// The refusal of what stands here, or of the statement when it is over.
    pub fn lost(&self) -> Fault {
        let rest = self.lexer.rest().trim();
        not_understood(if matches!(rest, "" | ";") { self.statement.rest() } else { rest })
    }
}

fn one_thing() -> Fault {
    lua("an expression may do one thing; send the next one by itself")
}

fn tube_name(name: &[u8]) -> Result<TubeName, Fault> {
    let name = String::from_utf8_lossy(name);
    TubeName::new(&name).map_err(|error| lua(error.to_string()))
}
