//! Passwords with `chap-sha1`, which never sends the password itself.

use sha1::{Digest, Sha1};
use subtle::ConstantTimeEq;

/// How many bytes of the salt are used.
const SALT_BYTES: usize = 20;

/// What a server stores instead of the password.
pub fn hash_password(password: &str) -> [u8; 20] {
    sha1(&[&sha1(&[password.as_bytes()])])
}

/// What a client sends to prove that it knows the password.
pub fn scramble(password: &str, salt: &[u8]) -> [u8; 20] {
    let once = sha1(&[password.as_bytes()]);
    let twice = sha1(&[&once]);
    xor(once, mask(salt, &twice))
}

/// Whether the scramble was made from the password behind `stored`. Takes the same time for every
/// scramble.
pub fn check(scramble: &[u8; 20], salt: &[u8], stored: &[u8; 20]) -> bool {
    let once = xor(*scramble, mask(salt, stored));
    sha1(&[&once]).ct_eq(stored).into()
}

/// The mask of the password hash in a scramble.
fn mask(salt: &[u8], twice: &[u8; 20]) -> [u8; 20] {
    sha1(&[&salt[..salt.len().min(SALT_BYTES)], twice])
}

fn sha1(parts: &[&[u8]]) -> [u8; 20] {
    let mut hash = Sha1::new();
    for part in parts {
        hash.update(part);
    }
    hash.finalize().into()
}

fn xor(mut bytes: [u8; 20], mask: [u8; 20]) -> [u8; 20] {
    for (byte, mask) in bytes.iter_mut().zip(mask) {
        *byte ^= mask;
    }
    bytes
}
