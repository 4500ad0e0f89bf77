//! Exports and imports all data, when a store is copied.
//!
//! Tasks are in no order by id, so the ids of a tube are read first, and then the tasks. On a single Redis the last step is
//! one call; on a cluster each tube gets its name in a call of its own, and an interrupted copy continues with the rest.

use std::collections::HashMap;
use std::sync::Arc;

use taskyard_core::command::TubeInfo;
use taskyard_core::record::{Record, StoredState};
use taskyard_core::transfer::{ImportEnd, TubeCopy};
use taskyard_core::{
    Body, Bucket, Counts, EndedKey, Error, Failures, Finished, Key, Priority, Reason, SemaphoreKey,
    State, TaskId, Timestamp, TubeName, TubeStats,
};
use taskyard_redis::{Call, Failure, Value};

use super::Redis;
use super::answers::Peeked;
use super::codec::{self, ByteReader, Unreadable};
use super::execute::{Batch, unreadable_registry};
use super::extension::encode_extension;
use super::failure::error;
use super::tubes::{TUBES_TOGETHER, TubeAddress, read, unreadable};
use taskyard_store::{Export, Exported, Import};

/// Most tasks that are read together.
const TOGETHER: usize = 1_000;

/// What an export keeps from one page to the next.
#[derive(Default)]
pub(super) struct Pages {
    tubes: HashMap<u32, ExportedTube>,
    /// The ids of one tube, in order.
    ids: Option<(u32, Vec<TaskId>)>,
    /// The keys of ended tasks of one tube, by task.
    ended: Option<(u32, Vec<EndedKey>)>,
}

/// A tube of the export.
#[derive(Clone)]
struct ExportedTube {
    address: TubeAddress,
    attempts_max: Option<u32>,
    /// It is temporary, and all servers were gone: the next call to it empties it.
    is_gone: bool,
}

impl Redis {
    pub(crate) async fn export(&self, wanted: Export) -> Result<Exported, Error> {
        let mut link = self.link.lock().await;
        let mut batch = Batch::new(self, &mut link);
        let exported = match wanted {
            Export::Tubes => batch.export_tubes().await,
            Export::Tasks { tube, from, count, bytes } => {
                batch.export_tasks(tube, from, (count, bytes)).await.map(Exported::Tasks)
            }
            Export::EndedKeys { tube, from, count } => {
                batch.export_ended_keys(tube, from, count).await.map(Exported::EndedKeys)
            }
            Export::Schedules => batch.export_schedules().await.map(Exported::Schedules),
            Export::Semaphores => batch.export_semaphores().await.map(Exported::Semaphores),
        };
        exported.map_err(|failure| error(&failure))
    }

    pub(crate) async fn import(&self, now: Timestamp, part: Import) -> Result<(), Error> {
        let mut link = self.link.lock().await;
        self.cache().now = now.as_micros();
        *self.pages() = Pages::default();
        let mut batch = Batch::new(self, &mut link);
        let imported = match part {
            Import::Tasks(tube, records) => batch.import_tasks(tube, &records).await,
            Import::EndedKeys(tube, keys) => batch.import_ended_keys(tube, &keys).await,
            Import::End(ending) if self.connector.url.cluster => {
                batch.finish_step_by_step(ending).await
            }
            Import::End(ending) => batch.finish_in_one_call(&ending).await,
        };
        // Lease numbers continue from those of the other store, and there are new tubes to sweep.
        self.cache().leases = 0..0;
        self.cache().forget_sweep();
        imported.unwrap_or_else(|failure| Err(error(&failure)))
    }

    /// A call that exports or imports, for a key that is not a tube's.
    pub(crate) fn transfer_call(
        &self,
        function: &'static str,
        key: String,
        words: Vec<Vec<u8>>,
    ) -> Call {
        let single = if self.connector.url.cluster { "" } else { "1" };
        let epoch = self.cache().epoch.to_string();
        let mut args = vec![self.now_word(), epoch.into_bytes(), Vec::new()];
        args.extend([self.presence.name().as_bytes().to_vec(), single.into()]);
        args.extend(words);
        Call { function, key, args, replicate: function == "import" }
    }

    fn registry_key(&self) -> String {
        format!("{{{}}}", self.connector.url.prefix)
    }
}

/// The numbers of the registry.
struct RegistryState {
    epoch: u64,
    next_lease: u64,
}

impl Batch<'_> {
    /// The version of the stored format.
    pub async fn read_format(&mut self) -> Result<i64, Failure> {
        let key = self.shared.registry_key();
        let kept = self.shown(key, vec![b"R".to_vec()]).await?;
        kept.first().and_then(Value::int).ok_or_else(unreadable_registry)
    }

    async fn kept(&mut self) -> Result<RegistryState, Failure> {
        let key = self.shared.registry_key();
        let kept = self.shown(key, vec![b"R".to_vec()]).await?;
        let epoch = kept.get(1).and_then(Value::int).map(i64::unsigned_abs);
        let lease = kept.into_iter().nth(2).and_then(Value::text);
        let lease = lease.and_then(|text| String::from_utf8(text).ok()?.parse().ok());
        match (epoch, lease) {
            (Some(epoch), Some(next_lease)) => Ok(RegistryState { epoch, next_lease }),
            _ => Err(unreadable_registry()),
        }
    }

    /// Exports from this key.
    pub async fn shown(&mut self, key: String, words: Vec<Vec<u8>>) -> Result<Vec<Value>, Failure> {
        let call = self.shared.transfer_call("export", key, words);
        self.call_with_retry(&call).await?.list().ok_or_else(unreadable_registry)
    }

    /// Exports all pages from this key.
    pub async fn shown_all(&mut self, key: &str, verb: u8) -> Result<Vec<Vec<u8>>, Failure> {
        let (mut cursor, mut texts) = (b"0".to_vec(), Vec::new());
        loop {
            let shown = self.shown(key.to_owned(), vec![vec![verb], cursor]).await?;
            let mut shown = shown.into_iter().map(Value::text);
            let (Some(Some(next)), Some(Some(text))) = (shown.next(), shown.next()) else {
                return Err(unreadable_registry());
            };
            texts.push(text);
            if next == b"0" {
                return Ok(texts);
            }
            cursor = next;
        }
    }

    async fn export_tubes(&mut self) -> Result<Exported, Failure> {
        let RegistryState { epoch, next_lease } = self.kept().await?;
        let address = self.all_tubes().await?;
        let (mut copies, mut tubes) = (Vec::new(), HashMap::new());
        for address in address.chunks(TUBES_TOGETHER) {
            for (address, answer) in self.call_each(address, b"N").await {
                let (head, mut parts) = read(answer?)?;
                if !head.present {
                    continue;
                }
                let text = parts.bytes().map_err(unreadable)?;
                let mut bytes = ByteReader(&text);
                bytes.byte().map_err(unreadable)?;
                let mut info = codec::read_info(bytes).map_err(unreadable)?;
                let (last_epoch, next_id) = codec::read_numbers(&text).map_err(unreadable)?;
                let is_gone = last_epoch < epoch && forget_epoch(&mut info);
                let attempts_max = info.options.attempts_max;
                tubes.insert(
                    info.number,
                    ExportedTube { address: address.clone(), attempts_max, is_gone },
                );
                copies.push((address.clone(), TubeCopy::new(info, next_id)));
            }
        }
        let copies = self.with_buckets(copies).await?;
        *self.shared.pages() = Pages { tubes, ids: None, ended: None };
        Ok(Exported::Tubes(copies, next_lease))
    }

    async fn export_tasks(
        &mut self,
        tube: u32,
        from: TaskId,
        (count, bytes): (usize, usize),
    ) -> Result<Vec<Record>, Failure> {
        let Some(listed) = self.exported_tube(tube).await? else { return Ok(Vec::new()) };
        let has_ids = |pages: &Pages| pages.ids.as_ref().is_some_and(|(of, _)| *of == tube);
        if from == TaskId(0) || !has_ids(&self.shared.pages()) {
            let ids = self.ids(&listed.address).await?;
            self.shared.pages().ids = Some((tube, ids));
        }
        let page: Vec<TaskId> = match &self.shared.pages().ids {
            Some((_, ids)) => {
                let first = ids.partition_point(|id| *id < from);
                ids[first..].iter().take(count).copied().collect()
            }
            None => Vec::new(),
        };
        self.read_page(&listed, &page, bytes).await
    }

    /// Adds the buckets of tubes with a rate limit.
    async fn with_buckets(
        &mut self,
        copies: Vec<(TubeAddress, TubeCopy)>,
    ) -> Result<Vec<TubeCopy>, Failure> {
        let mut complete = Vec::with_capacity(copies.len());
        for (address, mut copy) in copies {
            if copy.record.options.rate.is_some() {
                let key = self.shared.tube_key(&address.tag);
                let shown = self.shown(key, vec![b"B".to_vec()]).await?;
                let text = shown.into_iter().next().and_then(Value::text).unwrap_or_default();
                copy.record.bucket = read_bucket(&text).map_err(unreadable)?;
            }
            complete.push(copy);
        }
        Ok(complete)
    }

    /// The tube of this number, unless its tasks are gone.
    async fn exported_tube(&mut self, tube: u32) -> Result<Option<ExportedTube>, Failure> {
        let cached = self.shared.pages().tubes.get(&tube).cloned();
        let listed = match cached {
            Some(listed) => Some(listed),
            None => {
                self.export_tubes().await?;
                self.shared.pages().tubes.get(&tube).cloned()
            }
        };
        Ok(listed.filter(|listed| !listed.is_gone))
    }

    async fn export_ended_keys(
        &mut self,
        tube: u32,
        from: TaskId,
        count: usize,
    ) -> Result<Vec<EndedKey>, Failure> {
        let Some(listed) = self.exported_tube(tube).await? else { return Ok(Vec::new()) };
        let is_read = self.shared.pages().ended.as_ref().is_some_and(|(of, _)| *of == tube);
        if from == TaskId(0) || !is_read {
            let key = self.shared.tube_call("export", &listed.address, Vec::new()).key;
            let mut keys = Vec::new();
            for text in self.shown_all(&key, b'J').await? {
                let mut bytes = ByteReader(&text);
                while bytes.has_more() {
                    keys.push(read_ended_key(&mut bytes).map_err(unreadable)?);
                }
            }
            keys.sort_unstable_by_key(|ended| ended.id);
            keys.dedup_by_key(|ended| ended.id);
            self.shared.pages().ended = Some((tube, keys));
        }
        let pages = self.shared.pages();
        let keys = pages.ended.iter().flat_map(|(_, keys)| keys);
        Ok(keys.filter(|ended| ended.id >= from).take(count).cloned().collect())
    }

    async fn import_ended_keys(
        &mut self,
        tube: TubeName,
        keys: &[EndedKey],
    ) -> Result<Result<(), Error>, Failure> {
        let (address, Some(_)) = self.find(&tube).await? else {
            return Ok(Err(Error::TubeNotFound(tube)));
        };
        let mut text = Vec::new();
        for EndedKey { id, key, until } in keys {
            text.extend(id.0.to_be_bytes());
            text.extend(codec::moment(*until));
            text.extend(codec::short_text(key.as_str()));
        }
        let words = vec![b"J".to_vec(), text];
        let mut call = self.shared.tube_call("import", &address, words);
        call.replicate = true;
        self.import_call(call).await
    }

    /// The ids of a tube, also of done tasks, in order.
    async fn ids(&mut self, address: &TubeAddress) -> Result<Vec<TaskId>, Failure> {
        let key = self.shared.tube_call("export", address, Vec::new()).key;
        let mut ids = Vec::new();
        // A task that becomes done meanwhile is found in one of them.
        for verb in [b'I', b'K'] {
            for text in self.shown_all(&key, verb).await? {
                let (all, _) = text.as_chunks::<8>();
                ids.extend(all.iter().map(|id| TaskId(u64::from_be_bytes(*id))));
            }
        }
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }

    /// Tasks of these ids, until their bodies have this many bytes.
    async fn read_page(
        &mut self,
        listed: &ExportedTube,
        mut ids: &[TaskId],
        bytes: usize,
    ) -> Result<Vec<Record>, Failure> {
        let (mut records, mut size, mut together) = (Vec::new(), 0, TOGETHER);
        while !ids.is_empty() && size < bytes {
            let some = &ids[..together.min(ids.len())];
            let Some(tasks) = self.peek(listed, some).await? else {
                // They are too large for one answer.
                together = (together / 2).max(1);
                continue;
            };
            ids = &ids[some.len()..];
            for peeked in tasks {
                let record = record(peeked, listed.attempts_max);
                size += record.body_bytes as usize;
                records.push(record);
                if size >= bytes {
                    break;
                }
            }
        }
        Ok(records)
    }

    async fn peek(
        &mut self,
        listed: &ExportedTube,
        ids: &[TaskId],
    ) -> Result<Option<Vec<Peeked>>, Failure> {
        let words = vec![codec::with_ids(vec![b'E'], ids)];
        let mut call = self.shared.tube_call("call", &listed.address, words);
        // At a moment at which nothing has expired, so that the reason shows the state.
        call.args[0] = b"0".to_vec();
        let (_, mut parts) = read(self.call_with_retry(&call).await?)?;
        let Some(tube) = listed.address.name.clone() else { return Err(unreadable_registry()) };
        match parts.peeked(&tube).map_err(unreadable)? {
            Ok(tasks) => Ok(Some(tasks)),
            Err(Error::TooLarge { .. }) if ids.len() > 1 => Ok(None),
            Err(Error::TubeNotFound(_)) => Ok(Some(Vec::new())),
            Err(_) => Err(unreadable_registry()),
        }
    }

    /// Makes an import call once. Answers why it is refused.
    pub async fn import_call(&mut self, call: Call) -> Result<Result<(), Error>, Failure> {
        let answer = self.link.call(&[call]).await.pop();
        let answer = answer.unwrap_or_else(|| Err(unreadable_registry()))?;
        let text = answer.list().into_iter().flatten().next().and_then(Value::text);
        match text.as_deref() {
            Some([0, ..]) => Ok(Ok(())),
            Some([1, why @ ..]) => Ok(Err(Error::Store(String::from_utf8_lossy(why).into_owned()))),
            _ => Err(unreadable_registry()),
        }
    }

    async fn import_tasks(
        &mut self,
        tube: TubeName,
        records: &[Record],
    ) -> Result<Result<(), Error>, Failure> {
        let (address, Some(_)) = self.find(&tube).await? else {
            return Ok(Err(Error::TubeNotFound(tube)));
        };
        let mut words = vec![b"T".to_vec(), encode_tasks(records)];
        words.extend(records.iter().map(|record| {
            let body = record.body.clone().unwrap_or_else(|| Body::new(&[]));
            codec::body_bytes(&body)
        }));
        let mut call = self.shared.tube_call("import", &address, words);
        call.replicate = true;
        self.import_call(call).await
    }

    /// Finishes an import in one call.
    async fn finish_in_one_call(
        &mut self,
        ending: &ImportEnd,
    ) -> Result<Result<(), Error>, Failure> {
        let ImportEnd { tubes, semaphores, schedules, next_lease } = ending;
        let counts = [tubes.len(), semaphores.len(), schedules.len()].map(|count| count as u64);
        let counts = std::iter::once(*next_lease).chain(counts);
        let mut words = vec![b"A".to_vec()];
        words.extend(counts.map(|count| count.to_string().into_bytes()));
        words.extend(tubes.iter().map(|(came, copy)| encode_tube(came, copy)));
        let numbers = (1..).zip(tubes).map(|(place, (_, copy))| (copy.number, place)).collect();
        words.extend(super::semaphores::transfer::encode(semaphores, &numbers));
        words.extend(super::schedules::encode_all(schedules));
        let call = self.shared.transfer_call("import", self.shared.registry_key(), words);
        self.import_call(call).await
    }

    /// Finishes an import in steps that can be repeated.
    async fn finish_step_by_step(
        &mut self,
        ending: ImportEnd,
    ) -> Result<Result<(), Error>, Failure> {
        let ImportEnd { tubes, semaphores, schedules, next_lease } = ending;
        let words = vec![b"L".to_vec(), next_lease.to_string().into_bytes()];
        let call = self.shared.transfer_call("import", self.shared.registry_key(), words);
        if let Err(refusal) = self.import_call(call).await? {
            return Ok(Err(refusal));
        }
        for semaphore in &semaphores {
            if let Err(refusal) = self.import_semaphore(semaphore).await? {
                return Ok(Err(refusal));
            }
        }
        for (came, copy) in tubes {
            let (address, Some(_)) = self.find(&came).await? else {
                return Ok(Err(Error::TubeNotFound(came)));
            };
            let words = vec![b"O".to_vec(), encode_tube(&came, &copy)];
            let mut call = self.shared.tube_call("import", &address, words);
            call.replicate = true;
            if let Err(refusal) = self.import_call(call).await? {
                return Ok(Err(refusal));
            }
            let queue_num = copy.record.options.queue_num;
            if let Err(refusal) = self.name_tube(came, copy.record.name, queue_num).await? {
                return Ok(Err(refusal));
            }
        }
        self.import_schedules(&schedules).await
    }
}

/// Resets the counters of a tube because all servers were gone. Answers whether its tasks are gone too.
fn forget_epoch(info: &mut TubeInfo) -> bool {
    let tasks = Counts { done: 0, ..info.stats.tasks };
    let is_gone = info.options.temporary;
    let tasks = if is_gone { Counts::default() } else { tasks };
    info.stats = TubeStats { tasks, ..TubeStats::default() };
    is_gone
}

/// The bucket of a rate limit, unless it is full since ever.
fn read_bucket(text: &[u8]) -> Result<Option<Bucket>, Unreadable> {
    if text.is_empty() {
        return Ok(None);
    }
    let mut bytes = ByteReader(text);
    Ok(Some(Bucket { level: bytes.count()?, at: bytes.moment()? }))
}

/// A key of an ended task, as `export.lua` shows it.
fn read_ended_key(bytes: &mut ByteReader<'_>) -> Result<EndedKey, Unreadable> {
    let (id, until) = (TaskId(bytes.big()?), bytes.moment()?);
    let key = Key::new(bytes.short_text()?).map_err(|_| Unreadable("a key is damaged"))?;
    Ok(EndedKey { id, key, until })
}

/// The record of a task that a peek shows.
fn record(Peeked { task, since, key }: Peeked, attempts_max: Option<u32>) -> Record {
    let body = task.body.unwrap_or_else(|| Body::new(&[]));
    let mut record = Record {
        key: key.map(Arc::new),
        id: task.id,
        state: match (task.state, task.due, task.reason) {
            (State::Delayed, Some(due), _) => StoredState::Delayed(due),
            (State::Buried, _, Reason::AttemptsUsedUp) => StoredState::DeadLetter,
            (State::Buried, _, _) => StoredState::Buried,
            (State::Done, _, _) => StoredState::Done,
            // A gated task counts as ready.
            _ => StoredState::Ready(since.unwrap_or(task.created)),
        },
        pri: task.pri,
        created: task.created,
        expires: task.expires,
        ttr: task.ttr,
        attempts: task.attempts,
        previous_start: task.previous_start,
        subqueue: task.subqueue,
        semaphore_priority: task.semaphore_priority,
        attempts_max: task.attempts_max,
        failures: task.failures,
        finished: task.finished,
        body_bytes: body.bytes(),
        body: Some(body),
    };
    if task.state == State::Taken {
        record.given_back(task.start.unwrap_or(record.created), attempts_max);
    }
    record
}

/// Tasks as `import.lua` reads them; their bodies are separate.
fn encode_tasks(records: &[Record]) -> Vec<u8> {
    let mut header = (records.len() as u32).to_le_bytes().to_vec();
    for record in records {
        let (state, due) = match record.state {
            StoredState::Ready(since) => (0, (since != record.created).then_some(since)),
            StoredState::Delayed(due) | StoredState::Scheduled(due) => (2, Some(due)),
            StoredState::Buried => (3, None),
            StoredState::DeadLetter => (4, None),
            // That it has ended makes it a done task.
            StoredState::Done => (0, None),
        };
        let own = record.semaphore_priority.map(Priority::value);
        header.extend(record.id.0.to_be_bytes());
        header.push(state);
        header.extend(record.pri.to_be_bytes());
        header.extend(codec::moment(record.created));
        header.extend(codec::moment(record.expires));
        header.extend(codec::span_bytes(record.ttr));
        header.extend(record.attempts.to_le_bytes());
        header.extend(codec::moment(due.unwrap_or(Timestamp::EPOCH)));
        header.extend(codec::moment(record.previous_start.unwrap_or(Timestamp::NEVER)));
        let failures = record.failures.as_ref().map(Failures::as_bytes);
        let finished = record.finished.as_ref().map(Finished::as_bytes);
        let extension = encode_extension(record.attempts_max, record.key.as_deref());
        let given = [own.is_some(), record.subqueue.is_some(), failures.is_some()];
        let given = given.into_iter().chain([finished.is_some(), extension.is_some()]);
        header.push(codec::bits(given));
        header.extend(own.map(f64::to_le_bytes).into_iter().flatten());
        header.extend(record.subqueue.as_deref().map(codec::short_text).into_iter().flatten());
        if let Some(failures) = failures {
            header.extend((failures.len() as u16).to_le_bytes());
            header.extend(failures);
        }
        if let Some(finished) = finished {
            codec::long_text(&mut header, finished);
        }
        header.extend(extension.into_iter().flatten());
    }
    header
}

/// A tube as `import.lua` reads it.
fn encode_tube(came: &TubeName, copy: &TubeCopy) -> Vec<u8> {
    let (record, options, calls) = (&copy.record, &copy.record.options, copy.stats.calls);
    let mut word = codec::short_text(came.as_str());
    word.extend(codec::short_text(record.name.as_str()));
    let flags = [options.temporary, false, options.paused, options.capacity.is_some()];
    word.push(codec::bits(flags.into_iter()));
    word.extend(options.capacity.unwrap_or(0).to_be_bytes());
    word.extend(options.queue_num.unwrap_or(0).to_le_bytes());
    word.extend((record.next_id as f64).to_le_bytes());
    let semaphore = options.semaphore.as_ref().map_or("", SemaphoreKey::as_str);
    word.extend(codec::short_text(semaphore));
    let done = [copy.stats.tasks.done, calls.ack, calls.bury, calls.delete, calls.kick, calls.put];
    let more = [calls.release, calls.take, calls.touch, calls.ttl, calls.ttr, calls.delay];
    for count in done.into_iter().chain(more) {
        word.extend((count as f64).to_le_bytes());
    }
    word.extend(codec::pace(options.retry.as_deref(), options.rate.as_deref()));
    if let Some(Bucket { level, at }) = record.bucket {
        word.extend((level as f64).to_le_bytes());
        word.extend(codec::moment(at));
    }
    word
}
