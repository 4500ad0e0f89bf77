//! Audit entries: actions of operators and administrators, in the audit file and over HTTP.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::is_zero;

/// The latest audit entries of this server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AuditAnswer {
    /// The entries, the newest first.
    pub entries: Vec<AuditEntry>,
    /// How many entries could not be written to the audit file.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub errors: u64,
}

/// One action: a line of the audit file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AuditEntry {
    /// When it ended, in UTC: `2026-11-17T19:04:46.123Z`.
    pub time: String,
    /// The user; absent for what the server found by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The address of the client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// `http`, `iproto`, or `file` for the users that were read from their file.
    pub protocol: String,
    /// What was done: `delete`, `drop_tube`, `reload_users`.
    pub action: String,
    /// `tube`, `semaphore`, `schedule`, or `server`.
    pub target_kind: String,
    /// The name of the tube, semaphore or schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// How many tasks were changed; absent if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tasks: Option<u64>,
    /// How many tasks the request named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ids: Option<u64>,
    /// The filter by which tasks were chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// More about the request, without payloads and secrets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// What came of it.
    pub outcome: AuditOutcome,
    /// Why it was refused, or failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// How many attempts of this user without effect before this one have no entry, because there were too
    /// many.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub omitted: u64,
}

/// What came of an action.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum AuditOutcome {
    /// It took effect.
    Done,
    /// The user may not do it.
    Refused,
    /// It failed, and changed no more than `tasks` says.
    Failed,
    /// It may have taken effect: the client closed the connection before the reply, or the store did
    /// not answer.
    #[default]
    Unknown,
}

impl AuditOutcome {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            AuditOutcome::Done => "done",
            AuditOutcome::Refused => "refused",
            AuditOutcome::Failed => "failed",
            AuditOutcome::Unknown => "unknown",
        }
    }
}

impl fmt::Display for AuditOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
