//! `config show`: prints a configuration file with every setting as a comment.

use std::fmt::Write as _;

use taskyard_wire::Exit;

use super::ConfigShowArgs;
use crate::output::{self, note};
use crate::settings::{Origin, ServeSettings, Setting, SettingsError, Shape};

const HEAD: &str = "\
# Settings of `taskyard serve`, with their defaults. To set one, remove the # in front of its name.
# A flag replaces a variable (TASKYARD_HTTP for http), and a variable replaces this file.
# A relative path in this file starts at its folder, a default at the working directory of the server.
# Tokens and passwords belong into files that only the server can read, or into variables.
# Check: taskyard config check FILE
# As taskyard.service starts it: taskyard config check FILE --token-file /etc/taskyard/token
";

/// More about settings that the unit of systemd gives.
const NOTES: [(&str, &str); 2] = [
    ("token", "Not accepted beside --token-file, which taskyard.service gives."),
    ("token-file", "Replaced by --token-file, which taskyard.service gives."),
];

/// How wide comments are.
const COLUMNS: usize = 100;

/// Prints the file.
pub fn run(args: &ConfigShowArgs) -> anyhow::Result<Exit> {
    let settings = match ServeSettings::of_flags(&args.serve.flags) {
        Ok(resolved) => resolved.settings,
        Err(SettingsError::Flags(error)) => error.exit(),
        Err(SettingsError::Invalid(problems)) => {
            return Err(crate::failure::UsageError(problems.join("\n")).into());
        }
    };
    output::bytes(file_of(&settings).as_bytes())?;
    for setting in settings.iter().filter(|setting| setting.is_secret()) {
        let name = setting.key.name();
        note(format!(
            "taskyard: {name} contains a secret and is not printed; write it into the file yourself, and make the file readable \
             by root and the group of the server only: chmod 640"
        ));
    }
    let is_given = |setting: &&Setting| setting.origin == Origin::Flag;
    for setting in settings.iter().filter(is_given).filter(|setting| setting.key.is_only_flag()) {
        note(format!(
            "taskyard: not printed: {} is {}",
            setting.key.name(),
            setting.key.only_flag()
        ));
    }
    Ok(Exit::Ok)
}

/// The text of a file with these settings; defaults are comments.
fn file_of(settings: &[Setting]) -> String {
    let mut text = HEAD.to_owned();
    for setting in settings.iter().filter(|setting| !setting.key.is_only_flag()) {
        let key = &setting.key;
        text.push('\n');
        for line in wrapped(&(key.help() + ".")) {
            let _ = writeln!(text, "# {line}");
        }
        for (_, note) in NOTES.iter().filter(|(name, _)| *name == key.name()) {
            let _ = writeln!(text, "# {note}");
        }
        let is_set = setting.origin != Origin::Default && !setting.is_secret();
        let mark = if is_set { "" } else { "#" };
        let values: Vec<_> = setting.values.iter().map(|value| scalar(value)).collect();
        let value = match (key.shape(), values.as_slice()) {
            _ if setting.is_secret() => key.value_name().to_owned(),
            (Shape::List, values) => format!("[{}]", values.join(", ")),
            (_, []) => key.value_name().to_owned(),
            (_, values) => values.concat(),
        };
        let _ = writeln!(text, "{mark}{}: {value}", key.name());
    }
    text
}

/// Words in lines of limited width.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len() + word.len() + 3 <= COLUMNS => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// A value as YAML, in quotes if it could be read otherwise.
fn scalar(value: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:".contains(c);
    let is_plain = value.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '/')
        && value.chars().all(plain)
        && !value.ends_with(':');
    match is_plain {
        true => value.to_owned(),
        false => format!("'{}'", value.replace('\'', "''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_quoted_where_yaml_needs_it() {
        for (value, written) in [
            ("127.0.0.1:7070", "127.0.0.1:7070"),
            ("48MB", "48MB"),
            ("a b", "'a b'"),
            ("it's", "'it''s'"),
            ("", "''"),
            ("#1", "'#1'"),
        ] {
            assert_eq!(scalar(value), written);
        }
    }

    #[test]
    fn comments_have_a_width() {
        let lines = wrapped(&"word ".repeat(100));
        assert!(lines.len() > 5 && lines.iter().all(|line| line.len() <= COLUMNS - 2));
    }
}
