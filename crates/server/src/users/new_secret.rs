//! Makes the secret of a new user.

use std::io;

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use taskyard_iproto::auth;

use super::TokenHash;

/// By this prefix a token is recognised in logs and files where it should not be.
const PREFIX: &str = "taskyard_";
/// Random bytes of a token: 256 bits, so that its plain hash cannot be searched for.
const RANDOM_BYTES: usize = 32;

/// The secret of a new user, and what a file stores of it.
pub struct NewSecret {
    /// The token, to be given to the user.
    pub token: String,
    /// Its SHA-256, in hexadecimal digits.
    pub token_sha256: String,
    /// What the login over iproto needs, if the token is the password there.
    pub password_hash: String,
}

impl NewSecret {
    /// A random secret.
    pub fn generate() -> io::Result<Self> {
        let mut bytes = [0; RANDOM_BYTES];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        let token = format!("{PREFIX}{}", BASE64_URL_SAFE_NO_PAD.encode(bytes));
        let hash = TokenHash::of(token.as_bytes()).0;
        let token_sha256 = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        let password_hash = BASE64_STANDARD.encode(auth::hash_password(&token));
        Ok(NewSecret { token, token_sha256, password_hash })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::auth::Token;
    use crate::users::Users;

    #[test]
    fn a_new_secret_can_be_stored_and_used_for_both_protocols() {
        let (secret, other) = (NewSecret::generate().unwrap(), NewSecret::generate().unwrap());
        assert_ne!(secret.token, other.token);
        assert!(Token::new(&secret.token).is_ok());
        let NewSecret { token, token_sha256, password_hash } = secret;
        let entry = json!({ "name": "a", "token_sha256": token_sha256,
            "password_hash": password_hash, "roles": ["read"] });
        let users: Users = serde_json::from_value(json!({ "users": [entry] })).unwrap();
        assert!(users.with_secret(&TokenHash::of(token.as_bytes())).is_some());
        let salt = [3; 32];
        let scramble = auth::scramble(&token, &salt);
        assert!(users.authenticate("a", Some(&scramble), &salt).is_ok());
        assert!(users.authenticate("a", Some(&[0; 20]), &salt).is_err());
    }
}
