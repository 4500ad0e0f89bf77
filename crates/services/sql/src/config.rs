//! Reads the configuration of pg_task: one row for each table that is scheduled.

use std::time::Duration;

use serde::Deserialize;

use crate::scheduler::Settings;
use crate::table::{Profile, TableName};
use taskyard_postgres::Conninfo;

/// The database and the user where a row names neither.
const NAME_DEFAULT: &str = "postgres";
/// The longest output unless a row sets another, in bytes.
pub const OUTPUT_BYTES_DEFAULT: usize = 16 << 20;
/// The longest output that a row may allow, in bytes: an outcome is sent as JSON in one message.
const OUTPUT_BYTES_MAX: usize = 128 << 20;
/// The longest that finished tasks can be kept, in seconds, about 1000 years: a longer interval before now is outside
/// the range of timestamps.
const KEEP_SECONDS_MAX: u64 = 1000 * 365 * 86_400;

/// The configuration of one table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableConfig {
    /// The database.
    pub data: String,
    /// The role that tasks run as.
    pub user: String,
    /// The schema and the table.
    pub names: TableName,
    /// The interval at which the table is polled without a notification.
    pub sleep: Duration,
    /// The interval at which tasks are searched that no session runs.
    pub reset: Duration,
    /// How many tasks may run at the same time; `None` for as many as leave enough connections free.
    pub run: Option<usize>,
    /// How long finished tasks are kept.
    pub keep: Option<Duration>,
    /// The states of the table.
    pub profile: Profile,
    /// The longest output, in bytes.
    pub output_bytes_max: usize,
    password: Option<String>,
    passfile: Option<String>,
}

/// The configuration of all tables.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Config {
    /// One row for each table.
    pub rows: Vec<TableConfig>,
}

/// Why a configuration cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(String);

/// A row as it is written, before defaults are filled in.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct RawTableConfig {
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
    /// A setting of pg_task that has no meaning here: its configurations are read unchanged.
    #[serde(rename = "spi")]
    _spi: Option<bool>,
}

impl Config {
    /// Reads the array of rows.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let values: Vec<serde_json::Value> = serde_json::from_str(text).map_err(|error| {
            ConfigError(format!("the configuration is not a JSON array: {error}"))
        })?;
        let mut config = Config::default();
        for (index, value) in values.into_iter().enumerate() {
            let wrong = |why: String| ConfigError(format!("row {}: {why}", index + 1));
            let written: RawTableConfig =
                serde_json::from_value(value).map_err(|error| wrong(error.to_string()))?;
            let row = written.resolved().map_err(wrong)?;
            if !config.rows.iter().any(|other| other.is_same(&row)) {
                config.rows.push(row);
            }
        }
        Ok(config)
    }

    /// The configuration of the table `public.task` of the database that a connection string names.
    pub fn single(database: &Conninfo) -> Self {
        let user = database.user.clone().or_else(|| database.dbname.clone());
        let user = user.unwrap_or_else(|| NAME_DEFAULT.into());
        let data = database.dbname.clone().unwrap_or_else(|| user.clone());
        let written =
            RawTableConfig { data: Some(data), user: Some(user), ..RawTableConfig::default() };
        Config { rows: written.resolved().into_iter().collect() }
    }
}

impl RawTableConfig {
    fn resolved(self) -> Result<TableConfig, String> {
        let named = |name: Option<String>| name.filter(|name| !name.is_empty());
        let (data, user) = match (named(self.data), named(self.user)) {
            (Some(data), Some(user)) => (data, user),
            (Some(one), None) | (None, Some(one)) => (one.clone(), one),
            (None, None) => (NAME_DEFAULT.into(), NAME_DEFAULT.into()),
        };
        let names = TableName {
            schema: named(self.schema).unwrap_or_else(|| "public".into()),
            table: named(self.table).unwrap_or_else(|| "task".into()),
        };
        for name in [&data, &user, &names.schema, &names.table] {
            if name.len() > 63 || name.contains('\0') {
                return Err(format!("name '{name}' is longer than 63 bytes"));
            }
        }
        let sleep = self.sleep.unwrap_or(1000);
        let reset = duration(self.reset.as_deref().unwrap_or("1 hour"), "reset")?;
        if sleep == 0 || reset.is_zero() {
            return Err("sleep and reset must be greater than 0".into());
        }
        let output_max = self.output_max.map_or(OUTPUT_BYTES_DEFAULT, |max| max as usize);
        Ok(TableConfig {
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

impl TableConfig {
    /// Whether both are about the same table.
    pub fn is_same(&self, other: &TableConfig) -> bool {
        let key = |row: &TableConfig| (row.data.clone(), row.user.clone(), row.names.clone());
        key(self) == key(other)
    }

    /// The settings of its scheduler, with the credentials of `database`.
    pub fn settings(&self, database: &Conninfo) -> Settings {
        let own = database.user.as_ref().or(database.dbname.as_ref()) == Some(&self.user);
        let mut conninfo = database.clone();
        // The password of the connection string belongs to its user; a password file has a line for each user.
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

    /// The password that the role gets when it is created.
    pub fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }
}

/// A duration as an interval of PostgreSQL, in numbers that every version accepts.
fn interval(length: Duration) -> String {
    let (seconds, micros) = (length.as_secs(), length.subsec_micros());
    format!("{} hours {}.{micros:06} seconds", seconds / 3600, seconds % 3600)
}

/// Reads a duration in the usual notations of PostgreSQL: `1 hour`, `2 days 3 min`, `01:30:00`.
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
    fn the_example_of_the_specification_is_read() {
        let text = r#"[{"data":"database1"},{"data":"database2","user":"username2"},
            {"data":"database3","schema":"schema3"},{"data":"database4","table":"table4"},
            {"data":"database5","sleep":100}]"#;
        let rows = Config::parse(text).unwrap().rows;
        let short = |row: &TableConfig| {
            let TableName { schema, table } = &row.names;
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
    fn missing_keys_get_defaults_and_duplicates_are_merged() {
        let rows = Config::parse(r#"[{}, {"user": "postgres"}, {"user": "ann"}, {"data": ""}]"#);
        let rows = rows.unwrap().rows;
        let pairs: Vec<_> = rows.iter().map(|row| (row.data.as_str(), row.user.as_str())).collect();
        assert_eq!(pairs, [("postgres", "postgres"), ("ann", "ann")]);
    }

    #[test]
    fn an_error_names_its_row() {
        for (text, expected) in [
            ("", "the configuration is not a JSON array"),
            ("{}", "the configuration is not a JSON array"),
            (r#"[{}, 5]"#, "row 2:"),
            (r#"[{"sleep": "often"}]"#, "row 1: invalid type"),
            (r#"[{"sleep": 0}]"#, "row 1: sleep and reset"),
            (r#"[{"reset": "soon"}]"#, "row 1: reset is 'soon'"),
            (r#"[{"keep": "-1 day"}]"#, "row 1: keep is '-1 day'"),
            (r#"[{"profile": "other"}]"#, "row 1: unknown variant"),
            (
                r#"[{"spi": true}, {"tabel": "x"}]"#,
                "row 2: unknown field `tabel`, expected one of `data`, `user`, `schema`, `table`, ",
            ),
        ] {
            let error = Config::parse(text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
    }

    #[test]
    fn durations_are_read() {
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
    fn keep_is_at_most_a_thousand_years() {
        // A timestamp of ten thousand years ago is outside the range of the database: every round failed.
        let keep = |text: &str| {
            let rows = Config::parse(&format!(r#"[{{"keep": "{text}"}}]"#)).unwrap().rows;
            rows[0].settings(&Conninfo::default()).keep.unwrap()
        };
        assert_eq!(keep("10000 years"), "8760000 hours 0.000000 seconds");
        assert_eq!(keep("1 day 1500 ms"), "24 hours 1.500000 seconds");
    }

    #[test]
    fn a_password_is_used_for_its_own_user_only() {
        let database = Conninfo::parse("postgres://ann:secret@h/shop").unwrap();
        let rows =
            Config::parse(r#"[{"data": "x", "user": "ann"}, {"user": "bob"}]"#).unwrap().rows;
        assert_eq!(rows[0].settings(&database).conninfo.password.as_deref(), Some("secret"));
        assert_eq!(rows[1].settings(&database).conninfo.password, None);
    }
}
