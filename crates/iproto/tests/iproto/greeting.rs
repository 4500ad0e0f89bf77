//! The greeting and passwords.

use taskyard_iproto::auth::{check, hash_password, scramble};
use taskyard_iproto::{Greeting, IprotoError, VERSION};

fn greeting() -> Greeting {
    let mut salt = [0; 32];
    salt.iter_mut().zip(0..).for_each(|(byte, number)| *byte = number);
    Greeting::new([0xab; 16], salt)
}

/// Random bytes were printed unchanged, and one server in eight could not be reached with
/// Tarantool's own client: it checks that the identity is a UUID.
#[test]
fn the_greeting_has_the_documented_layout() {
    let bytes = greeting().encode();
    let line = "Tarantool 2.11.5 (Binary) abababab-abab-4bab-abab-abababababab";
    assert_eq!(&bytes[..line.len()], line.as_bytes());
    assert!(bytes[line.len()..63].iter().all(|byte| *byte == b' '));
    assert_eq!(bytes[63], b'\n');
    assert_eq!(&bytes[64..108], b"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=");
    assert!(bytes[108..127].iter().all(|byte| *byte == b' '));
    assert_eq!(bytes[127], b'\n');
}

#[test]
fn a_greeting_is_parsed_as_it_was_written() {
    assert_eq!(Greeting::parse(&greeting().encode()), Ok(greeting()));
    assert_eq!(greeting().version, VERSION);
}

#[test]
fn a_greeting_of_another_server_is_parsed() {
    let mut bytes = greeting().encode();
    bytes[..63].fill(b' ');
    bytes[..24].copy_from_slice(b"Tarantool 3.0.0 (Binary)");
    let read = Greeting::parse(&bytes).unwrap();
    assert_eq!((read.version.as_str(), read.instance), ("3.0.0", [0; 16]));
}

#[test]
fn bytes_that_are_no_greeting_are_refused() {
    let wrong = |change: fn(&mut [u8; 128])| {
        let mut bytes = greeting().encode();
        change(&mut bytes);
        matches!(Greeting::parse(&bytes), Err(IprotoError::Greeting(_)))
    };
    assert!(wrong(|bytes| bytes[..4].copy_from_slice(b"HTTP")));
    assert!(wrong(|bytes| bytes[17..25].copy_from_slice(b"(Lua con")));
    assert!(wrong(|bytes| bytes[0] = 0xff));
    assert!(wrong(|bytes| bytes[64] = b'!'));
    assert!(wrong(|bytes| bytes[9..63].fill(b' ')));
    assert!(wrong(|bytes| bytes.fill(0)));
}

#[test]
fn a_version_too_long_for_its_line_is_cut() {
    let long = Greeting { version: "9".repeat(100), ..greeting() };
    let bytes = long.encode();
    assert_eq!((bytes[62], bytes[63], bytes[127]), (b'9', b'\n', b'\n'));
}

#[test]
fn a_scramble_proves_the_password_and_no_other() {
    let salt = greeting().salt;
    for password in ["", "secret", "пароль"] {
        let stored = hash_password(password);
        assert!(check(&scramble(password, &salt), &salt, &stored));
        assert!(!check(&scramble("other", &salt), &salt, &stored));
        let mut other_salt = salt;
        other_salt[19] ^= 1;
        assert!(!check(&scramble(password, &salt), &other_salt, &stored));
    }
}

#[test]
fn only_twenty_bytes_of_the_salt_count() {
    let salt = greeting().salt;
    assert_eq!(scramble("secret", &salt), scramble("secret", &salt[..20]));
    assert_ne!(scramble("secret", &salt[..19]), scramble("secret", &salt[..20]));
    assert!(check(&scramble("x", &[]), &[], &hash_password("x")));
}

/// The result of MySQL's `SELECT SHA1(UNHEX(SHA1('secret')))`; MySQL stores passwords the same way.
#[test]
fn the_stored_form_is_the_hash_of_the_hash() {
    let hash: String = hash_password("secret").iter().map(|byte| format!("{byte:02X}")).collect();
    assert_eq!(hash, "14E65567ABDB5135D0CFD9A70B3032C179A49EE7");
}
