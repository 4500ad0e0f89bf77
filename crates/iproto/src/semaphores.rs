//! Parses calls of semaphores, such as `queue.semaphore.enqueue(key, task, priority)`, and writes
//! their answers.

use taskyard_core::limits::BATCH_TASKS_MAX;
use taskyard_core::semaphore::{EnqueueItem, MemberInfo};
use taskyard_core::{
    EventId, Grant, GrantFinish, GrantItem, Member, MemberCursor, MemberGroup, MembersPage,
    SemaphoreChange, SemaphoreCommand, SemaphoreEvent, SemaphoreInfo, SemaphoreKey, SemaphoreReply,
    Span, TubeName,
};

use super::args::{ArgumentReader, list, seconds, task_id};
use super::faults::lua;
use super::options::{invalid_value, is_true, pairs};
use super::pack::{self, Out};
use super::reader::Value;
use super::reply::Fault;

/// How many events a call fetches by default.
const EVENTS_USUAL: usize = 100;
/// How many tasks of a semaphore a call lists by default.
const MEMBERS_USUAL: usize = 1000;

/// Parses a function of semaphores, without the prefix `semaphore.`; `None` if there is no such
/// function.
pub(super) fn parse(
    function: &str,
    mut args: ArgumentReader<'_>,
) -> Option<Result<SemaphoreCommand, Fault>> {
    let args = &mut args;
    let command = match function {
        "create" => configure(args, true),
        "set" => configure(args, false),
        "enqueue" => enqueue(args),
        "enqueue_many" => enqueue_many(args),
        "release" => finish(args, |_| Ok(GrantFinish::Release)),
        "yield" => finish(args, |_| Ok(GrantFinish::Yield)),
        "decline" => finish(args, |_| Ok(GrantFinish::Decline)),
        "extend" => finish(args, extension),
        "release_many" => release_many(args),
        "look" => peek(args),
        "holders" => members(args, MemberGroup::Holders),
        "waiting" => members(args, MemberGroup::Waiting),
        "drop" => drop_one(args),
        "list" => Ok(SemaphoreCommand::List { key: None }),
        "show" => key(args).map(|key| SemaphoreCommand::List { key: Some(key) }),
        "events" => events(args),
        "ack" => acknowledge(args),
        _ => return None,
    };
    Some(command)
}

fn key(args: &mut ArgumentReader<'_>) -> Result<SemaphoreKey, Fault> {
    key_of(&args.value()?)
}

fn key_of(value: &Value<'_>) -> Result<SemaphoreKey, Fault> {
    let text = match value {
        Value::Str(bytes) | Value::Bin(bytes) => std::str::from_utf8(bytes).ok(),
        _ => None,
    };
    let text = text.ok_or_else(|| lua("the key of a semaphore must be text"))?;
    SemaphoreKey::new(text).map_err(|error| lua(error.to_string()))
}

fn priority(value: &Value<'_>) -> Result<f64, Fault> {
    value.number().ok_or_else(|| lua("a priority must be a number"))
}

fn grant(args: &mut ArgumentReader<'_>) -> Result<Option<Grant>, Fault> {
    match args.value()? {
        Value::Nil => Ok(None),
        value => {
            let number = value.unsigned().map(Grant);
            number.map(Some).ok_or_else(|| lua("the number of a grant must be a whole number"))
        }
    }
}

fn configure(args: &mut ArgumentReader<'_>, only_new: bool) -> Result<SemaphoreCommand, Fault> {
    let key = key(args)?;
    let mut change = SemaphoreChange::default();
    pairs(args.raw()?, |name, value| {
        let whole = || integer(name, &value);
        let span = || seconds(&value).map(Option::unwrap_or_default);
        // False removes the option.
        let settable = || -> Result<Option<Span>, Fault> {
            if value == Value::Bool(false) { Ok(None) } else { seconds(&value) }
        };
        match name {
            b"active" => change.active = Some(whole()?),
            b"try_release" => change.try_release = Some(whole()?),
            b"margin" => change.margin = Some(priority(&value)?),
            b"max_revoking" => {
                let most = if value == Value::Bool(false) { None } else { Some(whole()?) };
                change.max_revoking = Some(most);
            }
            b"min_hold" => change.min_hold = Some(span()?),
            b"cool_down" => change.cool_down = Some(span()?),
            b"revoke_grace" => change.revoke_grace = Some(span()?),
            b"lease" => change.lease = Some(settable()?),
            b"ack_timeout" => change.ack_timeout = Some(settable()?),
            b"force" => change.force = Some(is_true(&value)),
            b"shed" => change.shed = Some(is_true(&value)),
            b"drop_expired" => change.drop_expired = Some(is_true(&value)),
            // A typing error must be reported here; its effect would be noticed much later.
            _ => {
                let name = String::from_utf8_lossy(name);
                return Err(lua(format!(
                    "a semaphore has no option {}",
                    super::faults::shortened(&name)
                )));
            }
        }
        Ok(())
    })?;
    Ok(SemaphoreCommand::Configure { key, change: Box::new(change), only_new })
}

fn integer(name: &[u8], value: &Value<'_>) -> Result<i64, Fault> {
    let number = match *value {
        Value::Uint(number) => i64::try_from(number).ok(),
        Value::Int(number) => Some(number),
        _ => None,
    };
    number.ok_or_else(|| invalid_value(&String::from_utf8_lossy(name), value))
}

fn enqueue(args: &mut ArgumentReader<'_>) -> Result<SemaphoreCommand, Fault> {
    let key = key(args)?;
    let wish = EnqueueItem { task: args.id(1)?, priority: priority(&args.value()?)? };
    Ok(SemaphoreCommand::Enqueue { key, entries: vec![wish] })
}

fn enqueue_many(args: &mut ArgumentReader<'_>) -> Result<SemaphoreCommand, Fault> {
    let key = key(args)?;
    let (mut items, _) = many(args, "the second argument of enqueue_many")?;
    let mut entries = Vec::new();
    while let Some(item) = items.raw()? {
        let (mut item, _) = list(item, "each entry of enqueue_many", 2)?;
        entries.push(EnqueueItem { task: item.id(1)?, priority: priority(&item.value()?)? });
    }
    Ok(SemaphoreCommand::Enqueue { key, entries })
}

fn many<'a>(
    args: &mut ArgumentReader<'a>,
    what: &str,
) -> Result<(ArgumentReader<'a>, usize), Fault> {
    list(args.raw()?.unwrap_or_default(), what, BATCH_TASKS_MAX)
}

fn finish(
    args: &mut ArgumentReader<'_>,
    how: impl FnOnce(&mut ArgumentReader<'_>) -> Result<GrantFinish, Fault>,
) -> Result<SemaphoreCommand, Fault> {
    let (key, task) = (key(args)?, args.id(1)?);
    let finish = how(args)?;
    let items = vec![GrantItem { task, grant: grant(args)?, finish }];
    Ok(SemaphoreCommand::Finish { key, items })
}

fn extension(args: &mut ArgumentReader<'_>) -> Result<GrantFinish, Fault> {
    let time = args.seconds()?.ok_or_else(|| lua("extend needs a number of seconds"))?;
    Ok(GrantFinish::Extend(time))
}

/// Tasks, or pairs of a task and its grant.
fn release_many(args: &mut ArgumentReader<'_>) -> Result<SemaphoreCommand, Fault> {
    let key = key(args)?;
    let (mut entries, _) = many(args, "the second argument of release_many")?;
    let mut items = Vec::new();
    while let Some(entry) = entries.raw()? {
        let (task, grant) = match list(entry, "an entry of release_many", 2) {
            Ok((mut pair, _)) => (pair.id(1)?, grant(&mut pair)?),
            Err(_) => {
                let value = super::reader::ValueReader::new(entry).value();
                let value = value.map_err(|_| super::faults::malformed())?;
                (task_id(&value, 1)?, None)
            }
        };
        items.push(GrantItem { task, grant, finish: GrantFinish::Release });
    }
    Ok(SemaphoreCommand::Finish { key, items })
}

fn peek(args: &mut ArgumentReader<'_>) -> Result<SemaphoreCommand, Fault> {
    let key = key(args)?;
    let (mut items, count) = many(args, "the second argument of look")?;
    let tasks = (0..count).map(|_| task_id(&items.value()?, 1)).collect::<Result<_, _>>()?;
    Ok(SemaphoreCommand::Peek { key, tasks })
}

/// The number of tasks, and the cursor of the previous page.
fn members(args: &mut ArgumentReader<'_>, part: MemberGroup) -> Result<SemaphoreCommand, Fault> {
    let key = key(args)?;
    let count = count_of(args, MEMBERS_USUAL, "the number of tasks")?;
    let after = match args.value()? {
        Value::Nil => None,
        Value::Str(bytes) => {
            let cursor = String::from_utf8_lossy(bytes).parse::<MemberCursor>();
            Some(cursor.map_err(|error| lua(error.to_string()))?)
        }
        _ => return Err(lua("the end of a page must be text")),
    };
    Ok(SemaphoreCommand::Members { key, part, after, count })
}

/// With `{force = true}` also while tasks hold grants or wait.
fn drop_one(args: &mut ArgumentReader<'_>) -> Result<SemaphoreCommand, Fault> {
    let (key, mut force) = (key(args)?, false);
    pairs(args.raw()?, |name, value| {
        if name != b"force" {
            let name = String::from_utf8_lossy(name);
            return Err(lua(format!("a drop has no option {}", super::faults::shortened(&name))));
        }
        force = is_true(&value);
        Ok(())
    })?;
    Ok(SemaphoreCommand::Drop { key, force })
}

fn count_of(args: &mut ArgumentReader<'_>, usual: usize, what: &str) -> Result<usize, Fault> {
    match args.value()? {
        Value::Nil => Ok(usual),
        value => {
            let count = value.unsigned().and_then(|count| usize::try_from(count).ok());
            count.ok_or_else(|| lua(format!("{what} must be a whole number")))
        }
    }
}

fn events(args: &mut ArgumentReader<'_>) -> Result<SemaphoreCommand, Fault> {
    let key = match args.value()? {
        Value::Nil => None,
        value => Some(key_of(&value)?),
    };
    let count = count_of(args, EVENTS_USUAL, "the number of events")?;
    let wait = args.seconds()?.unwrap_or_default();
    Ok(SemaphoreCommand::Events { key, count, wait })
}

fn acknowledge(args: &mut ArgumentReader<'_>) -> Result<SemaphoreCommand, Fault> {
    let (mut items, count) = many(args, "the argument of ack")?;
    let number = |items: &mut ArgumentReader<'_>| {
        let number = items.value()?.unsigned().map(EventId);
        number.ok_or_else(|| lua("the number of an event must be a whole number"))
    };
    let events = (0..count).map(|_| number(&mut items)).collect::<Result<_, _>>()?;
    Ok(SemaphoreCommand::Acknowledge { events })
}

/// Whether the answer is a list.
pub(super) const fn is_list(reply: &SemaphoreReply) -> bool {
    !matches!(reply, SemaphoreReply::Acknowledged(_) | SemaphoreReply::Dropped)
}

/// Writes the rows of a list of rows, if there are some: the old shape has each row by itself.
pub(super) fn rows(reply: &SemaphoreReply) -> Option<impl Fn(&mut Out) + '_> {
    let SemaphoreReply::MemberInfos(infos) = reply else { return None };
    let write = |out: &mut Out| {
        pack::array32(out, infos.len());
        infos.iter().for_each(|info| write_member_info(out, info));
    };
    (!infos.is_empty()).then_some(write)
}

/// Writes the reply of a semaphore: rows of plain values, in the order that docs/semaphores.md
/// lists.
pub(super) fn write(out: &mut Out, reply: &SemaphoreReply) {
    match reply {
        SemaphoreReply::Semaphores(infos) => {
            pack::array(out, infos.len());
            infos.iter().for_each(|info| write_info(out, info));
        }
        SemaphoreReply::MemberInfos(infos) => {
            pack::array(out, infos.len());
            infos.iter().for_each(|info| write_member_info(out, info));
        }
        SemaphoreReply::Finished(outcomes) => {
            pack::array(out, outcomes.len());
            outcomes.iter().for_each(|outcome| pack::str(out, outcome.name()));
        }
        SemaphoreReply::Events(events) => {
            pack::array(out, events.len());
            events.iter().for_each(|event| write_event(out, event));
        }
        SemaphoreReply::Acknowledged(count) => pack::uint(out, *count),
        SemaphoreReply::Members(page) => write_page(out, page),
        SemaphoreReply::Dropped => pack::bool(out, true),
    }
}

fn write_info(out: &mut Out, info: &SemaphoreInfo) {
    let numbers = [
        ("active", u64::from(info.options.active)),
        ("try_release", u64::from(info.options.try_release)),
        ("waiting", info.waiting),
        ("delayed", info.delayed),
        ("acquired", info.acquired),
        ("revoking", info.revoking),
        ("events", info.events),
    ];
    pack::map(out, 1 + numbers.len());
    pack::str(out, "key");
    pack::str(out, info.key.as_str());
    for (name, number) in numbers {
        pack::str(out, name);
        pack::uint(out, number);
    }
}

fn write_page(out: &mut Out, page: &MembersPage) {
    pack::array(out, 2);
    pack::array(out, page.members.len());
    for Member { tube, info } in &page.members {
        pack::array(out, 5);
        write_member_info_fields(out, info);
        match tube {
            Some(tube) => pack::str(out, tube.as_str()),
            None => pack::nil(out),
        }
    }
    match page.next {
        Some(next) => pack::str(out, &next.to_string()),
        None => pack::nil(out),
    }
}

fn write_member_info(out: &mut Out, info: &MemberInfo) {
    pack::array(out, 4);
    write_member_info_fields(out, info);
}

fn write_member_info_fields(out: &mut Out, info: &MemberInfo) {
    pack::uint(out, info.task.0);
    pack::str(out, info.status.name());
    pack::float(out, info.priority.value());
    match info.grant {
        Some(grant) => pack::uint(out, grant.0),
        None => pack::nil(out),
    }
}

fn write_event(out: &mut Out, event: &SemaphoreEvent) {
    pack::array(out, 7);
    pack::uint(out, event.id.0);
    pack::str(out, event.semaphore.as_str());
    pack::uint(out, event.task.0);
    pack::uint(out, event.grant.0);
    pack::str(out, event.kind.name());
    pack::uint(out, u64::from(event.attempt));
    match event.tube.as_ref().map(TubeName::as_str) {
        Some(tube) => pack::str(out, tube),
        None => pack::nil(out),
    }
}
