//! The Redis protocol RESP2: writes commands and reads answers.

use std::io::{Error, ErrorKind, Result};

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};

/// One answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Nil.
    Nil,
    /// A number.
    Int(i64),
    /// Bulk or simple text.
    Text(Vec<u8>),
    /// An error.
    Error(String),
    /// A list.
    List(Vec<Value>),
}

/// Longest line of an answer, and most bytes or items of one.
const LINE_MAX: u64 = 64 << 10;
const SIZE_MAX: i64 = 512 << 20;
/// Deepest nesting of an answer: slots of a cluster have three levels.
const DEPTH_MAX: usize = 8;

/// Appends a command.
pub fn pack<T: AsRef<[u8]>>(bytes: &mut Vec<u8>, words: &[T]) {
    pack_size(bytes, b'*', words.len());
    for word in words {
        let word = word.as_ref();
        pack_size(bytes, b'$', word.len());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
}

fn pack_size(bytes: &mut Vec<u8>, kind: u8, mut size: usize) {
    // As many digits as the largest number has.
    let mut digits = [0; 20];
    let mut first = digits.len();
    loop {
        first -= 1;
        digits[first] = b'0' + (size % 10) as u8;
        size /= 10;
        if size == 0 {
            break;
        }
    }
    bytes.push(kind);
    bytes.extend_from_slice(&digits[first..]);
    bytes.extend_from_slice(b"\r\n");
}

/// Reads one answer.
pub async fn read<R: AsyncBufRead + Unpin + Send>(from: &mut R) -> Result<Value> {
    let mut line = Vec::new();
    match read_flat(from, &mut line).await? {
        Flat::Value(value) => Ok(value),
        Flat::List(count) => read_list(from, DEPTH_MAX, count, &mut line).await,
    }
}

/// Reads a list that is nested at most this deep. `line` is a buffer that all levels share.
async fn read_list<R: AsyncBufRead + Unpin + Send>(
    from: &mut R,
    depth: usize,
    count: usize,
    line: &mut Vec<u8>,
) -> Result<Value> {
    let Some(depth) = depth.checked_sub(1) else {
        return Err(invalid("an answer that is nested too deeply"));
    };
    let mut list = Vec::with_capacity(count.min(1 << 16));
    for _ in 0..count {
        // Nearly all lists contain only texts.
        list.push(match read_flat(from, line).await? {
            Flat::Value(value) => value,
            Flat::List(count) => Box::pin(read_list(from, depth, count, line)).await?,
        });
    }
    Ok(Value::List(list))
}

/// A value, or the header of a list.
enum Flat {
    Value(Value),
    List(usize),
}

async fn read_flat<R: AsyncBufRead + Unpin>(from: &mut R, line: &mut Vec<u8>) -> Result<Flat> {
    let line = read_line(from, line).await?;
    let (kind, rest) = line.split_at(1);
    Ok(Flat::Value(match kind {
        "+" => Value::Text(rest.as_bytes().to_vec()),
        "-" => Value::Error(rest.to_owned()),
        ":" => rest.parse().map(Value::Int).map_err(|_| invalid(line))?,
        "$" => read_text(from, size(rest, line)?).await?,
        "*" => match size(rest, line)? {
            Some(count) => return Ok(Flat::List(count)),
            None => Value::Nil,
        },
        _ => return Err(invalid(line)),
    }))
}

async fn read_text<R: AsyncBufRead + Unpin>(from: &mut R, size: Option<usize>) -> Result<Value> {
    let Some(size) = size else { return Ok(Value::Nil) };
    let mut bytes = vec![0; size + 2];
    from.read_exact(&mut bytes).await?;
    if !bytes.ends_with(b"\r\n") {
        return Err(invalid("a text of another length than announced"));
    }
    bytes.truncate(size);
    Ok(Value::Text(bytes))
}

async fn read_line<'a, R: AsyncBufRead + Unpin>(
    from: &mut R,
    line: &'a mut Vec<u8>,
) -> Result<&'a str> {
    line.clear();
    (&mut *from).take(LINE_MAX).read_until(b'\n', line).await?;
    if !line.ends_with(b"\n") && (line.len() as u64) < LINE_MAX {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    let text = std::str::from_utf8(line).map_err(|_| invalid("bytes"))?;
    let line = text.strip_suffix("\r\n").ok_or_else(|| invalid(text))?;
    let starts = line.chars().next().is_some_and(|first| first.is_ascii());
    if starts { Ok(line) } else { Err(invalid(line)) }
}

/// The size of a text or list; -1 is nil.
fn size(text: &str, line: &str) -> Result<Option<usize>> {
    match text.parse::<i64>() {
        Ok(-1) => Ok(None),
        Ok(size @ 0..=SIZE_MAX) => Ok(Some(size as usize)),
        _ => Err(invalid(line)),
    }
}

fn invalid(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, format!("not an answer of Redis: {what:?}"))
}

impl Value {
    /// The parts of a list.
    pub fn list(self) -> Option<Vec<Value>> {
        match self {
            Value::List(list) => Some(list),
            _ => None,
        }
    }

    /// The bytes of a text.
    pub fn text(self) -> Option<Vec<u8>> {
        match self {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// A number, also one that is written as text.
    pub fn int(&self) -> Option<i64> {
        match self {
            Value::Int(number) => Some(*number),
            Value::Text(text) => std::str::from_utf8(text).ok()?.parse().ok(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn parsed(mut bytes: &[u8]) -> Result<Value> {
        read(&mut bytes).await
    }

    #[tokio::test]
    async fn answers_are_read() {
        let text = |text: &str| Value::Text(text.into());
        assert_eq!(parsed(b"+OK\r\n").await.unwrap(), text("OK"));
        assert_eq!(parsed(b":-7\r\n").await.unwrap(), Value::Int(-7));
        assert_eq!(parsed(b"-ERR no\r\n").await.unwrap(), Value::Error("ERR no".into()));
        assert_eq!(parsed(b"$-1\r\n").await.unwrap(), Value::Nil);
        let list = Value::List(vec![text("a\r\n"), Value::List(vec![]), Value::Nil]);
        assert_eq!(parsed(b"*3\r\n$3\r\na\r\n\r\n*0\r\n*-1\r\n").await.unwrap(), list);
    }

    #[tokio::test]
    async fn what_is_no_answer_is_refused() {
        let deep = b"*1\r\n".repeat(20);
        for bytes in [
            &b""[..],
            b"+OK",
            b"+OK\n",
            b"HTTP/1.1 200 OK\r\n",
            b"$4\r\nabc\r\n",
            b"$3\r\nabcd\r\n",
            b"$-2\r\n",
            b"$99999999999\r\n",
            b":x\r\n",
            b"\r\n",
            b"\xff\r\n",
            &deep,
        ] {
            assert!(parsed(bytes).await.is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn commands_are_lists_of_texts() {
        let mut bytes = Vec::new();
        pack(&mut bytes, &["GET", "a b"]);
        assert_eq!(bytes, b"*2\r\n$3\r\nGET\r\n$3\r\na b\r\n");
        bytes.clear();
        pack(&mut bytes, &["a".repeat(10), String::new(), "b".repeat(12_345)]);
        assert!(bytes.starts_with(b"*3\r\n$10\r\naaaaaaaaaa\r\n$0\r\n\r\n$12345\r\nb"));
    }
}
