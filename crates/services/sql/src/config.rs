//! Which tables are scheduled: the rows of pg_task's configuration.

use std::time::Duration;

use serde::Deserialize;

use crate::scheduler::Settings;
use crate::table::{Names, Profile};
use taskyard_postgres::Conninfo;

/// The database and the user where a row names neither.
const USUAL: &str = "postgres";
/// The longest output unless a row sets another, in bytes.
pub const OUTPUT_BYTES_DEFAULT: usize = 16 << 20;
/// The longest output that a row may allow, in bytes: what is written down travels as JSON in one message.
const OUTPUT_BYTES_MAX: usize = 128 << 20;
/// The longest that finished tasks can be kept, in seconds, about 1000 years: no moment of the database is so far back
/// that it could be this long ago.
const KEEP_SECONDS_MAX: u64 = 1000 * 365 * 86_400;

/// One table that is scheduled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The database.
    pub data: String,
    /// As whom.
    pub user: String,
    /// The schema and the table.
    pub names: Names,
    /// How often to look where nothing says that there is something to do.
    pub sleep: Duration,
    /// How often to look for tasks that nobody runs any more.
    pub reset: Duration,
    /// How many tasks may run at the same time; where it is not given, as many as leave enough connections free.
    pub run: Option<usize>,
    /// For how long finished tasks are kept.
    pub keep: Option<Duration>,
    /// Which states there are.
    pub profile: Profile,
    /// The longest output, in bytes.
    pub output_bytes_max: usize,
    password: Option<String>,
    passfile: Option<String>,
}

/// All tables that are scheduled.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Config {
    /// One row for each.
    pub rows: Vec<Row>,
    /// What is there but means nothing.
    pub warnings: Vec<String>,
}

/// Why a configuration cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(String);

/// A row as it is written.
#[derive(Deserialize, Default)]
struct Written {
    data: Option<String>,
    user: Option<String>,
    schema: Option<String>,
    table: Option<String>,
    sleep: Option<u64>,
    reset: Option<String>,
    run: Option<u64>,
    keep: Option<String>,
    profile: Option<Profile>,
    output_max: Option<u64>,
    password: Option<String>,
    passfile: Option<String>,
    #[serde(flatten)]
    unknown: serde_json::Map<String, serde_json::Value>,
}

impl Config {
    /// Reads the array of rows.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let values: Vec<serde_json::Value> = serde_json::from_str(text).map_err(|error| {
            ConfigError(format!("the configuration is no array of JSON: {error}"))
        })?;
        let mut config = Config::default();
        for (place, value) in values.into_iter().enumerate() {
            let wrong = |why: String| ConfigError(format!("row {}: {why}", place + 1));
            let written: Written =
                serde_json::from_value(value).map_err(|error| wrong(error.to_string()))?;
            for name in written.unknown.keys() {
                let warning = format!("row {}: '{name}' is not known and ignored", place + 1);
                config.warnings.push(warning);
            }
            let row = written.resolved().map_err(wrong)?;
            if !config.rows.iter().any(|other| other.is_same(&row)) {
                config.rows.push(row);
            }
        }
        Ok(config)
    }

    /// The one table that a connection string names by itself.
    pub fn alone(database: &Conninfo) -> Self {
        let user = database.user.clone().or_else(|| database.dbname.clone());
        let user = user.unwrap_or_else(|| USUAL.into());
        let data = database.dbname.clone().unwrap_or_else(|| user.clone());
        let written = Written { data: Some(data), user: Some(user), ..Written::default() };
        let rows = written.resolved().into_iter().collect();
        Config { rows, warnings: Vec::new() }
    }
}

impl Written {
    fn resolved(self) -> Result<Row, String> {
        let named = |name: Option<String>| name.filter(|name| !name.is_empty());
        let (data, user) = match (named(self.data), named(self.user)) {
            (Some(data), Some(user)) => (data, user),
            (Some(one), None) | (None, Some(one)) => (one.clone(), one),
            (None, None) => (USUAL.into(), USUAL.into()),
        };
        let names = Names {
            schema: named(self.schema).unwrap_or_else(|| "public".into()),
            table: named(self.table).unwrap_or_else(|| "task".into()),
        };
        for name in [&data, &user, &names.schema, &names.table] {
            if name.len() > 63 || name.contains('\0') {
                return Err(format!("'{name}' is longer than 63 bytes, the most a name can be"));
            }
        }
        let sleep = self.sleep.unwrap_or(1000);
        let reset = duration(self.reset.as_deref().unwrap_or("1 hour"), "reset")?;
        if sleep == 0 || reset.is_zero() {
            return Err("sleep and reset must be more than nothing".into());
        }
        let output_max = self.output_max.map_or(OUTPUT_BYTES_DEFAULT, |max| max as usize);
        Ok(Row {
            data,
            user,
            names,
            sleep: Duration::from_millis(sleep),
            reset,
            run: self.run.map(|run| usize::try_from(run).unwrap_or(usize::MAX)),
            keep: self
                .keep
                .map(|keep| duration(&keep, "keep"))
                .transpose()?
                .map(|keep| keep.min(Duration::from_secs(KEEP_SECONDS_MAX))),
            profile: self.profile.unwrap_or_default(),
            output_bytes_max: output_max.min(OUTPUT_BYTES_MAX),
            password: self.password,
            passfile: self.passfile,
        })
    }
}

impl Row {
    /// Whether both are about the same table.
    pub fn is_same(&self, other: &Row) -> bool {
        let key = |row: &Row| (row.data.clone(), row.user.clone(), row.names.clone());
        key(self) == key(other)
    }

    /// What its scheduler needs, with the credentials of `database`.
    pub fn settings(&self, database: &Conninfo) -> Settings {
        let own = database.user.as_ref().or(database.dbname.as_ref()) == Some(&self.user);
        let mut conninfo = database.clone();
        // A password is for its own user; a file has a line for each.
        conninfo.password = self.password.clone().or(database.password.clone().filter(|_| own));
        conninfo.passfile = self.passfile.clone().or(database.passfile.clone());
        conninfo.user = Some(self.user.clone());
        conninfo.dbname = Some(self.data.clone());
        Settings {
            names: self.names.clone(),
            conninfo,
            sleep: self.sleep,
            reset: self.reset,
            run: self.run,
            keep: self.keep.map(interval),
            profile: self.profile,
            output_bytes_max: self.output_bytes_max,
        }
    }

    /// The password that a role gets when it is made.
    pub fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }
}

/// A length of time as PostgreSQL reads it, in numbers that every version takes.
fn interval(length: Duration) -> String {
    let (seconds, micros) = (length.as_secs(), length.subsec_micros());
    format!("{} hours {}.{micros:06} seconds", seconds / 3600, seconds % 3600)
}

/// Reads a length of time as PostgreSQL writes the usual ones: `1 hour`, `2 days 3 min`, `01:30:00`.
fn duration(text: &str, name: &str) -> Result<Duration, String> {
    let wrong = || format!("{name} is '{text}'; write it as 1 hour, 5 min, 2 days or 01:30:00");
    let mut seconds = 0.0;
    let mut words = text.split_whitespace().peekable();
    words.peek().ok_or_else(wrong)?;
    while let Some(word) = words.next() {
        if word.contains(':') {
            let parts: Result<Vec<f64>, _> = word.split(':').map(str::parse::<f64>).collect();
            let parts = parts.map_err(|_| wrong())?;
            let [hours, minutes, rest @ ..] = parts.as_slice() else { return Err(wrong()) };
            seconds += hours * 3600.0 + minutes * 60.0 + rest.first().unwrap_or(&0.0);
            continue;
        }
        let digits = word.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(word.len());
        let (number, unit) = word.split_at(digits);
        let number: f64 = number.parse().map_err(|_| wrong())?;
        let unit = if unit.is_empty() { words.next().unwrap_or("sec") } else { unit };
        seconds += number * unit_seconds(unit).ok_or_else(wrong)?;
    }
    Duration::try_from_secs_f64(seconds).map_err(|_| wrong())
}

fn unit_seconds(unit: &str) -> Option<f64> {
    let unit = unit.to_ascii_lowercase();
    Some(match unit.strip_suffix('s').filter(|u| u.len() > 1).unwrap_or(&unit) {
        "microsecond" | "us" | "usec" => 1e-6,
        "millisecond" | "ms" | "msec" => 1e-3,
        "second" | "sec" | "s" => 1.0,
        "minute" | "min" | "m" => 60.0,
        "hour" | "hr" | "h" => 3600.0,
        "day" | "d" => 86_400.0,
        "week" | "w" => 7.0 * 86_400.0,
        "month" | "mon" => 30.0 * 86_400.0,
        "year" | "y" => 365.25 * 86_400.0,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_first_description() {
        let text = r#"[{"data":"database1"},{"data":"database2","user":"username2"},
            {"data":"database3","schema":"schema3"},{"data":"database4","table":"table4"},
            {"data":"database5","sleep":100}]"#;
        let rows = Config::parse(text).unwrap().rows;
        let short = |row: &Row| {
            let Names { schema, table } = &row.names;
            format!("{} {} {schema} {table} {}", row.data, row.user, row.sleep.as_millis())
        };
        let all: Vec<String> = rows.iter().map(short).collect();
        assert_eq!(
            all,
            [
                "database1 database1 public task 1000",
                "database2 username2 public task 1000",
                "database3 database3 schema3 task 1000",
                "database4 database4 public table4 1000",
                "database5 database5 public task 100",
            ]
        );
        assert!(rows.iter().all(|row| row.reset == Duration::from_secs(3600)));
    }

    #[test]
    fn what_is_missing_is_filled_in_and_what_is_twice_is_once() {
        let rows = Config::parse(r#"[{}, {"user": "postgres"}, {"user": "ann"}, {"data": ""}]"#);
        let rows = rows.unwrap().rows;
        let pairs: Vec<_> = rows.iter().map(|row| (row.data.as_str(), row.user.as_str())).collect();
        assert_eq!(pairs, [("postgres", "postgres"), ("ann", "ann")]);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_row() {
        for (text, said) in [
            ("", "the configuration is no array of JSON"),
            ("{}", "the configuration is no array of JSON"),
            (r#"[{}, 5]"#, "row 2:"),
            (r#"[{"sleep": "often"}]"#, "row 1: invalid type"),
            (r#"[{"sleep": 0}]"#, "row 1: sleep and reset"),
            (r#"[{"reset": "soon"}]"#, "row 1: reset is 'soon'"),
            (r#"[{"keep": "-1 day"}]"#, "row 1: keep is '-1 day'"),
            (r#"[{"profile": "other"}]"#, "row 1: unknown variant"),
        ] {
            let error = Config::parse(text).unwrap_err().to_string();
            assert!(error.starts_with(said), "{text}: {error}");
        }
        let config = Config::parse(r#"[{"tabel": "x"}]"#).unwrap();
        assert_eq!(config.warnings, ["row 1: 'tabel' is not known and ignored"]);
    }

    #[test]
    fn lengths_of_time() {
        for (text, seconds) in [
            ("1 hour", 3600.0),
            ("90", 90.0),
            ("5min", 300.0),
            ("2 days 03:00:00.5", 183_600.5),
            ("100 ms", 0.1),
            ("1 mon", 2_592_000.0),
        ] {
            assert_eq!(duration(text, "x"), Ok(Duration::from_secs_f64(seconds)), "{text}");
        }
        for text in ["", "hour", "5 apples", "1:2:x", "1e400 days", ":"] {
            assert!(duration(text, "x").is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_kept_for_ever_is_kept_for_a_thousand_years() {
        // Ten thousand years ago there was no moment that the database knows: every round failed.
        let keep = |text: &str| {
            let rows = Config::parse(&format!(r#"[{{"keep": "{text}"}}]"#)).unwrap().rows;
            rows[0].settings(&Conninfo::default()).keep.unwrap()
        };
        assert_eq!(keep("10000 years"), "8760000 hours 0.000000 seconds");
        assert_eq!(keep("1 day 1500 ms"), "24 hours 1.500000 seconds");
    }

    #[test]
    fn a_password_is_for_its_own_user() {
        let database = Conninfo::parse("postgres://ann:secret@h/shop").unwrap();
        let rows =
            Config::parse(r#"[{"data": "x", "user": "ann"}, {"user": "bob"}]"#).unwrap().rows;
        assert_eq!(rows[0].settings(&database).conninfo.password.as_deref(), Some("secret"));
        assert_eq!(rows[1].settings(&database).conninfo.password, None);
    }
}
