//! Sends semaphore commands to a server over HTTP.

use std::time::Duration;

use hyper::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;
use taskyard_core::{Reply, SemaphoreCommand, SemaphoreKey, SemaphoreReply, Span};
use taskyard_wire::http::{
    AcknowledgeRequest, AcknowledgedAnswer, EnqueueRequest, EventAnswer, EventsAnswer,
    EventsRequest, GrantsAnswer, GrantsRequest, MemberInfoAnswer, MemberInfosAnswer, MembersAnswer,
    NothingAnswer, SemaphoreAnswer, SemaphorePeekRequest, SemaphoreRequest, SemaphoresAnswer,
};

use super::connection_pool::HttpCall;
use super::{Http, refused, split_wait};
use crate::error::HttpError;

impl Http {
    /// Executes one semaphore command.
    pub(super) async fn execute_semaphore_command(
        &self,
        command: SemaphoreCommand,
    ) -> Result<Reply, HttpError> {
        // JSON cannot represent NaN and infinity: they would arrive as null.
        command.check().map_err(refused)?;
        let verb = command.verb();
        Ok(Reply::Semaphore(match command {
            SemaphoreCommand::Configure { key, change, only_new } => {
                let request = SemaphoreRequest::new(&change, only_new);
                let target = self.target(&["semaphores", key.as_str()]);
                let request = HttpCall::new(Method::PUT, target).json(&request);
                infos(vec![self.send(request, Duration::ZERO, verb).await?])?
            }
            SemaphoreCommand::Enqueue { key, entries } => {
                let request = EnqueueRequest::new(&entries);
                member_infos(self.post_semaphore(&key, "enqueue", &request, verb).await?)?
            }
            SemaphoreCommand::Peek { key, tasks } => {
                let request =
                    SemaphorePeekRequest { tasks: tasks.iter().map(|task| task.0).collect() };
                member_infos(self.post_semaphore(&key, "peek", &request, verb).await?)?
            }
            SemaphoreCommand::Finish { key, items } => {
                let request = GrantsRequest::new(&items);
                let answer: GrantsAnswer =
                    self.post_semaphore(&key, "finish", &request, verb).await?;
                SemaphoreReply::Finished(answer.into_outcomes())
            }
            SemaphoreCommand::Members { key, part, after, count } => {
                let mut target = self.target(&["semaphores", key.as_str(), part.name()]);
                target = target.with("count", &count.to_string());
                if let Some(after) = after {
                    target = target.with("after", &after.to_string());
                }
                let answer: MembersAnswer =
                    self.send(HttpCall::new(Method::GET, target), Duration::ZERO, verb).await?;
                SemaphoreReply::Members(answer.into_page().map_err(refused)?)
            }
            SemaphoreCommand::Drop { key, force } => {
                let mut target = self.target(&["semaphores", key.as_str()]);
                if force {
                    target = target.with("force", "true");
                }
                let request = HttpCall::new(Method::DELETE, target);
                let _: NothingAnswer = self.send(request, Duration::ZERO, verb).await?;
                SemaphoreReply::Dropped
            }
            SemaphoreCommand::List { key } => infos(self.semaphores(key.as_ref()).await?)?,
            SemaphoreCommand::Events { key, count, wait } => {
                self.events(key.as_ref(), count, wait, verb).await?
            }
            SemaphoreCommand::Acknowledge { events } => {
                let target = self.target(&["semaphore-events", "ack"]);
                let request =
                    HttpCall::new(Method::POST, target).json(&AcknowledgeRequest::new(&events));
                let answer: AcknowledgedAnswer = self.send(request, Duration::ZERO, verb).await?;
                SemaphoreReply::Acknowledged(answer.acknowledged)
            }
        }))
    }

    /// One semaphore or all semaphores, as the server shows them.
    pub async fn semaphores(
        &self,
        key: Option<&SemaphoreKey>,
    ) -> Result<Vec<SemaphoreAnswer>, HttpError> {
        let Some(key) = key else {
            let request = HttpCall::new(Method::GET, self.target(&["semaphores"]));
            let answer: SemaphoresAnswer = self.send(request, Duration::ZERO, "semaphores").await?;
            return Ok(answer.semaphores);
        };
        let request = HttpCall::new(Method::GET, self.target(&["semaphores", key.as_str()]));
        Ok(vec![self.send(request, Duration::ZERO, "semaphores").await?])
    }

    async fn events(
        &self,
        key: Option<&SemaphoreKey>,
        count: usize,
        mut wait: Span,
        verb: &'static str,
    ) -> Result<SemaphoreReply, HttpError> {
        if count == 0 {
            // Servers refuse a count of 0; the semaphore must exist all the same.
            if key.is_some() {
                self.semaphores(key).await?;
            }
            return Ok(SemaphoreReply::Events(Vec::new()));
        }
        loop {
            let (now, rest) = split_wait(wait);
            let request = EventsRequest::new(key, count, now);
            let request =
                HttpCall::new(Method::POST, self.target(&["semaphore-events"])).json(&request);
            let answer: EventsAnswer = self.send(request, now.into(), verb).await?;
            if !answer.events.is_empty() || rest.is_zero() {
                let events = answer.events.into_iter().map(EventAnswer::into_event);
                return Ok(SemaphoreReply::Events(
                    events.collect::<Result<_, _>>().map_err(refused)?,
                ));
            }
            wait = rest;
        }
    }

    async fn post_semaphore<Q: Serialize, A: DeserializeOwned>(
        &self,
        key: &SemaphoreKey,
        path: &str,
        body: &Q,
        verb: &'static str,
    ) -> Result<A, HttpError> {
        let target = self.target(&["semaphores", key.as_str(), path]);
        self.send(HttpCall::new(Method::POST, target).json(body), Duration::ZERO, verb).await
    }
}

fn infos(answers: Vec<SemaphoreAnswer>) -> Result<SemaphoreReply, HttpError> {
    let infos = answers.into_iter().map(SemaphoreAnswer::into_info);
    Ok(SemaphoreReply::Semaphores(infos.collect::<Result<_, _>>().map_err(refused)?))
}

fn member_infos(answer: MemberInfosAnswer) -> Result<SemaphoreReply, HttpError> {
    let infos = answer.tasks.into_iter().map(MemberInfoAnswer::into_member_info);
    Ok(SemaphoreReply::MemberInfos(infos.collect::<Result<_, _>>().map_err(refused)?))
}
