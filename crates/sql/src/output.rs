//! What a task leaves in the column `output`: rows, headers and command tags as lines of text.

/// The types whose values are not quoted while `string` is set: bool, int8, int2, int4, oid, tid, xid, cid, float4,
/// float8, bit, numeric.
const PLAIN_TYPES: [u32; 12] = [16, 20, 21, 23, 26, 27, 28, 29, 700, 701, 1560, 1700];

/// How a task wants its output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format {
    /// Whether names stand above the columns.
    pub header: bool,
    /// Whether only strings are quoted.
    pub string: bool,
    /// What stands between columns.
    pub delimiter: Option<char>,
    /// What stands before a quote inside a value.
    pub escape: Option<char>,
    /// What stands around values.
    pub quote: Option<char>,
    /// Whether what escapes is escaped too.
    pub escapes_itself: bool,
    /// What stands for NULL.
    pub null: String,
}

/// A column of a result.
pub struct Column {
    /// Its name.
    pub name: String,
    /// The number of its type.
    pub type_oid: u32,
}

/// The output while it grows.
pub struct Output {
    format: Format,
    text: Option<String>,
    columns: Vec<Column>,
    header_due: bool,
    bytes_max: usize,
    cut: bool,
}

impl Output {
    /// Nothing yet, and never more than so many bytes.
    pub fn new(format: Format, bytes_max: usize) -> Self {
        let columns = Vec::new();
        Output { format, text: None, columns, header_due: false, bytes_max, cut: false }
    }

    /// A result with these columns begins.
    pub fn begin(&mut self, columns: Vec<Column>) {
        self.header_due = self.format.header && columns.len() > 1;
        self.columns = columns;
    }

    /// A row of the result.
    pub fn row<'a>(&mut self, values: impl Iterator<Item = Option<&'a [u8]>>) {
        if self.cut {
            return;
        }
        if std::mem::take(&mut self.header_due) {
            let names = self.columns.iter().map(|column| self.format.quoted(&column.name));
            let header: Vec<String> = names.collect();
            self.line(&self.format.joined(&header));
        }
        self.line("");
        // Piece by piece: together they may be far longer than what is kept of them.
        for (place, value) in values.enumerate() {
            if place > 0
                && let Some(between) = self.format.delimiter
            {
                self.push(between.encode_utf8(&mut [0; 4]));
            }
            self.value(place, value);
            if self.cut {
                return;
            }
        }
    }

    fn value(&mut self, place: usize, value: Option<&[u8]>) {
        let Some(value) = value else {
            let null = std::mem::take(&mut self.format.null);
            self.push(&null);
            self.format.null = null;
            return;
        };
        let value = String::from_utf8_lossy(value);
        let plain = |column: &Column| PLAIN_TYPES.contains(&column.type_oid);
        if self.format.string && self.columns.get(place).is_some_and(plain) {
            self.push(&value);
        } else {
            let quoted = self.format.quoted(&value);
            self.push(&quoted);
        }
    }

    /// A command that has no rows ended with this tag.
    pub fn tag(&mut self, tag: &str) {
        self.line(tag);
    }

    /// A piece of COPY, with the ends of its lines.
    pub fn copied(&mut self, data: &[u8]) {
        // What no text of PostgreSQL can hold.
        let data = String::from_utf8_lossy(data).replace('\0', "\u{fffd}");
        self.push(&data);
    }

    /// Something that is longer than any output may be.
    pub fn too_long(&mut self) {
        self.cut_here();
    }

    /// Whether something is missing at its end.
    pub fn is_cut(&self) -> bool {
        self.cut
    }

    /// The text; none where nothing was said.
    pub fn into_text(self) -> Option<String> {
        self.text
    }

    fn line(&mut self, line: &str) {
        // Empty lines at the beginning vanish: the first description of this format has it so.
        let before =
            self.text.as_ref().is_some_and(|text| !text.is_empty() && !text.ends_with('\n'));
        if before {
            self.push("\n");
        }
        self.push(line);
    }

    fn push(&mut self, piece: &str) {
        if self.cut {
            return;
        }
        let text = self.text.get_or_insert_default();
        let room = self.bytes_max.saturating_sub(text.len());
        if piece.len() <= room {
            text.push_str(piece);
            return;
        }
        text.push_str(&piece[..piece.floor_char_boundary(room)]);
        self.cut_here();
    }

    fn cut_here(&mut self) {
        if !std::mem::replace(&mut self.cut, true) {
            let text = self.text.get_or_insert_default();
            if !text.is_empty() && !text.ends_with('\n') {
                text.push('\n');
            }
            text.push_str(&format!("[output cut after {} bytes]", self.bytes_max));
        }
    }
}

impl Format {
    fn joined(&self, values: &[String]) -> String {
        let mut between = [0; 4];
        values.join(self.delimiter.map_or("", |char| char.encode_utf8(&mut between)))
    }

    fn quoted(&self, value: &str) -> String {
        let Some(quote) = self.quote else { return value.to_owned() };
        let mut quoted = String::with_capacity(value.len() + 2);
        quoted.push(quote);
        for char in value.chars() {
            if let Some(escape) = self.escape
                && (char == quote || (self.escapes_itself && char == escape))
            {
                quoted.push(escape);
            }
            quoted.push(char);
        }
        quoted.push(quote);
        quoted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format() -> Format {
        Format {
            header: true,
            string: true,
            delimiter: Some('\t'),
            escape: None,
            quote: None,
            escapes_itself: false,
            null: "\\N".into(),
        }
    }

    fn begin(output: &mut Output, columns: &[(&str, u32)]) {
        let column =
            |(name, type_oid): &(&str, u32)| Column { name: (*name).into(), type_oid: *type_oid };
        output.begin(columns.iter().map(column).collect());
    }

    fn row(output: &mut Output, values: &[Option<&str>]) {
        output.row(values.iter().map(|value| value.map(str::as_bytes)));
    }

    fn of(format: Format, columns: &[(&str, u32)], values: &[Option<&str>]) -> String {
        let mut output = Output::new(format, 1 << 20);
        begin(&mut output, columns);
        row(&mut output, values);
        output.into_text().expect("there was a row")
    }

    #[test]
    fn a_header_stands_above_two_columns_and_not_above_one() {
        let mut output = Output::new(format(), 1000);
        begin(&mut output, &[("a", 23)]);
        row(&mut output, &[Some("1")]);
        begin(&mut output, &[("a", 23), ("b", 23)]);
        row(&mut output, &[Some("1"), Some("2")]);
        row(&mut output, &[Some("3"), None]);
        output.tag("INSERT 0 2");
        // Without rows there is no header either.
        begin(&mut output, &[("c", 23), ("d", 23)]);
        assert_eq!(output.into_text().as_deref(), Some("1\na\tb\n1\t2\n3\t\\N\nINSERT 0 2"));
    }

    #[test]
    fn quotes_are_for_strings_and_headers() {
        let columns = [("h\"1", 25), ("n", 23), ("z", 25), ("b", 16)];
        let values = [Some("x\"y"), Some("1"), None, Some("t")];
        let csv =
            Format { quote: Some('"'), delimiter: Some(','), null: "NULL".into(), ..format() };
        let escaped = Format { escape: Some('"'), ..csv.clone() };
        let all = Format { string: false, ..escaped.clone() };
        let expected = "\"h\"1\",\"n\",\"z\",\"b\"\n\"x\"y\",1,NULL,t";
        assert_eq!(of(csv, &columns, &values), expected);
        let expected = "\"h\"\"1\",\"n\",\"z\",\"b\"\n\"x\"\"y\",1,NULL,t";
        assert_eq!(of(escaped, &columns, &values), expected);
        let expected = "\"h\"\"1\",\"n\",\"z\",\"b\"\n\"x\"\"y\",\"1\",NULL,\"t\"";
        assert_eq!(of(all, &columns, &values), expected);
    }

    #[test]
    fn an_escape_is_escaped_only_where_asked() {
        let odd = Format {
            quote: Some('\''),
            escape: Some('\\'),
            string: false,
            header: false,
            delimiter: Some(';'),
            ..format()
        };
        let columns = [("a", 25), ("b", 23)];
        let values = [Some("x'y\\z"), Some("1")];
        assert_eq!(of(odd.clone(), &columns, &values), "'x\\'y\\z';'1'");
        let both = Format { escapes_itself: true, ..odd };
        assert_eq!(of(both, &columns, &values), "'x\\'y\\\\z';'1'");
        let alone = Format { escape: Some('\\'), ..format() };
        assert_eq!(of(alone, &[("a", 25)], &[Some("x'y\\z")]), "x'y\\z");
    }

    #[test]
    fn nothing_is_not_an_empty_text() {
        assert_eq!(Output::new(format(), 10).into_text(), None);
        let mut output = Output::new(format(), 10);
        begin(&mut output, &[("a", 25)]);
        row(&mut output, &[Some("")]);
        row(&mut output, &[Some("")]);
        assert_eq!(output.into_text().as_deref(), Some(""));
    }

    #[test]
    fn too_much_is_cut_and_marked() {
        let mut output = Output::new(format(), 7);
        begin(&mut output, &[("a", 25)]);
        for _ in 0..1000 {
            row(&mut output, &[Some("äää")]);
        }
        assert!(output.is_cut());
        let expected = "äää\n[output cut after 7 bytes]";
        assert_eq!(output.into_text().as_deref(), Some(expected));
    }

    #[test]
    fn a_long_word_for_null_is_not_repeated_beyond_the_bound() {
        // A row of 1,600 NULLs with a word of ten megabytes for each was put together first, and cut then: 16 GB.
        let mut output = Output::new(Format { null: "x".repeat(10 << 20), ..format() }, 1000);
        begin(&mut output, &[("a", 25)]);
        let looked = std::cell::Cell::new(0);
        output.row((0..1600).map(|place| {
            looked.set(place);
            None
        }));
        assert!(output.is_cut() && looked.get() == 0, "{}", looked.get());
        assert!(output.into_text().is_some_and(|text| text.len() < 10_000));
    }

    #[test]
    fn bytes_that_are_no_text_become_text() {
        let mut output = Output::new(format(), 100);
        begin(&mut output, &[("a", 25)]);
        output.row([Some(&b"\xff\xfe"[..])].into_iter());
        assert_eq!(output.into_text().as_deref(), Some("\u{fffd}\u{fffd}"));
    }
}
