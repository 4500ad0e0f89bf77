//! Parses what differs from the recording.

use clap::Args;
use taskyard_core::RateLimit;
use taskyard_core::classes::{Class, Limit, Rules};
use taskyard_trace::{ConsumerRule, PriorityChange, Scenario};

use crate::failure::UsageError;
use crate::tube::pace;
use crate::units;

/// The arguments that change the replay.
#[derive(Debug, Args)]
pub struct ScenarioArgs {
    /// Number of consumers: N for all tubes together, TUBE=N for one tube alone; may be repeated. A consumer of several tubes takes
    /// from them in turn. Tubes without a number have as many as in the recording, at each time.
    #[arg(long, value_name = "N|TUBE=N", value_parser = consumers)]
    consumers: Vec<ConsumerRule>,
    /// At most N tasks at once of a tube, of all tubes of a semaphore or, with --classes, of a class and longer ones; may be repeated.
    #[arg(long, value_name = "NAME=N", value_parser = limit)]
    limit: Vec<(String, u32)>,
    /// Rate limit of a tube, such as mail=100/1m or mail=none; may be repeated.
    #[arg(long, value_name = "TUBE=COUNT/PER[,burst=N]", value_parser = rate)]
    rate: Vec<(String, Option<RateLimit>)>,
    /// Priority of all tasks of a tube (mail=3), or of those that had another one (mail:5=3); the first that fits counts, and may be
    /// repeated.
    #[arg(long, value_name = "TUBE[:OLD]=NEW", value_parser = priority)]
    pri: Vec<PriorityChange>,
    /// Run the tasks in a pool with duration classes instead of taking them from tubes: name, longest run time and limit of each class,
    /// shortest first, or default. The first limit is 100%.
    #[arg(long, value_name = "NAME:TIME:LIMIT,...", value_parser = classes)]
    classes: Option<Rules>,
}

impl ScenarioArgs {
    /// What differs from the recording.
    pub fn scenario(&self) -> Result<Scenario, UsageError> {
        if self.consumers.iter().any(|rule| rule.count > CONSUMERS_MAX) {
            return Err(UsageError(format!(
                "--consumers is more than the maximum of {CONSUMERS_MAX}"
            )));
        }
        Ok(Scenario {
            consumers: self.consumers.clone(),
            limits: self.limit.clone(),
            rates: self.rate.clone(),
            priorities: self.pri.clone(),
            classes: self.classes.clone(),
        })
    }
}

/// The most consumers of a replay.
const CONSUMERS_MAX: u32 = 1_000_000;

/// Splits `NAME=VALUE` where the value can be parsed: a name may contain the sign, too.
fn assignment<T>(text: &str, parse: impl Fn(&str) -> Option<T>) -> Option<(String, T)> {
    let signs = text.match_indices('=').map(|(place, _)| place);
    let mut found = signs.filter_map(|place| Some((&text[..place], parse(&text[place + 1..])?)));
    found.find(|(name, _)| !name.is_empty()).map(|(name, value)| (name.to_owned(), value))
}

fn consumers(text: &str) -> Result<ConsumerRule, String> {
    if let Ok(count) = text.parse() {
        return Ok(ConsumerRule { tube: None, count });
    }
    let found = assignment(text, |value| value.parse().ok());
    let (tube, count) = found.ok_or("write a number for all tubes, or TUBE=N such as mail=8")?;
    Ok(ConsumerRule { tube: Some(tube), count })
}

fn limit(text: &str) -> Result<(String, u32), String> {
    let found = assignment(text, |value| value.parse().ok().filter(|limit| *limit > 0));
    found.ok_or_else(|| "write NAME=N with a number from 1 on, such as slow=2".into())
}

fn rate(text: &str) -> Result<(String, Option<RateLimit>), String> {
    let parse = |value: &str| pace::rate_or_none(value).ok().map(|rate| rate.0);
    let found = assignment(text, parse);
    found.ok_or_else(|| "write TUBE=COUNT/PER, such as mail=100/1m, or TUBE=none".into())
}

fn priority(text: &str) -> Result<PriorityChange, String> {
    let found = assignment(text, |value| value.parse().ok());
    let wrong = "write TUBE=NEW or TUBE:OLD=NEW, such as mail=3 or mail:5=3";
    let (tube, to) = found.ok_or(wrong)?;
    // No name of a tube contains a colon.
    let (tube, from) = match tube.split_once(':') {
        None => (tube, None),
        Some((tube, from)) => (tube.to_owned(), Some(from.parse().map_err(|_| wrong)?)),
    };
    Ok(PriorityChange { tube, from, to })
}

fn classes(text: &str) -> Result<Rules, String> {
    if text == "default" {
        return Ok(Rules::default());
    }
    let classes: Option<Vec<Class>> = text.split(',').map(class).collect();
    let wrong = "write the classes as NAME:TIME:LIMIT, such as fast:3s:100%,slow:30s:2";
    Rules::new(classes.ok_or(wrong)?).map_err(|error| error.to_string())
}

fn class(text: &str) -> Option<Class> {
    let mut parts = text.split(':');
    let (name, time, limit) = (parts.next()?, parts.next()?, parts.next()?);
    let limit = match limit.strip_suffix('%') {
        Some(percent) => Limit::Percent(percent.parse().ok()?),
        None => Limit::Count(limit.parse().ok()?),
    };
    let is_complete = parts.next().is_none() && !name.is_empty();
    is_complete.then_some(Class::new(name, units::span(time).ok()?, limit))
}

#[cfg(test)]
mod tests {
    use taskyard_core::Span;

    use super::*;

    #[test]
    fn numbers_are_parsed_with_the_names_before_them() {
        let rule =
            |tube: Option<&str>, count| ConsumerRule { tube: tube.map(str::to_owned), count };
        assert_eq!(consumers("8"), Ok(rule(None, 8)));
        assert_eq!(consumers("mail=8"), Ok(rule(Some("mail"), 8)));
        assert_eq!(consumers("a=b=8"), Ok(rule(Some("a=b"), 8)));
        assert_eq!(limit("slow=2"), Ok(("slow".into(), 2)));
        let parsed = rate("mail=100/60s,burst=20").unwrap();
        let expected = RateLimit { count: 100, per: Span::from_secs(60), burst: 20 };
        assert_eq!(parsed, ("mail".into(), Some(expected)));
        assert_eq!(rate("mail=none"), Ok(("mail".into(), None)));
        let change = |tube: &str, from, to| PriorityChange { tube: tube.into(), from, to };
        assert_eq!(priority("mail=3"), Ok(change("mail", None, 3)));
        assert_eq!(priority("mail:5=3"), Ok(change("mail", Some(5), 3)));
        for text in ["", "mail", "=3", "mail=", "mail=x", "mail=-1"] {
            assert!(consumers(text).is_err() && limit(text).is_err() && rate(text).is_err());
            assert!(priority(text).is_err(), "{text}");
        }
        assert!(limit("slow=0").is_err() && priority("mail:x=1").is_err());
    }

    #[test]
    fn classes_are_parsed() {
        assert_eq!(classes("default"), Ok(Rules::default()));
        let rules = classes("fast:3s:100%,slow:1m:2").unwrap();
        let expected = vec![
            Class::new("fast", Span::from_secs(3), Limit::Percent(100)),
            Class::new("slow", Span::from_secs(60), Limit::Count(2)),
        ];
        assert_eq!(rules.classes(), expected);
        for text in ["", "fast", "fast:3s", "fast:3s:100%:x", "fast:3s:5", "a:3s:100%,b:1s:50%"] {
            assert!(classes(text).is_err(), "{text}");
        }
    }
}
