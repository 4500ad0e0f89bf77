//! Parses the URL of a Tarantool instance or replica set.

use std::fmt;

/// The URL of Tarantool.
#[derive(Clone, PartialEq, Eq)]
pub struct TarantoolUrl {
    /// The instances of a replica set, or the only one. The one that can be written to is used.
    pub instances: Vec<Address>,
    /// Name and password; without them the user is the guest.
    pub user: Option<(String, String)>,
    /// The other parameters, by name.
    pub parameters: Vec<(String, String)>,
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// A name or an address.
    pub host: String,
    /// Its port.
    pub port: u16,
}

/// The default port.
const PORT: u16 = 3301;
const FORM: &str = "expected tarantool://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]…]";

impl TarantoolUrl {
    /// Parses a URL of one of these schemes. A password that is not in it comes from
    /// `TARANTOOL_PASSWORD`.
    pub fn parse(text: &str, schemes: &[&str]) -> Result<Self, String> {
        let mut url = Self::read(text, schemes)?;
        if let Some((_, password)) = &mut url.user
            && password.is_empty()
        {
            *password = std::env::var("TARANTOOL_PASSWORD").unwrap_or_default();
        }
        Ok(url)
    }

    fn read(text: &str, schemes: &[&str]) -> Result<Self, String> {
        let (scheme, rest) = text.split_once("://").ok_or(FORM)?;
        if !schemes.contains(&scheme) {
            return Err(FORM.into());
        }
        let (rest, parameters) = rest.split_once('?').unwrap_or((rest, ""));
        // A password may have an @ in it, a host has none.
        let (who, rest) =
            rest.rsplit_once('@').map_or((None, rest), |(who, rest)| (Some(who), rest));
        let hosts = rest.strip_suffix('/').unwrap_or(rest);
        let parameters = parameters.split('&').filter(|parameter| !parameter.is_empty());
        let parameters = parameters.map(|parameter| {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            (name.to_owned(), decoded(value))
        });
        Ok(TarantoolUrl {
            instances: hosts.split(',').map(address).collect::<Result<_, _>>()?,
            user: who.map(|who| {
                let (user, password) = who.split_once(':').unwrap_or((who, ""));
                (decoded(user), decoded(password))
            }),
            parameters: parameters.collect(),
        })
    }
}

impl fmt::Debug for TarantoolUrl {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TarantoolUrl").field("instances", &self.instances).finish_non_exhaustive()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

fn address(text: &str) -> Result<Address, String> {
    // An IPv6 address is in brackets, because of its colons.
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, rest)) => (host, rest.strip_prefix(':')),
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    if host.is_empty() || host.contains('/') {
        return Err(format!("a host is missing; {FORM}"));
    }
    let port = port.map_or(Ok(PORT), |port| {
        port.parse().map_err(|_| format!("'{port}' is no port; {FORM}"))
    })?;
    Ok(Address { host: decoded(host), port })
}

/// Decodes percent-encoded bytes such as `%2F`.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let code = tail
            .get(..2)
            .filter(|_| *first == b'%')
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<TarantoolUrl, String> {
        TarantoolUrl::read(url, &["tarantool", "tarantool+queue"])
    }

    #[test]
    fn a_url_has_all_settings() {
        let at = |host: &str, port| Address { host: host.into(), port };
        let url = read("tarantool://localhost").unwrap();
        assert_eq!((&url.instances[..], url.user), (&[at("localhost", 3301)][..], None));
        let url = read("tarantool://me:p%40s@s@[::1]:7000,b:1/?prefix=mail&x").unwrap();
        assert_eq!(url.instances, [at("::1", 7000), at("b", 1)]);
        assert_eq!(url.instances[0].to_string(), "[::1]:7000");
        assert!(!format!("{url:?}").contains("p@s"), "a password is not shown");
        assert_eq!(url.user, Some(("me".into(), "p@s@s".into())));
        let pairs = [("prefix", "mail"), ("x", "")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        assert_eq!(url.parameters, pairs);
        assert!(read("tarantool+queue://guest@h").is_ok());
    }

    #[test]
    fn errors_in_a_url_are_reported() {
        for (url, why) in [
            ("tarantool:localhost", "expected tarantool://"),
            ("http://localhost", "expected tarantool://"),
            ("tarantool://", "a host is missing"),
            ("tarantool://a,", "a host is missing"),
            ("tarantool://h/path", "a host is missing"),
            ("tarantool://h:port", "no port"),
            ("tarantool://h:66666", "no port"),
        ] {
            let refusal = read(url).unwrap_err();
            assert!(refusal.contains(why), "{url}: {refusal}");
        }
    }
}
