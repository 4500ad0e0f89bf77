//! Opens a connection: socket, encryption, authentication.

use std::io;
use std::path::Path;
use std::time::Duration;

use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, SCRAM_SHA_256, ScramSha256};
use postgres_protocol::message::backend::Message;
use postgres_protocol::message::frontend;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use super::{Connection, Incoming, SqlError, Stream, tls};
use crate::table::identifier;
use taskyard_postgres::passfile::{self, PassfileQuery};
use taskyard_postgres::{Conninfo, SslMode};

/// How long connecting may take unless the connection string says otherwise.
const CONNECT_MAX: Duration = Duration::from_secs(15);

/// The interval of TCP keepalives.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Why a connection could not be opened.
#[derive(Debug)]
pub enum ConnectError {
    /// The server does not answer, or not with the protocol of PostgreSQL.
    Unreachable(String),
    /// The server refused the connection.
    Refused(SqlError),
    /// The server did not request the password that it was required to request.
    PasswordUnused,
}

impl ConnectError {
    /// The error in one line.
    pub fn line(&self) -> String {
        match self {
            ConnectError::Unreachable(why) => why.clone(),
            ConnectError::Refused(error) => error.line(),
            ConnectError::PasswordUnused => "the server did not request a password".into(),
        }
    }

    /// The error in one line, with the database, the server and the role of the connection string.
    pub fn described(&self, conninfo: &Conninfo) -> String {
        let addresses = conninfo.addresses().into_iter().map(|(host, port)| {
            match (host.starts_with('/'), host.contains(':')) {
                (true, _) => format!("{host}/.s.PGSQL.{port}"),
                (false, true) => format!("[{host}]:{port}"),
                (false, false) => format!("{host}:{port}"),
            }
        });
        let addresses = addresses.collect::<Vec<_>>().join(", ");
        let (user, dbname) = login(conninfo);
        format!("cannot connect to database '{dbname}' at {addresses} as '{user}': {}", self.line())
    }

    /// The statement that creates the role of the connection string, if the role does not exist.
    pub fn missing_role(&self, conninfo: &Conninfo) -> Option<String> {
        let ConnectError::Refused(error) = self else { return None };
        // 28000 also means that the role may not log in, or not from this machine.
        let missing = error.code == "28000" && error.message.ends_with("does not exist");
        missing.then(|| format!("CREATE ROLE {} LOGIN", identifier(login(conninfo).0)))
    }
}

/// The role and the database that a connection string means.
fn login(conninfo: &Conninfo) -> (&str, &str) {
    let user = conninfo.user.as_deref().or(conninfo.dbname.as_deref()).unwrap_or("postgres");
    (user, conninfo.dbname.as_deref().unwrap_or(user))
}

impl From<io::Error> for ConnectError {
    fn from(error: io::Error) -> Self {
        ConnectError::Unreachable(error.to_string())
    }
}

/// The options of a new session.
#[derive(Clone, Debug, Default)]
pub struct SessionOptions {
    /// The settings of the startup message.
    pub settings: Vec<(String, String)>,
    /// Refuse a server that accepts the connection without a password: the author of the connection string must not use
    /// the rights of the machine that the scheduler runs on.
    pub require_password_auth: bool,
}

/// Cancels the running query of a session.
#[derive(Clone)]
pub struct CancelHandle {
    address: (String, u16),
    pid: i32,
    key: i32,
}

impl CancelHandle {
    /// Asks the server to cancel the running query of the session, which may end before the request arrives.
    pub async fn send(&self) -> io::Result<()> {
        let mut stream = open(&self.address).await?;
        let mut message = BytesMut::new();
        frontend::cancel_request(self.pid, self.key, &mut message);
        match &mut stream {
            Socket::Tcp(stream) => stream.write_all(&message).await?,
            Socket::Unix(stream) => stream.write_all(&message).await?,
        }
        // The server closes the connection when it has forwarded the request.
        let mut nothing = [0; 1];
        match &mut stream {
            Socket::Tcp(stream) => stream.read(&mut nothing).await?,
            Socket::Unix(stream) => stream.read(&mut nothing).await?,
        };
        Ok(())
    }
}

enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

async fn open((host, port): &(String, u16)) -> io::Result<Socket> {
    if host.starts_with('/') {
        let socket = Path::new(host).join(format!(".s.PGSQL.{port}"));
        return Ok(Socket::Unix(UnixStream::connect(socket).await?));
    }
    let stream = TcpStream::connect((host.as_str(), *port)).await?;
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
    SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
    Ok(Socket::Tcp(stream))
}

/// Connects to the first address that answers.
pub async fn connect(
    conninfo: &Conninfo,
    options: &SessionOptions,
) -> Result<Connection, ConnectError> {
    let most = match conninfo.connect_timeout {
        0 => CONNECT_MAX,
        seconds => Duration::from_secs(seconds.max(2).into()),
    };
    let mut last = ConnectError::Unreachable("the connection string names no host".into());
    for address in conninfo.addresses() {
        match timeout(most, connect_to(address, conninfo, options)).await {
            Ok(Ok(connection)) => return Ok(connection),
            // The next address is tried only if this one does not answer.
            Ok(Err(ConnectError::Unreachable(why))) => last = ConnectError::Unreachable(why),
            Ok(Err(error)) => return Err(error),
            Err(_) => last = ConnectError::Unreachable("timeout expired".into()),
        }
    }
    Err(last)
}

async fn connect_to(
    address: (String, u16),
    conninfo: &Conninfo,
    options: &SessionOptions,
) -> Result<Connection, ConnectError> {
    let stream: Box<dyn Stream> = match open(&address).await? {
        Socket::Unix(stream) => Box::new(stream),
        Socket::Tcp(stream) => encrypt(stream, &address, conninfo).await?,
    };
    let mut connection = Connection::new(stream);
    connection.start(conninfo, options)?;
    connection.authenticate(conninfo, &address, options).await?;
    loop {
        match connection.next_startup_message().await? {
            Message::BackendKeyData(keys) => {
                connection.pid = keys.process_id();
                let cancel = CancelHandle {
                    address: address.clone(),
                    pid: connection.pid,
                    key: keys.secret_key(),
                };
                connection.cancel = Some(cancel);
            }
            Message::ReadyForQuery(_) => return Ok(connection),
            _ => {}
        }
    }
}

async fn encrypt(
    mut stream: TcpStream,
    address: &(String, u16),
    conninfo: &Conninfo,
) -> io::Result<Box<dyn Stream>> {
    let Some(config) = tls::config(conninfo).await? else { return Ok(Box::new(stream)) };
    let mut request = BytesMut::new();
    frontend::ssl_request(&mut request);
    stream.write_all(&request).await?;
    match stream.read_u8().await? {
        b'S' => Ok(Box::new(tls::encrypt(stream, &address.0, config).await?)),
        _ if conninfo.sslmode == SslMode::Prefer => Ok(Box::new(stream)),
        _ => Err(io::Error::other("server does not support SSL, but SSL was required")),
    }
}

impl Connection {
    fn start(&mut self, conninfo: &Conninfo, options: &SessionOptions) -> io::Result<()> {
        let (user, dbname) = login(conninfo);
        let mut settings = vec![("user", user), ("database", dbname), ("client_encoding", "UTF8")];
        settings.extend(conninfo.options.as_deref().map(|options| ("options", options)));
        settings.extend(options.settings.iter().map(|(name, value)| (&**name, &**value)));
        frontend::startup_message(settings, &mut self.out)
    }

    async fn authenticate(
        &mut self,
        conninfo: &Conninfo,
        address: &(String, u16),
        options: &SessionOptions,
    ) -> Result<(), ConnectError> {
        let (user, _) = login(conninfo);
        let mut password_requested = false;
        loop {
            let answer = self.next_startup_message().await?;
            if let Message::AuthenticationOk = answer {
                if options.require_password_auth && !password_requested {
                    return Err(ConnectError::PasswordUnused);
                }
                return Ok(());
            }
            let password = password(conninfo, address, options).ok_or_else(|| {
                let error = SqlError::new("fe_sendauth: no password supplied");
                // The same code as the server's, which does not reveal whether the role exists.
                ConnectError::Refused(SqlError { code: "28P01".into(), ..error })
            })?;
            password_requested = true;
            match answer {
                Message::AuthenticationCleartextPassword => {
                    frontend::password_message(password.as_bytes(), &mut self.out)?;
                }
                Message::AuthenticationMd5Password(body) => {
                    let hash = md5_hash(user.as_bytes(), password.as_bytes(), body.salt());
                    frontend::password_message(hash.as_bytes(), &mut self.out)?;
                }
                Message::AuthenticationSasl(body) => {
                    let mut mechanisms = body.mechanisms();
                    if !mechanisms.any(|name| Ok(name == SCRAM_SHA_256))? {
                        let why = "the server offers no supported SASL mechanism (SCRAM-SHA-256)";
                        return Err(ConnectError::Unreachable(why.into()));
                    }
                    self.scram(&password).await?;
                }
                _ => {
                    let why = "the server requests an unsupported authentication method";
                    return Err(ConnectError::Unreachable(why.into()));
                }
            }
        }
    }

    async fn scram(&mut self, password: &str) -> Result<(), ConnectError> {
        let mut scram = ScramSha256::new(password.as_bytes(), ChannelBinding::unsupported());
        frontend::sasl_initial_response(SCRAM_SHA_256, scram.message(), &mut self.out)?;
        let odd = || ConnectError::Unreachable("unexpected message during SCRAM".into());
        let Message::AuthenticationSaslContinue(body) = self.next_startup_message().await? else {
            return Err(odd());
        };
        scram.update(body.data())?;
        frontend::sasl_response(scram.message(), &mut self.out)?;
        let Message::AuthenticationSaslFinal(body) = self.next_startup_message().await? else {
            return Err(odd());
        };
        Ok(scram.finish(body.data())?)
    }

    /// The next message of the startup phase.
    async fn next_startup_message(&mut self) -> Result<Message, ConnectError> {
        loop {
            match self.next().await? {
                Incoming::Message(Message::ErrorResponse(body)) => {
                    return Err(ConnectError::Refused(SqlError::read(&body)));
                }
                Incoming::Message(Message::NoticeResponse(_) | Message::ParameterStatus(_)) => {}
                Incoming::Message(message) => return Ok(message),
                Incoming::Skipped(_) | Incoming::Columns(_) => {}
            }
        }
    }
}

/// The password of the connection string, or of the file it names.
fn password(
    conninfo: &Conninfo,
    address: &(String, u16),
    options: &SessionOptions,
) -> Option<String> {
    if conninfo.password.is_some() || options.require_password_auth {
        return conninfo.password.clone();
    }
    let file = Path::new(conninfo.passfile.as_deref()?);
    let (user, dbname) = login(conninfo);
    let host = if address.0.starts_with('/') { "localhost" } else { &address.0 };
    let wanted = PassfileQuery { host, port: address.1, dbname, user };
    passfile::find(file, wanted).unwrap_or_else(|why| {
        tracing::warn!(file = %file.display(), "{why}");
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_database_the_server_and_the_role() {
        let error = ConnectError::Unreachable("timeout expired".into());
        for (url, expected) in [
            ("postgres://ann@db:5433/shop", "database 'shop' at db:5433 as 'ann'"),
            ("postgres://db/shop", "database 'shop' at db:5432 as 'shop'"),
            ("host=a,::1 user=ann", "database 'ann' at a:5432, [::1]:5432 as 'ann'"),
            ("host=/tmp dbname=x", "database 'x' at /tmp/.s.PGSQL.5432 as 'x'"),
        ] {
            let described = error.described(&Conninfo::parse(url).unwrap());
            assert_eq!(described, format!("cannot connect to {expected}: timeout expired"));
        }
    }

    #[test]
    fn only_a_missing_role_is_created() {
        let conninfo = Conninfo::parse("postgres://an\"n@db/shop").unwrap();
        let refused = |code: &str, message: &str| {
            let error = SqlError { code: code.into(), ..SqlError::new(message) };
            ConnectError::Refused(error).missing_role(&conninfo)
        };
        let statement = Some("CREATE ROLE \"an\"\"n\" LOGIN".to_owned());
        assert_eq!(refused("28000", "role \"an\"n\" does not exist"), statement);
        assert_eq!(refused("28000", "role \"an\"n\" is not permitted to log in"), None);
        assert_eq!(refused("3D000", "database \"shop\" does not exist"), None);
    }
}
