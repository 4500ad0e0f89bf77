//! Parses the URL of a database, and finds the password if the URL has none.

use std::env;
use std::path::PathBuf;

use taskyard_postgres::conninfo::decoded;
use taskyard_postgres::passfile::{self, PassfileQuery};
use taskyard_postgres::{Security, SslMode};
use tokio_postgres::Config;
use tokio_postgres::config::Host;

use super::tls;

/// The parsed URL of a database.
#[derive(Debug)]
pub(super) struct DatabaseUrl {
    pub config: Config,
    /// Behind a pooler in transaction mode.
    pub pooled: bool,
    /// How connections are protected.
    pub security: Security,
}

impl DatabaseUrl {
    /// Reads a URL. A password that is not in it comes from `PGPASSWORD`, or from the file `PGPASSFILE` or
    /// `~/.pgpass`.
    pub fn parse(url: &str) -> Result<Self, String> {
        let mut target = Self::read(url)?;
        if target.config.get_password().is_none()
            && let Some(password) = password(&target.config)
        {
            target.config.password(password);
        }
        Ok(target)
    }

    /// Separates our own parameters from those of the driver.
    fn read(url: &str) -> Result<Self, String> {
        let (base, parameters) = url.split_once('?').unwrap_or((url, ""));
        let (mut pooled, mut security) = (false, Security::default());
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
                    security.mode = SslMode::from_name(name).ok_or_else(|| unknown_mode(name))?;
                }
                Some(("sslrootcert", path)) => security.root = Some(file(path)?),
                Some(("sslcert", path)) => security.cert = Some(file(path)?),
                Some(("sslkey", path)) => security.key = Some(file(path)?),
                _ => others.push(parameter),
            }
        }
        let others = others.join("&");
        let plain = if others.is_empty() { base.to_owned() } else { format!("{base}?{others}") };
        let mut config: Config =
            plain.parse().map_err(|error| format!("{}; {EXAMPLE}", describe(&error)))?;
        if !url.contains("://") {
            return Err(format!("not the URL of a database; {EXAMPLE}"));
        }
        let is_local = |host: &Host| matches!(host, Host::Unix(_));
        if config.get_hosts().iter().all(is_local) {
            // PostgreSQL does not encrypt on a Unix socket, which cannot be eavesdropped.
            security.mode = SslMode::Disable;
        }
        config.ssl_mode(tls::to_driver(security.mode));
        Ok(DatabaseUrl { config, pooled, security })
    }
}

fn file(text: &str) -> Result<PathBuf, String> {
    decoded(text).map(PathBuf::from).map_err(|error| error.to_string())
}

/// What a URL looks like.
const EXAMPLE: &str = "it looks like postgres://user:password@host:5432/database, or, with the folder of a \
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

/// The password that is not in the URL.
fn password(config: &Config) -> Option<String> {
    if let Ok(password) = env::var("PGPASSWORD") {
        return Some(password);
    }
    let file = env::var_os("PGPASSFILE").map(PathBuf::from);
    let file = file.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".pgpass")))?;
    let (user, ports) = (config.get_user().unwrap_or_default(), config.get_ports());
    config.get_hosts().iter().enumerate().find_map(|(index, host)| {
        let wanted = PassfileQuery {
            host: match host {
                Host::Tcp(name) => name,
                Host::Unix(_) => "localhost",
            },
            port: ports.get(index).or(ports.first()).copied().unwrap_or(5432),
            dbname: config.get_dbname().unwrap_or(user),
            user,
        };
        passfile::find(&file, wanted).unwrap_or_else(|why| {
            tracing::warn!(file = %file.display(), "{why}");
            None
        })
    })
}

#[cfg(test)]
mod tests {
    use taskyard_postgres::Conninfo;

    use super::*;

    #[test]
    fn our_own_parameters_are_removed_from_the_url() {
        let target = DatabaseUrl::read("postgres://a@b/c?connect_timeout=3").unwrap();
        assert_eq!((target.pooled, target.security), (false, Security::default()));
        let url = "postgres://a@b/c?pooler=transaction&sslmode=verify-full&sslrootcert=%2Ftmp%2Fa%20b\
                   &sslcert=/own.crt&sslkey=/own.key";
        let target = DatabaseUrl::read(url).unwrap();
        let expected = Security {
            mode: SslMode::VerifyFull,
            root: Some("/tmp/a b".into()),
            cert: Some("/own.crt".into()),
            key: Some("/own.key".into()),
        };
        assert_eq!((target.pooled, target.security), (true, expected));
        let local = DatabaseUrl::read("postgres://a@%2Frun/c?sslmode=require").unwrap();
        assert_eq!(local.security.mode, SslMode::Disable);
        for (wrong, why) in [
            ("postgres://a@b/c?sslmode=maybe", "sslmode=maybe is not known"),
            ("postgres://a@b/c?pooler=session", "pooler=session is not known"),
            ("postgres://a@b/c?nonsense=1", "nonsense"),
            ("postgres:/x", "looks like postgres://user:password@host:5432/database"),
            ("postgres://a@b:port/c", "looks like postgres://"),
        ] {
            let refusal = DatabaseUrl::read(wrong).unwrap_err();
            assert!(refusal.contains(why), "{refusal}");
        }
    }

    /// SQL tasks parse connection strings by rules of their own, because the driver's parser does not fit: one URL must
    /// mean one database in both.
    #[test]
    fn a_url_means_the_same_for_sql_tasks() {
        for url in [
            "postgres://ann@db/shop",
            "postgresql://ann:p%40ss@db:6432/sh%20op",
            "postgres://ann@one:1,two:2/shop",
            "postgres://ann@one,two:2/shop",
            "postgres://ann@[::1]:6432/shop",
            "postgres://ann@%2Frun%2Fpg/shop",
            "postgres://ann@db/shop?options=-c%20work_mem%3D1MB&connect_timeout=7",
            "postgres:///shop?host=/run/pg&user=ann&port=6432",
        ] {
            let driver = DatabaseUrl::read(url).unwrap().config;
            let ours = Conninfo::parse(url).unwrap();
            let hosts = driver.get_hosts().iter().map(|host| match host {
                Host::Tcp(name) => name.clone(),
                Host::Unix(folder) => folder.display().to_string(),
            });
            let ports = driver.get_ports();
            let port = |n| ports.get(n).or(ports.first()).copied().unwrap_or(5432);
            let places: Vec<_> = hosts.enumerate().map(|(n, host)| (host, port(n))).collect();
            assert_eq!(ours.addresses(), places, "{url}");
            assert_eq!(ours.user.as_deref(), driver.get_user(), "{url}");
            assert_eq!(ours.dbname.as_deref(), driver.get_dbname(), "{url}");
            assert_eq!(ours.options.as_deref(), driver.get_options(), "{url}");
            assert_eq!(
                ours.password.as_ref().map(String::as_bytes),
                driver.get_password(),
                "{url}"
            );
            let seconds = driver.get_connect_timeout().map_or(0, |most| most.as_secs());
            assert_eq!(u64::from(ours.connect_timeout), seconds, "{url}");
        }
        for wrong in ["postgres://h:port/d", "postgres://h/d?nonsense=1"] {
            assert!(
                DatabaseUrl::read(wrong).is_err() && Conninfo::parse(wrong).is_err(),
                "{wrong}"
            );
        }
    }
}
