//! Reads the users as the operator writes them, in any format that serde knows.

use std::collections::HashSet;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use taskyard_core::limits::{USER_NAME_BYTES_MAX, USERS_MAX};
use taskyard_core::names::unfit_char;
use taskyard_iproto::auth;

use super::grants::{RoleName, role_grant};
use super::{GUEST, Grants, PasswordHash, TokenHash, User, Users};

impl<'de> Deserialize<'de> for Users {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let list = UserList::deserialize(deserializer)?;
        list.checked().map_err(serde::de::Error::custom)
    }
}

/// The file of users.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UserList {
    users: Vec<UserEntry>,
}

impl UserList {
    fn checked(self) -> Result<Users, String> {
        if self.users.len() > USERS_MAX {
            return Err(format!("{} users; the maximum is {USERS_MAX}", self.users.len()));
        }
        let (mut names, mut tokens) = (HashSet::new(), HashSet::new());
        let mut users = Vec::with_capacity(self.users.len());
        for entry in self.users {
            let user = entry.user()?;
            if !names.insert(user.name.clone()) {
                let name = &user.name;
                return Err(format!("user '{name}' is listed twice; keep one of the two"));
            }
            if user.token.is_some_and(|token| !tokens.insert(token.0)) {
                let name = &user.name;
                return Err(format!("user '{name}' has the token of another user; make a new one"));
            }
            users.push(user);
        }
        Ok(Users::new(users))
    }
}

/// A user.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UserEntry {
    name: String,
    token_sha256: Option<String>,
    password: Option<String>,
    password_hash: Option<String>,
    roles: Option<Vec<RoleName>>,
    tubes: Option<Vec<String>>,
    grants: Option<Grants>,
}

impl UserEntry {
    fn user(self) -> Result<User, String> {
        let UserEntry { name, token_sha256, password, password_hash, roles, tubes, grants } = self;
        check_name(&name)?;
        let of_user = |error: String| format!("user '{name}': {error}");
        let token = token_sha256.map(|text| stored_token(&name, &text)).transpose()?;
        let password = match (password, password_hash) {
            (Some(password), None) => Some(auth::hash_password(&password)),
            (None, Some(hash)) => Some(stored_hash(&name, &hash)?),
            (None, None) if name == GUEST || token.is_some() => None,
            (None, None) => {
                return Err(format!(
                    "user '{name}' needs either password or password_hash, or token_sha256"
                ));
            }
            _ => return Err(format!("user '{name}' needs either password or password_hash")),
        };
        let grants = match (roles, tubes, grants) {
            (Some(roles), tubes, None) => {
                Grants::List(vec![role_grant(&roles, tubes).map_err(of_user)?])
            }
            (None, None, Some(grants)) => grants,
            _ => return Err(format!("user '{name}' needs either roles (with tubes) or grants")),
        };
        let password = password.map(PasswordHash);
        Ok(User { token, password, ..User::without_secret(&name, &grants) })
    }
}

fn check_name(name: &str) -> Result<(), String> {
    if name.is_empty() {
        return Err("a user has an empty name".into());
    }
    if name.len() > USER_NAME_BYTES_MAX {
        let length = name.len();
        return Err(format!(
            "the name of a user has {length} bytes; use at most {USER_NAME_BYTES_MAX}"
        ));
    }
    match unfit_char(name) {
        Some(bad) => Err(format!("the name of user {name:?} must not contain {bad:?}")),
        None => Ok(()),
    }
}

fn stored_token(name: &str, text: &str) -> Result<TokenHash, String> {
    let text = text.trim().as_bytes();
    let digit = |byte: u8| (byte as char).to_digit(16);
    let mut hash = [0; 32];
    let is_hex = text.len() == 64
        && text.chunks_exact(2).zip(&mut hash).all(|(pair, byte)| {
            let value = digit(pair[0]).zip(digit(pair[1])).map(|(high, low)| high * 16 + low);
            value.is_some_and(|value| {
                *byte = value as u8;
                true
            })
        });
    is_hex.then_some(TokenHash(hash)).ok_or_else(|| {
        format!(
            "token_sha256 of user '{name}' is not the SHA-256 of a token: 64 hexadecimal digits; \
             make a user with: taskyard user add"
        )
    })
}

fn stored_hash(name: &str, text: &str) -> Result<[u8; 20], String> {
    let bytes = BASE64_STANDARD.decode(text.trim()).ok();
    bytes.and_then(|bytes| bytes.try_into().ok()).ok_or_else(|| {
        format!(
            "password_hash of user '{name}' is not what Tarantool stores: the base64 of \
             SHA1(SHA1(password)), 28 characters"
        )
    })
}
