//! Reads arbitrary bytes as the pages of the tasks of a data folder; the first byte is the number of the first page.
//!
//! Run with `cargo xtask fuzz`, or this one alone with `cargo +nightly fuzz run task_pages -- -max_len=20000`.

#![no_main]

use std::fs::File;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use taskyard_store_sqlite::platform::PlatformFile;
use taskyard_store_sqlite::testing::read_task_pages;

const PAGE: usize = 4096;

static FILE: LazyLock<File> = LazyLock::new(|| tempfile::tempfile().expect("a file"));

fuzz_target!(|bytes: &[u8]| {
    let Some((root, pages)) = bytes.split_first() else { return };
    let count = pages.len().div_ceil(PAGE);
    FILE.set_length(0).expect("an empty file");
    PlatformFile::write_all_at(&*FILE, pages, 0).expect("written pages");
    FILE.set_length((count * PAGE) as u64).expect("whole pages");
    if let Some(rows) = read_task_pages(&*FILE, u32::from(*root), count as u32) {
        // A damaged tree may refer to a page repeatedly, until 64 pages more than there are were read.
        assert!(rows <= (count + 64) * PAGE / 2, "{rows} rows in {count} pages");
    }
});
