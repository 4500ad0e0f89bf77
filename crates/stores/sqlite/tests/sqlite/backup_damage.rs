//! Tests that a backup that is damaged, cut, of another kind or of a newer version is refused, and that nothing is left of its restore.

use taskyard_store_sqlite::backup::{BackupError, RestoreError, check, restore};

use crate::backup::{begin, fill, read};
use crate::fixture::{close, fast_folder, open, random};

fn sample() -> Vec<u8> {
    let folder = fast_folder();
    let store = open(folder.path());
    fill(&store);
    let bytes = read(begin(&store));
    close(store);
    bytes
}

fn error_of(bytes: &[u8]) -> BackupError {
    match check(bytes, &mut |_, _| ()) {
        Err(RestoreError::Backup(error)) => error,
        other => panic!("{other:?}"),
    }
}

/// The places to damage: all of the beginning and the end, and some between.
fn places(bytes: &[u8]) -> impl Iterator<Item = usize> {
    let (length, edge, step) = (bytes.len(), 2_000, bytes.len() / 400);
    (0..length).filter(move |at| *at < edge || length - at < edge || at % step == 0)
}

#[test]
fn every_flipped_bit_is_found() {
    let (intact, mut random) = (sample(), random());
    let mut bytes = intact.clone();
    for at in places(&intact) {
        bytes[at] ^= 1 << random.u8(..8);
        let error = error_of(&bytes);
        let expected = match at {
            0..8 => matches!(error, BackupError::NotABackup),
            8..12 => matches!(error, BackupError::TooNew { .. } | BackupError::Damaged { .. }),
            // A longer part than there is.
            _ => matches!(error, BackupError::Damaged { .. } | BackupError::Incomplete { .. }),
        };
        assert!(expected, "byte {at}: {error}");
        bytes[at] = intact[at];
    }
}

#[test]
fn every_cut_is_found() {
    let intact = sample();
    for length in places(&intact) {
        let error = error_of(&intact[..length]);
        assert_eq!(error, BackupError::Incomplete { at: length as u64 });
    }
    for added in [&b"\0"[..], &intact] {
        let error = error_of(&[&intact, added].concat());
        assert!(error.to_string().contains("something follows its end"), "{error}");
    }
}

/// The checksum of a part covers those before it, so parts cannot be taken out, come twice or change places.
#[test]
fn whole_parts_cannot_be_moved() {
    let intact = sample();
    let mut starts = vec![12];
    while let Some(at) = starts.last().copied().filter(|at| at + 5 <= intact.len()) {
        let length = intact[at + 1..at + 5].try_into().map(u32::from_le_bytes).expect("a length");
        starts.push(at + 5 + length as usize + 4);
    }
    assert_eq!(starts.last(), Some(&intact.len()));
    assert!(starts.len() > 20);
    for part in starts.windows(2).skip(1) {
        let (from, to) = (part[0], part[1]);
        if to < intact.len() {
            let without = [&intact[..from], &intact[to..]].concat();
            assert!(matches!(error_of(&without), BackupError::Damaged { .. }), "without {from}");
        }
        let twice = [&intact[..to], &intact[from..]].concat();
        assert!(matches!(error_of(&twice), BackupError::Damaged { .. }), "{from} twice");
    }
}

#[test]
fn other_files_and_newer_formats_are_named() {
    let mut newer = sample();
    newer[8] = 2;
    let error = error_of(&newer).to_string();
    assert_eq!(error, "it has format 2, this version reads up to 1; use a newer taskyard");
    for other in [&b"SQLite format 3\0"[..], b"{}", b"T\n"] {
        assert_eq!(error_of(other), BackupError::NotABackup);
    }
    assert_eq!(error_of(b""), BackupError::Incomplete { at: 0 });
}

/// A text of the file could change the colours or the title of the terminal.
#[test]
fn texts_of_the_file_are_escaped() {
    let shown = BackupError::Failed("\x1b[2J".into()).to_string();
    assert_eq!(shown, "the server ended the backup: \\u{1b}[2J");
}

#[test]
fn nothing_is_left_of_a_restore_that_fails() {
    let intact = sample();
    let folder = fast_folder();
    let mut damaged = intact.clone();
    *damaged.last_mut().expect("a byte") ^= 1;
    for bytes in [&damaged[..], &intact[..intact.len() - 1], &intact[..intact.len() / 2], b"x"] {
        let failed = restore(bytes, &folder.path().join("data"), 0, &mut |_, _| ());
        assert!(matches!(failed, Err(RestoreError::Backup(_))), "{failed:?}");
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0);
    }
}
