//! Reads the batches in the journal of a store that was not closed.

use std::collections::BTreeMap;
use std::io;

use super::super::platform::DataFolder;
use super::super::rows::Batch;
use super::{FILE_BYTES, HEADER_BYTES, MAGIC, paths, record};

/// The intact content of the journal.
#[derive(Debug, Default)]
pub(in super::super) struct JournalContent {
    /// Batches by number.
    batches: BTreeMap<u64, Batch>,
    /// Whether both headers are intact and have the same salt.
    paired: bool,
}

/// Reads every intact batch. A damaged one does not hide those behind it.
pub(in super::super) fn read(folder: &DataFolder) -> io::Result<JournalContent> {
    let mut contents = Vec::new();
    for path in paths(folder) {
        contents.push(folder.platform().read(&path, FILE_BYTES)?.unwrap_or_default());
    }
    // Both files have the same salt, so one header may be damaged; unless one file is left from an earlier
    // run.
    let mut salts: Vec<u64> = contents.iter().filter_map(|bytes| salt(bytes)).collect();
    let paired = salts.len() == 2 && salts[0] == salts[1];
    salts.dedup();
    let mut found = JournalContent { batches: BTreeMap::new(), paired };
    for bytes in &contents {
        salts.iter().for_each(|salt| found.scan(bytes, *salt));
    }
    Ok(found)
}

fn salt(bytes: &[u8]) -> Option<u64> {
    let header = bytes.get(..HEADER_BYTES)?;
    let whole =
        header[..8] == *MAGIC && header[16..20] == crc32fast::hash(&header[..16]).to_le_bytes();
    whole.then(|| u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|i| header[8 + i])))
}

/// How many bytes at the end are zero, in whole pages.
fn zeros_at_end(bytes: &[u8]) -> usize {
    const ZEROS: [u8; 4096] = [0; 4096];
    bytes.rchunks_exact(ZEROS.len()).take_while(|page| **page == ZEROS).count() * ZEROS.len()
}

impl JournalContent {
    fn scan(&mut self, bytes: &[u8], salt: u64) {
        let (mut rest, salted) = (bytes.get(HEADER_BYTES..).unwrap_or(&[]), salt.to_le_bytes());
        // No record begins in the zeros ahead of the writer, but one may end with zeros.
        let zeros = zeros_at_end(rest);
        while let Some(start) = rest[..rest.len().saturating_sub(zeros)]
            .chunks_exact(record::ALIGN)
            .position(|chunk| chunk == salted)
        {
            rest = &rest[start * record::ALIGN..];
            let length = match record::decode(rest, salt) {
                Some((batch, length)) => {
                    self.batches.insert(batch.head.batch, batch);
                    length
                }
                None => record::ALIGN,
            };
            rest = rest.get(length..).unwrap_or(&[]);
        }
    }

    /// The batches after this number, in order; an error if one is missing or damaged.
    pub fn after(self, batch: u64) -> Result<Vec<Batch>, &'static str> {
        let paired = self.paired;
        let batches: Vec<Batch> = self.all_after(batch).collect();
        // Both headers are durable before the first batch is written, and a number is reused only if its
        // batch failed.
        if !batches.is_empty() && !paired {
            return Err("a file of its journal is missing or damaged");
        }
        let mut numbers = (batch..).skip(1).zip(&batches);
        if numbers.any(|(number, batch)| batch.head.batch != number) {
            return Err("commits are missing from its journal");
        }
        Ok(batches)
    }

    /// All intact batches after this number, in order.
    pub fn all_after(self, batch: u64) -> impl Iterator<Item = Batch> {
        self.batches.into_iter().filter(move |(number, _)| *number > batch).map(|(_, batch)| batch)
    }
}
