//! A connection that sends prepared requests over HTTP/1.1 and reads no more of an answer than its length.
//!
//! Client and server share the cores, so what a client spends on a request is missing in the rate of the server.

use anyhow::{Context, Result, bail, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// What ends the head of an answer.
const END_OF_HEAD: &[u8] = b"\r\n\r\n";
/// How an answer with the status 200 begins.
const OK: &[u8] = b"HTTP/1.1 200 ";
/// The header with the length of the body, as the server writes it.
const LENGTH: &[u8] = b"content-length: ";
/// Answers are smaller than this.
const ANSWER_BYTES_MAX: usize = 16 << 10;

/// A connection that stays open.
pub struct RawClient {
    stream: TcpStream,
    answer: Box<[u8]>,
}

impl RawClient {
    /// Opens a connection.
    pub async fn connect(address: &str) -> Result<RawClient> {
        let stream = TcpStream::connect(address).await.context("cannot connect")?;
        stream.set_nodelay(true)?;
        Ok(RawClient { stream, answer: vec![0; ANSWER_BYTES_MAX].into() })
    }

    /// Sends a request and returns the body of its answer, whose status must be 200.
    pub async fn send(&mut self, request: &[u8]) -> Result<&[u8]> {
        self.stream.write_all(request).await?;
        let mut filled = 0;
        loop {
            let read = self.stream.read(&mut self.answer[filled..]).await?;
            ensure!(read > 0, "the answer ended early or is too long");
            filled += read;
            if let Some((begin, end)) = body_of(&self.answer[..filled])? {
                ensure!(end >= filled, "more than one answer");
                if end == filled {
                    return Ok(&self.answer[begin..end]);
                }
            }
        }
    }
}

/// A request with a JSON body to this path.
pub fn request(host: &str, path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    let head = "content-type: application/json\r\naccept: */*\r\nuser-agent: taskyard-bench";
    format!(
        "POST {path} HTTP/1.1\r\nhost: {host}\r\n{head}\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .into()
}

/// Where the body of an answer begins and ends, once its head is complete.
fn body_of(answer: &[u8]) -> Result<Option<(usize, usize)>> {
    let Some(end) = find(answer, END_OF_HEAD) else { return Ok(None) };
    let head = &answer[..end];
    if !head.starts_with(OK) {
        bail!("refused: {}", String::from_utf8_lossy(answer));
    }
    let at = find(head, LENGTH).context("an answer without a length")? + LENGTH.len();
    let begin = end + END_OF_HEAD.len();
    Ok(Some((begin, begin + number(&head[at..])? as usize)))
}

/// The number at the beginning of a text.
fn number(text: &[u8]) -> Result<u64> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit());
    let add = |sum: u64, digit: &u8| sum.checked_mul(10)?.checked_add(u64::from(digit - b'0'));
    digits.copied().try_fold(0, |sum, digit| add(sum, &digit)).context("not a number")
}

/// The number of the first field with this name in a JSON text; the name is given with quotes and colon.
pub fn field(json: &[u8], name: &[u8]) -> Result<u64> {
    let at = find(json, name).context("the answer has no such field")? + name.len();
    ensure!(json.get(at).is_some_and(u8::is_ascii_digit), "the field is not a number");
    number(&json[at..])
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_complete_when_its_body_is() {
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\ndate: now\r\n\r\n{\"id\":7}";
        assert_eq!(body_of(answer).unwrap(), Some((49, 57)));
        assert_eq!(body_of(&answer[..40]).unwrap(), None);
        assert!(body_of(b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n").is_err());
        assert_eq!(field(&answer[49..], b"\"id\":").unwrap(), 7);
        assert!(field(b"{\"id\":null}", b"\"id\":").is_err());
        assert!(number(b"99999999999999999999").is_err());
    }
}
