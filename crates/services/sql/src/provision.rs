//! Creates the roles and databases that a configuration names and that do not exist.

use taskyard_postgres::Conninfo;

use crate::config::TableConfig;
use crate::connection::{ConnectError, Connection, Query, QueryError, SessionOptions, connect};
use crate::table::{identifier, literal};

/// Which of the role and the database of a row exist.
const FOUND: &str = "SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1), \
                     EXISTS (SELECT FROM pg_database WHERE datname = $2), \
                     (SELECT rolsuper FROM pg_roles WHERE rolname = current_user), \
                     EXISTS (SELECT FROM pg_roles WHERE rolname = $1 AND rolcanlogin)";

/// Creates the role and the database of a row where they are missing, with the rights of `database`. `refused` is the
/// error of connecting as the row's own user. Where a right is missing, the error lists all statements that an
/// administrator has to run.
pub async fn provision(
    database: &Conninfo,
    row: &TableConfig,
    refused: &ConnectError,
) -> Result<(), String> {
    let mut connection = connect_as_admin(database, row).await?;
    let found = connection.query(Query::new(FOUND, [&row.user, &row.data])).await;
    let found = found.map_err(|error| error.line())?;
    let [found] = found.as_slice() else { return Ok(()) };
    let (role, data, superuser) = (found.is_true(0), found.is_true(1), found.is_true(2));
    if role && data {
        return login_hint(row, refused, found.is_true(3)).map_or(Ok(()), Err);
    }
    let missing = missing(row, Missing { role: !role, data: !data, superuser });
    for (done, step) in missing.iter().enumerate() {
        if let Err(error) = run(&mut connection, step).await {
            let rest = missing[done..].iter().filter(|step| !step.temporary);
            let rest: Vec<&str> = rest.map(|step| step.statement.as_str()).collect();
            return Err(format!("{error}; an administrator can run: {}", rest.join("; ")));
        }
        tracing::info!("{}", step.statement);
    }
    Ok(())
}

/// The databases that exist in every server.
const MAINTENANCE_DATABASES: [&str; 2] = ["postgres", "template1"];

/// Connects with the rights of `database`, to another database where that one is missing.
async fn connect_as_admin(database: &Conninfo, row: &TableConfig) -> Result<Connection, String> {
    let error = match connect(database, &SessionOptions::default()).await {
        Ok(connection) => return Ok(connection),
        Err(error) => error,
    };
    if let Some(statement) = error.missing_role(database) {
        let advice = format!("an administrator can run: {statement}");
        let own = database.user.as_ref().or(database.dbname.as_ref()) == Some(&row.user);
        // The caller describes the error of the row's own user.
        return Err(if own { advice } else { format!("{}; {advice}", error.described(database)) });
    }
    if !matches!(&error, ConnectError::Refused(error) if error.code == "3D000") {
        return Err(error.described(database));
    }
    for name in MAINTENANCE_DATABASES {
        let other = Conninfo { dbname: Some(name.into()), ..database.clone() };
        if let Ok(connection) = connect(&other, &SessionOptions::default()).await {
            return Ok(connection);
        }
    }
    let (user, data) = (identifier(&row.user), identifier(&row.data));
    Err(format!("an administrator can run: CREATE DATABASE {data} OWNER {user}"))
}

/// Which of the role and the database of a row are missing.
struct Missing {
    role: bool,
    data: bool,
    /// Whether the connection belongs to a superuser.
    superuser: bool,
}

/// A statement to run.
struct Step {
    statement: String,
    /// The end of the statement, which is never shown.
    secret: String,
    /// Whether only a role without superuser rights needs it.
    temporary: bool,
}

fn missing(row: &TableConfig, missing: Missing) -> Vec<Step> {
    let step = |statement: String, temporary| Step { statement, secret: String::new(), temporary };
    let (user, data) = (identifier(&row.user), identifier(&row.data));
    let mut steps = Vec::new();
    if missing.role {
        let password = row.password().map(|text| format!(" PASSWORD{}", literal(text)));
        let statement = format!("CREATE ROLE {user} LOGIN");
        steps.push(Step { statement, secret: password.unwrap_or_default(), temporary: false });
    }
    if missing.data {
        // A role without superuser rights can make only a role that it is a member of the owner of a database.
        let grant = missing.role && !missing.superuser;
        steps.extend(grant.then(|| step(format!("GRANT {user} TO CURRENT_USER"), true)));
        steps.push(step(format!("CREATE DATABASE {data} OWNER {user}"), false));
        steps.extend(grant.then(|| step(format!("REVOKE {user} FROM CURRENT_USER"), true)));
    }
    steps
}

async fn run(connection: &mut Connection, step: &Step) -> Result<(), String> {
    match connection.run(&format!("{}{}", step.statement, step.secret)).await {
        Ok(()) => Ok(()),
        // Another scheduler created it at the same time.
        Err(QueryError::Refused(error)) if ["42710", "42P04", "23505"].contains(&&*error.code) => {
            Ok(())
        }
        Err(error) => Err(error.line()),
    }
}

/// What lets a role that exists log in; nothing where the error of the server is enough.
fn login_hint(row: &TableConfig, refused: &ConnectError, may_log_in: bool) -> Option<String> {
    let ConnectError::Refused(error) = refused else { return None };
    let (user, data) = (identifier(&row.user), identifier(&row.data));
    Some(match error.code.as_str() {
        _ if !may_log_in => format!("an administrator can run: ALTER ROLE {user} LOGIN"),
        "42501" => {
            format!("an administrator can run: GRANT CONNECT ON DATABASE {data} TO {user}")
        }
        "28P01" => format!(
            "set the password of {user} as \"password\" in its row, or name a file with it as \"passfile\""
        ),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::connection::SqlError;

    fn row() -> TableConfig {
        let text = r#"[{"data": "sh\"op", "user": "ann", "password": "it's"}]"#;
        Config::parse(text).unwrap().rows.remove(0)
    }

    fn statements(of: Missing) -> Vec<String> {
        missing(&row(), of).into_iter().map(|step| step.statement + &step.secret).collect()
    }

    #[test]
    fn missing_roles_and_databases_are_created() {
        let role = "CREATE ROLE \"ann\" LOGIN PASSWORD E'it''s'";
        let data = "CREATE DATABASE \"sh\"\"op\" OWNER \"ann\"";
        let all = Missing { role: true, data: true, superuser: true };
        assert_eq!(statements(all), [role, data]);
        let grant = "GRANT \"ann\" TO CURRENT_USER";
        let revoke = "REVOKE \"ann\" FROM CURRENT_USER";
        let all = Missing { role: true, data: true, superuser: false };
        assert_eq!(statements(all), [role, grant, data, revoke]);
        assert_eq!(statements(Missing { role: true, data: false, superuser: false }), [role]);
        assert_eq!(statements(Missing { role: false, data: true, superuser: false }), [data]);
    }

    #[test]
    fn a_role_that_cannot_log_in_gets_a_hint() {
        let refused = |code: &str| {
            ConnectError::Refused(SqlError { code: code.into(), ..SqlError::default() })
        };
        let hint = |code, may| login_hint(&row(), &refused(code), may).unwrap_or_default();
        assert!(hint("28000", false).ends_with("ALTER ROLE \"ann\" LOGIN"));
        assert!(hint("42501", true).ends_with("GRANT CONNECT ON DATABASE \"sh\"\"op\" TO \"ann\""));
        assert!(hint("28P01", true).contains("\"password\" in its row"));
        // pg_hba.conf has no line for this client: the error of the server is enough.
        assert_eq!(hint("28000", true), "");
        let unreachable = ConnectError::Unreachable("timeout expired".into());
        assert_eq!(login_hint(&row(), &unreachable, true), None);
    }
}
