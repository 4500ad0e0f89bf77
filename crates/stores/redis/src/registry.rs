//! Manages sessions and runs ticks over all tubes.

use std::collections::BTreeSet;

use taskyard_core::{Error, Reply, SessionId};
use taskyard_redis::{Call, Failure, Value};

use super::Redis;
use super::codec;
use super::execute::{Batch, unreadable_registry};
use super::tubes::{
    HashTag, NEVER, TUBES_TOGETHER, TubeAddress, read_counted, read_ticked, status,
};

/// The status of an answer of the registry.
const OK: i64 = 0;
const UNKNOWN: i64 = 2;
const STALE: i64 = 9;
const ENDING: i64 = 10;

/// How long to wait before an unreachable tube is called again, in microseconds.
pub(super) const RETRY_AFTER: i64 = 1_000_000;

/// The progress of a tick.
#[derive(Default)]
pub(super) struct TickProgress {
    pub moved: usize,
    /// The first failure.
    failed: Option<Failure>,
}

impl TickProgress {
    /// The answer; `None` and noted if it is a failure.
    pub fn take<T>(&mut self, answer: Result<T, Failure>) -> Option<T> {
        answer.map_err(|failure| self.failed.get_or_insert(failure).clone()).ok()
    }

    fn end(self) -> Result<usize, Failure> {
        match self.failed {
            Some(failure) if self.moved == 0 => Err(failure),
            _ => Ok(self.moved),
        }
    }
}

impl Redis {
    /// A call of the registry.
    pub(crate) fn registry_call(&self, verb: &str, words: Vec<Vec<u8>>) -> Call {
        let mut args = vec![verb.as_bytes().to_vec(), self.now_word()];
        args.extend(words);
        let key = format!("{{{}}}", self.connector.url.prefix);
        Call { function: "registry", key, args, replicate: false }
    }
}

impl Batch<'_> {
    /// Calls the registry once.
    pub async fn registry(
        &mut self,
        verb: &str,
        words: Vec<Vec<u8>>,
    ) -> Result<Vec<Value>, Failure> {
        let call = self.shared.registry_call(verb, words);
        let answer = self.link.call(&[call]).await.pop();
        let answer = answer.unwrap_or_else(|| Err(unreadable_registry()))?;
        answer.list().ok_or_else(unreadable_registry)
    }

    /// Calls the registry with an idempotent verb.
    pub async fn registry_with_retry(
        &mut self,
        verb: &str,
        words: Vec<Vec<u8>>,
    ) -> Result<Vec<Value>, Failure> {
        let call = self.shared.registry_call(verb, words);
        let answer = self.call_with_retry(&call).await?;
        answer.list().ok_or_else(unreadable_registry)
    }

    pub async fn join(
        &mut self,
        session: SessionId,
        create: bool,
    ) -> Result<Result<Reply, Error>, Failure> {
        let create = if create { b"1".to_vec() } else { b"0".to_vec() };
        let words = || vec![session.0.to_vec(), create.clone(), self.shared.server.clone()];
        let words = (words(), words());
        let mut answer = status(&self.registry("join", words.0).await?)?;
        if answer.0 == STALE {
            self.end_session(session).await?;
            answer = status(&self.registry("join", words.1).await?)?;
        }
        if answer.0 != OK {
            return Ok(Err(Error::SessionUnknown(session)));
        }
        self.shared.cache().sessions.joined(session);
        Ok(Ok(Reply::Session(session)))
    }

    pub async fn leave(&mut self, session: SessionId) -> Result<Result<Reply, Error>, Failure> {
        let words = vec![session.0.to_vec(), self.shared.server.clone()];
        let (status, ends) = status(&self.registry("leave", words).await?)?;
        if status == UNKNOWN {
            self.shared.cache().sessions.ended(session);
            return Ok(Err(Error::SessionUnknown(session)));
        }
        self.shared.cache().sessions.left(session);
        if status == ENDING {
            let ended = self.end_session(session).await;
            if ended.is_err() {
                // A repeated leave is answered that the session is unknown. A tick ends it.
                let mut cache = self.shared.cache();
                let clock = cache.clock();
                cache.session_ends(clock);
            }
            ended?;
        } else if ends < NEVER {
            self.shared.cache().session_ends(ends);
        }
        Ok(Ok(Reply::Nothing))
    }

    /// Gives back what a session holds, then removes it, unless a tube cannot be reached. Idempotent. Answers the number of tasks.
    pub async fn end_session(&mut self, session: SessionId) -> Result<usize, Failure> {
        let held = self.registry_with_retry("held", vec![session.0.to_vec()]).await?;
        let mut held = held.into_iter();
        let lost = held.next().and_then(|lost| lost.int()) == Some(1);
        let mut tags: BTreeSet<HashTag> = held.filter_map(HashTag::read).collect();
        tags.extend(self.shared.cache().sessions.held.get(&session).into_iter().flatten().cloned());
        let address: Vec<TubeAddress> = tags.into_iter().map(TubeAddress::at).collect();
        let (mut back, mut failed) = (0, None);
        for (_, answer) in self.call_each(&address, &codec::end_session(session, lost)).await {
            match answer.and_then(read_counted) {
                Ok((head, mut parts, count)) => {
                    back += count;
                    self.learn_unnamed(&head);
                    self.note_failed(head.name.as_ref(), count as u64);
                    self.learn_others(&mut parts);
                }
                Err(failure) => failed = failed.or(Some(failure)),
            }
        }
        if let Some(failure) = failed {
            return Err(failure);
        }
        self.registry_with_retry("ended", vec![session.0.to_vec()]).await?;
        self.shared.cache().sessions.held.remove(&session);
        Ok(back)
    }

    /// Records in the registry from which tubes a session takes, by their tags.
    pub async fn record_held(
        &mut self,
        session: SessionId,
        tags: &[HashTag],
    ) -> Result<(), Failure> {
        let tags = tags.iter().map(HashTag::bytes);
        let words = std::iter::once(session.0.to_vec()).chain(tags).collect();
        self.registry_with_retry("hold", words).await.map(drop)
    }

    /// Applies due deadlines to about `limit` tasks. A tube that cannot be reached does not block the others: it is a failure only
    /// if nothing else moved.
    pub async fn tick(&mut self, limit: usize, seed: u32) -> Result<usize, Failure> {
        let (sweep, clock, session_end) = {
            let mut cache = self.shared.cache();
            let sweep = cache.wants_sweep(self.shared.presence.has_other_servers());
            if sweep {
                cache.begin_sweep();
            }
            (sweep, cache.clock(), cache.session_end)
        };
        let mut ticked = TickProgress::default();
        if sweep {
            self.update_next_schedule().await?;
        }
        if sweep || session_end.is_some_and(|end| end <= clock) {
            self.tick_sessions(limit, &mut ticked).await?;
        }
        let tubes = if sweep { self.all_tubes().await? } else { self.due_tubes(clock) };
        for address in tubes.chunks(TUBES_TOGETHER) {
            if ticked.moved >= limit {
                return Ok(ticked.moved);
            }
            let words = codec::tick(limit - ticked.moved, seed);
            for (address, answer) in self.call_each(address, &words).await {
                let Some((head, mut parts, (here, failed))) =
                    ticked.take(answer.and_then(read_ticked))
                else {
                    self.tick_later(address);
                    continue;
                };
                if let Some(name) = &address.name {
                    // A rate limit may allow deliveries again.
                    self.learn(name, &head, here > 0 || head.rated);
                }
                self.note_failed(address.name.as_ref().or(head.name.as_ref()), failed);
                self.learn_others(&mut parts);
                ticked.moved += here;
            }
        }
        self.tick_semaphores(limit, sweep, &mut ticked).await?;
        if sweep {
            self.shared.cache().swept();
        }
        ticked.end()
    }

    /// Schedules another tick of a tube that could not be reached, also without other servers.
    fn tick_later(&mut self, address: &TubeAddress) {
        let mut cache = self.shared.cache();
        let again = cache.clock().saturating_add(RETRY_AFTER);
        if let Some(name) = &address.name {
            cache.retry_at(name, again);
        }
    }

    /// The tubes in which something is due, as far as this server knows.
    fn due_tubes(&self, clock: i64) -> Vec<TubeAddress> {
        let due = self.shared.cache().due_tubes(clock);
        due.iter().map(|tube| self.shared.address(tube)).collect()
    }

    /// Ends sessions whose time is over.
    async fn tick_sessions(
        &mut self,
        limit: usize,
        ticked: &mut TickProgress,
    ) -> Result<(), Failure> {
        let mut due = self.registry_with_retry("due", vec![limit.to_string().into_bytes()]).await?;
        let clock = due.pop().and_then(|clock| clock.int());
        let next = due.pop().and_then(|next| next.int());
        let (Some(clock), Some(next)) = (clock, next) else { return Err(unreadable_registry()) };
        for session in due.into_iter().filter_map(Value::text) {
            let Ok(session) = session.try_into() else { return Err(unreadable_registry()) };
            let ended = self.end_session(SessionId(session)).await;
            ticked.moved += ticked.take(ended).map_or(0, |back| 1 + back);
        }
        let mut cache = self.shared.cache();
        cache.ahead = clock.saturating_sub(cache.now);
        cache.session_end = Some(next).filter(|next| *next < NEVER);
        // If the limit is reached, more may be due.
        if ticked.moved >= limit {
            cache.session_ends(clock);
        } else if ticked.failed.is_some() {
            cache.session_ends(clock.saturating_add(RETRY_AFTER));
        }
        Ok(())
    }
}
