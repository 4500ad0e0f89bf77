//! Writes MessagePack values to the end of a buffer, in the shortest form.

/// The buffer for answers and requests.
pub(super) type Out = Vec<u8>;

pub(super) fn nil(out: &mut Out) {
    out.push(0xc0);
}

pub(super) fn bool(out: &mut Out, value: bool) {
    out.push(if value { 0xc3 } else { 0xc2 });
}

pub(super) fn uint(out: &mut Out, value: u64) {
    if value < 0x80 {
        out.push(value as u8);
    } else if let Ok(value) = u8::try_from(value) {
        out.extend_from_slice(&[0xcc, value]);
    } else if let Ok(value) = u16::try_from(value) {
        marked(out, 0xcd, value.to_be_bytes());
    } else if let Ok(value) = u32::try_from(value) {
        marked(out, 0xce, value.to_be_bytes());
    } else {
        marked(out, 0xcf, value.to_be_bytes());
    }
}

pub(super) fn int(out: &mut Out, value: i64) {
    if let Ok(value) = u64::try_from(value) {
        uint(out, value);
    } else if value >= -32 {
        out.push(value as u8);
    } else if let Ok(value) = i8::try_from(value) {
        marked(out, 0xd0, value.to_be_bytes());
    } else if let Ok(value) = i16::try_from(value) {
        marked(out, 0xd1, value.to_be_bytes());
    } else if let Ok(value) = i32::try_from(value) {
        marked(out, 0xd2, value.to_be_bytes());
    } else {
        marked(out, 0xd3, value.to_be_bytes());
    }
}

pub(super) fn float(out: &mut Out, value: f64) {
    marked(out, 0xcb, value.to_be_bytes());
}

pub(super) fn str(out: &mut Out, text: &str) {
    str_bytes(out, text.as_bytes());
}

/// Text that need not be UTF-8: Lua's strings are bytes.
pub(super) fn str_bytes(out: &mut Out, text: &[u8]) {
    match text.len() {
        length @ ..32 => out.push(0xa0 | length as u8),
        length @ ..0x100 => out.extend_from_slice(&[0xd9, length as u8]),
        length @ ..0x1_0000 => marked(out, 0xda, (length as u16).to_be_bytes()),
        length => marked(out, 0xdb, (length as u32).to_be_bytes()),
    }
    out.extend_from_slice(text);
}

pub(super) fn bin(out: &mut Out, bytes: &[u8]) {
    match bytes.len() {
        length @ ..0x100 => out.extend_from_slice(&[0xc4, length as u8]),
        length @ ..0x1_0000 => marked(out, 0xc5, (length as u16).to_be_bytes()),
        length => marked(out, 0xc6, (length as u32).to_be_bytes()),
    }
    out.extend_from_slice(bytes);
}

pub(super) fn array(out: &mut Out, count: usize) {
    match count {
        ..16 => out.push(0x90 | count as u8),
        16..0x1_0000 => marked(out, 0xdc, (count as u16).to_be_bytes()),
        _ => array32(out, count),
    }
}

/// A list header of always five bytes, so that it can be filled in afterwards.
pub(super) fn array32(out: &mut Out, count: usize) {
    marked(out, 0xdd, (count as u32).to_be_bytes());
}

pub(super) fn map(out: &mut Out, pairs: usize) {
    match pairs {
        ..16 => out.push(0x80 | pairs as u8),
        16..0x1_0000 => marked(out, 0xde, (pairs as u16).to_be_bytes()),
        _ => marked(out, 0xdf, (pairs as u32).to_be_bytes()),
    }
}

fn marked<const N: usize>(out: &mut Out, marker: u8, bytes: [u8; N]) {
    out.push(marker);
    out.extend_from_slice(&bytes);
}
