//! Parses YAML into a tree that records the position of every value.

use granit_parser::{Event, Marker, Parser, ScalarStyle, Span};

use crate::problem::{Position, Problems};

/// A value and its position.
#[derive(Clone, Debug)]
pub(crate) struct YamlNode {
    pub position: Position,
    pub value: YamlValue,
}

/// A YAML value in a contract.
#[derive(Clone, Debug)]
pub(crate) enum YamlValue {
    Scalar(String),
    List(Vec<YamlNode>),
    /// In the order of the file, duplicates included.
    Map(Vec<(YamlNode, YamlNode)>),
}

impl YamlValue {
    /// Its description in a message.
    pub fn describe(&self) -> &'static str {
        match self {
            YamlValue::Scalar(text) if text.is_empty() => "nothing",
            YamlValue::Scalar(_) => "a single value",
            YamlValue::List(_) => "a list",
            YamlValue::Map(_) => "a map",
        }
    }
}

/// The largest nesting depth: a contract needs five.
const DEPTH_MAX: usize = 16;

/// Parses the single document of a text; `None` when it is empty.
pub(crate) fn read(text: &str) -> Result<Option<YamlNode>, Problems> {
    let mut reader = YamlReader { parser: Parser::new_from_str(text) };
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
        return Err(single_problem(second.position, "a second document", hint));
    }
    Ok(documents.pop())
}

struct YamlReader<'a> {
    parser: Parser<'a, granit_parser::StrInput<'a>>,
}

impl<'a> YamlReader<'a> {
    fn next(&mut self) -> Result<Option<(Event<'a>, Span)>, Problems> {
        match self.parser.next() {
            None => Ok(None),
            Some(Ok(next)) => Ok(Some(next)),
            Some(Err(error)) => {
                let hint = "correct the YAML at this position or shortly before";
                Err(single_problem(position(error.marker()), error.info(), hint))
            }
        }
    }

    fn node(&mut self, event: Event<'a>, span: Span, depth: usize) -> Result<YamlNode, Problems> {
        let position = position(&span.start);
        if depth > DEPTH_MAX {
            return Err(single_problem(
                position,
                "values nested too deeply",
                "see the example of a contract",
            ));
        }
        let value = match event {
            // The parser reports a missing value as `~`.
            Event::Scalar(text, ScalarStyle::Plain, ..) if text == "~" => {
                YamlValue::Scalar(String::new())
            }
            Event::Scalar(text, ..) => YamlValue::Scalar(text.into_owned()),
            Event::SequenceStart(..) => YamlValue::List(self.list(depth)?),
            Event::MappingStart(..) => YamlValue::Map(self.map(depth)?),
            Event::Alias(..) => {
                return Err(single_problem(
                    position,
                    "an alias",
                    "repeat the value: aliases are not supported",
                ));
            }
            _ => return Err(ended(position)),
        };
        Ok(YamlNode { position, value })
    }

    fn list(&mut self, depth: usize) -> Result<Vec<YamlNode>, Problems> {
        let mut items = Vec::new();
        while let Some((event, span)) = self.next()? {
            if matches!(event, Event::SequenceEnd) {
                return Ok(items);
            }
            items.push(self.node(event, span, depth + 1)?);
        }
        Err(ended(Position::default()))
    }

    fn map(&mut self, depth: usize) -> Result<Vec<(YamlNode, YamlNode)>, Problems> {
        let mut entries = Vec::new();
        while let Some((event, span)) = self.next()? {
            if matches!(event, Event::MappingEnd) {
                return Ok(entries);
            }
            let key = self.node(event, span, depth + 1)?;
            let (event, span) = self.next()?.ok_or_else(|| ended(key.position))?;
            entries.push((key, self.node(event, span, depth + 1)?));
        }
        Err(ended(Position::default()))
    }
}

fn position(marker: &Marker) -> Position {
    Position { line: marker.line().max(1), column: marker.col() + 1 }
}

fn ended(position: Position) -> Problems {
    single_problem(position, "the file ends in the middle of a value", "complete it")
}

fn single_problem(position: Position, message: impl Into<String>, hint: &str) -> Problems {
    let mut problems = Problems::default();
    problems.add(position, message, hint);
    problems
}
