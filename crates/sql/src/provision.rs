//! Roles and databases that a configuration names and that are not there yet.

use crate::config::Row;
use crate::conninfo::Conninfo;
use crate::table::{identifier, literal};
use crate::wire::{Ask, AskError, Opening, Wire, connect};

/// Makes the role and the database of a row where they are missing, with the rights of `database`. Says what somebody
/// with more rights would have to run.
pub async fn provision(database: &Conninfo, row: &Row) -> Result<(), String> {
    let mut wire = connect(database, &Opening::default()).await.map_err(|error| error.line())?;
    let found = wire.ask(Ask::new(
        "SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1), \
         EXISTS (SELECT FROM pg_database WHERE datname = $2)",
        [&row.user, &row.data],
    ));
    let found = found.await.map_err(|error| error.line())?;
    let [found] = found.as_slice() else { return Ok(()) };
    let (user, data) = (identifier(&row.user), identifier(&row.data));
    if !found.is_true(0) {
        let password = row.password().map(|text| format!(" PASSWORD{}", literal(text)));
        let make = format!("CREATE ROLE {user} LOGIN");
        run(&mut wire, &make, &password.unwrap_or_default()).await?;
    }
    if !found.is_true(1) {
        run(&mut wire, &format!("CREATE DATABASE {data} OWNER {user}"), "").await?;
    }
    Ok(())
}

/// Runs a statement; the secret end of it is not told.
async fn run(wire: &mut Wire, statement: &str, secret: &str) -> Result<(), String> {
    match wire.run(&format!("{statement}{secret}")).await {
        Ok(()) => Ok(()),
        // Another scheduler made it at the same time.
        Err(AskError::Refused(refusal))
            if ["42710", "42P04", "23505"].contains(&&*refusal.code) =>
        {
            Ok(())
        }
        Err(error) => Err(format!("{}; somebody who may can run: {statement}", error.line())),
    }
}
