//! The options of a server for access over HTTP: address, certificate, token, users, audit.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use taskyard_server::{AuditFile, Config, Server, Token, TokenError, Users};

use crate::connect::URL_DEFAULT;
use crate::failure::UsageError;
use crate::output::{note, quoted};
use crate::secret_file;
use crate::tls::TlsArgs;
use crate::users_file::{UsersFile, UsersFormat};

/// How to run a server without a token.
const WITHOUT_TOKEN: &str = "to run without a token, leave out --token and --token-file and unset \
                             TASKYARD_TOKEN";

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "give an IP address with a port, such as 127.0.0.1:7070".into())
}

/// The options for access over HTTP.
#[derive(Debug, Args)]
pub struct AccessArgs {
    /// Address for HTTP; port 0 selects a free port.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7070", value_parser = address)]
    pub http: SocketAddr,
    /// Access token that clients must send. Other users of this machine can read command lines: prefer --token-file or
    /// TASKYARD_TOKEN.
    #[arg(long, value_name = "TOKEN", env = "TASKYARD_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Read the token from this file, which only its owner may read.
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
    token_file: Option<PathBuf>,
    /// TOML file with users, their tokens and roles; see taskyard user --help. It is read again when it changes and on
    /// SIGHUP. The token above stays valid and has all rights.
    #[arg(long, value_name = "FILE")]
    users: Option<PathBuf>,
    /// Append a JSON line to this file for each change that an operator or administrator makes: who, from where, what, how
    /// many tasks. It is created for its owner alone; SIGHUP opens it again after a rotation.
    #[arg(long, value_name = "FILE")]
    audit: Option<PathBuf>,
    /// Allow an address that other machines can reach although there are neither users nor a token.
    #[arg(long)]
    insecure: bool,
    #[command(flatten)]
    pub tls: TlsArgs,
}

impl AccessArgs {
    /// The configuration of a server with these options, and the file of its users.
    pub fn config(&self) -> anyhow::Result<(Config, Option<UsersFile>)> {
        let (config, users_file) = self.without_audit()?;
        let audit = self.audit.as_deref().map(AuditFile::open).transpose();
        let audit = audit.map_err(|error| UsageError(error.to_string()))?;
        Ok((Config { audit, ..config }, users_file))
    }

    /// The same without the audit file, which would be created.
    pub fn without_audit(&self) -> anyhow::Result<(Config, Option<UsersFile>)> {
        let token = self.token()?;
        let open = |path| UsersFile::open(path, UsersFormat::Toml);
        let (users, users_file) = self.users.as_deref().map(open).transpose()?.unzip();
        let users: Users = users.unwrap_or_default();
        let is_open = token.is_none() && users.is_empty();
        if is_open && !self.http.ip().is_loopback() {
            self.warn_open(self.http, "a token");
        }
        let (insecure, tls) = (self.insecure, self.tls.http()?);
        Ok((Config { token, users, insecure, tls, ..Config::new(self.http) }, users_file))
    }

    /// Checks the audit file without creating it.
    pub fn check_audit(&self) -> anyhow::Result<()> {
        let checked = self.audit.as_deref().map_or(Ok(()), AuditFile::check);
        Ok(checked.map_err(|error| UsageError(error.to_string()))?)
    }

    /// Warns of an address that other machines can reach, if that is allowed; otherwise the server does not start.
    pub fn warn_open(&self, address: SocketAddr, missing: &str) {
        if self.insecure {
            note(format!(
                "warning: --insecure: {address} can be reached from other machines without {missing}; every client \
                 there can read, change and delete all tasks"
            ));
        }
    }

    /// The options with which a client command reaches the server, for the start screen.
    pub fn client_flags(&self, server: &Server) -> String {
        let mut flags = String::new();
        if server.url() != URL_DEFAULT {
            flags = format!(" --url {}", server.url());
        }
        if server.needs_token() {
            flags.push_str(" --token-file FILE");
        }
        if let Some(certificate) = self.tls.certificate() {
            // A client trusts the certificate that it is given, whichever authority signed it.
            flags.push_str(&format!(" --ca {}", quoted(&certificate.display().to_string())));
        }
        if self.tls.needs_client_certificate() {
            flags.push_str(" --client-cert FILE --client-key FILE");
        }
        flags
    }

    fn token(&self) -> anyhow::Result<Option<Token>> {
        let text = match &self.token_file {
            Some(path) => Some(secret_file::read(path, "the token")?),
            None => self.token.clone(),
        };
        // An empty token is usually a missing secret, so it must not make the server accessible without one.
        let token = text.map(|text| Token::new(&text)).transpose();
        Ok(token.map_err(|error| match error {
            TokenError::Empty => UsageError(format!("{error}; {WITHOUT_TOKEN}")),
            other => UsageError(other.to_string()),
        })?)
    }
}
