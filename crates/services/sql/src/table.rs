//! The table of tasks: its names, its making, and the statements for it.

use crate::task::{COLUMNS, COLUMNS_COUNT};
use crate::wire::{Ask, AskError, Wire};

/// What makes a group: its own name and its remote, in one number that no two groups share. The column `hash` is too
/// short for that.
const KEY: &str =
    r#"md5(length("group")::text || ':' || "group" || coalesce(':' || remote, ''))::uuid"#;

/// Lets the transaction that claims or starts a task on a remote be on disk before it is answered, whatever the session
/// set before: `taskyard.sync` is what it was set to by itself.
const SYNC: &str = "CASE WHEN t.remote IS NOT NULL THEN set_config('synchronous_commit', \
    coalesce(nullif(current_setting('taskyard.sync', true), ''), 'on'), true) END";

/// How many finished tasks are deleted in one go.
pub const FORGOTTEN_MAX: usize = 1000;

/// Which states there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// A task that failed is DONE, with an error.
    #[default]
    Seed,
    /// A task that failed is FAIL, one that was too late is GONE.
    Extended,
}

impl Profile {
    fn labels(self) -> &'static str {
        match self {
            Profile::Seed => "ARRAY['PLAN', 'TAKE', 'WORK', 'DONE', 'STOP']",
            Profile::Extended => "ARRAY['PLAN', 'GONE', 'TAKE', 'WORK', 'DONE', 'FAIL', 'STOP']",
        }
    }
}

/// How a table is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// The schema.
    pub schema: String,
    /// The table in it.
    pub table: String,
}

impl Names {
    /// Both, as they stand in a statement.
    pub fn quoted(&self) -> String {
        format!("{}.{}", identifier(&self.schema), identifier(&self.table))
    }
}

/// A name as it stands in a statement.
pub fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A text as it stands in a statement.
pub fn literal(text: &str) -> String {
    format!(" E'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

/// The statements for one table.
#[derive(Clone, Debug)]
pub struct Statements {
    /// Claims tasks.
    pub claim: String,
    /// Writes down how tasks ended.
    pub finish: String,
    /// Says that tasks run.
    pub start: String,
    /// Gives back what nobody runs.
    pub reset: String,
    /// Writes again what a crash of the database lost.
    pub restore: String,
    /// Ends sessions of a scheduler that is gone.
    pub orphans: String,
    /// What ran on remotes for a scheduler that is gone.
    pub abandoned: String,
    /// Which of these tasks are no longer to run.
    pub unwanted: String,
    /// The last pauses of groups.
    pub pauses: String,
    /// Deletes what is finished for long enough.
    pub forget: String,
    names: Names,
    version: u32,
}

impl Statements {
    fn new(names: &Names, version: u32) -> Self {
        let fill = |text: &str| filled(text, names, version);
        let table = "{table}";
        Statements {
            claim: fill(include_str!("statements/claim.sql")),
            finish: fill(&include_str!("statements/finish.sql").replace("{again}", "")),
            start: fill(include_str!("statements/start.sql")),
            reset: fill(include_str!("statements/reset.sql")),
            restore: fill(include_str!("statements/restore.sql")),
            orphans: fill(include_str!("statements/orphans.sql")),
            abandoned: fill(&format!(
                "SELECT {{columns}}, encode(timestamptz_send(t.start), 'hex'), \
                 encode(timestamptz_send(clock_timestamp()), 'hex') FROM {table} t \
                 WHERE t.state = 'WORK' AND t.remote IS NOT NULL AND t.id <> ALL ($1::bigint[])"
            )),
            unwanted: fill(&format!(
                "SELECT i FROM unnest($1::bigint[]) AS i WHERE NOT EXISTS (SELECT FROM {table} t \
                 WHERE t.id = i AND t.state IN ('TAKE', 'WORK'))"
            )),
            pauses: fill(&format!(
                "SELECT DISTINCT ON (1) {{key}}, encode(timestamptz_send(plan), 'hex'), \
                 encode(timestamptz_send(stop), 'hex'), max, drift FROM {table} \
                 WHERE max < 0 AND stop > now() - interval '50 days' AND stop > now() - greatest(interval '1 hour', \
                 max * interval '-2 ms') ORDER BY 1, stop DESC"
            )),
            forget: fill(&format!(
                "WITH gone AS (DELETE FROM {table} WHERE id IN (SELECT id FROM {table} WHERE state::text IN \
                 ('DONE', 'FAIL', 'GONE') AND stop < now() - $1::interval LIMIT {FORGOTTEN_MAX}) RETURNING 1) \
                 SELECT count(*) FROM gone"
            )),
            names: names.clone(),
            version,
        }
    }

    /// The one that writes down ends and makes repetitions with these columns.
    pub fn finish_again(&self, columns: &str, values: &str) -> String {
        let again = include_str!("statements/again.sql");
        let again = filled(again, &self.names, self.version);
        let again = put_in(&again, &[("names", columns), ("values", values)]);
        let text = filled(include_str!("statements/finish.sql"), &self.names, self.version);
        put_in(&text, &[("again", &again)])
    }
}

/// The columns that repetitions have in common.
pub const REPEATED: &str = include_str!("statements/columns.sql");

fn filled(text: &str, names: &Names, version: u32) -> String {
    // Before 12 every part was made on its own anyway, and there was no word for it.
    let text =
        if version < 120_000 { text.replace(" AS MATERIALIZED ", " AS ") } else { text.into() };
    let state = format!("{}.state", identifier(&names.schema));
    let nothing = "NULL, ".repeat(COLUMNS_COUNT + 2);
    let table = names.quoted();
    let places = [
        ("table", table.as_str()),
        ("state", &state),
        ("columns", COLUMNS),
        ("nothing", &nothing),
        ("key", KEY),
        ("sync", SYNC),
    ];
    put_in(&text, &places)
}

/// Puts values into their places, each once: what a value itself looks like does not matter.
fn put_in(text: &str, places: &[(&str, &str)]) -> String {
    let mut done = String::with_capacity(text.len() * 2);
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        done.push_str(before);
        let found = places
            .iter()
            .find_map(|(name, value)| Some((value, after.strip_prefix(name)?.strip_prefix('}')?)));
        match found {
            Some((value, after)) => {
                done.push_str(value);
                rest = after;
            }
            None => {
                done.push('{');
                rest = after;
            }
        }
    }
    done.push_str(rest);
    done
}

/// A table that is ready.
#[derive(Clone, Debug)]
pub struct Table {
    /// Its number in the catalog.
    pub oid: u32,
    /// The statements for it.
    pub statements: Statements,
    /// Which states it has.
    pub profile: Profile,
    /// The time zone of the database.
    pub zone: String,
    /// Whether the role we are is a superuser.
    pub superuser: bool,
    /// Whether the server can see that a client is gone while a query runs.
    pub checks_client: bool,
}

/// Why a table cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// A right is missing.
    #[error("{said}; an administrator can run: {grant}")]
    Right {
        /// What the database says.
        said: String,
        /// What gives the right.
        grant: String,
    },
    /// The database refused, or is gone.
    #[error("{0}")]
    Database(#[from] AskError),
}

/// Makes or upgrades the table.
pub async fn prepare(
    wire: &mut Wire,
    names: &Names,
    profile: Profile,
) -> Result<Table, TableError> {
    let places = [
        ("schema_text", &*literal(&names.schema)),
        ("table_text", &*literal(&names.table)),
        ("labels", profile.labels()),
        ("key", KEY),
        ("cron", include_str!("statements/cron.sql")),
    ];
    let make = put_in(include_str!("statements/table.sql"), &places);
    if let Err(error) = wire.run(&make).await {
        return Err(explain(wire, names, error).await);
    }
    let text = "SELECT $1::regclass::oid, current_setting('server_version_num'), \
                current_setting('TimeZone'), current_setting('is_superuser') = 'on', \
                has_table_privilege($1, 'SELECT') AND has_table_privilege($1, 'INSERT') \
                AND has_table_privilege($1, 'UPDATE') AND has_table_privilege($1, 'DELETE'), \
                current_user, \
                coalesce(current_setting('client_connection_check_interval', true), '0') <> '0'";
    let rows = wire.ask(Ask::new(text, [&names.quoted()])).await?;
    let row = rows.first().ok_or_else(|| AskError::Lost("no answer".into()))?;
    if !row.is_true(4) {
        let user = identifier(row.text(5).unwrap_or_default());
        let table = names.quoted();
        return Err(TableError::Right {
            said: format!("the tasks in {table} cannot be read and changed"),
            grant: format!("GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {user}"),
        });
    }
    Ok(Table {
        oid: row.parsed(0).unwrap_or_default(),
        statements: Statements::new(names, row.parsed(1).unwrap_or(90_600)),
        profile,
        zone: row.text(2).unwrap_or("UTC").to_owned(),
        superuser: row.is_true(3),
        checks_client: row.is_true(6),
    })
}

/// Adds to a refusal what would help.
async fn explain(wire: &mut Wire, names: &Names, error: AskError) -> TableError {
    let AskError::Refused(refusal) = &error else { return error.into() };
    if refusal.code != "42501" {
        return error.into();
    }
    let said = refusal.message.clone();
    let rows = wire.ask(Ask::new("SELECT current_user, current_database()", [])).await;
    let Ok([row]) = rows.as_deref() else { return error.into() };
    let user = identifier(row.text(0).unwrap_or_default());
    let database = identifier(row.text(1).unwrap_or_default());
    let grant = if said.contains("database") {
        format!("GRANT CREATE ON DATABASE {database} TO {user}")
    } else if said.contains("schema") {
        format!("GRANT USAGE, CREATE ON SCHEMA {} TO {user}", identifier(&names.schema))
    } else if said.contains("type") {
        format!("ALTER TYPE {}.state OWNER TO {user}", identifier(&names.schema))
    } else {
        format!("ALTER TABLE {} OWNER TO {user}", names.quoted())
    };
    TableError::Right { said, grant }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_be_broken_out_of() {
        let names = Names { schema: "a\"b; --".into(), table: "x y".into() };
        assert_eq!(names.quoted(), "\"a\"\"b; --\".\"x y\"");
        assert_eq!(literal("it's \\"), " E'it''s \\\\'");
    }

    #[test]
    fn every_place_is_filled() {
        let names = Names { schema: "public".into(), table: "task".into() };
        let all = Statements::new(&names, 150_000);
        let again = all.finish_again(", input", ", t.input");
        for text in
            [&all.claim, &all.finish, &all.start, &all.reset, &all.orphans, &all.restore, &again]
        {
            assert!(!text.contains('{'), "{text}");
        }
        let old = Statements::new(&names, 110_000);
        assert!(all.claim.contains("AS MATERIALIZED") && !old.claim.contains("AS MATERIALIZED"));
    }
}
