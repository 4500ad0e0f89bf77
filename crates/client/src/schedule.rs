//! Calls for schedules, which put a task at certain times.

use taskyard_core::limits::SCHEDULES_LISTED_MAX;
use taskyard_core::{
    Command, Error as Refusal, Placed, Reply, ScheduleCommand, ScheduleName, ScheduleReply,
    StoredSchedule, Timestamp,
};

use crate::client::{Client, unexpected};
use crate::error::Result;
use crate::http::Http;
use crate::iproto::Iproto;

/// The schedules of a queue.
///
/// ```
/// # async fn example() -> Result<(), taskyard::Error> {
/// use taskyard::{CatchUp, Client, Kind, Schedule, TimingRule, TubeOptions, new_task};
///
/// let client = Client::open("memory:").await?;
/// client.create("reports", TubeOptions::new(Kind::FifoTtl)).await?;
/// let rule = TimingRule::Cron { cron: "0 9 * * 1-5".into(), zone: "Europe/Berlin".into() };
/// let mut daily = Schedule::new("daily report", "reports", new_task("all")?, &rule)?;
/// daily.catch_up = CatchUp::Last;
/// client.schedules().set(daily).await?;
/// let times = client.schedules().next_times("daily report", 5).await?;
/// assert_eq!(times.len(), 5);
/// client.schedules().run("daily report").await?;
/// # client.close().await
/// # }
/// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
/// # runtime.block_on(example()).unwrap();
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ScheduleManager<'a> {
    client: &'a Client,
}

impl Client {
    /// The schedules of this queue.
    pub fn schedules(&self) -> ScheduleManager<'_> {
        ScheduleManager { client: self }
    }
}

impl ScheduleManager<'_> {
    /// Creates a schedule or replaces it; its tube must exist. Returns whether it is new. Its next
    /// time is the first after now, and a replaced one keeps its counters.
    pub async fn set(&self, schedule: StoredSchedule) -> Result<bool> {
        let set = ScheduleCommand::Set { schedule, only_new: false, keep_paused: false };
        match self.ask(set).await? {
            ScheduleReply::Set(is_new) => Ok(is_new),
            _ => Err(unexpected("schedule_set").into()),
        }
    }

    /// One schedule.
    pub async fn get(&self, name: &str) -> Result<StoredSchedule> {
        self.one(ScheduleCommand::Get { name: ScheduleName::new(name)? }).await
    }

    /// All schedules, by name.
    pub async fn list(&self) -> Result<Vec<StoredSchedule>> {
        let mut all: Vec<StoredSchedule> = Vec::new();
        loop {
            let after = all.last().map(|last| last.name.clone());
            let limit = SCHEDULES_LISTED_MAX;
            match self.ask(ScheduleCommand::List { after, limit }).await? {
                ScheduleReply::Schedules(page) if page.len() < limit => {
                    all.extend(page);
                    return Ok(all);
                }
                ScheduleReply::Schedules(page) => all.extend(page),
                _ => return Err(unexpected("schedule_list").into()),
            }
        }
    }

    /// Pauses a schedule.
    pub async fn pause(&self, name: &str) -> Result<StoredSchedule> {
        self.one(ScheduleCommand::Pause { name: ScheduleName::new(name)?, paused: true }).await
    }

    /// Resumes a schedule; what it missed is caught up.
    pub async fn resume(&self, name: &str) -> Result<StoredSchedule> {
        self.one(ScheduleCommand::Pause { name: ScheduleName::new(name)?, paused: false }).await
    }

    /// Removes a schedule; its tasks stay.
    pub async fn remove(&self, name: &str) -> Result<()> {
        self.ask(ScheduleCommand::Remove { name: ScheduleName::new(name)? }).await.map(drop)
    }

    /// Puts the task of a schedule now; its times stay. A server checks whether the user may run it and put into its tube;
    /// the right to see its payload is not needed.
    pub async fn run(&self, name: &str) -> Result<Placed> {
        let schedule = ScheduleName::new(name)?;
        let placed = if let Some(http) = self.client.transport::<Http>() {
            http.run_schedule(&schedule).await.map_err(Refusal::from)?
        } else if let Some(iproto) = self.client.transport::<Iproto>() {
            iproto.run_schedule(&schedule).await?
        } else {
            // A queue of this process has no users, so it shows the payload.
            match self.client.execute_one(self.get(name).await?.run_now()?).await? {
                Reply::Put(placed) => placed,
                _ => return Err(unexpected("put").into()),
            }
        };
        Ok(*placed.first().ok_or_else(|| unexpected("put"))?)
    }

    async fn one(&self, command: ScheduleCommand) -> Result<StoredSchedule> {
        let verb = command.verb();
        match self.ask(command).await? {
            ScheduleReply::Schedules(mut found) => {
                Ok(found.pop().ok_or_else(|| unexpected(verb))?)
            }
            _ => Err(unexpected(verb).into()),
        }
    }

    async fn ask(&self, command: ScheduleCommand) -> Result<ScheduleReply> {
        let verb = command.verb();
        match self.client.execute_one(Command::Schedule(Box::new(command))).await? {
            Reply::Schedule(reply) => Ok(reply),
            _ => Err(unexpected(verb).into()),
        }
    }

    /// The next times of a schedule, at most 1,000 over HTTP. Any other client computes them itself, which needs the feature
    /// `embedded`.
    pub async fn next_times(&self, name: &str, count: usize) -> Result<Vec<Timestamp>> {
        if let Some(http) = self.client.transport::<Http>() {
            return Ok(http.next_times(&ScheduleName::new(name)?, count).await?);
        }
        #[cfg(feature = "embedded")]
        {
            let schedule = self.get(name).await?;
            let timing = taskyard_engine::read_timing(&schedule.timing)?;
            Ok(schedule.times(&timing).take(count).collect())
        }
        #[cfg(not(feature = "embedded"))]
        Err(crate::error::Error::MissingFeature {
            what: "computing the times of a schedule".into(),
            feature: "embedded",
        })
    }
}
