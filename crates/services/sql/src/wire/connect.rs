//! Opening a connection: socket, encryption, proof of who we are.

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

use super::{Arrived, Refusal, Stream, Wire, tls};
use taskyard_postgres::passfile::{self, PassfileQuery};
use taskyard_postgres::{Conninfo, SslMode};

/// How long connecting may take unless the connection string says otherwise.
const CONNECT_MAX: Duration = Duration::from_secs(15);

/// How often a silent connection is asked whether it is still there.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Why there is no connection.
#[derive(Debug)]
pub enum ConnectError {
    /// Nobody answers there, or not in our language.
    Unreachable(String),
    /// The database refused us.
    Refused(Refusal),
    /// It did not ask for the password that it should have asked for.
    PasswordUnused,
}

impl ConnectError {
    /// In one line.
    pub fn line(&self) -> String {
        match self {
            ConnectError::Unreachable(why) => why.clone(),
            ConnectError::Refused(refusal) => refusal.line(),
            ConnectError::PasswordUnused => "the server did not ask for the password".into(),
        }
    }
}

impl From<io::Error> for ConnectError {
    fn from(error: io::Error) -> Self {
        ConnectError::Unreachable(error.to_string())
    }
}

/// How a session begins.
#[derive(Clone, Debug, Default)]
pub struct Opening {
    /// Settings of the session by name.
    pub settings: Vec<(String, String)>,
    /// Refuse a server that lets us in without our password: who wrote the connection string may not have the rights of
    /// the machine we run on.
    pub password_must_count: bool,
}

/// Where a running query can be cancelled.
#[derive(Clone)]
pub struct Cancel {
    place: (String, u16),
    pid: i32,
    key: i32,
}

impl Cancel {
    /// Asks the server to cancel what the session runs now. It may be too late.
    pub async fn send(&self) -> io::Result<()> {
        let mut stream = open(&self.place).await?;
        let mut message = BytesMut::new();
        frontend::cancel_request(self.pid, self.key, &mut message);
        match &mut stream {
            Open::Tcp(stream) => stream.write_all(&message).await?,
            Open::Unix(stream) => stream.write_all(&message).await?,
        }
        // The server closes when it has passed the request on.
        let mut nothing = [0; 1];
        match &mut stream {
            Open::Tcp(stream) => stream.read(&mut nothing).await?,
            Open::Unix(stream) => stream.read(&mut nothing).await?,
        };
        Ok(())
    }
}

enum Open {
    Tcp(TcpStream),
    Unix(UnixStream),
}

async fn open((host, port): &(String, u16)) -> io::Result<Open> {
    if host.starts_with('/') {
        let socket = Path::new(host).join(format!(".s.PGSQL.{port}"));
        return Ok(Open::Unix(UnixStream::connect(socket).await?));
    }
    let stream = TcpStream::connect((host.as_str(), *port)).await?;
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
    SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
    Ok(Open::Tcp(stream))
}

/// Connects to the first place that answers.
pub async fn connect(conninfo: &Conninfo, opening: &Opening) -> Result<Wire, ConnectError> {
    let most = match conninfo.connect_timeout {
        0 => CONNECT_MAX,
        seconds => Duration::from_secs(seconds.max(2).into()),
    };
    let mut last = ConnectError::Unreachable("no host is given".into());
    for place in conninfo.addresses() {
        match timeout(most, connect_to(place, conninfo, opening)).await {
            Ok(Ok(wire)) => return Ok(wire),
            // Only a place that does not answer is a reason to try the next.
            Ok(Err(ConnectError::Unreachable(why))) => last = ConnectError::Unreachable(why),
            Ok(Err(error)) => return Err(error),
            Err(_) => last = ConnectError::Unreachable("timeout expired".into()),
        }
    }
    Err(last)
}

async fn connect_to(
    place: (String, u16),
    conninfo: &Conninfo,
    opening: &Opening,
) -> Result<Wire, ConnectError> {
    let stream: Box<dyn Stream> = match open(&place).await? {
        Open::Unix(stream) => Box::new(stream),
        Open::Tcp(stream) => encrypt(stream, &place, conninfo).await?,
    };
    let mut wire = Wire::new(stream);
    wire.start(conninfo, opening)?;
    wire.authenticate(conninfo, &place, opening).await?;
    loop {
        match wire.next_of_start().await? {
            Message::BackendKeyData(keys) => {
                wire.pid = keys.process_id();
                let cancel = Cancel { place: place.clone(), pid: wire.pid, key: keys.secret_key() };
                wire.cancel = Some(cancel);
            }
            Message::ReadyForQuery(_) => return Ok(wire),
            _ => {}
        }
    }
}

async fn encrypt(
    mut stream: TcpStream,
    place: &(String, u16),
    conninfo: &Conninfo,
) -> io::Result<Box<dyn Stream>> {
    let Some(config) = tls::config(conninfo).await? else { return Ok(Box::new(stream)) };
    let mut ask = BytesMut::new();
    frontend::ssl_request(&mut ask);
    stream.write_all(&ask).await?;
    match stream.read_u8().await? {
        b'S' => Ok(Box::new(tls::encrypt(stream, &place.0, config).await?)),
        _ if conninfo.sslmode == SslMode::Prefer => Ok(Box::new(stream)),
        _ => Err(io::Error::other("server does not support SSL, but SSL was required")),
    }
}

impl Wire {
    fn start(&mut self, conninfo: &Conninfo, opening: &Opening) -> io::Result<()> {
        let user = conninfo.user.as_deref().or(conninfo.dbname.as_deref()).unwrap_or("postgres");
        let dbname = conninfo.dbname.as_deref().unwrap_or(user);
        let mut settings = vec![("user", user), ("database", dbname), ("client_encoding", "UTF8")];
        settings.extend(conninfo.options.as_deref().map(|options| ("options", options)));
        settings.extend(opening.settings.iter().map(|(name, value)| (&**name, &**value)));
        frontend::startup_message(settings, &mut self.out)
    }

    async fn authenticate(
        &mut self,
        conninfo: &Conninfo,
        place: &(String, u16),
        opening: &Opening,
    ) -> Result<(), ConnectError> {
        let user = conninfo.user.as_deref().or(conninfo.dbname.as_deref()).unwrap_or("postgres");
        let mut asked = false;
        loop {
            let answer = self.next_of_start().await?;
            if let Message::AuthenticationOk = answer {
                if opening.password_must_count && !asked {
                    return Err(ConnectError::PasswordUnused);
                }
                return Ok(());
            }
            let password = password(conninfo, place, opening).ok_or_else(|| {
                let refusal = Refusal::own("fe_sendauth: no password supplied");
                // As the server would say it: it does not tell whether there is such a role.
                ConnectError::Refused(Refusal { code: "28P01".into(), ..refusal })
            })?;
            asked = true;
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
                        let why = "the server knows no way to prove a password that we know";
                        return Err(ConnectError::Unreachable(why.into()));
                    }
                    self.scram(&password).await?;
                }
                _ => {
                    let why = "the server asks for a proof that we do not know";
                    return Err(ConnectError::Unreachable(why.into()));
                }
            }
        }
    }

    async fn scram(&mut self, password: &str) -> Result<(), ConnectError> {
        let mut scram = ScramSha256::new(password.as_bytes(), ChannelBinding::unsupported());
        frontend::sasl_initial_response(SCRAM_SHA_256, scram.message(), &mut self.out)?;
        let odd = || ConnectError::Unreachable("the server's proof is not in order".into());
        let Message::AuthenticationSaslContinue(body) = self.next_of_start().await? else {
            return Err(odd());
        };
        scram.update(body.data())?;
        frontend::sasl_response(scram.message(), &mut self.out)?;
        let Message::AuthenticationSaslFinal(body) = self.next_of_start().await? else {
            return Err(odd());
        };
        Ok(scram.finish(body.data())?)
    }

    /// The next message of the beginning; a refusal is an error.
    async fn next_of_start(&mut self) -> Result<Message, ConnectError> {
        loop {
            match self.next().await? {
                Arrived::Message(Message::ErrorResponse(body)) => {
                    return Err(ConnectError::Refused(Refusal::read(&body)));
                }
                Arrived::Message(Message::NoticeResponse(_) | Message::ParameterStatus(_)) => {}
                Arrived::Message(message) => return Ok(message),
                Arrived::Skipped(_) | Arrived::Columns(_) => {}
            }
        }
    }
}

/// The password of the connection string, or of the file it names.
fn password(conninfo: &Conninfo, place: &(String, u16), opening: &Opening) -> Option<String> {
    if conninfo.password.is_some() || opening.password_must_count {
        return conninfo.password.clone();
    }
    let file = Path::new(conninfo.passfile.as_deref()?);
    let user = conninfo.user.as_deref().or(conninfo.dbname.as_deref()).unwrap_or("postgres");
    let dbname = conninfo.dbname.as_deref().unwrap_or(user);
    let host = if place.0.starts_with('/') { "localhost" } else { &place.0 };
    let wanted = PassfileQuery { host, port: place.1, dbname, user };
    passfile::find(file, wanted).unwrap_or_else(|why| {
        tracing::warn!(file = %file.display(), "{why}");
        None
    })
}
