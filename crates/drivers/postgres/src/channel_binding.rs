//! Computes the channel binding `tls-server-end-point` (RFC 5929): the hash of the certificate of the server. SCRAM includes it
//! in what it signs, so that a password exchange cannot be forwarded through another TLS connection.

use ring::digest::{Algorithm, SHA256, SHA384, SHA512, digest};

/// The tag of a DER sequence.
const SEQUENCE: u8 = 0x30;
/// The tag of a DER object identifier.
const OBJECT_IDENTIFIER: u8 = 0x06;

/// Signature algorithms in DER, each with the hash that RFC 5929 prescribes for it: that of the signature, and SHA-256
/// instead of MD5 and SHA-1.
const HASHES: [(&[u8], &Algorithm); 9] = [
    // RSA (1.2.840.113549.1.1) with MD5, SHA-1, SHA-256, SHA-384, SHA-512
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 4], &SHA256),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 5], &SHA256),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 11], &SHA256),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 12], &SHA384),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 13], &SHA512),
    // ECDSA (1.2.840.10045.4) with SHA-1, SHA-256, SHA-384, SHA-512
    (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 1], &SHA256),
    (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2], &SHA256),
    (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 3], &SHA384),
    (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 4], &SHA512),
];

/// The channel binding for this certificate of the server, in DER. `None` for signatures whose hash RFC 5929 does not
/// define (Ed25519) or that older databases cannot determine (RSASSA-PSS): SCRAM works without channel binding there.
pub fn server_end_point(certificate: &[u8]) -> Option<Vec<u8>> {
    let signature = signature_algorithm(certificate)?;
    let (_, hash) = HASHES.iter().find(|(algorithm, _)| *algorithm == signature)?;
    Some(digest(hash, certificate).as_ref().into())
}

/// The object identifier of the algorithm with which a certificate is signed: the second element of the certificate.
fn signature_algorithm(certificate: &[u8]) -> Option<&[u8]> {
    let (elements, _) = value(certificate, SEQUENCE)?;
    let (_to_be_signed, elements) = value(elements, SEQUENCE)?;
    let (algorithm, _signature) = value(elements, SEQUENCE)?;
    Some(value(algorithm, OBJECT_IDENTIFIER)?.0)
}

/// The contents of the first DER value, which must have this tag, and the bytes after it.
fn value(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let [first, length, rest @ ..] = bytes else { return None };
    let (length, rest) = match length {
        ..=0x7f => (usize::from(*length), rest),
        // The lower bits tell how many bytes the length has. No certificate needs more than three.
        0x81..=0x83 => {
            let (length, rest) = rest.split_at_checked(usize::from(length & 0x7f))?;
            (length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    (*first == tag).then(|| rest.split_at_checked(length))?
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sequence with a length of one byte, or of three if there are many contents.
    fn sequence(contents: &[&[u8]]) -> Vec<u8> {
        let contents = contents.concat();
        let length = match u8::try_from(contents.len()) {
            Ok(short @ ..=0x7f) => vec![short],
            _ => [&[0x83][..], &u32::to_be_bytes(contents.len() as u32)[1..]].concat(),
        };
        [&[SEQUENCE][..], &length, &contents].concat()
    }

    fn certificate(algorithm: &[u8], signed_length: usize) -> Vec<u8> {
        let identifier = [&[OBJECT_IDENTIFIER, algorithm.len() as u8], algorithm].concat();
        let signature = [0x03, 0x02, 0x00, 0x17];
        sequence(&[
            &sequence(&[&vec![7; signed_length]]),
            &sequence(&[&identifier, &[0x05, 0x00]]),
            &signature,
        ])
    }

    #[test]
    fn the_hash_is_that_of_the_signature() {
        for (algorithm, hash) in HASHES {
            for length in [1, 200, 70_000] {
                let certificate = certificate(algorithm, length);
                let binding = server_end_point(&certificate).unwrap();
                assert_eq!(binding, digest(hash, &certificate).as_ref());
            }
        }
    }

    #[test]
    fn other_signatures_have_no_channel_binding() {
        let ed25519 = [0x2b, 0x65, 0x70];
        let rsassa_pss = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 10];
        assert_eq!(server_end_point(&certificate(&ed25519, 1)), None);
        assert_eq!(server_end_point(&certificate(&rsassa_pss, 1)), None);
    }

    #[test]
    fn damaged_certificates_have_no_channel_binding() {
        let whole = certificate(HASHES[0].0, 200);
        for length in 0..whole.len() {
            assert_eq!(server_end_point(&whole[..length]), None);
        }
        for place in 0..whole.len() {
            let mut damaged = whole.clone();
            for byte in [0, 0x7f, 0x80, 0x84, 0xff] {
                damaged[place] = byte;
                // It returns something or nothing, and does not panic.
                let _ = server_end_point(&damaged);
            }
        }
    }
}
