//! Creates, renames, finds and drops tubes.
//!
//! The registry lists a name before its tube exists or gets that name, and until the tube is gone: it knows every tube that exists.
//! Whether a listed name is in use is found out by a call to the tube itself.

use std::sync::Arc;

use taskyard_core::command::TubeInfo;
use taskyard_core::{Error, Reply, TubeName, TubeOptions};
use taskyard_redis::{Call, Failure, Value};

use super::Redis;
use super::answers::{AnswerParts, TubeHead};
use super::codec::{self, Unreadable};
use super::execute::{Batch, unreadable_registry};
use super::replicas;

/// The status of an answer of the registry.
const OK: i64 = 0;
const TOO_MANY: i64 = 4;
/// The status of a tube that exists when it is created, and of a create or rename after its deadline.
const EXISTS: u8 = 6;
const LATE: u8 = 12;
/// The status when its semaphore does not exist.
const NO_SEMAPHORE: u8 = 13;

/// A moment that never comes.
pub(super) const NEVER: i64 = 1 << 53;

/// How often a name is tried that other servers change at the same time.
const TRIES: usize = 3;
/// How many tubes are called together.
pub(super) const TUBES_TOGETHER: usize = 1000;

/// The hash tag of a tube's keys: the name with which the tube was created, with a number appended if an earlier tube of that name
/// still has the tag.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct HashTag(Arc<str>);

impl HashTag {
    pub fn new(text: &str) -> Self {
        HashTag(text.into())
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.0.as_bytes().to_vec()
    }

    pub fn read(value: Value) -> Option<Self> {
        String::from_utf8(value.text()?).ok().map(|text| HashTag(text.into()))
    }
}

/// The tube of a call: the one of this name, or any that has the tag.
#[derive(Clone, Debug)]
pub(super) struct TubeAddress {
    pub tag: HashTag,
    pub name: Option<TubeName>,
}

impl TubeAddress {
    /// Any tube that has this tag.
    pub fn at(tag: HashTag) -> Self {
        TubeAddress { tag, name: None }
    }
}

/// A name that is listed for a tube.
struct ListedName {
    status: i64,
    /// The tube's number, or how many tubes there are.
    number: i64,
    tag: HashTag,
    /// Another server may still be about to give this name to a tube.
    pending: bool,
    /// The number with which the name was listed before, if it was.
    before: Option<u32>,
}

impl Redis {
    /// The tube of this name with its known tag.
    pub(crate) fn address(&self, tube: &TubeName) -> TubeAddress {
        let tag = self.cache().tags.get(tube).cloned();
        let tag = tag.unwrap_or_else(|| HashTag::new(tube.as_str()));
        TubeAddress { tag, name: Some(tube.clone()) }
    }

    /// A call of a tube with these arguments.
    pub(crate) fn tube_call(
        &self,
        function: &'static str,
        address: &TubeAddress,
        words: Vec<Vec<u8>>,
    ) -> Call {
        let channel =
            if self.presence.has_other_servers() { self.channel() } else { String::new() };
        let name = address.name.as_ref().map_or("", TubeName::as_str);
        let mut args = vec![self.now_word(), self.epoch_word(), channel.into_bytes()];
        args.push(self.presence.name().as_bytes().to_vec());
        args.push(name.as_bytes().to_vec());
        args.extend(words);
        Call { function, key: self.tube_key(&address.tag), args, replicate: false }
    }

    /// The beginning of a tube's keys.
    pub(crate) fn tube_key(&self, tag: &HashTag) -> String {
        format!("{{{}:{}}}", self.connector.url.prefix, tag.0)
    }
}

impl Batch<'_> {
    /// Creates a tube.
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
            let Some(listed) = self.choose_tag(&tube, listed).await? else {
                return Ok(exists(tube, if_not_exists));
            };
            let (tag, number) = (listed.tag.clone(), listed.number as u32);
            let address = TubeAddress { tag: tag.clone(), name: Some(tube.clone()) };
            let deadline = match self.reserve_queue_num(&tag, options.queue_num).await? {
                Ok(deadline) => deadline,
                Err(refusal) => {
                    self.release_name(&tube, &listed).await?;
                    return Ok(Err(refusal));
                }
            };
            let words = codec::create(number, &tube, options, deadline);
            let changed = self.change("grow", &address, words).await;
            if changed.as_ref().is_err_and(|failure| !failure.may_be_done()) {
                // Nothing was done, and a name without a tube must not stay listed.
                let _ = self.release_name(&tube, &listed).await;
            }
            let (head, mut parts) = changed?;
            let status = parts.status().map_err(unreadable)?;
            self.confirm_queue_num(&tag, options.queue_num).await?;
            match status {
                0 => {
                    self.set_tag(&tube, tag);
                    self.learn(&tube, &head, false);
                    return Ok(Ok(Reply::Created(true)));
                }
                EXISTS => {
                    // Another server created it first, with another number.
                    self.relist(&tube, number, head.number).await?;
                    return Ok(exists(tube, if_not_exists));
                }
                LATE => {
                    self.release_name(&tube, &listed).await?;
                    return Err(too_late());
                }
                NO_SEMAPHORE => {
                    self.release_name(&tube, &listed).await?;
                    return Ok(Err(missing_semaphore(options)));
                }
                // Another tube got this tag meanwhile.
                _ => {}
            }
        }
        Err(too_late())
    }

    /// Restores the listing of a name whose tube is not created. Another server may be about to create it.
    async fn release_name(&mut self, tube: &TubeName, listed: &ListedName) -> Result<(), Failure> {
        let number = listed.number as u32;
        match listed.before {
            Some(before) => self.relist(tube, number, before).await,
            None => self.unlist(tube, number).await,
        }
    }

    /// The tag and number of a tube to create; `None` if it exists already.
    async fn choose_tag(
        &mut self,
        tube: &TubeName,
        listed: ListedName,
    ) -> Result<Option<ListedName>, Failure> {
        if listed.status == OK {
            return Ok(Some(listed));
        }
        let ListedName { number, tag, pending, .. } = listed;
        let address = TubeAddress { tag: tag.clone(), name: Some(tube.clone()) };
        let (head, _) = self.fetch_info(&address).await?;
        if head.present {
            self.set_tag(tube, tag);
            return Ok(None);
        }
        if pending {
            return Err(too_late());
        }
        // Another server did not finish creating, renaming or dropping it.
        let seen = if head.has_other_name { tag.bytes() } else { Vec::new() };
        let words = vec![name_bytes(tube), number.to_string().into_bytes(), seen];
        read_listed(self.registry_with_retry("list", words).await?).map(Some)
    }

    async fn reserve(&mut self, tube: &TubeName) -> Result<ListedName, Failure> {
        read_listed(self.registry("reserve", vec![name_bytes(tube)]).await?)
    }

    async fn unlist(&mut self, tube: &TubeName, number: u32) -> Result<(), Failure> {
        let words = vec![name_bytes(tube), number.to_string().into_bytes()];
        self.registry_with_retry("unlist", words).await.map(drop)
    }

    /// Lists a name with another number, if no other server has done so.
    async fn relist(&mut self, tube: &TubeName, number: u32, other: u32) -> Result<(), Failure> {
        let numbers = [number, other].map(|number| number.to_string().into_bytes());
        let words = std::iter::once(name_bytes(tube)).chain(numbers).collect();
        self.registry_with_retry("relist", words).await.map(drop)
    }

    /// Reserves a queue number that no other tube has. Answers until when the tube of this tag may get it.
    async fn reserve_queue_num(
        &mut self,
        tag: &HashTag,
        queue_num: Option<u32>,
    ) -> Result<Result<i64, Error>, Failure> {
        let Some(queue_num) = queue_num else { return Ok(Ok(NEVER)) };
        let queue = queue_num.to_string().into_bytes();
        let mut seen = Vec::new();
        for _ in 0..TRIES {
            let words = vec![queue.clone(), tag.bytes(), seen];
            let mut answer = self.registry_with_retry("claim", words).await?;
            let (status, number) = status(&answer)?;
            if status == OK {
                return Ok(Ok(number));
            }
            let text = answer.pop().and_then(Value::text).ok_or_else(unreadable_registry)?;
            let other = answer.pop().and_then(HashTag::read).ok_or_else(unreadable_registry)?;
            let (_, shown) = self.fetch_info(&TubeAddress::at(other)).await?;
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

    /// Ends the reservation of a queue number.
    async fn confirm_queue_num(
        &mut self,
        tag: &HashTag,
        queue_num: Option<u32>,
    ) -> Result<(), Failure> {
        let Some(queue_num) = queue_num else { return Ok(()) };
        let words = vec![queue_num.to_string().into_bytes(), tag.bytes()];
        self.registry_with_retry("claimed", words).await.map(drop)
    }

    /// Gives a tube another name, or a queue number. Its tag stays.
    pub async fn name_tube(
        &mut self,
        tube: TubeName,
        name: TubeName,
        queue_num: Option<u32>,
    ) -> Result<Result<Reply, Error>, Failure> {
        let (address, Some(before)) = self.find(&tube).await? else {
            return Ok(Err(Error::TubeNotFound(tube)));
        };
        if name != tube && self.find(&name).await?.1.is_some() {
            return Ok(Err(Error::TubeExists(name)));
        }
        if let (Some(num), Some(wanted)) = (before.options.queue_num, queue_num)
            && num != wanted
        {
            // Queue numbers are permanent.
            return Ok(Err(Error::QueueNumTaken { tube, num }));
        }
        let mut deadline = match self.reserve_queue_num(&address.tag, queue_num).await? {
            Ok(deadline) => deadline,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if name != tube {
            match self.reserve_name(&tube, &name).await? {
                Some(until) => deadline = deadline.min(until),
                None => return Ok(Err(Error::TubeExists(name))),
            }
        }
        let words = codec::rename(&name, queue_num, deadline);
        let (head, mut parts) = self.change("call", &address, words).await?;
        let shown = match parts.info().map_err(unreadable)? {
            Ok(shown) => shown,
            Err(LATE) => return Err(too_late()),
            Err(_) => return Ok(Err(Error::TubeNotFound(tube))),
        };
        self.confirm_queue_num(&address.tag, queue_num).await?;
        if name != tube {
            let number = before.number.to_string().into_bytes();
            let words = vec![name_bytes(&tube), name_bytes(&name), number];
            self.registry_with_retry("renamed", words).await?;
            self.forget_tube(&tube);
        }
        self.set_tag(&name, address.tag);
        self.learn(&name, &head, true);
        Ok(Ok(Reply::Tubes(vec![shown])))
    }

    /// Lists a new name for a tube. Answers until when the tube may get it; `None` if another tube has it.
    async fn reserve_name(
        &mut self,
        tube: &TubeName,
        name: &TubeName,
    ) -> Result<Option<i64>, Failure> {
        let mut seen = Vec::new();
        for _ in 0..TRIES {
            let words = vec![name_bytes(tube), name_bytes(name), seen];
            let answer = self.registry("rename", words).await?;
            let (status, number) = status(&answer)?;
            if status == OK {
                return Ok(Some(number));
            }
            let listed = read_listed(answer)?;
            let address = TubeAddress { tag: listed.tag, name: Some(name.clone()) };
            if self.fetch_info(&address).await?.0.present {
                return Ok(None);
            }
            if listed.pending {
                break;
            }
            seen = listed.number.to_string().into_bytes();
        }
        Err(too_late())
    }

    /// Drops a tube, then its name in the registry.
    pub async fn drop_tube(&mut self, tube: TubeName) -> Result<Result<Reply, Error>, Failure> {
        let (address, Some(_)) = self.find(&tube).await? else {
            return Ok(Err(Error::TubeNotFound(tube)));
        };
        let (head, mut parts) = self.change("call", &address, b"X".to_vec()).await?;
        let status = parts.status().map_err(unreadable)?;
        self.learn(&tube, &head, true);
        self.learn_others(&mut parts);
        match status {
            0 => {
                self.unlist(&tube, head.number).await?;
                self.forget_tube(&tube);
                Ok(Ok(Reply::Nothing))
            }
            1 => Ok(Err(Error::TubeNotFound(tube))),
            _ => Ok(Err(Error::TubeHasTaken(tube))),
        }
    }

    /// All tubes, by name.
    pub async fn show_tubes(&mut self) -> Result<Result<Reply, Error>, Failure> {
        let address = self.all_tubes().await?;
        let mut tubes = Vec::with_capacity(address.len());
        for address in address.chunks(TUBES_TOGETHER) {
            for (address, answer) in self.call_each(address, b"N").await {
                let (head, shown) = read_fetched(answer?)?;
                tubes.extend(shown);
                if let Some(name) = &address.name {
                    self.learn(name, &head, false);
                }
            }
        }
        Ok(Ok(Reply::Tubes(tubes)))
    }

    /// All listed names in order, with their tags.
    pub async fn all_tubes(&mut self) -> Result<Vec<TubeAddress>, Failure> {
        let mut words = self.registry_with_retry("tubes", Vec::new()).await?.into_iter();
        let mut found = Vec::new();
        while let (Some(name), Some(tag)) = (words.next(), words.next()) {
            let name = name.text().and_then(|name| String::from_utf8(name).ok());
            let name = name.and_then(|name| TubeName::new(&name).ok());
            if let (Some(name), Some(tag)) = (name, HashTag::read(tag)) {
                found.push(TubeAddress { tag, name: Some(name) });
            }
        }
        found.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// The tube of this name with its current tag, and its description if it exists.
    pub async fn find(
        &mut self,
        tube: &TubeName,
    ) -> Result<(TubeAddress, Option<TubeInfo>), Failure> {
        let mut address = self.shared.address(tube);
        let mut shown = self.fetch_info(&address).await?.1;
        if shown.is_none() && self.update_tags(std::slice::from_ref(tube)).await?[0] {
            address = self.shared.address(tube);
            shown = self.fetch_info(&address).await?.1;
        }
        Ok((address, shown))
    }

    /// Asks the registry for the tags of tubes that were not found. Answers which of them changed.
    pub async fn update_tags(&mut self, tubes: &[TubeName]) -> Result<Vec<bool>, Failure> {
        let tags = self.registry_with_retry("tags", tubes.iter().map(name_bytes).collect()).await?;
        let moved = tubes.iter().zip(tags).map(|(tube, tag)| {
            let before = self.shared.address(tube).tag;
            let tag = HashTag::read(tag).filter(|tag| !tag.0.is_empty());
            match tag {
                Some(tag) => self.set_tag(tube, tag),
                None => self.forget_tube(tube),
            }
            self.shared.address(tube).tag != before
        });
        Ok(moved.collect())
    }

    fn set_tag(&self, tube: &TubeName, tag: HashTag) {
        let mut cache = self.shared.cache();
        if *tag.0 == *tube.as_str() {
            cache.tags.remove(tube);
        } else {
            cache.tags.insert(tube.clone(), tag);
        }
    }

    fn forget_tube(&self, tube: &TubeName) {
        let mut cache = self.shared.cache();
        cache.tags.remove(tube);
        cache.gated.remove(tube);
        cache.mergeable.remove(tube);
        cache.deadlines.set(tube, None);
        cache.removals.set(tube, None);
    }

    async fn fetch_info(
        &mut self,
        address: &TubeAddress,
    ) -> Result<(TubeHead, Option<TubeInfo>), Failure> {
        let call = self.shared.tube_call("call", address, vec![b"N".to_vec()]);
        read_fetched(self.call_with_retry(&call).await?)
    }

    /// Sends one command to a tube, which must not be done twice.
    async fn change(
        &mut self,
        function: &'static str,
        address: &TubeAddress,
        words: Vec<u8>,
    ) -> Result<(TubeHead, AnswerParts), Failure> {
        let mut call = self.shared.tube_call(function, address, vec![words]);
        call.replicate = true;
        let answer = self.link.call(&[call]).await.pop();
        let answer = answer.unwrap_or_else(|| Err(unreadable_registry()));
        let (answer, short) = replicas::split(answer);
        self.short = short;
        read(answer?)
    }

    /// Asks tubes the same thing, which may be asked twice.
    pub async fn call_each<'w>(
        &mut self,
        address: &'w [TubeAddress],
        words: &[u8],
    ) -> Vec<(&'w TubeAddress, Result<Value, Failure>)> {
        let call = |address| self.shared.tube_call("call", address, vec![words.to_vec()]);
        let calls: Vec<Call> = address.iter().map(call).collect();
        let answers = self.call_each_with_retry(&calls).await;
        address.iter().zip(answers).collect()
    }
}

fn name_bytes(tube: &TubeName) -> Vec<u8> {
    tube.as_str().as_bytes().to_vec()
}

pub(super) fn status(answer: &[Value]) -> Result<(i64, i64), Failure> {
    let status = answer.first().and_then(Value::int).ok_or_else(unreadable_registry)?;
    Ok((status, answer.get(1).and_then(Value::int).unwrap_or(0)))
}

fn read_listed(answer: Vec<Value>) -> Result<ListedName, Failure> {
    let (status, number) = status(&answer)?;
    let pending = answer.get(3).and_then(Value::int) == Some(1);
    let before = answer.get(4).and_then(Value::int).and_then(|number| u32::try_from(number).ok());
    let before = before.filter(|number| *number > 0);
    let tag = answer.into_iter().nth(2).and_then(HashTag::read).unwrap_or_else(|| HashTag::new(""));
    Ok(ListedName { status, number, tag, pending, before })
}

fn read_fetched(answer: Value) -> Result<(TubeHead, Option<TubeInfo>), Failure> {
    let (head, mut parts) = read(answer)?;
    if !head.present {
        return Ok((head, None));
    }
    Ok((head, parts.info().map_err(unreadable)?.ok()))
}

pub(super) fn exists(tube: TubeName, if_not_exists: bool) -> Result<Reply, Error> {
    if if_not_exists { Ok(Reply::Created(false)) } else { Err(Error::TubeExists(tube)) }
}

pub(super) fn read(answer: Value) -> Result<(TubeHead, AnswerParts), Failure> {
    AnswerParts::new(answer).map_err(unreadable)
}

/// An answer that begins with a number of tasks.
pub(super) fn read_counted(answer: Value) -> Result<(TubeHead, AnswerParts, usize), Failure> {
    let (head, mut parts) = read(answer)?;
    let count = parts.counted().map_err(unreadable)? as usize;
    Ok((head, parts, count))
}

/// The answer to a tick: how many tasks it changed, and how many deliveries it ended.
pub(super) fn read_ticked(answer: Value) -> Result<(TubeHead, AnswerParts, (usize, u64)), Failure> {
    let (head, mut parts) = read(answer)?;
    let (moved, failed) = parts.ticked().map_err(unreadable)?;
    Ok((head, parts, (moved as usize, failed)))
}

pub(super) fn unreadable(error: Unreadable) -> Failure {
    Failure::Refused(error.to_string())
}

fn missing_semaphore(options: &TubeOptions) -> Error {
    match &options.semaphore {
        Some(key) => Error::SemaphoreNotFound(key.clone()),
        None => {
            Error::Store("Redis reports a missing semaphore although the tube names none".into())
        }
    }
}

/// Nothing was done.
fn too_late() -> Failure {
    Failure::Unreachable("another server is naming the same tubes".into())
}
