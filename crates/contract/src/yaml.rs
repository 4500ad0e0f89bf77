//! A YAML document as a tree that remembers where everything stands.

use granit_parser::{Event, Marker, Parser, ScalarStyle, Span};

use crate::problem::{Place, Problems};

/// A value and where it begins.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub place: Place,
    pub value: Value,
}

/// What a contract may be made of.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Scalar(String),
    List(Vec<Node>),
    /// In the order of the file, with every repetition.
    Map(Vec<(Node, Node)>),
}

impl Value {
    /// What to call it in a message.
    pub fn describe(&self) -> &'static str {
        match self {
            Value::Scalar(text) if text.is_empty() => "nothing",
            Value::Scalar(_) => "a single value",
            Value::List(_) => "a list",
            Value::Map(_) => "a map",
        }
    }
}

/// How deep values may lie in each other: a contract needs five.
const DEPTH_MAX: usize = 16;

/// Reads the one document of a text; `None` when it is empty.
pub(crate) fn read(text: &str) -> Result<Option<Node>, Problems> {
    let mut reader = Reader { parser: Parser::new_from_str(text) };
    let mut documents = Vec::new();
    while let Some((event, _)) = reader.next()? {
        match event {
            Event::DocumentStart(..) => {
                if let Some((event, span)) = reader.next()? {
                    documents.push(reader.node(event, span, 0)?);
                }
            }
            Event::StreamEnd => break,
            _ => {}
        }
    }
    if let Some(second) = documents.get(1) {
        let hint = "keep one document in the file and remove the line with ---";
        return Err(one(second.place, "a second document", hint));
    }
    Ok(documents.pop())
}

struct Reader<'a> {
    parser: Parser<'a, granit_parser::StrInput<'a>>,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<Option<(Event<'a>, Span)>, Problems> {
        match self.parser.next() {
            None => Ok(None),
            Some(Ok(next)) => Ok(Some(next)),
            Some(Err(error)) => {
                let hint = "correct the YAML here or shortly before";
                Err(one(place(error.marker()), error.info(), hint))
            }
        }
    }

    fn node(&mut self, event: Event<'a>, span: Span, depth: usize) -> Result<Node, Problems> {
        let place = place(&span.start);
        if depth > DEPTH_MAX {
            return Err(one(place, "values nested too deeply", "see the example of a contract"));
        }
        let value = match event {
            // A value that is not there is told as `~`.
            Event::Scalar(text, ScalarStyle::Plain, ..) if text == "~" => {
                Value::Scalar(String::new())
            }
            Event::Scalar(text, ..) => Value::Scalar(text.into_owned()),
            Event::SequenceStart(..) => Value::List(self.list(depth)?),
            Event::MappingStart(..) => Value::Map(self.map(depth)?),
            Event::Alias(..) => {
                return Err(one(
                    place,
                    "an alias",
                    "write the value out: contracts have no aliases",
                ));
            }
            _ => return Err(ended(place)),
        };
        Ok(Node { place, value })
    }

    fn list(&mut self, depth: usize) -> Result<Vec<Node>, Problems> {
        let mut items = Vec::new();
        while let Some((event, span)) = self.next()? {
            if matches!(event, Event::SequenceEnd) {
                return Ok(items);
            }
            items.push(self.node(event, span, depth + 1)?);
        }
        Err(ended(Place::default()))
    }

    fn map(&mut self, depth: usize) -> Result<Vec<(Node, Node)>, Problems> {
        let mut entries = Vec::new();
        while let Some((event, span)) = self.next()? {
            if matches!(event, Event::MappingEnd) {
                return Ok(entries);
            }
            let key = self.node(event, span, depth + 1)?;
            let (event, span) = self.next()?.ok_or_else(|| ended(key.place))?;
            entries.push((key, self.node(event, span, depth + 1)?));
        }
        Err(ended(Place::default()))
    }
}

fn place(marker: &Marker) -> Place {
    Place { line: marker.line().max(1), column: marker.col() + 1 }
}

fn ended(place: Place) -> Problems {
    one(place, "the file ends in the middle of a value", "complete it")
}

fn one(place: Place, wrong: impl Into<String>, hint: &str) -> Problems {
    let mut problems = Problems::default();
    problems.add(place, wrong, hint);
    problems
}
