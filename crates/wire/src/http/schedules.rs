//! Schedules: setting and showing them, and their next times.

use serde::{Deserialize, Serialize};
use taskyard_core::schedule::TimingRule;
use taskyard_core::{
    CatchUp, Error, Overlap, Result, ScheduleName, StoredSchedule, Timestamp, TubeName,
};

use super::is_false;
use super::put::PutTask;
use super::seconds::{moment, moment_of, optional_moment, seconds_of, span};
use crate::payload::{Packed, Payload};

/// The time zone of a cron expression without one.
const ZONE_DEFAULT: &str = "UTC";

/// A schedule to create, or to replace with: `cron` or `every`, and the task that is put at each
/// time. Times are seconds, moments count from the Unix epoch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ScheduleRequest {
    /// The tube that tasks are put into; it must exist.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 128))]
    pub tube: String,
    /// The task to put.
    pub task: PutTask,
    /// When to put it: a cron expression with five fields (minute hour day month weekday), or six
    /// with the second first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// The time zone of `cron`, such as Europe/Berlin; UTC when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// When to put it: seconds from each time to the next, at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub every: Option<f64>,
    /// The first time of `every`; without it, times are counted from the beginning of 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<f64>,
    /// What happens with times that were missed; `none` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub catch_up: Option<CatchUpWord>,
    /// Whether a time fires while the task of an earlier time exists; `allow` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlap: Option<OverlapWord>,
    /// No time after this moment fires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<f64>,
    /// Whether the schedule is paused. When absent, a replaced schedule stays as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// Refuse to replace a schedule.
    #[serde(default, skip_serializing_if = "is_false")]
    pub only_new: bool,
}

/// What happens with times that passed while no server fired them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum CatchUpWord {
    /// They are skipped.
    #[default]
    None,
    /// The last of them fires.
    Last,
    /// All of them fire, at most 1,000.
    All,
}

/// Whether a time fires while a task of an earlier time exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum OverlapWord {
    /// It fires.
    #[default]
    Allow,
    /// It is skipped.
    Skip,
}

/// A schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ScheduleAnswer {
    /// Its name.
    pub name: String,
    /// The tube that tasks are put into.
    pub tube: String,
    /// The task to put.
    pub task: PutTask,
    /// The cron expression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// The time zone of the cron expression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Seconds from each time to the next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<f64>,
    /// The first time of `every`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<f64>,
    /// What happens with times that were missed.
    pub catch_up: CatchUpWord,
    /// Whether a time fires while the task of an earlier time exists.
    pub overlap: OverlapWord,
    /// No time after this moment fires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<f64>,
    /// Whether it is paused.
    pub paused: bool,
    /// Its next time; absent if there is none any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<f64>,
    /// When it last added a task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<f64>,
    /// How many tasks it added.
    pub fired: u64,
    /// How many times were skipped.
    pub skipped: u64,
    /// Why this server could not add its task the last time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Whether this request created it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub created: bool,
}

/// One page of schedules.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SchedulesAnswer {
    /// By name.
    pub schedules: Vec<ScheduleAnswer>,
    /// The `after` of the next page; absent in the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// The next times of a schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NextTimesAnswer {
    /// The times, in order.
    pub times: Vec<f64>,
}

impl ScheduleRequest {
    /// The request for this schedule, on the client's side.
    pub fn new(schedule: &StoredSchedule, only_new: bool) -> Result<Self> {
        let timing = TimingFields::new(&schedule.timing)?;
        Ok(ScheduleRequest {
            tube: schedule.tube.as_str().to_owned(),
            task: PutTask::new(&schedule.template),
            cron: timing.cron,
            zone: timing.zone,
            every: timing.every,
            start: timing.start,
            catch_up: Some(schedule.catch_up.into()),
            overlap: Some(schedule.overlap.into()),
            until: schedule.until.and_then(moment_of),
            paused: Some(schedule.paused),
            only_new,
        })
    }

    /// The schedule, on the server's side. It is paused only if the request says so.
    pub fn into_schedule(self, name: ScheduleName) -> Result<StoredSchedule> {
        let timing = timing_rule(self.cron, self.zone, self.every, self.start)?;
        let tube = TubeName::new(&self.tube).map_err(|error| refused("tube", &error))?;
        if self.task.at.is_some() {
            let text = "'task' is refused: 'at' would be the same for all its tasks; use 'delay'";
            return Err(Error::Invalid(text.into()));
        }
        let schedule = StoredSchedule {
            name,
            tube,
            template: self.task.into_new_task().map_err(|error| refused("task", &error))?,
            timing: timing.to_string().into(),
            catch_up: self.catch_up.unwrap_or_default().into(),
            overlap: self.overlap.unwrap_or_default().into(),
            until: optional_moment("until", self.until)?,
            paused: self.paused.unwrap_or(false),
            next: None,
            last: None,
            fired: 0,
            skipped: 0,
        };
        schedule.overlap_key().map_err(|error| refused("overlap", &error))?;
        Ok(schedule)
    }
}

fn refused(field: &str, error: &Error) -> Error {
    Error::Invalid(format!("'{field}' is refused: {error}"))
}

/// The rule that these fields give.
fn timing_rule(
    cron: Option<String>,
    zone: Option<String>,
    every: Option<f64>,
    start: Option<f64>,
) -> Result<TimingRule> {
    let invalid = |text: &str| Err(Error::Invalid(text.into()));
    match (cron, every) {
        (Some(_), Some(_)) => invalid("both 'cron' and 'every' are given; use one of them"),
        (None, None) => invalid("a schedule needs 'cron' or 'every'"),
        (Some(_), None) if start.is_some() => invalid("'start' needs 'every'; leave it out"),
        (None, Some(_)) if zone.is_some() => invalid("'zone' needs 'cron'; leave it out"),
        (Some(cron), None) => {
            let zone = zone.unwrap_or_else(|| ZONE_DEFAULT.into());
            if zone.is_empty() || zone.contains(' ') {
                return Err(Error::Invalid(format!(
                    "'zone' is refused: there is no time zone '{zone}'"
                )));
            }
            Ok(TimingRule::Cron { cron: cron.into(), zone: zone.into() })
        }
        (None, Some(every)) => {
            let start = start.map(|start| moment("start", start)).transpose()?;
            Ok(TimingRule::Every { every: span("every", every)?, start })
        }
    }
}

/// The fields of a rule.
struct TimingFields {
    cron: Option<String>,
    zone: Option<String>,
    every: Option<f64>,
    start: Option<f64>,
}

impl TimingFields {
    fn new(timing: &str) -> Result<Self> {
        let rule = TimingRule::read(timing).map_err(|error| Error::Invalid(error.to_string()))?;
        Ok(match rule {
            TimingRule::Cron { cron, zone } => TimingFields {
                cron: Some(cron.as_ref().to_owned()),
                zone: Some(zone.as_ref().to_owned()),
                every: None,
                start: None,
            },
            TimingRule::Every { every, start } => TimingFields {
                cron: None,
                zone: None,
                every: Some(seconds_of(every)),
                start: start.map(Timestamp::as_secs_f64),
            },
        })
    }
}

impl ScheduleAnswer {
    /// The answer that shows this schedule. A rule that cannot be read is shown as `cron`.
    pub fn new(schedule: &StoredSchedule, error: Option<String>) -> Self {
        let timing = TimingFields::new(&schedule.timing).unwrap_or_else(|_| TimingFields {
            cron: Some(schedule.timing.as_ref().to_owned()),
            zone: None,
            every: None,
            start: None,
        });
        ScheduleAnswer {
            name: schedule.name.as_str().to_owned(),
            tube: schedule.tube.as_str().to_owned(),
            task: shown_task(schedule),
            cron: timing.cron,
            zone: timing.zone,
            every: timing.every,
            start: timing.start,
            catch_up: schedule.catch_up.into(),
            overlap: schedule.overlap.into(),
            until: schedule.until.and_then(moment_of),
            paused: schedule.paused,
            next: schedule.next.and_then(moment_of),
            last: schedule.last.and_then(moment_of),
            fired: schedule.fired,
            skipped: schedule.skipped,
            error,
            created: false,
        }
    }

    /// The schedule, on the client's side.
    pub fn into_schedule(self) -> Result<StoredSchedule> {
        let name = ScheduleName::new(&self.name)?;
        let timing = timing_rule(self.cron, self.zone, self.every, self.start)?;
        Ok(StoredSchedule {
            name,
            tube: TubeName::new(&self.tube)?,
            template: self.task.into_new_task()?,
            timing: timing.to_string().into(),
            catch_up: self.catch_up.into(),
            overlap: self.overlap.into(),
            until: optional_moment("until", self.until)?,
            paused: self.paused,
            next: optional_moment("next", self.next)?,
            last: optional_moment("last", self.last)?,
            fired: self.fired,
            skipped: self.skipped,
        })
    }
}

/// The task of a schedule, with payload and meta as JSON if that can represent them.
fn shown_task(schedule: &StoredSchedule) -> PutTask {
    let split = |bytes: &[u8]| match Payload::from_msgpack(bytes) {
        Ok(payload) => (Some(payload), None),
        Err(_) => (None, Some(Packed::new(bytes))),
    };
    let body = &schedule.template.body;
    let (data, data_base64) = split(body.payload());
    let (meta, meta_base64) = body.meta().map_or((None, None), split);
    PutTask { data, data_base64, meta, meta_base64, ..PutTask::new(&schedule.template) }
}

impl From<CatchUpWord> for CatchUp {
    fn from(word: CatchUpWord) -> Self {
        match word {
            CatchUpWord::None => CatchUp::None,
            CatchUpWord::Last => CatchUp::Last,
            CatchUpWord::All => CatchUp::All,
        }
    }
}

impl From<CatchUp> for CatchUpWord {
    fn from(catch_up: CatchUp) -> Self {
        match catch_up {
            CatchUp::None => CatchUpWord::None,
            CatchUp::Last => CatchUpWord::Last,
            CatchUp::All => CatchUpWord::All,
        }
    }
}

impl From<OverlapWord> for Overlap {
    fn from(word: OverlapWord) -> Self {
        match word {
            OverlapWord::Allow => Overlap::Allow,
            OverlapWord::Skip => Overlap::Skip,
        }
    }
}

impl From<Overlap> for OverlapWord {
    fn from(overlap: Overlap) -> Self {
        match overlap {
            Overlap::Allow => OverlapWord::Allow,
            Overlap::Skip => OverlapWord::Skip,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(text: &str) -> Result<StoredSchedule> {
        let request: ScheduleRequest = super::super::parse(text.as_bytes())?;
        request.into_schedule(ScheduleName::new("daily")?)
    }

    #[test]
    fn a_request_becomes_a_schedule_and_back() {
        for text in [
            r#"{"tube":"mail","task":{"data":{"a":[1]},"pri":3,"meta":{"k":1}},"cron":"0 9 * * 1-5","zone":"Europe/Berlin"}"#,
            r#"{"tube":"mail","task":{"data":1},"every":300,"start":1700000000.5,"catch_up":"all","overlap":"skip","until":1800000000}"#,
        ] {
            let schedule = request(text).expect(text);
            let again = ScheduleRequest::new(&schedule, true).unwrap();
            assert!(again.only_new);
            assert_eq!(again.into_schedule(schedule.name.clone()), Ok(schedule.clone()));
            let shown = ScheduleAnswer::new(&schedule, None);
            let json = serde_json::to_string(&shown).unwrap();
            let parsed: ScheduleAnswer = super::super::parse_answer(json.as_bytes()).unwrap();
            assert_eq!(parsed.into_schedule(), Ok(schedule));
        }
        let cron = request(r#"{"tube":"mail","task":{"data":1},"cron":"@daily"}"#).unwrap();
        assert_eq!(&*cron.timing, "cron UTC @daily");
    }

    #[test]
    fn wrong_fields_are_named() {
        for (fields, name) in [
            (r#""every":5,"cron":"@daily""#, "'cron'"),
            ("", "'cron'"),
            (r#""every":5,"zone":"UTC""#, "'zone'"),
            (r#""cron":"@daily","start":5"#, "'start'"),
            (r#""cron":"@daily","zone":"no zone""#, "'zone'"),
            (r#""every":-5"#, "'every'"),
            (r#""every":5,"start":-5"#, "'start'"),
            (r#""every":5,"until":-5"#, "'until'"),
            (r#""every":5,"catch_up":"some""#, "some"),
        ] {
            let comma = if fields.is_empty() { "" } else { "," };
            let text = format!(r#"{{"tube":"mail","task":{{"data":1}}{comma}{fields}}}"#);
            let error = request(&text).expect_err(&text).to_string();
            assert!(error.contains(name), "{text}: {error}");
        }
        let task = |task: &str| format!(r#"{{"tube":"mail","task":{task},"every":5}}"#);
        assert!(request(&task("{}")).unwrap_err().to_string().starts_with("'task' is refused"));
        assert!(request(&task(r#"{"data":1,"at":5}"#)).unwrap_err().to_string().contains("'at'"));
    }
}
