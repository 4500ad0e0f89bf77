//! Corrects what Redis has after a reply was lost, before the next call.
//!
//! A node of a cluster that is away does not block the others. Calls that were under way there are corrected when it is back; until
//! then only commands for that node are refused.

use taskyard_redis::{Call, Failure};

use super::codec;
use super::execute::{Batch, TubeGroup, unreadable_registry};
use super::failure::error;
use super::presence::heartbeat_timeout;
use super::tubes::{HashTag, TubeAddress, read, unreadable};

/// Deliveries whose replies were lost: the tag of the tube, and the first and last of their lease numbers.
type Unacknowledged = (HashTag, u64, u64);

impl Batch<'_> {
    /// Corrects Redis, if it may differ from what this server knows. Idempotent.
    pub async fn resync(&mut self) -> Result<(), Failure> {
        let (is_reported, unacknowledged) = {
            let mut cache = self.shared.cache();
            if self.shared.presence.last.is_overdue() {
                cache.request_resync();
            }
            let Some(resync) = &mut cache.resync else { return Ok(()) };
            (std::mem::replace(&mut resync.is_reported, true), resync.unacknowledged.clone())
        };
        if !is_reported && let Err(failure) = self.report_sessions().await {
            self.shared.cache().request_resync();
            return Err(failure);
        }
        let done = self.undo_unacknowledged(unacknowledged).await;
        {
            let mut cache = self.shared.cache();
            let Some(resync) = &mut cache.resync else { return Ok(()) };
            resync.unacknowledged.retain(|one| !done.contains(one));
            if resync.is_reported && resync.unacknowledged.is_empty() {
                cache.resync = None;
            }
        }
        if !is_reported || !done.is_empty() {
            self.shared.presence.notify_unknown();
        }
        Ok(())
    }

    async fn report_sessions(&mut self) -> Result<(), Failure> {
        let (sessions, held) = {
            let cache = self.shared.cache();
            (cache.sessions.connections.clone(), cache.sessions.held.clone())
        };
        let names = sessions.keys().map(|session| session.0.to_vec()).collect();
        let lives = self.registry_with_retry("alive", names).await?;
        for (session, lives) in sessions.keys().zip(lives) {
            // It ended meanwhile and continues without its tasks; but tasks on unreachable nodes stay with it.
            if lives.int() != Some(1)
                && let Err(failure) = self.end_session(*session).await
            {
                tracing::debug!(
                    why = failure.text(),
                    "a session keeps tasks of a node that cannot be reached"
                );
            }
        }
        let counts = sessions.iter();
        let counts = counts
            .flat_map(|(session, count)| [session.0.to_vec(), count.to_string().into_bytes()]);
        let first = [self.shared.server.clone(), heartbeat_timeout(), self.shared.epoch_word()];
        let words = first.into_iter().chain(counts).collect();
        let answer = self.registry_with_retry("resync", words).await?;
        let epoch = answer.first().and_then(|epoch| epoch.int()).ok_or_else(unreadable_registry)?;
        self.shared.cache().raise_epoch(epoch);
        for (session, tags) in held.iter().filter(|(session, _)| sessions.contains_key(session)) {
            let tags: Vec<HashTag> = tags.iter().cloned().collect();
            self.record_held(*session, &tags).await?;
            self.shared.cache().sessions.held.insert(*session, tags.into_iter().collect());
        }
        Ok(())
    }

    /// Undoes deliveries whose replies were lost, where that is possible now. Answers those that are done.
    async fn undo_unacknowledged(
        &mut self,
        unacknowledged: Vec<Unacknowledged>,
    ) -> Vec<Unacknowledged> {
        let call = |(tag, first, last): &Unacknowledged| {
            let words = vec![codec::undo_unacknowledged(*first, *last)];
            self.shared.tube_call("call", &TubeAddress::at(tag.clone()), words)
        };
        let calls: Vec<Call> = unacknowledged.iter().map(call).collect();
        let answers = self.call_each_with_retry(&calls).await;
        let mut done = Vec::new();
        for (one, answer) in unacknowledged.into_iter().zip(answers) {
            let given_back = answer.and_then(read).and_then(|(head, mut parts)| {
                parts.status().map_err(unreadable)?;
                self.learn_unnamed(&head);
                self.learn_others(&mut parts);
                Ok(())
            });
            match given_back {
                Ok(()) => done.push(one),
                // A damaged tube must not block the others.
                Err(failure @ Failure::Refused(_)) if failure.may_be_done() => {
                    tracing::error!(
                        why = failure.text(),
                        "cannot undo a delivery whose reply was lost"
                    );
                    done.push(one);
                }
                Err(failure) => {
                    tracing::debug!(
                        why = failure.text(),
                        "cannot undo a delivery whose reply was lost yet"
                    );
                }
            }
        }
        done
    }

    /// Refuses commands for tubes that are not corrected yet. Answers the others.
    pub fn refuse_unsynced(&mut self, mut groups: Vec<TubeGroup>) -> Vec<TubeGroup> {
        let resync = self.shared.cache().resync.clone();
        // What this batch has lost itself is corrected before the next one.
        let Some(resync) = resync.filter(|resync| resync.is_reported) else { return groups };
        groups.retain(|group| {
            let tag = self.shared.address(&group.tube).tag;
            let waits = resync.unacknowledged.iter().any(|(other, ..)| *other == tag);
            if waits {
                let why = "deliveries whose replies were lost cannot be undone there yet";
                let error = error(&Failure::Unreachable(why.into()));
                group.indexes().for_each(|place| self.replies[place] = Some(Err(error.clone())));
            }
            !waits
        });
        groups
    }
}
