//! Reads the JSON that a benchmark prints. This program uses nothing but the standard library.

/// How deep values may be nested.
const DEPTH_MAX: usize = 16;

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    Null,
    Bool(bool),
    Number(f64),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    /// A field of an object.
    pub fn get(&self, name: &str) -> Option<&Json> {
        let Json::Object(fields) = self else { return None };
        fields.iter().find(|(field, _)| field == name).map(|(_, value)| value)
    }

    pub fn as_text(&self) -> Option<&str> {
        if let Json::Text(text) = self { Some(text) } else { None }
    }

    pub fn as_number(&self) -> Option<f64> {
        if let Json::Number(number) = self { Some(*number) } else { None }
    }
}

/// Reads all values of a text, one after the other.
pub fn read_all(text: &str) -> Option<Vec<Json>> {
    let mut reader = Reader { rest: text.trim_start() };
    let mut values = Vec::new();
    while !reader.rest.is_empty() {
        values.push(reader.value(0)?);
        reader.skip_space();
    }
    Some(values)
}

/// A text in double quotes.
pub fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            control if control < ' ' => quoted += &format!("\\u{:04x}", u32::from(control)),
            other => quoted.push(other),
        }
    }
    quoted + "\""
}

struct Reader<'a> {
    rest: &'a str,
}

impl Reader<'_> {
    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn skip(&mut self, word: &str) -> Option<()> {
        self.rest = self.rest.strip_prefix(word)?;
        Some(())
    }

    fn value(&mut self, depth: usize) -> Option<Json> {
        self.skip_space();
        match self.rest.chars().next()? {
            _ if depth > DEPTH_MAX => None,
            'n' => self.skip("null").map(|()| Json::Null),
            't' => self.skip("true").map(|()| Json::Bool(true)),
            'f' => self.skip("false").map(|()| Json::Bool(false)),
            '"' => self.text().map(Json::Text),
            '[' => self.items(']', |reader| reader.value(depth + 1)).map(Json::List),
            '{' => self.items('}', |reader| reader.field(depth + 1)).map(Json::Object),
            _ => self.number(),
        }
    }

    fn field(&mut self, depth: usize) -> Option<(String, Json)> {
        let name = self.text()?;
        self.skip_space();
        self.skip(":")?;
        Some((name, self.value(depth)?))
    }

    /// The items between brackets.
    fn items<T>(
        &mut self,
        end: char,
        mut item: impl FnMut(&mut Self) -> Option<T>,
    ) -> Option<Vec<T>> {
        self.rest = self.rest.get(1..)?;
        let mut items = Vec::new();
        loop {
            self.skip_space();
            if let Some(rest) = self.rest.strip_prefix(end) {
                self.rest = rest;
                return Some(items);
            }
            if !items.is_empty() {
                self.skip(",")?;
                self.skip_space();
            }
            items.push(item(self)?);
        }
    }

    fn number(&mut self) -> Option<Json> {
        let is_part = |letter: char| letter.is_ascii_digit() || "+-.eE".contains(letter);
        let end = self.rest.find(|letter| !is_part(letter)).unwrap_or(self.rest.len());
        let (number, rest) = self.rest.split_at(end);
        self.rest = rest;
        number.parse().ok().map(Json::Number)
    }

    fn text(&mut self) -> Option<String> {
        self.skip("\"")?;
        let mut text = String::new();
        let mut letters = self.rest.char_indices();
        while let Some((at, letter)) = letters.next() {
            match letter {
                '"' => {
                    self.rest = &self.rest[at + 1..];
                    return Some(text);
                }
                '\\' => match letters.next()?.1 {
                    'n' => text.push('\n'),
                    't' => text.push('\t'),
                    'r' => text.push('\r'),
                    'b' => text.push('\u{8}'),
                    'f' => text.push('\u{c}'),
                    'u' => {
                        let digits: String =
                            letters.by_ref().take(4).map(|(_, digit)| digit).collect();
                        // Half of a pair: names of figures have none.
                        let code = u32::from_str_radix(&digits, 16).ok()?;
                        text.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
                    }
                    other => text.push(other),
                },
                other => text.push(other),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_lists_are_read() {
        let text = "{\"name\": \"a \\\"b\\\" \\u00b5s\", \"value\": -1.5e3, \"met\": null}\n[true, [], {}]\n";
        let values = read_all(text).unwrap();
        assert_eq!(values[0].get("name").unwrap().as_text(), Some("a \"b\" µs"));
        assert_eq!(values[0].get("value").unwrap().as_number(), Some(-1500.0));
        assert_eq!(values[0].get("met"), Some(&Json::Null));
        let list = [Json::Bool(true), Json::List(Vec::new()), Json::Object(Vec::new())];
        assert_eq!(values[1], Json::List(list.into()));
        assert_eq!(read_all(" "), Some(Vec::new()));
    }

    #[test]
    fn other_text_is_refused() {
        let deep = "[".repeat(100_000);
        for text in
            ["what  figure", "{\"a\"}", "[1 2]", "\"open", "{1:2}", "nul", &deep, "\"\\u12\""]
        {
            assert_eq!(read_all(text), None, "{}", &text[..text.len().min(20)]);
        }
    }

    #[test]
    fn a_quoted_text_is_read_again() {
        for text in ["plain", "a \"quote\" and \\", "line\nbreak", "µs"] {
            assert_eq!(read_all(&quoted(text)), Some(vec![Json::Text(text.into())]));
        }
    }
}
