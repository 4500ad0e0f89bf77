//! Reads password files with a line for each database: `host:port:database:user:password`.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The longest file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// The connection that needs a password.
#[derive(Clone, Copy, Debug)]
pub struct PassfileQuery<'a> {
    /// The host; `localhost` for a directory of sockets.
    pub host: &'a str,
    /// The port.
    pub port: u16,
    /// The database.
    pub dbname: &'a str,
    /// The user.
    pub user: &'a str,
}

/// A file that other users may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("ignored: other users may read it; run chmod 0600 on it")]
pub struct InsecurePermissions;

/// The password of the first matching line; `None` if there is no such file. A file that other
/// users may read is ignored, as libpq does.
pub fn find(file: &Path, query: PassfileQuery<'_>) -> Result<Option<String>, InsecurePermissions> {
    if is_accessible_to_others(file) {
        return Err(InsecurePermissions);
    }
    let Ok(Ok(text)) = contents(file).map(String::from_utf8) else { return Ok(None) };
    Ok(text.lines().find_map(|line| matching(line, query)))
}

/// The content of a file. Only regular files of limited length are read: a device may have no end,
/// and a pipe may block.
pub(crate) fn contents(file: &Path) -> io::Result<Vec<u8>> {
    let about = std::fs::metadata(file)?;
    if !about.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    if about.len() > FILE_BYTES_MAX {
        return Err(io::Error::other("the file is too long"));
    }
    let mut text = Vec::new();
    File::open(file)?.take(FILE_BYTES_MAX).read_to_end(&mut text)?;
    Ok(text)
}

/// Whether users other than its owner may read or change a file.
pub(crate) fn is_accessible_to_others(file: &Path) -> bool {
    std::fs::metadata(file).is_ok_and(|about| about.permissions().mode() & 0o077 != 0)
}

/// The password of a line, if it matches. A star matches everything, and a backslash escapes the
/// next character.
fn matching(line: &str, query: PassfileQuery<'_>) -> Option<String> {
    if line.starts_with('#') {
        return None;
    }
    let mut fields = vec![String::new()];
    let mut chars = line.chars();
    while let Some(char) = chars.next() {
        match (char, fields.len()) {
            // Only the first four fields end at a colon.
            (':', ..5) => fields.push(String::new()),
            ('\\', _) => fields.last_mut()?.extend(chars.next()),
            _ => fields.last_mut()?.push(char),
        }
    }
    let [host, port, dbname, user, password] = fields.try_into().ok()?;
    let is = |field: &str, value: &str| field == "*" || field == value;
    let address = is(&host, query.host) && is(&port, &query.port.to_string());
    (address && is(&dbname, query.dbname) && is(&user, query.user)).then_some(password)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};

    use super::*;

    const QUERY: PassfileQuery<'_> =
        PassfileQuery { host: "db", port: 6432, dbname: "queue", user: "ann" };

    #[test]
    fn a_line_matches_its_database() {
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
            assert_eq!(matching(line, QUERY).as_deref(), password, "{line}");
        }
    }

    #[test]
    fn the_first_line_is_used_and_a_readable_file_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pass");
        assert_eq!(find(&file, QUERY), Ok(None));
        fs::write(&file, "# mine\n\ndb:*:*:bob:no\ndb:*:*:ann:first\n*:*:*:*:second\n").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        assert_eq!(find(&file, QUERY), Ok(Some("first".into())));
        fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        assert_eq!(find(&file, QUERY), Err(InsecurePermissions));
    }
}
