//! What a URL says about the database, and where else a password may be.

use std::env;
use std::path::{Path, PathBuf};

use tokio_postgres::Config;
use tokio_postgres::config::Host;

use super::tls::Mode;

/// Where a database is and how to get there.
#[derive(Debug)]
pub(super) struct Place {
    pub config: Config,
    /// Behind a pooler in transaction mode.
    pub pooled: bool,
    pub mode: Mode,
    /// Who must have signed the database's certificate.
    pub root: Option<PathBuf>,
}

impl Place {
    /// Reads a URL. A password that is not in it comes from `PGPASSWORD`, or from the file `PGPASSFILE` or
    /// `~/.pgpass`.
    pub fn parse(url: &str) -> Result<Self, String> {
        let mut place = Self::read(url)?;
        if place.config.get_password().is_none()
            && let Some(password) = password(&place.config)
        {
            place.config.password(password);
        }
        Ok(place)
    }

    /// Takes the parameters out of a URL that the driver does not know.
    fn read(url: &str) -> Result<Self, String> {
        let (base, parameters) = url.split_once('?').unwrap_or((url, ""));
        let (mut pooled, mut mode, mut root) = (false, Mode::default(), None);
        let mut others = Vec::new();
        for parameter in parameters.split('&').filter(|parameter| !parameter.is_empty()) {
            match parameter.split_once('=') {
                Some(("pooler", "transaction")) => pooled = true,
                Some(("pooler", other)) => {
                    return Err(format!(
                        "pooler={other} is not known; it may be pooler=transaction"
                    ));
                }
                Some(("sslmode", name)) => {
                    mode = Mode::from_name(name).ok_or_else(|| unknown_mode(name))?;
                }
                Some(("sslrootcert", path)) => root = Some(PathBuf::from(decoded(path))),
                _ => others.push(parameter),
            }
        }
        let others = others.join("&");
        let plain = if others.is_empty() { base.to_owned() } else { format!("{base}?{others}") };
        let mut config: Config =
            plain.parse().map_err(|error| format!("{}; {LOOKS}", describe(&error)))?;
        if !url.contains("://") {
            return Err(format!("this is no URL of a database; {LOOKS}"));
        }
        let is_local = |host: &Host| matches!(host, Host::Unix(_));
        if config.get_hosts().iter().all(is_local) {
            // Nobody listens in between, and PostgreSQL does not encrypt there.
            mode = Mode::Disable;
        }
        config.ssl_mode(mode.to_driver());
        Ok(Place { config, pooled, mode, root })
    }
}

/// What to write instead.
const LOOKS: &str = "it looks like postgres://user:password@host:5432/database, or, with the folder of a \
    socket, postgres://user@%2Fvar%2Frun%2Fpostgresql/database";

fn unknown_mode(name: &str) -> String {
    format!(
        "sslmode={name} is not known; it may be disable, prefer, require, verify-ca or verify-full"
    )
}

fn describe(error: &tokio_postgres::Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
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

/// The password that is not in the URL.
fn password(config: &Config) -> Option<String> {
    if let Ok(password) = env::var("PGPASSWORD") {
        return Some(password);
    }
    let file = env::var_os("PGPASSFILE").map(PathBuf::from);
    let file = file.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".pgpass")))?;
    if is_open_to_others(&file) {
        tracing::warn!(file = %file.display(), "left alone, since others may read it; chmod 0600");
        return None;
    }
    let text = std::fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| matching(line, config))
}

fn is_open_to_others(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(file).is_ok_and(|about| about.permissions().mode() & 0o077 != 0)
}

/// The password of a line `host:port:database:user:password`, if it is for this database. A star is anything,
/// and a backslash takes the meaning of what follows it.
fn matching(line: &str, config: &Config) -> Option<String> {
    let mut fields = vec![String::new()];
    let mut chars = line.chars();
    while let Some(char) = chars.next() {
        match (char, fields.len()) {
            (':', ..5) => fields.push(String::new()),
            ('\\', _) => fields.last_mut()?.extend(chars.next()),
            _ => fields.last_mut()?.push(char),
        }
    }
    let [host, port, database, user, password] = fields.try_into().ok()?;
    let is = |field: &str, value: &str| field == "*" || field == value;
    let ports = config.get_ports();
    let user_name = config.get_user().unwrap_or_default();
    let hosts = config.get_hosts().iter().enumerate().any(|(place, at)| {
        let name = match at {
            Host::Tcp(name) => name.as_str(),
            Host::Unix(_) => "localhost",
        };
        let number = ports.get(place).or(ports.first()).copied().unwrap_or(5432);
        is(&host, name) && is(&port, &number.to_string())
    });
    let fits = hosts
        && is(&database, config.get_dbname().unwrap_or(user_name))
        && is(&user, user_name)
        && !line.starts_with('#');
    fits.then_some(password)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_parameters_are_not_the_drivers() {
        let place = Place::read("postgres://a@b/c?connect_timeout=3").unwrap();
        assert_eq!((place.pooled, place.mode, place.root), (false, Mode::Prefer, None));
        let url =
            "postgres://a@b/c?pooler=transaction&sslmode=verify-full&sslrootcert=%2Ftmp%2Fa%20b";
        let place = Place::read(url).unwrap();
        assert_eq!((place.pooled, place.mode), (true, Mode::VerifyFull));
        assert_eq!(place.root, Some(PathBuf::from("/tmp/a b")));
        let local = Place::read("postgres://a@%2Frun/c?sslmode=require").unwrap();
        assert_eq!(local.mode, Mode::Disable);
        for (wrong, why) in [
            ("postgres://a@b/c?sslmode=maybe", "sslmode=maybe is not known"),
            ("postgres://a@b/c?pooler=session", "pooler=session is not known"),
            ("postgres://a@b/c?nonsense=1", "nonsense"),
            ("postgres:/x", "looks like postgres://user:password@host:5432/database"),
            ("postgres://a@b:port/c", "looks like postgres://"),
        ] {
            let refusal = Place::read(wrong).unwrap_err();
            assert!(refusal.contains(why), "{refusal}");
        }
    }

    #[test]
    fn a_line_of_the_password_file_is_for_its_database() {
        let config = "postgres://ann@db:6432/queue".parse().unwrap();
        for (line, password) in [
            ("db:6432:queue:ann:secret", Some("secret")),
            ("*:*:*:*:a:b", Some("a:b")),
            (r"db:*:queue:ann:a\:b\\", Some(r"a:b\")),
            ("db:5432:queue:ann:secret", None),
            ("db:6432:queue:bob:secret", None),
            ("other:6432:queue:ann:secret", None),
            ("#*:*:*:*:secret", None),
            ("db:6432:queue:ann", None),
        ] {
            assert_eq!(matching(line, &config).as_deref(), password, "{line}");
        }
    }
}
