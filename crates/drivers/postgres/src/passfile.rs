//! Files of passwords, a line for each database: `host:port:database:user:password`.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The longest file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// For what a password is wanted.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The host; a folder of sockets is `localhost`.
    pub host: &'a str,
    /// The port.
    pub port: u16,
    /// The database.
    pub dbname: &'a str,
    /// As whom.
    pub user: &'a str,
}

/// A file that others may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("left alone, since others may read it; chmod 0600")]
pub struct OpenToOthers;

/// The password of the first line that fits; none where there is no such file. A file that others may read is left
/// alone, as by every program for PostgreSQL.
pub fn find(file: &Path, wanted: Wanted<'_>) -> Result<Option<String>, OpenToOthers> {
    if is_open_to_others(file) {
        return Err(OpenToOthers);
    }
    let Ok(Ok(text)) = contents(file).map(String::from_utf8) else { return Ok(None) };
    Ok(text.lines().find_map(|line| matching(line, wanted)))
}

/// What is in a file. Only plain ones of some length are read: a device may never end, and a pipe never begin.
pub(crate) fn contents(file: &Path) -> io::Result<Vec<u8>> {
    let about = std::fs::metadata(file)?;
    if !about.is_file() {
        return Err(io::Error::other("it is no plain file"));
    }
    if about.len() > FILE_BYTES_MAX {
        return Err(io::Error::other("it is too long"));
    }
    let mut text = Vec::new();
    File::open(file)?.take(FILE_BYTES_MAX).read_to_end(&mut text)?;
    Ok(text)
}

/// Whether anybody but its owner may read or change a file.
pub(crate) fn is_open_to_others(file: &Path) -> bool {
    std::fs::metadata(file).is_ok_and(|about| about.permissions().mode() & 0o077 != 0)
}

/// The password of a line, if it fits. A star is anything, and a backslash takes the meaning of what follows it.
fn matching(line: &str, wanted: Wanted<'_>) -> Option<String> {
    if line.starts_with('#') {
        return None;
    }
    let mut fields = vec![String::new()];
    let mut chars = line.chars();
    while let Some(char) = chars.next() {
        match (char, fields.len()) {
            // Only the first four end at a colon.
            (':', ..5) => fields.push(String::new()),
            ('\\', _) => fields.last_mut()?.extend(chars.next()),
            _ => fields.last_mut()?.push(char),
        }
    }
    let [host, port, dbname, user, password] = fields.try_into().ok()?;
    let is = |field: &str, value: &str| field == "*" || field == value;
    let place = is(&host, wanted.host) && is(&port, &wanted.port.to_string());
    (place && is(&dbname, wanted.dbname) && is(&user, wanted.user)).then_some(password)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};

    use super::*;

    const WANTED: Wanted<'_> = Wanted { host: "db", port: 6432, dbname: "queue", user: "ann" };

    #[test]
    fn a_line_is_for_its_database() {
        for (line, password) in [
            ("db:6432:queue:ann:secret", Some("secret")),
            ("*:*:*:*:a:b", Some("a:b")),
            (r"db:*:queue:ann:a\:b\\", Some(r"a:b\")),
            ("db:5432:queue:ann:secret", None),
            ("db:6432:queue:bob:secret", None),
            ("db:6432:shop:ann:secret", None),
            ("other:6432:queue:ann:secret", None),
            ("#*:*:*:*:secret", None),
            ("db:6432:queue:ann", None),
        ] {
            assert_eq!(matching(line, WANTED).as_deref(), password, "{line}");
        }
    }

    #[test]
    fn the_first_line_counts_and_a_file_for_everybody_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pass");
        assert_eq!(find(&file, WANTED), Ok(None));
        fs::write(&file, "# mine\n\ndb:*:*:bob:no\ndb:*:*:ann:first\n*:*:*:*:second\n").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        assert_eq!(find(&file, WANTED), Ok(Some("first".into())));
        fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        assert_eq!(find(&file, WANTED), Err(OpenToOthers));
    }
}
