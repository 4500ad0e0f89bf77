//! Reads arbitrary bytes as a backup: in pieces, and with each number of columns.
//!
//! Run with `cargo xtask fuzz`, or this one alone with `cargo +nightly fuzz run backup`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use taskyard_store_sqlite::backup::{BackupBlock, BackupError, BackupParser};

fuzz_target!(|bytes: &[u8]| {
    let mut parser = BackupParser::default();
    for piece in bytes.chunks(7) {
        parser.push(piece);
        loop {
            match parser.next_block() {
                Ok(Some(BackupBlock::Rows(rows))) => {
                    for columns in 1..4 {
                        _ = rows.for_each(columns, |_| Ok::<(), BackupError>(()));
                    }
                }
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
    _ = parser.finish();
});
