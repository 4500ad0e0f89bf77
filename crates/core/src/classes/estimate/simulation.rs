//! Simulates the queue to its end.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::limits::CLASSES_MAX;
use crate::time::{Span, Timestamp};

/// A running task, as waiting ones must expect it.
#[derive(Clone, Copy, Debug)]
pub struct Occupant {
    /// The class it counts in.
    pub class: u8,
    /// When its backend is free.
    pub end: Timestamp,
}

/// A waiting task.
#[derive(Clone, Copy, Debug)]
pub struct Waiter {
    /// The class whose limits hold it back.
    pub class: u8,
    /// How long it will run.
    pub time: Span,
}

/// The backends of a pool over time.
#[derive(Clone, Debug)]
pub struct Simulation<'a> {
    now: Timestamp,
    limits: &'a [u32],
    running: [u32; CLASSES_MAX],
    ends: BinaryHeap<Reverse<(Timestamp, u8)>>,
}

impl<'a> Simulation<'a> {
    /// Begins now, with these limits for each class and longer, and these tasks running.
    pub fn new(
        now: Timestamp,
        limits: &'a [u32],
        occupants: impl IntoIterator<Item = Occupant>,
    ) -> Self {
        let ends = BinaryHeap::new();
        let mut this = Simulation { now, limits, running: [0; CLASSES_MAX], ends };
        for occupant in occupants {
            this.occupy(occupant);
        }
        this
    }

    /// When each waiting task starts, in order. It ends early where no task could ever start.
    pub fn starts(mut self, waiters: impl IntoIterator<Item = Waiter>) -> Vec<Timestamp> {
        let mut queues: Vec<VecDeque<(usize, Span)>> = vec![VecDeque::new(); self.limits.len()];
        let mut count = 0;
        for (place, waiter) in waiters.into_iter().enumerate() {
            queues[usize::from(waiter.class)].push_back((place, waiter.time));
            count = place + 1;
        }
        let mut starts = vec![Timestamp::NEVER; count];
        let mut left = count;
        while left > 0 {
            if let Some(class) = self.next_class(&queues) {
                let Some((place, time)) = queues[class].pop_front() else { break };
                starts[place] = self.now;
                self.occupy(Occupant { class: class as u8, end: self.now + time });
                left -= 1;
            } else if !self.go_on() {
                return Vec::new();
            }
        }
        starts
    }

    /// The class of the earliest task that may start now.
    fn next_class(&self, queues: &[VecDeque<(usize, Span)>]) -> Option<usize> {
        let free = (0..self.limits.len()).take_while(|at| self.running[*at] < self.limits[*at]);
        let heads = free.filter_map(|class| Some((queues[class].front()?.0, class)));
        heads.min().map(|(_, class)| class)
    }

    /// Advances to the next end; false when nothing runs any more.
    fn go_on(&mut self) -> bool {
        let Some(Reverse((end, _))) = self.ends.peek().copied() else { return false };
        self.now = self.now.max(end);
        while let Some(Reverse((end, class))) = self.ends.peek().copied()
            && end <= self.now
        {
            self.ends.pop();
            for count in &mut self.running[..=usize::from(class)] {
                *count -= 1;
            }
        }
        true
    }

    fn occupy(&mut self, occupant: Occupant) {
        for count in &mut self.running[..=usize::from(occupant.class)] {
            *count += 1;
        }
        self.ends.push(Reverse((occupant.end, occupant.class)));
    }
}
