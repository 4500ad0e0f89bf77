//! Notes what the series must know about the commands of a batch when their replies arrive: the
//! store gets the commands themselves.

use std::ops::Range;

use taskyard_core::{Command, Finish, FinishItem, NewTask, TaskId, TubeName};

use super::registry::{SeriesRegistry, TubeNumber};
use super::tube_series::Ending;
use crate::admit::changes_tasks;

/// The notes of one batch.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// One for each command, in order.
    pub(super) commands: Vec<Note>,
    /// The items of all finishes, in order.
    pub(super) finishes: Vec<NotedFinish>,
}

/// One command.
#[derive(Debug)]
pub(super) enum Note {
    /// It changes no tasks.
    Nothing,
    /// With the numbers of tasks that have a priority of their own.
    Put(NotedTube, Vec<(u64, u32)>),
    Take(NotedTube),
    /// With the places of its items in the notes.
    Finish(NotedTube, Range<usize>),
    /// It may change the tasks of this tube.
    Changes(NotedTube),
    /// With the tasks, if estimates wait for their starts.
    Delete(NotedTube, Vec<TaskId>),
    Truncate(NotedTube),
    /// It may change the tasks of any tube.
    ChangesAny,
    /// The same, if it moved any.
    Tick,
    Drop(TubeName),
    Rename(TubeName),
    /// It shows one tube or all.
    Show {
        all: bool,
    },
}

/// A tube, by its number if it has one.
#[derive(Debug)]
pub(super) enum NotedTube {
    Known(TubeNumber),
    /// Perhaps it does not exist.
    New(TubeName),
}

/// One item of a finish.
#[derive(Clone, Copy, Debug)]
pub(super) struct NotedFinish {
    pub id: TaskId,
    /// `None` if the delivery goes on.
    pub ending: Option<Ending>,
}

/// The tube of the latest command, because the next one is often for the same.
#[derive(Debug, Default)]
pub(super) struct LatestTube(Option<(TubeName, TubeNumber)>);

impl LatestTube {
    /// A tube may have another number now.
    pub fn forget(&mut self) {
        self.0 = None;
    }

    fn find(&mut self, registry: &SeriesRegistry, tube: &TubeName) -> NotedTube {
        if let Some((name, number)) = &self.0
            && name == tube
        {
            return NotedTube::Known(*number);
        }
        match registry.find(tube) {
            Some(number) => {
                self.0 = Some((tube.clone(), number));
                NotedTube::Known(number)
            }
            None => NotedTube::New(tube.clone()),
        }
    }
}

impl Notes {
    /// Notes the commands of a batch.
    pub(super) fn note(
        &mut self,
        commands: &[Command],
        registry: &SeriesRegistry,
        latest: &mut LatestTube,
    ) {
        self.commands.clear();
        self.finishes.clear();
        for command in commands {
            let mut note = self.note_command(command, |tube| latest.find(registry, tube));
            if let (Note::Delete(NotedTube::Known(tube), noted), Command::Delete { ids, .. }) =
                (&mut note, command)
                && registry.awaits_starts(*tube)
            {
                noted.clone_from(ids);
            }
            self.commands.push(note);
        }
    }

    fn note_command(
        &mut self,
        command: &Command,
        mut find: impl FnMut(&TubeName) -> NotedTube,
    ) -> Note {
        match command {
            Command::Put { tube, tasks, .. } => Note::Put(find(tube), priorities(tasks)),
            Command::Take(take) => Note::Take(find(&take.tube)),
            Command::Finish { tube, items, .. } => {
                let begin = self.finishes.len();
                self.finishes.extend(items.iter().map(NotedFinish::of));
                Note::Finish(find(tube), begin..self.finishes.len())
            }
            Command::Kick { tube, .. }
            | Command::KickTasks { tube, .. }
            | Command::ReleaseAll { tube } => Note::Changes(find(tube)),
            Command::Delete { tube, .. } => Note::Delete(find(tube), Vec::new()),
            Command::Truncate { tube } => Note::Truncate(find(tube)),
            Command::LeaveSession { .. } => Note::ChangesAny,
            Command::Semaphore(command) if changes_tasks(command) => Note::ChangesAny,
            Command::Schedule(command) if command.adds_tasks() => Note::ChangesAny,
            Command::Tick { .. } => Note::Tick,
            Command::DropTube { tube } => Note::Drop(tube.clone()),
            Command::NameTube { tube, .. } => Note::Rename(tube.clone()),
            Command::Tubes { tube } => Note::Show { all: tube.is_none() },
            Command::AlterTube { .. } => Note::Show { all: false },
            Command::CreateTube { .. }
            | Command::Peek { .. }
            | Command::Deliveries { .. }
            | Command::List(_)
            | Command::Search(_)
            | Command::Positions { .. }
            | Command::JoinSession { .. }
            | Command::ConfigureSessions { .. }
            | Command::Semaphore(_)
            | Command::Schedule(_) => Note::Nothing,
        }
    }
}

/// The most priorities that are counted in one put.
const PRIORITIES_MAX: usize = 16;

/// The number of tasks with each priority that a put names. Usually it names none.
fn priorities(tasks: &[NewTask]) -> Vec<(u64, u32)> {
    let mut counts: Vec<(u64, u32)> = Vec::new();
    for pri in tasks.iter().filter_map(|task| task.pri) {
        if let Some(count) = counts.iter_mut().find(|count| count.0 == pri) {
            count.1 += 1;
        } else if counts.len() < PRIORITIES_MAX {
            counts.push((pri, 1));
        }
    }
    counts
}

impl NotedFinish {
    fn of(item: &FinishItem) -> Self {
        NotedFinish { id: item.id, ending: Ending::of(&item.finish) }
    }
}

impl Ending {
    /// How a finish ends its delivery; `None` if the delivery goes on.
    pub fn of(finish: &Finish) -> Option<Self> {
        match finish {
            Finish::Ack | Finish::AckWithResult(_) => Some(Ending::Acked),
            Finish::Release { .. } | Finish::Bury => Some(Ending::Returned),
            Finish::Fail(_) => Some(Ending::Failed),
            Finish::Touch(_) => None,
        }
    }
}
