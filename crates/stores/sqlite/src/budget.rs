//! Decides which bodies are in memory: as many as the budget allows, first those that are taken next.

use std::collections::{HashMap, HashSet};

use taskyard_core::Machine;

use super::codec;
use super::generation::{self, Generations};
use super::reader::{BodyReader, ReadAheadBodies};

/// How many tasks the store reads ahead of the takes of a tube.
const READ_AHEAD: usize = 4096;

/// Tracks the memory that bodies use.
#[derive(Debug)]
pub(super) struct Budget {
    bytes_max: usize,
    generations: Generations,
    /// Tubes of which some bodies are on disk only.
    spilled: HashMap<u32, ReadAheadWindow>,
    /// Maximum bytes that the reader is loading.
    reading: usize,
    /// How many requests the reader got, and how many it has answered, in the same order.
    requested: u64,
    answered: u64,
    /// Tasks whose bodies were replaced while the reader was loading, and the number of the latest request
    /// then: it and those before may have read the earlier body.
    replaced: HashMap<i64, u64>,
}

/// How far reading is ahead of the takes of a tube.
#[derive(Clone, Copy, Debug, Default)]
struct ReadAheadWindow {
    /// Tasks that were read ahead and not taken yet.
    remaining: usize,
    /// More tasks are read when at most this many remain.
    refill_at: usize,
}

impl Budget {
    pub fn new(bytes_max: usize, generations: Generations, machine: &Machine) -> Self {
        let spilled =
            machine.tube_numbers().map(|number| (number, ReadAheadWindow::default())).collect();
        Budget {
            bytes_max,
            generations,
            spilled,
            reading: 0,
            requested: 0,
            answered: 0,
            replaced: HashMap::new(),
        }
    }

    /// Bytes of bodies that are in memory or being loaded.
    pub fn bytes(&self, machine: &Machine) -> usize {
        machine.body_bytes() + self.reading
    }

    /// Whether the bodies in memory exceed the budget.
    pub fn is_exceeded(&self, machine: &Machine) -> bool {
        machine.body_bytes() > self.bytes_max
    }

    /// Drops bodies of new tasks from memory that exceed the budget; the database has them now. A quarter of
    /// the budget is left to bodies that are read ahead, because they are needed first.
    pub fn spill(&mut self, machine: &mut Machine, keys: &[i64]) {
        let budget = self.bytes_max - self.bytes_max / 4;
        for key in keys.iter().rev() {
            if machine.body_bytes() <= budget {
                break;
            }
            let (number, id) = codec::split_key(*key);
            machine.set_body(number, id, None);
            // The task may be finished by now and its tube dropped.
            if !machine.is_body_unloaded(number, id) {
                continue;
            }
            self.spilled.entry(number).or_default();
        }
    }

    /// Called when bodies were replaced: what is being read of these tasks is outdated.
    pub fn note_replaced(&mut self, keys: &HashSet<i64>) {
        if self.answered < self.requested {
            self.replaced.extend(keys.iter().map(|key| (*key, self.requested)));
        }
    }

    /// Requests the bodies that the next takes of a tube need.
    pub fn read_ahead(
        &mut self,
        machine: &Machine,
        number: u32,
        taken: usize,
        reader: &BodyReader,
    ) {
        let bytes = self.bytes(machine);
        let Some(lead) = self.spilled.get_mut(&number) else { return };
        lead.remaining = lead.remaining.saturating_sub(taken);
        let free = self.bytes_max.saturating_sub(bytes);
        if lead.remaining > lead.refill_at || taken == 0 || free == 0 {
            return;
        }
        let upcoming = machine.upcoming(number, READ_AHEAD);
        *lead = ReadAheadWindow { remaining: upcoming.len(), refill_at: upcoming.len() / 2 };
        let absent = upcoming.into_iter().filter(|id| machine.is_body_unloaded(number, *id));
        let keys: Vec<_> = absent.map(|id| self.generations.key(number, id)).collect();
        if !keys.is_empty() {
            self.reading += free;
            self.requested += 1;
            reader.read_ahead(keys, free);
        }
    }

    /// Adds bodies that were read ahead to memory, as far as the budget allows.
    pub fn add_read_ahead(&mut self, machine: &mut Machine, ahead: Vec<ReadAheadBodies>) {
        for ReadAheadBodies { bodies, bytes_max, is_truncated } in ahead {
            self.reading -= bytes_max;
            self.answered += 1;
            if let (true, Some((key, _))) = (is_truncated, bodies.first()) {
                // The bodies are large, so the next ones are needed sooner.
                let lead = ReadAheadWindow { remaining: bodies.len(), refill_at: bodies.len() / 2 };
                self.spilled.insert(generation::number(*key), lead);
            }
            for (key, body) in bodies {
                let number = generation::number(key);
                let fits = machine.body_bytes() + body.footprint() <= self.bytes_max;
                let wanted =
                    machine.is_body_unloaded(number, key.id) && self.generations.is_current(key);
                let replaced = self.replaced.get(&codec::key(number, key.id));
                let outdated = replaced.is_some_and(|latest| self.answered <= *latest);
                if fits && wanted && !outdated {
                    machine.set_body(number, key.id, Some(body));
                }
            }
        }
        if self.answered == self.requested {
            self.replaced.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use taskyard_core::{
        Body, Command, Key, KeyRequest, Kind, NewTask, OnConflict, Span, TaskId, Timestamp,
        TubeName, TubeOptions,
    };
    use taskyard_store::OpenOptions;

    use super::super::folder::{self, OpenFolder};
    use super::super::insert::TaskInsert;
    use super::super::platform::DataFolder;
    use super::*;

    const ID: TaskId = TaskId(0);

    /// A machine with one task, whose earlier body is in the database of the folder.
    fn machine_with_task(path: &Path) -> Machine {
        let OpenFolder { db, mut machine, .. } =
            folder::open(&DataFolder::of_system(path), &OpenOptions::default())
                .expect("the folder opens");
        let tube = TubeName::new("mail").expect("a good name");
        let options = TubeOptions::new(Kind::Fifo);
        apply(&mut machine, Command::CreateTube { tube, options, if_not_exists: false });
        put(&mut machine, b"old");
        let record = machine.export_tasks(0, ID, 1).remove(0);
        let body = record.body.clone().expect("a body");
        let row = (codec::key(0, ID), &record, &body);
        TaskInsert::new(&db).and_then(|mut insert| insert.add(&row)).expect("a row");
        machine
    }

    fn apply(machine: &mut Machine, command: Command) {
        machine.apply(Timestamp::EPOCH, command).expect("it is accepted");
    }

    /// Puts the task, or replaces it.
    fn put(machine: &mut Machine, payload: &[u8]) {
        let mut request = KeyRequest::new(Key::new("k").expect("a good key"));
        request.on_conflict = OnConflict::Replace;
        let task = NewTask { key: Some(Box::new(request)), ..NewTask::new(Body::new(payload)) };
        let tube = TubeName::new("mail").expect("a good name");
        apply(machine, Command::Put { tube, tasks: vec![task], wait: Span::ZERO });
    }

    /// A body that was being read while a put replaced it came back when the new one was on disk only: the
    /// task would have had its earlier payload again.
    #[test]
    fn a_body_that_was_replaced_while_it_was_read_is_dropped() {
        for is_replaced in [true, false] {
            let folder = tempfile::tempdir().expect("a folder");
            let mut machine = machine_with_task(folder.path());
            let generations = Generations::default();
            let reader =
                BodyReader::start(&DataFolder::of_system(folder.path())).expect("a reader");
            let mut budget = Budget::new(1 << 20, generations.clone(), &machine);
            machine.set_body(0, ID, None);
            budget.read_ahead(&machine, 0, 1, &reader);
            reader.stop();
            let ahead = reader.take_ahead();
            assert_eq!(ahead.iter().map(|ahead| ahead.bodies.len()).sum::<usize>(), 1);
            if is_replaced {
                put(&mut machine, b"new");
                budget.note_replaced(&HashSet::from([codec::key(0, ID)]));
                machine.set_body(0, ID, None);
            }
            budget.add_read_ahead(&mut machine, ahead);
            assert_eq!(machine.is_body_unloaded(0, ID), is_replaced);
            assert!(budget.replaced.is_empty(), "nothing is being read");
        }
    }
}
