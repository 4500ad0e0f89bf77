//! Encodes commands and decodes tubes in the layouts of `lua/*.lua`.

use std::collections::HashMap;

use taskyard_core::command::TubeInfo;
use taskyard_core::limits::KEEP_DONE_DEFAULT;
use taskyard_core::{
    AfterFailure, Body, Calls, Command, Counts, Finish, FinishItem, Holder, Key, Kind, List,
    ListOrder, NewTask, OnConflict, RateLimit, RetryPolicy, SemaphoreKey, SessionId, Span, Take,
    TaskId, Timestamp, TubeChange, TubeName, TubeOptions, TubeStats,
};

use super::extension::{encode_extension, needs_keyring};
use super::merge::{IndexedCommand, merge};

/// A moment that never comes: later moments are not exact as doubles, and count as this.
const NEVER: f64 = 9_007_199_254_740_992.0;
const NO_SESSION: [u8; 16] = [0; 16];
/// The order of the queue, where a list by id has its states.
const QUEUE_ORDER: u8 = 255;
/// Follows the queue number of a tube that keeps done tasks, where others have the length of their name.
const KEEPING: u16 = u16::MAX;
/// The same for a tube that has a retry policy or a rate limit, or had tasks with keys or their own number of attempts.
const EXTENDED: u16 = u16::MAX - 1;
/// The tail of a delivery: whether the task has failures, the length of the worker's name, the name, and padding up to this.
pub(super) const TAIL_BYTES_MIN: usize = 23;

/// An answer that does not fit the layouts.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Unreadable(pub &'static str);

/// What encoding needs besides the command.
pub(super) struct Context<'a> {
    /// Which of the named sessions are alive.
    pub alive: &'a HashMap<SessionId, bool>,
    /// The lease number of the next delivery.
    pub lease: u64,
}

/// A run of commands, or a single one, as arguments of a call.
pub(super) fn encode_run(run: &[IndexedCommand], context: &mut Context<'_>) -> Vec<Vec<u8>> {
    match (merge(run), run) {
        (Some(merged), _) => encode(&merged, run, context),
        (None, [(_, command)]) => encode(command, run, context),
        (None, _) => Vec::new(),
    }
}

/// A run of commands, which are merged into this one, as arguments of a call. Takes use lease numbers.
fn encode(command: &Command, run: &[IndexedCommand], context: &mut Context<'_>) -> Vec<Vec<u8>> {
    match command {
        Command::Put { tasks, .. } => put(tasks, run.len() > 1),
        Command::Take(take) => {
            let header = encode_take(take, run, context);
            context.lease += take.count as u64;
            vec![header]
        }
        Command::Finish { items, show, .. } => {
            let acks = if *show { None } else { acks(items, context.alive) };
            vec![acks.unwrap_or_else(|| finish(items, *show, context.alive))]
        }
        Command::Delete { ids, show, .. } => vec![with_ids(vec![b'D', u8::from(*show)], ids)],
        Command::Peek { ids, .. } => vec![with_ids(vec![b'E'], ids)],
        Command::Search(search) => {
            let ids: Vec<_> = search.ids().collect();
            vec![with_ids(vec![b'E'], &ids)]
        }
        Command::Kick { count, .. } => vec![with_count(b'K', *count)],
        Command::KickTasks { ids, reset_attempts, .. } => {
            vec![with_ids(vec![b'H', u8::from(*reset_attempts)], ids)]
        }
        Command::Deliveries { count, .. } => vec![with_count(b'L', *count as u64)],
        Command::List(list) => vec![encode_list(list)],
        Command::Positions { ids, .. } => vec![with_ids(vec![b'O'], ids)],
        Command::AlterTube { change, .. } => vec![alter(change)],
        Command::Truncate { .. } => vec![b"Z".to_vec()],
        Command::ReleaseAll { .. } => vec![b"A".to_vec()],
        Command::DropTube { .. } => vec![b"X".to_vec()],
        _ => vec![b"N".to_vec()],
    }
}

/// A put of a schedule, as arguments of a call.
pub(super) fn encode_put(command: &Command) -> Vec<Vec<u8>> {
    match command {
        Command::Put { tasks, .. } => put(tasks, false),
        _ => Vec::new(),
    }
}

/// Applies due deadlines in a tube.
pub(super) fn tick(limit: usize, seed: u32) -> Vec<u8> {
    [with_count(b'I', limit as u64), f64::from(seed).to_le_bytes().to_vec()].concat()
}

/// Gives back what a session holds; `lost` if its last server was declared dead.
pub(super) fn end_session(session: SessionId, lost: bool) -> Vec<u8> {
    [&b"S"[..], &session.0, if lost { b"l" } else { b"" }].concat()
}

/// Undoes deliveries with these lease numbers.
pub(super) fn undo_unacknowledged(first: u64, last: u64) -> Vec<u8> {
    [&b"U"[..], &first.to_be_bytes(), &last.to_be_bytes()].concat()
}

/// Creates a tube, unless the deadline has passed.
pub(super) fn create(
    number: u32,
    name: &TubeName,
    options: &TubeOptions,
    deadline: i64,
) -> Vec<u8> {
    let mut header = with_count(b'C', deadline.unsigned_abs());
    header.push(kind_number(options.kind));
    let flags = [options.temporary, options.ttl_kills_taken, options.paused]
        .into_iter()
        .chain([options.capacity.is_some()]);
    header.push(bits(flags));
    header.extend(number.to_le_bytes());
    for span in [options.ttl, options.ttr, options.delay] {
        header.extend(optional_span(span));
    }
    header.extend(options.attempts_max.unwrap_or(0).to_le_bytes());
    header.extend(options.pri.to_be_bytes());
    header.extend(options.capacity.unwrap_or(0).to_be_bytes());
    header.extend(options.queue_num.unwrap_or(0).to_le_bytes());
    let extends = options.retry.is_some() || options.rate.is_some();
    if extends || options.keep_done.is_some() || options.keep_done_max != KEEP_DONE_DEFAULT {
        header.extend(if extends { EXTENDED } else { KEEPING }.to_le_bytes());
        header.extend(optional_span(options.keep_done));
        header.extend((options.keep_done_max as f64).to_le_bytes());
    }
    if extends {
        header.extend(pace(options.retry.as_deref(), options.rate.as_deref()));
    }
    header.extend(short_text(name.as_str()));
    header.extend(short_text(options.semaphore.as_ref().map_or("", SemaphoreKey::as_str)));
    header
}

/// A retry policy and a rate limit, as they are stored.
pub(super) fn pace(retry: Option<&RetryPolicy>, rate: Option<&RateLimit>) -> Vec<u8> {
    let mut bytes = optional_span(retry.map(|retry| retry.delay)).to_vec();
    bytes.extend(retry.map_or(0, |retry| retry.factor_permille).to_le_bytes());
    bytes.extend(span_bytes(retry.map_or(Span::ZERO, |retry| retry.delay_max)));
    bytes.extend(retry.map_or(0, |retry| retry.jitter_permille).to_le_bytes());
    bytes.push(u8::from(retry.is_some_and(|retry| retry.retry_lost)));
    bytes.extend(rate.map_or(0, |rate| rate.count).to_le_bytes());
    bytes.extend(span_bytes(rate.map_or(Span::ZERO, |rate| rate.per)));
    bytes.extend(rate.map_or(0, |rate| rate.burst).to_le_bytes());
    bytes
}

/// Renames a tube, unless the deadline has passed.
pub(super) fn rename(name: &TubeName, queue_num: Option<u32>, deadline: i64) -> Vec<u8> {
    let mut header = with_count(b'M', deadline.unsigned_abs());
    header.extend(queue_num.unwrap_or(0).to_le_bytes());
    header.extend(short_text(name.as_str()));
    header
}

/// A text with its length before it.
pub(super) fn short_text(text: &str) -> Vec<u8> {
    [&(text.len() as u16).to_le_bytes(), text.as_bytes()].concat()
}

/// Adds bytes with their number before them.
pub(super) fn long_text(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u32).to_le_bytes());
    out.extend(bytes);
}

pub(super) fn bits(flags: impl Iterator<Item = bool>) -> u8 {
    flags.enumerate().map(|(place, flag)| u8::from(flag) << place).sum()
}

pub(super) fn with_count(verb: u8, count: u64) -> Vec<u8> {
    // Doubles are exact up to this.
    let count = count.min(1 << 53) as f64;
    [&[verb][..], &count.to_le_bytes()].concat()
}

pub(super) fn with_ids(mut header: Vec<u8>, ids: &[TaskId]) -> Vec<u8> {
    header.extend((ids.len() as u32).to_le_bytes());
    header.extend(ids.iter().flat_map(|id| id.0.to_be_bytes()));
    header
}

pub(super) fn moment(at: Timestamp) -> [u8; 8] {
    (at.as_micros() as f64).min(NEVER).to_le_bytes()
}

pub(super) fn span_bytes(span: Span) -> [u8; 8] {
    (span.as_micros() as f64).to_le_bytes()
}

pub(super) fn optional_span(span: Option<Span>) -> [u8; 8] {
    span.map_or_else(|| (-1.0f64).to_le_bytes(), span_bytes)
}

fn put(tasks: &[NewTask], merged: bool) -> Vec<Vec<u8>> {
    let mut header = Vec::with_capacity(8 + 2 * tasks.len());
    header.push(b'P');
    header.extend((tasks.len() as u32).to_le_bytes());
    let owned = tasks.iter().any(|task| task.semaphore_priority.is_some());
    header.push(bits([owned, merged, needs_keyring(tasks)].into_iter()));
    let mut words = Vec::with_capacity(1 + tasks.len());
    words.push(Vec::new());
    for task in tasks {
        let NewTask { body, pri, ttl, ttr, delay, at, subqueue, .. } = task;
        let semaphore_priority = &task.semaphore_priority;
        let given = [pri.is_some(), ttl.is_some(), ttr.is_some(), delay.is_some(), at.is_some()];
        let extension = encode_extension(task.attempts_max, task.key.as_ref().map(|key| &key.held));
        let rest = [subqueue.is_some(), semaphore_priority.is_some(), extension.is_some()];
        header.push(bits(given.into_iter().chain(rest)));
        header.extend(pri.map(u64::to_be_bytes).into_iter().flatten());
        header.extend([ttl, ttr, delay].into_iter().flatten().flat_map(|span| span_bytes(*span)));
        header.extend(at.map(moment).into_iter().flatten());
        if let Some(key) = subqueue {
            header.extend((key.len() as u16).to_le_bytes());
            header.extend(key.as_bytes());
        }
        header.extend(semaphore_priority.map(|own| own.value().to_le_bytes()).iter().flatten());
        if let Some(extension) = extension {
            let replaces = task.key.as_ref().map(|key| key.on_conflict);
            header.push(u8::from(replaces == Some(OnConflict::Replace)));
            header.extend(extension);
        }
        words.push(body_bytes(body));
    }
    words[0] = header;
    words
}

/// Payload, meta, and the size of the meta.
pub(super) fn body_bytes(body: &Body) -> Vec<u8> {
    let meta = body.meta().unwrap_or_default();
    [body.payload(), meta, &(meta.len() as u32).to_le_bytes()].concat()
}

fn encode_take(take: &Take, run: &[IndexedCommand], context: &Context<'_>) -> Vec<u8> {
    let alive = take.session.is_none_or(|session| context.alive.get(&session) == Some(&true));
    let mut header = vec![b'T'];
    header.extend((take.count as u32).to_le_bytes());
    header.extend((context.lease as f64).to_le_bytes());
    header.extend(optional_span(take.lease));
    header.push(u8::from(alive));
    header.extend(take.session.map_or(NO_SESSION, |session| session.0));
    header.push(u8::from(run.len() > 1));
    add_workers(&mut header, run);
    header
}

/// Adds the workers of takes: one if all have the same, none if they have none.
fn add_workers(header: &mut Vec<u8>, run: &[IndexedCommand]) {
    let mut workers = run.iter().map(|(_, command)| match command {
        Command::Take(take) => take.worker.as_deref(),
        _ => None,
    });
    let all = workers.clone();
    let Some(first) = workers.next() else { return };
    if !workers.all(|worker| worker == first) {
        all.for_each(|worker| add_worker(header, worker.unwrap_or_default()));
    } else if let Some(worker) = first {
        add_worker(header, worker);
    }
}

/// Adds the tail of a delivery, as it is stored, with its length before it.
fn add_worker(header: &mut Vec<u8>, worker: &str) {
    // The number of bytes fits: a name has at most `WORKER_BYTES_MAX`.
    let padding = TAIL_BYTES_MIN.saturating_sub(2 + worker.len());
    header.extend([(2 + worker.len() + padding) as u8, 0, worker.len() as u8]);
    header.extend(worker.as_bytes());
    header.extend(std::iter::repeat_n(0, padding));
}

fn encode_list(list: &List) -> Vec<u8> {
    let (states, first, after) = match list.order {
        ListOrder::Id { states, after } => {
            (states.bits(), after.map_or(0, |id| id.0.saturating_add(1)), None)
        }
        ListOrder::Queue { after } => (QUEUE_ORDER, 0, after),
    };
    let (pri, id) = after.map_or((0, 0), |(pri, id)| (pri, id.0));
    let mut header = vec![b'Q'];
    header.extend((list.limit as u32).to_le_bytes());
    header.push(states);
    // Ids are exact as doubles.
    header.extend((first as f64).to_le_bytes());
    header.push(u8::from(after.is_some()));
    header.extend(pri.to_be_bytes());
    header.extend(id.to_be_bytes());
    header.extend(list.key.as_ref().map_or("", Key::as_str).as_bytes());
    header
}

/// The number of a kind of holder; an ended session is a kind of its own.
fn holder_number(holder: &Holder, alive: &HashMap<SessionId, bool>) -> u8 {
    match holder {
        Holder::Lease(_) => 0,
        Holder::Session(session) if alive.get(session) == Some(&true) => 1,
        Holder::Any => 2,
        Holder::Session(_) => 3,
    }
}

/// A short form for acks with the same kind of holder, or the same session, as most are. If one has a result, those of all follow.
fn acks(items: &[FinishItem], alive: &HashMap<SessionId, bool>) -> Option<Vec<u8>> {
    let first = items.first()?.holder;
    let mut header = Vec::with_capacity(24 + 16 * items.len());
    header.extend([b'G', holder_number(&first, alive)]);
    header.extend((items.len() as u32).to_le_bytes());
    if let Holder::Session(session) = first {
        header.extend(session.0);
    }
    for FinishItem { id, holder, finish } in items {
        header.extend(id.0.to_be_bytes());
        if !matches!(finish, Finish::Ack | Finish::AckWithResult(_)) {
            return None;
        }
        match (first, holder) {
            (Holder::Lease(_), Holder::Lease(lease)) => header.extend(lease.0.to_be_bytes()),
            (first, holder) if first == *holder => {}
            _ => return None,
        }
    }
    if items.iter().any(|item| item.finish.result().is_some()) {
        for item in items {
            long_text(&mut header, item.finish.result().unwrap_or_default());
        }
    }
    Some(header)
}

fn finish(items: &[FinishItem], show: bool, alive: &HashMap<SessionId, bool>) -> Vec<u8> {
    let (mut header, mut texts) = (vec![b'F', u8::from(show)], Vec::new());
    header.extend((items.len() as u32).to_le_bytes());
    for FinishItem { id, holder, finish } in items {
        let mut who = [0; 16];
        match holder {
            Holder::Lease(lease) => who[..8].copy_from_slice(&lease.0.to_be_bytes()),
            Holder::Session(session) => who = session.0,
            Holder::Any => {}
        }
        let holder = holder_number(holder, alive);
        let (verb, span, counted) = match finish {
            Finish::Ack => (0, Some(Span::ZERO), true),
            Finish::AckWithResult(result) => {
                long_text(&mut texts, result.payload());
                (5, Some(Span::ZERO), true)
            }
            Finish::Release { delay, counted } => (1, Some(*delay), *counted),
            Finish::Bury => (2, Some(Span::ZERO), true),
            Finish::Touch(more) => (3, Some(*more), true),
            Finish::Fail(fail) => {
                texts.extend(short_text(&fail.error));
                if let AfterFailure::Policy { seed, .. } = fail.then {
                    texts.extend(seed.to_le_bytes());
                }
                let verb = if matches!(fail.then, AfterFailure::Policy { .. }) { 6 } else { 4 };
                (verb, fail.then.delay(), true)
            }
        };
        header.extend(id.0.to_be_bytes());
        header.push(holder);
        header.extend(who);
        header.push(verb);
        header.extend(optional_span(span));
        header.push(u8::from(counted));
    }
    header.extend(texts);
    header
}

fn alter(change: &TubeChange) -> Vec<u8> {
    let TubeChange { paused, capacity, ttl, ttr, delay, pri, attempts_max, .. } = change;
    let TubeChange { keep_done, keep_done_max, .. } = change;
    let spans = [ttl, ttr, delay];
    let given = [paused.is_some(), capacity.is_some()].into_iter();
    let given = given.chain(spans.iter().map(|span| span.is_some()));
    let given = given.chain([pri.is_some(), attempts_max.is_some(), keep_done.is_some()]);
    let more = [keep_done_max.is_some(), change.retry.is_some(), change.rate.is_some()];
    let mut header = vec![b'R', bits(given), bits(more.into_iter())];
    let capacity = capacity.flatten();
    header.push(u8::from(paused.unwrap_or_default()));
    header.push(u8::from(capacity.is_some()));
    header.extend(capacity.unwrap_or(0).to_be_bytes());
    header.extend(spans.into_iter().flat_map(|span| optional_span(span.flatten())));
    header.extend(pri.unwrap_or(0).to_be_bytes());
    header.extend(attempts_max.flatten().unwrap_or(0).to_le_bytes());
    header.extend(optional_span(keep_done.flatten()));
    header.extend((keep_done_max.unwrap_or(0) as f64).to_le_bytes());
    if change.retry.is_some() || change.rate.is_some() {
        let retry = change.retry.as_ref().and_then(Option::as_deref);
        header.extend(pace(retry, change.rate.as_ref().and_then(Option::as_deref)));
    }
    header
}

fn kind_number(kind: Kind) -> u8 {
    Kind::ALL.iter().position(|other| *other == kind).unwrap_or(0) as u8
}

/// Reads values from the beginning of a text.
pub(super) struct ByteReader<'a>(pub &'a [u8]);

impl<'a> ByteReader<'a> {
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Unreadable> {
        let (first, rest) = self.0.split_first_chunk().ok_or(Unreadable("a text is too short"))?;
        self.0 = rest;
        Ok(*first)
    }

    pub fn byte(&mut self) -> Result<u8, Unreadable> {
        Ok(self.array::<1>()?[0])
    }

    pub fn small(&mut self) -> Result<u32, Unreadable> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub fn big(&mut self) -> Result<u64, Unreadable> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    pub fn number(&mut self) -> Result<f64, Unreadable> {
        Ok(f64::from_le_bytes(self.array()?))
    }

    /// A number that is not negative.
    pub fn count(&mut self) -> Result<u64, Unreadable> {
        Ok(self.number()? as u64)
    }

    pub fn moment(&mut self) -> Result<Timestamp, Unreadable> {
        let at = self.number()?;
        Ok(if at >= NEVER { Timestamp::NEVER } else { Timestamp::from_micros(at as i64) })
    }

    /// A moment in microseconds, unless it never comes.
    pub fn maybe_moment(&mut self) -> Result<Option<i64>, Unreadable> {
        let at = self.number()?;
        Ok((at < NEVER).then_some(at as i64))
    }

    pub fn span(&mut self) -> Result<Span, Unreadable> {
        Ok(Span::from_micros(self.number()? as i64))
    }

    pub fn optional_span(&mut self) -> Result<Option<Span>, Unreadable> {
        let span = self.number()?;
        Ok((span >= 0.0).then(|| Span::from_micros(span as i64)))
    }

    /// A text with its length before it.
    pub fn short_text(&mut self) -> Result<&'a str, Unreadable> {
        let size = usize::from(u16::from_le_bytes(self.array()?));
        std::str::from_utf8(self.bytes(size)?).map_err(|_| Unreadable("a text is not UTF-8"))
    }

    /// How long a tube keeps done tasks, how many, its retry policy and its rate limit, if these come next.
    fn extended_options(&mut self, options: &mut TubeOptions) -> Result<(), Unreadable> {
        let marker = self.0.first_chunk().map(|marker| u16::from_le_bytes(*marker));
        if !matches!(marker, Some(KEEPING | EXTENDED)) {
            return Ok(());
        }
        self.bytes(2)?;
        (options.keep_done, options.keep_done_max) = (self.optional_span()?, self.count()?);
        if marker == Some(EXTENDED) {
            (options.retry, options.rate) = self.pace()?;
        }
        Ok(())
    }

    /// A retry policy and a rate limit.
    fn pace(&mut self) -> Result<Pace, Unreadable> {
        let (delay, factor_permille) = (self.optional_span()?, self.small()?);
        let (delay_max, jitter_permille) = (self.span()?, self.small()?);
        let retry_lost = self.byte()? == 1;
        let (count, per, burst) = (self.small()?, self.span()?, self.small()?);
        let retry = delay.map(|delay| {
            let policy =
                RetryPolicy { delay, factor_permille, delay_max, jitter_permille, retry_lost };
            Box::new(policy)
        });
        let rate = (count > 0).then(|| Box::new(RateLimit { count, per, burst }));
        Ok((retry, rate))
    }

    /// Bytes with their number before them.
    pub fn long_text(&mut self) -> Result<&'a [u8], Unreadable> {
        let size = self.small()? as usize;
        self.bytes(size)
    }

    /// This number of bytes.
    pub fn bytes(&mut self, size: usize) -> Result<&'a [u8], Unreadable> {
        let (bytes, rest) = self.0.split_at_checked(size).ok_or(Unreadable("a text is cut"))?;
        self.0 = rest;
        Ok(bytes)
    }

    /// Whether bytes are left.
    pub fn has_more(&self) -> bool {
        !self.0.is_empty()
    }

    /// The bytes that are left.
    pub fn rest(self) -> &'a [u8] {
        self.0
    }

    pub fn kind(&mut self) -> Result<Kind, Unreadable> {
        let kind = usize::from(self.byte()?);
        Kind::ALL.get(kind).copied().ok_or(Unreadable("a tube has an unknown kind"))
    }
}

/// The retry policy and the rate limit of a tube.
type Pace = (Option<Box<RetryPolicy>>, Option<Box<RateLimit>>);

/// A tube as it is shown.
pub(super) fn read_info(mut bytes: ByteReader<'_>) -> Result<TubeInfo, Unreadable> {
    let (kind, flags) = (bytes.kind()?, bytes.byte()?);
    let number = bytes.small()?;
    let (ttl, ttr) = (bytes.optional_span()?, bytes.optional_span()?);
    let delay = bytes.optional_span()?;
    let attempts_max = Some(bytes.small()?).filter(|max| *max > 0);
    let (pri, capacity) = (bytes.big()?, bytes.big()?);
    let queue_num = Some(bytes.small()?).filter(|number| *number > 0);
    let mut options = TubeOptions {
        temporary: flags & 1 != 0,
        capacity: (flags & 8 != 0).then_some(capacity),
        ttl,
        ttr,
        delay,
        pri,
        attempts_max,
        ttl_kills_taken: flags & 2 != 0,
        paused: flags & 4 != 0,
        queue_num,
        ..TubeOptions::new(kind)
    };
    bytes.extended_options(&mut options)?;
    let name = TubeName::new(bytes.short_text()?).map_err(|_| Unreadable("a tube has no name"))?;
    options.semaphore = match bytes.short_text()? {
        "" => None,
        key => Some(SemaphoreKey::new(key).map_err(|_| Unreadable("a semaphore has no key"))?),
    };
    let (ready, taken) = (bytes.count()?, bytes.count()?);
    let (buried, delayed) = (bytes.count()?, bytes.count()?);
    let kept = bytes.count()?;
    let (takeable, next, oldest) = (bytes.count()?, bytes.moment()?, bytes.moment()?);
    let mut numbers = [0; 15];
    for number in &mut numbers {
        *number = bytes.count()?;
    }
    let tasks = Counts { ready, taken, buried, delayed, done: numbers[3], kept };
    let stats = TubeStats { tasks, calls: read_calls(&numbers) };
    let next_wakeup = (next != Timestamp::NEVER).then_some(next);
    let oldest_ready = (oldest != Timestamp::NEVER).then_some(oldest);
    Ok(TubeInfo { name, number, options, stats, takeable, next_wakeup, oldest_ready })
}

/// The epoch of the last call to a shown tube, and its next id.
pub(super) fn read_numbers(text: &[u8]) -> Result<(u64, u64), Unreadable> {
    let place = text.len().checked_sub(15 * 8).ok_or(Unreadable("a tube has no numbers"))?;
    let mut numbers = ByteReader(&text[place..]);
    Ok((numbers.count()?, numbers.count()?))
}

fn read_calls(numbers: &[u64; 15]) -> Calls {
    let [_, _, _, _, ack, bury, delete, kick, put, release, take, touch, ttl, ttr, delay] =
        *numbers;
    Calls { ack, bury, delete, kick, put, release, take, touch, ttl, ttr, delay }
}
