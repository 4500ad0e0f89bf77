//! A pool in a separate process, and its clients.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The first byte of a text frame that is masked with zeros, and of one from a server, which is not masked.
const TEXT: u8 = 0x81;
const MASKED: u8 = 0x80;
/// The length that says that two bytes of length follow.
const LONGER: u8 = 126;

/// The pool's process; it ends with this.
pub struct Gateway {
    child: Child,
    pub address: String,
    folder: PathBuf,
}

impl Gateway {
    /// Starts a pool of this configuration.
    pub fn start(config: &str) -> Result<Self> {
        Gateway::start_program(&crate::product()?, config)
    }

    /// The same with another program.
    pub fn start_program(program: &Path, config: &str) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = format!("taskyard-bench-pool-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        std::fs::create_dir_all(&folder)?;
        let file = folder.join("pool.yaml");
        std::fs::write(&file, config)?;
        let mut child = Command::new(program)
            .args(["pool", "serve", "--http", "127.0.0.1:0"])
            .arg(file)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let output = BufReader::new(child.stdout.take().context("its output is ours")?);
        let line = output.lines().map_while(Result::ok).find(|line| line.starts_with("  pool "));
        let address = line.as_deref().and_then(|line| line.split('/').nth(2)).map(String::from);
        let gateway = Gateway { child, address: address.unwrap_or_default(), folder };
        if gateway.address.is_empty() {
            bail!("the gateway does not start");
        }
        Ok(gateway)
    }

    /// How much of the processor it has used.
    pub fn seconds_used(&self) -> Result<f64> {
        crate::processor_time::seconds_used(self.child.id())
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
        _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A minimal WebSocket client.
pub struct Line {
    pub stream: TcpStream,
}

impl Line {
    /// Asks for a program.
    pub async fn open(address: &str, program: &str) -> Result<Self> {
        let mut stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let request = format!(
            "GET /pool/run/{program} HTTP/1.1\r\nhost: {address}\r\nconnection: upgrade\r\nupgrade: \
             websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: \
             AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            answer.push(stream.read_u8().await?);
        }
        if !answer.starts_with(b"HTTP/1.1 101") {
            bail!("the gateway responded {}", String::from_utf8_lossy(&answer));
        }
        Ok(Line { stream })
    }

    /// Sends the start message.
    pub async fn say_start(&mut self) -> Result<()> {
        let text = b"start {}";
        let mut frame = vec![TEXT, MASKED | text.len() as u8, 0, 0, 0, 0];
        frame.extend_from_slice(text);
        Ok(self.stream.write_all(&frame).await?)
    }

    /// The next text message; others are skipped.
    pub async fn text(&mut self) -> Result<String> {
        loop {
            let kind = self.stream.read_u8().await?;
            let mut length = u64::from(self.stream.read_u8().await?);
            if length == u64::from(LONGER) {
                length = u64::from(self.stream.read_u16().await?);
            }
            let mut bytes = vec![0; length as usize];
            self.stream.read_exact(&mut bytes).await?;
            if kind == TEXT {
                return Ok(String::from_utf8(bytes)?);
            }
        }
    }
}
