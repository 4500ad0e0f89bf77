//! Applies the retry policies of tubes to failed deliveries that name no delay.

use taskyard_core::{AfterFailure, Command, Finish, FinishItem, Span};
use taskyard_wire::after_failure;

use crate::app::App;

/// Gives the failed deliveries without a delay the policy of their tube with a random number; in a
/// tube without a policy they are ready at once.
pub(super) async fn follow_policy(app: &App, command: &mut Command) {
    let Command::Finish { tube, items, .. } = command else { return };
    if !items.iter_mut().any(|item| without_delay(item).is_some()) {
        return;
    }
    let then = if app.engine.capabilities().retries {
        after_failure(&app.engine, tube, Span::ZERO).await
    } else {
        AfterFailure::Retry(Span::ZERO)
    };
    items.iter_mut().filter_map(without_delay).for_each(|after| *after = then);
}

/// What happens after a failed delivery that names no delay.
fn without_delay(item: &mut FinishItem) -> Option<&mut AfterFailure> {
    match &mut item.finish {
        Finish::Fail(fail) => Some(&mut fail.then),
        _ => None,
    }
    .filter(|then| matches!(then, AfterFailure::Policy(_)))
}
