//! Which bodies are in memory: as many as the budget allows, first of all those that are taken next.

use std::collections::HashMap;

use taskyard_core::Machine;

use super::codec;
use super::generation::{self, Generations};
use super::reader::{Ahead, Reader};

/// Bodies of so many tasks are read ahead of the takes of a tube.
const READ_AHEAD: usize = 4096;

/// What is known of the memory that bodies take.
#[derive(Debug)]
pub(super) struct Budget {
    bytes_max: usize,
    generations: Generations,
    /// Tubes of which some bodies are on disk only.
    spilled: HashMap<u32, Lead>,
    /// How many bytes the reader may be bringing.
    reading: usize,
}

/// How far reading is ahead of the takes of a tube.
#[derive(Clone, Copy, Debug, Default)]
struct Lead {
    /// So many tasks may be taken yet.
    left: usize,
    /// More is read when no more than these are left.
    refill: usize,
}

impl Budget {
    pub fn new(bytes_max: usize, generations: Generations, machine: &Machine) -> Self {
        let spilled = machine.tube_numbers().map(|number| (number, Lead::default())).collect();
        Budget { bytes_max, generations, spilled, reading: 0 }
    }

    /// Bytes of bodies that are in memory or on their way.
    pub fn bytes(&self, machine: &Machine) -> usize {
        machine.body_bytes() + self.reading
    }

    /// Whether more is in memory than may be.
    pub fn is_exceeded(&self, machine: &Machine) -> bool {
        machine.body_bytes() > self.bytes_max
    }

    /// Takes bodies of new tasks out of memory that would exceed the budget; the database has them now. A quarter of
    /// it is left to what is read ahead, because that is wanted first.
    pub fn spill(&mut self, machine: &mut Machine, keys: &[i64]) {
        let budget = self.bytes_max - self.bytes_max / 4;
        for key in keys.iter().rev() {
            if machine.body_bytes() <= budget {
                break;
            }
            let (number, id) = codec::split_key(*key);
            machine.set_body(number, id, None);
            // It may be finished by now, and its tube gone.
            if !machine.is_body_unloaded(number, id) {
                continue;
            }
            self.spilled.entry(number).or_default();
        }
    }

    /// Asks for the bodies that the next takes of a tube will want, before they want them.
    pub fn read_ahead(&mut self, machine: &Machine, number: u32, taken: usize, reader: &Reader) {
        let bytes = self.bytes(machine);
        let Some(lead) = self.spilled.get_mut(&number) else { return };
        lead.left = lead.left.saturating_sub(taken);
        let room = self.bytes_max.saturating_sub(bytes);
        if lead.left > lead.refill || taken == 0 || room == 0 {
            return;
        }
        let upcoming = machine.upcoming(number, READ_AHEAD);
        *lead = Lead { left: upcoming.len(), refill: upcoming.len() / 2 };
        let absent = upcoming.into_iter().filter(|id| machine.is_body_unloaded(number, *id));
        let keys: Vec<_> = absent.map(|id| self.generations.key(number, id)).collect();
        if !keys.is_empty() {
            self.reading += room;
            reader.read_ahead(keys, room);
        }
    }

    /// Puts what was read ahead into memory, as far as the budget goes.
    pub fn shelve(&mut self, machine: &mut Machine, ahead: Vec<Ahead>) {
        for Ahead { bodies, room, cut } in ahead {
            self.reading -= room;
            if let (true, Some((key, _))) = (cut, bodies.first()) {
                // Large bodies: the next ones are wanted sooner.
                let lead = Lead { left: bodies.len(), refill: bodies.len() / 2 };
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
