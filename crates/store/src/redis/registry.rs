//! What is about all tubes: sessions, and what time does.

use std::collections::BTreeSet;

use taskyard_core::{Error, Reply, SessionId};
use taskyard_redis::{Call, Failure, Value};

use super::Shared;
use super::codec;
use super::execute::{Batch, unreadable_registry};
use super::tubes::{Home, NEVER, TUBES_TOGETHER, Whom, read, status, unreadable};

/// What the registry answers first.
const OK: i64 = 0;
const UNKNOWN: i64 = 2;
const STALE: i64 = 9;
const ENDING: i64 = 10;

impl Shared {
    /// A call of the registry.
    pub fn registry_call(&self, verb: &str, words: Vec<Vec<u8>>) -> Call {
        let mut args = vec![verb.as_bytes().to_vec(), self.now_word()];
        args.extend(words);
        let key = format!("{{{}}}", self.reach.place.prefix);
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
            self.end_session(session).await?;
        } else if ends < NEVER {
            let mut known = self.shared.known();
            known.session_end = known.session_end.into_iter().chain([ends]).min();
        }
        Ok(Ok(Reply::Nothing))
    }

    /// Gives back what a session holds, then forgets it. May be done twice. Answers how many tasks that were.
    async fn end_session(&mut self, session: SessionId) -> Result<usize, Failure> {
        let held = self.registry_again("held", vec![session.0.to_vec()]).await?;
        let mut homes: BTreeSet<Home> = held.into_iter().filter_map(Home::read).collect();
        homes
            .extend(self.shared.known().sessions.held.get(&session).into_iter().flatten().cloned());
        let whom: Vec<Whom> = homes.into_iter().map(Whom::at).collect();
        let mut back = 0;
        for (_, answer) in self.ask_each(&whom, &codec::part(session)).await {
            let (head, mut parts) = read(answer?)?;
            back += parts.counted().map_err(unreadable)? as usize;
            self.learn_unnamed(&head);
            self.learn_others(&mut parts);
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

    /// Lets time do what is due, for about `limit` tasks.
    pub async fn tick(&mut self, limit: usize) -> Result<usize, Failure> {
        let (sweep, clock, session_end) = {
            let known = self.shared.known();
            let sweep = known.wants_sweep(self.shared.presence.is_accompanied());
            (sweep, known.clock(), known.session_end)
        };
        let mut moved = 0;
        if sweep || session_end.is_some_and(|end| end <= clock) {
            moved = self.tick_sessions(limit).await?;
        }
        let tubes = if sweep { self.all_tubes().await? } else { self.due_tubes(clock) };
        for whom in tubes.chunks(TUBES_TOGETHER) {
            if moved >= limit {
                return Ok(moved);
            }
            for (whom, answer) in self.ask_each(whom, &codec::tick(limit - moved)).await {
                let (head, mut parts) = read(answer?)?;
                let here = parts.counted().map_err(unreadable)? as usize;
                if let Some(name) = &whom.name {
                    self.learn(name, &head, here > 0);
                }
                self.learn_others(&mut parts);
                moved += here;
            }
        }
        moved += self.tick_semaphores(limit.saturating_sub(moved), sweep).await?;
        if sweep {
            self.shared.known().swept();
        }
        Ok(moved)
    }

    /// The tubes in which something is due, as far as is known here.
    fn due_tubes(&self, clock: i64) -> Vec<Whom> {
        let due = self.shared.known().moments.due(clock);
        due.iter().map(|tube| self.shared.whom(tube)).collect()
    }

    /// Ends sessions whose time is over. Answers how many sessions and tasks moved.
    async fn tick_sessions(&mut self, limit: usize) -> Result<usize, Failure> {
        let mut due = self.registry_again("due", vec![limit.to_string().into_bytes()]).await?;
        let clock = due.pop().and_then(|clock| clock.int());
        let next = due.pop().and_then(|next| next.int());
        let (Some(clock), Some(next)) = (clock, next) else { return Err(unreadable_registry()) };
        let mut moved = 0;
        for session in due.into_iter().filter_map(Value::text) {
            let Ok(session) = session.try_into() else { return Err(unreadable_registry()) };
            moved += 1 + self.end_session(SessionId(session)).await?;
        }
        let mut known = self.shared.known();
        known.ahead = clock.saturating_sub(known.now);
        // Where there were as many as were asked for, there may be more.
        known.session_end =
            if moved >= limit { Some(clock) } else { Some(next).filter(|next| *next < NEVER) };
        Ok(moved)
    }

    /// Tells Redis how things stand here, if it may believe something else. May be done twice.
    pub async fn settle(&mut self) -> Result<(), Failure> {
        let (disorder, sessions, held) = {
            let mut known = self.shared.known();
            if self.shared.presence.is_overdue() {
                known.doubt();
            }
            let Some(disorder) = known.disorder.clone() else { return Ok(()) };
            (disorder, known.sessions.connections.clone(), known.sessions.held.clone())
        };
        self.link.end_lost().await?;
        let names = sessions.keys().map(|session| session.0.to_vec()).collect();
        let lives = self.registry_again("lives", names).await?;
        for (session, lives) in sessions.keys().zip(lives) {
            if lives.int() != Some(1) {
                // It ended meanwhile. It goes on without what it held.
                self.end_session(*session).await?;
            }
        }
        let counts = sessions.iter();
        let counts = counts
            .flat_map(|(session, count)| [session.0.to_vec(), count.to_string().into_bytes()]);
        let words = std::iter::once(self.shared.server.clone()).chain(counts).collect();
        self.registry_again("settle", words).await?;
        for (session, homes) in held.iter().filter(|(session, _)| sessions.contains_key(session)) {
            let homes: Vec<Home> = homes.iter().cloned().collect();
            self.tell_held(*session, &homes).await?;
            self.shared.known().sessions.held.insert(*session, homes.into_iter().collect());
        }
        for (home, first, last) in disorder.unheard {
            let words = vec![codec::unhear(first, last)];
            let call = self.shared.tube_call("free", &Whom::at(home), words);
            let (head, mut parts) = read(self.call_again(&call).await?)?;
            parts.status().map_err(unreadable)?;
            self.learn_unnamed(&head);
            self.learn_others(&mut parts);
        }
        self.shared.known().disorder = None;
        self.shared.presence.look_around();
        Ok(())
    }
}
