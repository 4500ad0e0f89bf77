//! Decides which bodies are in memory: as many as the budget allows, first those that are taken next.

use std::collections::HashMap;

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
        Budget { bytes_max, generations, spilled, reading: 0 }
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
            reader.read_ahead(keys, free);
        }
    }

    /// Adds bodies that were read ahead to memory, as far as the budget allows.
    pub fn add_read_ahead(&mut self, machine: &mut Machine, ahead: Vec<ReadAheadBodies>) {
        for ReadAheadBodies { bodies, bytes_max, is_truncated } in ahead {
            self.reading -= bytes_max;
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
                if fits && wanted {
                    machine.set_body(number, key.id, Some(body));
                }
            }
        }
    }
}
