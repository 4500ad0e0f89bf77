//! Which tubes there are, what they are called, and where they live.
//!
//! The registry lists a name before its tube exists or is called so, and until it is not: a tube that exists is never unknown to
//! it. What is listed and not true is found out by asking the tube itself.

use std::sync::Arc;

use taskyard_core::command::TubeInfo;
use taskyard_core::{Error, Reply, TubeName, TubeOptions};
use taskyard_redis::{Call, Failure, Value};

use super::Redis;
use super::answers::{Head, Parts};
use super::codec::{self, Unreadable};
use super::execute::{Batch, unreadable_registry};
use super::replicas;

/// What the registry answers first.
const OK: i64 = 0;
const TOO_MANY: i64 = 4;
/// What a tube that is to be made or named answers when it is there, and when it is too late.
const EXISTS: u8 = 6;
const LATE: u8 = 12;
/// What it answers when its semaphore is not there.
const NO_SEMAPHORE: u8 = 13;

/// A moment that never comes.
pub(super) const NEVER: i64 = 1 << 53;

/// How often a name is given that others give away at the same time.
const TRIES: usize = 3;
/// Tubes that are asked together.
pub(super) const TUBES_TOGETHER: usize = 1000;

/// Where a tube lives: what stands in the tag of its keys. It is the name under which the tube was made, or that with a number behind
/// it when a tube that was called so before still lives there.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Home(Arc<str>);

impl Home {
    pub fn new(text: &str) -> Self {
        Home(text.into())
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.0.as_bytes().to_vec()
    }

    pub fn read(value: Value) -> Option<Self> {
        String::from_utf8(value.text()?).ok().map(|text| Home(text.into()))
    }
}

/// Whom a call is for: the tube of this name, or whichever lives there.
#[derive(Clone, Debug)]
pub(super) struct Whom {
    pub home: Home,
    pub name: Option<TubeName>,
}

impl Whom {
    /// Whichever tube lives there.
    pub fn at(home: Home) -> Self {
        Whom { home, name: None }
    }
}

/// A name that was listed for a tube.
struct Listed {
    status: i64,
    /// The tube's number, or how many tubes there are.
    number: i64,
    home: Home,
    /// Somebody may still be about to give this name to a tube.
    pending: bool,
    /// The number under which the name was listed before, if it was.
    before: Option<u32>,
}

impl Redis {
    /// The tube of this name, where it is believed to live.
    pub(crate) fn whom(&self, tube: &TubeName) -> Whom {
        let home = self.known().homes.get(tube).cloned();
        let home = home.unwrap_or_else(|| Home::new(tube.as_str()));
        Whom { home, name: Some(tube.clone()) }
    }

    /// A call of a tube with these words.
    pub(crate) fn tube_call(
        &self,
        function: &'static str,
        whom: &Whom,
        words: Vec<Vec<u8>>,
    ) -> Call {
        let channel = if self.presence.is_accompanied() { self.channel() } else { String::new() };
        let name = whom.name.as_ref().map_or("", TubeName::as_str);
        let mut args = vec![self.now_word(), self.epoch_word(), channel.into_bytes()];
        args.push(self.presence.name().as_bytes().to_vec());
        args.push(name.as_bytes().to_vec());
        args.extend(words);
        Call { function, key: self.tube_key(&whom.home), args, replicate: false }
    }

    /// What the keys of a tube begin with.
    pub(crate) fn tube_key(&self, home: &Home) -> String {
        format!("{{{}:{}}}", self.reach.url.prefix, home.0)
    }
}

impl Batch<'_> {
    /// Makes a tube.
    pub async fn create_tube(
        &mut self,
        tube: TubeName,
        options: &TubeOptions,
        if_not_exists: bool,
    ) -> Result<Result<Reply, Error>, Failure> {
        for _ in 0..TRIES {
            let listed = self.reserve(&tube).await?;
            if listed.status == TOO_MANY {
                return Ok(Err(Error::TooManyTubes(listed.number as usize)));
            }
            let Some(listed) = self.place(&tube, listed).await? else {
                return Ok(exists(tube, if_not_exists));
            };
            let (home, number) = (listed.home.clone(), listed.number as u32);
            let whom = Whom { home: home.clone(), name: Some(tube.clone()) };
            let deadline = match self.claim(&home, options.queue_num).await? {
                Ok(deadline) => deadline,
                Err(refusal) => {
                    self.give_up(&tube, &listed).await?;
                    return Ok(Err(refusal));
                }
            };
            let words = codec::create(number, &tube, options, deadline);
            let changed = self.change("ask", &whom, words).await;
            if changed.as_ref().is_err_and(|failure| !failure.may_be_done()) {
                // Nothing was done, and a name that nobody has must not stay listed.
                let _ = self.give_up(&tube, &listed).await;
            }
            let (head, mut parts) = changed?;
            let status = parts.status().map_err(unreadable)?;
            self.claimed(&home, options.queue_num).await?;
            match status {
                0 => {
                    self.settle_in(&tube, home);
                    self.learn(&tube, &head, false);
                    return Ok(Ok(Reply::Created(true)));
                }
                EXISTS => {
                    // Another server was quicker, and the tube has the number that it was given.
                    self.relist(&tube, number, head.number).await?;
                    return Ok(exists(tube, if_not_exists));
                }
                LATE => {
                    self.give_up(&tube, &listed).await?;
                    return Err(too_late());
                }
                NO_SEMAPHORE => {
                    self.give_up(&tube, &listed).await?;
                    return Ok(Err(missing_semaphore(options)));
                }
                // Another tube got this home meanwhile.
                _ => {}
            }
        }
        Err(too_late())
    }

    /// A tube will not be made: its name is as it was. Somebody else may be about to make it.
    async fn give_up(&mut self, tube: &TubeName, listed: &Listed) -> Result<(), Failure> {
        let number = listed.number as u32;
        match listed.before {
            Some(before) => self.relist(tube, number, before).await,
            None => self.unlist(tube, number).await,
        }
    }

    /// Where a tube that is to be made shall live, and its number; nothing if it is there already.
    async fn place(&mut self, tube: &TubeName, listed: Listed) -> Result<Option<Listed>, Failure> {
        if listed.status == OK {
            return Ok(Some(listed));
        }
        let Listed { number, home, pending, .. } = listed;
        let whom = Whom { home: home.clone(), name: Some(tube.clone()) };
        let (head, _) = self.look(&whom).await?;
        if head.present {
            self.settle_in(tube, home);
            return Ok(None);
        }
        if pending {
            return Err(too_late());
        }
        // Somebody has not come to an end with making, naming or dropping it.
        let seen = if head.elsewhere { home.bytes() } else { Vec::new() };
        let words = vec![name_bytes(tube), number.to_string().into_bytes(), seen];
        read_listed(self.registry_again("list", words).await?).map(Some)
    }

    async fn reserve(&mut self, tube: &TubeName) -> Result<Listed, Failure> {
        read_listed(self.registry("reserve", vec![name_bytes(tube)]).await?)
    }

    async fn unlist(&mut self, tube: &TubeName, number: u32) -> Result<(), Failure> {
        let words = vec![name_bytes(tube), number.to_string().into_bytes()];
        self.registry_again("unlist", words).await.map(drop)
    }

    /// Lists a name under another number, if nobody else has done so.
    async fn relist(&mut self, tube: &TubeName, number: u32, other: u32) -> Result<(), Failure> {
        let numbers = [number, other].map(|number| number.to_string().into_bytes());
        let words = std::iter::once(name_bytes(tube)).chain(numbers).collect();
        self.registry_again("relist", words).await.map(drop)
    }

    /// Sees to it that no other tube has this number of a queue. Answers until when it may be given to the one that lives here.
    async fn claim(
        &mut self,
        home: &Home,
        queue_num: Option<u32>,
    ) -> Result<Result<i64, Error>, Failure> {
        let Some(queue_num) = queue_num else { return Ok(Ok(NEVER)) };
        let queue = queue_num.to_string().into_bytes();
        let mut seen = Vec::new();
        for _ in 0..TRIES {
            let words = vec![queue.clone(), home.bytes(), seen];
            let mut answer = self.registry_again("claim", words).await?;
            let (status, number) = status(&answer)?;
            if status == OK {
                return Ok(Ok(number));
            }
            let text = answer.pop().and_then(Value::text).ok_or_else(unreadable_registry)?;
            let other = answer.pop().and_then(Home::read).ok_or_else(unreadable_registry)?;
            let (_, shown) = self.look(&Whom::at(other)).await?;
            if let Some(other) = shown.filter(|other| other.options.queue_num == Some(queue_num)) {
                return Ok(Err(Error::QueueNumTaken { tube: other.name, num: queue_num }));
            }
            if number == 1 {
                break;
            }
            seen = text;
        }
        Err(too_late())
    }

    /// Nobody is about to give the number any more.
    async fn claimed(&mut self, home: &Home, queue_num: Option<u32>) -> Result<(), Failure> {
        let Some(queue_num) = queue_num else { return Ok(()) };
        let words = vec![queue_num.to_string().into_bytes(), home.bytes()];
        self.registry_again("claimed", words).await.map(drop)
    }

    /// Gives a tube another name, or the number of a queue. It stays where it lives.
    pub async fn name_tube(
        &mut self,
        tube: TubeName,
        name: TubeName,
        queue_num: Option<u32>,
    ) -> Result<Result<Reply, Error>, Failure> {
        let (whom, Some(before)) = self.find(&tube).await? else {
            return Ok(Err(Error::TubeNotFound(tube)));
        };
        if name != tube && self.find(&name).await?.1.is_some() {
            return Ok(Err(Error::TubeExists(name)));
        }
        if let (Some(num), Some(wanted)) = (before.options.queue_num, queue_num)
            && num != wanted
        {
            // Such numbers are permanent.
            return Ok(Err(Error::QueueNumTaken { tube, num }));
        }
        let mut deadline = match self.claim(&whom.home, queue_num).await? {
            Ok(deadline) => deadline,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if name != tube {
            match self.promise(&tube, &name).await? {
                Some(until) => deadline = deadline.min(until),
                None => return Ok(Err(Error::TubeExists(name))),
            }
        }
        let words = codec::rename(&name, queue_num, deadline);
        let (head, mut parts) = self.change("free", &whom, words).await?;
        let shown = match parts.info().map_err(unreadable)? {
            Ok(shown) => shown,
            Err(LATE) => return Err(too_late()),
            Err(_) => return Ok(Err(Error::TubeNotFound(tube))),
        };
        self.claimed(&whom.home, queue_num).await?;
        if name != tube {
            let number = before.number.to_string().into_bytes();
            let words = vec![name_bytes(&tube), name_bytes(&name), number];
            self.registry_again("renamed", words).await?;
            self.move_out(&tube);
        }
        self.settle_in(&name, whom.home);
        self.learn(&name, &head, true);
        Ok(Ok(Reply::Tubes(vec![shown])))
    }

    /// Has a name listed for a tube that is called something else. Answers until when it may get it; nothing if another
    /// has it.
    async fn promise(&mut self, tube: &TubeName, name: &TubeName) -> Result<Option<i64>, Failure> {
        let mut seen = Vec::new();
        for _ in 0..TRIES {
            let words = vec![name_bytes(tube), name_bytes(name), seen];
            let answer = self.registry("rename", words).await?;
            let (status, number) = status(&answer)?;
            if status == OK {
                return Ok(Some(number));
            }
            let listed = read_listed(answer)?;
            let whom = Whom { home: listed.home, name: Some(name.clone()) };
            if self.look(&whom).await?.0.present {
                return Ok(None);
            }
            if listed.pending {
                break;
            }
            seen = listed.number.to_string().into_bytes();
        }
        Err(too_late())
    }

    /// Drops a tube, then its name.
    pub async fn drop_tube(&mut self, tube: TubeName) -> Result<Result<Reply, Error>, Failure> {
        let (whom, Some(_)) = self.find(&tube).await? else {
            return Ok(Err(Error::TubeNotFound(tube)));
        };
        let (head, mut parts) = self.change("free", &whom, b"X".to_vec()).await?;
        let status = parts.status().map_err(unreadable)?;
        self.learn(&tube, &head, true);
        self.learn_others(&mut parts);
        match status {
            0 => {
                self.unlist(&tube, head.number).await?;
                self.move_out(&tube);
                Ok(Ok(Reply::Nothing))
            }
            1 => Ok(Err(Error::TubeNotFound(tube))),
            _ => Ok(Err(Error::TubeHasTaken(tube))),
        }
    }

    /// All tubes that are there, by name.
    pub async fn show_tubes(&mut self) -> Result<Result<Reply, Error>, Failure> {
        let whom = self.all_tubes().await?;
        let mut tubes = Vec::with_capacity(whom.len());
        for whom in whom.chunks(TUBES_TOGETHER) {
            for (whom, answer) in self.ask_each(whom, b"N").await {
                let (head, shown) = read_look(answer?)?;
                tubes.extend(shown);
                if let Some(name) = &whom.name {
                    self.learn(name, &head, false);
                }
            }
        }
        Ok(Ok(Reply::Tubes(tubes)))
    }

    /// All names that are listed, in order, with where they live.
    pub async fn all_tubes(&mut self) -> Result<Vec<Whom>, Failure> {
        let mut words = self.registry_again("tubes", Vec::new()).await?.into_iter();
        let mut found = Vec::new();
        while let (Some(name), Some(home)) = (words.next(), words.next()) {
            let name = name.text().and_then(|name| String::from_utf8(name).ok());
            let name = name.and_then(|name| TubeName::new(&name).ok());
            if let (Some(name), Some(home)) = (name, Home::read(home)) {
                found.push(Whom { home, name: Some(name) });
            }
        }
        found.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// The tube of this name, wherever it lives, and how it looks if it is there.
    pub async fn find(&mut self, tube: &TubeName) -> Result<(Whom, Option<TubeInfo>), Failure> {
        let mut whom = self.shared.whom(tube);
        let mut shown = self.look(&whom).await?.1;
        if shown.is_none() && self.has_moved(std::slice::from_ref(tube)).await?[0] {
            whom = self.shared.whom(tube);
            shown = self.look(&whom).await?.1;
        }
        Ok((whom, shown))
    }

    /// Asks the registry where tubes live that were not found. Answers whether that is somewhere else than was believed.
    pub async fn has_moved(&mut self, tubes: &[TubeName]) -> Result<Vec<bool>, Failure> {
        let homes = self.registry_again("homes", tubes.iter().map(name_bytes).collect()).await?;
        let moved = tubes.iter().zip(homes).map(|(tube, home)| {
            let before = self.shared.whom(tube).home;
            let home = Home::read(home).filter(|home| !home.0.is_empty());
            match home {
                Some(home) => self.settle_in(tube, home),
                None => self.move_out(tube),
            }
            self.shared.whom(tube).home != before
        });
        Ok(moved.collect())
    }

    fn settle_in(&self, tube: &TubeName, home: Home) {
        let mut known = self.shared.known();
        if *home.0 == *tube.as_str() {
            known.homes.remove(tube);
        } else {
            known.homes.insert(tube.clone(), home);
        }
    }

    fn move_out(&self, tube: &TubeName) {
        let mut known = self.shared.known();
        known.homes.remove(tube);
        known.gated.remove(tube);
        known.straight.remove(tube);
        known.moments.set(tube, None);
    }

    async fn look(&mut self, whom: &Whom) -> Result<(Head, Option<TubeInfo>), Failure> {
        let call = self.shared.tube_call("free", whom, vec![b"N".to_vec()]);
        read_look(self.call_again(&call).await?)
    }

    /// Asks a tube to do one thing, which must not be done twice.
    async fn change(
        &mut self,
        function: &'static str,
        whom: &Whom,
        words: Vec<u8>,
    ) -> Result<(Head, Parts), Failure> {
        let mut call = self.shared.tube_call(function, whom, vec![words]);
        call.replicate = true;
        let answer = self.link.call(&[call]).await.pop();
        let answer = answer.unwrap_or_else(|| Err(unreadable_registry()));
        let (answer, short) = replicas::split(answer);
        self.short = short;
        read(answer?)
    }

    /// Asks tubes the same thing, which may be asked twice.
    pub async fn ask_each<'w>(
        &mut self,
        whom: &'w [Whom],
        words: &[u8],
    ) -> Vec<(&'w Whom, Result<Value, Failure>)> {
        let call = |whom| self.shared.tube_call("free", whom, vec![words.to_vec()]);
        let calls: Vec<Call> = whom.iter().map(call).collect();
        let answers = self.call_each_again(&calls).await;
        whom.iter().zip(answers).collect()
    }
}

fn name_bytes(tube: &TubeName) -> Vec<u8> {
    tube.as_str().as_bytes().to_vec()
}

pub(super) fn status(answer: &[Value]) -> Result<(i64, i64), Failure> {
    let status = answer.first().and_then(Value::int).ok_or_else(unreadable_registry)?;
    Ok((status, answer.get(1).and_then(Value::int).unwrap_or(0)))
}

fn read_listed(answer: Vec<Value>) -> Result<Listed, Failure> {
    let (status, number) = status(&answer)?;
    let pending = answer.get(3).and_then(Value::int) == Some(1);
    let before = answer.get(4).and_then(Value::int).and_then(|number| u32::try_from(number).ok());
    let before = before.filter(|number| *number > 0);
    let home = answer.into_iter().nth(2).and_then(Home::read).unwrap_or_else(|| Home::new(""));
    Ok(Listed { status, number, home, pending, before })
}

fn read_look(answer: Value) -> Result<(Head, Option<TubeInfo>), Failure> {
    let (head, mut parts) = read(answer)?;
    if !head.present {
        return Ok((head, None));
    }
    Ok((head, parts.info().map_err(unreadable)?.ok()))
}

fn exists(tube: TubeName, if_not_exists: bool) -> Result<Reply, Error> {
    if if_not_exists { Ok(Reply::Created(false)) } else { Err(Error::TubeExists(tube)) }
}

pub(super) fn read(answer: Value) -> Result<(Head, Parts), Failure> {
    Parts::new(answer).map_err(unreadable)
}

/// An answer that begins with how many tasks it was about.
pub(super) fn read_counted(answer: Value) -> Result<(Head, Parts, usize), Failure> {
    let (head, mut parts) = read(answer)?;
    let count = parts.counted().map_err(unreadable)? as usize;
    Ok((head, parts, count))
}

pub(super) fn unreadable(error: Unreadable) -> Failure {
    Failure::Refused(error.to_string())
}

fn missing_semaphore(options: &TubeOptions) -> Error {
    match &options.semaphore {
        Some(key) => Error::SemaphoreNotFound(key.clone()),
        None => Error::Store("Redis misses a semaphore that nobody named".into()),
    }
}

/// Nothing was done.
fn too_late() -> Failure {
    Failure::Unreachable("somebody else is giving names to the same tubes".into())
}
