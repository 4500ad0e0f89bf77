//! E-mails as typed tasks: a contract, a handler, a producer, and a dead letter after ten attempts.
//!
//! It sends nothing: whoever uses it brings a [`Transport`]. Start reading at `queues.yaml`, then here.

use taskyard::worker::{Context, HandlerResult, Store, Tally};

/// The types of the contract, written by the build script.
pub mod queues {
    include!(concat!(env!("OUT_DIR"), "/queues.rs"));
}

use queues::{EmailsHandler, EmailsTask};

/// After so many attempts an e-mail is put aside; `taskyard kick emails` brings it back.
pub const ATTEMPTS_MAX: u32 = 10;

/// Whatever sends an e-mail.
pub trait Transport: Send + Sync + 'static {
    /// Sends it, or says why not.
    fn send(&self, mail: &EmailsTask) -> Result<(), String>;
}

/// Sends e-mails through a transport.
pub struct Mailer<T>(pub T);

// docs: begin handler
impl<T: Transport> EmailsHandler for Mailer<T> {
    async fn handle_emails(
        &self,
        ctx: &Context,
        store: &Store,
        tasks: Vec<EmailsTask>,
    ) -> HandlerResult {
        let mut tally = Tally::new(store);
        for mail in tasks {
            if ctx.is_cancelled() {
                break;
            }
            match self.0.send(&mail) {
                Ok(()) => tally.done(mail.task_id),
                Err(why) if mail.attempts + 1 >= ATTEMPTS_MAX => tally.bury(mail.task_id, why),
                Err(why) => tally.retry(mail.task_id, mail.attempts, why),
            }
        }
        tally.settle().await
    }
}
// docs: end
