//! Sends requests of client commands to the server.

use std::convert::Infallible;
use std::env;
use std::future::Future;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};
use std::pin::Pin;

use clap::Args;
use taskyard::Http;
use taskyard_core::{Command, Reply};

use crate::failure::UsageError;
use crate::output::quoted;
use crate::secret_file;

/// The default URL of a server.
pub const URL_DEFAULT: &str = "http://127.0.0.1:7070";
/// The port of an address without one.
const PORT_DEFAULT: u16 = 7070;

/// The server to connect to.
#[derive(Clone, Debug, Args)]
pub struct ConnectArgs {
    /// URL of the server; without http:// the default port is 7070.
    #[arg(long, env = "TASKYARD_URL", default_value = URL_DEFAULT, value_name = "URL")]
    #[arg(value_parser = with_scheme)]
    #[arg(help_heading = "Server")]
    url: String,
    /// The access token of the server. Other users of this machine can read command lines: prefer --token-file or
    /// TASKYARD_TOKEN.
    #[arg(long, env = "TASKYARD_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    #[arg(help_heading = "Server")]
    token: Option<String>,
    /// Read the access token from this file, which other users of this machine must not be able to read.
    #[arg(long, env = "TASKYARD_TOKEN_FILE", value_name = "FILE")]
    #[arg(help_heading = "Server")]
    token_file: Option<PathBuf>,
    /// PEM file with the certificates that are trusted for https://, instead of those of the system: of an authority, or
    /// that of the server itself.
    #[arg(long, env = "TASKYARD_CA", value_name = "FILE")]
    #[arg(help_heading = "Server")]
    ca: Option<PathBuf>,
    /// PEM file with the certificate that is shown to a server that asks for one.
    #[arg(long, env = "TASKYARD_CLIENT_CERT", value_name = "FILE", requires = "client_key")]
    #[arg(help_heading = "Server")]
    client_cert: Option<PathBuf>,
    /// PEM file with the private key of the client certificate.
    #[arg(long, env = "TASKYARD_CLIENT_KEY", value_name = "FILE", requires = "client_cert")]
    #[arg(help_heading = "Server")]
    client_key: Option<PathBuf>,
}

/// The server to connect to, and the form of the output: text or one JSON value.
#[derive(Debug, Args)]
pub struct ServerArgs {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// The server to connect to, and the form of the output: text or lines of JSON.
#[derive(Debug, Args)]
pub struct ServerLinesArgs {
    /// Print one JSON object per line.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub connect: ConnectArgs,
}

impl ConnectArgs {
    /// A client for the server, not connected yet.
    pub fn http(&self) -> anyhow::Result<Http> {
        let http = self.with_certificates(Http::new(&self.url)?)?;
        Ok(match self.token()? {
            Some(token) => http.with_token(&token)?,
            None => http,
        })
    }

    /// The token, from wherever it is given.
    fn token(&self) -> Result<Option<String>, UsageError> {
        let token = self.token.clone().filter(|token| !token.trim().is_empty());
        let file = self.token_file.as_deref().filter(|file| !file.as_os_str().is_empty());
        match (token, file) {
            (Some(_), Some(_)) => Err(UsageError(
                "both a token (--token or TASKYARD_TOKEN) and a file (--token-file or TASKYARD_TOKEN_FILE) are given; \
                 leave one of them out"
                    .into(),
            )),
            (None, Some(file)) => {
                let text = secret_file::read(file, "the token")?;
                let token = text.trim();
                match token.is_empty() {
                    true => Err(UsageError(format!("no token in {}", file.display()))),
                    false => Ok(Some(token.into())),
                }
            }
            (token, None) => Ok(token),
        }
    }

    /// Sets the certificates of an encrypted server.
    fn with_certificates(&self, mut http: Http) -> anyhow::Result<Http> {
        if !http.url().starts_with("https://") {
            self.refuse_certificates(&http.url())?;
            return Ok(http);
        }
        if let Some(ca) = given(&self.ca) {
            http = http.with_roots(ca)?;
        }
        Ok(match given(&self.client_cert).zip(given(&self.client_key)) {
            Some((certificate, key)) => http.with_client_certificate(certificate, key)?,
            None => http,
        })
    }

    /// Refuses certificates for a server that is not encrypted: the user expects that it is verified. Those of environment
    /// variables are for all servers, and are not used here.
    fn refuse_certificates(&self, url: &str) -> Result<(), UsageError> {
        let options = [
            ("--ca", &self.ca, "TASKYARD_CA"),
            ("--client-cert", &self.client_cert, "TASKYARD_CLIENT_CERT"),
        ];
        for (option, file, variable) in options {
            let is_option =
                |file: &Path| env::var_os(variable).as_deref() != Some(file.as_os_str());
            if given(file).is_some_and(is_option) {
                return Err(UsageError(format!(
                    "{option} is for https:// servers, but connections to {url} are not encrypted; use https://, or leave \
                     {option} out"
                )));
            }
        }
        Ok(())
    }

    /// Sends one command and returns the reply.
    pub fn execute(&self, command: Command) -> anyhow::Result<Reply> {
        let http = self.http()?;
        block_on(async { Ok(http.execute_one(command).await?) })
    }

    /// The flags that a suggested command line needs to use the same server.
    pub fn flags(&self) -> String {
        let known =
            env::var("TASKYARD_URL").is_ok_and(|url| with_scheme(&url).as_ref() == Ok(&self.url));
        if known || self.url == URL_DEFAULT {
            return String::new();
        }
        format!(" --url {}", quoted(&self.url))
    }
}

/// A file, unless its name is empty: an environment variable without a value names none.
fn given(file: &Option<PathBuf>) -> Option<&Path> {
    file.as_deref().filter(|path| !path.as_os_str().is_empty())
}

/// Adds the scheme and the default port to an address such as `localhost:7071` or `10.0.0.7`.
pub fn with_scheme(url: &str) -> Result<String, Infallible> {
    if url.contains("://") {
        return Ok(url.to_owned());
    }
    if url.parse::<Ipv6Addr>().is_ok() {
        return Ok(format!("http://[{url}]:{PORT_DEFAULT}"));
    }
    let (host, path) = url.split_at(url.find('/').unwrap_or(url.len()));
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
    let port = if has_port || host.is_empty() { String::new() } else { format!(":{PORT_DEFAULT}") };
    Ok(format!("http://{host}{port}{path}"))
}

/// The name by which this program was called, for suggested command lines.
pub fn program() -> String {
    env::args().next().map_or_else(|| "taskyard".into(), |name| quoted(&name))
}

/// The same for any folder: its path, unless the shell found it by its name.
pub fn program_anywhere() -> String {
    let name = program();
    let path = env::current_exe().ok().filter(|_| name.contains('/'));
    path.and_then(|path| path.to_str().map(quoted)).unwrap_or(name)
}

/// Runs a future to its end on this thread.
pub fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let mut result = None;
    run_boxed(Box::pin(async { result = Some(work.await) }))?;
    result.unwrap_or_else(|| unreachable!("a future that was run to its end has a result"))
}

/// Runs a future of any command, so that the code of the runtime is compiled once and not for each command.
fn run_boxed(work: Pin<Box<dyn Future<Output = ()> + '_>>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(work);
    Ok(())
}

/// The error for a reply that does not match the command.
pub fn unexpected_reply(verb: &str) -> anyhow::Error {
    anyhow::anyhow!(
        "the server sent an unexpected reply to {verb}; check that client and server have the same version"
    )
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn args(token: Option<&str>, token_file: Option<PathBuf>) -> ConnectArgs {
        let (url, token) = (URL_DEFAULT.into(), token.map(Into::into));
        ConnectArgs { url, token, token_file, ca: None, client_cert: None, client_key: None }
    }

    #[test]
    fn a_token_is_read_from_a_file_of_the_user() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let read = |token| args(token, Some(path.clone())).token().map_err(|error| error.0);
        assert!(read(None).unwrap_err().contains("cannot read the token"));
        for (mode, text, expected) in [
            (0o600, " abc\n", Ok("abc")),
            (0o644, "abc", Err("chmod 600")),
            (0o600, " \n", Err("no token in")),
        ] {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            match (read(None), expected) {
                (Ok(token), Ok(expected)) => assert_eq!(token.as_deref(), Some(expected)),
                (Err(error), Err(expected)) => assert!(error.contains(expected), "{error}"),
                (read, _) => panic!("{mode:o} {text:?}: {read:?}"),
            }
        }
        assert!(read(Some("other")).unwrap_err().contains("leave one of them out"));
        assert_eq!(args(Some("x"), None).token().unwrap().as_deref(), Some("x"));
        assert_eq!(args(Some(" "), None).token().unwrap(), None);
    }

    /// A host without a port meant port 80, where no taskyard listens.
    #[test]
    fn a_host_without_a_port_uses_the_default_port() {
        for (written, wanted) in [
            ("127.0.0.1", "http://127.0.0.1:7070"),
            ("box7.example", "http://box7.example:7070"),
            ("box7/", "http://box7:7070/"),
            ("localhost:7071", "http://localhost:7071"),
            ("::1", "http://[::1]:7070"),
            ("[::1]", "http://[::1]:7070"),
            ("[::1]:7071", "http://[::1]:7071"),
            ("http://127.0.0.1", "http://127.0.0.1"),
            ("https://box7", "https://box7"),
            (":7071", "http://:7071"),
            ("", "http://"),
        ] {
            assert_eq!(with_scheme(written).as_deref(), Ok(wanted), "{written}");
        }
    }
}
