//! The machine compared with the model: random runs in which every reply must be equal.

use taskyard_core::command::TubeInfo;
use taskyard_core::limits::POSITIONS_MAX;
use taskyard_core::*;

use crate::model::Model;
use crate::random::{Step, TUBES};
use crate::shrink::{self, PropertyResult, same};

/// Due changes are applied before each command, so that both sides agree on everything.
#[test]
fn every_reply_is_equal_when_ticks_are_in_time() {
    shrink::check(120, 250, |script| {
        let mut pair = Pair::new();
        for step in script {
            pair.tick(step.now)?;
            pair.step(step)?;
        }
        pair.compare_everything()
    });
}

/// Only the run itself ticks: a verb must check the deadlines of what it uses.
#[test]
fn every_reply_is_equal_when_ticks_are_late() {
    shrink::check(120, 250, |script| {
        let mut pair = Pair::new();
        for step in script {
            match step.command {
                Command::Tick { .. } => pair.tick(step.now)?,
                // A wake-up for a token stays until the tick, although the token is there.
                _ => pair.step_unticked(&step.without_rates())?,
            }
        }
        let last = script.iter().map(|step| step.now).max().unwrap_or(Timestamp::EPOCH);
        pair.tick(last)?;
        pair.compare_everything()
    });
}

/// A new start in the middle of a run.
#[test]
fn every_reply_is_equal_after_a_restart() {
    shrink::check(50, 200, |script| {
        let mut pair = Pair::new();
        for (place, step) in script.iter().enumerate() {
            if place % 60 == 59 {
                pair.machine.restart();
                pair.model.restart();
                same("wake-up", &pair.machine.next_wakeup(), &pair.model.next_wakeup())?;
            }
            pair.tick(step.now)?;
            pair.step(step)?;
        }
        pair.compare_everything()
    });
}

/// Both sides of the comparison.
struct Pair {
    machine: Machine,
    model: Model,
    now: Timestamp,
}

impl Pair {
    fn new() -> Self {
        Pair { machine: Machine::default(), model: Model::new(), now: Timestamp::EPOCH }
    }

    /// Processes all that is due: the machine in small portions.
    fn tick(&mut self, now: Timestamp) -> PropertyResult {
        self.now = self.now.max(now);
        let (seed, mut moved) = (now.as_micros() as u32, 0);
        while let Ok(Reply::Ticked(some @ 1..)) =
            self.machine.apply(now, Command::Tick { limit: 3, seed })
        {
            moved += some;
        }
        let all = self.model.apply(now, Command::Tick { limit: usize::MAX, seed });
        same("tick", &Ok(Reply::Ticked(moved)), &all)?;
        same("wake-up", &self.machine.next_wakeup(), &self.model.next_wakeup())?;
        let overdue = self.machine.next_wakeup().filter(|at| *at <= self.now);
        same("still due after a tick", &overdue, &None)
    }

    fn step(&mut self, step: &Step) -> PropertyResult {
        let before = self.tubes(self.now);
        self.machine.take_effects();
        let machine = blur(self.machine.apply(step.now, step.command.clone()));
        let model = blur(self.model.apply(step.now, step.command.clone()));
        same(&format!("{step:?}"), &machine, &model)?;
        same("wake-up", &self.machine.next_wakeup(), &self.model.next_wakeup())?;
        self.check_effects(step, &before)
    }

    /// The number of takeable tasks is unknown without ticks: expired tasks are still counted.
    fn step_unticked(&mut self, step: &Step) -> PropertyResult {
        let machine = blur(self.machine.apply(step.now, step.command.clone()));
        let model = blur(self.model.apply(step.now, step.command.clone()));
        same(&format!("{step:?}"), &without_takeable(machine), &without_takeable(model))?;
        same("wake-up", &self.machine.next_wakeup(), &self.model.next_wakeup())
    }

    fn tubes(&mut self, now: Timestamp) -> Vec<TubeInfo> {
        match self.model.apply(now, Command::Tubes { tube: None }) {
            Ok(Reply::Tubes(tubes)) => tubes,
            other => panic!("{other:?}"),
        }
    }

    /// Waiting commands must be woken: for every tube in which more can be taken than before, and
    /// for every full tube that has free capacity again.
    fn check_effects(&mut self, step: &Step, before: &[TubeInfo]) -> PropertyResult {
        let effects = self.machine.take_effects();
        same("wake-up in effects", &effects.next_wakeup, &self.model.next_wakeup())?;
        for after in self.tubes(self.now) {
            let before = before.iter().find(|tube| tube.name == after.name);
            let takeable = before.map_or(0, |tube| tube.takeable);
            let told = effects.ready.iter().find(|ready| ready.0 == after.name);
            if after.takeable > takeable && told.is_none_or(|told| told.1 < after.takeable) {
                return Err(format!("{step:?} made tasks takeable, {effects:?} hide it"));
            }
            let was_full = before.is_some_and(|tube| room(tube) == 0);
            let told = effects.room.iter().find(|room| room.0 == after.name);
            if was_full && room(&after) > 0 && told.map(|told| told.1) != Some(room(&after)) {
                return Err(format!("{step:?} made room, {effects:?} hide it"));
            }
        }
        Ok(())
    }

    /// Every tube, every task, every delivery.
    fn compare_everything(&mut self) -> PropertyResult {
        let now = self.now;
        let mut commands = vec![Command::Tubes { tube: None }];
        for name in TUBES {
            let tube = TubeName::new(name).unwrap();
            let ids: Vec<_> = (0..1_000).map(TaskId).collect();
            commands.push(Command::Peek { tube: tube.clone(), ids: ids.clone() });
            for ids in ids.chunks(POSITIONS_MAX) {
                commands.push(Command::Positions { tube: tube.clone(), ids: ids.to_vec() });
            }
            commands.push(Command::Deliveries { tube, count: usize::MAX });
        }
        for command in commands {
            self.tick(now)?;
            self.step(&Step { now, command })?;
        }
        Ok(())
    }
}

fn room(tube: &TubeInfo) -> u64 {
    tube.options.capacity.unwrap_or(u64::MAX).saturating_sub(tube.stats.tasks.total())
}

/// The texts of errors are not compared.
fn blur(answer: Result<Reply>) -> Result<Reply> {
    answer.map_err(|error| match error {
        Error::Invalid(_) => Error::Invalid(String::new()),
        other => other,
    })
}

fn without_takeable(answer: Result<Reply>) -> Result<Reply> {
    answer.map(|reply| match reply {
        Reply::Tubes(tubes) => Reply::Tubes(
            tubes
                .into_iter()
                .map(|tube| TubeInfo { takeable: 0, oldest_ready: None, ..tube })
                .collect(),
        ),
        other => other,
    })
}
