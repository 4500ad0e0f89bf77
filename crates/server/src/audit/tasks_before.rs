//! Counts the tasks of commands whose replies do not say how many they changed, for their audit entries: as many as
//! there are right before them, found by a command in the same batch.

use taskyard_core::limits::PENDING_COMMANDS_MAX;
use taskyard_core::{Command, Reply, Result as CoreResult, TubeName};

/// Maximum number of commands of a batch whose tasks are counted; those of a batch with more are not.
const COUNTS_MAX: usize = 1_000;

/// The commands of a batch that count tasks.
#[derive(Debug, Default)]
pub(crate) struct TaskCounts {
    /// Each with its position and the command behind it.
    inserted: Vec<(usize, CountedCommand)>,
}

/// The numbers of tasks, in the order of the positions of the commands that changed them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct TasksBefore(Vec<(usize, u64)>);

/// What a command changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CountedCommand {
    /// All tasks of a tube, and the done ones that it keeps.
    All,
    /// Those that are taken.
    Taken,
}

impl TaskCounts {
    /// Puts a command that counts before each one that needs it. Without any, this costs no memory. The batch never
    /// becomes so large that it would be refused for that.
    pub fn insert(commands: Vec<Command>) -> (Vec<Command>, Self) {
        let counts = commands.iter().filter(|command| counted_tube(command).is_some()).count();
        let length = commands.len() + counts;
        if counts == 0 || counts > COUNTS_MAX || length > PENDING_COMMANDS_MAX {
            return (commands, TaskCounts::default());
        }
        let (mut all, mut inserted) = (Vec::with_capacity(length), Vec::new());
        for command in commands {
            if let Some((kind, tube)) = counted_tube(&command) {
                inserted.push((all.len(), kind));
                all.push(Command::Tubes { tube: Some(tube.clone()) });
            }
            all.push(command);
        }
        (all, TaskCounts { inserted })
    }

    /// Takes the replies to these commands out of those of the batch.
    pub fn remove(self, replies: Vec<CoreResult<Reply>>) -> (Vec<CoreResult<Reply>>, TasksBefore) {
        if self.inserted.is_empty() {
            return (replies, TasksBefore::default());
        }
        let mut inserted = self.inserted.into_iter().peekable();
        let (mut rest, mut before) = (Vec::with_capacity(replies.len()), TasksBefore::default());
        for (position, reply) in replies.into_iter().enumerate() {
            match inserted.next_if(|(inserted, _)| *inserted == position) {
                Some((_, kind)) => {
                    before.0.extend(kind.tasks(&reply).map(|tasks| (rest.len(), tasks)));
                }
                None => rest.push(reply),
            }
        }
        (rest, before)
    }
}

impl TasksBefore {
    /// How many tasks there were before the command at this position, if it was counted.
    pub fn of(&self, position: usize) -> Option<u64> {
        let found = self.0.binary_search_by_key(&position, |(counted, _)| *counted);
        found.ok().map(|at| self.0[at].1)
    }
}

impl CountedCommand {
    fn tasks(self, reply: &CoreResult<Reply>) -> Option<u64> {
        let Ok(Reply::Tubes(tubes)) = reply else { return None };
        let tasks = &tubes.first()?.stats.tasks;
        Some(match self {
            CountedCommand::All => tasks.total() + tasks.kept,
            CountedCommand::Taken => tasks.taken,
        })
    }
}

/// What a command changes if its reply does not say how much, and the tube where it is counted.
fn counted_tube(command: &Command) -> Option<(CountedCommand, &TubeName)> {
    match command {
        Command::Truncate { tube } | Command::DropTube { tube } => {
            Some((CountedCommand::All, tube))
        }
        Command::ReleaseAll { tube } => Some((CountedCommand::Taken, tube)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use taskyard_core::Error;

    use super::*;

    #[test]
    fn the_replies_keep_their_positions() {
        let tube = TubeName::new("mail").unwrap();
        let truncate = Command::Truncate { tube: tube.clone() };
        let kick = Command::Kick { tube: tube.clone(), count: 1 };
        let (all, counts) =
            TaskCounts::insert(vec![kick.clone(), truncate.clone(), truncate.clone()]);
        let count = Command::Tubes { tube: Some(tube) };
        assert_eq!(all, [kick, count.clone(), truncate.clone(), count, truncate]);
        let gone = || Err(Error::ShuttingDown);
        let replies = vec![
            Ok(Reply::Kicked(3)),
            gone(),
            Ok(Reply::Nothing),
            gone(),
            Ok(Reply::Created(true)),
        ];
        let (rest, before) = counts.remove(replies);
        assert_eq!(rest, [Ok(Reply::Kicked(3)), Ok(Reply::Nothing), Ok(Reply::Created(true))]);
        assert_eq!(before, TasksBefore::default(), "a tube that cannot be shown is not counted");
    }

    #[test]
    fn other_batches_stay_as_they_are() {
        let commands = vec![Command::Tubes { tube: None }];
        let (same, counts) = TaskCounts::insert(commands.clone());
        assert_eq!(same, commands);
        let (replies, before) = counts.remove(vec![Ok(Reply::Nothing)]);
        assert_eq!((replies, before.of(0)), (vec![Ok(Reply::Nothing)], None));
    }

    #[test]
    fn each_command_has_the_number_of_tasks_before_it() {
        let before = TasksBefore((0..100).map(|at| (at * 2, at as u64)).collect());
        assert_eq!((before.of(0), before.of(198), before.of(64)), (Some(0), Some(99), Some(32)));
        assert_eq!((before.of(1), before.of(200)), (None, None));
    }

    // The commands that counted were added without a limit, so that a batch was refused for them.
    #[test]
    fn a_batch_with_very_many_commands_is_not_counted() {
        let truncate = Command::Truncate { tube: TubeName::new("mail").unwrap() };
        let length = |commands: Vec<Command>| TaskCounts::insert(commands).0.len();
        assert_eq!(length(vec![truncate.clone(); COUNTS_MAX]), 2 * COUNTS_MAX);
        assert_eq!(length(vec![truncate.clone(); COUNTS_MAX + 1]), COUNTS_MAX + 1);
        let mut full = vec![Command::Tubes { tube: None }; PENDING_COMMANDS_MAX - 1];
        full.push(truncate);
        assert_eq!(length(full), PENDING_COMMANDS_MAX);
    }
}
