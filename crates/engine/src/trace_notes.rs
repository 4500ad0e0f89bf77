//! Feeds a trace from the commands and replies that pass through the event loop.
//!
//! What the trace must know about a command is noted before the store gets it, and recorded when its reply is known.

use std::ops::Range;

use taskyard_core::{Command, Outcome, Reply, Result, Timestamp, TubeName};
use taskyard_trace::{Ending, EventSink, PutFacts, Recorder, TakeFacts};

use crate::event_loop::is_failure;

/// The notes of one batch.
#[derive(Debug, Default)]
pub(crate) struct TraceNotes {
    /// The commands that matter, each with the place of its reply, in order.
    commands: Vec<(usize, TraceNote)>,
    puts: Vec<PutFacts>,
    /// Tasks that are finished, with the end of their deliveries, or deleted.
    tasks: Vec<(u64, Option<Ending>)>,
}

/// One command; ranges are places in the notes.
#[derive(Debug)]
enum TraceNote {
    Put(TubeName, Range<usize>),
    Take(TubeName),
    Finish(TubeName, Range<usize>),
    Delete(TubeName, Range<usize>),
    Kick(TubeName),
    Clear(TubeName),
    Drop(TubeName),
    Rename(TubeName),
    /// It shows options of tubes, perhaps of this one alone.
    Show(Option<TubeName>),
}

impl TraceNotes {
    /// Notes the commands of a batch at this wall time.
    pub fn note(&mut self, commands: &[Command], wall: Timestamp, recorder: &Recorder) {
        self.commands.clear();
        self.puts.clear();
        self.tasks.clear();
        for (place, command) in commands.iter().enumerate() {
            if let Some(note) = self.note_command(command, wall, recorder) {
                self.commands.push((place, note));
            }
        }
    }

    fn note_command(
        &mut self,
        command: &Command,
        wall: Timestamp,
        recorder: &Recorder,
    ) -> Option<TraceNote> {
        Some(match command {
            Command::Put { tube, tasks, .. } => {
                let begin = self.puts.len();
                let facts = |task| PutFacts::of(task, wall, |subqueue| recorder.hash(subqueue));
                self.puts.extend(tasks.iter().map(facts));
                TraceNote::Put(tube.clone(), begin..self.puts.len())
            }
            Command::Take(take) => TraceNote::Take(take.tube.clone()),
            Command::Finish { tube, items, .. } => {
                let begin = self.tasks.len();
                let ends = items.iter().map(|item| (item.id.0, Ending::of(&item.finish)));
                self.tasks.extend(ends);
                TraceNote::Finish(tube.clone(), begin..self.tasks.len())
            }
            Command::Delete { tube, ids, .. } => {
                let begin = self.tasks.len();
                self.tasks.extend(ids.iter().map(|id| (id.0, None)));
                TraceNote::Delete(tube.clone(), begin..self.tasks.len())
            }
            Command::Kick { tube, .. } | Command::KickTasks { tube, .. } => {
                TraceNote::Kick(tube.clone())
            }
            Command::Truncate { tube } => TraceNote::Clear(tube.clone()),
            Command::DropTube { tube } => TraceNote::Drop(tube.clone()),
            Command::NameTube { tube, .. } => TraceNote::Rename(tube.clone()),
            Command::Tubes { tube } => TraceNote::Show(tube.clone()),
            Command::AlterTube { .. } => TraceNote::Show(None),
            // What other commands do to tasks is visible in later takes.
            _ => return None,
        })
    }

    /// Records what the commands of a batch did; `failed` are deliveries that failed without a command for them.
    pub fn record(
        &mut self,
        now: Timestamp,
        replies: &[Result<Reply>],
        failed: &[(TubeName, u64)],
        recorder: &mut Recorder,
    ) {
        if self.commands.is_empty() && failed.is_empty() {
            return;
        }
        let TraceNotes { commands, puts, tasks } = self;
        for (place, note) in commands.drain(..) {
            match (replies.get(place), &note) {
                (Some(Ok(reply)), _) => record_one(now, &note, reply, (&*puts, &*tasks), recorder),
                (Some(failed), TraceNote::Show(Some(tube))) if is_failure(failed) => {
                    recorder.read_later(now, tube);
                }
                _ => {}
            }
        }
        let mut sink = recorder.sink(now);
        for (tube, count) in failed {
            sink.lose(tube, *count);
        }
    }
}

fn record_one(
    now: Timestamp,
    note: &TraceNote,
    reply: &Reply,
    (puts, tasks): (&[PutFacts], &[(u64, Option<Ending>)]),
    recorder: &mut Recorder,
) {
    match (note, reply) {
        (TraceNote::Put(tube, range), Reply::Put(placed)) => {
            let mut sink = recorder.sink(now);
            for (placed, facts) in placed.iter().zip(&puts[range.clone()]) {
                if !placed.existing {
                    sink.put(tube, placed.id.0, *facts);
                }
            }
        }
        (TraceNote::Take(tube), Reply::Taken(taken)) if !taken.is_empty() => {
            let facts = |task| TakeFacts::of(task, |subqueue| recorder.hash(subqueue));
            let facts: Vec<TakeFacts> = taken.iter().map(facts).collect();
            let mut sink = recorder.sink(now);
            for (task, facts) in taken.iter().zip(facts) {
                sink.take(tube, task.id.0, facts);
            }
        }
        (TraceNote::Finish(tube, range), Reply::Finished(outcomes)) => {
            let mut sink = recorder.sink(now);
            for_each_done(&tasks[range.clone()], outcomes, |(id, ending)| {
                if let Some(ending) = ending {
                    sink.finish(tube, id, ending);
                }
            });
        }
        (TraceNote::Delete(tube, range), Reply::Finished(outcomes)) => {
            let mut sink = recorder.sink(now);
            for_each_done(&tasks[range.clone()], outcomes, |(id, _)| sink.delete(tube, id));
        }
        (_, reply) => record_rare(note, reply, recorder.sink(now)),
    }
}

fn record_rare(note: &TraceNote, reply: &Reply, mut sink: EventSink<'_>) {
    match (note, reply) {
        (TraceNote::Kick(tube), Reply::Kicked(count)) if *count > 0 => sink.kick(tube, *count),
        (TraceNote::Kick(tube), Reply::Finished(outcomes)) => {
            let done = outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Done(_)));
            sink.kick(tube, done.count() as u64);
        }
        (TraceNote::Clear(tube), _) => sink.clear(tube),
        (TraceNote::Drop(tube), _) => sink.drop_tube(tube),
        (TraceNote::Rename(tube), Reply::Tubes(infos)) => {
            infos.iter().for_each(|info| sink.rename(tube, &info.name));
        }
        (TraceNote::Show(_), Reply::Tubes(infos)) => {
            infos.iter().for_each(|info| sink.show(&info.name, &info.options));
        }
        (_, _) => {}
    }
}

fn for_each_done(
    tasks: &[(u64, Option<Ending>)],
    outcomes: &[Outcome],
    mut pass: impl FnMut((u64, Option<Ending>)),
) {
    for (task, outcome) in tasks.iter().zip(outcomes) {
        if matches!(outcome, Outcome::Done(_)) {
            pass(*task);
        }
    }
}
