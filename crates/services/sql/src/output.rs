//! Builds the text of the column `output`: rows, headers and command tags as lines.

use crate::encoding::Charset;

/// The types whose values are not quoted while `string` is set: bool, int8, int2, int4, oid, tid, xid, cid, float4,
/// float8, bit, numeric.
const PLAIN_TYPES: [u32; 12] = [16, 20, 21, 23, 26, 27, 28, 29, 700, 701, 1560, 1700];

/// The format of an output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format {
    /// Whether a line with the names of the columns is written.
    pub header: bool,
    /// Whether only strings are quoted.
    pub string: bool,
    /// The character between columns.
    pub delimiter: Option<char>,
    /// The character before a quote inside a value.
    pub escape: Option<char>,
    /// The character around values.
    pub quote: Option<char>,
    /// Whether the escape character is escaped too.
    pub escapes_itself: bool,
    /// The text for NULL.
    pub null: String,
}

/// A column of a result.
pub struct Column {
    /// Its name, in the encoding of the session.
    pub name: Vec<u8>,
    /// The OID of its type.
    pub type_oid: u32,
}

/// An output that is being built.
pub struct Output {
    format: Format,
    text: Option<String>,
    columns: Vec<Column>,
    header_due: bool,
    /// Whether a COPY has begun, whose first part starts a new line.
    copy_due: bool,
    bytes_max: usize,
    cut: bool,
    /// Pieces that are not UTF-8, until their encoding is known.
    undecoded: Vec<UndecodedPiece>,
    /// The memory of these pieces, with their structs.
    undecoded_bytes: usize,
}

/// A piece in an encoding that is not known yet.
struct UndecodedPiece {
    /// Its position in the text.
    at: usize,
    bytes: Vec<u8>,
    quoted: bool,
}

impl Output {
    /// An empty output of at most `bytes_max` bytes.
    pub fn new(format: Format, bytes_max: usize) -> Self {
        let columns = Vec::new();
        let (header_due, copy_due) = (false, false);
        let (undecoded, undecoded_bytes) = (Vec::new(), 0);
        let (text, cut) = (None, false);
        Output {
            format,
            text,
            columns,
            header_due,
            copy_due,
            bytes_max,
            cut,
            undecoded,
            undecoded_bytes,
        }
    }

    /// Begins a result with these columns.
    pub fn begin(&mut self, columns: Vec<Column>) {
        self.header_due = self.format.header && columns.len() > 1;
        self.columns = columns;
    }

    /// Writes a row of the result.
    pub fn row<'a>(&mut self, values: impl Iterator<Item = Option<&'a [u8]>>) {
        if self.cut {
            return;
        }
        if std::mem::take(&mut self.header_due) {
            self.line("");
            let columns = std::mem::take(&mut self.columns);
            for (index, column) in columns.iter().enumerate() {
                self.between(index);
                self.piece(&column.name, true);
            }
            self.columns = columns;
        }
        self.line("");
        // Value by value: together they may be far longer than what is kept of them.
        for (index, value) in values.enumerate() {
            self.between(index);
            self.value(index, value);
            if self.cut {
                return;
            }
        }
    }

    fn between(&mut self, index: usize) {
        if index > 0
            && let Some(between) = self.format.delimiter
        {
            self.push(between.encode_utf8(&mut [0; 4]));
        }
    }

    fn value(&mut self, index: usize, value: Option<&[u8]>) {
        let Some(value) = value else {
            let null = std::mem::take(&mut self.format.null);
            self.push(&null);
            self.format.null = null;
            return;
        };
        let plain = |column: &Column| PLAIN_TYPES.contains(&column.type_oid);
        let plain = self.format.string && self.columns.get(index).is_some_and(plain);
        self.piece(value, !plain);
    }

    /// Writes a value or a name.
    fn piece(&mut self, bytes: &[u8], quoted: bool) {
        match str::from_utf8(bytes) {
            Err(_) => self.keep(bytes, quoted),
            Ok(text) if quoted => self.push(&self.format.quoted(text)),
            Ok(text) => self.push(text),
        }
    }

    /// Keeps bytes until their encoding is known.
    fn keep(&mut self, bytes: &[u8], quoted: bool) {
        if self.cut {
            return;
        }
        let at = self.text.get_or_insert_default().len();
        self.undecoded_bytes += size_of::<UndecodedPiece>();
        let remaining = self.bytes_max.saturating_sub(at + self.undecoded_bytes);
        let kept = &bytes[..bytes.len().min(remaining)];
        self.undecoded_bytes += kept.len();
        self.undecoded.push(UndecodedPiece { at, bytes: kept.to_owned(), quoted });
        if kept.len() < bytes.len() {
            self.cut_here();
        }
    }

    /// Writes the tag of a command without rows.
    pub fn tag(&mut self, tag: &str) {
        self.line(tag);
    }

    /// Begins a COPY.
    pub fn begin_copy(&mut self) {
        self.copy_due = true;
    }

    /// Writes a part of a COPY, with its line ends.
    pub fn copied(&mut self, data: &[u8]) {
        if std::mem::take(&mut self.copy_due) {
            self.line("");
        }
        match str::from_utf8(data) {
            // No text of PostgreSQL can contain NUL.
            Ok(text) => self.push(&text.replace('\0', "\u{fffd}")),
            Err(_) => self.keep(data, false),
        }
    }

    /// Marks the output as truncated.
    pub fn too_long(&mut self) {
        self.cut_here();
    }

    /// Whether the output was truncated.
    pub fn is_cut(&self) -> bool {
        self.cut
    }

    /// The text; `None` where nothing was written. `charset` is the encoding of pieces that are not UTF-8.
    pub fn into_text(self, charset: Option<Charset>) -> Option<String> {
        let text = self.text?;
        if self.undecoded.is_empty() {
            return Some(text);
        }
        let mut whole = String::with_capacity(text.len() + self.undecoded_bytes);
        let mut from = 0;
        for UndecodedPiece { at, bytes, quoted } in self.undecoded {
            whole.push_str(&text[from..at]);
            let piece = Charset::decode(charset, &bytes).replace('\0', "\u{fffd}");
            whole.push_str(&if quoted { self.format.quoted(&piece) } else { piece });
            from = at;
        }
        whole.push_str(&text[from..]);
        Some(whole)
    }

    fn line(&mut self, line: &str) {
        // Empty lines at the beginning are left out, as pg_task does.
        let before = self.text.as_ref().is_some_and(|text| match self.undecoded.last() {
            Some(piece) if piece.at == text.len() => !piece.bytes.ends_with(b"\n"),
            _ => !text.is_empty() && !text.ends_with('\n'),
        });
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
        let remaining = self.bytes_max.saturating_sub(text.len() + self.undecoded_bytes);
        if piece.len() <= remaining {
            text.push_str(piece);
            return;
        }
        text.push_str(&piece[..piece.floor_char_boundary(remaining)]);
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
        let column = |(name, type_oid): &(&str, u32)| Column {
            name: name.as_bytes().to_vec(),
            type_oid: *type_oid,
        };
        output.begin(columns.iter().map(column).collect());
    }

    fn row(output: &mut Output, values: &[Option<&str>]) {
        output.row(values.iter().map(|value| value.map(str::as_bytes)));
    }

    fn of(format: Format, columns: &[(&str, u32)], values: &[Option<&str>]) -> String {
        let mut output = Output::new(format, 1 << 20);
        begin(&mut output, columns);
        row(&mut output, values);
        output.into_text(None).expect("there was a row")
    }

    #[test]
    fn two_columns_have_a_header_and_one_has_none() {
        let mut output = Output::new(format(), 1000);
        begin(&mut output, &[("a", 23)]);
        row(&mut output, &[Some("1")]);
        begin(&mut output, &[("a", 23), ("b", 23)]);
        row(&mut output, &[Some("1"), Some("2")]);
        row(&mut output, &[Some("3"), None]);
        output.tag("INSERT 0 2");
        // Without rows there is no header either.
        begin(&mut output, &[("c", 23), ("d", 23)]);
        assert_eq!(output.into_text(None).as_deref(), Some("1\na\tb\n1\t2\n3\t\\N\nINSERT 0 2"));
    }

    #[test]
    fn strings_and_headers_are_quoted() {
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
    fn the_escape_character_is_escaped_only_with_escapes_itself() {
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
    fn no_output_differs_from_an_empty_text() {
        assert_eq!(Output::new(format(), 10).into_text(None), None);
        let mut output = Output::new(format(), 10);
        begin(&mut output, &[("a", 25)]);
        row(&mut output, &[Some("")]);
        row(&mut output, &[Some("")]);
        assert_eq!(output.into_text(None).as_deref(), Some(""));
    }

    #[test]
    fn a_long_output_is_cut_and_marked() {
        let mut output = Output::new(format(), 7);
        begin(&mut output, &[("a", 25)]);
        for _ in 0..1000 {
            row(&mut output, &[Some("äää")]);
        }
        assert!(output.is_cut());
        let expected = "äää\n[output cut after 7 bytes]";
        assert_eq!(output.into_text(None).as_deref(), Some(expected));
    }

    #[test]
    fn a_long_text_for_null_is_not_repeated_beyond_the_limit() {
        // A row of 1,600 NULLs with ten megabytes for each was built first and cut then: 16 GB.
        let mut output = Output::new(Format { null: "x".repeat(10 << 20), ..format() }, 1000);
        begin(&mut output, &[("a", 25)]);
        let read = std::cell::Cell::new(0);
        output.row((0..1600).map(|index| {
            read.set(index);
            None
        }));
        assert!(output.is_cut() && read.get() == 0, "{}", read.get());
        assert!(output.into_text(None).is_some_and(|text| text.len() < 10_000));
    }

    #[test]
    fn invalid_bytes_become_replacement_characters() {
        let mut output = Output::new(format(), 100);
        begin(&mut output, &[("a", 25)]);
        output.row([Some(&b"\xff\xfe"[..])].into_iter());
        assert_eq!(output.into_text(None).as_deref(), Some("\u{fffd}\u{fffd}"));
    }

    #[test]
    fn another_encoding_is_decoded() {
        // The output of a task that chose LATIN1 had question marks.
        let quote = Some('\'');
        let mut output = Output::new(Format { quote, escape: quote, ..format() }, 1000);
        let name = b"Gr\xf6\xdfe".to_vec();
        let column = |name: Vec<u8>| Column { name, type_oid: 25 };
        output.begin(vec![column(name.clone()), column(b"b".to_vec())]);
        output.row([Some(&b"it's \xfc"[..]), Some(b"x")].into_iter());
        output.tag("SET");
        let expected = "'Größe'\t'b'\n'it''s ü'\t'x'\nSET";
        assert_eq!(output.into_text(Some(Charset::Latin1)).as_deref(), Some(expected));
    }

    #[test]
    fn the_memory_of_many_short_values_in_another_encoding_is_limited() {
        // Only the byte of each was counted, and not the forty of its struct: 30 million of them counted as 64 MiB of
        // output and took 2 GB.
        let bytes_max = 64 << 10;
        let mut output = Output::new(format(), bytes_max);
        begin(&mut output, &[("a", 25)]);
        for _ in 0..bytes_max {
            output.row([Some(&b"\xe9"[..])].into_iter());
        }
        assert!(output.is_cut());
        assert!(
            output.undecoded.len() * size_of::<UndecodedPiece>()
                <= bytes_max + size_of::<UndecodedPiece>()
        );
        let text = output.into_text(Some(Charset::Latin1)).expect("there were rows");
        assert!(text.starts_with("é\né\n"), "{}", &text[..20]);
    }

    #[test]
    fn a_copy_starts_a_new_line() {
        let mut output = Output::new(format(), 100);
        begin(&mut output, &[("a", 23)]);
        row(&mut output, &[Some("2")]);
        output.begin_copy();
        output.copied(b"1\n");
        output.begin_copy();
        output.copied(b"2\n");
        // A COPY without rows writes nothing.
        output.begin_copy();
        assert_eq!(output.into_text(None).as_deref(), Some("2\n1\n2\n"));
    }
}
