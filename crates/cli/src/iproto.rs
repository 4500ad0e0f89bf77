//! The options of `serve` for clients of Tarantool's queue.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use taskyard_server::{BindError, Config, IprotoConfig, Server};

use crate::failure::UsageError;
use crate::output::note;
use crate::tls::TlsArgs;
use crate::users_file::{UsersFile, UsersFormat};

/// The default address for clients of Tarantool's queue.
const ADDRESS_DEFAULT: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 3301);

/// The options for clients of Tarantool's queue.
#[derive(Debug, Args)]
pub struct IprotoArgs {
    /// Address for clients of Tarantool's queue, or off [default: 127.0.0.1:3301, or off if that is in use].
    #[arg(long, value_name = "ADDR|off", value_parser = address)]
    iproto: Option<Address>,
    /// Prefix of the function names that these clients call.
    #[arg(long, value_name = "NAME", default_value = "queue")]
    iproto_prefix: String,
    /// YAML file with the users of this address and their rights, which only its owner may open; without it every client
    /// has all rights or, if the server has a token, only user admin with the token as password. It is read again when it
    /// changes and on SIGHUP.
    #[arg(long, value_name = "FILE", conflicts_with = "users")]
    iproto_users: Option<PathBuf>,
    /// PEM file with the certificate for TLS at this address, if it is not that of --tls-cert.
    #[arg(long, value_name = "FILE", requires = "iproto_tls_key")]
    iproto_tls_cert: Option<PathBuf>,
    /// PEM file with the private key of the certificate.
    #[arg(long, value_name = "FILE", requires = "iproto_tls_cert")]
    iproto_tls_key: Option<PathBuf>,
}

/// The address to listen on, or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Address {
    Off,
    At(SocketAddr),
}

fn address(text: &str) -> Result<Address, String> {
    match text {
        "off" => Ok(Address::Off),
        _ => text.parse().map(Address::At).map_err(|_| {
            "give an IP address with a port, such as 127.0.0.1:3301, or the word off".into()
        }),
    }
}

impl IprotoArgs {
    /// The configuration, `None` if such clients are not served, and the file of its users.
    pub fn config(
        &self,
        tls: &TlsArgs,
    ) -> anyhow::Result<(Option<IprotoConfig>, Option<UsersFile>)> {
        if !is_prefix(&self.iproto_prefix) {
            let text = "--iproto-prefix must be a name such as queue or box.queue";
            return Err(UsageError(text.into()).into());
        }
        let address = match self.iproto {
            Some(Address::Off) if self.iproto_users.is_some() || self.iproto_tls_cert.is_some() => {
                let text =
                    "--iproto off cannot be combined with --iproto-users or --iproto-tls-cert";
                return Err(UsageError(text.into()).into());
            }
            Some(Address::Off) => return Ok((None, None)),
            Some(Address::At(address)) => address,
            None => ADDRESS_DEFAULT,
        };
        let open = |path| UsersFile::open(path, UsersFormat::Yaml);
        let (users, file) = self.iproto_users.as_deref().map(open).transpose()?.unzip();
        let own = self.iproto_tls_cert.as_deref().zip(self.iproto_tls_key.as_deref());
        let tls = tls.iproto(own)?;
        let config = IprotoConfig {
            prefix: self.iproto_prefix.clone(),
            users: users.unwrap_or_default(),
            tls,
            ..IprotoConfig::new(address)
        };
        Ok((Some(config), file))
    }

    /// The address, if other machines can reach it and no users are configured.
    pub fn open_address(&self) -> Option<SocketAddr> {
        match self.iproto {
            Some(Address::At(address)) if !self.has_users() && !address.ip().is_loopback() => {
                Some(address)
            }
            _ => None,
        }
    }

    /// Whether there is a list of users.
    pub fn has_users(&self) -> bool {
        self.iproto_users.is_some()
    }

    /// The configuration without this address, if it is the default one and in use. Any other error is returned.
    pub fn without(&self, config: Config, refusal: BindError) -> Result<Config, BindError> {
        match refusal {
            BindError::IprotoBusy(busy) if self.iproto.is_none() => {
                note(format!(
                    "{busy} is in use; clients of Tarantool's queue are not served; choose \
                     another address with --iproto, or use --iproto off"
                ));
                Ok(Config { iproto: None, ..config })
            }
            other => Err(other),
        }
    }
}

/// The line of the start message.
pub fn line(server: &Server, args: &IprotoArgs) -> String {
    let Some(address) = server.iproto_address() else { return "off".into() };
    let mut line = format!("{address} (clients of Tarantool's queue");
    if let Some(admin) = server.iproto_admin() {
        line.push_str(&format!("; user {admin}, password: the token"));
    }
    if args.iproto_users.is_some() {
        line.push_str("; users only");
    }
    if server.encrypts_iproto() {
        line.push_str("; TLS only");
    }
    line + ")"
}

/// Whether this is a dotted name of Lua.
fn is_prefix(text: &str) -> bool {
    let is_name = |name: &str| {
        let first = name.chars().next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
        first && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    text.split('.').all(is_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_a_dotted_name() {
        assert!(["queue", "box.queue", "_q2"].into_iter().all(is_prefix));
        assert!(["", "a.", "a:b", "2a", "a b"].into_iter().all(|text| !is_prefix(text)));
    }

    #[test]
    fn an_address_or_off() {
        assert_eq!(address("off"), Ok(Address::Off));
        assert_eq!(address("127.0.0.1:3301"), Ok(Address::At(ADDRESS_DEFAULT)));
        assert!(address("3301").unwrap_err().contains("127.0.0.1:3301"));
    }
}
