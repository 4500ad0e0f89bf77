//! Decodes arbitrary bytes as the fields of a task: no panic, and decoded fields survive encoding.
//!
//! Run with `cargo xtask fuzz`, or this one alone with `cargo +nightly fuzz run fields`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use taskyard_iproto::fields::{FieldError, FieldReader, FieldWriter};

type Fields = (i64, String, bool, Vec<u8>, Vec<i64>);

fn read(bytes: &[u8]) -> Result<Fields, FieldError> {
    let mut reader = FieldReader::new(bytes)?;
    let fields = (
        reader.int("a")?,
        reader.string("b")?,
        reader.bool("c")?,
        reader.bytes("d")?,
        reader.ints("e")?,
    );
    reader.finish()?;
    Ok(fields)
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(fields) = read(bytes) else { return };
    let mut writer = FieldWriter::new(5);
    writer.int(fields.0);
    writer.string(&fields.1);
    writer.bool(fields.2);
    writer.bytes(&fields.3);
    writer.ints(&fields.4);
    assert_eq!(read(&writer.finish()), Ok(fields));
});
