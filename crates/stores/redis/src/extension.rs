//! Encodes and reads the extensions of records (`lua/keys.lua`): what few tasks have.

use taskyard_core::{HeldKey, Key, NewTask};

use super::codec::{ByteReader, Unreadable, span_bytes};

/// The extension of a record.
#[derive(Debug, Default)]
pub(super) struct Extension {
    pub attempts_max: Option<u32>,
    pub key: Option<HeldKey>,
}

impl Extension {
    /// Reads an extension. Its first byte says what it has.
    pub fn read(bytes: &mut ByteReader<'_>) -> Result<Self, Unreadable> {
        let sign = bytes.byte()?;
        let attempts_max = if matches!(sign, b'#' | b'&') { Some(bytes.small()?) } else { None };
        if sign == b'#' {
            return Ok(Extension { attempts_max, key: None });
        }
        let (unique_for, size) = (bytes.span()?, usize::from(bytes.byte()?));
        let key = std::str::from_utf8(bytes.bytes(size)?).ok().and_then(|key| Key::new(key).ok());
        let key = HeldKey { key: key.ok_or(Unreadable("a key is damaged"))?, unique_for };
        Ok(Extension { attempts_max, key: Some(key) })
    }
}

/// Whether a record with these attempts has an extension.
pub(super) fn is_extended(attempts: f64) -> bool {
    attempts.fract() % 0.5 != 0.0
}

/// Whether a task of a put has an extension: then the answer has the id of each task.
pub(super) fn needs_keyring(tasks: &[NewTask]) -> bool {
    tasks.iter().any(|task| task.key.is_some() || task.attempts_max.is_some())
}

/// The extension of a task, if it has a key or its own number of attempts.
pub(super) fn encode_extension(
    attempts_max: Option<u32>,
    held: Option<&HeldKey>,
) -> Option<Vec<u8>> {
    let sign = match (attempts_max, held) {
        (None, None) => return None,
        (Some(_), None) => b'#',
        (None, Some(_)) => b'@',
        (Some(_), Some(_)) => b'&',
    };
    let mut bytes = vec![sign];
    bytes.extend(attempts_max.map(u32::to_le_bytes).into_iter().flatten());
    if let Some(HeldKey { key, unique_for }) = held {
        bytes.extend(span_bytes(*unique_for));
        // A key has at most `KEY_BYTES_MAX`, so the number of bytes fits.
        bytes.push(key.as_str().len() as u8);
        bytes.extend(key.as_str().as_bytes());
    }
    Some(bytes)
}
