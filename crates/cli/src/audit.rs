//! `audit`: shows the latest actions of operators and administrators.

use clap::Args;
use taskyard_core::limits::AUDIT_ENTRIES_MAX;
use taskyard_wire::Exit;
use taskyard_wire::http::{AuditAnswer, AuditEntry};

use crate::connect::{ConnectArgs, block_on};
use crate::output;

/// The arguments of `audit`.
#[derive(Debug, Args)]
#[command(after_help = "\
Shows the entries that the server keeps in memory, at most 1000 since it started; serve --audit FILE
writes all of them to a file. Needs the role admin for all names. Puts, takes and the ends of own
deliveries have no entries.

Examples:
  taskyard audit
  taskyard audit --limit 1000 --json | jq -c 'select(.outcome == \"refused\")'")]
pub struct AuditArgs {
    /// Maximum number of entries, the newest ones.
    #[arg(long, value_name = "N", default_value_t = 20)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=AUDIT_ENTRIES_MAX as i64))]
    limit: u16,
    /// Print one JSON object per line.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Prints the entries, the oldest first, as they are in a file.
pub fn run(args: AuditArgs) -> anyhow::Result<Exit> {
    let http = args.connect.http()?;
    let AuditAnswer { mut entries, errors, .. } =
        block_on(async { Ok(http.audit(args.limit.into()).await?) })?;
    entries.reverse();
    if args.json {
        output::json_lines(&entries)?;
    } else if entries.is_empty() {
        output::line("no actions since the server started")?;
    } else {
        let head = ["time", "user", "from", "action", "target", "tasks", "outcome", "details"];
        let mut table = output::table(&head);
        for entry in &entries {
            table.add_row(row(entry));
        }
        output::show(&table)?;
    }
    if errors > 0 {
        let lost = output::plural(errors, "time");
        output::note(format!("the audit file of the server could not be written {lost}"));
    }
    Ok(Exit::Ok)
}

fn row(entry: &AuditEntry) -> [String; 8] {
    let shown =
        |text: &Option<String>| text.as_deref().map_or_else(|| "-".into(), output::printable);
    let target = match &entry.target {
        Some(name) => format!("{} {}", entry.target_kind, output::printable(name)),
        None => entry.target_kind.clone(),
    };
    [
        entry.time.clone(),
        shown(&entry.user),
        entry.address.clone().unwrap_or_else(|| entry.protocol.clone()),
        entry.action.clone(),
        target,
        entry.tasks.map_or_else(|| "-".into(), |tasks| tasks.to_string()),
        entry.outcome.to_string(),
        details(entry),
    ]
}

/// What the request said beside its target.
fn details(entry: &AuditEntry) -> String {
    let ids = entry.ids.map(|ids| output::plural(ids, "id"));
    let filter = entry.filter.as_ref().map(|filter| format!("filter {filter}"));
    let texts = [ids, filter, entry.detail.clone(), entry.error.clone()];
    let texts: Vec<_> = texts.into_iter().flatten().map(|text| output::printable(&text)).collect();
    texts.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_shows_no_control_characters() {
        let entry = AuditEntry {
            action: "delete".into(),
            target_kind: "tube".into(),
            target: Some("mail".into()),
            protocol: "http".into(),
            ids: Some(2),
            filter: Some("a\u{1b}[2J".into()),
            ..AuditEntry::default()
        };
        let row = row(&entry);
        assert_eq!((row[4].as_str(), row[7].as_str()), ("tube mail", r"2 ids; filter a\u{1b}[2J"));
        assert_eq!((row[1].as_str(), row[2].as_str(), row[5].as_str()), ("-", "http", "-"));
    }
}
