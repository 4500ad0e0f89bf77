//! Encodes literals and argument lists of expressions as MessagePack.

use super::lexer::Token;
use super::statement::EvalParser;
use super::term::Term;
use crate::pack::{self, Out};
use crate::reply::Fault;

impl EvalParser<'_> {
    /// The literal at this position; `None` if it is something else.
    pub fn literal(&mut self, depth: usize) -> Result<Option<Vec<u8>>, Fault> {
        let mut out = Vec::new();
        match self.peek()? {
            Token::Name("nil") => pack::nil(&mut out),
            Token::Name("true") => pack::bool(&mut out, true),
            Token::Name("false") => pack::bool(&mut out, false),
            Token::Text(text) => pack::str_bytes(&mut out, &text),
            Token::Integer(whole) => pack::uint(&mut out, whole),
            Token::Number(number) => write_number(&mut out, number),
            Token::Mark("-") => {
                self.next()?;
                match self.peek()? {
                    Token::Integer(whole) => write_negative(&mut out, whole),
                    Token::Number(number) => write_number(&mut out, -number),
                    _ => return Err(self.unsupported()),
                }
            }
            Token::Mark("...") => {
                let first = self.varargs.first().copied().unwrap_or(&[0xc0]);
                self.copy(first.len())?;
                out.extend_from_slice(first);
            }
            Token::Mark("{") => {
                self.table(&mut out, depth)?;
                return Ok(Some(out));
            }
            _ => return Ok(None),
        }
        self.next()?;
        Ok(Some(out))
    }

    /// The arguments of a call as a list: `(…)`, or one text or table by itself.
    pub fn arguments(&mut self, depth: usize) -> Result<Vec<u8>, Fault> {
        let mut values = Values::default();
        if self.peek()? != Token::Mark("(") {
            let argument = self.literal(depth + 1)?.ok_or_else(|| self.unsupported())?;
            values.push(&argument);
            return Ok(values.into_list());
        }
        self.next()?;
        while self.peek()? != Token::Mark(")") {
            self.push_value(&mut values, ")", depth)?;
            if self.peek()? != Token::Mark(")") {
                self.expect(",")?;
            }
        }
        self.next()?;
        Ok(values.into_list())
    }

    /// Adds a value; `...` right before `end` stands for all arguments of the expression.
    fn push_value(&mut self, values: &mut Values, end: &str, depth: usize) -> Result<(), Fault> {
        let mut ahead = self.lexer;
        let spread = ahead.next() == Some(Token::Mark("..."))
            && matches!(ahead.next(), Some(Token::Mark(mark)) if mark == end);
        if spread {
            self.next()?;
            for at in 0..self.varargs.len() {
                let raw = self.varargs[at];
                self.copy(raw.len())?;
                values.push(raw);
            }
            return Ok(());
        }
        let value = self.plain(depth)?;
        values.push(&value);
        Ok(())
    }

    /// An expression that must be plain data.
    fn plain(&mut self, depth: usize) -> Result<Vec<u8>, Fault> {
        let start = self.lexer;
        match self.expression(depth + 1)? {
            Term::Value(value) => Ok(value),
            _ => Err(self.unsupported_at(start)),
        }
    }

    /// `{1, 2}` is a list; with any key it is a map, in which values without keys are numbered.
    fn table(&mut self, out: &mut Out, depth: usize) -> Result<(), Fault> {
        self.expect("{")?;
        let mut values = Values::default();
        let (mut pairs, mut pair_count) = (Vec::new(), 0);
        while self.peek()? != Token::Mark("}") {
            if let Some(key) = self.table_key(depth)? {
                pairs.extend_from_slice(&key);
                pairs.extend_from_slice(&self.plain(depth)?);
                pair_count += 1;
            } else {
                self.push_value(&mut values, "}", depth)?;
            }
            match self.peek()? {
                Token::Mark("}") => {}
                Token::Mark("," | ";") => drop(self.next()?),
                _ => return Err(self.unsupported()),
            }
        }
        self.next()?;
        if pair_count == 0 {
            out.extend_from_slice(&values.into_list());
        } else {
            pack::map(out, pair_count + values.ends.len());
            for (number, value) in (1..).zip(values.each()) {
                pack::uint(out, number);
                out.extend_from_slice(value);
            }
            out.extend_from_slice(&pairs);
        }
        Ok(())
    }

    /// `name =` or `[key] =`, if that is next.
    fn table_key(&mut self, depth: usize) -> Result<Option<Vec<u8>>, Fault> {
        if self.peek()? == Token::Mark("[") {
            self.next()?;
            let key = self.plain(depth)?;
            self.expect("]")?;
            self.expect("=")?;
            return Ok(Some(key));
        }
        let mut ahead = self.lexer;
        let (Some(Token::Name(name)), Some(Token::Mark("="))) = (ahead.next(), ahead.next()) else {
            return Ok(None);
        };
        self.lexer = ahead;
        let mut key = Vec::new();
        pack::str(&mut key, name);
        Ok(Some(key))
    }
}

/// Values one after the other, with the end of each.
#[derive(Default)]
struct Values {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Values {
    fn push(&mut self, value: &[u8]) {
        self.bytes.extend_from_slice(value);
        self.ends.push(self.bytes.len());
    }

    fn each(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.bytes[start..*end])
    }

    fn into_list(self) -> Vec<u8> {
        let mut list = Vec::with_capacity(self.bytes.len() + 5);
        pack::array(&mut list, self.ends.len());
        list.extend_from_slice(&self.bytes);
        list
    }
}

/// Lua does not distinguish 5 and 5.0, and sends the shorter form.
fn write_number(out: &mut Out, number: f64) {
    const EXACT: f64 = (1u64 << 53) as f64;
    if number.fract() == 0.0 && number.abs() < EXACT {
        pack::int(out, number as i64);
    } else {
        pack::float(out, number);
    }
}

fn write_negative(out: &mut Out, whole: u64) {
    match 0i64.checked_sub_unsigned(whole) {
        Some(number) => pack::int(out, number),
        None => pack::float(out, -(whole as f64)),
    }
}
