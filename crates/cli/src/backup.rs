//! `backup`: writes everything in the store of a running server into a file.

use std::fs::{self, File, Permissions, TryLockError};
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use rustix::fs::OFlags;
use rustix::process::geteuid;
use serde_json::{Value, json};
use taskyard::BackupDownload;
use taskyard_store_sqlite::backup::{BackupHeader, BackupParser};
use taskyard_wire::Exit;

use crate::connect::{ServerArgs, block_on};
use crate::failure::{RefusedError, UsageError};
use crate::progress::TaskProgress;
use crate::{output, units};

/// What the name of an unfinished file ends with.
const PARTIAL_SUFFIX: &str = ".partial";
/// The mode of the file: a backup has all payloads.
const FILE_MODE: u32 = 0o600;
/// How often an unfinished file that is renamed or removed meanwhile is opened again.
const TRIES: usize = 10;
/// The file is synced whenever this much was written, so that the system never writes much at once: the server may use the same disk.
const SYNC_BYTES: u64 = 32 << 20;

/// The arguments of `backup`.
#[derive(Debug, Args)]
#[command(after_help = "\
Everything that was acknowledged before the command began is in the file: tubes, tasks in all
states, done tasks, keys, failures, semaphores and schedules. The server goes on meanwhile; what
clients change during the backup is not in it. Tasks of temporary tubes are not on disk, and not
in the file. The numbers of tubes and tasks include the internal ones, whose names begin with
`taskyard.`.

The bytes go to FILE.partial, which gets its name when they are complete, verified and on disk. A
backup that was killed leaves FILE.partial; the next one replaces it.

Only servers with a data folder make backups, one at a time, and only for administrators. With
PostgreSQL, Redis or Tarantool use their own backups, or `taskyard copy`. A backup ends with an
error if the write-ahead log of the server reaches 512 MB meanwhile, which happens only if clients
write faster than the backup is made.

Examples:
  taskyard backup queue.backup
  taskyard backup --force /backups/queue.backup
  taskyard backup - | zstd > queue.backup.zst
  taskyard restore queue.backup --data restored")]
pub struct BackupArgs {
    /// The file to write, or - for the standard output.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Replace an existing file.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// A backup that was received.
struct Received {
    header: BackupHeader,
    bytes: u64,
}

/// Receives a backup and writes it.
pub fn run(args: BackupArgs) -> anyhow::Result<Exit> {
    let begin = Instant::now();
    let http = args.server.connect.http()?;
    let received = if args.file == Path::new("-") {
        if io::stdout().is_terminal() {
            bail!(UsageError("a backup is not text; redirect the standard output".into()));
        }
        block_on(async {
            let download = http.backup().await?;
            receive(download, &mut io::stdout().lock(), |_| Ok(())).await
        })?
    } else {
        refuse_existing(&args)?;
        // Before the file is touched: a refusal must not leave one.
        block_on(async {
            let download = http.backup().await?;
            let mut partial = PartialFile::create(&args.file)?;
            let received = partial.fill(download).await;
            match received {
                Ok(received) => {
                    refuse_existing(&args)?;
                    partial.publish(&args.file)?;
                    Ok(received)
                }
                Err(error) => {
                    partial.remove();
                    Err(error)
                }
            }
        })?
    };
    print(&args, &received, begin.elapsed())?;
    Ok(Exit::Ok)
}

fn refuse_existing(args: &BackupArgs) -> anyhow::Result<()> {
    let shown = args.file.display();
    match fs::metadata(&args.file) {
        Ok(about) if !about.is_file() => bail!(RefusedError(format!("{shown} is not a file"))),
        Ok(_) if !args.force => {
            bail!(RefusedError(format!(
                "{shown} exists; choose another name, or replace it with --force"
            )))
        }
        _ => Ok(()),
    }
}

/// Receives all bytes, writes them and verifies them.
async fn receive(
    mut download: BackupDownload,
    to: &mut impl Write,
    mut written: impl FnMut(u64) -> io::Result<()>,
) -> anyhow::Result<Received> {
    let (mut parser, mut bytes) = (BackupParser::default(), 0);
    let mut progress = TaskProgress::new("backed up");
    while let Some(part) = download.next().await? {
        to.write_all(&part).and_then(|()| written(part.len() as u64)).context("cannot write")?;
        bytes += part.len() as u64;
        parser.push(&part);
        while parser.next_block().context("the backup failed")?.is_some() {}
        progress.show(parser.tasks(), parser.header().map_or(0, |header| header.tasks));
    }
    to.flush().context("cannot write")?;
    drop(progress);
    let header = parser.finish().context("the backup failed")?.clone();
    Ok(Received { header, bytes })
}

/// The file while it is not complete.
struct PartialFile {
    path: PathBuf,
    file: File,
}

impl PartialFile {
    /// Creates the file, or replaces what an earlier backup left. Other users cannot read it.
    fn create(target: &Path) -> anyhow::Result<Self> {
        let Some(name) = target.file_name() else {
            bail!(UsageError(format!("{} is not the name of a file", target.display())));
        };
        let mut name = name.to_owned();
        name.push(PARTIAL_SUFFIX);
        let path = target.with_file_name(name);
        let cannot = || format!("cannot write {}", path.display());
        for _ in 0..TRIES {
            let partial =
                PartialFile { file: open_partial(&path).with_context(cannot)?, path: path.clone() };
            match partial.file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => break,
                Err(TryLockError::Error(error)) => return Err(error).with_context(cannot),
            }
            // The backup that had the lock may have renamed the file between opening and locking.
            if partial.is_at_path().with_context(cannot)? {
                partial.clear().with_context(cannot)?;
                return Ok(partial);
            }
        }
        bail!(RefusedError(format!("another backup writes {}", path.display())))
    }

    /// Whether the file is still the one at its path.
    fn is_at_path(&self) -> io::Result<bool> {
        let held = self.file.metadata()?;
        match fs::symlink_metadata(&self.path) {
            Ok(found) => Ok((found.dev(), found.ino()) == (held.dev(), held.ino())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes what an earlier backup wrote, if the file is one of this user.
    fn clear(&self) -> io::Result<()> {
        let about = self.file.metadata()?;
        if !about.is_file() || about.uid() != geteuid().as_raw() || about.nlink() != 1 {
            let what = "it exists and is not a regular file of this user; remove it";
            return Err(io::Error::other(what));
        }
        self.file.set_permissions(Permissions::from_mode(FILE_MODE))?;
        self.file.set_len(0)
    }

    async fn fill(&mut self, download: BackupDownload) -> anyhow::Result<Received> {
        let file = &self.file;
        let mut unsynced = 0;
        let synced = |bytes| {
            unsynced += bytes;
            if unsynced < SYNC_BYTES {
                return Ok(());
            }
            unsynced = 0;
            file.sync_data()
        };
        let received = receive(download, &mut &*file, synced).await;
        let received = received.with_context(|| format!("no backup in {}", self.path.display()))?;
        self.file.sync_all().context("cannot write")?;
        Ok(received)
    }

    /// Gives the complete file its name.
    fn publish(self, target: &Path) -> anyhow::Result<()> {
        let cannot = || format!("cannot rename {} to {}", self.path.display(), target.display());
        if !self.is_at_path().with_context(cannot)? {
            let what = format!("{} was replaced during the backup", self.path.display());
            bail!(RefusedError(format!("{what}; repeat it when no other program uses that file")));
        }
        fs::rename(&self.path, target).with_context(cannot)?;
        let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = File::open(folder.unwrap_or(Path::new("."))).with_context(cannot)?;
        folder.sync_all().with_context(cannot)
    }

    fn remove(self) {
        if self.is_at_path().is_ok_and(|own| own) {
            // What cannot be removed is replaced by the next backup.
            _ = fs::remove_file(&self.path);
        }
    }
}

/// Opens or creates a file, and neither follows a link nor waits for the reader of a pipe.
fn open_partial(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let mut options = File::options();
    options.write(true).create(true).truncate(false).mode(FILE_MODE).custom_flags(flags);
    options.open(path)
}

/// Prints the summary: where the file goes to the standard output, to the other one.
fn print(args: &BackupArgs, received: &Received, took: Duration) -> anyhow::Result<()> {
    let Received { header, bytes } = received;
    let to_stdout = args.file == Path::new("-");
    if args.server.json {
        let mut summary = as_json(header);
        summary["file"] = args.file.to_string_lossy().into();
        summary["bytes"] = (*bytes).into();
        summary["seconds"] = took.as_secs_f64().into();
        return match to_stdout {
            true => {
                output::note(summary);
                Ok(())
            }
            false => output::json(&summary),
        };
    }
    let what = contents(header);
    let (file, seconds) = (args.file.display(), took.as_secs_f64());
    let size = units::bytes(*bytes);
    match to_stdout {
        true => output::note(format!("backed up {what}: {size} ({seconds:.1} s)")),
        false => output::line(format!("backed up {what} into {file}: {size} ({seconds:.1} s)"))?,
    }
    Ok(())
}

/// What a backup has, as a phrase.
pub fn contents(header: &BackupHeader) -> String {
    let tasks = output::plural(header.tasks, "task");
    format!("{tasks} in {}", output::plural(header.tubes, "tube"))
}

/// When a backup was made.
pub fn moment(header: &BackupHeader) -> String {
    units::utc(header.taken_at as f64 / 1e6)
}

/// What a backup has, for programs.
pub fn as_json(header: &BackupHeader) -> Value {
    json!({
        "tasks": header.tasks,
        "tubes": header.tubes,
        "time": header.taken_at as f64 / 1e6,
        "store": header.store,
        "version": header.program,
    })
}
