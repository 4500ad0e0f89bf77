//! What is about all tubes: which there are, sessions, and what time does.

use std::collections::BTreeSet;

use taskyard_core::{Error, Reply, SessionId, TubeName, TubeOptions};
use taskyard_redis::{Call, Failure, Value};

use super::Shared;
use super::answers::Parts;
use super::codec::{self, Unreadable};
use super::execute::{Batch, unreadable_registry};

/// What the registry answers first.
const OK: i64 = 0;
const UNKNOWN: i64 = 2;
const TOO_MANY: i64 = 4;
const LISTED: i64 = 6;
const STALE: i64 = 9;
const ENDING: i64 = 10;

/// Tubes that are asked together.
const TUBES_TOGETHER: usize = 1000;

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
    async fn registry(&mut self, verb: &str, words: Vec<Vec<u8>>) -> Result<Vec<Value>, Failure> {
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

    /// Makes a tube. The registry has its name before it exists, so that one that exists is never unknown to it.
    pub async fn create_tube(
        &mut self,
        tube: TubeName,
        options: &TubeOptions,
        if_not_exists: bool,
    ) -> Result<Result<Reply, Error>, Failure> {
        let name = || tube.as_str().as_bytes().to_vec();
        let (status, number) = status(&self.registry("reserve", vec![name()]).await?)?;
        if status == TOO_MANY {
            return Ok(Err(Error::TooManyTubes(number as usize)));
        }
        if status == LISTED {
            let call = self.shared.tube_call("free", &tube, vec![b"N".to_vec()]);
            let (head, _) = read(self.call_again(&call).await?)?;
            if head.present {
                return Ok(exists(tube, if_not_exists));
            }
            // Somebody has not come to its end with making or dropping it.
            let number = number.to_string().into_bytes();
            self.registry_again("list", vec![name(), number]).await?;
        }
        let words = vec![codec::create(number as u32, options)];
        let mut call = self.shared.tube_call("ask", &tube, words);
        call.replicate = true;
        let answer = self.link.call(&[call]).await.pop();
        let (head, mut parts) = read(answer.unwrap_or_else(|| Err(unreadable_registry()))?)?;
        self.learn(&tube, &head, false);
        match parts.status().map_err(unreadable)? {
            0 => Ok(Ok(Reply::Created(true))),
            _ => Ok(exists(tube, if_not_exists)),
        }
    }

    /// Drops a tube, then its name.
    pub async fn drop_tube(&mut self, tube: TubeName) -> Result<Result<Reply, Error>, Failure> {
        let mut call = self.shared.tube_call("free", &tube, vec![b"X".to_vec()]);
        call.replicate = true;
        let answer = self.link.call(&[call]).await.pop();
        let (head, mut parts) = read(answer.unwrap_or_else(|| Err(unreadable_registry()))?)?;
        self.learn(&tube, &head, true);
        match parts.status().map_err(unreadable)? {
            0 => {
                let name = tube.as_str().as_bytes().to_vec();
                let number = head.number.to_string().into_bytes();
                self.registry_again("unlist", vec![name, number]).await?;
                Ok(Ok(Reply::Nothing))
            }
            1 => Ok(Err(Error::TubeNotFound(tube))),
            _ => Ok(Err(Error::TubeHasTaken(tube))),
        }
    }

    /// All tubes that are there, by name.
    pub async fn show_tubes(&mut self) -> Result<Result<Reply, Error>, Failure> {
        let names = self.tube_names().await?;
        let mut tubes = Vec::with_capacity(names.len());
        for names in names.chunks(TUBES_TOGETHER) {
            for (name, answer) in self.ask_each(names, b"N").await {
                let (head, mut parts) = read(answer?)?;
                let show = taskyard_core::Command::Tubes { tube: None };
                if head.present
                    && let Ok(Reply::Tubes(shown)) = parts.reply(name, &show).map_err(unreadable)?
                {
                    tubes.extend(shown);
                }
                self.learn(name, &head, false);
            }
        }
        Ok(Ok(Reply::Tubes(tubes)))
    }

    async fn tube_names(&mut self) -> Result<Vec<TubeName>, Failure> {
        let names = self.registry_again("tubes", Vec::new()).await?;
        let names = names
            .into_iter()
            .filter_map(|name| TubeName::new(&String::from_utf8(name.text()?).ok()?).ok());
        Ok(names.collect::<BTreeSet<_>>().into_iter().collect())
    }

    /// Asks tubes the same thing, which may be asked twice.
    async fn ask_each<'n>(
        &mut self,
        names: &'n [TubeName],
        words: &[u8],
    ) -> Vec<(&'n TubeName, Result<Value, Failure>)> {
        let call = |tube| self.shared.tube_call("free", tube, vec![words.to_vec()]);
        let calls: Vec<Call> = names.iter().map(call).collect();
        let mut answers = self.link.call(&calls).await;
        for (call, answer) in calls.iter().zip(&mut answers) {
            if matches!(answer, Err(Failure::Lost(_))) {
                *answer = self.call_again(call).await;
            }
        }
        names.iter().zip(answers).collect()
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
        let held = held.into_iter().filter_map(|name| String::from_utf8(name.text()?).ok());
        let mut tubes: BTreeSet<TubeName> =
            held.filter_map(|name| TubeName::new(&name).ok()).collect();
        tubes
            .extend(self.shared.known().sessions.held.get(&session).into_iter().flatten().cloned());
        let tubes: Vec<TubeName> = tubes.into_iter().collect();
        let mut back = 0;
        for (tube, answer) in self.ask_each(&tubes, &codec::part(session)).await {
            let (head, mut parts) = read(answer?)?;
            back += parts.counted().map_err(unreadable)? as usize;
            self.learn(tube, &head, true);
        }
        self.registry_again("ended", vec![session.0.to_vec()]).await?;
        self.shared.known().sessions.held.remove(&session);
        Ok(back)
    }

    /// Tells the registry from which tubes a session takes.
    pub async fn tell_held(
        &mut self,
        session: SessionId,
        tubes: &[TubeName],
    ) -> Result<(), Failure> {
        let names = tubes.iter().map(|tube| tube.as_str().as_bytes().to_vec());
        let words = std::iter::once(session.0.to_vec()).chain(names).collect();
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
        let tubes =
            if sweep { self.tube_names().await? } else { self.shared.known().moments.due(clock) };
        for names in tubes.chunks(TUBES_TOGETHER) {
            if moved >= limit {
                return Ok(moved);
            }
            for (tube, answer) in self.ask_each(names, &codec::tick(limit - moved)).await {
                let (head, mut parts) = read(answer?)?;
                let here = parts.counted().map_err(unreadable)? as usize;
                self.learn(tube, &head, here > 0);
                moved += here;
            }
        }
        if sweep {
            self.shared.known().swept();
        }
        Ok(moved)
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
        for (session, tubes) in held.iter().filter(|(session, _)| sessions.contains_key(session)) {
            let tubes: Vec<TubeName> = tubes.iter().cloned().collect();
            self.tell_held(*session, &tubes).await?;
            self.shared.known().sessions.held.insert(*session, tubes.into_iter().collect());
        }
        for (tube, first, last) in disorder.unheard {
            let call = self.shared.tube_call("free", &tube, vec![codec::unhear(first, last)]);
            let (head, _) = read(self.call_again(&call).await?)?;
            self.learn(&tube, &head, true);
        }
        self.shared.known().disorder = None;
        self.shared.presence.look_around();
        Ok(())
    }
}

/// A moment that never comes.
const NEVER: i64 = 1 << 53;

fn status(answer: &[Value]) -> Result<(i64, i64), Failure> {
    let status = answer.first().and_then(Value::int).ok_or_else(unreadable_registry)?;
    Ok((status, answer.get(1).and_then(Value::int).unwrap_or(0)))
}

fn exists(tube: TubeName, if_not_exists: bool) -> Result<Reply, Error> {
    if if_not_exists { Ok(Reply::Created(false)) } else { Err(Error::TubeExists(tube)) }
}

fn read(answer: Value) -> Result<(super::answers::Head, Parts), Failure> {
    Parts::new(answer).map_err(unreadable)
}

fn unreadable(error: Unreadable) -> Failure {
    Failure::Refused(error.to_string())
}
