//! Checks that all counts agree: for tests, and for a pool that checks itself.

use crate::classes::{Classes, Load};

impl Classes {
    /// Recounts everything and returns the first disagreement.
    pub fn audit(&self) -> Result<(), String> {
        let mut load = Load::new(self.rules.limits(self.backends));
        for (ticket, task) in self.running.iter() {
            load.add(task.class);
            if self.queue.get(ticket).is_some() {
                return Err(format!("task {ticket} runs and waits"));
            }
        }
        if load != self.load {
            return Err(format!("counted {load:?}, noted {:?}", self.load));
        }
        let stopping = self.running.iter().filter(|(_, task)| task.stopping.is_some()).count();
        if stopping != self.running.stopping() {
            return Err(format!("{stopping} tasks end, noted {}", self.running.stopping()));
        }
        let waiting: usize = (0..load.classes()).map(|class| self.queue.count(class)).sum();
        if waiting != self.queue.len() {
            return Err(format!("{waiting} places for {} tasks", self.queue.len()));
        }
        Ok(())
    }
}
