//! Shows which peers are not in an answer about all servers, as far as the user may know it.

use taskyard_core::access::{AccessTarget, AccessVerb};
use taskyard_wire::http::MissingServer;

use super::RequestApp;

/// Maximum length of a reason.
const REASON_BYTES_MAX: usize = 300;
/// What users are told who may not see the server.
const HIDDEN_REASON: &str = "the reason is shown to users who may see the whole server";

/// The missing peers with short reasons. Where peers are, and what they answer, is shown to users who may see the
/// whole server; others see how many are missing.
pub(super) fn shown_missing(app: &RequestApp, missing: Vec<MissingServer>) -> Vec<MissingServer> {
    let sees_server = app.with_permissions(|permissions| {
        permissions.require(AccessVerb::ShowServer, AccessTarget::All).is_ok()
    });
    let shown = |(number, one): (usize, MissingServer)| match sees_server {
        true => MissingServer { reason: shortened(one.reason), ..one },
        false => MissingServer { url: format!("peer {number}"), reason: HIDDEN_REASON.into() },
    };
    (1..).zip(missing).map(shown).collect()
}

fn shortened(mut reason: String) -> String {
    if reason.len() > REASON_BYTES_MAX {
        let ellipsis = "…";
        reason.truncate(reason.floor_char_boundary(REASON_BYTES_MAX - ellipsis.len()));
        reason.push_str(ellipsis);
    }
    reason
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_reasons_are_cut() {
        assert_eq!(shortened("refused".into()), "refused");
        let cut = shortened("é".repeat(10_000));
        assert!(cut.len() <= REASON_BYTES_MAX && cut.ends_with("é…"), "{cut}");
    }
}
