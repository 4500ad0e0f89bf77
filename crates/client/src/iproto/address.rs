//! Parses the address of a server, with user name and password.

use std::fmt;

use crate::error::IprotoError;
#[cfg(feature = "tls")]
use crate::tls::Encryption;
use crate::url::{Url, host_and_port, without_password};

/// The default port, the same as that of Tarantool.
const PORT: u16 = 3301;

/// An address with its credentials.
#[derive(Clone)]
pub(super) struct IprotoAddress {
    pub host: String,
    pub port: u16,
    /// Name and password; without them the user is guest.
    pub user: Option<(String, String)>,
    /// How connections are encrypted, for `iprotos`.
    #[cfg(feature = "tls")]
    pub encryption: Option<Encryption>,
}

impl IprotoAddress {
    /// Parses `host:port`, `iproto://user:password@host:port` or the same with `iprotos`.
    pub fn parse(text: &str) -> Result<Self, IprotoError> {
        let invalid = || IprotoError::Address(without_password(text));
        let full = if text.contains("://") { text.to_owned() } else { format!("iproto://{text}") };
        let url = Url::parse(&full).ok_or_else(invalid)?;
        let is_encrypted = url.scheme == "iprotos" && cfg!(feature = "tls");
        if !(url.scheme == "iproto" || is_encrypted) || !url.path.is_empty() {
            return Err(invalid());
        }
        #[cfg(feature = "tls")]
        let encryption = match is_encrypted {
            true => Some(Encryption::new()),
            false => None,
        };
        Ok(IprotoAddress {
            host: url.host,
            port: url.port.unwrap_or(PORT),
            user: url.user,
            #[cfg(feature = "tls")]
            encryption,
        })
    }
}

impl fmt::Display for IprotoAddress {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&host_and_port(&self.host, Some(self.port)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed() {
        let parsed = |text| IprotoAddress::parse(text).unwrap();
        assert_eq!(parsed("127.0.0.1:3302").to_string(), "127.0.0.1:3302");
        assert_eq!(parsed("example").port, 3301);
        assert_eq!(parsed("iproto://[::1]:33").to_string(), "[::1]:33");
        let full = parsed("iproto://ann:se%2Fcret@queue:3301");
        assert_eq!(full.user, Some(("ann".into(), "se/cret".into())));
        assert_eq!(full.to_string(), "queue:3301", "a password is not shown");
        for bad in ["", "http://queue:3301", "iproto://", "queue:port", "queue:3301/path"] {
            assert!(IprotoAddress::parse(bad).is_err(), "{bad}");
        }
    }
}
