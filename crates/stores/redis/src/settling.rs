//! Redis may believe something else than this server: it is told how things stand before anything else is asked.
//!
//! A node of a cluster that is away keeps nobody from the others. What was under way there is put in order when it is back, and until
//! then only those who ask there are refused.

use taskyard_redis::{Call, Failure};

use super::codec;
use super::execute::{Batch, Group, unreadable_registry};
use super::failure::error;
use super::presence::patience;
use super::tubes::{Home, Whom, read, unreadable};

/// A delivery that nobody may have heard of: where the tube lives, and the first and last of its numbers.
type Unheard = (Home, u64, u64);

impl Batch<'_> {
    /// Tells Redis how things stand here, if it may believe something else. May be done twice.
    pub async fn settle(&mut self) -> Result<(), Failure> {
        let (told, unheard) = {
            let mut known = self.shared.known();
            if self.shared.presence.is_overdue() {
                known.doubt();
            }
            let Some(disorder) = &mut known.disorder else { return Ok(()) };
            (std::mem::replace(&mut disorder.told, true), disorder.unheard.clone())
        };
        if !told && let Err(failure) = self.tell_registry().await {
            self.shared.known().doubt();
            return Err(failure);
        }
        let done = self.unhear(unheard).await;
        {
            let mut known = self.shared.known();
            let Some(disorder) = &mut known.disorder else { return Ok(()) };
            disorder.unheard.retain(|one| !done.contains(one));
            if disorder.told && disorder.unheard.is_empty() {
                known.disorder = None;
            }
        }
        if !told || !done.is_empty() {
            self.shared.presence.look_around();
        }
        Ok(())
    }

    async fn tell_registry(&mut self) -> Result<(), Failure> {
        let (sessions, held) = {
            let known = self.shared.known();
            (known.sessions.connections.clone(), known.sessions.held.clone())
        };
        let names = sessions.keys().map(|session| session.0.to_vec()).collect();
        let lives = self.registry_again("lives", names).await?;
        for (session, lives) in sessions.keys().zip(lives) {
            // It ended meanwhile, and goes on without what it held; but what is where nobody can be asked it keeps.
            if lives.int() != Some(1)
                && let Err(failure) = self.end_session(*session).await
            {
                tracing::debug!(why = failure.text(), "a session keeps what cannot be given back");
            }
        }
        let counts = sessions.iter();
        let counts = counts
            .flat_map(|(session, count)| [session.0.to_vec(), count.to_string().into_bytes()]);
        let first = [self.shared.server.clone(), patience(), self.shared.epoch_word()];
        let words = first.into_iter().chain(counts).collect();
        let answer = self.registry_again("settle", words).await?;
        let epoch = answer.first().and_then(|epoch| epoch.int()).ok_or_else(unreadable_registry)?;
        self.shared.known().heard_epoch(epoch);
        for (session, homes) in held.iter().filter(|(session, _)| sessions.contains_key(session)) {
            let homes: Vec<Home> = homes.iter().cloned().collect();
            self.tell_held(*session, &homes).await?;
            self.shared.known().sessions.held.insert(*session, homes.into_iter().collect());
        }
        Ok(())
    }

    /// Gives back what nobody heard of, where that can be done now. Answers what is in order.
    async fn unhear(&mut self, unheard: Vec<Unheard>) -> Vec<Unheard> {
        let call = |(home, first, last): &Unheard| {
            let words = vec![codec::unhear(*first, *last)];
            self.shared.tube_call("free", &Whom::at(home.clone()), words)
        };
        let calls: Vec<Call> = unheard.iter().map(call).collect();
        let answers = self.call_each_again(&calls).await;
        let mut done = Vec::new();
        for (one, answer) in unheard.into_iter().zip(answers) {
            let given_back = answer.and_then(read).and_then(|(head, mut parts)| {
                parts.status().map_err(unreadable)?;
                self.learn_unnamed(&head);
                self.learn_others(&mut parts);
                Ok(())
            });
            match given_back {
                Ok(()) => done.push(one),
                // A tube that is damaged must not keep the others waiting.
                Err(failure @ Failure::Refused(_)) if failure.may_be_done() => {
                    tracing::error!(why = failure.text(), "a delivery cannot be given back");
                    done.push(one);
                }
                Err(failure) => {
                    tracing::debug!(why = failure.text(), "a delivery cannot be given back yet");
                }
            }
        }
        done
    }

    /// Refuses those who ask where something is not in order yet. Answers the others.
    pub fn refuse_disorder(&mut self, mut groups: Vec<Group>) -> Vec<Group> {
        let disorder = self.shared.known().disorder.clone();
        // What this batch has brought into disorder itself is put in order before the next one.
        let Some(disorder) = disorder.filter(|disorder| disorder.told) else { return groups };
        groups.retain(|group| {
            let home = self.shared.whom(&group.tube).home;
            let waits = disorder.unheard.iter().any(|(other, ..)| *other == home);
            if waits {
                let why = "what was lost there cannot be put in order yet";
                let error = error(&Failure::Unreachable(why.into()));
                group.places().for_each(|place| self.replies[place] = Some(Err(error.clone())));
            }
            !waits
        });
        groups
    }
}
