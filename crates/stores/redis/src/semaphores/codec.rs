//! Encodes commands of semaphores and decodes their answers in the layouts of `lua/semaphores.lua`.

use taskyard_core::{
    EnqueueItem, EventId, EventKind, Grant, GrantFinish, GrantItem, GrantOutcome, Member,
    MemberCursor, MemberGroup, MemberInfo, MembersPage, Priority, SemaphoreChange,
    SemaphoreCommand, SemaphoreEvent, SemaphoreInfo, SemaphoreKey, SemaphoreOptions, Span, Status,
    TaskId, Timestamp, TubeName,
};

use super::super::answers::SemaphoreHead;
use super::super::codec::{
    ByteReader, Unreadable, bits, optional_span, span_bytes, with_count, with_ids,
};

/// An event id is the number of the semaphore above the number of the event, and exact as a double.
const EVENT_BITS: u32 = 36;
/// Stands for no grant.
const NO_GRANT: f64 = -2.0;
/// Doubles are exact up to this grant number.
const GRANT_MAX: u64 = 1 << 53;

/// The id of an event of a semaphore.
pub(super) fn event_id(semaphore: u32, number: u64) -> EventId {
    EventId(u64::from(semaphore) << EVENT_BITS | number)
}

/// The semaphore and the number of an event id.
pub(super) fn event_number(id: EventId) -> (u32, u64) {
    // No semaphore has a number that is too large.
    let semaphore = u32::try_from(id.0 >> EVENT_BITS).unwrap_or(u32::MAX);
    (semaphore, id.0 & ((1 << EVENT_BITS) - 1))
}

/// The command as an argument of a call.
pub(super) fn encode(command: &SemaphoreCommand) -> Vec<u8> {
    match command {
        SemaphoreCommand::Configure { change, only_new, .. } => {
            configure(change, *only_new, NewSemaphore::default())
        }
        SemaphoreCommand::Members { part, after, count, .. } => members(*part, *after, *count),
        SemaphoreCommand::Drop { force, .. } => vec![b'D', u8::from(*force)],
        SemaphoreCommand::Enqueue { entries, .. } => {
            let mut header = with_size(b'E', entries.len());
            for EnqueueItem { task, priority } in entries {
                header.extend(task.0.to_be_bytes());
                // Minus zero is zero.
                header.extend((priority + 0.0).to_le_bytes());
            }
            header
        }
        SemaphoreCommand::Finish { items, .. } => {
            let mut header = with_size(b'F', items.len());
            items.iter().for_each(|item| header.extend(finish(item)));
            header
        }
        SemaphoreCommand::Peek { tasks, .. } => with_ids(vec![b'L'], tasks),
        SemaphoreCommand::Events { count, .. } => with_count(b'V', *count as u64),
        SemaphoreCommand::List { .. } | SemaphoreCommand::Acknowledge { .. } => b"N".to_vec(),
    }
}

fn with_size(verb: u8, size: usize) -> Vec<u8> {
    [&[verb][..], &(size as u32).to_le_bytes()].concat()
}

/// Applies due deadlines.
pub(super) fn tick() -> Vec<u8> {
    b"I".to_vec()
}

/// Lists due events, up to a maximum number.
pub(super) fn peek(count: usize) -> Vec<u8> {
    with_count(b'P', count as u64)
}

/// Delivers these events.
pub(super) fn deliver(numbers: &[u64]) -> Vec<u8> {
    with_numbers(b'H', numbers)
}

/// Acknowledges these events of the semaphore of this number.
pub(super) fn acknowledge(semaphore: u32, numbers: &[u64]) -> Vec<u8> {
    let mut header = vec![b'A'];
    header.extend(semaphore.to_le_bytes());
    header.extend(&with_numbers(b'A', numbers)[1..]);
    header
}

fn with_numbers(verb: u8, numbers: &[u64]) -> Vec<u8> {
    let mut header = with_size(verb, numbers.len());
    header.extend(numbers.iter().flat_map(|number| number.to_be_bytes()));
    header
}

fn finish(item: &GrantItem) -> Vec<u8> {
    let grant = match item.grant {
        None => -1.0,
        Some(grant) if grant.0 > GRANT_MAX => NO_GRANT,
        Some(grant) => grant.0 as f64,
    };
    let (verb, span) = match item.finish {
        GrantFinish::Release => (0, Span::ZERO),
        GrantFinish::Yield => (1, Span::ZERO),
        GrantFinish::Decline => (2, Span::ZERO),
        GrantFinish::Extend(span) => (3, span),
    };
    let mut bytes = item.task.0.to_be_bytes().to_vec();
    bytes.extend(grant.to_le_bytes());
    bytes.push(verb);
    bytes.extend(span_bytes(span));
    bytes
}

/// The numbers of a new semaphore.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NewSemaphore {
    /// Its number; 0 is none yet.
    pub number: u32,
    /// Its first event is at least this one.
    pub event: f64,
    /// Its first grant comes after this one.
    pub grant: f64,
}

/// The numbers of a dropped semaphore: its number, the first event of the next one, the last grant.
pub(super) struct Remains {
    pub number: u32,
    pub event: u64,
    pub grant: u64,
    text: Vec<u8>,
}

impl Remains {
    pub fn read(mut bytes: ByteReader<'_>) -> Result<Self, Unreadable> {
        let text = bytes.0.to_vec();
        Ok(Remains { number: bytes.small()?, event: bytes.count()?, grant: bytes.count()?, text })
    }

    /// Confirms that the registry has these numbers.
    pub fn forget(&self) -> Vec<u8> {
        [&b"X"[..], &self.text].concat()
    }
}

fn members(part: MemberGroup, after: Option<MemberCursor>, count: usize) -> Vec<u8> {
    let mut header = vec![b'M', u8::from(part != MemberGroup::Holders)];
    header.extend((count as f64).to_le_bytes());
    header.extend(after.map_or(0.0, |after| after.priority.value()).to_le_bytes());
    header.extend(after.map_or(-1.0, |after| after.seq as f64).to_le_bytes());
    header
}

/// Creates or changes a semaphore.
pub(super) fn configure(change: &SemaphoreChange, only_new: bool, begin: NewSemaphore) -> Vec<u8> {
    let SemaphoreChange { active, try_release, margin, min_hold, cool_down, .. } = change;
    let SemaphoreChange { max_revoking, revoke_grace, lease, ack_timeout, .. } = change;
    let SemaphoreChange { force, shed, drop_expired, .. } = change;
    let given = [active.is_some(), try_release.is_some(), margin.is_some(), min_hold.is_some()];
    let more =
        [cool_down.is_some(), max_revoking.is_some(), revoke_grace.is_some(), lease.is_some()];
    let rest = [ack_timeout.is_some(), force.is_some(), shed.is_some(), drop_expired.is_some()];
    let mut header = vec![b'C', u8::from(only_new)];
    header.extend(begin.number.to_le_bytes());
    header.extend([bits(given.into_iter().chain(more)), bits(rest.into_iter())]);
    let float = |value: Option<i64>| value.unwrap_or(0) as f64;
    header.extend(float(*active).to_le_bytes());
    header.extend(float(*try_release).to_le_bytes());
    header.extend((margin.unwrap_or(0.0) + 0.0).to_le_bytes());
    header.extend(span_bytes(min_hold.unwrap_or_default()));
    header.extend(span_bytes(cool_down.unwrap_or_default()));
    let most = max_revoking.flatten().map_or(-1.0, |most| most as f64);
    header.extend(most.to_le_bytes());
    header.extend(span_bytes(revoke_grace.unwrap_or_default()));
    header.extend(optional_span(lease.flatten()));
    header.extend(optional_span(ack_timeout.flatten()));
    let flags = [force, shed, drop_expired].map(|flag| flag.unwrap_or_default());
    header.push(bits(flags.into_iter()));
    header.extend(begin.event.to_le_bytes());
    header.extend(begin.grant.to_le_bytes());
    header.extend(config(&SemaphoreOptions::default()));
    header
}

pub(super) fn config(options: &SemaphoreOptions) -> Vec<u8> {
    let mut bytes = options.active.to_le_bytes().to_vec();
    bytes.extend(options.try_release.to_le_bytes());
    bytes.extend(options.margin.value().to_le_bytes());
    bytes.extend(span_bytes(options.min_hold));
    bytes.extend(span_bytes(options.cool_down));
    bytes.extend(options.max_revoking.map_or(-1.0, f64::from).to_le_bytes());
    bytes.extend(span_bytes(options.revoke_grace));
    bytes.extend(optional_span(options.lease));
    bytes.extend(optional_span(options.ack_timeout));
    let flags = [options.force, options.shed, options.drop_expired];
    bytes.push(bits(flags.into_iter()));
    bytes
}

fn priority(bytes: &mut ByteReader<'_>) -> Result<Priority, Unreadable> {
    Priority::new(bytes.number()?).map_err(|_| Unreadable("a priority is no number"))
}

pub(super) fn read_config(bytes: &mut ByteReader<'_>) -> Result<SemaphoreOptions, Unreadable> {
    let (active, try_release) = (bytes.small()?, bytes.small()?);
    let margin = priority(bytes)?;
    let (min_hold, cool_down) = (bytes.span()?, bytes.span()?);
    let most = bytes.number()?;
    let (revoke_grace, lease) = (bytes.span()?, bytes.optional_span()?);
    let (ack_timeout, flags) = (bytes.optional_span()?, bytes.byte()?);
    Ok(SemaphoreOptions {
        active,
        try_release,
        margin,
        min_hold,
        cool_down,
        max_revoking: (most >= 0.0).then_some(most as u32),
        revoke_grace,
        force: flags & 1 != 0,
        lease,
        ack_timeout,
        shed: flags & 2 != 0,
        drop_expired: flags & 4 != 0,
    })
}

/// The state of a semaphore after a call, if it exists, and the clock of Redis.
pub(super) fn read_head(
    key: &SemaphoreKey,
    text: &[u8],
) -> Result<(Option<SemaphoreHead>, i64), Unreadable> {
    let mut bytes = ByteReader(text);
    let present = bytes.byte()? == 1;
    let clock = bytes.number()? as i64;
    let (next, next_event) = (bytes.maybe_moment()?, bytes.maybe_moment()?);
    let (has_new_events, number) = (bytes.byte()? == 1, bytes.small()?);
    let head = SemaphoreHead { key: key.clone(), number, next, next_event, has_new_events };
    Ok((present.then_some(head), clock))
}

/// A semaphore as it is shown.
pub(super) fn read_info(
    key: &SemaphoreKey,
    mut bytes: ByteReader<'_>,
) -> Result<SemaphoreInfo, Unreadable> {
    let options = read_config(&mut bytes)?.shown();
    let (waiting, delayed) = (bytes.count()?, bytes.count()?);
    let (acquired, revoking) = (bytes.count()?, bytes.count()?);
    let (events, next) = (bytes.count()?, bytes.maybe_moment()?);
    let next_event = next.map(Timestamp::from_micros);
    let key = key.clone();
    Ok(SemaphoreInfo { key, options, waiting, delayed, acquired, revoking, events, next_event })
}

pub(super) fn read_standings(mut bytes: ByteReader<'_>) -> Result<Vec<MemberInfo>, Unreadable> {
    let mut standings = Vec::new();
    while bytes.has_more() {
        standings.push(read_standing(&mut bytes)?);
    }
    Ok(standings)
}

/// One page of members, at most `count`.
pub(super) fn read_members(
    mut bytes: ByteReader<'_>,
    count: usize,
) -> Result<MembersPage, Unreadable> {
    let (mut members, mut last) = (Vec::new(), None);
    while bytes.has_more() {
        let standing = read_standing(&mut bytes)?;
        last = Some(MemberCursor { priority: standing.priority, seq: bytes.count()? });
        members.push(Member { tube: TubeName::new(bytes.short_text()?).ok(), info: standing });
    }
    let next = last.filter(|_| members.len() == count);
    Ok(MembersPage { members, next })
}

fn read_standing(bytes: &mut ByteReader<'_>) -> Result<MemberInfo, Unreadable> {
    let task = TaskId(bytes.big()?);
    let (status, pinned) = (bytes.byte()?, bytes.byte()? == 1);
    let (priority, enqueued) = (priority(bytes)?, bytes.moment()?);
    let (until, grant) = (bytes.moment()?, bytes.count()?);
    let (granted, lease_until) = (bytes.moment()?, bytes.moment()?);
    let status = *Status::ALL
        .get(usize::from(status))
        .ok_or(Unreadable("a task of a semaphore has an unknown state"))?;
    let held = matches!(status, Status::Acquired | Status::TryRelease);
    Ok(MemberInfo {
        task,
        status,
        priority,
        enqueued,
        not_before: (status == Status::Delayed).then_some(until),
        grant: held.then_some(Grant(grant)),
        granted: held.then_some(granted),
        lease_until: (held && lease_until != Timestamp::NEVER).then_some(lease_until),
        pinned,
    })
}

pub(super) fn read_outcomes(bytes: ByteReader<'_>) -> Vec<GrantOutcome> {
    let outcome = |status: &u8| match status {
        0 => GrantOutcome::Done,
        1 => GrantOutcome::Stale,
        3 => GrantOutcome::NotAsked,
        _ => GrantOutcome::Missing,
    };
    bytes.rest().iter().map(outcome).collect()
}

/// The delivered events of a semaphore.
pub(super) fn read_events(
    (semaphore, key): (u32, &SemaphoreKey),
    mut bytes: ByteReader<'_>,
) -> Result<Vec<SemaphoreEvent>, Unreadable> {
    let mut events = Vec::new();
    while bytes.has_more() {
        let id = event_id(semaphore, bytes.big()?);
        let (attempt, kind, grant) = (bytes.small()?, bytes.byte()?, Grant(bytes.count()?));
        let (task, name) = (TaskId(bytes.big()?), bytes.short_text()?);
        let kind = EventKind::ALL.get(usize::from(kind)).copied();
        let kind = kind.ok_or(Unreadable("an event has an unknown kind"))?;
        let semaphore = key.clone();
        events.push(SemaphoreEvent {
            id,
            semaphore,
            tube: TubeName::new(name).ok(),
            task,
            grant,
            kind,
            attempt,
        });
    }
    Ok(events)
}

/// A due event: since when, its position among all semaphores, its number in its semaphore.
#[derive(Clone, Copy, Debug)]
pub(super) struct Due {
    pub at: f64,
    pub stamp: f64,
    pub number: u64,
}

pub(super) fn read_due(mut bytes: ByteReader<'_>) -> Result<Vec<Due>, Unreadable> {
    let mut due = Vec::new();
    while bytes.has_more() {
        due.push(Due { at: bytes.number()?, stamp: bytes.number()?, number: bytes.big()? });
    }
    Ok(due)
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskyard_core::limits::SEMAPHORES_MAX;

    #[test]
    fn an_event_id_contains_its_semaphore() {
        let last = (SEMAPHORES_MAX as u32, (1 << EVENT_BITS) - 1);
        for (semaphore, number) in [(1, 0), (7, 9), last] {
            let id = event_id(semaphore, number);
            assert_eq!(event_number(id), (semaphore, number));
            assert!(id.0 < 1 << 53, "it is exact in JSON");
        }
        assert_eq!(event_number(EventId(u64::MAX)).0, (u64::MAX >> EVENT_BITS) as u32);
    }

    #[test]
    fn a_configuration_survives_encoding() {
        let options = SemaphoreOptions {
            active: 7,
            try_release: 3,
            margin: Priority::new(0.5).unwrap(),
            max_revoking: Some(0),
            lease: Some(Span::from_secs(9)),
            force: true,
            drop_expired: true,
            ..SemaphoreOptions::default()
        };
        let bytes = config(&options);
        assert_eq!(read_config(&mut ByteReader(&bytes)).unwrap(), options);
        assert!(read_config(&mut ByteReader(&bytes[1..])).is_err());
    }
}
