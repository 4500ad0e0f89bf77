//! What has to be seen to from time to time.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::Leader;
use crate::clock::Clock;
use crate::crew::{array, json};
use crate::session::{Order, Outcome};
use crate::status::Status;
use crate::table::{FORGOTTEN_MAX, Table};
use crate::task::{self, COLUMNS_COUNT, Task, moment_text};
use crate::verdict::Ran;
use crate::wire::{Ask, AskError, Refusal, Wire};

/// How often finished tasks that are old enough are deleted.
const FORGET: Duration = Duration::from_secs(10);
/// How often to try again what the database refused to write.
const UNWRITTEN: Duration = Duration::from_secs(10);
/// How often to look whether the sessions of another scheduler have ended.
const ORPHANS_AGAIN: Duration = Duration::from_millis(20);
/// How often at most, before tasks are given to others although they may still run.
const ORPHANS_LOOKS_MAX: usize = 500;

impl Leader {
    /// Deletes what is finished for long enough, and gives back what nobody runs.
    pub(super) async fn upkeep(
        &mut self,
        wire: &mut Wire,
        table: &Table,
        now: Instant,
    ) -> Result<(), AskError> {
        let (reset, keep) = {
            let settings = self.settings.borrow();
            (settings.reset, settings.keep.clone())
        };
        if self.next_reset <= now {
            self.next_reset = now + reset;
            self.reset(wire, table).await?;
            self.look.all = true;
        }
        if self.next_unwritten <= now && !self.unwritten.is_empty() {
            self.next_unwritten = now + UNWRITTEN;
            self.ends.append(&mut self.unwritten);
        }
        if let Some(keep) = keep
            && self.next_upkeep <= now
        {
            let gone = wire.ask(Ask::new(&table.statements.forget, [&keep])).await?;
            let gone = gone.first().and_then(|row| row.parsed(0)).unwrap_or(0);
            // Where there may be more, it goes on with the next round.
            let more = gone >= FORGOTTEN_MAX;
            self.next_upkeep = if more { now } else { now + FORGET };
        }
        Ok(())
    }

    /// Writes again which tasks are under way here. A database that crashed may have lost the claim and the start of a
    /// task, which are not on disk when they are answered: without this the row would wait for an end that names a process
    /// it does not show, or the task would begin a second time.
    pub(super) async fn restore(&mut self, wire: &mut Wire, table: &Table) -> Result<(), AskError> {
        let held = self.crew.sessions.values().filter_map(|session| session.held.as_ref());
        let held = held.map(|held| (held.task.id, held.shown_pid, held.start.map(moment_text)));
        let ends = self.ends.iter().chain(&self.unwritten).chain(&self.sent.0);
        let ends = ends.map(|end| (end.id, end.old_pid, end.start.clone()));
        let mine: Vec<_> = held
            .chain(ends)
            .map(|(id, pid, start)| serde_json::json!({ "id": id, "pid": pid, "start": start }))
            .collect();
        if !mine.is_empty() {
            let params = vec![Some(json(mine))];
            wire.ask(Ask { sql: &table.statements.restore, params }).await?;
        }
        Ok(())
    }

    /// Ends the sessions of a scheduler that is gone, so that no task runs twice at the same time, and gives its
    /// tasks back.
    pub(super) async fn end_orphans(
        &mut self,
        wire: &mut Wire,
        table: &Table,
    ) -> Result<(), AskError> {
        for _ in 0..ORPHANS_LOOKS_MAX {
            let pids = array(self.crew.sessions.values().filter_map(|session| session.pid));
            let mine = self.mine();
            let ask = Ask::new(&table.statements.orphans, [&pids, &mine]);
            let rows = wire.ask(ask).await?;
            if rows.first().and_then(|row| row.parsed(0)) == Some(0) {
                break;
            }
            sleep(ORPHANS_AGAIN).await;
        }
        self.reset(wire, table).await?;
        self.next_reset = Instant::now() + self.settings.borrow().reset;
        Ok(())
    }

    /// Gives back what nobody runs. Whether a remote has done it nobody knows, so that is not done again.
    async fn reset(&mut self, wire: &mut Wire, table: &Table) -> Result<(), AskError> {
        let mine = self.mine();
        for mut row in wire.ask(Ask::new(&table.statements.abandoned, [&mine])).await? {
            let start = row.text(COLUMNS_COUNT).and_then(task::moment);
            let now = row.text(COLUMNS_COUNT + 1).and_then(task::moment);
            let (Some(now), Some(task)) = (now, Task::read(&mut row, false)) else { continue };
            self.clock = Clock::showing(now);
            Status::count(&self.status.lost);
            let why = "the scheduler that ran the task is gone";
            let error = Some(Refusal::detailed("the connection was lost", why));
            let outcome = Outcome { error, lost: true, ..Outcome::default() };
            let ran = Ran { pid: task.pid, start, stop: now };
            let verdict = self.judged(|judge, _| judge.ended(&task, ran, outcome));
            self.ends.push(verdict);
        }
        let mine = self.mine();
        wire.ask(Ask::new(&table.statements.reset, [&mine])).await?;
        Ok(())
    }

    /// Cancels the tasks that somebody stopped or deleted.
    pub(super) async fn cancel_unwanted(
        &mut self,
        wire: &mut Wire,
        table: &Table,
    ) -> Result<(), AskError> {
        let ids = array(self.crew.ids());
        if ids == "{}" {
            return Ok(());
        }
        let rows = wire.ask(Ask::new(&table.statements.unwanted, [&ids])).await?;
        let unwanted: Vec<i64> = rows.iter().filter_map(|row| row.parsed(0)).collect();
        let mut unbegun = Vec::new();
        for (number, session) in &self.crew.sessions {
            let Some(held) = &session.held else { continue };
            if unwanted.contains(&held.task.id) {
                if held.shown_pid.is_some() {
                    session.order(Order::Cancel);
                } else {
                    unbegun.push(*number);
                }
            }
        }
        for number in unbegun {
            // It has not begun, so there is nothing to write down.
            self.crew.take(number);
            self.crew.close(number);
            self.starts.retain(|start| *start != number);
        }
        Ok(())
    }
}
