//! The audit file: appends lines in a thread of its own, and opens the file again when it was moved.
//!
//! A line is written with one call of the system before the answer to its request is sent. It is not
//! forced to disk: it survives the end of the process, but not that of the machine.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use taskyard_core::limits::AUDIT_WAITING_MAX;
use taskyard_wire::http::AuditEntry;
use tokio::sync::oneshot;

/// After how long a file that could not be opened again is tried again.
const REOPEN_AFTER: Duration = Duration::from_secs(10);
/// How often errors are logged at most.
const LOG_EVERY: Duration = Duration::from_secs(60);
/// The mode of a new file: it shows names, addresses and filters.
const MODE: u32 = 0o600;
/// The bits of a mode that let other users of the machine write.
const OTHERS_WRITE: u32 = 0o022;

/// The audit file of a server. Copies refer to the same file.
#[derive(Clone, Debug)]
pub struct AuditFile {
    path: Arc<Path>,
    messages: SyncSender<Message>,
    errors: Arc<WriteErrors>,
    /// Whether the file has to be opened again.
    was_moved: Arc<AtomicBool>,
}

/// Entries that could not be written.
#[derive(Debug, Default)]
struct WriteErrors {
    count: AtomicU64,
    logged: Mutex<Option<Instant>>,
}

/// Why a file cannot be the audit file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuditFileError {
    /// The system refused to open it.
    #[error("cannot open the audit file {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// Others could change what was written.
    #[error(
        "other users of this machine can change the audit file {path}; restrict it to its owner: \
         chmod 600 {path}", path = .0.display()
    )]
    Exposed(PathBuf),
    /// It is a folder, a pipe or a socket.
    #[error("{} is not a file, so it cannot be the audit file", .0.display())]
    NotFile(PathBuf),
}

/// A line that is being written. It is ready when the line is written, or cannot be.
#[derive(Debug, Default)]
pub(crate) struct PendingLine(Option<oneshot::Receiver<()>>);

#[derive(Debug)]
enum Message {
    /// Append this line.
    Line(Vec<u8>, oneshot::Sender<()>),
    /// Open the file again.
    Reopen,
}

impl AuditFile {
    /// Opens the file, or creates it for its owner alone. A file that other users of the machine can
    /// write is refused.
    pub fn open(path: &Path) -> Result<Self, AuditFileError> {
        let opened = open(path)?;
        let (messages, received) = sync_channel(AUDIT_WAITING_MAX);
        let errors = Arc::<WriteErrors>::default();
        let path: Arc<Path> = path.into();
        let was_moved = Arc::<AtomicBool>::default();
        let writer = FileWriter {
            lines: LineWriter::new(opened, path.clone(), errors.clone()),
            was_moved: was_moved.clone(),
            again_at: None,
        };
        let thread = thread::Builder::new().name("audit".into());
        let started = thread.spawn(move || writer.run(&received));
        started.map_err(|source| AuditFileError::Io { path: path.to_path_buf(), source })?;
        Ok(AuditFile { path, messages, errors, was_moved })
    }

    /// Says why this file could not be opened. It is not created.
    pub fn check(path: &Path) -> Result<(), AuditFileError> {
        if path.exists() {
            return open(path).map(drop);
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let checked = fs::read_dir(folder.unwrap_or(Path::new("."))).map(drop);
        checked.map_err(|source| AuditFileError::Io { path: path.into(), source })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the file again, under the same path, before the next line: a program for the rotation
    /// of logs has moved it. While that fails, lines are still written to the moved file.
    pub fn reopen(&self) {
        self.was_moved.store(true, Ordering::Release);
        // If too many entries wait, one of them finds the mark.
        let _ = self.messages.try_send(Message::Reopen);
    }

    /// How many entries could not be written.
    pub(super) fn errors(&self) -> u64 {
        self.errors.count.load(Ordering::Relaxed)
    }

    /// Appends the line of an entry.
    pub(super) fn write(&self, entry: &AuditEntry) -> PendingLine {
        let (written, pending) = oneshot::channel();
        let sent = serde_json::to_vec(entry).map_err(io::Error::other).and_then(|mut line| {
            line.push(b'\n');
            let sent = self.messages.try_send(Message::Line(line, written));
            sent.map_err(|_| io::Error::other("too many entries wait to be written"))
        });
        match sent {
            Ok(()) => PendingLine(Some(pending)),
            Err(error) => {
                self.errors.add(&self.path, &error);
                PendingLine::default()
            }
        }
    }
}

impl WriteErrors {
    /// Counts an entry that could not be written, and logs the error from time to time.
    fn add(&self, path: &Path, error: &io::Error) {
        let errors = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.is_none_or(|logged| logged.elapsed() >= LOG_EVERY) {
            *logged = Some(Instant::now());
            let path = path.display();
            tracing::error!(%path, %error, errors, "cannot write audit entries; the actions are done all the same");
        }
    }
}

impl PendingLine {
    /// Waits until the line is written.
    pub async fn written(self) {
        if let Some(pending) = self.0 {
            // The writer ends only with the server.
            let _ = pending.await;
        }
    }
}

/// The file, and whether it ends with a part of a line.
fn open(path: &Path) -> Result<(File, bool), AuditFileError> {
    let failed = |source| AuditFileError::Io { path: path.into(), source };
    // To open a pipe without a reader would wait for one.
    if let Ok(about) = fs::metadata(path)
        && !about.is_file()
        && !about.file_type().is_char_device()
    {
        return Err(AuditFileError::NotFile(path.into()));
    }
    let file = OpenOptions::new().append(true).read(true).create(true).mode(MODE).open(path);
    let file = file.map_err(failed)?;
    let about = file.metadata().map_err(failed)?;
    if about.is_file() && about.mode() & OTHERS_WRITE != 0 {
        return Err(AuditFileError::Exposed(path.into()));
    }
    let mut last = [b'\n'];
    if about.is_file() && about.len() > 0 {
        file.read_exact_at(&mut last, about.len() - 1).map_err(failed)?;
    }
    Ok((file, last != [b'\n']))
}

/// Writes the lines that the thread receives, and opens the file again when it was moved.
struct FileWriter {
    lines: LineWriter<File>,
    was_moved: Arc<AtomicBool>,
    /// When the file is to be opened again, if that failed.
    again_at: Option<Instant>,
}

/// Writes lines.
struct LineWriter<W> {
    out: W,
    path: Arc<Path>,
    errors: Arc<WriteErrors>,
    /// Whether the file ends with a part of a line.
    is_torn: bool,
}

impl FileWriter {
    fn run(mut self, messages: &Receiver<Message>) {
        while let Ok(message) = messages.recv() {
            let is_due = self.again_at.is_some_and(|at| at <= Instant::now());
            if self.was_moved.swap(false, Ordering::AcqRel) || is_due {
                self.reopen();
            }
            if let Message::Line(line, written) = message {
                self.lines.append(line);
                // The client may be gone.
                let _ = written.send(());
            }
        }
    }

    fn reopen(&mut self) {
        let path = self.lines.path.clone();
        match open(&path) {
            Ok((file, is_torn)) => {
                (self.lines.out, self.lines.is_torn, self.again_at) = (file, is_torn, None);
                tracing::info!(path = %path.display(), "audit file opened again");
            }
            Err(error) => {
                self.again_at = Some(Instant::now() + REOPEN_AFTER);
                tracing::error!(%error, "audit file not opened again; the previous one stays, and the next line tries again");
            }
        }
    }
}

impl<W: Write> LineWriter<W> {
    fn new((out, is_torn): (W, bool), path: Arc<Path>, errors: Arc<WriteErrors>) -> Self {
        LineWriter { out, path, errors, is_torn }
    }

    /// Appends a line. An entry that cannot be written is counted, and its action is done all the
    /// same: a full disk must not stop the operator who would make room.
    fn append(&mut self, mut line: Vec<u8>) {
        if self.is_torn {
            line.insert(0, b'\n');
        }
        let mut rest = &line[..];
        while !rest.is_empty() {
            match self.out.write(rest) {
                Ok(0) => return self.failed(&io::ErrorKind::WriteZero.into(), rest, &line),
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return self.failed(&error, rest, &line),
            }
        }
        self.is_torn = false;
    }

    fn failed(&mut self, error: &io::Error, rest: &[u8], line: &[u8]) {
        self.is_torn |= rest.len() < line.len();
        self.errors.add(&self.path, error);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use taskyard_core::limits::{AUDIT_LINE_BYTES_MAX, AUDIT_TEXT_BYTES_MAX};

    use super::*;
    use crate::audit::bounded;

    fn entry(action: &str) -> AuditEntry {
        AuditEntry { action: action.into(), ..AuditEntry::default() }
    }

    fn actions(path: &Path) -> Vec<String> {
        let text = fs::read_to_string(path).unwrap();
        let parse = |line| serde_json::from_str::<AuditEntry>(line).unwrap().action;
        text.lines().map(parse).collect()
    }

    #[tokio::test]
    async fn a_new_file_is_for_its_owner_and_an_old_one_is_continued() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        for action in ["one", "two"] {
            let file = AuditFile::open(&path).unwrap();
            file.write(&entry(action)).written().await;
        }
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(actions(&path), ["one", "two"]);
        for (mode, is_accepted) in [(0o640, true), (0o644, true), (0o620, false), (0o602, false)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let opened = AuditFile::open(&path).map(drop).map_err(|error| error.to_string());
            assert_eq!(opened.is_ok(), is_accepted, "{mode:o}");
            assert!(opened.err().is_none_or(|error| error.contains("chmod 600")));
        }
        let refused = AuditFile::open(folder.path()).unwrap_err().to_string();
        assert!(refused.contains("is not a file"), "{refused}");
        let refused = AuditFile::open(&path.join("x")).unwrap_err().to_string();
        assert!(refused.contains("cannot open the audit file"), "{refused}");
    }

    #[tokio::test]
    async fn a_moved_file_is_left_when_it_is_opened_again() {
        let folder = tempfile::tempdir().unwrap();
        let (path, moved) = (folder.path().join("audit"), folder.path().join("audit.1"));
        let file = AuditFile::open(&path).unwrap();
        file.write(&entry("one")).written().await;
        fs::rename(&path, &moved).unwrap();
        file.write(&entry("two")).written().await;
        file.reopen();
        file.write(&entry("three")).written().await;
        assert_eq!(actions(&moved), ["one", "two"]);
        assert_eq!(actions(&path), ["three"]);
        // A file that others can write is not used.
        fs::rename(&path, folder.path().join("audit.2")).unwrap();
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        file.reopen();
        file.write(&entry("four")).written().await;
        assert_eq!(fs::read_to_string(&path).unwrap(), "");
        assert_eq!(actions(&folder.path().join("audit.2")), ["three", "four"]);
    }

    // The entry after a part of a line was joined to it when the server had started again, or opened the file again.
    #[tokio::test]
    async fn a_part_of_a_line_is_found_when_the_file_is_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        fs::write(&path, r#"{"action":"ha"#).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let file = AuditFile::open(&path).unwrap();
        file.write(&entry("one")).written().await;
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("{\"action\":\"ha\n{") && text.ends_with("}\n"), "{text}");
        fs::write(&path, r#"{"action":"ha"#).unwrap();
        file.reopen();
        file.write(&entry("two")).written().await;
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 2);
    }

    #[tokio::test]
    async fn a_full_disk_is_counted() {
        let file = AuditFile::open(Path::new("/dev/full")).unwrap();
        file.write(&entry("one")).written().await;
        file.write(&entry("two")).written().await;
        assert_eq!(file.errors(), 2);
    }

    /// A disk with room for this many bytes.
    struct SmallDisk(Vec<u8>, usize);

    impl Write for SmallDisk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.1 - self.0.len());
            self.0.extend_from_slice(&bytes[..count]);
            if count == 0 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(count) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    // A disk that becomes full in the middle of a line would have joined the next entry to it.
    #[test]
    fn a_line_after_a_torn_one_begins_on_its_own() {
        let errors = Arc::<WriteErrors>::default();
        let mut writer = LineWriter::new(
            (SmallDisk(Vec::new(), 6), false),
            Path::new("x").into(),
            errors.clone(),
        );
        for line in ["one\n", "two\n", "three\n"] {
            writer.append(line.into());
        }
        assert_eq!(errors.count.load(Ordering::Relaxed), 2);
        writer.out.1 = 100;
        writer.append("four\n".into());
        writer.append("five\n".into());
        assert_eq!(String::from_utf8(writer.out.0).unwrap(), "one\ntw\nfour\nfive\n");
    }

    // A disk that does not answer must not use up the memory.
    #[test]
    fn waiting_entries_are_limited() {
        let (messages, _received) = sync_channel(AUDIT_WAITING_MAX);
        let errors = Arc::<WriteErrors>::default();
        let file =
            AuditFile { path: Path::new("x").into(), messages, errors, was_moved: Arc::default() };
        for _ in 0..AUDIT_WAITING_MAX {
            assert!(file.write(&entry("one")).0.is_some());
        }
        assert_eq!(file.errors(), 0);
        assert!(file.write(&entry("two")).0.is_none());
        assert_eq!(file.errors(), 1);
    }

    #[test]
    fn a_line_is_bounded_whatever_a_client_sends() {
        let hostile = bounded(&"\u{1}\n\"".repeat(AUDIT_TEXT_BYTES_MAX));
        let text = || Some(hostile.clone());
        let entry = AuditEntry {
            user: text(),
            address: text(),
            target: text(),
            filter: text(),
            detail: text(),
            error: text(),
            tasks: Some(u64::MAX),
            ids: Some(u64::MAX),
            omitted: u64::MAX,
            ..AuditEntry::default()
        };
        let line = serde_json::to_string(&entry).unwrap();
        assert!(line.len() < AUDIT_LINE_BYTES_MAX, "{}", line.len());
        assert!(line.bytes().all(|byte| byte >= 0x20), "one line without control characters");
    }
}
