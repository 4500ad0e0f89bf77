//! What is about all tubes: sessions, and what time does.

use std::collections::BTreeSet;

use taskyard_core::{Error, Reply, SessionId};
use taskyard_redis::{Call, Failure, Value};

use super::Redis;
use super::codec;
use super::execute::{Batch, unreadable_registry};
use super::tubes::{Home, NEVER, TUBES_TOGETHER, Whom, read_counted, status};

/// What the registry answers first.
const OK: i64 = 0;
const UNKNOWN: i64 = 2;
const STALE: i64 = 9;
const ENDING: i64 = 10;

/// How long what cannot be asked is left alone, in microseconds.
pub(super) const AGAIN: i64 = 1_000_000;

/// What a tick has done so far.
#[derive(Default)]
pub(super) struct Ticked {
    pub moved: usize,
    /// The first that went wrong.
    failed: Option<Failure>,
}

impl Ticked {
    /// What somebody answered; nothing if that went wrong.
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
        let key = format!("{{{}}}", self.reach.url.prefix);
        Call { function: "registry", key, args, replicate: false }
    }
}

impl Batch<'_> {
    /// Asks the registry something that changes things.
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

    /// Asks it something that may be asked twice.
    pub async fn registry_again(
        &mut self,
        verb: &str,
        words: Vec<Vec<u8>>,
    ) -> Result<Vec<Value>, Failure> {
        let call = self.shared.registry_call(verb, words);
        let answer = self.call_again(&call).await?;
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
        self.shared.known().sessions.joined(session);
        Ok(Ok(Reply::Session(session)))
    }

    pub async fn leave(&mut self, session: SessionId) -> Result<Result<Reply, Error>, Failure> {
        let words = vec![session.0.to_vec(), self.shared.server.clone()];
        let (status, ends) = status(&self.registry("leave", words).await?)?;
        if status == UNKNOWN {
            self.shared.known().sessions.ended(session);
            return Ok(Err(Error::SessionUnknown(session)));
        }
        self.shared.known().sessions.left(session);
        if status == ENDING {
            let ended = self.end_session(session).await;
            if ended.is_err() {
                // Whoever says again that it leaves hears that it is no more. A tick brings it to its end.
                let mut known = self.shared.known();
                let clock = known.clock();
                known.session_ends(clock);
            }
            ended?;
        } else if ends < NEVER {
            self.shared.known().session_ends(ends);
        }
        Ok(Ok(Reply::Nothing))
    }

    /// Gives back what a session holds, then forgets it, unless a tube cannot be asked. May be done twice. Answers how many tasks that were.
    pub async fn end_session(&mut self, session: SessionId) -> Result<usize, Failure> {
        let held = self.registry_again("held", vec![session.0.to_vec()]).await?;
        let mut homes: BTreeSet<Home> = held.into_iter().filter_map(Home::read).collect();
        homes
            .extend(self.shared.known().sessions.held.get(&session).into_iter().flatten().cloned());
        let whom: Vec<Whom> = homes.into_iter().map(Whom::at).collect();
        let (mut back, mut failed) = (0, None);
        for (_, answer) in self.ask_each(&whom, &codec::part(session)).await {
            match answer.and_then(read_counted) {
                Ok((head, mut parts, count)) => {
                    back += count;
                    self.learn_unnamed(&head);
                    self.learn_others(&mut parts);
                }
                Err(failure) => failed = failed.or(Some(failure)),
            }
        }
        if let Some(failure) = failed {
            return Err(failure);
        }
        self.registry_again("ended", vec![session.0.to_vec()]).await?;
        self.shared.known().sessions.held.remove(&session);
        Ok(back)
    }

    /// Tells the registry from which tubes a session takes, by where they live.
    pub async fn tell_held(&mut self, session: SessionId, homes: &[Home]) -> Result<(), Failure> {
        let homes = homes.iter().map(Home::bytes);
        let words = std::iter::once(session.0.to_vec()).chain(homes).collect();
        self.registry_again("hold", words).await.map(drop)
    }

    /// Lets time do what is due, for about `limit` tasks. A tube that cannot be asked does not keep it from others: it is a failure only
    /// where nothing else moved.
    pub async fn tick(&mut self, limit: usize) -> Result<usize, Failure> {
        let (sweep, clock, session_end) = {
            let mut known = self.shared.known();
            let sweep = known.wants_sweep(self.shared.presence.is_accompanied());
            if sweep {
                known.begin_sweep();
            }
            (sweep, known.clock(), known.session_end)
        };
        let mut ticked = Ticked::default();
        if sweep || session_end.is_some_and(|end| end <= clock) {
            self.tick_sessions(limit, &mut ticked).await?;
        }
        let tubes = if sweep { self.all_tubes().await? } else { self.due_tubes(clock) };
        for whom in tubes.chunks(TUBES_TOGETHER) {
            if ticked.moved >= limit {
                return Ok(ticked.moved);
            }
            let words = codec::tick(limit - ticked.moved);
            for (whom, answer) in self.ask_each(whom, &words).await {
                let Some((head, mut parts, here)) = ticked.take(answer.and_then(read_counted))
                else {
                    self.tick_later(whom);
                    continue;
                };
                if let Some(name) = &whom.name {
                    self.learn(name, &head, here > 0);
                }
                self.learn_others(&mut parts);
                ticked.moved += here;
            }
        }
        self.tick_semaphores(limit, sweep, &mut ticked).await?;
        if sweep {
            self.shared.known().swept();
        }
        ticked.end()
    }

    /// A tube that could not be asked is asked again before long, also by a server that is alone.
    fn tick_later(&mut self, whom: &Whom) {
        let mut known = self.shared.known();
        let again = known.clock().saturating_add(AGAIN);
        if let Some(name) = &whom.name {
            known.moments.set(name, Some(again));
        }
    }

    /// The tubes in which something is due, as far as is known here.
    fn due_tubes(&self, clock: i64) -> Vec<Whom> {
        let due = self.shared.known().moments.due(clock);
        due.iter().map(|tube| self.shared.whom(tube)).collect()
    }

    /// Ends sessions whose time is over. Sessions and tasks move.
    async fn tick_sessions(&mut self, limit: usize, ticked: &mut Ticked) -> Result<(), Failure> {
        let mut due = self.registry_again("due", vec![limit.to_string().into_bytes()]).await?;
        let clock = due.pop().and_then(|clock| clock.int());
        let next = due.pop().and_then(|next| next.int());
        let (Some(clock), Some(next)) = (clock, next) else { return Err(unreadable_registry()) };
        for session in due.into_iter().filter_map(Value::text) {
            let Ok(session) = session.try_into() else { return Err(unreadable_registry()) };
            let ended = self.end_session(SessionId(session)).await;
            ticked.moved += ticked.take(ended).map_or(0, |back| 1 + back);
        }
        let mut known = self.shared.known();
        known.ahead = clock.saturating_sub(known.now);
        known.session_end = Some(next).filter(|next| *next < NEVER);
        // Where there were as many as were asked for, there may be more.
        if ticked.moved >= limit {
            known.session_ends(clock);
        } else if ticked.failed.is_some() {
            known.session_ends(clock.saturating_add(AGAIN));
        }
        Ok(())
    }
}
