//! The cycle: finds the tasks that start now, and those that must yield for them.

use crate::classes::running::RunningTask;
use crate::classes::{Classes, Decision, TaskKind, Ticket};
use crate::time::{Span, Timestamp};

impl Classes {
    /// Starts every task that may start, in the order of arrival, lowering and halting others where
    /// that helps. Afterwards no waiting task could start.
    pub(super) fn cycle(&mut self, now: Timestamp, out: &mut Vec<Decision>) {
        while !self.paused {
            let Some(ignored) = self.make_room(now, out) else { return };
            let Some((ticket, _)) = self.queue.first_below(ignored) else { return };
            if self.load.is_full(0) {
                self.lower_all(now, out);
                self.halt(out);
            }
            // Lowered tasks free their backends only when they end.
            if self.load.is_full(0) {
                return;
            }
            self.start(now, ticket, out);
        }
    }

    /// Goes through the limits from the longest class down: where the first task in the queue is
    /// held back, a default task is lowered. Returns from which class on tasks are ignored; `None`
    /// when none is left.
    fn make_room(&mut self, now: Timestamp, out: &mut Vec<Decision>) -> Option<u8> {
        let mut ignored = self.load.classes() as u8;
        for class in (1..ignored).rev() {
            let (_, first) = self.queue.first_below(ignored)?;
            if first.class < class || !self.load.is_full(usize::from(class)) {
                continue;
            }
            if let Some(victim) = self.pick_default(class) {
                self.lower_to(now, victim, self.room_below(class), out);
            }
            if self.load.is_full(usize::from(class)) {
                ignored = class;
            }
        }
        Some(ignored)
    }

    /// A default task of the longest class that has any, if that is at least `class`.
    pub(super) fn pick_default(&mut self, class: u8) -> Option<Ticket> {
        let victims = self.running.defaults_from(class)?;
        self.choice.pick(self.rules.policy, victims).map(|(_, ticket)| ticket)
    }

    /// The longest class below this one whose limit, and those before it, are not reached.
    fn room_below(&self, class: u8) -> u8 {
        let free = (1..class).take_while(|class| !self.load.is_full(usize::from(*class)));
        free.last().unwrap_or(0)
    }

    fn lower_all(&mut self, now: Timestamp, out: &mut Vec<Decision>) {
        while let Some(victims) = self.running.defaults_from(1) {
            let Some((_, ticket)) = victims.first().copied() else { return };
            self.lower_to(now, ticket, 0, out);
        }
    }

    /// Halts as many interactive tasks as a waiting one needs to start; none if that is not enough.
    fn halt(&mut self, out: &mut Vec<Decision>) {
        if self.rules.patient && self.running.stopping() > 0 {
            return;
        }
        let over = self.load.running(0).saturating_sub(self.load.limit(0)) as usize;
        if self.load.limit(0) == 0 || self.running.interactive().len() <= over {
            return;
        }
        for _ in 0..=over {
            let halted = self.choice.pick(self.rules.policy, self.running.interactive());
            if let Some((_, ticket)) = halted {
                self.release(ticket);
                out.push(Decision::Halt { ticket });
            }
        }
    }

    /// Lowers a running default task; it ends at once if its new time is over.
    pub(super) fn lower_to(
        &mut self,
        now: Timestamp,
        ticket: Ticket,
        class: u8,
        out: &mut Vec<Decision>,
    ) {
        let Some(task) = self.release(ticket) else { return };
        let limit = self.rules.duration(class).min(task.wish);
        self.cut(now, ticket, RunningTask { class, limit, ..task }, out);
    }

    /// Keeps a running task with less time than before.
    pub(super) fn cut(
        &mut self,
        now: Timestamp,
        ticket: Ticket,
        mut task: RunningTask,
        out: &mut Vec<Decision>,
    ) {
        let stop = task.started + task.limit <= now;
        let class = task.class;
        if stop && task.stopping.is_none() {
            // Until its backend is free it counts for that, but not for the longer classes.
            task.class = 0;
            task.stopping = Some(now);
        }
        self.hold(ticket, task);
        out.push(Decision::Lower { ticket, class, limit: task.limit, stop });
    }

    fn start(&mut self, now: Timestamp, ticket: Ticket, out: &mut Vec<Decision>) {
        let Some(queued) = self.queue.remove(ticket) else { return };
        let class = match queued.kind {
            TaskKind::Default => {
                let free = self.load.longest_free().unwrap_or(0);
                free.min(self.rules.class_for(queued.wish))
            }
            _ => queued.class,
        };
        let limit = self.rules.duration(class).min(queued.wish);
        let (kind, wish) = (queued.kind, queued.wish);
        let (stopping, spared) = (None, None);
        let task = RunningTask { kind, class, started: now, limit, wish, stopping, spared };
        self.hold(ticket, task);
        out.push(Decision::Start { ticket, class: Some(class), limit });
    }

    /// Starts an interactive task on a backend that is known to be free.
    pub(super) fn start_interactive(&mut self, now: Timestamp, ticket: Ticket) -> Decision {
        let limit = Span::FOREVER;
        let kind = TaskKind::Interactive;
        let (class, started, wish, stopping, spared) = (0, now, limit, None, None);
        let task = RunningTask { kind, class, started, limit, wish, stopping, spared };
        self.hold(ticket, task);
        Decision::Start { ticket, class: None, limit }
    }

    /// Counts a running task.
    pub(super) fn hold(&mut self, ticket: Ticket, task: RunningTask) {
        self.load.add(task.class);
        self.running.insert(ticket, task);
    }

    /// No longer counts a running task.
    pub(super) fn release(&mut self, ticket: Ticket) -> Option<RunningTask> {
        let task = self.running.remove(ticket)?;
        self.load.remove(task.class);
        Some(task)
    }
}
