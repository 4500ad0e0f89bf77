//! Roles and databases that a configuration names and that are not there yet.

use taskyard_postgres::Conninfo;

use crate::config::Row;
use crate::table::{identifier, literal};
use crate::wire::{Ask, AskError, ConnectError, Opening, Wire, connect};

/// What is there already, of what a row names.
const FOUND: &str = "SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1), \
                     EXISTS (SELECT FROM pg_database WHERE datname = $2), \
                     (SELECT rolsuper FROM pg_roles WHERE rolname = current_user), \
                     EXISTS (SELECT FROM pg_roles WHERE rolname = $1 AND rolcanlogin)";

/// Makes the role and the database of a row where they are missing, with the rights of `database`. `refused` is what
/// was said when we came as the row's own user. Where a right is missing, says everything that somebody with more
/// rights would have to run.
pub async fn provision(
    database: &Conninfo,
    row: &Row,
    refused: &ConnectError,
) -> Result<(), String> {
    let mut wire = administer(database, row).await?;
    let found = wire.ask(Ask::new(FOUND, [&row.user, &row.data])).await;
    let found = found.map_err(|error| error.line())?;
    let [found] = found.as_slice() else { return Ok(()) };
    let (role, data, superuser) = (found.is_true(0), found.is_true(1), found.is_true(2));
    if role && data {
        return advice(row, refused, found.is_true(3)).map_or(Ok(()), Err);
    }
    let missing = missing(row, Missing { role: !role, data: !data, superuser });
    for (place, step) in missing.iter().enumerate() {
        if let Err(said) = run(&mut wire, step).await {
            let rest = missing[place..].iter().filter(|step| !step.ours);
            let rest: Vec<&str> = rest.map(|step| step.statement.as_str()).collect();
            return Err(format!("{said}; somebody who may can run: {}", rest.join("; ")));
        }
        tracing::info!("{}", step.statement);
    }
    Ok(())
}

/// The databases that are there in every server.
const ALWAYS: [&str; 2] = ["postgres", "template1"];

/// A connection with the rights of `database`, to another database where that one is itself missing.
async fn administer(database: &Conninfo, row: &Row) -> Result<Wire, String> {
    let error = match connect(database, &Opening::default()).await {
        Ok(wire) => return Ok(wire),
        Err(error) => error,
    };
    if !matches!(&error, ConnectError::Refused(refusal) if refusal.code == "3D000") {
        return Err(error.line());
    }
    for name in ALWAYS {
        let other = Conninfo { dbname: Some(name.into()), ..database.clone() };
        if let Ok(wire) = connect(&other, &Opening::default()).await {
            return Ok(wire);
        }
    }
    let (user, data) = (identifier(&row.user), identifier(&row.data));
    Err(format!("an administrator can run: CREATE DATABASE {data} OWNER {user}"))
}

/// What of a row is not there.
struct Missing {
    role: bool,
    data: bool,
    /// Whether we may do everything.
    superuser: bool,
}

/// Something to run; the secret end of it is not told.
struct Step {
    statement: String,
    secret: String,
    /// Whether it only helps us, and nobody else would need it.
    ours: bool,
}

fn missing(row: &Row, missing: Missing) -> Vec<Step> {
    let step = |statement: String, ours| Step { statement, secret: String::new(), ours };
    let (user, data) = (identifier(&row.user), identifier(&row.data));
    let mut steps = Vec::new();
    if missing.role {
        let password = row.password().map(|text| format!(" PASSWORD{}", literal(text)));
        let statement = format!("CREATE ROLE {user} LOGIN");
        steps.push(Step { statement, secret: password.unwrap_or_default(), ours: false });
    }
    if missing.data {
        // Whoever is no superuser may give a database only to a role that they have themselves, and a moment is enough.
        let lend = missing.role && !missing.superuser;
        steps.extend(lend.then(|| step(format!("GRANT {user} TO CURRENT_USER"), true)));
        steps.push(step(format!("CREATE DATABASE {data} OWNER {user}"), false));
        steps.extend(lend.then(|| step(format!("REVOKE {user} FROM CURRENT_USER"), true)));
    }
    steps
}

async fn run(wire: &mut Wire, step: &Step) -> Result<(), String> {
    match wire.run(&format!("{}{}", step.statement, step.secret)).await {
        Ok(()) => Ok(()),
        // Another scheduler made it at the same time.
        Err(AskError::Refused(refusal))
            if ["42710", "42P04", "23505"].contains(&&*refusal.code) =>
        {
            Ok(())
        }
        Err(error) => Err(error.line()),
    }
}

/// What helps a role that is there and yet is not let in; nothing where what was said is enough.
fn advice(row: &Row, refused: &ConnectError, may_log_in: bool) -> Option<String> {
    let ConnectError::Refused(refusal) = refused else { return None };
    let (user, data) = (identifier(&row.user), identifier(&row.data));
    Some(match refusal.code.as_str() {
        _ if !may_log_in => format!("an administrator can run: ALTER ROLE {user} LOGIN"),
        "42501" => {
            format!("an administrator can run: GRANT CONNECT ON DATABASE {data} TO {user}")
        }
        "28P01" => format!(
            "give the password of {user} as \"password\" in its row, or name a file with it as \"passfile\""
        ),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::wire::Refusal;

    fn row() -> Row {
        let text = r#"[{"data": "sh\"op", "user": "ann", "password": "it's"}]"#;
        Config::parse(text).unwrap().rows.remove(0)
    }

    fn statements(of: Missing) -> Vec<String> {
        missing(&row(), of).into_iter().map(|step| step.statement + &step.secret).collect()
    }

    #[test]
    fn what_is_missing_is_made() {
        let role = "CREATE ROLE \"ann\" LOGIN PASSWORD E'it''s'";
        let data = "CREATE DATABASE \"sh\"\"op\" OWNER \"ann\"";
        let all = Missing { role: true, data: true, superuser: true };
        assert_eq!(statements(all), [role, data]);
        let (lend, back) = ("GRANT \"ann\" TO CURRENT_USER", "REVOKE \"ann\" FROM CURRENT_USER");
        let all = Missing { role: true, data: true, superuser: false };
        assert_eq!(statements(all), [role, lend, data, back]);
        assert_eq!(statements(Missing { role: true, data: false, superuser: false }), [role]);
        assert_eq!(statements(Missing { role: false, data: true, superuser: false }), [data]);
    }

    #[test]
    fn a_role_that_is_not_let_in_gets_advice() {
        let refused =
            |code: &str| ConnectError::Refused(Refusal { code: code.into(), ..Refusal::default() });
        let said = |code, may| advice(&row(), &refused(code), may).unwrap_or_default();
        assert!(said("28000", false).ends_with("ALTER ROLE \"ann\" LOGIN"));
        assert!(said("42501", true).ends_with("GRANT CONNECT ON DATABASE \"sh\"\"op\" TO \"ann\""));
        assert!(said("28P01", true).contains("\"password\" in its row"));
        // No line of the server's own file for us: what the server says is enough.
        assert_eq!(said("28000", true), "");
        let away = ConnectError::Unreachable("away".into());
        assert_eq!(advice(&row(), &away, true), None);
    }
}
