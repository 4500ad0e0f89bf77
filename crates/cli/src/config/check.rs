//! `config check`: shows the settings of a file with their origin, and what would keep a server from starting.

use serde_json::{Value, json};
use taskyard_wire::Exit;

use super::ConfigCheckArgs;
use crate::output::{self, note, plural, printable};
use crate::settings::{Origin, ServeSettings, Setting, SettingsError, Shape, unknown_variables};

/// Prints the settings to standard output and the problems to standard error.
pub fn run(args: &ConfigCheckArgs) -> anyhow::Result<Exit> {
    let (settings, problems) = match ServeSettings::resolve(&args.serve.flags, Some(&args.file)) {
        Ok(resolved) => (resolved.settings, resolved.args.problems()),
        Err(SettingsError::Flags(error)) => error.exit(),
        Err(SettingsError::Invalid(problems)) => (Vec::new(), problems),
    };
    let warnings = unknown_variables();
    let exit = if problems.is_empty() { Exit::Ok } else { Exit::Usage };
    if args.json {
        let settings: Vec<_> = settings.iter().map(as_json).collect();
        let (file, is_valid) = (args.file.display().to_string(), problems.is_empty());
        let answer = json!({ "file": file, "valid": is_valid, "settings": settings, "problems": problems,
                    "warnings": warnings });
        output::json(&answer)?;
        return Ok(exit);
    }
    if !settings.is_empty() {
        let mut table = output::table(&["setting", "value", "from"]);
        for setting in &settings {
            let values: Vec<_> = shown(setting).iter().map(|value| printable(value)).collect();
            let value = if values.is_empty() { "-".into() } else { values.join(", ") };
            table.add_row([setting.key.name().to_owned(), value, origin(setting)]);
        }
        output::show(&table)?;
    }
    for warning in &warnings {
        note(format!("taskyard: warning: {warning}"));
    }
    for problem in &problems {
        note(format!("taskyard: {problem}"));
    }
    let file = args.file.display();
    match problems.len() as u64 {
        0 => output::line(format!("\n{file} is valid"))?,
        count => note(format!("\n{file} is not valid: {}", plural(count, "problem"))),
    }
    Ok(exit)
}

fn shown(setting: &Setting) -> Vec<String> {
    setting.values.iter().map(|value| setting.key.shown(value)).collect()
}

fn origin(setting: &Setting) -> String {
    match setting.origin {
        Origin::Flag => "command line".into(),
        Origin::Variable => setting.key.variable(),
        Origin::File { line } => format!("file, line {line}"),
        Origin::Default => "default".into(),
    }
}

fn as_json(setting: &Setting) -> Value {
    let mut values = shown(setting).into_iter().map(|value| match setting.key.shape() {
        Shape::Switch => Value::Bool(value == "true" || value == "1"),
        Shape::Single | Shape::List => Value::String(value),
    });
    let value = match setting.key.shape() {
        Shape::List => Value::Array(values.collect()),
        Shape::Single | Shape::Switch => values.next().unwrap_or(Value::Null),
    };
    let (from, line) = match setting.origin {
        Origin::Flag => ("flag", None),
        Origin::Variable => ("variable", None),
        Origin::File { line } => ("file", Some(line)),
        Origin::Default => ("default", None),
    };
    json!({
        "name": setting.key.name(),
        "value": value,
        "from": from,
        "line": line,
        "variable": (!setting.key.is_only_flag()).then(|| setting.key.variable()),
    })
}
