//! The greeting: the first 128 bytes that a server sends.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::IprotoError;

/// The version in our greeting: clients choose their behaviour by it.
pub const VERSION: &str = "2.11.5";

/// How many bytes a greeting has.
pub const GREETING_BYTES: usize = 128;

/// The position of the salt, in base64.
const SALT: std::ops::Range<usize> = 64..108;

/// The greeting of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// The version of the protocol, such as `2.11.5`.
    pub version: String,
    /// The identity of the server.
    pub instance: [u8; 16],
    /// The random salt for passwords; new for each connection.
    pub salt: [u8; 32],
}

impl Greeting {
    /// A greeting with our version. The instance may be any bytes: the version and variant bits of
    /// a UUID are set, because Tarantool's own client refuses other identities.
    pub fn new(instance: [u8; 16], salt: [u8; 32]) -> Self {
        Greeting { version: VERSION.into(), instance: marked(instance), salt }
    }

    /// The bytes to send. A version that is too long for its line is cut.
    pub fn encode(&self) -> [u8; GREETING_BYTES] {
        let mut bytes = [b' '; GREETING_BYTES];
        let line = format!("Tarantool {} (Binary) {}", self.version, uuid(&self.instance));
        let length = line.len().min(63);
        bytes[..length].copy_from_slice(&line.as_bytes()[..length]);
        bytes[63] = b'\n';
        let salt = STANDARD.encode(self.salt);
        bytes[SALT].copy_from_slice(salt.as_bytes());
        bytes[127] = b'\n';
        bytes
    }

    /// Parses a greeting.
    pub fn parse(bytes: &[u8; GREETING_BYTES]) -> Result<Greeting, IprotoError> {
        let line = std::str::from_utf8(&bytes[..63]);
        let line = line.map_err(|_| IprotoError::Greeting("not text"))?;
        let mut words = line.split_ascii_whitespace();
        if words.next() != Some("Tarantool") {
            return Err(IprotoError::Greeting("it does not begin with `Tarantool`"));
        }
        let version = words.next().ok_or(IprotoError::Greeting("no version"))?.to_string();
        if words.next() != Some("(Binary)") {
            return Err(IprotoError::Greeting("not the binary protocol"));
        }
        // The identity is only informative; other servers may write it in another form.
        let instance = words.next().and_then(parse_uuid).unwrap_or_default();
        let salt = STANDARD.decode(&bytes[SALT]).ok().and_then(|salt| salt.try_into().ok());
        let salt = salt.ok_or(IprotoError::Greeting("no salt of 32 bytes"))?;
        Ok(Greeting { version, instance, salt })
    }
}

/// The identity of a server as its greeting shows it.
pub(super) fn identity(instance: [u8; 16]) -> String {
    uuid(&marked(instance))
}

/// Sets the version and variant bits of a UUID.
const fn marked(mut instance: [u8; 16]) -> [u8; 16] {
    instance[6] = instance[6] & 0x0f | 0x40;
    instance[8] = instance[8] & 0x3f | 0x80;
    instance
}

fn uuid(bytes: &[u8; 16]) -> String {
    let hex = |part: &[u8]| part.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let parts = [&bytes[..4], &bytes[4..6], &bytes[6..8], &bytes[8..10], &bytes[10..]];
    parts.map(hex).join("-")
}

fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let digits: Option<Vec<u8>> = text
        .chars()
        .filter(|char| *char != '-')
        .map(|char| char.to_digit(16).map(|digit| digit as u8))
        .collect();
    let bytes: Vec<u8> = digits?.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect();
    bytes.try_into().ok()
}
