//! What stands in the journal of a store that was not closed.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use super::super::rows::Batch;
use super::{FILE_BYTES, HEADER_BYTES, NAME, paths, record};

/// Batches by their numbers.
#[derive(Debug, Default)]
pub(in super::super) struct Found(BTreeMap<u64, Batch>);

/// Reads every batch that is as it was written. One that is damaged does not hide those behind it.
pub(in super::super) fn read(folder: &Path) -> io::Result<Found> {
    let mut contents = Vec::new();
    for path in paths(folder) {
        let mut bytes = Vec::new();
        match File::open(path) {
            Ok(file) => _ = file.take(FILE_BYTES).read_to_end(&mut bytes)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        contents.push(bytes);
    }
    // Both have the same salt, so the one may be damaged; unless one is left of an earlier time.
    let mut found = Found::default();
    let mut salts: Vec<u64> = contents.iter().filter_map(|bytes| salt(bytes)).collect();
    salts.dedup();
    for bytes in &contents {
        salts.iter().for_each(|salt| found.scan(bytes, *salt));
    }
    Ok(found)
}

fn salt(bytes: &[u8]) -> Option<u64> {
    let header = bytes.get(..HEADER_BYTES)?;
    let whole =
        header[..8] == *NAME && header[16..20] == crc32fast::hash(&header[..16]).to_le_bytes();
    whole.then(|| u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|place| header[8 + place])))
}

impl Found {
    fn scan(&mut self, bytes: &[u8], salt: u64) {
        let (mut rest, salted) = (bytes.get(HEADER_BYTES..).unwrap_or(&[]), salt.to_le_bytes());
        while let Some(start) = rest.chunks_exact(record::ALIGN).position(|chunk| chunk == salted) {
            rest = &rest[start * record::ALIGN..];
            let length = match record::decode(rest, salt) {
                Some((batch, length)) => {
                    self.0.insert(batch.head.batch, batch);
                    length
                }
                None => record::ALIGN,
            };
            rest = rest.get(length..).unwrap_or(&[]);
        }
    }

    /// The batches behind this one, in order; as far as none is missing.
    pub fn after(mut self, batch: u64) -> Vec<Batch> {
        let mut next = batch;
        std::iter::from_fn(|| {
            next = next.checked_add(1)?;
            self.0.remove(&next)
        })
        .collect()
    }

    /// All batches behind this one, in order.
    pub fn all_after(self, batch: u64) -> impl Iterator<Item = Batch> {
        self.0.into_iter().filter(move |(number, _)| *number > batch).map(|(_, batch)| batch)
    }
}
