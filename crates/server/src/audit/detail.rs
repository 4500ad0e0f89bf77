//! Describes the options of a command for its audit entry, never payloads.

use taskyard_core::{
    Command, ScheduleCommand, SemaphoreChange, SemaphoreCommand, Span, TubeChange,
};

/// The options of a command as text, if it has any that matter.
pub(super) fn detail_of(command: &Command) -> Option<String> {
    match command {
        Command::CreateTube { options, .. } => Some(format!("kind {}", options.kind.name())),
        Command::AlterTube { change, .. } => Some(tube_change(change)),
        Command::NameTube { name, .. } => Some(format!("new name '{name}'")),
        Command::Kick { count, .. } => Some(format!("at most {count}")),
        Command::KickTasks { reset_attempts: true, .. } => Some("reset_attempts".into()),
        Command::ConfigureSessions { ttr } => Some(format!("ttr {} s", ttr.as_secs_f64())),
        Command::Semaphore(SemaphoreCommand::Configure { change, .. }) => {
            Some(semaphore_change(change))
        }
        Command::Semaphore(SemaphoreCommand::Drop { force: true, .. }) => Some("force".into()),
        Command::Schedule(command) => match &**command {
            ScheduleCommand::Set { schedule, .. } => {
                Some(format!("tube '{}', {}", schedule.tube, schedule.timing))
            }
            _ => None,
        },
        _ => None,
    }
    .filter(|text| !text.is_empty())
}

fn tube_change(change: &TubeChange) -> String {
    let seconds = |span: &Option<Option<Span>>| span.map(|span| span.map(Span::as_secs_f64));
    let retry = change.retry.as_ref().map(|retry| retry.is_some());
    let rate = change
        .rate
        .as_ref()
        .map(|rate| rate.as_ref().map(|rate| (rate.count, rate.per.as_secs_f64())));
    let mut list = OptionList::default();
    list.add("paused", change.paused.map(Some));
    list.add("capacity", change.capacity);
    list.add("ttl", seconds(&change.ttl));
    list.add("ttr", seconds(&change.ttr));
    list.add("delay", seconds(&change.delay));
    list.add("pri", change.pri.map(Some));
    list.add("attempts_max", change.attempts_max);
    list.add("retry", retry.map(Some));
    list.add("rate", rate);
    list.add("keep_done", seconds(&change.keep_done));
    list.add("keep_done_max", change.keep_done_max.map(Some));
    list.0
}

fn semaphore_change(change: &SemaphoreChange) -> String {
    let seconds = |span: Option<Span>| span.map(|span| Some(span.as_secs_f64()));
    let maybe = |span: Option<Option<Span>>| span.map(|span| span.map(Span::as_secs_f64));
    let mut list = OptionList::default();
    list.add("active", change.active.map(Some));
    list.add("try_release", change.try_release.map(Some));
    list.add("margin", change.margin.map(Some));
    list.add("min_hold", seconds(change.min_hold));
    list.add("cool_down", seconds(change.cool_down));
    list.add("max_revoking", change.max_revoking);
    list.add("revoke_grace", seconds(change.revoke_grace));
    list.add("force", change.force.map(Some));
    list.add("lease", maybe(change.lease));
    list.add("ack_timeout", maybe(change.ack_timeout));
    list.add("shed", change.shed.map(Some));
    list.add("drop_expired", change.drop_expired.map(Some));
    list.0
}

/// Options with their values: `ttl 60, capacity none`.
#[derive(Default)]
struct OptionList(String);

impl OptionList {
    /// Adds an option that is given; `None` inside removes it.
    fn add<T: std::fmt::Debug>(&mut self, name: &str, value: Option<Option<T>>) {
        let Some(value) = value else { return };
        let separator = if self.0.is_empty() { "" } else { ", " };
        let value = value.map_or_else(|| "none".into(), |value| format!("{value:?}"));
        self.0.push_str(&format!("{separator}{name} {value}"));
    }
}

#[cfg(test)]
mod tests {
    use taskyard_core::{Body, NewTask, TubeName};

    use super::*;

    #[test]
    fn options_are_shown_and_payloads_are_not() {
        let tube = TubeName::new("mail").unwrap();
        let change = TubeChange {
            capacity: Some(None),
            ttl: Some(Some(Span::from_secs(60))),
            pri: Some(7),
            ..TubeChange::default()
        };
        let alter = Command::AlterTube { tube: tube.clone(), change };
        assert_eq!(detail_of(&alter).unwrap(), "capacity none, ttl 60.0, pri 7");
        assert_eq!(detail_of(&Command::DropTube { tube: tube.clone() }), None);
        let tasks = vec![NewTask::new(Body::new(b"\xa6secret"))];
        assert_eq!(detail_of(&Command::Put { tube, tasks, wait: Span::ZERO }), None);
    }
}
