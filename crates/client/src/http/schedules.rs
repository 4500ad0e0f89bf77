//! Sends commands for schedules to a server over HTTP.

use std::time::Duration;

use hyper::Method;
use taskyard_core::{
    Placed, Reply, ScheduleCommand, ScheduleName, ScheduleReply, StoredSchedule, Timestamp,
};
use taskyard_wire::http::{
    NextTimesAnswer, NothingAnswer, PutAnswer, ScheduleAnswer, ScheduleRequest, SchedulesAnswer,
};

use super::connection_pool::HttpCall;
use super::{Http, not_over_http, refused};
use crate::error::HttpError;

impl Http {
    /// Executes one command for schedules.
    pub(super) async fn execute_schedule_command(
        &self,
        command: ScheduleCommand,
    ) -> Result<Reply, HttpError> {
        let verb = command.verb();
        Ok(Reply::Schedule(match command {
            ScheduleCommand::Set { schedule, only_new, keep_paused } => {
                let mut request = ScheduleRequest::new(&schedule, only_new).map_err(refused)?;
                request.paused = request.paused.filter(|_| !keep_paused);
                ScheduleReply::Set(self.set_schedule(&schedule.name, &request).await?.created)
            }
            ScheduleCommand::Get { name } => shown([self.schedule(&name).await?])?,
            ScheduleCommand::List { after, limit } => {
                shown(self.schedules(after.as_ref(), limit).await?.schedules)?
            }
            ScheduleCommand::Remove { name } => {
                let target = self.target(&["schedules", name.as_str()]);
                let call = HttpCall::new(Method::DELETE, target);
                let _: NothingAnswer = self.send(call, Duration::ZERO, verb).await?;
                ScheduleReply::Removed
            }
            ScheduleCommand::Pause { name, paused } => {
                let action = if paused { "pause" } else { "resume" };
                let target = self.target(&["schedules", name.as_str(), action]);
                let call = HttpCall::new(Method::POST, target).json(&NothingAnswer {});
                shown([self.send::<ScheduleAnswer>(call, Duration::ZERO, verb).await?])?
            }
            ScheduleCommand::Due { .. } | ScheduleCommand::Fire { .. } => {
                return Err(refused(not_over_http(verb)));
            }
        }))
    }

    /// Creates or replaces a schedule; returns it as the server shows it.
    pub async fn set_schedule(
        &self,
        name: &ScheduleName,
        request: &ScheduleRequest,
    ) -> Result<ScheduleAnswer, HttpError> {
        let target = self.target(&["schedules", name.as_str()]);
        let call = HttpCall::new(Method::PUT, target).json(request);
        self.send(call, Duration::ZERO, "schedule_set").await
    }

    /// One schedule, as the server shows it.
    pub async fn schedule(&self, name: &ScheduleName) -> Result<ScheduleAnswer, HttpError> {
        let target = self.target(&["schedules", name.as_str()]);
        self.send(HttpCall::new(Method::GET, target), Duration::ZERO, "schedule_get").await
    }

    /// One page of schedules by name, as the server shows them.
    pub async fn schedules(
        &self,
        after: Option<&ScheduleName>,
        count: usize,
    ) -> Result<SchedulesAnswer, HttpError> {
        let mut target = self.target(&["schedules"]).with("count", &count.to_string());
        if let Some(after) = after {
            target = target.with("after", after.as_str());
        }
        self.send(HttpCall::new(Method::GET, target), Duration::ZERO, "schedule_list").await
    }

    /// Puts the task of a schedule now; its times stay.
    pub async fn run_schedule(&self, name: &ScheduleName) -> Result<Vec<Placed>, HttpError> {
        let target = self.target(&["schedules", name.as_str(), "run"]);
        let call = HttpCall::new(Method::POST, target).json(&NothingAnswer {});
        let answer: PutAnswer = self.send(call, Duration::ZERO, "schedule_run").await?;
        Ok(answer.into_placed())
    }

    /// The next times of a schedule.
    pub async fn next_times(
        &self,
        name: &ScheduleName,
        count: usize,
    ) -> Result<Vec<Timestamp>, HttpError> {
        let target = self.target(&["schedules", name.as_str(), "next"]);
        let call = HttpCall::new(Method::GET, target.with("count", &count.to_string()));
        let answer: NextTimesAnswer = self.send(call, Duration::ZERO, "schedule_next").await?;
        Ok(answer.times.into_iter().filter_map(Timestamp::from_secs_f64).collect())
    }
}

fn shown(answers: impl IntoIterator<Item = ScheduleAnswer>) -> Result<ScheduleReply, HttpError> {
    let schedules = answers.into_iter().map(ScheduleAnswer::into_schedule);
    let schedules: Result<Vec<StoredSchedule>, _> = schedules.collect();
    Ok(ScheduleReply::Schedules(schedules.map_err(refused)?))
}
