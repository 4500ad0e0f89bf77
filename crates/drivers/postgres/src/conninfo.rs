//! Parses connection strings: `key=value` pairs or a URI, as libpq does.

use std::fmt;

use crate::tls::Security;

/// A parsed connection string.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Conninfo {
    /// Hosts or directories of sockets, tried in order; empty is this machine.
    pub hosts: Vec<String>,
    /// A port for each host, or one for all.
    pub ports: Vec<u16>,
    /// The user; by default the name of the database.
    pub user: Option<String>,
    /// The password.
    pub password: Option<String>,
    /// A file with passwords.
    pub passfile: Option<String>,
    /// The database; by default the name of the user.
    pub dbname: Option<String>,
    /// Whether and how to encrypt.
    pub sslmode: SslMode,
    /// A file with the trusted root certificates.
    pub sslrootcert: Option<String>,
    /// A file with our own certificate.
    pub sslcert: Option<String>,
    /// A file with the key of our certificate.
    pub sslkey: Option<String>,
    /// Settings of the session, in the form of the server's command line.
    pub options: Option<String>,
    /// How long connecting may take, in seconds; zero is the default.
    pub connect_timeout: u32,
}

/// Whether and how a connection is encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SslMode {
    /// Never.
    Disable,
    /// If the server supports it.
    #[default]
    Prefer,
    /// Always, without a check of the certificate.
    Require,
    /// Always, with a certificate that a trusted root has signed.
    VerifyCa,
    /// Always, with a trusted certificate for exactly this host.
    VerifyFull,
}

impl SslMode {
    /// The mode of this name, if there is one.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "disable" => SslMode::Disable,
            "allow" | "prefer" => SslMode::Prefer,
            "require" => SslMode::Require,
            "verify-ca" => SslMode::VerifyCa,
            "verify-full" => SslMode::VerifyFull,
            _ => return None,
        })
    }
}

/// Why a text is not a connection string.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConninfoError {
    /// A word without a value.
    #[error("missing \"=\" after \"{0}\" in connection info string")]
    NoValue(String),
    /// A quoted value without an end.
    #[error("unterminated quoted string in connection info string")]
    Unterminated,
    /// An option that does not exist, or is not known here.
    #[error("invalid connection option \"{0}\"")]
    Option(String),
    /// An invalid value of an option.
    #[error("invalid {name} value: \"{value}\"")]
    Value {
        /// The option.
        name: &'static str,
        /// The value.
        value: String,
    },
    /// An invalid URI.
    #[error("invalid URI: {0}")]
    Uri(&'static str),
}

impl ConninfoError {
    /// Without the given text, which may be a part of a password.
    fn hidden(self) -> Self {
        match self {
            ConninfoError::NoValue(name) if !is_known(&name) => {
                ConninfoError::NoValue(HIDDEN.into())
            }
            ConninfoError::Option(_) => ConninfoError::Option(HIDDEN.into()),
            ConninfoError::Value { name, .. } => {
                ConninfoError::Value { name, value: HIDDEN.into() }
            }
            error => error,
        }
    }
}

/// The replacement for text that is not shown.
const HIDDEN: &str = "***";

fn is_known(name: &str) -> bool {
    IGNORED.contains(&name) || KNOWN.contains(&name)
}

/// Options that are used here.
const KNOWN: &[&str] = &[
    "connect_timeout",
    "dbname",
    "host",
    "hostaddr",
    "options",
    "passfile",
    "password",
    "port",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslrootcert",
    "target_session_attrs",
    "user",
];

/// Options that other programs know and that have no effect here.
const IGNORED: &[&str] = &[
    "application_name",
    "channel_binding",
    "client_encoding",
    "fallback_application_name",
    "gssdelegation",
    "gssencmode",
    "gsslib",
    "keepalives",
    "keepalives_count",
    "keepalives_idle",
    "keepalives_interval",
    "krbsrvname",
    "load_balance_hosts",
    "require_auth",
    "sslcompression",
    "sslsni",
    "tcp_user_timeout",
];

impl Conninfo {
    /// Parses either form.
    pub fn parse(text: &str) -> Result<Self, ConninfoError> {
        let mut conninfo = Conninfo::default();
        let scheme = ["postgresql://", "postgres://"].iter().find(|s| text.starts_with(**s));
        let (read, secret) = match scheme {
            Some(scheme) => {
                let text = &text[scheme.len()..];
                // A password with a slash in it may be parsed as many other things.
                let after = text.find(['/', '?']).map_or("", |at| &text[at..]);
                (conninfo.read_uri(text), after.contains('@'))
            }
            None => {
                let read = conninfo.read_pairs(text);
                // A password with a space in it continues as options.
                let secret = conninfo.password.is_some();
                (read, secret)
            }
        };
        match read {
            Ok(()) => Ok(conninfo),
            Err(error) if secret => Err(error.hidden()),
            Err(error) => Err(error),
        }
    }

    /// Whether it names files of this machine.
    pub fn names_files(&self) -> bool {
        let files = [&self.sslrootcert, &self.sslcert, &self.sslkey, &self.passfile];
        files.into_iter().any(Option::is_some)
    }

    /// Fills missing values from the environment, which `look` reads.
    pub fn fill(&mut self, look: impl Fn(&str) -> Option<String>) -> Result<(), ConninfoError> {
        if self.hosts.is_empty()
            && let Some(host) = look("PGHOST")
        {
            self.set("host", &host)?;
        }
        if self.ports.is_empty()
            && let Some(port) = look("PGPORT")
        {
            self.set("port", &port)?;
        }
        self.user = self.user.take().or_else(|| look("PGUSER"));
        self.dbname = self.dbname.take().or_else(|| look("PGDATABASE"));
        Ok(())
    }

    /// The host and port of each attempt.
    pub fn addresses(&self) -> Vec<(String, u16)> {
        let port = |place: usize| match self.ports.as_slice() {
            [] => 5432,
            [port] => *port,
            ports => ports.get(place).copied().unwrap_or(5432),
        };
        let hosts = self.hosts.iter().enumerate();
        let mut places: Vec<_> = hosts.map(|(n, host)| (host.clone(), port(n))).collect();
        if places.is_empty() {
            let sockets = ["/var/run/postgresql", "/tmp"].into_iter();
            let found = sockets.map(str::to_owned).find(|folder| {
                std::path::Path::new(folder).join(format!(".s.PGSQL.{}", port(0))).exists()
            });
            places.push((found.unwrap_or_else(|| "localhost".into()), port(0)));
        }
        places
    }

    /// How connections to it are protected.
    pub fn security(&self) -> Security {
        let file = |name: &Option<String>| name.as_ref().map(Into::into);
        Security {
            mode: self.sslmode,
            root: file(&self.sslrootcert),
            cert: file(&self.sslcert),
            key: file(&self.sslkey),
        }
    }

    fn read_pairs(&mut self, text: &str) -> Result<(), ConninfoError> {
        let mut rest = text.trim_start();
        while !rest.is_empty() {
            let end = rest.find(|c: char| c == '=' || c.is_whitespace()).unwrap_or(rest.len());
            let (name, after) = rest.split_at(end);
            let after = after.trim_start();
            let Some(after) = after.strip_prefix('=') else {
                return Err(ConninfoError::NoValue(name.into()));
            };
            let (value, after) = value(after.trim_start())?;
            self.set(name, &value)?;
            rest = after.trim_start();
        }
        Ok(())
    }

    fn read_uri(&mut self, text: &str) -> Result<(), ConninfoError> {
        let (place, query) = text.split_once('?').unwrap_or((text, ""));
        let (place, dbname) = place.split_once('/').unwrap_or((place, ""));
        let (user, hosts) = place.rsplit_once('@').map_or((None, place), |(u, h)| (Some(u), h));
        if let Some(user) = user {
            let (user, password) = user.split_once(':').map_or((user, None), |(u, p)| (u, Some(p)));
            if !user.is_empty() {
                self.user = Some(decoded(user)?);
            }
            self.password = password.map(decoded).transpose()?;
        }
        for host in hosts.split(',').filter(|_| !hosts.is_empty()) {
            let (host, port) = host_and_port(host)?;
            self.hosts.push(decoded(host)?);
            self.ports.push(if port.is_empty() { 5432 } else { port_of(port)? });
        }
        if !dbname.is_empty() {
            self.dbname = Some(decoded(dbname)?);
        }
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let Some((name, value)) = pair.split_once('=') else {
                return Err(ConninfoError::Uri("an option has no value"));
            };
            let (name, value) = (decoded(name)?, decoded(value)?);
            match (name.as_str(), value.as_str()) {
                ("ssl", "true") => self.sslmode = SslMode::Require,
                (name, value) => self.set(name, value)?,
            }
        }
        Ok(())
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), ConninfoError> {
        let text = || Some(value.to_owned()).filter(|value| !value.is_empty());
        match name {
            "host" | "hostaddr" => {
                let hosts = value.split(',').filter(|host| !host.is_empty());
                self.hosts = hosts.map(str::to_owned).collect();
            }
            "port" => {
                let ports = value.split(',').filter(|port| !port.is_empty());
                self.ports = ports.map(port_of).collect::<Result<_, _>>()?;
            }
            "user" => self.user = text(),
            "password" => self.password = text(),
            "passfile" => self.passfile = text(),
            "dbname" => self.dbname = text(),
            "options" => self.options = text(),
            "sslmode" => {
                let mode = SslMode::from_name(value);
                self.sslmode = mode.ok_or_else(|| wrong("sslmode", value))?;
            }
            "sslrootcert" => self.sslrootcert = text(),
            "sslcert" => self.sslcert = text(),
            "sslkey" => self.sslkey = text(),
            "connect_timeout" => {
                let wrong = || wrong("connect_timeout", value);
                self.connect_timeout = value.trim().parse().map_err(|_| wrong())?;
            }
            "target_session_attrs" if value == "any" => {}
            name if IGNORED.contains(&name) => {}
            name => return Err(ConninfoError::Option(name.into())),
        }
        Ok(())
    }
}

/// The password is never printed.
impl fmt::Debug for Conninfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (hosts, ports) = (&self.hosts, &self.ports);
        let mut text = f.debug_struct("Conninfo");
        text.field("hosts", hosts).field("ports", ports).field("user", &self.user);
        text.field("dbname", &self.dbname).finish_non_exhaustive()
    }
}

/// A connection string without passwords, for messages. An invalid one is not shown at all.
pub fn masked(text: &str) -> String {
    let Ok(conninfo) = Conninfo::parse(text) else { return "(not readable)".into() };
    let mut words = Vec::new();
    let list = |items: Vec<String>| items.join(",");
    for (name, value) in [
        ("user", conninfo.user),
        ("password", conninfo.password.map(|_| "***".to_owned())),
        ("host", (!conninfo.hosts.is_empty()).then(|| list(conninfo.hosts.clone()))),
        ("port", {
            let ports: Vec<String> = conninfo.ports.iter().map(u16::to_string).collect();
            (!ports.is_empty()).then(|| list(ports))
        }),
        ("dbname", conninfo.dbname),
    ] {
        words.extend(value.map(|value| format!("{name}={value}")));
    }
    words.join(" ")
}

/// The value at the beginning of a text, and the rest.
fn value(text: &str) -> Result<(String, &str), ConninfoError> {
    let quoted = text.starts_with('\'');
    let mut value = String::new();
    let mut chars = text.char_indices().skip(usize::from(quoted));
    while let Some((at, char)) = chars.next() {
        match char {
            '\\' => value.extend(chars.next().map(|(_, char)| char)),
            '\'' if quoted => return Ok((value, &text[at + 1..])),
            char if !quoted && char.is_whitespace() => return Ok((value, &text[at..])),
            char => value.push(char),
        }
    }
    if quoted { Err(ConninfoError::Unterminated) } else { Ok((value, "")) }
}

fn host_and_port(text: &str) -> Result<(&str, &str), ConninfoError> {
    if let Some(rest) = text.strip_prefix('[') {
        let end = "the address in brackets does not end";
        let (host, rest) = rest.split_once(']').ok_or(ConninfoError::Uri(end))?;
        return Ok((host, rest.strip_prefix(':').unwrap_or_default()));
    }
    Ok(text.rsplit_once(':').unwrap_or((text, "")))
}

fn port_of(text: &str) -> Result<u16, ConninfoError> {
    text.trim().parse().ok().filter(|port| *port > 0).ok_or_else(|| wrong("port", text))
}

fn wrong(name: &'static str, value: &str) -> ConninfoError {
    ConninfoError::Value { name, value: value.into() }
}

/// Decodes percent-encoded bytes of a URI.
pub fn decoded(text: &str) -> Result<String, ConninfoError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digit = |byte: Option<&u8>| byte.and_then(|byte| char::from(*byte).to_digit(16));
        let (Some(high), Some(low)) = (digit(rest.first()), digit(rest.get(1))) else {
            return Err(ConninfoError::Uri("invalid percent-encoded token"));
        };
        bytes.push((high * 16 + low) as u8);
        rest = &rest[2..];
    }
    let valid = String::from_utf8(bytes).ok().filter(|text| !text.contains('\0'));
    valid.ok_or(ConninfoError::Uri("forbidden value in percent-encoded token"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Conninfo {
        Conninfo::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn pairs() {
        let read = parse(r"user = 'a b' password='it\'s \\' host=x,y port=1,2 dbname=d\ e");
        assert_eq!(read.user.as_deref(), Some("a b"));
        assert_eq!(read.password.as_deref(), Some(r"it's \"));
        assert_eq!(read.addresses(), [("x".into(), 1), ("y".into(), 2)]);
        assert_eq!(read.dbname.as_deref(), Some("d e"));
        assert_eq!(parse(""), Conninfo::default());
        assert_eq!(parse("application_name=test").user, None);
    }

    #[test]
    fn certificates_are_files() {
        let read = parse("host=h sslmode=verify-full sslrootcert=/r sslcert=/c sslkey=/k");
        let expected = Security {
            mode: SslMode::VerifyFull,
            root: Some("/r".into()),
            cert: Some("/c".into()),
            key: Some("/k".into()),
        };
        assert_eq!(read.security(), expected);
        let uri = "postgres://h/?sslmode=verify-full&sslrootcert=%2Fr&sslcert=/c&sslkey=/k";
        assert_eq!(parse(uri).security(), expected);
    }

    #[test]
    fn uris() {
        let read =
            parse("postgres://ann:p%40ss@[::1]:5433,db/sh%2Fop?sslmode=require&options=-c%20a");
        assert_eq!(read.user.as_deref(), Some("ann"));
        assert_eq!(read.password.as_deref(), Some("p@ss"));
        assert_eq!(read.addresses(), [("::1".into(), 5433), ("db".into(), 5432)]);
        assert_eq!(read.dbname.as_deref(), Some("sh/op"));
        assert_eq!(read.sslmode, SslMode::Require);
        assert_eq!(read.options.as_deref(), Some("-c a"));
        let socket = parse("postgresql:///shop?host=%2Ftmp%2Fx");
        assert_eq!(socket.addresses(), [("/tmp/x".into(), 5432)]);
    }

    #[test]
    fn errors_have_the_usual_texts() {
        for (text, said) in [
            ("foo=bar", "invalid connection option \"foo\""),
            ("user", "missing \"=\" after \"user\" in connection info string"),
            ("user='a", "unterminated quoted string in connection info string"),
            ("port=x", "invalid port value: \"x\""),
            ("sslmode=maybe", "invalid sslmode value: \"maybe\""),
            ("postgres://a%zz@h", "invalid URI: invalid percent-encoded token"),
            ("postgres://h/?x", "invalid URI: an option has no value"),
        ] {
            assert_eq!(Conninfo::parse(text).unwrap_err().to_string(), said);
        }
    }

    #[test]
    fn errors_do_not_show_parts_of_passwords() {
        // The text after a space or a slash in a password was parsed as something else, and was
        // repeated in an error that other users could read.
        for text in [
            "host=h password=my secret",
            "host=h password=my secret=x",
            "password=my port=secret",
            "password=my sslmode=secret",
            "postgres://u:secret/ss@h/d",
            "postgres://u:p@a:secret/ss@h/d",
            "postgres://u:p?secret=x@h/d",
            "postgres://u:1?port=secret@h/d",
        ] {
            let said = Conninfo::parse(text).unwrap_err().to_string();
            assert!(!said.contains("secret") && said.contains("***"), "{text}: {said}");
        }
        let said = Conninfo::parse("password=x user").unwrap_err().to_string();
        assert_eq!(said, "missing \"=\" after \"user\" in connection info string");
    }

    #[test]
    fn passwords_are_not_shown() {
        for text in ["user=ann password=secret host=h", "postgres://ann:secret@h/d?password=secret"]
        {
            assert!(!masked(text).contains("secret"), "{}", masked(text));
            assert!(masked(text).contains("ann"));
            assert!(!format!("{:?}", parse(text)).contains("secret"));
        }
        assert_eq!(masked("user=ann pass word=secret"), "(not readable)");
    }
}
