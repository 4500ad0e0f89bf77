//! Reads a file of users, and reads it again when it changes or on SIGHUP.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use taskyard_core::limits::USERS_FILE_BYTES_MAX;
use taskyard_server::{AuditHandle, Users, UsersHandle};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};

use crate::failure::UsageError;
use crate::output::quoted;

/// How often the file is compared with the one that was read.
const COMPARE_EVERY: Duration = Duration::from_secs(1);

/// The users of a file, and which version of the file it was.
#[derive(Debug)]
pub struct UsersFile {
    path: PathBuf,
    format: UsersFormat,
    version: FileVersion,
    /// A pipe can be read only once.
    is_pipe: bool,
}

/// How a file of users is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsersFormat {
    Toml,
    Yaml,
}

/// What changes when a file is written or replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileVersion {
    device: u64,
    inode: u64,
    length: u64,
    modified: (i64, i64),
    mode: u32,
}

impl UsersFile {
    /// Reads the file. Its name says how it is written; any other name means `otherwise`.
    pub fn open(path: &Path, otherwise: UsersFormat) -> Result<(Users, UsersFile), UsageError> {
        let format = UsersFormat::of(path, otherwise);
        let (text, about) = read_text(path)?;
        let users = users_in(path, format, &text, &about)?;
        let (version, is_pipe) = (FileVersion::of(&about), !about.is_file());
        Ok((users, UsersFile { path: path.into(), format, version, is_pipe }))
    }

    /// Replaces the users whenever the file has changed, and on SIGHUP. A file that cannot be used
    /// changes nothing. Both are recorded in the audit.
    pub fn watch(mut self, users: UsersHandle, audit: AuditHandle) -> io::Result<()> {
        if self.is_pipe {
            return Ok(());
        }
        // From here on SIGHUP does not end the process.
        let mut hangup = signal(SignalKind::hangup())?;
        let mut compare = interval(COMPARE_EVERY);
        compare.set_missed_tick_behavior(MissedTickBehavior::Delay);
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = hangup.recv() => self.reload(&users, &audit),
                    _ = compare.tick() => {
                        if self.has_changed() {
                            self.reload(&users, &audit);
                        }
                    }
                }
            }
        });
        Ok(())
    }

    fn has_changed(&self) -> bool {
        // A file that is missing for a moment is being replaced.
        fs::metadata(&self.path).is_ok_and(|about| FileVersion::of(&about) != self.version)
    }

    fn reload(&mut self, users: &UsersHandle, audit: &AuditHandle) {
        let path = self.path.display();
        // Each version of the file is read once, also if it cannot be used. That is the version that was read: the file may be
        // written further at the same time.
        let read = match read_text(&self.path) {
            Ok((text, about)) => {
                self.version = FileVersion::of(&about);
                users_in(&self.path, self.format, &text, &about)
            }
            Err(error) => {
                if let Ok(about) = fs::metadata(&self.path) {
                    self.version = FileVersion::of(&about);
                }
                Err(error)
            }
        };
        match read {
            Ok(new) => {
                audit.users_changed(&users.replace(new));
                tracing::info!(%path, "users reloaded");
            }
            Err(UsageError(error)) => {
                audit.users_not_changed(&error);
                tracing::error!(%error, "users not reloaded; the previous ones stay");
            }
        }
    }
}

impl FileVersion {
    fn of(about: &Metadata) -> Self {
        FileVersion {
            device: about.dev(),
            inode: about.ino(),
            length: about.len(),
            modified: (about.mtime(), about.mtime_nsec()),
            mode: about.mode(),
        }
    }
}

impl UsersFormat {
    /// How a file of this name is written; any other name means `otherwise`.
    pub fn of(path: &Path, otherwise: UsersFormat) -> Self {
        match path.extension().and_then(OsStr::to_str) {
            Some("yaml" | "yml") => UsersFormat::Yaml,
            Some("toml") => UsersFormat::Toml,
            _ => otherwise,
        }
    }
}

/// The users of a file with this text, if a server may use it.
fn users_in(
    path: &Path,
    format: UsersFormat,
    text: &str,
    about: &Metadata,
) -> Result<Users, UsageError> {
    let users: Users = parse(path, format, text)?;
    if users.is_empty() {
        let (shown, advice) = (
            path.display(),
            match format {
                UsersFormat::Toml => "add one: taskyard user add NAME --role ROLE",
                UsersFormat::Yaml => "list at least one under users:",
            },
        );
        return Err(UsageError(format!("no users in {shown}; {advice}")));
    }
    check_mode(path, about, users.has_passwords())?;
    Ok(users)
}

/// The text of the file, if it is not too long.
pub fn read_text(path: &Path) -> Result<(String, Metadata), UsageError> {
    let failed = |error: io::Error| {
        UsageError(format!("cannot read the users from {}: {error}", path.display()))
    };
    let file = File::open(path).map_err(failed)?;
    let about = file.metadata().map_err(failed)?;
    let mut text = String::new();
    let most = USERS_FILE_BYTES_MAX as u64;
    file.take(most + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() > USERS_FILE_BYTES_MAX {
        let path = path.display();
        return Err(UsageError(format!(
            "{path} is too large; a file of users has at most {most} bytes"
        )));
    }
    Ok((text, about))
}

/// Parses the text of a file of users.
pub fn parse<T: DeserializeOwned>(
    path: &Path,
    format: UsersFormat,
    text: &str,
) -> Result<T, UsageError> {
    let wrong = |error: String| {
        UsageError(format!("cannot parse the users in {}: {}", path.display(), error.trim_end()))
    };
    match format {
        UsersFormat::Yaml => parse_yaml(text).map_err(wrong),
        // Without the line itself, which may contain a password.
        UsersFormat::Toml => toml::from_str(text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start));
            let line = before.map_or(1, |before| before.matches('\n').count() + 1);
            wrong(format!("line {line}: {}", without_value(error.message())))
        }),
    }
}

/// Parses users in YAML. An error has neither the lines nor the value, which may contain a password.
fn parse_yaml<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let mut options = serde_saphyr::Options::default();
    options.with_snippet = false;
    serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| without_value(&error.to_string()).to_owned())
}

/// The message of a parser without the value that it shows: of "invalid type: integer `7`, expected a string" the end.
pub fn without_value(message: &str) -> &str {
    let shows_value = ["invalid type", "invalid value"].iter().any(|begin| message.contains(begin));
    match message.rfind("expected ") {
        Some(expected) if shows_value => &message[expected..],
        _ => message,
    }
}

/// Refuses a file that other users of the machine can change or, if it has passwords, read.
fn check_mode(path: &Path, about: &Metadata, has_passwords: bool) -> Result<(), UsageError> {
    let mode = about.mode();
    let problem = if has_passwords && mode & 0o077 != 0 {
        "can be opened by other users of this machine, and contains passwords or their hashes"
    } else if mode & 0o022 != 0 {
        "can be changed by other users of this machine, who could add users"
    } else {
        return Ok(());
    };
    let path = path.display().to_string();
    let text = format!("{path} {problem}; restrict it to its owner: chmod 600 {}", quoted(&path));
    Err(UsageError(text))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const HASH: &str = "9f9f5111f7b27a781f1f1ddde5ebc2dd2b796bfc7365c9c28b548e564176929f";

    fn user(name: &str) -> String {
        format!("[[users]]\nname = '{name}'\ntoken_sha256 = '{HASH}'\nroles = ['read']\n")
    }

    fn write(path: &Path, text: &str, mode: u32) {
        fs::write(path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn refused(path: &Path) -> String {
        UsersFile::open(path, UsersFormat::Toml).unwrap_err().to_string()
    }

    #[test]
    fn a_file_with_passwords_is_for_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users.toml");
        let password = "[[users]]\nname = 'a'\npassword_hash = 'vhvewKp0tNyweZQ+cFKAlsyphfg='\nroles = ['read']\n";
        for mode in [0o644, 0o640, 0o604, 0o660] {
            write(&path, password, mode);
            assert!(refused(&path).contains("chmod 600"), "{mode:o}");
        }
        write(&path, password, 0o600);
        assert!(UsersFile::open(&path, UsersFormat::Toml).is_ok());
        for (mode, accepted) in [(0o644, true), (0o600, true), (0o664, false), (0o646, false)] {
            write(&path, &user("a"), mode);
            assert_eq!(UsersFile::open(&path, UsersFormat::Toml).is_ok(), accepted, "{mode:o}");
        }
        assert!(refused(&path).contains("who could add users"));
    }

    #[test]
    fn both_formats_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users.yaml");
        write(&path, "users:\n  - name: boss\n    password: secret\n    grants: all\n", 0o600);
        assert!(UsersFile::open(&path, UsersFormat::Toml).is_ok());
        let path = folder.path().join("users");
        write(&path, &user("a"), 0o600);
        assert!(UsersFile::open(&path, UsersFormat::Toml).is_ok());
        // The files of iproto have always been YAML, whatever their name.
        assert!(UsersFile::open(&path, UsersFormat::Yaml).is_err());
        let grants = "\
users:
  - name: boss
    password: secret
    grants: all
  - name: mailer
    password_hash: vhvewKp0tNyweZQ+cFKAlsyphfg=
    grants:
      - tube: mail*
        verbs: [put, take, ack]
      - tube: '*'
  - name: guest
    grants: []
";
        write(&path, grants, 0o600);
        let (users, mut file) = UsersFile::open(&path, UsersFormat::Yaml).unwrap();
        assert!(users.has_passwords());
        let (handle, audit) = (UsersHandle::default(), AuditHandle::default());
        file.reload(&handle, &audit);
        assert_eq!(handle.names(), ["boss", "guest", "mailer"]);
        for (text, said) in [
            ("users: []", "list at least one under users:"),
            ("users:\n  - name: a\n    grants: all\n", "needs either password"),
            ("people: 7\n", "people"),
        ] {
            write(&path, text, 0o600);
            let refused = UsersFile::open(&path, UsersFormat::Yaml).unwrap_err().to_string();
            assert!(refused.contains(said), "{refused}");
        }
    }

    #[test]
    fn the_example_of_the_documents_is_accepted() {
        let page = include_str!("../../../docs/security.md");
        let example = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
        let users: Users = parse(Path::new("users.toml"), UsersFormat::Toml, example).unwrap();
        assert!(!users.is_empty() && !users.has_passwords());
    }

    #[test]
    fn errors_name_the_file_and_the_line_but_no_secret() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users.toml");
        assert!(refused(&path).contains("users.toml"));
        for (text, said) in [
            ("", "missing field `users`"),
            ("users = []", "taskyard user add"),
            ("[[users]]\nname = 'a'\npassword = 's3cret\n", "line 3"),
            ("[[users]]\nname = 'a'\npassword = 's3cret'\nroles = ['root']\n", "line 4"),
            ("[[users]]\nname = 'a'\npasswort = 's3cret'\n", "passwort"),
            // The number was shown.
            ("[[users]]\nname = 'a'\npassword = 53637e7\n", "expected"),
        ] {
            write(&path, text, 0o600);
            let refused = refused(&path);
            assert!(refused.contains(said) && refused.contains("users.toml"), "{refused}");
            assert!(!refused.contains("s3cret") && !refused.contains("536"), "{refused}");
        }
        // Errors in YAML showed the lines around them.
        let yaml = folder.path().join("users.yaml");
        for text in [
            "users:\n  - name: a\n    password: s3cret\n    grants: {x: 1\n",
            "users:\n  - name: a\n    password: s3cret\n    grants: 7\n",
            "users:\n  - name: a\n    password: [s3cret]\n    grants: all\n",
        ] {
            write(&yaml, text, 0o600);
            let refused = refused(&yaml);
            assert!(refused.contains("users.yaml") && !refused.contains("s3cret"), "{refused}");
        }
        write(&path, &" ".repeat(USERS_FILE_BYTES_MAX), 0o600);
        assert!(!refused(&path).contains("too large"));
        write(&path, &" ".repeat(USERS_FILE_BYTES_MAX + 1), 0o600);
        assert!(refused(&path).contains("too large"));
    }

    #[test]
    fn a_changed_file_is_read_again_and_a_broken_one_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users.toml");
        write(&path, &user("ann"), 0o600);
        let (first, mut file) = UsersFile::open(&path, UsersFormat::Toml).unwrap();
        let (users, audit) = (UsersHandle::default(), AuditHandle::default());
        users.replace(first);
        assert!(!file.has_changed());
        for (text, names) in [
            ("[[users]]\nname = 7\n".to_owned(), ["ann"]),
            (user("bob"), ["bob"]),
            (String::new(), ["bob"]),
            (user("carol, of another length"), ["carol, of another length"]),
        ] {
            write(&path, &text, 0o600);
            assert!(file.has_changed(), "{text}");
            file.reload(&users, &audit);
            assert_eq!(users.names(), names);
            assert!(!file.has_changed(), "{text}");
        }
        fs::remove_file(&path).unwrap();
        assert!(!file.has_changed());
        file.reload(&users, &audit);
        assert_eq!(users.names().len(), 1);
        write(&path, &user("dan"), 0o666);
        file.reload(&users, &audit);
        assert_ne!(users.names(), ["dan"], "other users of the machine can change the file");
    }
}
