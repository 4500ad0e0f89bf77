//! Decodes the output of a task that chose another encoding than UTF-8.
//!
//! A task may `SET client_encoding`. Since version 14 the server reports that only when all statements of the task are
//! done, after their results. So bytes that are not UTF-8 are kept until then.

use encoding_rs::Encoding;

/// An encoding that a session may choose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Charset {
    /// The first 256 characters, a byte each.
    Latin1,
    /// Another one.
    Other(&'static Encoding),
}

impl Charset {
    /// The encoding with this PostgreSQL name; `None` for UTF-8 and for encodings that cannot be decoded here.
    pub fn named(name: &str) -> Option<Self> {
        let name: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
        let name = name.to_ascii_uppercase();
        let label = match name.as_str() {
            "LATIN1" | "ISO88591" => return Some(Charset::Latin1),
            "LATIN2" => "iso-8859-2",
            "LATIN3" => "iso-8859-3",
            "LATIN4" => "iso-8859-4",
            "LATIN5" => "iso-8859-9",
            "LATIN6" => "iso-8859-10",
            "LATIN7" => "iso-8859-13",
            "LATIN8" => "iso-8859-14",
            "LATIN9" => "iso-8859-15",
            "LATIN10" => "iso-8859-16",
            "ISO88595" => "iso-8859-5",
            "ISO88596" => "iso-8859-6",
            "ISO88597" => "iso-8859-7",
            "ISO88598" => "iso-8859-8",
            "KOI8" | "KOI8R" => "koi8-r",
            "KOI8U" => "koi8-u",
            "ALT" | "WIN866" | "WINDOWS866" => "ibm866",
            "SJIS" | "SHIFTJIS" | "MSKANJI" | "WIN932" | "WINDOWS932" => "shift_jis",
            "EUCJP" => "euc-jp",
            "EUCKR" | "UHC" | "WIN949" | "WINDOWS949" => "euc-kr",
            "BIG5" | "WIN950" | "WINDOWS950" => "big5",
            "EUCCN" | "GBK" | "WIN936" | "WINDOWS936" => "gbk",
            "GB18030" => "gb18030",
            _ => {
                let number = name.strip_prefix("WINDOWS").or(name.strip_prefix("WIN"))?;
                let label = format!("windows-{number}");
                return Encoding::for_label(label.as_bytes()).map(Charset::Other);
            }
        };
        Encoding::for_label(label.as_bytes()).map(Charset::Other)
    }

    /// The encoding that the text of a task seems to choose, where the server reports none: an error undoes the choice.
    pub fn chosen_in(input: &str) -> Option<Self> {
        let lower = input.to_ascii_lowercase();
        let mut places = ["client_encoding", "names"].into_iter().flat_map(|word| {
            lower.match_indices(word).map(move |(at, _)| at + word.len()).collect::<Vec<_>>()
        });
        places.find_map(|at| {
            let is_part = |char: char| char.is_ascii_alphanumeric() || char == '_' || char == '-';
            let mut words =
                lower[at..].split(|char| !is_part(char)).filter(|word| !word.is_empty());
            let word = words.next()?;
            let name = if word == "to" { words.next()? } else { word };
            Charset::named(name)
        })
    }

    /// Decodes bytes.
    pub fn decode(charset: Option<Self>, bytes: &[u8]) -> String {
        if let Ok(text) = str::from_utf8(bytes) {
            return text.to_owned();
        }
        match charset {
            None => String::from_utf8_lossy(bytes).into_owned(),
            Some(Charset::Latin1) => bytes.iter().map(|byte| char::from(*byte)).collect(),
            Some(Charset::Other(encoding)) => {
                encoding.decode_without_bom_handling(bytes).0.into_owned()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings_are_found_by_their_postgresql_names() {
        for (name, bytes, text) in [
            ("LATIN1", &b"Gr\xf6\xdfe"[..], "Größe"),
            ("iso_8859_5", b"\xbf", "П"),
            ("WIN1251", b"\xcf", "П"),
            ("windows-1252", b"\x80", "€"),
            ("KOI8-R", b"\xf0", "П"),
            ("SJIS", b"\x83\x51", "ゲ"),
            ("LATIN9", b"\xa4", "€"),
        ] {
            let charset = Charset::named(name);
            assert!(charset.is_some(), "{name}");
            assert_eq!(Charset::decode(charset, bytes), text, "{name}");
        }
        for name in ["UTF8", "SQL_ASCII", "MULE_INTERNAL", "", "WIN"] {
            assert_eq!(Charset::named(name), None, "{name}");
        }
        assert_eq!(Charset::decode(None, b"\xff"), "\u{fffd}");
    }

    #[test]
    fn the_encoding_is_found_in_the_text_of_a_task() {
        for input in [
            "SET client_encoding = 'LATIN1'",
            "set Client_Encoding to latin1; select 1",
            "select set_config('client_encoding', 'LATIN1', false)",
            "SET NAMES 'LATIN1'",
            "SET client_encoding = 'UTF8'; SET NAMES 'LATIN1'",
        ] {
            assert_eq!(Charset::chosen_in(input), Some(Charset::Latin1), "{input}");
        }
        for input in ["select 1", "show client_encoding", "select names from é"] {
            assert_eq!(Charset::chosen_in(input), None, "{input}");
        }
    }
}
