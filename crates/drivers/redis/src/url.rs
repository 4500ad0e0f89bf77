//! What a URL says about Redis.

use std::path::PathBuf;
use std::time::Duration;

/// Where Redis is and how to get there.
#[derive(Clone, PartialEq, Eq)]
pub struct Place {
    /// The server, or some of a cluster.
    pub nodes: Vec<Address>,
    /// Whether it is a cluster, which is asked who has what.
    pub cluster: bool,
    /// Whether connections are encrypted.
    pub tls: bool,
    /// Who we are; without it `default`.
    pub user: Option<String>,
    /// How we prove it.
    pub password: Option<String>,
    /// Which of its numbered databases.
    pub database: u32,
    /// What all keys begin with.
    pub prefix: String,
    /// Who must have signed the certificate; without it those whom the system trusts.
    pub root: Option<PathBuf>,
    /// How many replicas must have what is written before it is answered.
    pub replicas: u32,
    /// How long to wait for them.
    pub replicas_wait: Duration,
    /// Whether it may throw keys away when its memory is full.
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
/// A Redis that has not answered for twice as long is given up.
const REPLICAS_WAIT_MAX: Duration = Duration::from_secs(10);
const FORM: &str = "it is redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE], rediss:// encrypted, or redis+cluster://";

impl Place {
    /// Reads a URL. A password that is not in it comes from `REDISCLI_AUTH`.
    pub fn parse(url: &str) -> Result<Self, String> {
        let mut place = Self::read(url)?;
        if place.password.is_none() {
            place.password = std::env::var("REDISCLI_AUTH").ok();
        }
        Ok(place)
    }

    fn read(url: &str) -> Result<Self, String> {
        let (scheme, rest) = url.split_once("://").ok_or(FORM)?;
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
        let mut place = Place {
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
            place.set(parameter)?;
        }
        place.check()
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
            // To Redis this is for ever.
            return Err("wait_ms= must be at least 1".into());
        }
        if self.replicas_wait > REPLICAS_WAIT_MAX {
            return Err("wait_ms= must be at most 10000".into());
        }
        Ok(self)
    }
}

/// Without the password, which belongs into no log.
impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Place");
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
    // An IPv6 address stands in brackets, because of its colons.
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

/// What stands in a URL with some bytes as `%2F`.
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
    fn a_url_says_it_all() {
        let place = Place::read("redis://localhost").unwrap();
        assert_eq!((&place.nodes[..], place.database), (&[at("localhost", 6379)][..], 0));
        assert_eq!((place.cluster, place.tls, place.password), (false, false, None));
        let place = Place::read("rediss://me:p%40s@s@[::1]:7000/3?prefix=mail&wait=1&wait_ms=50");
        let place = place.unwrap();
        assert_eq!((&place.nodes[..], place.database), (&[at("::1", 7000)][..], 3));
        assert_eq!((place.user.as_deref(), place.password.as_deref()), (Some("me"), Some("p@s@s")));
        assert_eq!((place.tls, place.prefix.as_str(), place.replicas), (true, "mail", 1));
        assert!(!format!("{place:?}").contains("p@s"), "a password is not shown");
        let place = Place::read("redis+cluster://:secret@a,b:7001").unwrap();
        assert_eq!(place.nodes, [at("a", 6379), at("b", 7001)]);
        assert_eq!((place.user, place.password.as_deref()), (None, Some("secret")));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (url, why) in [
            ("redis:localhost", "it is redis://"),
            ("http://localhost", "it is redis://"),
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
            let refusal = Place::read(url).unwrap_err();
            assert!(refusal.contains(why), "{url}: {refusal}");
        }
    }
}
