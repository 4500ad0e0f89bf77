//! Reads a file of settings: YAML with the names of the flags as keys.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};
use serde_saphyr::Spanned;
use taskyard_core::limits::CONFIG_FILE_BYTES_MAX;

use super::key::{SettingKey, Shape};
use super::{Origin, Setting};
use crate::output::quoted;
use crate::users_file::without_value;

/// The settings of a file, or everything that is wrong with it.
pub fn read(path: &Path, keys: &[SettingKey]) -> Result<Vec<Setting>, Vec<String>> {
    let (text, mode) = read_text(path).map_err(|problem| vec![problem])?;
    let mut reader =
        FileReader { path, keys, settings: Vec::new(), problems: Vec::new(), at: None };
    reader.parse(&text);
    let has_secret = reader.settings.iter().any(Setting::is_secret);
    reader.problems.extend(exposed(path, mode, has_secret));
    if !reader.problems.is_empty() {
        return Err(reader.problems);
    }
    Ok(reader.settings)
}

/// The text of the file and, unless it is a pipe, its mode.
fn read_text(path: &Path) -> Result<(String, Option<u32>), String> {
    let shown = path.display();
    let failed = |error: io::Error| {
        let advice = match error.kind() {
            io::ErrorKind::NotFound => {
                let file = quoted(&shown.to_string());
                format!("; to write one with all defaults: taskyard config show > {file}")
            }
            _ => String::new(),
        };
        format!("cannot read the configuration from {shown}: {error}{advice}")
    };
    let file = File::open(path).map_err(failed)?;
    let about = file.metadata().map_err(failed)?;
    let mode = about.is_file().then(|| about.permissions().mode());
    let (mut text, most) = (String::new(), CONFIG_FILE_BYTES_MAX as u64);
    file.take(most + 1).read_to_string(&mut text).map_err(failed)?;
    match text.len() > CONFIG_FILE_BYTES_MAX {
        true => Err(format!("{shown} is too large; a configuration has at most {most} bytes")),
        false => Ok((text, mode)),
    }
}

/// Why the file may not be used, if other users of the machine can read its secrets or change it.
fn exposed(path: &Path, mode: Option<u32>, has_secret: bool) -> Option<String> {
    let mode = mode?;
    let shown = path.display().to_string();
    let file = quoted(&shown);
    if has_secret && mode & 0o007 != 0 {
        // With mode 600 and the owner root, the user of a service could not read it.
        return Some(format!(
            "{shown}: every user of this machine can open it, and it contains a token or a password; make it readable by root and \
             the group of the server only: chown root:GROUP {file} && chmod 640 {file}"
        ));
    }
    (mode & 0o022 != 0).then(|| {
        format!("{shown}: users other than its owner can change it; restrict it: chmod go-w {file}")
    })
}

/// What was read of a file so far.
struct FileReader<'a> {
    path: &'a Path,
    keys: &'a [SettingKey],
    settings: Vec<Setting>,
    problems: Vec<String>,
    /// The key whose value is being read.
    at: Option<(&'a SettingKey, u64)>,
}

impl<'a> FileReader<'a> {
    fn parse(&mut self, text: &str) {
        let mut options = serde_saphyr::Options::default();
        // A line of the file may contain a secret.
        options.with_snippet = false;
        let read = serde_saphyr::with_deserializer_from_str_with_options(text, options, |from| {
            from.deserialize_map(&mut *self)
        });
        let Err(error) = read else { return };
        let error = error.to_string();
        let why = without_value(&error);
        let problem = match self.at.take() {
            Some((key, line)) => {
                let wanted = match key.shape() {
                    Shape::Switch => "it takes true or false",
                    Shape::Single => "it takes one value",
                    Shape::List => "it takes a list, such as [a, b]",
                };
                self.about(line, key, &format!("{wanted} ({why})"))
            }
            None if why.contains("expected mapping") => {
                let advice = "write settings as `name: value`, such as `http: 127.0.0.1:7070`; taskyard config show prints all";
                format!("{}: {advice} ({why})", self.path.display())
            }
            None => format!("{}: {why}", self.path.display()),
        };
        self.problems.push(problem);
    }

    /// A problem of a value, with what is accepted.
    fn about(&self, line: u64, key: &SettingKey, what: &str) -> String {
        let (file, name) = (self.path.display(), key.name());
        format!("{file}, line {line}: {name}: {what}\n  {}", key.accepted())
    }

    fn unknown(&mut self, line: u64, name: &str) {
        let alike = |key: &&SettingKey| {
            let written = name.to_lowercase().replace('_', "-");
            (strsim::jaro_winkler(&written, key.name()) * 1000.0) as u32
        };
        let nearest = self.keys.iter().max_by_key(alike).map_or("", SettingKey::name);
        self.problems.push(format!(
            "{}, line {line}: '{}' is no setting; the nearest one is {nearest}; taskyard config show lists all",
            self.path.display(),
            crate::output::printable(name),
        ));
    }

    fn add(&mut self, line: u64, key: &SettingKey, values: Vec<String>) {
        for value in &values {
            if let Err(why) = key.check(value) {
                let what = match key.is_secret(value) {
                    true => "the value is not accepted".into(),
                    false => format!("'{}' is not accepted: {why}", value.escape_debug()),
                };
                self.problems.push(self.about(line, key, &what));
            }
        }
        let values = values.into_iter().map(|value| self.beside_file(key, value)).collect();
        self.settings.push(Setting { key: key.clone(), values, origin: Origin::File { line } });
    }

    /// A value, in which a relative path starts at the folder of the file.
    fn beside_file(&self, key: &SettingKey, value: String) -> String {
        let folder = self.path.parent().unwrap_or(Path::new(""));
        let (scheme, path) = match value.strip_prefix("sqlite:").filter(|_| key.name() == "store") {
            Some(path) => ("sqlite:", path),
            None if key.is_path() => ("", value.as_str()),
            None => return value,
        };
        match path.is_empty() {
            true => value,
            false => format!("{scheme}{}", folder.join(path).display()),
        }
    }
}

impl<'a, 'de> Visitor<'de> for &mut FileReader<'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("lines such as `http: 127.0.0.1:7070`")
    }

    /// A file without a key sets nothing.
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(Spanned { value: name, defined, .. }) = map.next_key::<Spanned<String>>()? {
            let line = defined.line();
            let keys: &'a [SettingKey] = self.keys;
            let Some(key) = keys.iter().find(|key| key.name() == name) else {
                self.unknown(line, &name);
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            if key.is_only_flag() {
                let file = self.path.display();
                let (name, where_else) = (key.name(), key.only_flag());
                self.problems
                    .push(format!("{file}, line {line}: {name} is not accepted: {where_else}"));
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            self.at = Some((key, line));
            let values = match key.shape() {
                Shape::List => map.next_value::<Vec<String>>()?,
                Shape::Single | Shape::Switch => vec![map.next_value::<String>()?],
            };
            self.at = None;
            self.add(line, key, values);
        }
        Ok(())
    }
}
