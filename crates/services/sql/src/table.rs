//! Creates or upgrades the table of tasks, and builds the statements for it.

use crate::connection::{Connection, Query, QueryError};
use crate::task::{COLUMNS, COLUMNS_COUNT};

/// The key of a group: a hash of its name and its remote that no two groups share. The column `hash` is too short for
/// that.
const KEY: &str =
    r#"md5(length("group")::text || ':' || "group" || coalesce(':' || remote, ''))::uuid"#;

/// Makes the transaction that claims or starts a task on a remote wait for the disk, although the session does not by
/// default: `taskyard.sync` is the setting that the session started with.
const SYNC: &str = "CASE WHEN t.remote IS NOT NULL THEN set_config('synchronous_commit', \
    coalesce(nullif(current_setting('taskyard.sync', true), ''), 'on'), true) END";

/// How many finished tasks are deleted by one statement.
pub const DELETED_MAX: usize = 1000;

/// The states of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// The states of pg_task: a task that failed is DONE, with an error.
    #[default]
    #[serde(rename = "pg_task", alias = "seed")]
    PgTask,
    /// A task that failed is FAIL, one that expired is GONE.
    Extended,
}

impl Profile {
    fn labels(self) -> &'static str {
        match self {
            Profile::PgTask => "ARRAY['PLAN', 'TAKE', 'WORK', 'DONE', 'STOP']",
            Profile::Extended => "ARRAY['PLAN', 'GONE', 'TAKE', 'WORK', 'DONE', 'FAIL', 'STOP']",
        }
    }
}

/// The name of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableName {
    /// The schema.
    pub schema: String,
    /// The table in it.
    pub table: String,
}

impl TableName {
    /// The qualified name for a statement.
    pub fn quoted(&self) -> String {
        format!("{}.{}", identifier(&self.schema), identifier(&self.table))
    }
}

/// Quotes a name for a statement.
pub fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Quotes a text for a statement.
pub fn literal(text: &str) -> String {
    format!(" E'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

/// The statements for one table.
#[derive(Clone, Debug)]
pub struct Statements {
    /// Claims tasks.
    pub claim: String,
    /// Writes the outcomes of tasks.
    pub finish: String,
    /// Marks tasks as running.
    pub start: String,
    /// Returns tasks that no session runs.
    pub reset: String,
    /// Writes again what a crash of the database lost.
    pub restore: String,
    /// Ends sessions of a scheduler that is gone.
    pub orphans: String,
    /// Finds tasks that ran on remotes for a scheduler that is gone.
    pub abandoned: String,
    /// Finds which of these tasks were stopped or deleted.
    pub stopped: String,
    /// Finds the last pauses of groups.
    pub pauses: String,
    /// Deletes tasks that finished long enough ago.
    pub delete_finished: String,
    names: TableName,
    version: u32,
}

impl Statements {
    fn new(names: &TableName, version: u32) -> Self {
        let fill = |text: &str| fill_names(text, names, version);
        let table = "{table}";
        Statements {
            claim: fill(&claim()),
            finish: fill(&include_str!("statements/finish.sql").replace("{repeat}", "")),
            start: fill(include_str!("statements/start.sql")),
            reset: fill(include_str!("statements/reset.sql")),
            restore: fill(include_str!("statements/restore.sql")),
            orphans: fill(include_str!("statements/orphans.sql")),
            abandoned: fill(&format!(
                "SELECT {{columns}}, encode(timestamptz_send(t.start), 'hex'), \
                 encode(timestamptz_send(clock_timestamp()), 'hex') FROM {table} t \
                 WHERE t.state = 'WORK' AND t.remote IS NOT NULL AND t.id <> ALL ($1::bigint[])"
            )),
            stopped: fill(&format!(
                "SELECT i FROM unnest($1::bigint[]) AS i WHERE NOT EXISTS (SELECT FROM {table} t \
                 WHERE t.id = i AND t.state IN ('TAKE', 'WORK'))"
            )),
            pauses: fill(&format!(
                "SELECT DISTINCT ON (1) {{key}}, encode(timestamptz_send(plan), 'hex'), \
                 encode(timestamptz_send(stop), 'hex'), max, drift FROM {table} \
                 WHERE max < 0 AND stop > now() - interval '50 days' AND stop > now() - greatest(interval '1 hour', \
                 max * interval '-2 ms') ORDER BY 1, stop DESC"
            )),
            delete_finished: fill(&format!(
                "WITH deleted AS (DELETE FROM {table} WHERE id IN (SELECT id FROM {table} WHERE state::text IN \
                 ('DONE', 'FAIL', 'GONE') AND stop < now() - $1::interval LIMIT {DELETED_MAX}) RETURNING 1) \
                 SELECT count(*) FROM deleted"
            )),
            names: names.clone(),
            version,
        }
    }

    /// The statement that writes outcomes and inserts the next runs with these columns.
    pub fn finish_and_repeat(&self, columns: &str, values: &str) -> String {
        let repeat = include_str!("statements/repeat.sql");
        let repeat = fill_names(repeat, &self.names, self.version);
        let repeat = substitute(&repeat, &[("names", columns), ("values", values)]);
        let text = fill_names(include_str!("statements/finish.sql"), &self.names, self.version);
        substitute(&text, &[("repeat", &repeat)])
    }
}

/// The statements that create or upgrade the table, in this order.
const TABLE_PARTS: &str = concat!(
    include_str!("statements/table/schema.sql"),
    include_str!("statements/table/columns.sql"),
    include_str!("statements/table/indexes.sql"),
    include_str!("statements/table/triggers.sql"),
);

/// The claim, put together from its parts.
fn claim() -> String {
    let parts = [
        ("groups", include_str!("statements/claim/groups.sql")),
        ("tasks", include_str!("statements/claim/tasks.sql")),
        ("waiting", include_str!("statements/claim/waiting.sql")),
    ];
    substitute(include_str!("statements/claim.sql"), &parts)
}

/// Finds the columns that the next run of a task copies.
pub const REPEATED_COLUMNS: &str = include_str!("statements/repeated_columns.sql");

fn fill_names(text: &str, names: &TableName, version: u32) -> String {
    // Before version 12 every CTE was materialized, and the keyword did not exist.
    let text =
        if version < 120_000 { text.replace(" AS MATERIALIZED ", " AS ") } else { text.into() };
    let state = format!("{}.state", identifier(&names.schema));
    let nothing = "NULL, ".repeat(COLUMNS_COUNT + 2);
    let table = names.quoted();
    let values = [
        ("table", table.as_str()),
        ("state", &state),
        ("columns", COLUMNS),
        ("nothing", &nothing),
        ("key", KEY),
        ("sync", SYNC),
    ];
    substitute(&text, &values)
}

/// Replaces placeholders by values, in one pass: braces inside a value are not replaced.
fn substitute(text: &str, values: &[(&str, &str)]) -> String {
    let mut done = String::with_capacity(text.len() * 2);
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        done.push_str(before);
        let found = values
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

/// A table that is ready for use.
#[derive(Clone, Debug)]
pub struct Table {
    /// Its OID.
    pub oid: u32,
    /// The statements for it.
    pub statements: Statements,
    /// Its states.
    pub profile: Profile,
    /// The time zone of the database.
    pub zone: String,
    /// Whether the scheduler's role is a superuser.
    pub superuser: bool,
    /// Whether the server can detect a closed client connection while a query runs.
    pub checks_client: bool,
}

/// Why a table cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// A right is missing.
    #[error("{error}; an administrator can run: {grant}")]
    MissingRight {
        /// The error of the database.
        error: String,
        /// The statement that grants the right.
        grant: String,
    },
    /// A query failed.
    #[error("{0}")]
    Database(#[from] QueryError),
}

/// Creates or upgrades the table.
pub async fn prepare(
    connection: &mut Connection,
    names: &TableName,
    profile: Profile,
) -> Result<Table, TableError> {
    let values = [
        ("schema_text", &*literal(&names.schema)),
        ("table_text", &*literal(&names.table)),
        ("labels", profile.labels()),
        ("column_list", include_str!("statements/table/column_list.sql").trim_end()),
        ("key", KEY),
        ("cron", include_str!("statements/cron.sql")),
    ];
    // One text, so that all parts are one transaction.
    let make = substitute(TABLE_PARTS, &values);
    if let Err(error) = connection.run(&make).await {
        return Err(with_grant(connection, names, error).await);
    }
    let text = "SELECT $1::regclass::oid, current_setting('server_version_num'), \
                current_setting('TimeZone'), current_setting('is_superuser') = 'on', \
                has_table_privilege($1, 'SELECT') AND has_table_privilege($1, 'INSERT') \
                AND has_table_privilege($1, 'UPDATE') AND has_table_privilege($1, 'DELETE'), \
                current_user, \
                coalesce(current_setting('client_connection_check_interval', true), '0') <> '0'";
    let rows = connection.query(Query::new(text, [&names.quoted()])).await?;
    let row = rows.first().ok_or_else(|| QueryError::Lost("no answer".into()))?;
    if !row.is_true(4) {
        let user = identifier(row.text(5).unwrap_or_default());
        let table = names.quoted();
        return Err(TableError::MissingRight {
            error: format!("permission denied to read and change tasks in {table}"),
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

/// Adds the missing GRANT to an error about permissions.
async fn with_grant(
    connection: &mut Connection,
    names: &TableName,
    error: QueryError,
) -> TableError {
    let QueryError::Refused(refused) = &error else { return error.into() };
    if refused.code != "42501" {
        return error.into();
    }
    let message = refused.message.clone();
    let rows = connection.query(Query::new("SELECT current_user, current_database()", [])).await;
    let Ok([row]) = rows.as_deref() else { return error.into() };
    let user = identifier(row.text(0).unwrap_or_default());
    let database = identifier(row.text(1).unwrap_or_default());
    let grant = if message.contains("database") {
        format!("GRANT CREATE ON DATABASE {database} TO {user}")
    } else if message.contains("schema") {
        format!("GRANT USAGE, CREATE ON SCHEMA {} TO {user}", identifier(&names.schema))
    } else if message.contains("type") {
        format!("ALTER TYPE {}.state OWNER TO {user}", identifier(&names.schema))
    } else {
        format!("ALTER TABLE {} OWNER TO {user}", names.quoted())
    };
    TableError::MissingRight { error: message, grant }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_texts_are_quoted() {
        let names = TableName { schema: "a\"b; --".into(), table: "x y".into() };
        assert_eq!(names.quoted(), "\"a\"\"b; --\".\"x y\"");
        assert_eq!(literal("it's \\"), " E'it''s \\\\'");
    }

    #[test]
    fn every_placeholder_is_replaced() {
        let names = TableName { schema: "public".into(), table: "task".into() };
        let all = Statements::new(&names, 150_000);
        let repeat = all.finish_and_repeat(", input", ", t.input");
        for text in
            [&all.claim, &all.finish, &all.start, &all.reset, &all.orphans, &all.restore, &repeat]
        {
            assert!(!text.contains('{'), "{text}");
        }
        let old = Statements::new(&names, 110_000);
        assert!(all.claim.contains("AS MATERIALIZED") && !old.claim.contains("AS MATERIALIZED"));
    }
}
