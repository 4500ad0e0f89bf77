//! Parses the URL of a Redis server or cluster.

use std::path::PathBuf;
use std::time::Duration;

/// The URL of Redis.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisUrl {
    /// The server, or some nodes of a cluster.
    pub nodes: Vec<Address>,
    /// Whether it is a cluster.
    pub cluster: bool,
    /// Whether connections are encrypted.
    pub tls: bool,
    /// The user; by default `default`.
    pub user: Option<String>,
    /// The password.
    pub password: Option<String>,
    /// The number of the database.
    pub database: u32,
    /// The prefix of all keys.
    pub prefix: String,
    /// The root certificate; by default those of the system.
    pub root: Option<PathBuf>,
    /// How many replicas must confirm a change before it is answered.
    pub replicas: u32,
    /// How long to wait for them.
    pub replicas_wait: Duration,
    /// Whether an eviction policy is accepted that removes keys when the memory is full.
    pub may_evict: bool,
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// A name or an address.
    pub host: String,
    /// Its port.
    pub port: u16,
}

const PORT: u16 = 6379;
/// A Redis that does not answer for twice as long is treated as lost.
const REPLICAS_WAIT_MAX: Duration = Duration::from_secs(10);
const FORM: &str = "expected redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE], rediss:// encrypted, or redis+cluster://";

impl RedisUrl {
    /// Parses a URL. A password that is not in it comes from `REDISCLI_AUTH`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut url = Self::read(text)?;
        if url.password.is_none() {
            url.password = std::env::var("REDISCLI_AUTH").ok();
        }
        Ok(url)
    }

    fn read(text: &str) -> Result<Self, String> {
        let (scheme, rest) = text.split_once("://").ok_or(FORM)?;
        let (tls, cluster) = match scheme {
            "redis" => (false, false),
            "rediss" => (true, false),
            "redis+cluster" => (false, true),
            "rediss+cluster" => (true, true),
            _ => return Err(FORM.into()),
        };
        let (rest, parameters) = rest.split_once('?').unwrap_or((rest, ""));
        // A password may have an @ in it, a host has none.
        let (who, rest) =
            rest.rsplit_once('@').map_or((None, rest), |(who, rest)| (Some(who), rest));
        let (hosts, database) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, password) = credentials(who);
        let mut url = RedisUrl {
            nodes: hosts.split(',').map(address).collect::<Result<_, _>>()?,
            cluster,
            tls,
            user,
            password,
            database: number(database, "the database")?.unwrap_or(0),
            prefix: "taskyard".into(),
            root: None,
            replicas: 0,
            replicas_wait: Duration::from_secs(1),
            may_evict: false,
        };
        for parameter in parameters.split('&').filter(|parameter| !parameter.is_empty()) {
            url.set(parameter)?;
        }
        url.check()
    }

    fn set(&mut self, parameter: &str) -> Result<(), String> {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        match name {
            "prefix" => self.prefix = decoded(value),
            "sslrootcert" => self.root = Some(decoded(value).into()),
            "wait" => self.replicas = number(value, "wait")?.unwrap_or(0),
            "wait_ms" => {
                let wait = number(value, "wait_ms")?.unwrap_or(0);
                self.replicas_wait = Duration::from_millis(u64::from(wait));
            }
            "eviction" if value == "accept" => self.may_evict = true,
            "eviction" => return Err("eviction= can only be 'accept'".into()),
            _ => {
                return Err(format!(
                    "{name}= is not known; it may be prefix, sslrootcert, wait, wait_ms or eviction"
                ));
            }
        }
        Ok(())
    }

    fn check(self) -> Result<Self, String> {
        if self.cluster && self.database != 0 {
            return Err("a cluster has one database only; leave the number out".into());
        }
        if !self.cluster && self.nodes.len() > 1 {
            return Err("several hosts are a cluster; begin with redis+cluster://".into());
        }
        let wrong = |c: char| c.is_control() || matches!(c, '{' | '}' | ':');
        if self.prefix.is_empty() || self.prefix.contains(wrong) {
            return Err("prefix= must not be empty and has no braces and no colon".into());
        }
        if self.replicas > 0 && self.replicas_wait.is_zero() {
            // Redis takes zero for no timeout.
            return Err("wait_ms= must be at least 1".into());
        }
        if self.replicas_wait > REPLICAS_WAIT_MAX {
            return Err("wait_ms= must be at most 10000".into());
        }
        Ok(self)
    }
}

/// Without the password, which must not be logged.
impl std::fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("RedisUrl");
        shown.field("nodes", &self.nodes).field("cluster", &self.cluster);
        shown.field("database", &self.database).field("prefix", &self.prefix);
        shown.finish_non_exhaustive()
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

fn credentials(who: Option<&str>) -> (Option<String>, Option<String>) {
    let some = |text: &str| (!text.is_empty()).then(|| decoded(text));
    match who.map(|who| who.split_once(':').unwrap_or((who, ""))) {
        Some((user, password)) => (some(user), some(password)),
        None => (None, None),
    }
}

fn address(text: &str) -> Result<Address, String> {
    // An IPv6 address is in brackets, because of its colons.
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, rest)) => (host, rest.strip_prefix(':')),
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    if host.is_empty() {
        return Err(format!("a host is missing; {FORM}"));
    }
    let port = port.map_or(Ok(PORT), |port| {
        port.parse().map_err(|_| format!("'{port}' is no port; {FORM}"))
    })?;
    Ok(Address { host: decoded(host), port })
}

fn number(text: &str, what: &str) -> Result<Option<u32>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_| format!("'{text}' is no number for {what}"))
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

    fn at(host: &str, port: u16) -> Address {
        Address { host: host.into(), port }
    }

    #[test]
    fn a_url_has_all_settings() {
        let url = RedisUrl::read("redis://localhost").unwrap();
        assert_eq!((&url.nodes[..], url.database), (&[at("localhost", 6379)][..], 0));
        assert_eq!((url.cluster, url.tls, url.password), (false, false, None));
        let url = RedisUrl::read("rediss://me:p%40s@s@[::1]:7000/3?prefix=mail&wait=1&wait_ms=50");
        let url = url.unwrap();
        assert_eq!((&url.nodes[..], url.database), (&[at("::1", 7000)][..], 3));
        assert_eq!((url.user.as_deref(), url.password.as_deref()), (Some("me"), Some("p@s@s")));
        assert_eq!((url.tls, url.prefix.as_str(), url.replicas), (true, "mail", 1));
        assert!(!format!("{url:?}").contains("p@s"), "a password is not shown");
        let url = RedisUrl::read("redis+cluster://:secret@a,b:7001").unwrap();
        assert_eq!(url.nodes, [at("a", 6379), at("b", 7001)]);
        assert_eq!((url.user, url.password.as_deref()), (None, Some("secret")));
    }

    #[test]
    fn errors_in_a_url_are_reported() {
        for (text, why) in [
            ("redis:localhost", "expected redis://"),
            ("http://localhost", "expected redis://"),
            ("redis://", "a host is missing"),
            ("redis://h:port", "no port"),
            ("redis://h/x", "no number"),
            ("redis://h?timeout=5", "timeout= is not known"),
            ("redis://a,b", "redis+cluster://"),
            ("redis+cluster://a/1", "one database only"),
            ("redis://h?prefix=a{b}", "no braces"),
            ("redis://h?prefix=", "must not be empty"),
            ("redis://h?wait=1&wait_ms=0", "at least 1"),
            ("redis://h?wait=1&wait_ms=10001", "at most 10000"),
            ("redis://h?eviction=yes", "'accept'"),
        ] {
            let refusal = RedisUrl::read(text).unwrap_err();
            assert!(refusal.contains(why), "{text}: {refusal}");
        }
    }
}
