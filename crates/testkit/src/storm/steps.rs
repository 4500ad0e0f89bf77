//! The process of a server is killed at each step of a firing of a schedule, and another process continues.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use taskyard::{
    CatchUp, Client, Kind, Schedule, Span, Timestamp, TimingRule, TubeOptions, new_task,
};
use taskyard_core::{Command, Reply, ScheduleCommand, ScheduleReply, StoredSchedule};
use taskyard_store::remote::{Clock, RemoteStore};
use tokio::sync::mpsc::unbounded_channel;
use tokio::time::timeout;

use super::schedules::{TUBE, WAIT};
use super::server::http;
use super::{StormDatabase, load};
use crate::calls::ask;
use crate::server_process::{Binary, ServerProcess};
use crate::step_proxy::{Portion, StepProxy, StopPoint};
use crate::{OwnServer, Request, SharedDatabase};

const NAME: &str = "hourly";
const HOUR: i64 = 3_600_000_000;
/// How many times are due in each round.
const DUE: u64 = 3;
/// Every firing has at least two requests and two replies.
const STEPS_MIN: usize = 4;

/// The schedule of all rounds, as the database sees it.
struct Rounds<D: SharedDatabase> {
    store: RemoteStore<D::Backend>,
    /// Paused, with times that were missed. The next one after them is half an hour away.
    schedule: StoredSchedule,
}

impl<D: SharedDatabase> Rounds<D> {
    fn new(url: &str) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later").as_micros();
        let now = Timestamp::from_micros(i64::try_from(now).expect("it is not that late"));
        let first = now.moved(HOUR / 2 - HOUR * DUE as i64);
        let rule = TimingRule::Every { every: Span::from_micros(HOUR), start: Some(first) };
        let task = new_task("again").expect("a task");
        let new = Schedule::new(NAME, TUBE, task, &rule).expect("a schedule");
        let store = RemoteStore::open(url, Clock::Database).expect("the store opens");
        let schedule = Schedule { catch_up: CatchUp::All, paused: true, next: Some(first), ..new };
        let (tube, options) = (load::tube(TUBE), TubeOptions::new(Kind::Fifo));
        let create = Command::CreateTube { tube, options, if_not_exists: false };
        ask(&store, create).expect("the tube is created");
        Rounds { store, schedule }
    }

    fn run(&self, command: ScheduleCommand) -> ScheduleReply {
        match ask(&self.store, Command::Schedule(Box::new(command))) {
            Ok(Reply::Schedule(reply)) => reply,
            other => panic!("{other:?}"),
        }
    }

    /// Lets the times be due once more, after a resume.
    fn begin(&self) {
        let schedule = self.schedule.clone();
        self.run(ScheduleCommand::Set { schedule, only_new: false, keep_paused: false });
    }

    fn resume(&self) {
        self.run(ScheduleCommand::Pause { name: self.schedule.name.clone(), paused: false });
    }

    fn stored(&self) -> StoredSchedule {
        match self.run(ScheduleCommand::Get { name: self.schedule.name.clone() }) {
            ScheduleReply::Schedules(mut found) => found.remove(0),
            other => panic!("{other:?}"),
        }
    }

    fn has_fired(&self) -> bool {
        self.stored().next != self.schedule.next
    }

    /// Panics unless each time of so many rounds has fired once.
    fn check(&self, rounds: u64, step: usize) {
        let stored = self.stored();
        let reply = ask(&self.store, Command::Tubes { tube: Some(load::tube(TUBE)) });
        let Ok(Reply::Tubes(tubes)) = reply else { panic!("{reply:?}") };
        let counts = (tubes[0].stats.tasks.total(), stored.fired, stored.skipped);
        assert_eq!(counts, (DUE * rounds, DUE * rounds, 0), "tasks, fired, skipped; step {step}");
    }
}

/// Kills servers until a firing has no more steps.
pub async fn kill_at_each_step<D: SharedDatabase<Server: StormDatabase>>(
    database: &D::Server,
    binary: Binary,
) {
    let rounds = Rounds::<D>::new(&database.url());
    for step in 0.. {
        rounds.begin();
        let is_killed = kill_at(&rounds, database, binary, step).await;
        if is_killed {
            // It may have been killed before it could do that.
            rounds.resume();
            let _other = ServerProcess::on_store(binary, &database.url());
            wait_until(|| rounds.has_fired());
        }
        rounds.check(step as u64 + 1, step);
        if !is_killed {
            assert!(step >= STEPS_MIN, "a firing has only {step} steps");
            return;
        }
    }
}

/// Lets a server fire and kills it at this step; false if it has fired before.
async fn kill_at<D: SharedDatabase<Server: StormDatabase>>(
    rounds: &Rounds<D>,
    database: &D::Server,
    binary: Binary,
    step: usize,
) -> bool {
    let proxy = StepProxy::new(database.target(), D::PROTOCOL);
    let process = ServerProcess::on_store(binary, &database.url_by(proxy.address()));
    let (reached, mut events) = unbounded_channel();
    let has_fired = reached.clone();
    let portion = if step.is_multiple_of(2) { Portion::AllButOne } else { Portion::Nothing };
    let point = StopPoint { word: D::word_of(Request::DueSchedules), step, portion };
    proxy.stop_at(point, move || {
        // The case may have ended.
        let _ = reached.send(true);
    });
    let client = Client::new(http(&process));
    // Moments over HTTP are rounded.
    let fired = rounds.schedule.next.map(|first| first.moved(HOUR));
    let firing = tokio::spawn(async move {
        let schedules = client.schedules();
        // A server that is stopped or killed does not reply.
        let mut shown = schedules.resume(NAME).await;
        // One that shows the next time has got the reply to its firing.
        while shown.is_ok_and(|shown| shown.next < fired) {
            shown = schedules.get(NAME).await;
        }
        let _ = has_fired.send(false);
    });
    let event = timeout(WAIT, events.recv()).await.expect("it fires or stops");
    let is_killed = event.expect("both senders send");
    if is_killed {
        process.signal("KILL");
        // Waits for its end.
        drop(process);
        proxy.kill_client();
    }
    firing.abort();
    is_killed
}

fn wait_until(condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < WAIT, "nothing has fired");
        std::thread::yield_now();
    }
}
